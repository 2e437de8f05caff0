"""Closing parts of a node one after the other."""

from __future__ import annotations

from collections.abc import Callable

from dandelion.executors import to_dandelion_error


def close_safely(close: Callable[[], None]) -> None:
    """Close something; a failure must not keep the rest from being closed."""
    try:
        close()
    except Exception as error:
        to_dandelion_error(error, "closing")
