"""Exceptions become typed errors that hold no call's memory.

The frames of a traceback refer to the data of the call that failed, and an error may be kept for
long: by an engine that is unavailable, or by a caller. So the tracebacks of bugs are logged here
and all tracebacks are stripped.
"""

from __future__ import annotations

import logging

from dandelion.errors import DandelionError, InternalError

log = logging.getLogger("dandelion.node")


def to_dandelion_error(error: BaseException, source: str = "") -> DandelionError:
    """Make a typed error of an exception, without tracebacks.

    Args:
        error: what was raised.
        source: what raised it, for the message; left out if the error names it.
    """
    if isinstance(error, DandelionError):
        if isinstance(error, InternalError) and error.__cause__ is not None:
            log.error("%s", error, exc_info=error)
        return strip_tracebacks(error)
    log.error("%s failed", source or "the node", exc_info=error)
    text = f"{type(error).__name__}: {error}"
    failure = InternalError(f"{source}: {text}" if source else text)
    failure.__cause__ = error
    return strip_tracebacks(failure)


def strip_tracebacks(error: DandelionError) -> DandelionError:
    """Remove the tracebacks of an error and of everything that led to it."""
    left: list[BaseException | None] = [error]
    seen: set[int] = set()
    while left:
        one = left.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            one.__traceback__ = None
            left += (one.__cause__, one.__context__)
    return error
