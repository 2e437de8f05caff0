"""What does a call on another node cost, and what do more nodes gain?

All nodes are on this machine, in processes of their own, and talk over loopback. So the figures
show what the platform adds; what a network takes comes on top, and all nodes share the cores.

- *no-op*: a null function here, and on another node.
- *64 MiB*: a null function on another node whose input is that large, and a plain socket over which
  another process receives as much.
- *each*: a Python function that waits 20 ms, for each of many items, on one engine of each node.
  The same with Ray tasks, if Ray is installed.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import multiprocessing
import secrets
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from dandelion.cluster.joining import cluster_of
from dandelion.data import Item, ItemSet
from dandelion.documents import (
    CodeDocument,
    FunctionDocument,
    RegistrationDocument,
    python_function,
)
from dandelion.errors import BackendUnavailable
from dandelion.node import Node, Settings

from ..cluster_model import CALL_NS as MODEL_CALL_NS
from ..cluster_model import MS, PLACES, Model
from ..experiment import Bench, experiment
from ..records import (
    Axis,
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
from ..samples import LATENCIES, Samples, row
from ..systems import names
from ..systems.nodes import MIB, node_server, wait_engines
from ..timing import in_turns

HERE, THERE = "here", "on another node"
SOCKET, RAY = "plain socket", "Ray tasks"
LARGE_BYTES = 64 * MIB
WAIT_S = 0.02
SOURCE = f"import time\n\ndef work(x):\n    time.sleep({WAIT_S})\n    return x\n"
DOCUMENT = RegistrationDocument(
    functions=(
        FunctionDocument("nothing", ("x",), ("y",), code=(CodeDocument("null"),)),
        FunctionDocument(
            "small", ("x",), ("y",), code=(CodeDocument("null", options={"outputs": "1"}),)
        ),
        python_function(SOURCE, inputs=["x"], outputs=["y"], name="work", entry="work"),
    ),
    compositions=(
        "function work(x) => (y); composition fan(x) => (y) { work(x = each x) => (y = y); }",
    ),
)


@contextlib.contextmanager
def cluster(backends: tuple[str, ...], own: tuple[str, ...], others: int) -> Iterator[Node]:
    """Run a node in this process and some in others; give the one here.

    Args:
        backends: of the others.
        own: of the node here.
        others: how many.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "secret").write_text(secrets.token_hex(32))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        shared: dict[str, object] = {"cluster_secret": str(folder / "secret"), "peers": (address,)}
        shared |= {"arena_bytes": 512 * MIB, "engines": {"process": 1}}
        mine = msgspec.convert(
            {**shared, "backends": own, "cluster_listen": address}, Settings, strict=False
        )
        node = stack.enter_context(Node(mine, cluster=cluster_of(mine)))
        for _ in range(others):
            given = {**shared, "backends": backends, "cluster_listen": "127.0.0.1:0"}
            stack.enter_context(node_server(given))
        wait_engines(node)
        until(lambda: alive(node) == others)
        until(lambda: _registered(node))
        yield node


def alive(node: Node) -> int:
    """How many other nodes are there."""
    info = node.cluster()
    return 0 if info is None else sum([m.state == "alive" for m in info.members])


def _registered(node: Node) -> bool:
    node.register(DOCUMENT)
    return True


def until(condition: Callable[[], bool], limit_s: float = 60.0) -> None:
    """Wait until a condition holds; raise `BackendUnavailable` if that takes too long."""
    end_s = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end_s:
            raise BackendUnavailable("cluster", "the nodes do not see each other")
        time.sleep(0.01)


def _sink(port: int) -> None:
    """Receive as much as `LARGE_BYTES` again and again, and answer each time."""
    buffer = memoryview(bytearray(LARGE_BYTES))  # used again, as the arena is
    with socket.create_connection(("127.0.0.1", port)) as peer:
        while True:
            filled = 0
            while filled < LARGE_BYTES:
                count = peer.recv_into(buffer[filled:])
                if not count:
                    return
                filled += count
            peer.sendall(b"x")


@contextlib.contextmanager
def plain_socket(data: bytes) -> Iterator[Callable[[], object]]:
    """Give what sends data to another process and waits until it is there."""
    context = multiprocessing.get_context("spawn")
    with socket.create_server(("127.0.0.1", 0)) as server:
        process = context.Process(target=_sink, args=(server.getsockname()[1],), daemon=True)
        process.start()
        peer, _ = server.accept()
        with peer:

            def send() -> None:
                peer.sendall(data)
                peer.recv(1)

            yield send
        process.join(10)


def _calls(bench: Bench) -> tuple[Panel, Panel, float, float]:
    data = bytes(LARGE_BYTES)
    count = bench.pick(200, 2000, 2000)
    with cluster(("null",), ("null",), 0) as node:
        bench.say("no-op here")
        here = in_turns({HERE: lambda: node.invoke("nothing", x=b"x")}, count=count)[HERE]
    with cluster(("null",), (), 1) as node, plain_socket(data) as send:
        bench.say("no-op on another node")
        there = in_turns({THERE: lambda: node.invoke("nothing", x=b"x")}, count=count)[THERE]
        bench.say("64 MiB")
        large = in_turns(
            {names.DANDELION: lambda: node.invoke("small", x=data), SOCKET: send},
            count=bench.pick(5, 30, 30),
            warm_up=2,
            block=5,  # else one's turn has the other's cold caches, and the cleaning of memory
        )
    calls = Panel(
        "no_op", "A no-op, from its caller and back", Axis("where it runs"), LATENCIES,
        (row(names.NULL, HERE, here), row(names.NULL, THERE, there)), Plot.BARS,
    )  # fmt: skip
    moved = Panel(
        "large", "An input of 64 MiB", Axis("how it is moved"), LATENCIES,
        tuple(row(name, "64 MiB", found) for name, found in large.items()), Plot.BARS, SOCKET,
    )  # fmt: skip
    more_ms = (there.median - here.median) / 1e3
    return calls, moved, more_ms, large[names.DANDELION].median / large[SOCKET].median


