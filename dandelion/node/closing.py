"""Closing parts of a node."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from dandelion.executors import to_dandelion_error


def close_safely(close: Callable[[], None]) -> None:
    """Close something; a failure must not keep the rest from being closed."""
    try:
        close()
    except Exception as error:
        to_dandelion_error(error, "closing")


def close_together(closes: Iterable[Callable[[], None]]) -> None:
    """Close several things at the same time, and wait for all."""
    threads = []
    for close in closes:
        thread = threading.Thread(target=close_safely, args=(close,))
        try:
            thread.start()
        except RuntimeError:  # as a program ends, Python 3.12 and later start no threads
            close_safely(close)
        else:
            threads.append(thread)
    for thread in threads:
        thread.join()
