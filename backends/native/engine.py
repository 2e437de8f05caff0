"""The engine: a fresh context and a fresh process for each call.

What an end means is decided in this order: the call was cancelled; its time is up; the process was
killed by somebody else (no report); it tried what it may not, or faulted; it exited with a code
other than zero; it left outputs. The process, its context and its address space are never used
again. Making the next sandbox waits for `clean_up`, when the outputs have been handed over.
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
    Exited,
    Faulted,
    OutOfMemory,
    SandboxLost,
    TimedOut,
)
from dandelion.function import Function

from . import report
from .context import Context
from .nursery import NoSandbox, Nursery, Sandbox
from .outputs import OutputReader
from .programs import Program, Programs
from .structures import NATIVE, NOT_EXITED

EXIT_OUT_OF_MEMORY = 259
"""Exit code by which the original's runtime says that its heap is used up."""

STDERR_BYTES = 16 * 1024

_STATUS_LIMIT_NS = 1_000_000_000


@dataclass(slots=True)
class _Running:
    """The call that an engine runs; `sandbox` is None until there is one."""

    call_id: int
    sandbox: Sandbox | None = None
    cancelled: bool = False


class NativeEngine(Engine):
    """Runs native functions.

    Args:
        name: for errors, metrics and traces.
        nursery: where its sandboxes come from; its own.
        programs: loaded executables; shared by all engines.
        architecture: to name system calls.
    """

    def __init__(
        self, name: str, nursery: Nursery, programs: Programs, architecture: Architecture
    ) -> None:
        self.name = name
        self._nursery = nursery
        self._programs = programs
        self._architecture = architecture
        self._lock = threading.Lock()
        self._running: _Running | None = None
        self._closed = False
        self._used: Sandbox | None = None
        self._ready: Sandbox | None = None
        self._context: Context | None = None
        programs.join()

    def start(self) -> None:
        """Have the first sandboxes made.

        Raises:
            EngineDied: they cannot be.
        """
        self._nursery.facts()
        self._nursery.fill()

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
                self._leave()

    def _run_one(self, call: Call, running: _Running) -> InstanceSets:
        spec = call.function.spec
        started = time.monotonic_ns()
        own_deadline = started + int(spec.limits.wall_s * 1e9)
        deadline = min(call.deadline_ns, own_deadline)
        limit_s = spec.limits.wall_s if deadline == own_deadline else call.limit_s
        program = self._programs.load(call.function)
        try:
            sandbox = self._take(deadline)
        except NoSandbox:
            raise TimedOut(spec.name, "wall", limit_s) from None
        self._used = sandbox
        context = self._context = _context(call, program)
        self._begin(running, sandbox)
        _hand_over(sandbox, context, program)
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

    def _take(self, deadline_ns: int) -> Sandbox:
        self._clear()
        ready, self._ready = self._ready, None
        if ready is not None:
            if not ready.ended():
                return ready
            self._nursery.replace(ready)
        return self._nursery.take(deadline_ns)

    def clean_up(self) -> None:
        if not self._clear():
            return
        try:
            self._ready = self._nursery.take(time.monotonic_ns() + 1_000_000)
        except (NoSandbox, EngineDied):
            self._ready = None

    def _clear(self) -> bool:
        used, self._used = self._used, None
        if used is None:
            return False
        self._nursery.replace(used)
        if self._context is not None:
            self._context.close()
            self._context = None
        return True

    def _begin(self, running: _Running, sandbox: Sandbox) -> None:
        with self._lock:
            running.sandbox = sandbox
            if running.cancelled or self._closed:
                raise Cancelled("before it ran")

    def _outputs(self, call: Call, context: Context, program: Program) -> InstanceSets:
        spec = call.function.spec
        found = report.read(context.report(report.SIZE_BYTES))
        if found is None:
            raise self._unreported(spec.name)
        halted = found.halted(context.code(found.instruction, report.HALT_BYTES))
        if not found.exited and not halted:
            raise report.error_of(found, spec, context.plan, self._architecture)
        reader = OutputReader(NATIVE, context, spec)
        data = reader.system_data(program.executable.system_data)
        if halted and data.exit_code == NOT_EXITED:  # it came there by mistake
            raise report.error_of(found, spec, context.plan, self._architecture)
        if data.exit_code == EXIT_OUT_OF_MEMORY:
            raise OutOfMemory(spec.name, context.plan.limit_bytes)
        if data.exit_code:
            printed = reader.text("stdio", "stderr", STDERR_BYTES, data)
            raise Exited(spec.name, data.exit_code, printed)
        return reader.outputs(reader.entries(data), call.domain)

    def _unreported(self, function: str) -> DandelionError:
        """Say why there is no report: somebody killed it, or it went by the launcher's own exit."""
        assert self._used is not None
        if self._nursery.killed(self._used, time.monotonic_ns() + _STATUS_LIMIT_NS):
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
            if running is not None:  # that call ends now, and then leaves
                running.cancelled = True
                if running.sandbox is not None:
                    running.sandbox.kill()
                return
        self._leave()

    def _leave(self) -> None:
        self._clear()
        ready, self._ready = self._ready, None
        if ready is not None:
            ready.close()
        self._nursery.close()
        self._programs.part()


def _context(call: Call, program: Program) -> Context:
    try:
        return Context(call, program)
    except OSError as error:
        raise ContextFull(f"memory file: {error.strerror}", 0, 0) from None


def _hand_over(sandbox: Sandbox, context: Context, program: Program) -> None:
    rights = array.array("i", [context.file, program.file])
    try:
        sandbox.channel.sendmsg([context.rows()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    except ConnectionError:
        return  # it is gone, and there will be no report


def _wait(sandbox: Sandbox, deadline_ns: int, cpu_s: float) -> str:
    """Wait until the process has ended, or kill it; tell which time was up, if any.

    One thread cannot use CPU time faster than time passes, so there is no need to look at its clock
    until then.
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
