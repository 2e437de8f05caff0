"""The table of systems that serve workloads over HTTP, each as a server in its own process.

A `Contender` says how a system is started and asked. A `Lineup` starts those of one experiment, all
at the same time, and skips what cannot be started. A system is measured with a workload only after
each of its engines has run it, and after its reply was right.
"""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import msgspec
import numpy as np

from dandelion.documents import RegistrationDocument
from dandelion.errors import DandelionError

from ..experiment import Bench
from ..http_client import HttpFailed, fetch
from ..load import HttpRequest
from ..processes import Closeable, ServerProcess, free_port, module
from ..records import Skip
from . import names
from .asgi import asgi_server
from .bare import Workload, agrees, example_body
from .dedicated import LANES, dedicated_server
from .functions import KernelChain, cpu_code, gpu_code
from .nodes import MIB, gpu_settings, node_server, pool_for
from .triton import TritonServer, inference_request, network_logits, triton_network
from .triton_install import missing_triton

ARENA_BYTES = 512 * MIB
_JSON = "application/json"
_FAILURES = (DandelionError, HttpFailed, OSError, ValueError, http.client.HTTPException)


def _post(path: str, body: bytes) -> HttpRequest:
    return HttpRequest(path, body)


def _unchanged(reply: bytes) -> bytes:
    return reply


@dataclass(frozen=True, slots=True)
class Contender:
    """A system that can be started.

    Attributes:
        name: of `dandelion.bench.systems.names`.
        start: starts it.
        prefix: of its paths; the name of a workload follows.
        engines: how many calls it runs at once.
        missing: why it cannot be started; empty if it can.
        request: writes the request of a path and a body.
        result: reads the bytes of the result from a reply.
    """

    name: str
    start: Callable[[], ServerProcess]
    prefix: str = "/"
    engines: int = 1
    missing: str = ""
    request: Callable[[str, bytes], HttpRequest] = _post
    result: Callable[[bytes], bytes] = _unchanged


