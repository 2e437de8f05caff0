"""Shows how far long work is: a bar on a terminal, an element in a notebook, nothing elsewhere.

A terminal is meant only if standard output and standard error are one; the bar is on standard
error, and is removed at the end. In a notebook one output is updated in place.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from dandelion.markup import dim, element, page

_PAUSE_S = 0.1
"""Least time between two changes of a notebook's output."""

ShowProgress: TypeAlias = Callable[[int, int, str], None]
"""Is told what is done, of how much (0 if that is not known), and in words what is being done."""


def no_progress(done: int, total: int, words: str) -> None:
    """Show nothing."""


@contextlib.contextmanager
def progress(text: str, *, in_bytes: bool = False, wanted: bool = True) -> Iterator[ShowProgress]:
    """Show progress until the end of the context.

    Args:
        text: what is being done.
        in_bytes: the numbers are bytes.
        wanted: without it nothing is shown.
    """
    if wanted and sys.stdout.isatty() and sys.stderr.isatty():
        with _terminal(text, in_bytes) as show:
            yield show
    elif wanted and (display := _notebook()) is not None:
        with _in_notebook(text, in_bytes, display) as show:
            yield show
    else:
        yield no_progress


@contextlib.contextmanager
def _terminal(text: str, in_bytes: bool) -> Iterator[ShowProgress]:
    from rich import progress as rich_progress  # not loaded where nothing is shown
    from rich.console import Console
    from rich.markup import escape

    counted = rich_progress.DownloadColumn(binary_units=True)
    columns = (
        rich_progress.TextColumn("{task.description}"),
        rich_progress.BarColumn(30),
        counted if in_bytes else rich_progress.MofNCompleteColumn(),
        rich_progress.TimeElapsedColumn(),
    )
    console = Console(stderr=True)
    with rich_progress.Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(escape(text), total=None)

        def show(done: int, total: int, words: str) -> None:
            description = escape(f"{text}: {words}" if words else text)
            bar.update(task, completed=done, total=total or None, description=description)

        yield show


def _notebook() -> Callable[..., Any] | None:
    """Return what displays an output in this notebook; None if this is none."""
    ipython = sys.modules.get("IPython")
    if ipython is None:
        return None
    shell = ipython.get_ipython()
    if shell is None or not hasattr(shell, "kernel"):
        return None
    display = sys.modules.get("IPython.display")
    return None if display is None else display.display


@contextlib.contextmanager
def _in_notebook(text: str, in_bytes: bool, display: Callable[..., Any]) -> Iterator[ShowProgress]:
    handle = display(_Html(_bar(text, 0, 0, in_bytes)), display_id=True)
    last: tuple[int, int, str] = (0, 0, "")
    shown_s = time.monotonic()

    def show(done: int, total: int, words: str) -> None:
        nonlocal last, shown_s
        last = (done, total, words)
        now = time.monotonic()
        if now - shown_s >= _PAUSE_S:
            shown_s = now
            handle.update(_Html(_bar(f"{text}: {words}" if words else text, done, total, in_bytes)))

    try:
        yield show
    finally:
        handle.update(_Html(_bar(text, last[0], last[1], in_bytes)))


class _Html:
    """An output that is HTML."""

    def __init__(self, text: str) -> None:
        self._text = text

    def _repr_html_(self) -> str:
        return self._text


def _bar(text: str, done: int, total: int, in_bytes: bool) -> str:
    bar = element("progress", max=total, value=done) if total else element("progress")
    unit = 1 << 20 if in_bytes else 1
    amount = f"{done // unit}/{total // unit}{' MiB' if in_bytes else ''}" if total else ""
    return page(element("span", f"{text} "), bar, dim(f" {amount}"))
