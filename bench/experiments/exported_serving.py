"""How does a node serve an exported model over HTTP, against torch behind an ASGI server?

Callers ask for one row each, as fast as they are answered. A node joins the calls that wait
(`dandelion.function.Batching`). Torch answers by a CUDA graph, or eagerly on processors, once one
request at a time, once with those that wait together; all at equal precision. The answers are
compared first. On processors torch has one thread, since the load generator shares the cores.
Each system is measured while the others have ended, since they share the device. With frontends of
their own, the node's process does not parse HTTP; the bars are about that row.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from dandelion.documents import RegistrationDocument
from dandelion.errors import BackendUnavailable
from dandelion.search_path import environment

from ..experiment import Bench, experiment
from ..http_client import fetch
from ..load import HttpRequest, closed_loop
from ..processes import ServerFailed, ServerProcess, module
from ..records import (
    Axis,
    Budget,
    Findings,
    Metric,
    Panel,
    Plot,
    Row,
    Skip,
    Unit,
    at_least,
    at_most,
)
from ..samples import P50, P99, RATE
from ..systems import names
from ..systems.nodes import gpu_settings, node_server
from ..systems.served_networks import FUNCTION, ServedNetwork, network

CALLERS = 32
BAR = 2.0
ERROR = {"f32": 1e-4, "tf32": 1e-2}
EXPORT_LIMIT_S = 300.0
FRONTENDS = 4
TORCH_JOINED = f"{names.ASGI_TORCH}, joined"
SPREAD = f"{names.DANDELION}, {FRONTENDS} frontends"
_WARM_UP_CALLS = 4
MIB = 1 << 20
OVER = Metric("rate_ratio", "answers over torch's", Unit.RATIO, better="higher")
LATER = Metric("p99_ratio", "p99 over torch's", Unit.RATIO)

Answer = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Served:
    """One network and the way in which it is served.

    Attributes:
        precision: of products; ``tf32`` where there are tensor cores.
    """

    name: str
    scale: str
    precision: str


@experiment(
    "exported_encoder", group="models", needs_device=True,
    question="How many texts does a node classify, against torch behind an ASGI server?",
)  # fmt: skip
def exported_encoder(bench: Bench) -> Findings:
    """Serve a transformer encoder."""
    return _measured(bench, "encoder")


@experiment(
    "exported_images", group="models", needs_device=True,
    question="How many images does a node classify, against torch behind an ASGI server?",
)  # fmt: skip
def exported_images(bench: Bench) -> Findings:
    """Serve a residual network."""
    return _measured(bench, "images")


def _measured(bench: Bench, name: str) -> Findings:
    served = Served(name, bench.pick("small", "small", "full"), "tf32" if bench.gpu else "f32")
    made = network(served.name, served.scale)
    bench.say("exporting")
    document = _exported(served)
    systems: dict[str, Callable[[], AbstractContextManager[ServerProcess]]] = {
        names.ASGI_TORCH: lambda: _torch(served, "single"),
        TORCH_JOINED: lambda: _torch(served, "joined"),
        names.DANDELION: lambda: _node(bench, document, 1),
        SPREAD: lambda: _node(bench, document, FRONTENDS),
    }
    rows: list[Row] = []
    skips: list[Skip] = []
    answers: dict[str, Answer] = {}
    for system, start in systems.items():
        bench.say(system)
        try:
            with start() as server:
                is_node = system in (names.DANDELION, SPREAD)
                path = f"/v1/invoke/{FUNCTION}" if is_node else "/"
                if is_node:
                    _warm_up(server.port, path, made)
                answers[system] = _answer(server.port, path, made, 0)
                rows.append(_loaded(bench, system, server.port, path, made))
        except ServerFailed as error:
            skips.append(Skip(system, str(error)))
    _check(answers, ERROR[served.precision])
    _compare(rows)
    panel = Panel(
        f"exported_{name}", f"{CALLERS} callers, each as fast as it is answered",
        Axis("network"), (RATE, P50, P99, OVER, LATER), tuple(rows), Plot.BARS, names.ASGI_TORCH,
    )  # fmt: skip
    found = next((row for row in rows if row.system == SPREAD), None)
    budgets: tuple[Budget, ...] = ()
    if bench.judges and found is not None and "rate_ratio" in found.values:
        why = f"see the row of the node with {FRONTENDS} frontends"
        budgets = (
            at_least(f"{name}, answers", found.values["rate_ratio"], BAR, "x", why),
            at_most(f"{name}, p99", found.values["p99_ratio"], 1.0, "x", why),
        )
    note = f"{served.scale} network, {served.precision}; request and answer are raw bytes"
    return Findings((panel,), budgets=budgets, skips=tuple(skips), notes=(note,))


def _exported(served: Served) -> RegistrationDocument:
    """Export the network in a program of its own.

    Raises:
        BackendUnavailable: torch or the code generator is missing.
    """
    arguments = (served.name, served.scale, served.precision)
    done = subprocess.run(
        module("dandelion.bench.systems.served_networks", *arguments), capture_output=True,
        env=environment(), timeout=EXPORT_LIMIT_S, check=False,
    )  # fmt: skip
    if done.returncode:
        wrote = done.stderr.decode(errors="replace").strip().splitlines()
        raise BackendUnavailable("export", wrote[-1] if wrote else "the program ended")
    return msgspec.msgpack.decode(done.stdout, type=RegistrationDocument)


def _torch(served: Served, mode: str) -> ServerProcess:
    arguments = (served.name, served.scale, mode, served.precision)
    command = module("dandelion.bench.systems.torch_serving", *arguments)
    return ServerProcess(f"torch, {mode}", command, wait_s=120.0)


def _node(bench: Bench, document: RegistrationDocument, frontends: int) -> ServerProcess:
    pool, arena = ("8G", 2048 * MIB) if bench.gpu else ("256M", 256 * MIB)
    options = {"weights": "2G"} if bench.gpu else {}
    settings = gpu_settings(bench.backend, None, pool, arena, **options)
    return node_server(settings | {"frontends": frontends}, [document])


def _warm_up(port: int, path: str, made: ServedNetwork) -> None:
    """Let the kernels for each size be compiled and captured, as torch's graphs are."""
    for size in made.batches:
        rows = np.repeat(made.request(0), size, axis=0)
        for _ in range(_WARM_UP_CALLS):
            fetch(port, HttpRequest(path, rows.tobytes()))


