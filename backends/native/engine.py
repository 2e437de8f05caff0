"""The engine: a fresh context and a fresh process for each call.

The causes of an end are checked in this order: the call was cancelled; its time is up; the process
was killed from outside (no report); it made a denied system call, or faulted; it exited with a code
other than zero; it left outputs. The process, its context and its address space are never reused.
The next sandbox is requested by `clean_up`, when the outputs have been returned.
"""

from __future__ import annotations

import array
import math
import select
import socket
import threading
import time
from dataclasses import dataclass

from dandelion.confinement.syscalls import Architecture
from dandelion.driver import Call, Engine, InstanceSets
from dandelion.errors import (
    Cancelled,
    ContextFull,
    DandelionError,
    EngineDied,
    Faulted,
    OutOfMemory,
    SandboxLost,
    TimedOut,
)
from dandelion.function import Function

from . import report
from .context import NativeContext
from .names import output_names
from .outputs import OutputReader
from .programs import NativeProgram, NativePrograms
from .sandbox_pool import NativeSandbox, NativeSandboxPool, SandboxNotReady
from .structures import NATIVE, NOT_EXITED

EXIT_OUT_OF_MEMORY = 259
"""Exit code of the original's runtime when its heap is used up."""

_STATUS_LIMIT_NS = 1_000_000_000


@dataclass(slots=True)
class _Running:
    """The call that an engine runs; `sandbox` is None until there is one."""

    call_id: int
    sandbox: NativeSandbox | None = None
    cancelled: bool = False


class NativeEngine(Engine):
    """Runs native functions.

    Args:
        name: for errors, metrics and traces.
        pool: source of its sandboxes; owned by this engine.
        programs: loaded executables; shared by all engines.
        architecture: to name system calls.
    """

    def __init__(
        self,
        name: str,
        pool: NativeSandboxPool,
        programs: NativePrograms,
        architecture: Architecture,
    ) -> None:
        self.name = name
        self._pool = pool
        self._programs = programs
        self._architecture = architecture
        self._lock = threading.Lock()
        self._running: _Running | None = None
        self._closed = False
        self._used: NativeSandbox | None = None
        self._ready: NativeSandbox | None = None
        self._context: NativeContext | None = None
        programs.attach()

    def start(self) -> None:
        """Start the first sandboxes.

        Raises:
            EngineDied: no sandbox starts.
        """
        self._pool.facts()
        self._pool.fill()

    def _run(self, call: Call) -> InstanceSets:
        running = _Running(call.id)
        with self._lock:
            if self._closed:
                raise EngineDied(self.name, "it was closed")
            self._running = running
        try:
            return self._run_one(call, running)
        finally:
            with self._lock:
                self._running = None
                closed = self._closed
            if closed:
                self._release()

    def _run_one(self, call: Call, running: _Running) -> InstanceSets:
        spec = call.function.spec
        started = time.monotonic_ns()
        own_deadline = started + int(spec.limits.wall_s * 1e9)
        deadline = min(call.deadline_ns, own_deadline)
        limit_s = spec.limits.wall_s if deadline == own_deadline else call.limit_s
        program = self._programs.load(call.function)
        try:
            sandbox = self._take(deadline)
        except SandboxNotReady:
            raise TimedOut(spec.name, "wall", limit_s) from None
        self._used = sandbox
        context = self._context = _context(call, program)
        self._begin(running, sandbox)
        _send_call(sandbox, context, program)
        taken = time.monotonic_ns()
        spent = _wait(sandbox, deadline, spec.limits.cpu_s)
        ran = time.monotonic_ns()
        if running.cancelled:
            raise Cancelled("while it ran")
        if spent:
            limit = spec.limits.cpu_s if spent == "cpu" else limit_s
            raise TimedOut(spec.name, spent, limit)
        outputs = self._outputs(call, context, program)
        call.stages["sandbox"] = taken - started
        call.stages["run"] = ran - taken
        call.stages["outputs"] = time.monotonic_ns() - ran
        return outputs

    def _take(self, deadline_ns: int) -> NativeSandbox:
        self._clear()
        ready, self._ready = self._ready, None
        if ready is not None:
            if not ready.ended():
                return ready
            self._pool.replace(ready)
        return self._pool.take(deadline_ns)

    def clean_up(self) -> None:
        if not self._clear():
            return
        try:
            self._ready = self._pool.take(time.monotonic_ns() + 1_000_000)
        except (SandboxNotReady, EngineDied):
            self._ready = None

    def _clear(self) -> bool:
        used, self._used = self._used, None
        if used is None:
            return False
        self._pool.replace(used)
        if self._context is not None:
            self._context.close()
            self._context = None
        return True

    def _begin(self, running: _Running, sandbox: NativeSandbox) -> None:
        with self._lock:
            running.sandbox = sandbox
            if running.cancelled or self._closed:
                raise Cancelled("before it ran")

    def _outputs(self, call: Call, context: NativeContext, program: NativeProgram) -> InstanceSets:
        spec = call.function.spec
        found = report.read(context.report(report.SIZE_BYTES))
        if found is None:
            raise self._unreported(spec.name)
        halted = found.halted(context.code(found.instruction, report.HALT_BYTES))
        if not found.exited and not halted:
            raise report.error_of(found, spec, context.layout, self._architecture)
        reader = OutputReader(NATIVE, context, spec, output_names(call.function))
        data = reader.system_data(program.executable.system_data)
        if halted and data.exit_code == NOT_EXITED:  # it reached the instruction by mistake
            raise report.error_of(found, spec, context.layout, self._architecture)
        if data.exit_code == EXIT_OUT_OF_MEMORY:
            raise OutOfMemory(spec.name, context.layout.limit_bytes)
        return reader.result(data, call)

    def _unreported(self, function: str) -> DandelionError:
        """Explain a missing report: it was killed, or it ended by the launcher's own exit."""
        assert self._used is not None
        if self._pool.killed(self._used, time.monotonic_ns() + _STATUS_LIMIT_NS):
            return SandboxLost(self.name, "it was killed from outside")
        return Faulted(function, "it ended without calling exit")

    def forget(self, function: Function) -> None:
        self._programs.forget(function.identity)

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
                running.cancelled = True
                if running.sandbox is not None:
                    running.sandbox.kill()
                return
        self._release()

    def _release(self) -> None:
        self._clear()
        ready, self._ready = self._ready, None
        if ready is not None:
            ready.close()
        self._pool.close()
        self._programs.detach()


