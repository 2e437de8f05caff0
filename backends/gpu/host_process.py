"""The broker's side of one kernel host: its process, its memory, and what it may answer."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from dandelion.driver import Call, Capacity
from dandelion.engine_process.channel import Ended
from dandelion.engine_process.messages import (
    Done,
    Failed,
    Load,
    Ready,
    Run,
    WireSets,
)
from dandelion.errors import (
    BadOutput,
    Cancelled,
    DandelionError,
    DeviceFull,
    EngineDied,
    ErrorRecord,
    Faulted,
    InternalError,
    InvalidBlueprint,
    InvalidFunction,
    InvalidInput,
    TimedOut,
    from_record,
)
from dandelion.polling import OF_ENGINE, Polling

from .host_memory import ROOM_BYTES, HostMemory, Place
from .host_messages import Confined, HostReply, HostSettings, host_channel
from .host_template import HostTemplate
from .known_answers import KnownAnswer
from .system_limits import EXHAUSTED

START_LIMIT_S = 60.0
GRACE_S = 0.05
"""How long after a call's deadline its host may still answer."""
LOOK_S = 0.02
"""How often a broker that waits looks whether the call is still wanted."""
_CODE_LIMIT_S = 1.0
_LONGEST_NS = 10**15
_OUTSIDE = frozenset({-signal.SIGSEGV, -signal.SIGBUS})
_STAGES = ("plan", "load", "copy_in", "kernels", "copy_out")
"""In their order."""
_ACCEPTED = (
    InvalidBlueprint,
    InvalidFunction,
    InvalidInput,
    BadOutput,
    DeviceFull,
    TimedOut,
    Faulted,
    InternalError,
)
_LIES = "its process broke the protocol"


@dataclass(frozen=True, slots=True)
class Expected:
    """What a host may answer to a call.

    Attributes:
        function: name of the function, for errors.
        sets: the only answer of a call that succeeds.
        optional: positions of the sets that may be absent in it.
    """

    function: str
    sets: WireSets
    optional: frozenset[int]


class HostEnded(Exception):
    """A host that cannot be used any more.

    Attributes:
        words: what happened, for people.
        late: it did not answer in time.
        killed: something else than the broker or its own fault ended it.
    """

    def __init__(self, words: str, late: bool = False, killed: bool = False) -> None:
        super().__init__(words)
        self.words = words
        self.late = late
        self.killed = killed


