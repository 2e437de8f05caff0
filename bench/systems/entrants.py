"""The systems that the figures of the GPU thesis compare, each as a server of its own.

A node has one function for each `Work`, with everything fixed but the one set that a request
brings, so that the bytes of a request and of its reply are the same for all systems: raw bytes. All
servers of an experiment run at the same time and are asked in turns; whoever is not asked does
nothing.

Before a system is measured with a work, each of its engines has done that work, and its reply was
held against numpy's; from then on a reply with other bytes counts as an error.
"""

from __future__ import annotations

import contextlib
import http.client
import inspect
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import msgspec
import numpy as np
from dandelion.compositions.inference import bundle as inference
from dandelion.compositions.inference import oracle
from dandelion.compositions.matmul import bundle as matmul

from dandelion.documents import (
    FunctionDocument,
    RegistrationDocument,
    gpu_function,
    python_function,
)

from ..closing import Closing
from ..experiment import Bench
from ..load import HttpRequest
from ..records import Skip
from . import names
from .bare import IMAGE_BYTES, Work, agrees, example_body
from .dedicated import LANES, dedicated_server
from .servers import ServerFailed, ServerProcess, node_server

ARENA_BYTES = 512 << 20
POOL = "2G"
"""Device memory of each engine, so that all nodes of an experiment find room on one device."""

_READY_S = 120.0
_ANSWER_S = 60.0

PYTHON_MATMUL = """
def run(A):
    import numpy as np

    a = A.numpy(np.int64, ({side}, {side}))
    return a @ a.T
"""

PYTHON_INFERENCE = """
from __future__ import annotations
import numpy as np

FILTER_SIDE = {filter_side}

{layer}
{max_pool}

def run(images, filter):
    given = images.numpy(np.float32, (-1, {side}, {side}))
    weights = filter.numpy(np.float32, (FILTER_SIDE, FILTER_SIDE))
    for _ in range({times}):
        pooled = layer(given, weights)
    return pooled
"""


