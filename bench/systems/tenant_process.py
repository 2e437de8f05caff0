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
from typing import IO, TypeAlias, TypeVar

import msgspec

from dandelion.errors import BackendUnavailable, EngineDied
from dandelion.search_path import search_path

from ..processes import Closeable
from . import kaas_graphs
from .bare import BareDevice, BareStream, bare_device
from .kaas_shapes import TunedShape

_LENGTH = struct.Struct("<I")
_PROGRAM = ("-m", "dandelion.bench.systems.tenant_process")


class TenantStart(msgspec.Struct, frozen=True, tag=True):
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


class TenantRun(msgspec.Struct, frozen=True, tag=True):
    """Answer a request's bytes with a `TenantReply`."""

    body: bytes


class TenantTiming(msgspec.Struct, frozen=True, tag=True):
    """Load a shape beside the own one, run it `count` times, and answer with `TenantTimes`."""

    given: TunedShape
    count: int


class TenantReady(msgspec.Struct, frozen=True, tag=True):
    """The process can take requests.

    Attributes:
        stages_us: how long it took to open the ``device``, and to ``load`` code and constants.
        graphs: whether the device has graphs.
    """

    stages_us: dict[str, float]
    compute_units: int
    graphs: bool


class TenantReply(msgspec.Struct, frozen=True, tag=True):
    """The reply to a request."""

    body: bytes


class TenantTimes(msgspec.Struct, frozen=True, tag=True):
    """How long each run took, in microseconds, measured in the process itself."""

    runs_us: list[float]


class TenantFailure(msgspec.Struct, frozen=True, tag=True):
    """The process cannot do it, and ends."""

    reason: str
    unavailable: bool = False


TenantRequest: TypeAlias = TenantStart | TenantRun | TenantTiming
TenantAnswer: TypeAlias = TenantReady | TenantReply | TenantTimes | TenantFailure
A = TypeVar("A", TenantReady, TenantReply, TenantTimes)


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
            answer = self._answer(TenantReady)
            took_us = (time.perf_counter_ns() - self._began) / 1e3
            rest = {"start": took_us - sum(answer.stages_us.values())}
            self._ready = msgspec.structs.replace(answer, stages_us=rest | answer.stages_us)
        return self._ready

    def run(self, body: bytes) -> bytes:
        """Have a request answered. Raises as `wait`."""
        self.wait()
        self._send(TenantRun(body))
        return self._answer(TenantReply).body

    def timed(self, given: TunedShape, count: int) -> list[float]:
        """Give times of runs in the process itself, in microseconds. Raises as `wait`."""
        self.wait()
        self._send(TenantTiming(given, count))
        return self._answer(TenantTimes).runs_us

    def _send(self, request: TenantRequest) -> None:
        with contextlib.suppress(BrokenPipeError):  # `_answer` raises what became of it
            _send(self._input, request)

    def _answer(self, kind: type[A]) -> A:
        data = _receive(self._output)
        if data is None:
            raise EngineDied("tenant", f"it ended with code {self._process.wait()}")
        answer = msgspec.msgpack.decode(data, type=TenantAnswer)
        if isinstance(answer, TenantFailure):
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


def _send(pipe: IO[bytes], message: TenantRequest | TenantAnswer) -> None:
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
        _send(target, TenantFailure(str(error), unavailable=True))
    except BrokenPipeError:
        pass
    except Exception as error:  # the parent raises it
        _send(target, TenantFailure(f"{type(error).__name__}: {error}"))


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
        _send(target, TenantReady(stages, device.compute_units, device.graphs))
        while (data := _receive(source)) is not None:
            request = msgspec.msgpack.decode(data, type=TenantRequest)
            _send(target, _done(request, device, own, start))


def _done(
    request: TenantRequest, device: BareDevice, own: BareStream | None, start: TenantStart
) -> TenantAnswer:
    if isinstance(request, TenantRun) and own is not None:
        return TenantReply(own.run(request.body))
    if isinstance(request, TenantTiming):
        with device.stream(
            kaas_graphs.work(request.given, start.tenant), graph=start.graph
        ) as stream:
            return TenantTimes(_timed(stream, request.count))
    return TenantFailure(f"{type(request).__name__} makes no sense here")


def _timed(stream: BareStream, count: int) -> list[float]:
    for _ in range(2):
        stream.go()
    found = []
    for _ in range(count):
        started = time.perf_counter_ns()
        stream.go()
        found.append((time.perf_counter_ns() - started) / 1e3)
    return found


if __name__ == "__main__":
    main()