class HostProcess:
    """A kernel host. Used by one thread.

    Args:
        name: of the engine, for errors.
        template: what it is forked from.
        folder: the place for its own files.
        backend, resource: what it serves.
        memory_bytes: for the buffers of a call.
        threads, rehearse: see `HostSettings`.

    Raises:
        EngineDied: the template is gone.
        OSError: there can be no further process.

    Attributes:
        function: identity of the function that it has; empty for none yet.
        facts: what is enforced, once it is confined.
        well: it can be used for a further call.
    """

    def __init__(
        self,
        name: str,
        template: HostTemplate,
        folder: Path,
        backend: str,
        resource: str,
        memory_bytes: int,
        threads: bool = True,
        rehearse: bool = True,
    ) -> None:
        self._name = name
        self.folder = folder
        self.function = ""
        self.facts: dict[str, str] = {}
        self.well = True
        self._capacity: Capacity | None = None
        self._calls = 0
        self._polling = Polling(OF_ENGINE)
        self.memory = HostMemory(name, memory_bytes + ROOM_BYTES)
        try:
            ours, theirs = socket.socketpair()
        except OSError:
            self.memory.close()
            raise
        self._channel = host_channel(ours)
        settings = HostSettings(
            template.pid,
            str(folder),
            self.memory.size_bytes,
            backend,
            resource,
            threads,
            rehearse,
        )
        try:
            with theirs:
                self.child = template.fork(settings, theirs, self.memory.map.fd)
        except (OSError, EngineDied):
            self._channel.close()
            self.memory.close()
            raise

    # its start

    def wait_ready(self, limit_s: float) -> Capacity:
        """Wait until its device is open; gives what it has.

        Raises:
            BackendUnavailable, EngineDied, InternalError: it cannot work, or not in time.
        """
        if self._capacity is None:
            reply = self._first(limit_s)
            if not isinstance(reply, Ready):
                raise EngineDied(self._name, "a kernel host did not say that it is ready")
            self._capacity = reply.capacity
        return self._capacity

    def wait_confined(self, limit_s: float) -> bool:
        """Wait until it can get code of users. False if it takes longer; raises as `wait_ready`."""
        while not self.facts:
            reply = self._first(limit_s)
            if reply is None:
                return False
            if isinstance(reply, Ready) and self._capacity is None:
                self._capacity = reply.capacity
            elif isinstance(reply, Confined):
                self.facts = dict(reply.facts)
            else:
                raise EngineDied(self._name, "a kernel host did not say that it is confined")
        return True

    def _first(self, limit_s: float) -> HostReply | None:
        """Take one of the messages before any code of users was there; None if it is late."""
        try:
            reply = self._channel.receive(limit_s)
        except Ended:
            self.well = False
            ended = self._death().words
            raise EngineDied(self._name, f"a kernel host, as it started: {ended}") from None
        if isinstance(reply, Failed):
            raise from_record(reply.error)
        return reply

    # calls; nothing that comes from here on can be believed

    def load(self, call: Call) -> None:
        """Give it the function of a call, if it has not got it.

        Raises:
            HostEnded: it is gone, or does not read.
            DeviceFull: the function's constants are too large.
        """
        function = call.function
        if self.function == function.identity:
            return
        assert not self.function, "a host has one function"
        static = self.memory.place_static(function)
        files = {name: bytes(data) for name, data in function.files.items()}
        main = bytes(function.main)
        self.function = function.identity
        self._send(Load(function.identity, function.spec, function.code, main, files, static), call)

    def run(self, call: Call, place: Place, known: KnownAnswer) -> tuple[WireSets, dict[str, int]]:
        """Run a call; its inputs lie in the memory, and so do its outputs afterwards.

        Args:
            known: what the answer must be.

        Returns:
            The sets that are there, and how long its stages took, as the host says.

        Raises:
            HostEnded: it died, does not answer, or answers what cannot be.
            Cancelled: the call is not wanted any more; the host must be killed.
            DandelionError: the call failed.
        """
        self._begin(call, place, call.deadline_ns, call.left_s())
        try:
            reply = self._reply(call)
        except Ended as ended:
            raise self._lost(str(ended)) from None
        if reply is None:
            self.well = False
            raise HostEnded("it did not answer in time", late=True)
        return self._checked(reply, _expected(call, place, known))

    def begin_rehearsal(
        self, call: Call, place: Place, known: KnownAnswer, end_s: float
    ) -> Expected:
        """Send a call that lies in the memory, without waiting for its answer.

        Args:
            known: what the answer must be.
            end_s: until when it is to be answered, by `time.monotonic`.

        Returns:
            The same for `end_rehearsal`. It keeps nothing of the call alive.

        Raises:
            HostEnded: the host is gone, or does not read.
        """
        self._begin(call, place, int(end_s * 1e9), end_s - time.monotonic())
        return _expected(call, place, known)

    def end_rehearsal(self, expected: Expected) -> bool:
        """Drop the answer to a rehearsal. False if it is not there yet; raises as `run`."""
        try:
            reply = self._channel.take()
        except Ended as ended:
            raise self._lost(str(ended)) from None
        if reply is not None:
            self._checked(reply, expected)
        return reply is not None

    def _begin(self, call: Call, place: Place, latest_ns: int, limit_s: float) -> None:
        self._calls += 1
        message = Run(
            self._calls,
            self.function,
            place.inputs,
            place.result_offset,
            place.result_bytes,
            latest_ns,
            limit_s,
            keep=True,  # of its one function
        )
        self._send(message, call)

    def _checked(self, reply: HostReply, expected: Expected) -> tuple[WireSets, dict[str, int]]:
        """Give the outputs if an answer is right, or raise what it says, as `run`."""
        if not isinstance(reply, Done | Failed) or reply.call != self._calls:
            raise self._lied()
        if isinstance(reply, Failed):
            raise self._failure(reply, expected.function)
        if len(reply.outputs) != len(expected.sets):
            raise self._lied()
        answer = tuple(
            None if given is None and index in expected.optional else wanted
            for index, (given, wanted) in enumerate(zip(reply.outputs, expected.sets, strict=True))
        )
        if _bare(reply.outputs) != _bare(answer):
            raise self._lied()
        return answer, _stages(reply.stages)

    def _reply(self, call: Call) -> HostReply | None:
        """Wait for the answer to a call; None if it is late."""
        end_s = time.monotonic() + call.left_s() + GRACE_S
        while True:
            left_s = end_s - time.monotonic()
            reply = self._channel.receive(min(max(left_s, 0.0), LOOK_S), self._polling)
            if reply is not None or left_s <= 0:
                return reply
            if call.is_stopped():
                self.well = False
                raise Cancelled("its invocation ended")

    def is_quiet(self) -> bool:
        """Tell whether it is there and says nothing that it was not asked for."""
        try:
            message = self._channel.take()
        except Ended:
            self.well = False
            return False
        self.well = self.well and message is None
        return self.well

    def _send(self, message: msgspec.Struct, call: Call) -> None:
        try:
            self._channel.send(message, call.left_s() + GRACE_S)
        except TimeoutError:
            self.well = False
            raise HostEnded("it does not read", late=True) from None
        except OSError as error:
            raise self._lost(str(error)) from None

    def _failure(self, reply: Failed, function: str) -> DandelionError | HostEnded:
        """Give an error that was told, if it is one that a function can cause."""
        record = ErrorRecord(reply.error.type, reply.error.message, reply.error.fields)
        try:
            error = from_record(record)
            str(error), error.record()
        except Exception:  # fields that are not what they should be
            return self._lied()
        if reply.fatal:
            self.well = False
        if type(error).__name__ != record.type:
            return self._lied()
        if isinstance(error, _ACCEPTED):
            if isinstance(error, BadOutput | TimedOut | Faulted):
                error.function = function
            return error
        self.well = False
        return Faulted(function, str(error))

    def _lied(self) -> HostEnded:
        self.well = False
        return HostEnded(_LIES)

    def _lost(self, words: str) -> HostEnded:
        """Tell why the connection ended: with the process, or because of an invalid message."""
        self.well = False
        if self.child.wait(_CODE_LIMIT_S) is None:
            return HostEnded(f"{_LIES}: {words}")
        return self._death()

    def _death(self) -> HostEnded:
        code = self.child.wait(_CODE_LIMIT_S)
        if code is None:
            return HostEnded("did not answer")
        if code >= 0:
            return HostEnded(f"its process exited with code {code}")
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        words = f"its process ended by {name}"
        if code in _OUTSIDE:
            words += (
                ", as happens when a kernel reads or writes outside of its buffers, or has private "
                "arrays that are larger than the stack (usually 8 MiB)"
            )
        elif code == -signal.SIGABRT:
            words += f", as happens when its compiler fails: {EXHAUSTED}"
        return HostEnded(words, killed=code == -signal.SIGKILL)

    # its end

    def kill(self) -> None:
        """Have it end, without waiting."""
        self.well = False
        self._channel.close()
        self.child.kill()

    def is_gone(self, limit_s: float = 0.0) -> bool:
        """Reap the process after `kill`, and release its memory. False if it is still there."""
        if self.child.wait(limit_s) is None:
            return False
        self.memory.close()
        return True


def _expected(call: Call, place: Place, known: KnownAnswer) -> Expected:
    return Expected(call.function.spec.name, known.expected(call.inputs, place), known.optional)


def _bare(sets: WireSets) -> list[tuple[str, list[tuple[str, int, int, int]]] | None]:
    """What of an answer can be right or wrong: not its types, which are the declaration's."""
    return [
        None if s is None else (s.name, [(i.name, i.key, i.offset, i.size) for i in s.items])
        for s in sets
    ]


def _stages(told: Mapping[str, int]) -> dict[str, int]:
    return {n: min(max(told[n], 0), _LONGEST_NS) for n in _STAGES if n in told}
