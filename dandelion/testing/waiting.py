"""Waiting for something that is about to happen."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

_STEP_S = 0.002
_Found = TypeVar("_Found")


def wait_until(condition: Callable[[], _Found], limit_s: float = 20.0) -> _Found:
    """Ask again and again until a condition holds, and give what it gave then.

    For what offers no event to wait for.

    Raises:
        TimeoutError: it did not hold within the limit.
    """
    end_s = time.monotonic() + limit_s
    while not (found := condition()):
        if time.monotonic() > end_s:
            raise TimeoutError(f"the condition did not hold within {limit_s} s")
        time.sleep(_STEP_S)
    return found
