"""Commands of the operations, and what the replies mean for their items.

A message of the server is never passed on; its first word, such as WRONGTYPE, is. The library keeps
it as the status of an error whose class it knows, and in the message of others.
"""

from __future__ import annotations

import re
from typing import Any

from redis import exceptions

from dandelion.data import Bytes

from ..stores.failures import ItemFailed, ItemRefused
from ..stores.jobs import Job

TTL_LIMIT_S = 10 * 365 * 86_400
_NUMBER = re.compile(r"-?[0-9]{1,19}")
_LARGEST = 2**63 - 1
"""Of the numbers of a store, which have 64 bits and a sign."""
_CODE = re.compile(r"[A-Z]{2,32}\b")
_TRANSIENT = frozenset(
    {"LOADING", "BUSY", "TRYAGAIN", "MASTERDOWN", "CLUSTERDOWN", "OOM", "NOREPLICAS", "READONLY"}
)
_REFUSED = "the store refused the command"
_NO_NUMBER = re.compile("not an integer|out of range|would overflow")
_REASONS = {
    "WRONGTYPE": "the key has a value of another type",
    "MOVED": "the store redirects to another server, which is not followed",
    "ASK": "the store redirects to another server, which is not followed",
    "NOAUTH": "the store refused the credentials",
    "WRONGPASS": "the store refused the credentials",
    "NOPERM": "the store refused the operation",
}

Command = tuple[str | bytes | int | memoryview, ...]


def command_of(operation: str, job: Job[Any]) -> Command:
    """Return the command of a job.

    Raises:
        ItemRefused: an option is not valid.
    """
    key = job.path.encode()
    match operation:
        case "get":
            return "GET", key
        case "delete":
            return "DEL", key
        case "increment":
            by = job.request.options.get("by", "1")
            if not _NUMBER.fullmatch(by) or not -_LARGEST - 1 <= int(by) <= _LARGEST:
                expected = f"expected a whole number from {-_LARGEST - 1} to {_LARGEST}"
                raise ItemRefused(f"option 'by' is '{by[:80]}', {expected}")
            return "INCRBY", key, int(by)
        case "add":
            return "SET", key, job.content, *_ttl(job), "NX"
        case _:
            return "SET", key, job.content, *_ttl(job)


def result_of(operation: str, job: Job[Any], reply: Any) -> tuple[int, Bytes]:
    """Return the position of the output set, and the data of the item.

    Raises:
        ItemFailed: the server refused the command, or its reply cannot be one.
    """
    if isinstance(reply, exceptions.RedisError):
        if operation == "increment" and _NO_NUMBER.search(str(reply)):
            raise ItemFailed("the value is not a whole number of 64 bits, or would not be one")
        raise failure_of(reply)
    line = job.line
    match operation:
        case "get" if reply is None:
            return 1, line
        case "get" if isinstance(reply, bytes | memoryview):
            return 0, reply
        case "delete" if reply in (0, 1):
            return 1 - int(reply), line
        case "increment" if isinstance(reply, int):
            return 0, b"%d" % reply
        case "add" if reply is None:
            return 1, line
        case "add" | "set" if reply == b"OK":
            return 0, line
    raise ItemFailed("the store's reply is not one to this command")


def failure_of(error: Exception) -> ItemFailed:
    """Make the failure of an item from an exception of the library."""
    refused = exceptions.AuthenticationError  # is a ConnectionError, or the cause of one
    if isinstance(error, refused) or isinstance(error.__cause__, refused):
        return ItemFailed(_REASONS["WRONGPASS"])
    if isinstance(error, exceptions.ConnectionError | exceptions.TimeoutError | OSError):
        if isinstance(error, exceptions.BusyLoadingError):
            return ItemFailed("the store is busy: LOADING", transient=True)
        return ItemFailed("no connection to the store, or the connection broke off", transient=True)
    if isinstance(error, exceptions.InvalidResponse | ValueError):
        return ItemFailed("the store's reply is not one of the Redis protocol")
    word = _code(error)
    reason = _REASONS.get(word, _REFUSED)
    return ItemFailed(f"{reason}: {word}" if word else reason, word in _TRANSIENT)


def _code(error: Exception) -> str:
    status = getattr(error, "status_code", None)
    if status:
        return str(status)
    code = _CODE.match(str(error))
    return code[0] if code else ""


def _ttl(job: Job[Any]) -> tuple[str | int, ...]:
    if "ttl" not in job.request.options:
        return ()
    return "EX", job.request.number("ttl", 1, TTL_LIMIT_S)