@dataclass(slots=True, eq=False)
class RunningContender:
    """A running system; `requests` has one for each workload that was answered rightly."""

    contender: Contender
    server: ServerProcess
    requests: dict[str, HttpRequest] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Of the system."""
        return self.contender.name

    def request(self, work: Workload) -> HttpRequest:
        """Give the request of a workload, whose reply has to be that of the first, checked one.

        Raises:
            ValueError: the system gives a wrong result.
        """
        body = example_body(work)
        return self.checked(work.name, body, partial(agrees, work, body))

    def checked(self, name: str, body: bytes, right: Callable[[bytes], bool]) -> HttpRequest:
        """Give the request of a workload after its result was right; raises as `request`."""
        if name not in self.requests:
            request = self.unchecked(name, body)
            reply = fetch(self.server.port, request)
            if not right(self.contender.result(reply)):
                raise ValueError(f"{self.name} gives a wrong result for {name}")
            engines = self.contender.engines
            if engines > 1:  # all of them load it, and capture it as a graph
                with ThreadPoolExecutor(2 * engines) as pool:
                    list(pool.map(lambda _: fetch(self.server.port, request), range(6 * engines)))
            self.requests[name] = msgspec.structs.replace(request, expect=reply)
        return self.requests[name]

    def unchecked(self, name: str, body: bytes) -> HttpRequest:
        """Give the request of a workload that it may never have run; any reply is right."""
        return self.contender.request(self.contender.prefix + name, body)


class Lineup(Closeable):
    """The running systems of one experiment; use it with ``with``.

    Attributes:
        running: in the order in which they were started.
        skips: what was not started, and why.
    """

    def __init__(self, bench: Bench, contenders: Sequence[Contender]) -> None:
        self.running: list[RunningContender] = []
        self.skips: list[Skip] = []
        self._closing = contextlib.ExitStack()
        try:
            for contender in contenders:
                bench.say(f"starting {contender.name}")
                self._start(contender)
        except BaseException:
            self.close()
            raise

    def _start(self, contender: Contender) -> None:
        reason = contender.missing
        try:
            if not reason:
                server = self._closing.enter_context(contender.start())
                self.running.append(RunningContender(contender, server))
                return
        except _FAILURES as error:
            reason = str(error)
        self.skips.append(Skip(contender.name, reason))

    def check(self, name: str, body: bytes, right: Callable[[bytes], bool]) -> None:
        """Leave out those that do not give the right result."""
        for running in list(self.running):
            try:
                running.checked(name, body, right)
            except _FAILURES as error:
                self.skips.append(Skip(running.name, str(error)))
                self.running.remove(running)
                running.server.close()

    def close(self) -> None:
        self._closing.close()


# --- the table ------------------------------------------------------------------------------------


def gpu_node(
    bench: Bench,
    workers: int,
    works: Sequence[Workload],
    *,
    cold: Sequence[Workload] = (),
    options: Mapping[str, str] | None = None,
) -> Contender:
    """A node with GPU engines: a sequential one, or workers beside it.

    Args:
        workers: 0 for the sequential engine alone.
        works: that it has as functions.
        cold: further workloads, whose code is different from each other's.
        options: further settings of the backend.
    """
    functions = [gpu_code(work) for work in works]
    functions += [gpu_code(work, i) for i, work in enumerate(cold, 1)]
    documents = [RegistrationDocument(functions=tuple(functions))]
    options = {"pool_bytes": pool_for(bench.gpu), **(options or {})}
    settings = gpu_settings(bench.backend, workers, arena_bytes=ARENA_BYTES, **options)
    name = names.engines(workers)
    start = partial(node_server, settings, documents, engines=workers + 1, name=name)
    missing = "" if bench.backend else "no GPU backend: pip install dandelion-engine[opencl]"
    return Contender(name, start, "/v1/invoke/", workers + 1, missing)


def process_node(works: Sequence[Workload], cold: Sequence[Workload] = ()) -> Contender:
    """A node that does the same with numpy, each call in its own sandbox."""
    functions = [cpu_code(work) for work in works]
    functions += [cpu_code(work, i) for i, work in enumerate(cold, 1)]
    settings = {"backends": ("process",), "arena_bytes": ARENA_BYTES}
    documents = [RegistrationDocument(functions=tuple(functions))]
    start = partial(node_server, settings, documents, name=names.PROCESS)
    return Contender(names.PROCESS, start, "/v1/invoke/")


def dedicated(bench: Bench, works: Sequence[Workload]) -> list[Contender]:
    """The dedicated server, launching one by one, and with graphs."""
    found = []
    for name, graph in ((names.DEDICATED, False), (names.DEDICATED_GRAPH, True)):
        missing = "" if bench.backend else "no GPU backend"
        if graph and bench.backend == "opencl":
            missing = "OpenCL has no graphs: run it on CUDA or HIP"
        start = partial(dedicated_server, bench.backend, works, graph=graph)
        if not graph or bench.backend:
            found.append(Contender(name, start, engines=LANES, missing=missing))
    return found


def network_contenders(bench: Bench, chain: KernelChain) -> list[Contender]:
    """List the servers of PyPlover's network, ours first.

    Peers run the network in PyTorch, as their users do; the node and the dedicated server run the
    same kernels.
    """

    def node(workers: int) -> Contender:
        settings = gpu_settings(bench.backend, workers, "64M", 256 * MIB) | {"cache_bytes": 0}
        start = partial(node_server, settings, (chain.document,), engines=workers + 1)
        name = names.CONCURRENT if workers else names.SEQUENTIAL
        return Contender(name, start, request=_at(f"/v1/invoke/{chain.function}"))

    return [
        *map(node, bench.pick((0,), (0, 2), (0, 2))),
        Contender(names.DEDICATED, partial(dedicated_server, bench.backend, [chain.work])),
        torch_peer(names.ASGI_TORCH, "torch", "torch"),
        torch_peer(names.FASTAPI_TORCH, "fast", "torch", "fastapi"),
        torch_peer(names.RAY_ACTORS, "ray", "torch", "ray"),
        Contender(
            names.LITSERVE, _litserve, missing=missing_modules("torch", "litserve"),
            request=_json_image, result=_json_logits,
        ),
        Contender(
            names.TRITON, lambda: TritonServer([triton_network()]), missing=missing_triton(),
            request=lambda _, body: inference_request(triton_network(), body),
            result=network_logits,
        ),
    ]  # fmt: skip


def torch_peer(name: str, kind: str, *needs: str) -> Contender:
    """The network in PyTorch behind a server of `asgi`."""
    missing = missing_modules(*needs)
    return Contender(name, partial(asgi_server, kind, name), missing=missing, request=_at("/"))


def _at(path: str) -> Callable[[str, bytes], HttpRequest]:
    return lambda _, body: HttpRequest(path, body)


def missing_modules(*needs: str) -> str:
    """Say which modules are not installed, and the remedy; empty if none is missing."""
    lacking = [name for name in needs if importlib.util.find_spec(name) is None]
    return f"not installed: {', '.join(lacking)}; pip install {' '.join(needs)}" if lacking else ""


def _litserve() -> ServerProcess:
    port = free_port()
    command = module("dandelion.bench.systems.litserve_program", str(port))
    return ServerProcess(names.LITSERVE, command, port=port, wait_s=120.0)


def _json_image(_: str, body: bytes) -> HttpRequest:
    text = json.dumps({"image": np.frombuffer(body, np.float32).tolist()}).encode()
    return HttpRequest("/predict", text, _JSON, _JSON)


def _json_logits(reply: bytes) -> bytes:
    return np.array(json.loads(reply)["logits"], np.float32).tobytes()
