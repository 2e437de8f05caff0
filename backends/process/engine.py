"""The engine: one sandbox for each call, watched until it replies or breaks a rule or a limit.

A sandbox is killed after its call and never reused, so a call cannot leave anything for the next
one. After a reply, `clean_up` drops the sandbox and takes the next one, once the outputs have been
returned; the zygote kills the old one within milliseconds. The causes of an end are checked in this
order: cancelled; a denied system call; out of time; a reply; a dead process.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from dandelion.confinement.syscalls import Architecture
from dandelion.driver import Call, Engine, InstanceSets
from dandelion.errors import (
    BadOutput,
    Cancelled,
    ContextFull,
    DandelionError,
    EngineDied,
    PackagesLost,
    Raised,
    SandboxLost,
    TimedOut,
    Unauthorized,
)
from dandelion.function import Function
from dandelion.packages.environment_folder import is_whole

from . import outcome, sources, wire
from .constants import ConstantFiles, Constants
from .handle import NoSandbox, Sandbox
from .programs import PythonPrograms
from .sandbox_pool import ImportFailed, SandboxContent, SandboxPool
from .sandbox_pools import SandboxPools
from .watch import StopReason, Watch

_EXIT_GRACE_S = 0.25
_CLOCK_ERROR = 1 / 3  # the kernel's limit counts ticks; the time that it reports is more exact
_encoder = msgspec.msgpack.Encoder()


@dataclass(slots=True)
class _Running:
    """The call that an engine runs; `sandbox` is None until there is one."""

    call_id: int
    sandbox: Sandbox | None = None
    cancelled: bool = False


@dataclass(frozen=True, slots=True)
class _PooledSandbox:
    """A sandbox and its pool."""

    sandbox: Sandbox
    pool: SandboxPool


class ProcessEngine(Engine):
    """Runs Python functions, each call in a sandbox of its own.

    Args:
        name: for errors, metrics and traces.
        pools: where sandboxes come from; shared by a few engines.
        programs: compiled functions; shared by all.
        constants: static sets; shared by all.
        architecture: system calls of this machine.
    """

    def __init__(
        self,
        name: str,
        pools: SandboxPools,
        programs: PythonPrograms,
        constants: ConstantFiles,
        architecture: Architecture,
    ) -> None:
        self.name = name
        self._pools = pools
        self._programs = programs
        self._constants = constants
        self._architecture = architecture
        self._buffer = bytearray(wire.PREFIX.size + wire.INLINE_BYTES + 1)
        self._lock = threading.Lock()
        self._running: _Running | None = None
        self._closed = False
        self._used: _PooledSandbox | None = None
        self._ready: _PooledSandbox | None = None
        pools.attach()

    def _run(self, call: Call) -> InstanceSets:
        running = _Running(call.id)
        with self._lock:
            if self._closed:
                raise EngineDied(self.name, "it was closed")
            self._running = running
        try:
            with self._pools.use(content_of(call.function)) as pool:
                return self._run_in(pool, call, running)
        finally:
            with self._lock:
                self._running = None
                closed = self._closed
            if closed:
                self._release()

    def _run_in(self, pool: SandboxPool, call: Call, running: _Running) -> InstanceSets:
        spec = call.function.spec
        started = time.monotonic_ns()
        own_deadline = started + int(spec.limits.wall_s * 1e9)
        deadline = min(call.deadline_ns, own_deadline)
        limit_s = spec.limits.wall_s if deadline == own_deadline else call.limit_s
        try:
            program = self._programs.encoded(call.function, deadline)
            sandbox = self._take(pool, deadline)
        except NoSandbox:
            raise TimedOut(spec.name, "wall", limit_s) from None
        except ImportFailed as error:
            raise self._import_error(call.function, error) from None
        self._used = _PooledSandbox(sandbox, pool)
        try:
            self._begin(running, sandbox)
            watch = Watch(sandbox, self._architecture)
            end = self._send(call, sandbox, program)
            taken = time.monotonic_ns()
            if end is None:
                end = watch.wait(self._buffer, deadline, spec.limits.cpu_s)
            ran = time.monotonic_ns()
            written = outcome.read_log(sandbox)
            if written:
                call.printed = outcome.lines_of(written)
            if running.cancelled:
                raise Cancelled("while it ran")
            if watch.denied is not None:
                raise self._unauthorized(call, sandbox, watch, end, written)
            if end is StopReason.LATE:
                raise TimedOut(spec.name, "wall", limit_s)
            if end is StopReason.SPENT:
                raise TimedOut(spec.name, "cpu", spec.limits.cpu_s)
            if end is StopReason.CLOSED:
                raise self._closed_early(call, sandbox, pool, written)
            outputs = self._outputs(call, sandbox, watch.size_bytes, written)
        except BaseException:
            sandbox.kill()
            raise
        call.stages["sandbox"] = taken - started
        call.stages["run"] = ran - taken
        call.stages["outputs"] = time.monotonic_ns() - ran
        return outputs

    def _take(self, pool: SandboxPool, deadline_ns: int) -> Sandbox:
        self._clear()
        ready, self._ready = self._ready, None
        if ready is not None:
            if ready.pool is pool and not ready.sandbox.ended(0):
                return ready.sandbox
            _discard(ready)
        return pool.take(deadline_ns)

    def _import_error(self, function: Function, error: ImportFailed) -> DandelionError:
        environment = function.environment
        if environment is not None and not is_whole(Path(environment.folder).parent):
            return PackagesLost(self.name, "they were removed from the node's cache")
        return Raised(function.spec.name, str(error))

    def clean_up(self) -> None:
        used = self._clear()
        if used is not None and used.pool.ahead >= self._pools.engines:  # one for each
            ready = used.pool.take_if_ready()
            self._ready = None if ready is None else _PooledSandbox(ready, used.pool)

    def _clear(self) -> _PooledSandbox | None:
        used, self._used = self._used, None
        if used is not None:
            _discard(used)
        return used

    def forget(self, function: Function) -> None:
        self._programs.forget(function)
        self._constants.forget(function)

    def _send(self, call: Call, sandbox: Sandbox, program: msgspec.Raw) -> StopReason | None:
        """Send a sandbox its call; gives `StopReason.CLOSED` if it is gone."""
        try:
            with self._constants.of(call.function) as constants:
                _send_call(call, sandbox, program, constants)
        except ConnectionError:
            return StopReason.CLOSED
        return None

    def _begin(self, running: _Running, sandbox: Sandbox) -> None:
        with self._lock:
            running.sandbox = sandbox
            if running.cancelled or self._closed:
                raise Cancelled("before it ran")

    def _outputs(
        self, call: Call, sandbox: Sandbox, size_bytes: int, written: bytes
    ) -> InstanceSets:
        answer = outcome.SandboxReply(
            memoryview(self._buffer)[:size_bytes], sandbox.output, call.function
        )
        reply = answer.reply()
        if isinstance(reply, wire.Returned):
            return answer.outputs(reply.sets, call)
        raise outcome.error_of(reply, call.function, written)

    def _unauthorized(
        self, call: Call, sandbox: Sandbox, watch: Watch, end: StopReason, written: bytes
    ) -> DandelionError:
        """Make the error; it has a traceback if the denied call made the code raise."""
        assert watch.denied is not None
        shown = ""
        if end is StopReason.REPLIED:
            try:
                self._outputs(call, sandbox, watch.size_bytes, written)
            except Raised as error:
                shown = error.traceback
            except DandelionError:
                shown = ""
        return Unauthorized(call.function.spec.name, watch.denied, shown)

    def _closed_early(
        self, call: Call, sandbox: Sandbox, pool: SandboxPool, written: bytes
    ) -> DandelionError:
        spec = call.function.spec
        if not sandbox.ended(_EXIT_GRACE_S):
            return BadOutput(spec.name, "it closed its channel without a reply")
        kernel_limit_s = sandbox.cpu_limit_s()  # before its zygote can reap it
        ended = pool.ended(sandbox)
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
            return SandboxLost(self.name, f"it was killed by {name}, sent from outside")
        written += outcome.read_log(sandbox)  # it may have written until its end
        call.printed = outcome.lines_of(written)
        return outcome.error_of_end(ended, call.function, written)

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
            if running is not None:  # that call ends now, and then releases the pool
                if running.sandbox is not None:
                    running.sandbox.kill()
                return
        self._release()

    def _release(self) -> None:
        self._clear()
        ready, self._ready = self._ready, None
        if ready is not None:
            _discard(ready)
        self._pools.detach()


def content_of(function: Function) -> SandboxContent:
    """Return what the sandboxes of a function have."""
    imports = sources.imports(function.code.options)
    environment = function.environment
    if environment is None:
        return SandboxContent(imports)
    return SandboxContent(imports, environment.folder, environment.tenant)


def _discard(placed: _PooledSandbox) -> None:
    """Have a sandbox killed and replaced."""
    placed.sandbox.close(kill=False)
    placed.pool.replace(placed.sandbox.pid)


def _send_call(
    call: Call, sandbox: Sandbox, program: msgspec.Raw, constants: Constants | None
) -> None:
    """Send a sandbox its call. Inputs are copied once, but for those among the constants.

    Raises:
        ConnectionError: the sandbox is gone.
        ContextFull: there is no memory.
    """
    limits = call.function.spec.limits
    record = wire.EncodedCall(
        program,
        wire.entries(call.inputs),
        limits.memory_bytes,
        outcome.whole_seconds(limits.cpu_s),
        outcome.file_limit_bytes(limits),
        call.origin,
        constants.positions if constants is not None else (),
    )
    copied = call.inputs if constants is None else constants.left(call.inputs)
    parts, size = wire.parcel(_encoder.encode(record), copied)
    files = [] if constants is None else [constants.file]
    if size <= wire.INLINE_BYTES:
        wire.send(sandbox.channel, parts, files)
        return
    try:
        file = wire.sealed_file("dandelion-input", parts)
    except OSError as error:
        raise ContextFull(f"no memory file: {error.strerror}", 0, 0) from None
    try:
        wire.send(sandbox.channel, parts[:1], [file, *files])
    finally:
        os.close(file)
