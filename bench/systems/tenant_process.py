"""A tenant's process without a shared engine, which runs a shape of KaaS in a bare loop.

It has its own device context, its kernels loaded, and its constants on the device. The program
reads a `TenantStart` from standard input, then requests, one at a time, and writes the answers to
standard output, each as MessagePack after its length. It ends at the end of the input.
"""

from __future__ import annotations

import contextlib
import os
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import IO

import msgspec

from dandelion.errors import BackendUnavailable, EngineDied
from dandelion.search_path import search_path

from ..processes import Closeable
from ..timing import in_turns
from . import kaas_graphs
from .bare import BareStream, bare_device
from .kaas_shapes import TunedShape

_LENGTH = struct.Struct("<I")
_PROGRAM = ("-m", "dandelion.bench.systems.tenant_process")


class TenantStart(msgspec.Struct, frozen=True):
    """The first message: what the process is.

    Attributes:
        given: what each request runs; None to load nothing yet.
        tenant: whose constants.
        graph: replay the launches as one graph.
    """

    backend: str
    given: TunedShape | None = None
    tenant: int = 0
    graph: bool = False


class TenantRequest(msgspec.Struct, frozen=True):
    """Run a request's bytes, or, if there is a shape, run that `count` times beside the own one."""

    body: bytes = b""
    given: TunedShape | None = None
    count: int = 0


class TenantReady(msgspec.Struct, frozen=True):
    """The first answer.

    Attributes:
        stages_us: how long it took to open the ``device``, and to ``load`` code and constants.
        graphs: whether the device has graphs.
    """

    stages_us: dict[str, float]
    compute_units: int
    graphs: bool


class TenantAnswer(msgspec.Struct, frozen=True):
    """Every answer: of the start, of a request's bytes, of timing, or why the process ends.

    Attributes:
        runs_us: how long each run took, measured in the process itself.
        failure: why it ends; `unavailable` if there is no such device.
    """

    ready: TenantReady | None = None
    body: bytes = b""
    runs_us: list[float] = []
    failure: str = ""
    unavailable: bool = False


class TenantProcess(Closeable):
    """A tenant's process; it starts at once. Used by one thread at a time.

    Args:
        start: what it is.
        environment: variables beside those of this process, of which those of MPS are left out.
        program: what is run; another one for tests.
    """

    def __init__(
        self,
        start: TenantStart,
        environment: Mapping[str, str] | None = None,
        program: Sequence[str] = _PROGRAM,
    ) -> None:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("CUDA_MPS_")}
        self._began = time.perf_counter_ns()
        self._process = subprocess.Popen(
            [sys.executable, *program], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env={**inherited, **(environment or {}), "PYTHONPATH": search_path()},
        )  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        self._ready: TenantReady | None = None
        self._send(start)

    def wait(self) -> TenantReady:
        """Wait until it is ready; its stages then have ``start`` too, the rest of the time.

        Raises:
            BackendUnavailable: there is no such device.
            EngineDied: it ended.
        """
        if self._ready is None:
            answer = self._answer().ready
            assert answer is not None
            took_us = (time.perf_counter_ns() - self._began) / 1e3
            rest = {"start": took_us - sum(answer.stages_us.values())}
            self._ready = msgspec.structs.replace(answer, stages_us=rest | answer.stages_us)
        return self._ready

    def run(self, body: bytes) -> bytes:
        """Have a request answered. Raises as `wait`."""
        self.wait()
        self._send(TenantRequest(body))
        return self._answer().body

    def timed(self, given: TunedShape, count: int) -> list[float]:
        """Give times of runs in the process itself, in microseconds. Raises as `wait`."""
        self.wait()
        self._send(TenantRequest(given=given, count=count))
        return self._answer().runs_us

    def _send(self, request: TenantStart | TenantRequest) -> None:
        with contextlib.suppress(BrokenPipeError):  # `_answer` raises what became of it
            _send(self._input, request)

    def _answer(self) -> TenantAnswer:
        data = _receive(self._output)
        if data is None:
            raise EngineDied("tenant", f"it ended with code {self._process.wait()}")
        answer = msgspec.msgpack.decode(data, type=TenantAnswer)
        if answer.unavailable:
            raise BackendUnavailable("tenant", answer.failure)
        if answer.failure:
            raise EngineDied("tenant", answer.failure)
        return answer

    def close(self) -> None:
        """Kill it. May be called twice."""
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(BrokenPipeError):
            self._input.close()
        self._output.close()


def _send(pipe: IO[bytes], message: msgspec.Struct) -> None:
    data = msgspec.msgpack.encode(message)
    pipe.write(_LENGTH.pack(len(data)) + data)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> bytes | None:
    """Read a message, still encoded; None at the end."""
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    data = pipe.read(_LENGTH.unpack(head)[0])
    return data if len(data) == _LENGTH.unpack(head)[0] else None


# --- the program ----------------------------------------------------------------------------------


def main() -> None:
    """Serve until the input ends."""
    target = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no message
    try:
        _serve(sys.stdin.buffer, target)
    except BackendUnavailable as error:
        _send(target, TenantAnswer(failure=str(error), unavailable=True))
    except BrokenPipeError:
        pass
    except Exception as error:  # the parent raises it
        _send(target, TenantAnswer(failure=f"{type(error).__name__}: {error}"))


def _serve(source: IO[bytes], target: IO[bytes]) -> None:
    first = _receive(source)
    if first is None:
        return
    start = msgspec.msgpack.decode(first, type=TenantStart)
    began = time.perf_counter_ns()
    with contextlib.ExitStack() as stack:
        device = stack.enter_context(bare_device(start.backend))
        opened = time.perf_counter_ns()
        own = None
        if start.given is not None:
            work = kaas_graphs.work(start.given, start.tenant)
            own = stack.enter_context(device.stream(work, graph=start.graph))
        loaded = time.perf_counter_ns()
        stages = {"device": (opened - began) / 1e3, "load": (loaded - opened) / 1e3}
        ready = TenantReady(stages, device.compute_units, device.graphs)
        _send(target, TenantAnswer(ready))
        while (data := _receive(source)) is not None:
            request = msgspec.msgpack.decode(data, type=TenantRequest)
            if request.given is not None:
                work = kaas_graphs.work(request.given, start.tenant)
                with device.stream(work, graph=start.graph) as stream:
                    _send(target, TenantAnswer(runs_us=_timed(stream, request.count)))
            elif own is not None:
                _send(target, TenantAnswer(body=own.run(request.body)))
            else:
                _send(target, TenantAnswer(failure="it has no shape to run requests of"))


def _timed(stream: BareStream, count: int) -> list[float]:
    timed = in_turns({"": stream.go}, count=count, warm_up=2)[""]
    return [ns / 1e3 for ns in timed.ns]


if __name__ == "__main__":
    main()
