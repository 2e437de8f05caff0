"""Do the ready-to-run compositions scale with nodes, as far as the machine has cores?

The node that is asked runs requests to servers only. One or three others have one engine for
sandboxes each, and one for the device. All share the cores of this machine, so what needs
processors scales until these are busy; `busy` says how many are.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType

import msgspec
from dandelion.compositions.digits import bundle as digits
from dandelion.compositions.digits.file_server import serve_files
from dandelion.compositions.photo_tagging import bundle as photo_tagging
from dandelion.compositions.render_logs import bundle as render_logs
from dandelion.compositions.render_logs.world import serve_world

from dandelion.cluster.joining import cluster_of
from dandelion.data import Sets, Value
from dandelion.documents import RegistrationDocument
from dandelion.errors import InternalError
from dandelion.frontend.client import Client
from dandelion.node import Node, Settings

from ..experiment import Bench, experiment
from ..records import Axis, Findings, Metric, Panel, Plot, Row, Skip, Unit
from ..samples import spread
from ..systems.nodes import MIB, node_server
from .cluster import until

NODES = (1, 3)
METRICS = (
    Metric("per_s", "invocations", Unit.PER_SECOND, better="higher"),
    Metric("gain", "over one node", Unit.RATIO, better="higher", drawn=False),
    Metric("busy", "cores of the machine that are busy", Unit.COUNT, better="", drawn=False),
)
_HTTP = {"http": {"allow": "127.0.0.1"}}


class Application(msgspec.Struct, frozen=True):
    """A composition that is asked again and again."""

    name: str
    document: RegistrationDocument
    inputs: Mapping[str, Value]
    is_right: Callable[[Sets], bool]


@contextlib.contextmanager
def applications(bench: Bench) -> Iterator[list[Application]]:
    """Serve what the compositions fetch; give those that run here."""
    with contextlib.ExitStack() as stack:
        found = []
        if bench.backend:
            count = bench.pick(4, 12, 48)
            for bundle in (digits, photo_tagging):
                url = stack.enter_context(serve_files(bundle.png_files()))
                inputs = bundle.example_inputs(bench.seed, url, count)
                found.append(_application(bundle, bundle.document(), inputs))
        url = stack.enter_context(serve_world())
        inputs = render_logs.example_inputs(bench.seed)
        found.append(_application(render_logs, render_logs.document(url), inputs))
        yield found


def _application(
    module: ModuleType, document: RegistrationDocument, inputs: Mapping[str, Value]
) -> Application:
    wanted = module.expected(inputs)
    return Application(
        module.__name__.split(".")[-2],
        document,
        inputs,
        lambda outputs: bool(module.agrees(module.results(outputs), wanted)),
    )


@contextlib.contextmanager
def workers(bench: Bench, others: int, documents: list[RegistrationDocument]) -> Iterator[Node]:
    """Run a node here, and others that have engines for functions."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "secret").write_text(secrets.token_hex(32))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        shared: dict[str, object] = {
            "cluster_secret": str(folder / "secret"),
            "peers": (address,),
            "arena_bytes": 256 * MIB,
            "options": _HTTP,
        }
        own = {**shared, "backends": ("null", "http"), "cluster_listen": address}
        mine = msgspec.convert(own, Settings, strict=False)
        node = stack.enter_context(Node(mine, cluster=cluster_of(mine)))
        backends = ("process", "http", *((bench.backend,) if bench.backend else ()))
        theirs = {**shared, "backends": backends, "engines": {"process": 1}}
        for number in range(others):
            server = node_server({**theirs, "cluster_listen": "127.0.0.1:0"})
            stack.enter_context(server)
            if not number:
                with Client(f"http://127.0.0.1:{server.port}") as client:
                    until(lambda: _members(node) == 1)
                    for document in documents:
                        client.register(document)
        until(lambda: _members(node) == others)
        yield node


def _members(node: Node) -> int:
    info = node.cluster()
    members = () if info is None else info.members
    return sum([m.state == "alive" and m.engines.get("process", 0) > 0 for m in members])


def _busy_s() -> float:
    """Return how long all cores were busy since the machine's start."""
    with open("/proc/stat") as file:
        user, nice, system, *_ = [int(word) for word in file.readline().split()[1:]]
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


def _window(node: Node, given: Application, callers: int, seconds: float) -> tuple[float, float]:
    """Ask for a while; return invocations a second, and how many cores were busy."""
    done: list[bool] = []
    began, busy = time.perf_counter(), _busy_s()

    def ask() -> None:
        while time.perf_counter() - began < seconds:
            outputs = node.invoke(given.name, deadline_s=120, **given.inputs)
            done.append(given.is_right(outputs))

    threads = [threading.Thread(target=ask) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - began
    if not done or not all(done):
        raise InternalError(f"{given.name} gives another result on a cluster")
    return len(done) / took, (_busy_s() - busy) / took


@experiment(
    "cluster_applications", group="cluster",
    question="do the ready-to-run compositions scale from one node to three?",
)  # fmt: skip
def cluster_applications(bench: Bench) -> Findings:
    """Ask one node and three for each composition."""
    rows: list[Row] = []
    rates: dict[str, float] = {}
    with applications(bench) as known:
        for nodes in NODES:
            bench.say(f"starting {nodes} nodes")
            with workers(bench, nodes, [one.document for one in known]) as node:
                for one in known:
                    bench.say(f"{one.name} on {nodes} nodes")
                    until(lambda one=one: one.name in {r.name for r in node.records()})  # type: ignore[misc]
                    _window(node, one, 6, bench.pick(0.5, 1.0, 2.0))
                    seconds = bench.pick(1.0, 3.0, 5.0)
                    found = [_window(node, one, 6, seconds) for _ in range(bench.pick(1, 3, 3))]
                    values = spread("per_s", [rate for rate, _ in found])
                    values["busy"] = sum([busy for _, busy in found]) / len(found)
                    if nodes == NODES[0]:
                        rates[one.name] = values["per_s"]
                    else:
                        values["gain"] = values["per_s"] / rates[one.name]
                    rows.append(Row(f"{nodes} with engines", one.name, values, len(found)))
    skips = () if bench.backend else (Skip("digits, photo_tagging", "no backend for kernels"),)
    cores = len(os.sched_getaffinity(0))
    panel = Panel("applications", "Six callers", Axis("composition"), METRICS, tuple(rows),
                  Plot.BARS, f"{NODES[0]} with engines")  # fmt: skip
    note = (
        f"All nodes share {cores} cores with the callers and the servers. What is limited by them "
        "cannot scale here; what waits for servers or devices can."
    )
    return Findings((panel,), skips=skips, notes=(note,))
