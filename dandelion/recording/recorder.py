"""Collects the calls of one invocation while it runs.

While the invocation runs, only references to sets are kept, on the node's loop. Hashing and copying
come after its end, in a thread. The inputs of a call are results of others or inputs of the
invocation, so only results count towards the limit. The inputs of the invocation and the answers of
I/O functions are needed for a replay: without room for them there is no recording. Calls of compute
functions are recorded to be compared, so those beyond the limit are left out.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from dandelion import __version__
from dandelion.data import Origin
from dandelion.documents import RegistrationDocument
from dandelion.driver import InstanceSets
from dandelion.errors import DandelionError, TooLarge
from dandelion.function import Digest, FunctionSpec
from dandelion.recording.records import RecordedCall, RecordedSets, Recording, recorded_set

RECORDING_LIMIT_BYTES = 256 * 1024 * 1024
"""Data in a recording, by default."""


@dataclass(slots=True)
class SeenCall:
    """A call as it ended.

    Attributes:
        function: that was called.
        instance: which one of the invocation; those that run again have the same.
        application, number: which instance of which application.
        inputs, outputs: its sets by position; no outputs if it failed.
        error: why it failed.
        engine: that ran it.
        started_ns, ended_ns: on `time.monotonic_ns`.
        origin: the item that it was made for.
    """

    function: FunctionSpec
    instance: int
    application: str
    number: int
    inputs: InstanceSets
    outputs: InstanceSets | None
    error: DandelionError | None
    engine: str
    started_ns: int
    ended_ns: int
    origin: Origin | None


class InvocationRecorder:
    """Collects what is needed for the recording of an invocation.

    Args:
        limit_bytes: of the data in the recording. Calls of compute functions beyond it are only
            counted; further ones are, when an answer of an I/O function needs their room.
        inputs: of the invocation.
        partitioning: the node's setting for ``any`` shardings.
    """

    def __init__(self, limit_bytes: int, inputs: InstanceSets, partitioning: str) -> None:
        self._limit_bytes = limit_bytes
        self._inputs = inputs
        self._partitioning = partitioning
        self._size_bytes = _size_of(inputs)
        self._calls: dict[int, SeenCall] = {}  # in the order of their ends
        self._compute: list[int] = []  # which of them may be left out
        self._next = 0
        self._omitted = 0

    def add(self, call: SeenCall) -> None:
        """Keep a call that ended."""
        size = _size_of(call.outputs or ())
        if call.function.kind == "io":
            while self._compute and self._size_bytes + size > self._limit_bytes:
                dropped = self._calls.pop(self._compute.pop())
                self._size_bytes -= _size_of(dropped.outputs or ())
                self._omitted += 1
        elif self._size_bytes + size > self._limit_bytes:
            self._omitted += 1
            return
        else:
            self._compute.append(self._next)
        self._size_bytes += size
        if self._size_bytes > self._limit_bytes:
            self._calls.clear()  # it cannot be replayed, see `recording`
            self._compute.clear()
            return
        self._calls[self._next] = call
        self._next += 1

    def recording(
        self,
        name: str,
        invocation: str,
        started_ns: int,
        code: tuple[RegistrationDocument, tuple[FunctionSpec, ...]],
        names: tuple[str, ...],
        answer: InstanceSets | DandelionError,
    ) -> Recording:
        """Make the recording; takes as long as there is data.

        Args:
            name: what was invoked.
            invocation: its id.
            started_ns: on `time.monotonic_ns`.
            code: the document of what was used, and the platform's functions.
            names: of the input sets.
            answer: its outputs, or its error.

        Raises:
            TooLarge: the inputs and the answers of I/O functions exceed the limit.
        """
        if self._size_bytes > self._limit_bytes:
            raise TooLarge("recording", self._size_bytes, self._limit_bytes)
        seen = self._calls.values()
        last = {call.instance: call for call in seen}
        calls = [c for c in seen if c.function.kind == "io" or last[c.instance] is c]
        blobs: dict[Digest, memoryview] = {}
        return Recording(
            name,
            invocation,
            time.time(),
            __version__,
            *code,
            names,
            _sets(self._inputs, blobs),
            None if isinstance(answer, DandelionError) else _sets(answer, blobs),
            answer.record() if isinstance(answer, DandelionError) else None,
            tuple([_recorded(call, started_ns, blobs) for call in calls]),
            blobs,
            self._omitted,
            self._partitioning,
        )


def _size_of(sets: InstanceSets) -> int:
    return sum([s.size_bytes for s in sets if s is not None])


def _sets(sets: InstanceSets, blobs: dict[Digest, memoryview]) -> RecordedSets:
    return tuple([recorded_set(s, blobs) for s in sets])


def _recorded(call: SeenCall, started_ns: int, blobs: dict[Digest, memoryview]) -> RecordedCall:
    return RecordedCall(
        call.function.name,
        call.application,
        call.number,
        call.function.kind,
        _sets(call.inputs, blobs),
        None if call.outputs is None else _sets(call.outputs, blobs),
        None if call.error is None else call.error.record(),
        call.engine,
        max(0, call.started_ns - started_ns) // 1000,
        max(0, call.ended_ns - call.started_ns) // 1000,
        call.origin,
    )
