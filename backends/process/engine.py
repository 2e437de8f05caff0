"""The engine: one sandbox for each call, watched until it replies or breaks a rule or a limit.

Whatever happens, the sandbox is killed and forgotten afterwards; nothing of it is used again, so a
call cannot leave anything for the next one. After a reply it is forgotten, and the next one taken,
by `clean_up`, when the outputs have been handed over; its zygote kills it within milliseconds. What
an end means is decided in this order: the call was cancelled; it tried what it may not; it ran out
of time; it replied; it died.
"""

from __future__ import annotations

import fcntl
import os
import signal
import threading
import time
from dataclasses import dataclass

import msgspec

from dandelion.confinement.syscalls import Architecture
from dandelion.driver import Call, Engine, InstanceSets
from dandelion.errors import (
    BadOutput,
    Cancelled,
    DandelionError,
    EngineDied,
    Raised,
    SandboxLost,
    TimedOut,
    Unauthorized,
)
from dandelion.function import Function

from . import modules, outcome, wire
from .handle import NoSandbox, Sandbox
from .nurseries import Nurseries
from .nursery import ImportFailed, Nursery
from .programs import Programs
from .watch import End, Watch

_EXIT_GRACE_S = 0.25
_ADD_SEALS = 1033
_SEALS = 0x1 | 0x2 | 0x4 | 0x8  # seal, shrink, grow, write: linux/fcntl.h
_CLOCK_ERROR = 1 / 3  # the kernel kills by the ticks that it counted, and reports a better clock
_encoder = msgspec.msgpack.Encoder()


@dataclass(slots=True)
class _Running:
    """The call that an engine runs; `sandbox` is None until there is one."""

    call_id: int
    sandbox: Sandbox | None = None
    cancelled: bool = False


@dataclass(frozen=True, slots=True)
class _Placed:
    """A sandbox and where it is from."""

    sandbox: Sandbox
    nursery: Nursery


