"""Exceptions on their way to callers: every one becomes a typed error that holds no call's memory.

The frames of a traceback refer to the data of the call that failed, and an error may be kept for
long: by a host that is unavailable, by a caller. So tracebacks are logged here, if the error is a
bug, and taken off.
"""

from __future__ import annotations

import logging

from dandelion.errors import DandelionError, InternalError

log = logging.getLogger("dandelion.node")


def typed(error: BaseException, who: str = "") -> DandelionError:
    """Make a typed error of an exception, without tracebacks.

    Args:
        error: what was raised.
        who: what raised it, for the message; left out if it says so itself.
    """
    if isinstance(error, DandelionError):
        if isinstance(error, InternalError) and error.__cause__ is not None:
            log.error("%s", error, exc_info=error)
        return released(error)
    log.error("%s failed", who or "the node", exc_info=error)
    failure = InternalError(f"{who}: {_text(error)}" if who else _text(error))
    failure.__cause__ = error
    return released(failure)


def released(error: DandelionError) -> DandelionError:
    """Take the tracebacks off an error and all that led to it."""
    left: list[BaseException | None] = [error]
    seen: set[int] = set()
    while left:
        one = left.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            one.__traceback__ = None
            left += (one.__cause__, one.__context__)
    return error


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