def gpu_code(work: Work, nonce: int = 0) -> FunctionDocument:
    """Describe a work as a GPU function under its name.

    Args:
        work: of `matmul_work` or `inference_work`.
        nonce: another number makes other code, which no device has loaded.
    """
    marked = f"\n/* {nonce} */\n" if nonce else ""
    if work.entry == "A":
        side = np.array([-(-matmul.SIDE // matmul.BLOCK)], np.int64)
        return gpu_function(
            work.name,
            matmul.HERE / "matmul.json",
            inputs=("cfg", "A"),
            outputs=("B",),
            files={"matmul.c": work.source + marked},
            static={"cfg": {"cfg": side.tobytes()}},
        )
    batch = work.buffers["images"] // IMAGE_BYTES
    cfg = np.array([work.times, batch], np.int64).tobytes()
    return gpu_function(
        work.name,
        inference.HERE / "layer.json",
        inputs=("images", "cfg", "filter"),
        outputs=("pooled",),
        files={"layer.c": work.source + marked},
        static={"filter": {"filter": work.constants["filter"]}, "cfg": {"cfg": cfg}},
    )


def cpu_code(work: Work, nonce: int = 0) -> FunctionDocument:
    """Describe a work as a Python function with numpy under its name; see `gpu_code`."""
    marked = f"# {nonce}\n"
    if work.entry == "A":
        text = PYTHON_MATMUL.format(side=matmul.SIDE)
        inputs, outputs = ["A"], ["B"]
        static: Mapping[str, Mapping[str, bytes]] = {}
    else:
        text = PYTHON_INFERENCE.format(
            filter_side=oracle.FILTER_SIDE,
            side=oracle.SIDE,
            times=work.times,
            layer=inspect.getsource(oracle.layer),
            max_pool=inspect.getsource(oracle.max_pool),
        )
        inputs, outputs = ["images", "filter"], ["pooled"]
        static = {"filter": {"filter": work.constants["filter"]}}
    return python_function(
        text + marked,
        name=work.name,
        entry="run",
        inputs=inputs,
        outputs=outputs,
        imports=("numpy",),
        static=static,
    )


def variants(work: Work, count: int) -> list[Work]:
    """Give the work under other names; `gpu_code` with their number makes other code of each."""
    return [msgspec.structs.replace(work, name=f"{work.name}_{i}") for i in range(1, count + 1)]


@dataclass(slots=True, eq=False)
class Entrant:
    """A running system.

    Attributes:
        name: of `dandelion.bench.systems.names`.
        server: its process.
        prefix: of its paths.
        engines: how many calls it works on at once.
        replies: what it answered to the example of a work, by the work's name; it was right.
    """

    name: str
    server: ServerProcess
    prefix: str
    engines: int
    replies: dict[str, bytes] = field(default_factory=dict)

    def request(self, work: Work) -> HttpRequest:
        """Give the request for a work, after it was done and found right.

        Raises:
            ValueError: the system gives a wrong result.
        """
        body = example_body(work)
        reply = self.replies.get(work.name)
        if reply is None:
            reply = self.replies[work.name] = self._tried(work, body)
        return HttpRequest(self.prefix + work.name, body, expect=reply)

    def unchecked(self, work: Work, body: bytes) -> HttpRequest:
        """Give the request for a work that it may never have done; any reply counts as right."""
        return HttpRequest(self.prefix + work.name, body)

    def _tried(self, work: Work, body: bytes) -> bytes:
        reply = self.post(work, body)
        if not agrees(work, body, reply):
            raise ValueError(f"{self.name} gives a wrong result for {work.name}")
        if self.engines > 1:  # all of them load it, and capture it as a graph
            with ThreadPoolExecutor(2 * self.engines) as pool:
                list(pool.map(lambda _: self.post(work, body), range(6 * self.engines)))
        return reply

    def post(self, work: Work, body: bytes) -> bytes:
        """Send one request and give the reply.

        Raises:
            ValueError: it is an error.
        """
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=_ANSWER_S)
        try:
            headers = {"content-type": "application/octet-stream"}
            headers["accept"] = headers["content-type"]
            connection.request("POST", self.prefix + work.name, body, headers)
            answer = connection.getresponse()
            reply = answer.read()
        finally:
            connection.close()
        if answer.status != 200:
            raise ValueError(f"{self.name}, {work.name}: {answer.status} {reply[:300]!r}")
        return reply


class Entrants(Closing):
    """The systems of one experiment; use it with ``with``. What cannot be started is skipped.

    Args:
        bench: of the experiment.
        works: what every system can do.
        cold: further works, whose code is different from each other's, for nodes only.
        options: further settings of the GPU backend.

    Attributes:
        skips: what was not started, and why.
    """

    def __init__(
        self,
        bench: Bench,
        works: Sequence[Work],
        *,
        cold: Sequence[Work] = (),
        options: Mapping[str, str] | None = None,
    ) -> None:
        self.skips: list[Skip] = []
        self._bench = bench
        self._works = tuple(works)
        self._cold = tuple(cold)
        self._options = {"pool_bytes": POOL if bench.gpu else "256M", **(options or {})}
        self._running: dict[str, Entrant] = {}
        self._closing = contextlib.ExitStack()

    def node(self, workers: int) -> None:
        """Start a node with the GPU engines: a sequential one alone, or workers beside it."""
        name = names.SEQUENTIAL if not workers else names.concurrent(workers)
        backend = self._bench.backend
        if not backend:
            self.skips.append(Skip(name, "no GPU backend: pip install dandelion-engine[opencl]"))
            return
        options = {backend: {**self._options, "workers": str(workers)}}
        functions = [gpu_code(work) for work in self._works]
        functions += [gpu_code(work, i) for i, work in enumerate(self._cold, 1)]
        settings = {"backends": (backend,), "options": options, "arena_bytes": ARENA_BYTES}
        self._start_node(name, settings, functions, workers + 1)

    def process(self) -> None:
        """Start a node that does the same with numpy, each call in a sandbox of its own."""
        functions = [cpu_code(work) for work in self._works]
        functions += [cpu_code(work, i) for i, work in enumerate(self._cold, 1)]
        settings = {"backends": ("process",), "arena_bytes": ARENA_BYTES}
        self._start_node(names.PROCESS, settings, functions, 1)

    def _start_node(
        self,
        name: str,
        settings: Mapping[str, object],
        functions: Sequence[FunctionDocument],
        engines: int,
    ) -> None:
        document = RegistrationDocument(functions=tuple(functions))
        self._bench.say(f"starting {name}")
        try:
            server = self._closing.enter_context(node_server(settings, [document], name=name))
        except ServerFailed as error:
            self.skips.append(Skip(name, str(error)))
            return
        if missing := _missing_engines(server.port, engines):
            self.skips.append(Skip(name, missing))
            server.close()
            return
        self._running[name] = Entrant(name, server, "/v1/invoke/", engines)

    def dedicated(self) -> None:
        """Start the dedicated server, once launching one by one and once with graphs."""
        if not self._bench.backend:
            self.skips.append(Skip(names.DEDICATED, "no GPU backend"))
            return
        for name, graph in ((names.DEDICATED, False), (names.DEDICATED_GRAPH, True)):
            if graph and self._bench.backend == "opencl":
                self.skips.append(Skip(name, "OpenCL has no graphs: run it on CUDA or HIP"))
                continue
            self._bench.say(f"starting {name}")
            try:
                started = dedicated_server(self._bench.backend, self._works, graph=graph)
            except ServerFailed as error:
                self.skips.append(Skip(name, str(error)))
                continue
            server = self._closing.enter_context(started)
            self._running[name] = Entrant(name, server, "/", LANES)

    def all(self) -> list[Entrant]:
        """Give those that run, in the order in which they were started."""
        return list(self._running.values())

    def close(self) -> None:
        """End all of them. May be called twice."""
        self._closing.close()


class _Engine(msgspec.Struct):
    state: str
    reason: str = ""


class _Engines(msgspec.Struct):
    engines: list[_Engine]


def _missing_engines(port: int, wanted: int) -> str:
    """Wait until so many engines are ready; say why, if that does not come.

    Workers start when the first engine is up, so a node may be ready before it knows of them.
    """
    deadline = time.monotonic() + _READY_S
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_ANSWER_S)
        try:
            connection.request("GET", "/v1/engines")
            found = msgspec.json.decode(connection.getresponse().read(), type=_Engines).engines
        finally:
            connection.close()
        ready = sum(engine.state == "ready" for engine in found)
        if ready >= wanted:
            return ""
        coming = any(engine.state in ("ready", "starting") for engine in found)
        if not coming or time.monotonic() > deadline:
            reasons = "; ".join(engine.reason for engine in found if engine.reason)
            return f"{ready} of {wanted} engines came up: {reasons or 'the others are starting'}"
        time.sleep(0.05)
