"""Servers for the question of what serving a network costs, each only if it is installed.

Each serves PyPlover's network over HTTP on this machine's device, in a process of its own. Peers
run it in PyTorch, as their users do; see `peer_network`. The dedicated server and the node run the
same kernels.
"""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import json
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from ..experiment import Bench
from ..load import HttpRequest
from ..records import Skip
from . import names
from .dedicated import dedicated_server
from .plover_chains import Chain
from .servers import ServerFailed, ServerProcess, module, node_server
from .tenants import named
from .triton import TritonServer, inference, network_logits
from .triton_install import missing_triton
from .triton_models import network as triton_network

_PROGRAM = "dandelion.bench.systems.peer_network"
_LITSERVE = "dandelion.bench.systems.peer_litserve"
_START_S = 120.0
_ANSWER_S = 30.0
_JSON = "application/json"
MIB = 1024 * 1024


def _logits(port: int, request: HttpRequest) -> bytes:
    reply = _post(port, request)
    if request.accept != _JSON:
        return reply
    return np.array(json.loads(reply)["logits"], np.float32).tobytes()


def _post(port: int, request: HttpRequest) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_ANSWER_S)
    try:
        headers = {"content-type": request.content_type, "accept": request.accept}
        connection.request("POST", request.path, request.body, headers)
        answer = connection.getresponse()
        reply = answer.read()
    finally:
        connection.close()
    if answer.status != 200:
        raise ValueError(f"status {answer.status}: {reply[:200]!r}")
    return reply


@dataclass(frozen=True, slots=True)
class Entry:
    """A server that may take part.

    Attributes:
        name: of the system.
        start: starts it.
        request: what it is asked.
        needs: modules that it must be able to import.
        remedy: how to get them.
        absent: says what else is not installed, and the remedy; empty if nothing is.
        logits: asks the server at a port once, and gives the logits [10] float32 of its answer.
    """

    name: str
    start: Callable[[], ServerProcess]
    request: HttpRequest
    needs: tuple[str, ...] = ()
    remedy: str = ""
    absent: Callable[[], str] = lambda: ""
    logits: Callable[[int, HttpRequest], bytes] = _logits

    def missing(self) -> str:
        """Say what is not installed, and the remedy; empty if nothing is missing."""
        lacking = [name for name in self.needs if importlib.util.find_spec(name) is None]
        if lacking:
            return f"not installed: {', '.join(lacking)}; {self.remedy}"
        return self.absent()


def entries(bench: Bench, chain: Chain) -> list[Entry]:
    """List the servers for a chain, ours and the dedicated one first."""
    raw = HttpRequest("/", chain.body)
    image = np.frombuffer(chain.body, np.float32).tolist()
    text = json.dumps({"image": image}).encode()

    def node(workers: int) -> Callable[[], ServerProcess]:
        return lambda: node_server(_settings(bench, workers), (chain.document,))

    found = [
        Entry(
            named(workers), node(workers), HttpRequest(f"/v1/invoke/{chain.function}", chain.body)
        )
        for workers in bench.pick((0,), (0, 2), (0, 2))
    ]
    dedicated = HttpRequest(f"/{chain.work.name}", chain.body)
    return [
        *found,
        Entry(names.DEDICATED, lambda: dedicated_server(bench.backend, [chain.work]), dedicated),
        _peer(names.ASGI_TORCH, "asgi", raw, "torch"),
        _peer(names.FASTAPI_TORCH, "fastapi", raw, "torch", "fastapi"),
        _peer(names.RAY_ACTORS, "ray", raw, "torch", "ray"),
        _peer(names.LITSERVE, "litserve", HttpRequest("/predict", text, _JSON, _JSON), "torch",
              "litserve"),
        _triton(chain),
    ]  # fmt: skip


def _peer(name: str, kind: str, request: HttpRequest, *needs: str) -> Entry:
    def start() -> ServerProcess:
        if kind != "litserve":
            return ServerProcess(name, module(_PROGRAM, kind), wait_s=_START_S)
        port = _free_port()
        return ServerProcess(name, module(_LITSERVE, str(port)), port=port, wait_s=_START_S)

    return Entry(name, start, request, needs, f"pip install {' '.join(needs)}")


def _triton(chain: Chain) -> Entry:
    model = triton_network()
    request = inference(model, chain.body)

    def start() -> ServerProcess:
        return TritonServer([model])

    return Entry(names.TRITON, start, request, absent=missing_triton, logits=network_logits)


def _settings(bench: Bench, workers: int) -> dict[str, object]:
    return {
        "backends": (bench.backend,),
        "options": {bench.backend: {"workers": str(workers), "pool_bytes": "64M"}},
        "arena_bytes": 256 * MIB,
        "cache_bytes": 0,
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def running(
    entry: Entry, chain: Chain, skips: list[Skip]
) -> Iterator[tuple[ServerProcess, HttpRequest] | None]:
    """Give a server with its request, which was answered rightly once; or None, and say why.

    Args:
        entry: which.
        chain: what it serves.
        skips: is told why it does not take part.
    """
    reason = entry.missing()
    if reason:
        skips.append(Skip(entry.name, reason))
        yield None
        return
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(entry.start())
            logits = entry.logits(server.port, entry.request)
        except (ServerFailed, OSError, ValueError, http.client.HTTPException) as error:
            skips.append(Skip(entry.name, str(error)))
            yield None
            return
        if not chain.expected(logits):
            skips.append(Skip(entry.name, "it gives a wrong result"))
            yield None
            return
        yield server, entry.request
