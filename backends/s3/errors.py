"""What an exception of obstore means for the item.

Its messages have the URL and the body of the answer, which may contain the id of the access key and
parts of a signature. So a message is only searched for the status, the short code, and words of the
library. Only what is known to pass is transient: some statuses and codes, and failures of the
connection, which the library reports as `_CONNECTION`. An answer that the library cannot use is
permanent, since the store will send it again.
"""

from __future__ import annotations

import re

from obstore import exceptions

from ..stores.failures import ItemFailed, ItemRefused

NOWHERE = "127.0.0.1:0"
"""The address that stands for all hosts but that of the endpoint; connections to it are refused."""
_REDIRECTS = "the store redirects to another address, which is not followed"
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"(?:<Code>|\(code: )([A-Za-z0-9.]{1,64})(?:</Code>|\))")
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
_TRANSIENT_CODES = frozenset({"InternalError", "RequestTimeout", "ServiceUnavailable", "SlowDown"})
_CONNECTION = "HTTP error: "
_REASONS = {
    400: "the store does not accept the request",
    401: "the store refused the credentials",
    403: "the store refused the credentials or the operation",
    404: "the store has no such bucket",
    405: "the store does not support the operation",
    416: "the range is outside of the object",
    429: "the store is busy",
    503: "the store is busy",
}
_PERMANENT = {
    "redirect without LOCATION": f"{_REDIRECTS}; the region of the store may be wrong",
    "error following redirect": _REDIRECTS,
    NOWHERE: _REDIRECTS,
    "non-partial response": "the object is empty, or the store does not support ranges",
}
"""Reasons by words of the library that its messages have."""


def failure_of(error: Exception) -> ItemFailed | ItemRefused:
    """Make the failure of an item from an exception of the library."""
    text = str(error)
    status, code = _STATUS.search(text), _CODE.search(text)
    shown = f" ({code[1]})" if code else ""
    if status:
        number = int(status[1])
        is_redirect = 300 <= number < 400
        reason = _REDIRECTS if is_redirect else _REASONS.get(number, "the store failed")
        return ItemFailed(f"{reason}: status {number}{shown}", number in _TRANSIENT)
    for words, reason in _PERMANENT.items():
        if words in text:
            return ItemFailed(reason)
    if isinstance(error, exceptions.PermissionDeniedError):
        return ItemFailed(_REASONS[403] + shown)
    if isinstance(error, exceptions.UnauthenticatedError):
        return ItemFailed(_REASONS[401] + shown)
    if isinstance(error, FileNotFoundError):
        return ItemFailed(_REASONS[404] + shown)
    if isinstance(error, ValueError | exceptions.InvalidPathError):
        return ItemRefused("the path is not a valid key")
    if isinstance(error, exceptions.NotSupportedError):
        return ItemFailed("the store does not support the operation")
    if code:  # of an answer that has the status of a success
        return ItemFailed(f"the store reports an error{shown}", code[1] in _TRANSIENT_CODES)
    if _CONNECTION in text:
        return ItemFailed("no connection to the store, or the answer broke off", transient=True)
    return ItemFailed("the store's answer is not one to this request")


def is_absent(error: FileNotFoundError) -> bool:
    """Tell whether an object is missing, and not its bucket."""
    return "NoSuchBucket" not in str(error)
