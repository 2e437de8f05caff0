"""Two nodes with one GPU each against one of them: the graphs of KaaS, from many clients.

All requests are made to the first node. Where the machine has fewer GPUs than nodes, they share
what there is, so the figures show what the platform costs and not what it gains.
"""

from __future__ import annotations

from dandelion.errors import InternalError

from ..experiment import Bench, experiment
from ..records import Axis, Budget, Findings, Metric, Panel, Plot, Row, Skip, Unit, at_least
from ..samples import spread
from ..systems import kaas_graphs
from ..systems.gpu_cluster import GpuCluster, gpu_count
from ..systems.kaas_lineup import fitted, scaled_words, shapes_of
from ..systems.kaas_shapes import TunedShape
from ..systems.tenant_load import closed_loop

NODES = (1, 2)
METRICS = (
    Metric("achieved_per_s", "requests", Unit.PER_SECOND, better="higher"),
    Metric("gain", "over one node", Unit.RATIO, better="higher", drawn=False),
)


@experiment(
    "cluster_gpu", group="cluster", needs_device=True,
    question="what do two nodes with a GPU each give over one?",
)  # fmt: skip
def cluster_gpu(bench: Bench) -> Findings:
    """Ask one node, and two, with as many clients."""
    there = gpu_count(bench.backend)
    clients = bench.pick(3, 4, 24)  # so many that they keep two devices busy
    rows: list[Row] = []
    for given in fitted(bench, shapes_of(bench)):
        rows += _rows(bench, given, clients)
    panel = Panel(
        "cluster_gpu", f"{clients} clients, each with constants of its own", Axis("graph"),
        METRICS, tuple(rows), Plot.BARS, "1 node",
    )  # fmt: skip
    skips: tuple[Skip, ...] = ()
    budgets: tuple[Budget, ...] = ()
    if bench.judges and there >= max(NODES):
        budgets = tuple(
            at_least(f"{row.x}: two nodes with a GPU each over one", row.values["gain"], 1.9, "x")
            for row in rows
            if "gain" in row.values
        )
    else:
        reason = f"it takes a full run with {max(NODES)} GPUs; here are {there}"
        skips = (Skip("the gain of a second GPU", reason),)
    return Findings((panel,), budgets=budgets, skips=skips, scaled=scaled_words(bench))


def _rows(bench: Bench, given: TunedShape, clients: int) -> list[Row]:
    body = kaas_graphs.body(given.shape, bench.seed)
    seconds, times = bench.pick(0.5, 2.0, 4.0), bench.pick(1, 3, 3)
    replies: list[list[bytes]] = []
    rates: dict[int, float] = {}
    rows = []
    for nodes in NODES:
        bench.say(f"{given.shape.name}: starting {nodes} nodes")
        with GpuCluster(bench.backend, given, clients, nodes) as system:
            replies.append([system.call(number, body) for number in range(clients)])
            bodies = [body] * clients
            # Constants come to the other node, and both choose how many workers are active.
            closed_loop(system, bodies, seconds=bench.pick(0.5, 2.0, 6.0))
            bench.say(f"{given.shape.name} on {nodes} nodes")
            loads = [closed_loop(system, bodies, seconds=seconds) for _ in range(times)]
            if nodes > 1 and not system.sent:
                raise InternalError("the second node got no calls")
        found = spread("achieved_per_s", [load.per_s for load in loads])
        rates[nodes] = found["achieved_per_s"]
        more = {} if nodes == 1 else {"gain": rates[nodes] / rates[1]}
        count = sum([load.latency.count for load in loads])
        failed = sum([load.failed for load in loads])
        rows.append(Row(system.name, given.shape.name, {**found, **more}, count, failed))
    if replies[0] != replies[1]:
        raise InternalError(f"two nodes give different results for {given.shape.name}")
    return rows
