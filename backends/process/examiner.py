"""The node's side of examining Python sources, in sandboxes.

The sandboxes come from a zygote of their own, and run our own function, see
`dandelion.backends.process.examine`. So parsing and compiling is confined and limited like a call,
and a source cannot affect the next one.

Each source has a sandbox of its own. The result then depends on the content alone, so the code may
be cached by content, also for other functions with the same content. With many functions in one
registration this would take milliseconds each, so many small sources share a sandbox, and their
code is not cached. If they break a limit together, each is examined again alone, which finds the
one at fault.
"""

from __future__ import annotations

import marshal
import os
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

import msgspec

from dandelion.call_values import FILES
from dandelion.confinement.syscalls import Architecture
from dandelion.data import Item, ItemSet, SetSpec
from dandelion.driver import Call, InstanceSets
from dandelion.errors import (
    BadOutput,
    Cancelled,
    EngineDied,
    Faulted,
    FunctionError,
    InternalError,
    OutOfMemory,
    Problem,
    Raised,
    TimedOut,
)
from dandelion.function import CodeObject, Function, FunctionSpec, Limits
from dandelion.memory import HeapDomain

from . import sources
from .constants import ConstantFiles
from .engine import ProcessEngine
from .examine import CODE_LIMIT_BYTES, MEMORY_LIMIT_BYTES, Question
from .handle import NoSandbox
from .programs import PythonPrograms
from .sandbox_pools import SandboxPools
from .sources import filename

LIMITS = Limits(
    memory_bytes=MEMORY_LIMIT_BYTES,
    wall_s=30.0,  # its priority is lower than that of calls and the node
    cpu_s=4.5,  # less than 5 s, the kernel's limit, so that the watch reports the error first
    output_bytes=2 * CODE_LIMIT_BYTES,
    output_items=2,
)
"""Limits of a sandbox that examines a source."""

_FEW = 8
_GROUP_LIMIT = 64
_GROUP_BYTES = 64 * 1024
_PROBLEMS_LIMIT_BYTES = 1024 * 1024
_ATTEMPTS = 2
_NICENESS = 5
_OURS = compile("from dandelion.backends.process.examine import examine", "<examine>", "exec")
_NAME = "examine"
_SPEC = FunctionSpec(
    _NAME, (SetSpec("questions"), SetSpec("sources")), (SetSpec("problems"), SetSpec("code"))
)
_ids = count(1)
_problems = msgspec.msgpack.Decoder(list[list[Problem]])
_encoder = msgspec.msgpack.Encoder()


@dataclass(frozen=True, slots=True)
class Examined:
    """The result of examining a source.

    Attributes:
        problems: empty if it can run.
        code: marshalled code, if the source compiles and was examined alone.
    """

    problems: tuple[Problem, ...]
    code: bytes = b""


