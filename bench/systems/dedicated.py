"""The thesis' baseline: a server for one tenant, with its kernels built in.

Everything that a platform would do is left out: nothing is registered, loaded or looked up while it
serves, nothing is isolated or zeroed, nobody schedules. A request is bytes, which are put into
memory that the device copies from at full speed; the reply is the result's bytes.

Requests of one kind run on `lanes` streams at once, each with memory and a thread of its own. Work
that is shorter than handing it to another thread runs on the event loop instead: measured when the
server starts, so that the baseline is as fast as it can be in either case. Lanes that launch one by
one take turns at launching, since two threads that fight for the interpreter at each of a thousand
launches would both lose.

The thesis' own server has processes in the place of lanes, since streams did not scale over its
four devices; on one device of NVIDIA, processes without MPS would not run at the same time.

``python -m dandelion.bench.systems.dedicated`` reads a `DedicatedOrder` from standard input, and
prints its port once it listens. SIGTERM ends it.

Source: GPU thesis, Section 5.1.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import queue
import socket
import statistics
import sys
import threading
import time
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
import uvicorn

from dandelion.errors import DandelionError

from .bare import BareDevice, Lane, Work, bare_device
from .servers import ServerProcess, module

Message: TypeAlias = MutableMapping[str, Any]  # as ASGI has it

LANES = 2
"""As many as the thesis has workers for each device."""

SHORT_S = 200e-6
"""Work below this runs on the event loop."""

_TRIALS = 20


class DedicatedOrder(msgspec.Struct, frozen=True):
    """What the program is told.

    Attributes:
        backend: ``cuda``, ``hip`` or ``opencl``.
        works: what it serves, each under its name as path.
        graph: whether launches are replayed as one graph.
        lanes: how many requests run at once.
    """

    backend: str
    works: tuple[Work, ...]
    graph: bool = False
    lanes: int = LANES


def dedicated_server(
    backend: str, works: Sequence[Work], *, graph: bool = False, lanes: int = LANES
) -> ServerProcess:
    """Start it; ``POST /NAME`` with the bytes of its `Work.entry` does a work.

    Raises:
        ServerFailed: it did not come up.
    """
    order = DedicatedOrder(backend, tuple(works), graph, lanes)
    command = module("dandelion.bench.systems.dedicated")
    name = "dedicated, graph" if graph else "dedicated"
    return ServerProcess(name, command, standard_input=msgspec.msgpack.encode(order))


@dataclass(slots=True)
class _Job:
    name: str
    body: bytes
    done: asyncio.Future[bytes]


class Lanes:
    """Threads, each with a lane for each work.

    Args:
        device: opened.
        order: what to do.

    Raises:
        DandelionError: a lane cannot be made.
    """

    def __init__(self, device: BareDevice, order: DedicatedOrder) -> None:
        self._device = device
        self._order = order
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._ready: queue.SimpleQueue[DandelionError | None] = queue.SimpleQueue()
        self._launching: contextlib.AbstractContextManager[object] = (
            contextlib.nullcontext() if order.graph else threading.Lock()
        )
        self._threads = [threading.Thread(target=self._serve) for _ in range(order.lanes)]
        for thread in self._threads:
            thread.start()
        failures = [self._ready.get() for _ in self._threads]
        for failure in failures:
            if failure is not None:
                self.close()
                raise failure

    def _serve(self) -> None:
        with contextlib.ExitStack() as opened:
            try:
                lanes = {
                    work.name: opened.enter_context(
                        self._device.lane(work, graph=self._order.graph)
                    )
                    for work in self._order.works
                }
            except DandelionError as error:
                self._ready.put(error)
                return
            self._ready.put(None)
            while (job := self._jobs.get()) is not None:
                self._run(lanes[job.name], job)

    def _run(self, lane: Lane, job: _Job) -> None:
        try:
            lane.source[:] = job.body
            with self._launching:
                lane.enqueue()
            lane.wait()
            self._answer(job, bytes(lane.target))
        except (DandelionError, ValueError) as error:
            self._answer(job, error)

    def _answer(self, job: _Job, answer: bytes | Exception) -> None:
        def tell() -> None:
            if job.done.cancelled():
                return
            if isinstance(answer, Exception):
                job.done.set_exception(answer)
            else:
                job.done.set_result(answer)

        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            job.done.get_loop().call_soon_threadsafe(tell)

    async def run(self, name: str, body: bytes) -> bytes:
        """Do a work on whichever lane is free first."""
        done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._jobs.put(_Job(name, body, done))
        return await done

    def close(self) -> None:
        """End the threads; what they had to do before is done."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()


class Application:
    """The ASGI application.

    Args:
        short: lanes of the event loop's thread, for the works that run there.
        lanes: for all others.
        works: everything that it serves, by path.
    """

    def __init__(self, short: dict[str, Lane], lanes: Lanes, works: Sequence[Work]) -> None:
        self._short = short
        self._lanes = lanes
        self._names = {f"/{work.name}": work.name for work in works}

    async def __call__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        """Answer one request."""
        body = await _body(receive)
        status, reply = await self._reply(scope["path"], body)
        headers = [
            (b"content-type", b"application/octet-stream"),
            (b"content-length", b"%d" % len(reply)),
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": reply})

    async def _reply(self, path: str, body: bytes) -> tuple[int, bytes]:
        name = self._names.get(path)
        if name is None:
            return 404, b"there is no such work"
        lane = self._short.get(name)
        try:
            reply = await self._lanes.run(name, body) if lane is None else lane.run(body)
        except ValueError as error:
            return 400, str(error).encode()
        except DandelionError as error:
            return 500, str(error).encode()
        return 200, reply


async def _body(receive: Callable[[], Awaitable[Message]]) -> bytes:
    parts = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def typical_s(lane: Lane) -> float:
    """Measure how long a work takes, in seconds: the median of a few runs."""
    timings = []
    for _ in range(_TRIALS):
        start = time.perf_counter()
        lane.go()
        timings.append(time.perf_counter() - start)
    return statistics.median(timings)


def serve(order: DedicatedOrder) -> None:
    """Serve until a signal comes."""
    with bare_device(order.backend) as device, contextlib.ExitStack() as opened:
        short = {}
        for work in order.works:
            lane = opened.enter_context(device.lane(work, graph=order.graph))
            if typical_s(lane) < SHORT_S:
                short[work.name] = lane
        lanes = Lanes(device, order)
        opened.callback(lanes.close)
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen(2048)
        config = uvicorn.Config(
            Application(short, lanes, order.works),
            loop="uvloop",
            http="httptools",
            ws="none",
            lifespan="off",
            log_level="error",
            access_log=False,
            server_header=False,
            date_header=False,
        )
        gc.collect()
        gc.freeze()  # as the node does
        print(listener.getsockname()[1], flush=True)
        uvicorn.Server(config).run(sockets=[listener])


def main() -> None:
    """Read the order and serve."""
    serve(msgspec.msgpack.decode(sys.stdin.buffer.read(), type=DedicatedOrder))


if __name__ == "__main__":
    main()