RATE = Metric("per_s", "calls", Unit.PER_SECOND, better="higher")


def _rate(action: Callable[[], object], calls: int, times: int) -> float:
    best = 0.0
    for _ in range(times):
        began = time.perf_counter()
        action()
        best = max(best, calls / (time.perf_counter() - began))
    return best


def _each(bench: Bench, skips: list[Skip]) -> tuple[Panel, float]:
    calls = bench.pick(100, 1000, 2000)
    items = ItemSet("x", tuple(Item(str(n), n, b"x") for n in range(calls)))
    rows: list[Row] = []
    rates: dict[int, float] = {}
    for nodes in (1, 2, 3):
        bench.say(f"each on {nodes} nodes")
        with cluster(("process",), ("process",), nodes - 1) as node:
            node.invoke("fan", x=ItemSet("x", items.items[:40]))
            rates[nodes] = _rate(lambda node=node: node.invoke("fan", x=items), calls, 2)  # type: ignore[misc]
        rows.append(Row(names.PROCESS, float(nodes), {"per_s": rates[nodes]}, calls))
    for nodes in (1, 3):
        bench.say(f"Ray with {nodes} cores")
        rate = _ray_rate(nodes, calls, skips)
        if rate is None:
            break
        rows.append(Row(RAY, float(nodes), {"per_s": rate}, calls, note="workers are reused"))
    panel = Panel(
        "each", "A function of 20 ms for each of many items", Axis("nodes with an engine each"),
        (RATE,), tuple(rows), Plot.LINES,
    )  # fmt: skip
    return panel, rates[3] / rates[1]


def _ray_rate(cores: int, calls: int, skips: list[Skip]) -> float | None:
    if importlib.util.find_spec("ray") is None:
        skips.append(Skip(RAY, "not installed: pip install 'dandelion-engine[cluster]'"))
        return None
    ray = importlib.import_module("ray")
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:
        ray.init(num_cpus=cores, include_dashboard=False, log_to_driver=False, _temp_dir=folder)
        try:
            task = ray.remote(num_cpus=1)(_wait)
            ray.get([task.remote(b"x") for _ in range(20)])
            return _rate(lambda: ray.get([task.remote(b"x") for _ in range(calls)]), calls, 2)
        finally:
            ray.shutdown()


def _wait(value: bytes) -> bytes:
    time.sleep(WAIT_S)
    return value


@experiment(
    "cluster", group="cluster", question="what does a call on another node add, on one machine?"
)
def nodes(bench: Bench) -> Findings:
    """Measure no-ops, large inputs, and many calls on one to three nodes."""
    skips: list[Skip] = []
    calls, moved, more_ms, ratio = _calls(bench)
    each, scaling = _each(bench, skips)
    budgets = (
        at_most("no-op on another node over here", more_ms, 0.6, " ms", "nodes share the cores"),
        at_most(
            "64 MiB to another node over a plain socket", ratio, 1.3, "x", "nodes share the cores"
        ),
        at_least("each on three nodes over one", scaling, 2.7, "x", "nodes share the cores"),
    )
    return Findings((calls, moved, each), budgets=budgets, skips=tuple(skips))


RATIO = (
    Metric("highest", "highest load, of the mean", Unit.RATIO),
    Metric("lowest", "lowest load, of the mean", Unit.RATIO, better=""),
)
MESSAGES = (Metric("messages", "messages per call", Unit.COUNT),)


@experiment(
    "cluster_simulation",
    group="cluster",
    question="is load spread over 1000 nodes, also as 10 % of them are lost?",
)
def simulation(bench: Bench) -> Findings:
    """Run the model with the real schedulers; see `dandelion.bench.cluster_model`."""
    loads: list[Row] = []
    messages: list[Row] = []
    waits: list[Row] = []
    highest = most = 0.0
    for size in bench.pick((10, 100), (10, 100, 1000), (10, 100, 1000)):
        bench.say(f"{size} nodes")
        per_node = bench.pick(60, 200, 1000)
        model = Model(size, size * per_node, seed=bench.seed)
        model.lose(0.1, int(per_node * MODEL_CALL_NS / PLACES))
        model.run()
        values = {"highest": model.loads[-1], "lowest": model.loads[0]}
        loads.append(Row(names.DANDELION, float(size), values, size))
        count = {"messages": model.messages_per_call}
        messages.append(Row(names.DANDELION, float(size), count, len(model.took_ns)))
        took = Samples(model.took_ns)
        waits.append(
            row(names.DANDELION, float(size), took, note=f"each takes {MODEL_CALL_NS // MS} ms")
        )
        highest, most = max(highest, model.loads[-1]), max(most, model.messages_per_call)
    axis = Axis("nodes", logarithmic=True)
    panels = (
        Panel("loads", "Engine time of nodes", axis, RATIO, tuple(loads)),
        Panel("messages", "Messages", axis, MESSAGES, tuple(messages)),
        Panel(
            "times", "From the beginning of an invocation to its end", axis, LATENCIES, tuple(waits)
        ),
    )
    budgets = (
        at_most("highest load of a node, of the mean", highest, 2.0, "x"),
        at_most("messages per call", most, 4.0, ""),
    )
    return Findings(panels, budgets=budgets)