class SourceExaminer:
    """Examines sources in sandboxes. Safe from any thread.

    Args:
        name: for errors.
        architecture: system calls of this machine.
        limits: of a sandbox.
    """

    def __init__(self, name: str, architecture: Architecture, limits: Limits = LIMITS) -> None:
        self._name = name
        self._limits = limits
        self._ours = Function(msgspec.structs.replace(_SPEC, limits=limits), CodeObject("python"))
        self._architecture = architecture
        self._at_once = max(2, min(4, os.cpu_count() or 1))
        self._pools = SandboxPools(name, ahead=self._at_once, niceness=_NICENESS)
        self._programs = PythonPrograms(lambda function, deadline_ns: marshal.dumps(_OURS))
        self._places = threading.BoundedSemaphore(self._at_once)
        self._waits_for_all = threading.Lock()
        self._lock = threading.Lock()
        self._idle: list[ProcessEngine] = []
        self._engines: list[ProcessEngine] = []
        self._closings = 0
        weakref.finalize(self, _close_left, self._engines, os.getpid())  # if its owner does not

    def start(self) -> None:
        """Start its zygote without waiting for it."""
        with self._lock:
            if not self._engines:
                self._make()

    def examine_all(self, functions: Sequence[Function]) -> Iterator[Examined]:
        """Examine the sources of one registration; yields their results in order.

        Raises:
            EngineDied, Cancelled: see `examine`.
        """
        for group in _groups(functions):
            if len(group) == 1:
                yield self.examine(group[0])
                continue
            try:
                yield from self._together(group, 0)
            except FunctionError:
                yield from map(self.examine, group)

    def examine(self, function: Function, deadline_ns: int = 0) -> Examined:
        """Examine the source of a function alone.

        Args:
            function: its declarations are checked against the source.
            deadline_ns: on `time.monotonic_ns`; 0 for the limits alone.

        Raises:
            NoSandbox: the deadline has passed.
            EngineDied: no sandbox starts, or sandboxes are killed from outside.
            Cancelled: it was closed meanwhile.
        """
        try:
            return self._together([function], deadline_ns)[0]
        except FunctionError as error:
            if deadline_ns and time.monotonic_ns() >= deadline_ns:
                raise NoSandbox("the deadline has passed") from None
            message = _broken(error, self._limits)
            return Examined((Problem("no-code", message, filename(function)),))

    def _together(self, group: Sequence[Function], deadline_ns: int) -> list[Examined]:
        closings = self._closings
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                with self._place(deadline_ns, closings) as engine:
                    return self._run(engine, group, deadline_ns)
            except EngineDied:
                if closings != self._closings:
                    raise Cancelled("the node is closed") from None
                if attempt == _ATTEMPTS:
                    raise
            except Raised as error:
                raise InternalError(f"examining a source: {error.exception}") from None
        raise AssertionError("the last attempt has returned or raised")

    def _run(
        self, engine: ProcessEngine, group: Sequence[Function], deadline_ns: int
    ) -> list[Examined]:
        questions = _encoder.encode([_question(function) for function in group])
        texts = [text for function in group for text in sources.texts(function)]
        inputs = (
            ItemSet("questions", (Item("questions", 0, questions),)),
            ItemSet("sources", tuple(Item(str(i), 0, text) for i, text in enumerate(texts))),
        )
        limit_s = self._limits.wall_s
        latest_ns = deadline_ns or time.monotonic_ns() + int(2e9 * limit_s)
        domain = HeapDomain(2 * self._limits.output_bytes)
        call = Call(next(_ids), self._ours, inputs, domain, latest_ns, limit_s)
        return _examined(engine.run(call), len(group))

    @contextmanager
    def _place(self, deadline_ns: int, closings: int) -> Iterator[ProcessEngine]:
        """Return an idle engine, or a new one.

        Raises:
            NoSandbox: the deadline has passed.
            Cancelled: it was closed meanwhile.
        """
        left_s = (deadline_ns - time.monotonic_ns()) / 1e9 if deadline_ns else None
        if not self._places.acquire(timeout=None if left_s is None else max(0.0, left_s)):
            raise NoSandbox("the deadline has passed")
        try:
            with self._lock:
                if closings != self._closings:
                    raise Cancelled("the node is closed")
                if not self._idle:
                    self._make()
                engine = self._idle.pop()
            try:
                yield engine
            finally:
                engine.clean_up()
                with self._lock:
                    if engine in self._engines:
                        self._idle.append(engine)
        finally:
            self._places.release()

    def _make(self) -> None:
        """Add an engine, under the lock; the first one starts the zygote."""
        engine = ProcessEngine(
            self._name, self._pools, self._programs, ConstantFiles(), self._architecture
        )
        self._engines.append(engine)
        self._idle.append(engine)

    def close(self) -> None:
        """Kill its processes. It may be used again, and then starts new ones."""
        with self._lock:
            self._closings += 1
            engines = self._engines.copy()
            self._engines.clear()
            self._idle.clear()
        _close_all(engines)
        with self._waits_for_all:  # two that take some places each would wait for each other
            for _ in range(self._at_once):  # all places are free when all runs have ended
                self._places.acquire()
            self._places.release(self._at_once)


def _close_all(engines: list[ProcessEngine]) -> None:
    for engine in engines:
        engine.close()


def _close_left(engines: list[ProcessEngine], owner: int) -> None:
    """Close what is left at the end; in a forked process nothing, it belongs to the parent."""
    if os.getpid() == owner:
        _close_all(engines)


def _groups(functions: Sequence[Function]) -> Iterator[list[Function]]:
    group: list[Function] = []
    size = 0
    limit = 1 if len(functions) <= _FEW else _GROUP_LIMIT
    for function in functions:
        needed = sources.size_bytes(function)
        if group and (len(group) == limit or size + needed > _GROUP_BYTES):
            yield group
            group, size = [], 0
        group.append(function)
        size += needed
    if group:
        yield group


def _question(function: Function) -> Question:
    return Question(
        filename(function),
        function.code.options.get("entry", function.spec.name),
        tuple(name for name in function.spec.input_names if name != FILES),
        sources.imports(function.code.options),
        sources.program_files(function),
        "values" in function.code.options,
    )


def _examined(outputs: InstanceSets, expected: int) -> list[Examined]:
    """Read and check an untrusted answer. Its code is loaded only in sandboxes.

    Raises:
        BadOutput: it is not a valid answer.
    """
    problems, code = outputs
    if problems is None or code is None or len(problems) != 1 or len(code) != 1:
        raise BadOutput(_NAME, "it returned other sets than requested")
    if problems.size_bytes > _PROBLEMS_LIMIT_BYTES:
        raise BadOutput(_NAME, f"{problems.size_bytes} bytes of problems")
    try:
        listed = _problems.decode(problems.only().data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadOutput(_NAME, "its problems are not a valid record") from None
    if len(listed) != expected:
        raise BadOutput(_NAME, f"problems of {len(listed)} sources instead of {expected}")
    kept = code.bytes() if expected == 1 else b""
    if expected == 1 and not listed[0] and not kept:
        raise BadOutput(_NAME, "it returned neither problems nor code")
    return [Examined(tuple(found), kept) for found in listed]


def _broken(error: FunctionError, limits: Limits) -> str:
    """Describe to the author of a source why its examination failed."""
    if isinstance(error, TimedOut) and error.what == "cpu":
        return f"compiling the source takes more than {limits.cpu_s:g} s"
    if isinstance(error, TimedOut):
        return f"the source was not compiled within {limits.wall_s:g} s; try again"
    if isinstance(error, OutOfMemory):
        return f"compiling the source takes more than {limits.memory_bytes >> 20} MiB"
    if isinstance(error, Faulted):
        return f"the compiler ended with {error.fault}; the code may be nested too deeply"
    return f"the compiler failed: {error}"
