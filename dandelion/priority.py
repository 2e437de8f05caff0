"""Priorities of invocations: integers; of a tenant's waiting calls, the highest is next."""

from __future__ import annotations

import re

from dandelion.errors import InvalidInput

PRIORITY_LIMIT = 1000
_NUMBER = re.compile(r"[+-]?[0-9]{1,9}")


def checked_priority(where: str, value: object) -> int:
    """Check a priority that a caller gave.

    Raises:
        InvalidInput: it is not an integer within the limits.
    """
    if (
        isinstance(value, int)
        and not isinstance(value, bool)
        and -PRIORITY_LIMIT <= value <= PRIORITY_LIMIT
    ):
        return value
    message = f"{shown(value)} is not an integer from {-PRIORITY_LIMIT} to {PRIORITY_LIMIT}"
    raise InvalidInput(where, message)


def shown(value: object) -> str:
    """Show a value that a caller gave, in at most about 80 characters.

    Python refuses to write integers of thousands of digits; these are described.
    """
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def read_priority(where: str, text: str) -> int:
    """Read a priority, such as ``-3``.

    Raises:
        InvalidInput: it is not an integer within the limits.
    """
    return checked_priority(where, int(text) if _NUMBER.fullmatch(text) else text)
