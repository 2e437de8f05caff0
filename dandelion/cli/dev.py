"""``dandelion dev FILE``: a node that reloads a file when it changes, and shows what happens.

The node listens on loopback and keeps its catalogue in memory. The file is loaded in a process of
its own for each change, so a mistake in it, even an endless loop, does not harm the node.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec
import uvloop

from dandelion.activity import ActivityQuery, InvocationSummary
from dandelion.call_logs import LogLine, shown
from dandelion.catalog import Removal
from dandelion.cli.loading import Loading
from dandelion.cli.output import Output
from dandelion.cli.parser import Arguments
from dandelion.cli.run import split_target
from dandelion.cli.settings import load_settings
from dandelion.cli.sources import ProgramFailed
from dandelion.cli.wheel_folder import wheel_flags
from dandelion.documents import Registered, RegistrationDocument
from dandelion.errors import Conflict, DandelionError
from dandelion.frontend.listener import url_of
from dandelion.frontend.server import hangup_in_terminal, serve
from dandelion.node import Node

LOOK_S = 0.25
SLOW_S = 10.0
_CLOCK_NS = 10_000_000
"""How coarse the clock of a file system may be."""
SHOWN = 20
"""Invocations that are shown at once; with more the rest is counted."""


def run(arguments: Arguments, out: Output) -> int:
    """Serve until Ctrl-C."""
    path, _ = split_target(arguments.source)
    flags = {"catalog": ["memory:"], "port": [str(arguments.port)]}
    flags |= wheel_flags(path, arguments.wheels)
    settings = load_settings(None, os.environ, flags)
    settings = msgspec.structs.replace(settings, host="127.0.0.1", frontends=1)
    with contextlib.suppress(KeyboardInterrupt):  # before the server takes signals
        uvloop.run(_Development(Node(settings), path, out).serve())
    return 0


class _Development:
    """A node, and the file that it reloads."""

    def __init__(self, node: Node, path: Path, out: Output) -> None:
        self._node = node
        self._path = path
        self._out = out
        self._files: dict[str, int] = {}
        self._defined: set[Registered] = set()
        self._cursor = 0
        self._logged = 0

    async def serve(self) -> None:
        """Serve and watch until a signal.

        Raises:
            Exception: watching failed, which ends the node.
        """
        settings = self._node.settings
        hangup = hangup_in_terminal(_end)
        async with self._node as node:
            watching: list[asyncio.Task[None]] = []

            def ready(host: str, port: int) -> None:
                self._out.line(f"{url_of(host, port)} serves {self._path}; Ctrl-C ends it")
                loop = asyncio.get_running_loop()
                loop.add_signal_handler(signal.SIGHUP, hangup)
                watching.append(loop.create_task(self._watch()))
                watching[0].add_done_callback(_end_unless_cancelled)

            try:
                await serve(node, settings.host, settings.port, ready)
            finally:
                for task in watching:
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await task

    async def _watch(self) -> None:
        while True:
            if self._has_changed():
                await self._load()
            self._show()
            await asyncio.sleep(LOOK_S)

    def _has_changed(self) -> bool:
        return not self._files or self._files != _versions(self._files)

    async def _load(self) -> None:
        """Load and register the file; a failure leaves what was registered before.

        Files that are changed while they are loaded count as changed after it.
        """
        self._files = _versions(self._files or [str(self._path)])
        began_ns = time.time_ns()
        work = await self._loaded()
        if work is None:  # the next look loads it again
            return
        try:
            document, files = work.result()
            # The path may be a link to one of the files, and be made to lead to another one.
            self._files = _versions({str(self._path), *files}, began_ns)
            registered, obstacle = await asyncio.to_thread(self._replaced_by, document)
        except DandelionError as error:
            if isinstance(error, ProgramFailed):
                self._files = _versions({*self._files, *error.files}, began_ns)
            self._out.line(f"{_clock()} {error}")
            self._out.line("         what was registered before stays")
            return
        names = ", ".join(f"{one.name} {one.version}" for one in registered)
        self._out.line(f"{_clock()} registered {names}")
        if obstacle is not None:
            self._out.line(f"         {obstacle}")
        elif removed := {one.name for one in self._defined} - {one.name for one in registered}:
            self._out.line(f"         removed {', '.join(sorted(removed))}")
        self._defined = {*registered, *(() if obstacle is None else self._defined)}

    def _replaced_by(
        self, document: RegistrationDocument
    ) -> tuple[list[Registered], Conflict | None]:
        """Register a document in the place of what the file defined before, in one step.

        What something else uses stays until it does not.

        Returns:
            What was registered, and why what was there before stays.

        Raises:
            DandelionError: the document is refused.
        """
        before = [Removal(one.kind, one.name, one.version) for one in self._defined]
        try:
            return self._node.replace(document, before), None
        except Conflict as obstacle:
            try:
                return self._node.register(document), obstacle
            except DandelionError:
                raise obstacle from None

    async def _loaded(self) -> asyncio.Task[tuple[RegistrationDocument, tuple[str, ...]]] | None:
        """Load the file in its process. None if the file is changed meanwhile."""
        loading = Loading(self._path)
        work = asyncio.create_task(asyncio.to_thread(loading.result))
        slow_s = time.monotonic() + SLOW_S
        is_outdated = False
        try:
            while not (await asyncio.wait({work}, timeout=LOOK_S))[0]:
                self._show()
                if is_outdated := self._has_changed():
                    break
                if time.monotonic() > slow_s:
                    slow_s = math.inf
                    self._out.line(f"{_clock()} {self._path} is still being loaded")
        finally:
            loading.end()
            await asyncio.wait({work})
            work.exception()  # else asyncio reports that of a process that was ended here
        return None if is_outdated else work

    def _show(self) -> None:
        self._show_logs()
        self._show_invocations()

    def _show_logs(self) -> None:
        page = self._node.logs(after=self._logged)
        self._logged = page.last
        for line in page.lines:
            self._out.line(_log_of(line))

    def _show_invocations(self) -> None:
        query = ActivityQuery(after=self._cursor, limit=SHOWN)
        found = self._node.activity(query=query)
        more = found.cursor - self._cursor - len(found.invocations)
        self._cursor = found.cursor
        if more > 0:
            self._out.line(f"         {more} more invocations")
        for one in reversed(found.invocations):
            self._out.line(_line_of(one))


def _end() -> None:
    """End the server, which drains."""
    signal.raise_signal(signal.SIGTERM)


def _end_unless_cancelled(watching: asyncio.Task[None]) -> None:
    """End the server when watching has failed."""
    if not watching.cancelled():
        _end()


def _line_of(one: InvocationSummary) -> str:
    at = time.strftime("%H:%M:%S", time.localtime(one.started_s))
    line = f"{at} {one.name} {one.outcome} {one.duration_ms:.1f} ms  {one.id}"
    return f"{line}\n{_indented(one.message)}" if one.message else line


def _log_of(line: LogLine) -> str:
    return f"         {shown(line.function)} {line.level or line.stream}: {shown(line.text)}"


def _indented(text: str) -> str:
    return "\n".join(f"         {line}" for line in text.splitlines())


def _clock() -> str:
    return time.strftime("%H:%M:%S")


def _versions(files: Iterable[str], began_ns: int | None = None) -> dict[str, int]:
    """Give each file the time of its last change; 0 if it is missing, or was changed since."""
    now_ns, found = time.time_ns(), {}
    for file in files:
        try:
            found[file] = changed_ns = Path(file).stat().st_mtime_ns
        except OSError:
            found[file] = 0
            continue
        if began_ns is not None and began_ns - _CLOCK_NS <= changed_ns <= now_ns:
            found[file] = 0  # it may have been read before that
    return found
