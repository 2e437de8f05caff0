"""The thesis' baseline: a server for one tenant, with its kernels built in.

Nothing is registered, loaded or looked up while it serves, and nothing is isolated, zeroed or
scheduled. A request is bytes, which are put into memory that the device copies from at full speed;
the reply is the result's bytes.

Requests run on `lanes` streams at once, each with its own memory and thread. Work that is shorter
than handing it to another thread runs on the event loop instead, which is measured at the start. So
the baseline is as fast as it can be in either case. Threads that launch one by one take turns at
launching, since they would slow each other down at each of a thousand launches.

The thesis' own server has processes instead, since streams did not scale over its four devices; on
one NVIDIA device, processes without MPS would not run at the same time.

``python -m dandelion.bench.systems.dedicated`` reads a `DedicatedOrder` from standard input, and
prints its port once it listens. SIGTERM ends it.

Source: GPU thesis, Section 5.1.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from dandelion.errors import DandelionError

from ..processes import Closeable, ServerProcess, module
from ..timing import in_turns
from . import names
from .asgi import application, serve
from .bare import BareDevice, BareStream, Workload, bare_device

LANES = 2
"""Streams: as many as the thesis has workers for each device."""

SHORT_US = 200.0
"""Work below this runs on the event loop."""


class DedicatedOrder(msgspec.Struct, frozen=True):
    """Input of the program.

    Attributes:
        works: what it serves, each with its name as path.
        graph: whether launches are replayed as one graph.
        lanes: how many requests run at once.
    """

    backend: str
    works: tuple[Workload, ...]
    graph: bool = False
    lanes: int = LANES


def dedicated_server(
    backend: str, works: Sequence[Workload], *, graph: bool = False, lanes: int = LANES
) -> ServerProcess:
    """Start it; ``POST /NAME`` with the bytes of its `Workload.entry` runs a workload.

    Raises:
        ServerFailed: it did not start.
    """
    order = msgspec.msgpack.encode(DedicatedOrder(backend, tuple(works), graph, lanes))
    name = names.DEDICATED_GRAPH if graph else names.DEDICATED
    command = module("dandelion.bench.systems.dedicated")
    return ServerProcess(name, command, standard_input=order)


@dataclass(slots=True)
class _PooledJob:
    name: str
    body: bytes
    done: asyncio.Future[bytes]


class StreamPool(Closeable):
    """Threads, each with a stream for each workload.

    Raises:
        DandelionError: a stream cannot be made.
    """

    def __init__(self, device: BareDevice, order: DedicatedOrder) -> None:
        self._device = device
        self._order = order
        self._jobs: queue.SimpleQueue[_PooledJob | None] = queue.SimpleQueue()
        self._ready: queue.SimpleQueue[DandelionError | None] = queue.SimpleQueue()
        self._launching: contextlib.AbstractContextManager[object] = (
            contextlib.nullcontext() if order.graph else threading.Lock()
        )
        self._threads = [threading.Thread(target=self._serve) for _ in range(order.lanes)]
        for thread in self._threads:
            thread.start()
        for failure in [self._ready.get() for _ in self._threads]:
            if failure is not None:
                self.close()
                raise failure

    def _serve(self) -> None:
        with contextlib.ExitStack() as opened:
            streams = {}
            try:
                for work in self._order.works:
                    stream = self._device.stream(work, graph=self._order.graph)
                    streams[work.name] = opened.enter_context(stream)
            except DandelionError as error:
                self._ready.put(error)
                return
            self._ready.put(None)
            while (job := self._jobs.get()) is not None:
                self._run(streams[job.name], job)

    def _run(self, stream: BareStream, job: _PooledJob) -> None:
        answer: bytes | Exception
        try:
            stream.source[:] = job.body
            with self._launching:
                stream.enqueue()
            stream.wait()
            answer = bytes(stream.target)
        except (DandelionError, ValueError) as error:
            answer = error
        with contextlib.suppress(RuntimeError):  # the loop is closed
            job.done.get_loop().call_soon_threadsafe(_finish, job.done, answer)

    async def run(self, name: str, body: bytes) -> bytes:
        """Run a workload on the stream that is free first."""
        done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._jobs.put(_PooledJob(name, body, done))
        return await done

    def close(self) -> None:
        """End the threads after everything that was enqueued before."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()


def _finish(done: asyncio.Future[bytes], answer: bytes | Exception) -> None:
    if done.cancelled():
        return
    if isinstance(answer, Exception):
        done.set_exception(answer)
    else:
        done.set_result(answer)


def main() -> None:
    """Read the order and serve."""
    order = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=DedicatedOrder)
    with bare_device(order.backend) as device, contextlib.ExitStack() as opened:
        streams = {
            f"/{work.name}": opened.enter_context(device.stream(work, graph=order.graph))
            for work in order.works
        }
        runs = {path: stream.go for path, stream in streams.items()}
        timed = in_turns(runs, count=20, warm_up=0, block=20)
        short = {path for path, samples in timed.items() if samples.median < SHORT_US}
        pool = opened.enter_context(StreamPool(device, order))

        async def reply(path: str, body: bytes) -> tuple[int, bytes]:
            if path not in streams:
                return 404, b"there is no such workload"
            try:
                if path in short:
                    return 200, streams[path].run(body)
                return 200, await pool.run(path[1:], body)
            except ValueError as error:
                return 400, str(error).encode()
            except DandelionError as error:
                return 500, str(error).encode()

        serve(application(reply))


if __name__ == "__main__":
    main()
