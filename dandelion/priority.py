"""Priorities of invocations: integers; of a tenant's waiting calls, the highest is next."""

from __future__ import annotations

import re

from dandelion.errors import InvalidInput

PRIORITY_LIMIT = 1000
_NUMBER = re.compile(r"[+-]?[0-9]{1,9}")


def check_priority(where: str, value: object) -> None:
    """Check a priority that a caller gave.

    Raises:
        InvalidInput: it is not an integer within the limits.
    """
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if not (is_number and value in range(-PRIORITY_LIMIT, PRIORITY_LIMIT + 1)):
        message = f"{value!r} is not an integer from {-PRIORITY_LIMIT} to {PRIORITY_LIMIT}"
        raise InvalidInput(where, message)


def read_priority(where: str, text: str) -> int:
    """Read a priority, such as ``-3``.

    Raises:
        InvalidInput: it is not an integer within the limits.
    """
    value: object = int(text) if _NUMBER.fullmatch(text) else text
    check_priority(where, value)
    assert isinstance(value, int), "it was checked"
    return value