class ProcessEngine(Engine):
    """Runs Python functions, each call in a sandbox of its own.

    Args:
        name: for errors, metrics and traces.
        nurseries: where sandboxes come from; shared by a few engines.
        programs: compiled functions; shared by all.
        architecture: system calls of this machine.
    """

    def __init__(
        self, name: str, nurseries: Nurseries, programs: Programs, architecture: Architecture
    ) -> None:
        self.name = name
        self._nurseries = nurseries
        self._programs = programs
        self._architecture = architecture
        self._buffer = bytearray(wire.PREFIX.size + wire.INLINE_BYTES + 1)
        self._lock = threading.Lock()
        self._running: _Running | None = None
        self._closed = False
        self._used: _Placed | None = None
        self._ready: _Placed | None = None
        nurseries.join()

    def _run(self, call: Call) -> InstanceSets:
        running = _Running(call.id)
        with self._lock:
            if self._closed:
                raise EngineDied(self.name, "it was closed")
            self._running = running
        try:
            imports = modules.declared(call.function.code.options.get("imports", ""))
            with self._nurseries.use(imports) as nursery:
                return self._run_in(nursery, call, running)
        finally:
            with self._lock:
                self._running = None
                closed = self._closed
            if closed:
                self._leave()

    def _run_in(self, nursery: Nursery, call: Call, running: _Running) -> InstanceSets:
        spec = call.function.spec
        started = time.monotonic_ns()
        own_deadline = started + int(spec.limits.wall_s * 1e9)
        deadline = min(call.deadline_ns, own_deadline)
        limit_s = spec.limits.wall_s if deadline == own_deadline else call.limit_s
        try:
            program = self._programs.encoded(call.function, deadline)
            sandbox = self._take(nursery, deadline)
        except NoSandbox:
            raise TimedOut(spec.name, "wall", limit_s) from None
        except ImportFailed as error:
            raise Raised(spec.name, str(error)) from None
        self._used = _Placed(sandbox, nursery)
        try:
            self._begin(running, sandbox)
            watch = Watch(sandbox, self._architecture)
            end = _hand_over(call, sandbox, program)
            taken = time.monotonic_ns()
            if end is None:
                end = watch.wait(self._buffer, deadline, spec.limits.cpu_s)
            ran = time.monotonic_ns()
            if running.cancelled:
                raise Cancelled("while it ran")
            if watch.denied is not None:
                raise self._unauthorized(call, sandbox, watch, end)
            if end is End.LATE:
                raise TimedOut(spec.name, "wall", limit_s)
            if end is End.SPENT:
                raise TimedOut(spec.name, "cpu", spec.limits.cpu_s)
            if end is End.CLOSED:
                raise self._closed_early(call, sandbox, nursery)
            outputs = self._outputs(call, sandbox, watch.size_bytes)
        except BaseException:
            sandbox.kill()
            raise
        call.stages["sandbox"] = taken - started
        call.stages["run"] = ran - taken
        call.stages["outputs"] = time.monotonic_ns() - ran
        return outputs

    def _take(self, nursery: Nursery, deadline_ns: int) -> Sandbox:
        self._clear()
        ready, self._ready = self._ready, None
        if ready is not None:
            if ready.nursery is nursery and not ready.sandbox.ended(0):
                return ready.sandbox
            _discard(ready)
        return nursery.take(deadline_ns)

    def clean_up(self) -> None:
        used = self._clear()
        if used is not None and used.nursery.ahead >= self._nurseries.engines:  # one for each
            spare = used.nursery.spare()
            self._ready = None if spare is None else _Placed(spare, used.nursery)

    def _clear(self) -> _Placed | None:
        used, self._used = self._used, None
        if used is not None:
            _discard(used)
        return used

    def forget(self, function: Function) -> None:
        self._programs.forget(function)

    def _begin(self, running: _Running, sandbox: Sandbox) -> None:
        with self._lock:
            running.sandbox = sandbox
            if running.cancelled or self._closed:
                raise Cancelled("before it ran")

    def _outputs(self, call: Call, sandbox: Sandbox, size_bytes: int) -> InstanceSets:
        answer = outcome.Answer(
            memoryview(self._buffer)[:size_bytes], sandbox.output, call.function
        )
        reply = answer.reply()
        if isinstance(reply, wire.Done):
            return answer.outputs(reply.sets, call)
        raise outcome.error_of(reply, call.function, sandbox)

    def _unauthorized(self, call: Call, sandbox: Sandbox, watch: Watch, end: End) -> DandelionError:
        """Make the error; if the denied call made the code raise, its traceback says where."""
        assert watch.denied is not None
        shown = ""
        if end is End.REPLIED:
            try:
                self._outputs(call, sandbox, watch.size_bytes)
            except Raised as error:
                shown = error.traceback
            except DandelionError:
                shown = ""
        return Unauthorized(call.function.spec.name, watch.denied, shown)

    def _closed_early(self, call: Call, sandbox: Sandbox, nursery: Nursery) -> DandelionError:
        spec = call.function.spec
        if not sandbox.ended(_EXIT_GRACE_S):
            return BadOutput(spec.name, "it closed its channel without a reply")
        kernel_limit_s = sandbox.cpu_limit_s()  # before its zygote can reap it
        ended = nursery.ended(sandbox)
        if ended is None:
            return SandboxLost(self.name, "its zygote was killed")
        if -ended.code == signal.SIGSYS:
            return Unauthorized(spec.name, "make that system call")
        limit_s = spec.limits.cpu_s if kernel_limit_s is None else kernel_limit_s
        spent = ended.cpu_s >= limit_s * (1 - _CLOCK_ERROR)
        if -ended.code == signal.SIGXCPU or (-ended.code == signal.SIGKILL and spent):
            return TimedOut(spec.name, "cpu", spec.limits.cpu_s)
        if ended.code < 0 and -ended.code not in outcome.OWN_SIGNALS:
            name = outcome.signal_name(-ended.code)
            return SandboxLost(self.name, f"it was ended by {name}, sent from outside")
        return outcome.error_of_end(ended, call.function, sandbox)

    def cancel(self, call_id: int) -> bool:
        with self._lock:
            running = self._running
            if running is None or running.call_id != call_id:
                return False
            running.cancelled = True
            if running.sandbox is not None:
                running.sandbox.kill()
            return True

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            running = self._running
            if running is not None:  # that call ends now, and then leaves
                if running.sandbox is not None:
                    running.sandbox.kill()
                return
        self._leave()

    def _leave(self) -> None:
        self._clear()
        ready, self._ready = self._ready, None
        if ready is not None:
            _discard(ready)
        self._nurseries.part()


def _discard(placed: _Placed) -> None:
    """Have a sandbox ended and another made for it."""
    placed.sandbox.close(kill=False)
    placed.nursery.replace(placed.sandbox.pid)


def _hand_over(call: Call, sandbox: Sandbox, program: msgspec.Raw) -> End | None:
    """Give a sandbox its call; the inputs are copied, once.

    Returns:
        None, or that the sandbox is gone.
    """
    limits = call.function.spec.limits
    record = wire.EncodedCall(
        program,
        wire.entries(call.inputs),
        limits.memory_bytes,
        outcome.whole_seconds(limits.cpu_s),
        outcome.file_limit_bytes(limits),
        call.origin,
    )
    parts, size = wire.parcel(_encoder.encode(record), call.inputs)
    try:
        if size <= wire.INLINE_BYTES:
            wire.send(sandbox.channel, parts)
        else:
            _send_as_file(sandbox, parts)
    except ConnectionError:
        return End.CLOSED
    return None


def _send_as_file(sandbox: Sandbox, parts: wire.Buffers) -> None:
    file = os.memfd_create("dandelion-input", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        wire.write(file, parts)
        fcntl.fcntl(file, _ADD_SEALS, _SEALS)
        wire.send(sandbox.channel, parts[:1], [file])
    finally:
        os.close(file)