def _answer(port: int, path: str, made: ServedNetwork, number: int) -> Answer:
    reply = fetch(port, HttpRequest(path, made.request(number).tobytes()))
    return np.frombuffer(reply, np.float32)


def _loaded(bench: Bench, system: str, port: int, path: str, made: ServedNetwork) -> Row:
    seconds, warm_up_s = (1.0, 0.5) if bench.quick else (4.0, 2.0)
    requests = [HttpRequest(path, made.request(number).tobytes()) for number in range(8)]
    load = closed_loop(port, requests, callers=CALLERS, seconds=seconds, warm_up_s=warm_up_s)
    return Row(system, "one row each", load.values(), load.count, load.failed, load.note)


def _check(answers: dict[str, Answer], limit: float) -> None:
    """Compare the answers with those of torch."""
    wanted = answers.get(names.ASGI_TORCH)
    for system, found in answers.items():
        if wanted is None or system == names.ASGI_TORCH:
            continue
        error = float(np.abs(found - wanted).max() / np.abs(wanted).max())
        if not error <= limit:
            raise ValueError(f"{system} gives other answers than torch, by {error:.2g}")


def _compare(rows: list[Row]) -> None:
    """Add ratios to torch with one request at a time."""
    base = next((row.values for row in rows if row.system == names.ASGI_TORCH), None)
    for row in rows:
        if base is not None and "p99" in row.values and "p99" in base:
            row.values["rate_ratio"] = row.values["achieved_per_s"] / base["achieved_per_s"]
            row.values["p99_ratio"] = row.values["p99"] / base["p99"]
