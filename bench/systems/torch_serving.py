"""A program: a network in torch behind an ASGI server; its arguments NETWORK SCALE MODE PRECISION.

======= ========================================================================================
MODE    how a request is answered
======= ========================================================================================
single  by itself: copied to the device, a CUDA graph (eager on processors), copied back; in the
        thread of the event loop, since only one can run anyway
joined  with those that wait, up to the largest batch: a task takes what has arrived, pads it to
        the next size for which there is a graph, and computes in a thread, while others arrive
======= ========================================================================================

It prints its port once it listens; SIGTERM ends it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from .asgi import Responder, application, serve
from .served_networks import ServedNetwork, network, torch_library

Compute = Callable[[list[bytes]], list[bytes]]


class Batches:
    """Computes up to so many requests at a time; there is a graph for each of the sizes."""

    def __init__(self, served: ServedNetwork, tf32: bool, sizes: tuple[int, ...]) -> None:
        self._torch = torch = torch_library()
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
        self._cuda = torch.cuda.is_available()
        if not self._cuda:
            torch.set_num_threads(1)  # several wait for each other while others use the cores
        self._module = served.module.cuda() if self._cuda else served.module
        self._dtype, self._shape = served.dtype, served.shape
        self.sizes = sizes
        self._graphs = {size: self._graph(size) for size in self.sizes} if self._cuda else {}

    def __call__(self, bodies: list[bytes]) -> list[bytes]:
        """Compute the answers of some requests."""
        rows = len(bodies)
        size = next(size for size in self.sizes if size >= rows)
        joined = np.frombuffer(b"".join(bodies), self._dtype).reshape(rows, *self._shape)
        found = self._on_device(joined, size) if self._cuda else self._eager(joined)
        return [row.tobytes() for row in found]

    def _eager(self, joined: npt.NDArray[Any]) -> npt.NDArray[Any]:
        with self._torch.inference_mode():
            found: npt.NDArray[Any] = self._module(self._torch.from_numpy(joined.copy())).numpy()
        return found

    def _graph(self, size: int) -> tuple[Any, Any, Any, Any, Any]:
        """Capture the module; returns the graph, and pinned and device memory of both ends."""
        torch = self._torch
        dtype = getattr(torch, self._dtype)
        host_in = torch.zeros(size, *self._shape, dtype=dtype).pin_memory()
        given = host_in.cuda()
        with torch.inference_mode():
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for _ in range(3):
                    result = self._module(given)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                result = self._module(given)
        host_out = torch.empty(result.shape, dtype=result.dtype).pin_memory()
        return graph, host_in, given, result, host_out

    def _on_device(self, joined: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
        graph, host_in, given, result, host_out = self._graphs[size]
        host_in.numpy()[: len(joined)] = joined
        with self._torch.inference_mode():
            given.copy_(host_in, non_blocking=True)
            graph.replay()
            host_out.copy_(result, non_blocking=True)
            self._torch.cuda.synchronize()
        found: npt.NDArray[Any] = host_out.numpy()[: len(joined)].copy()
        return found


def single(compute: Compute) -> Responder:
    """Answer each request by itself."""

    async def reply(_: str, body: bytes) -> tuple[int, bytes]:
        return 200, compute([body])[0]

    return reply


def joined(compute: Compute, largest: int) -> Responder:
    """Answer requests that wait together."""
    waiting: asyncio.Queue[tuple[bytes, asyncio.Future[bytes]]] = asyncio.Queue()
    tasks: list[asyncio.Task[None]] = []

    async def work() -> None:
        while True:
            taken = [await waiting.get()]
            while len(taken) < largest and not waiting.empty():
                taken.append(waiting.get_nowait())
            found = await asyncio.to_thread(compute, [body for body, _ in taken])
            for (_, future), answer in zip(taken, found, strict=True):
                if not future.cancelled():
                    future.set_result(answer)

    async def reply(_: str, body: bytes) -> tuple[int, bytes]:
        if not tasks:
            tasks.append(asyncio.create_task(work()))
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        waiting.put_nowait((body, future))
        return 200, await future

    return reply


def main(name: str, scale: str, mode: str, precision: str) -> None:
    """Serve until a signal comes."""
    served = network(name, scale)
    sizes = (1,) if mode == "single" else served.batches
    compute = Batches(served, precision == "tf32", sizes)
    reply = single(compute) if mode == "single" else joined(compute, sizes[-1])
    serve(application(reply))


if __name__ == "__main__":
    main(*sys.argv[1:])
