"""What tenants of a GPU do without an engine that they share: a process each.

There are three ways to let processes of several tenants use one device:

* `Exclusive`: one process at a time. When another tenant's turn comes, the process is killed and
  that tenant's is started, which is a cold start. This is how serverless platforms give out GPUs.
* `TimeSliced`: all processes stay alive, and the device takes turns between them by itself.
* `TimeSliced` under MPS (`mps_partitions`): all stay alive and run at the same time, each on a
  part of the compute units.

Each process runs its requests in a bare loop; see `tenant_process`. Requests come over a pipe.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec
from dandelion.backends.gpu.mps import CONTROL, MpsDaemon

from dandelion.errors import BackendUnavailable, EngineDied, TimedOut
from dandelion.search_path import search_path

from ..closing import Closing
from . import names
from .kaas_shapes import Tuned
from .tenant_process import (
    Answer,
    Done,
    Failed,
    Ready,
    Request,
    Run,
    Start,
    Time,
    Timed,
    receive,
    send,
)
from .tenants import Tenants

A = TypeVar("A", Ready, Done, Timed)

_PROGRAM = "dandelion.bench.systems.tenant_process"


class TenantProcess(Closing):
    """A tenant's process; it starts at once. Used by one thread at a time.

    Args:
        start: what it is to be.
        environment: variables beside those of this process, of which those of MPS are left out.
        program: what is run; another one for tests.
    """

    def __init__(
        self,
        start: Start,
        environment: Mapping[str, str] | None = None,
        program: Sequence[str] = ("-m", _PROGRAM),
    ) -> None:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("CUDA_MPS_")}
        self._began = time.perf_counter_ns()
        self._process = subprocess.Popen(
            [sys.executable, *program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**inherited, **(environment or {}), "PYTHONPATH": search_path()},
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        self._ready: Ready | None = None
        self._send(start)

    def wait(self) -> Ready:
        """Wait until it is ready; its stages then hold ``start`` too, what nothing else explains.

        Raises:
            BackendUnavailable: there is no such device.
            EngineDied: it ended.
        """
        if self._ready is None:
            answer = self._answer(Ready)
            took_us = (time.perf_counter_ns() - self._began) / 1e3
            rest = {"start": took_us - sum(answer.stages_us.values())}
            self._ready = msgspec.structs.replace(answer, stages_us=rest | answer.stages_us)
        return self._ready

    def run(self, body: bytes) -> bytes:
        """Have a request answered. Raises as `wait`."""
        self.wait()
        self._send(Run(body))
        return self._answer(Done).body

    def timed(self, given: Tuned, count: int, *, graph: bool = False) -> list[float]:
        """Give times of runs in the process itself, in microseconds. Raises as `wait`."""
        self.wait()
        self._send(Time(given, count, graph))
        return self._answer(Timed).runs_us

    def _send(self, request: Request) -> None:
        with contextlib.suppress(BrokenPipeError):  # `_answer` says what became of it
            send(self._input, request)

    def _answer(self, kind: type[A]) -> A:
        data = receive(self._output)
        if data is None:
            raise EngineDied("tenant", f"it ended with code {self._process.wait()}")
        answer = msgspec.msgpack.decode(data, type=Answer)
        if isinstance(answer, Failed):
            if answer.unavailable:
                raise BackendUnavailable("tenant", answer.reason)
            raise EngineDied("tenant", answer.reason)
        assert isinstance(answer, kind), answer
        return answer

    def close(self) -> None:
        """Kill it. May be called twice."""
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(BrokenPipeError):
            self._input.close()
        self._output.close()


class Exclusive(Tenants):
    """One process at a time; who comes next waits in line, and kills another tenant's process.

    Args:
        backend: ``cuda``, ``hip`` or ``opencl``.
        given: what each request runs.
    """

    def __init__(self, backend: str, given: Tuned) -> None:
        self.name = names.EXCLUSIVE
        self.switches = 0
        self._backend = backend
        self._given = given
        self._turns = Turns()
        self._alive: tuple[int, TenantProcess] | None = None
        self._given_up = False

    def give_up(self, patience_over: bool) -> None:
        self._given_up = patience_over

    def call(self, tenant: int, body: bytes) -> bytes:
        with self._turns:
            if self._given_up:
                raise TimedOut("tenant", "wall", 0.0)
            if self._alive is None or self._alive[0] != tenant:
                self.close()
                self.switches += 1
                started = TenantProcess(Start(self._backend, self._given, tenant))
                self._alive = (tenant, started)
                started.wait()
            return self._alive[1].run(body)

    def close(self) -> None:
        if self._alive is not None:
            self._alive[1].close()
            self._alive = None


class TimeSliced(Tenants):
    """A process for each tenant, all alive.

    Args:
        backend: ``cuda``, ``hip`` or ``opencl``.
        given: what each request runs.
        tenants: how many processes.
        name: of the system.
        environment: further variables of the processes.
        closing: is closed after the processes.

    Raises:
        BackendUnavailable, EngineDied: a process did not come up.
    """

    def __init__(
        self,
        backend: str,
        given: Tuned,
        tenants: int,
        *,
        name: str = names.TIME_SLICED,
        environment: Mapping[str, str] | None = None,
        closing: contextlib.ExitStack | None = None,
    ) -> None:
        self.name = name
        self._closing = contextlib.ExitStack()
        if closing is not None:
            self._closing.push(closing)
        try:
            self._processes = [
                self._closing.enter_context(
                    TenantProcess(Start(backend, given, tenant), environment)
                )
                for tenant in range(tenants)
            ]
            for process in self._processes:
                process.wait()
        except BaseException:
            self._closing.close()
            raise
        self._turns = [Turns() for _ in range(tenants)]

    def call(self, tenant: int, body: bytes) -> bytes:
        with self._turns[tenant]:
            return self._processes[tenant].run(body)

    def close(self) -> None:
        self._closing.close()


def mps_missing(backend: str) -> str:
    """Say why there can be no MPS partitions; empty if there can."""
    if backend != "cuda":
        return f"the device is no NVIDIA GPU (backend {backend})"
    return "" if shutil.which(CONTROL) else f"there is no {CONTROL}"


def mps_partitions(backend: str, given: Tuned, tenants: int) -> TimeSliced:
    """Start a process for each tenant under an MPS daemon of their own.

    As in KaaS' experiment each may use an equal part of the compute units, in eighths of the device
    and not less than one.

    Raises:
        OSError: the daemon cannot be started.
        BackendUnavailable, EngineDied: a process did not come up.
    """
    daemon = MpsDaemon()
    closing = contextlib.ExitStack()
    closing.callback(daemon.close)
    eighths = max(1, -(-8 // tenants))
    share = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(min(100, -(-eighths * 100 // 8)))}
    environment = {**daemon.variables, **share}
    return TimeSliced(
        backend, given, tenants, name=names.MPS, environment=environment, closing=closing
    )


class Turns:
    """A lock that is given in the order in which it was asked for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._line: deque[threading.Lock] = deque()

    def __enter__(self) -> None:
        mine = threading.Lock()
        mine.acquire()
        with self._lock:
            first = not self._line
            self._line.append(mine)
        if not first:
            mine.acquire()

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._line.popleft()
            if self._line:
                self._line[0].release()
