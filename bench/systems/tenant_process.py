"""A program: one tenant's process, which runs a shape of KaaS in a bare loop.

It is what a tenant has who does not share an engine: a device context of its own, its kernels
loaded, its constants on the device. A `Start` comes on standard input, then requests, one at a
time; the answers leave on standard output, each as MessagePack behind its length. The end of the
input is the end of the process.
"""

from __future__ import annotations

import os
import struct
import sys
import time
from typing import IO, TypeAlias

import msgspec

from dandelion.errors import BackendUnavailable

from . import kaas_graphs
from .bare import BareDevice, Lane, bare_device
from .bare_cuda import BareCudaLike
from .bare_opencl import BareOpenCl
from .kaas_shapes import Tuned

_LENGTH = struct.Struct("<I")


class Start(msgspec.Struct, frozen=True, tag=True):
    """What the process is to be; the first message.

    Attributes:
        backend: ``cuda``, ``hip`` or ``opencl``.
        given: what each request runs; None to load nothing yet.
        tenant: whose constants.
        graph: replay the launches as one graph.
    """

    backend: str
    given: Tuned | None = None
    tenant: int = 0
    graph: bool = False


class Run(msgspec.Struct, frozen=True, tag=True):
    """Answer a request's bytes with a `Done`."""

    body: bytes


class Time(msgspec.Struct, frozen=True, tag=True):
    """Load a shape beside everything else, run it `count` times in the process, and let it go."""

    given: Tuned
    count: int
    graph: bool = False


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The process can take requests.

    Attributes:
        stages_us: how long it took to open the ``device``, and to ``load`` code and constants.
        compute_units: of the device.
        graphs: whether the device has graphs.
    """

    stages_us: dict[str, float]
    compute_units: int
    graphs: bool


class Done(msgspec.Struct, frozen=True, tag=True):
    """The reply to a request."""

    body: bytes


class Timed(msgspec.Struct, frozen=True, tag=True):
    """How long each run took, in microseconds, measured in the process itself."""

    runs_us: list[float]


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The process cannot do it, and ends."""

    reason: str
    unavailable: bool = False


Request: TypeAlias = Start | Run | Time
Answer: TypeAlias = Ready | Done | Timed | Failed


def send(pipe: IO[bytes], message: Request | Answer) -> None:
    """Write a message."""
    data = msgspec.msgpack.encode(message)
    pipe.write(_LENGTH.pack(len(data)) + data)
    pipe.flush()


def receive(pipe: IO[bytes]) -> bytes | None:
    """Read a message, still encoded; None at the end."""
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    data = pipe.read(_LENGTH.unpack(head)[0])
    return data if len(data) == _LENGTH.unpack(head)[0] else None


def main() -> None:
    """Serve until the input ends."""
    target = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints is no message
    try:
        _serve(sys.stdin.buffer, target)
    except BackendUnavailable as error:
        send(target, Failed(str(error), unavailable=True))
    except BrokenPipeError:
        pass
    except Exception as error:  # the parent says what became of the process
        send(target, Failed(f"{type(error).__name__}: {error}"))


def _serve(source: IO[bytes], target: IO[bytes]) -> None:
    first = receive(source)
    if first is None:
        return
    start = msgspec.msgpack.decode(first, type=Start)
    began = time.perf_counter_ns()
    with bare_device(start.backend) as device:
        opened = time.perf_counter_ns()
        own = _lane(device, start.given, start) if start.given is not None else None
        loaded = time.perf_counter_ns()
        stages = {"device": (opened - began) / 1e3, "load": (loaded - opened) / 1e3}
        send(target, Ready(stages, compute_units(device), device.graphs))
        while (data := receive(source)) is not None:
            request = msgspec.msgpack.decode(data, type=Request)
            send(target, _answer(request, device, own, start))
        if own is not None:
            own.close()


def _answer(request: Request, device: BareDevice, own: Lane | None, start: Start) -> Answer:
    if isinstance(request, Run) and own is not None:
        return Done(own.run(request.body))
    if isinstance(request, Time):
        with _lane(device, request.given, start, request.graph) as lane:
            return Timed(_timed(lane, request.count))
    return Failed(f"{type(request).__name__} makes no sense here")


def _lane(device: BareDevice, given: Tuned, start: Start, graph: bool | None = None) -> Lane:
    return device.lane(
        kaas_graphs.work(given, start.tenant), graph=start.graph if graph is None else graph
    )


def _timed(lane: Lane, count: int) -> list[float]:
    for _ in range(2):
        lane.go()
    found = []
    for _ in range(count):
        started = time.perf_counter_ns()
        lane.go()
        found.append((time.perf_counter_ns() - started) / 1e3)
    return found


def compute_units(device: BareDevice) -> int:
    """Ask how many compute units a device has."""
    if isinstance(device, BareOpenCl):
        return int(device.context.devices[0].max_compute_units)
    assert isinstance(device, BareCudaLike)
    calls = device.binding.calls
    answer = calls.device_attribute(calls.attributes.compute_units, 0)
    return int(device.binding.do("attribute", answer))


if __name__ == "__main__":
    main()