def _context(call: Call, program: NativeProgram) -> NativeContext:
    try:
        return NativeContext(call, program)
    except OSError as error:
        raise ContextFull(f"no memory file: {error.strerror}", 0, 0) from None


def _send_call(sandbox: NativeSandbox, context: NativeContext, program: NativeProgram) -> None:
    rights = array.array("i", [context.file, program.file])
    try:
        sandbox.channel.sendmsg([context.rows()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    except ConnectionError:
        return  # it is gone, so there will be no report


def _wait(sandbox: NativeSandbox, deadline_ns: int, cpu_s: float) -> str:
    """Wait until the process has ended, or kill it; return which limit it exceeded, if any.

    One thread cannot use CPU time faster than time passes, so its clock need not be read before
    then.
    """
    poll = select.poll()
    poll.register(sandbox.channel, select.POLLIN)
    now = time.monotonic_ns()
    look_ns = now + int(cpu_s * 1e9)
    before_s = sandbox.cpu_s() if look_ns < deadline_ns else 0.0
    spent = ""
    while True:
        if poll.poll(max(0, math.ceil((min(deadline_ns, look_ns) - now) / 1e6))):
            return spent
        now = time.monotonic_ns()
        if now >= deadline_ns:
            spent = "wall"
        elif now >= look_ns:
            left_s = cpu_s - (sandbox.cpu_s() - before_s)
            look_ns = now + int(left_s * 1e9) + 1_000_000
            spent = "cpu" if left_s <= 0 else ""
        if spent:
            sandbox.kill()
            deadline_ns = look_ns = now + 2**40  # it ends at once
