"""What happens when the constants of all tenants are more than a GPU has room for.

KaaS' throughput of cGEMM fell to less than a fifth when four GPUs with room for seven tenants each
had more tenants than that. Here the engine gets room for the constants of seven tenants, and
requests reload what was evicted for others. A second run has the same constants for all tenants,
which an engine that identifies constants by their content stores once.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..experiment import Bench, experiment
from ..records import Axis, Claim, Findings, Metric, Panel, Row, Unit
from ..systems import kaas_graphs, names
from ..systems.kaas_lineup import fitted, scaled_words
from ..systems.kaas_shapes import CGEMM, TunedShape
from ..systems.nodes import MIB
from ..systems.tenant_load import closed_loop
from ..systems.tenants import SharedNode

METRICS = (
    Metric("achieved_per_s", "requests", Unit.PER_SECOND, better="higher"),
    Metric("p50", "median latency", Unit.US, drawn=False),
)
ROOM = 7
"""Tenants whose constants fit; as many as on KaaS' GPUs."""

CLIENTS = (1, 4, 7, 8, 16)
_RELOAD_BYTES_PER_S = 10e9
"""The lowest rate of reloading constants, over PCI Express 4.0."""

CONSTANT_BYTES = 512 * 10**6
"""Of each tenant, a quarter of the paper's: the host has them several times for 16 tenants."""


@experiment(
    "kaas_memory", group="kaas", needs_gpu=True, source="KaaS, collapse of cGEMM at 29 clients",
    question="what if the tenants' constants do not all fit on the device?",
)  # fmt: skip
def memory(bench: Bench) -> Findings:
    """Ask with more and more tenants, with their own constants and with the same."""
    (given,) = fitted(bench, [CGEMM], limit_bytes=CONSTANT_BYTES)
    counts = bench.pick((1, 7, 8), CLIENTS, CLIENTS)
    different = _rows(bench, given, counts, same=False)
    same = _rows(bench, given, counts, same=True)
    axis = Axis("clients")
    own = Panel("own", "constants of their own", axis, METRICS, different)
    shared = Panel("same", "the same constants", axis, METRICS, same)
    return Findings(
        (own, shared),
        (cliff(given, different),),
        scaled=scaled_words(bench, limit_bytes=CONSTANT_BYTES),
        notes=(f"The engine may hold the constants of {ROOM} tenants.",),
    )


def _rows(bench: Bench, given: TunedShape, counts: Sequence[int], *, same: bool) -> tuple[Row, ...]:
    tenants = max(counts)
    bodies = [kaas_graphs.body(given.shape, bench.seed + t) for t in range(tenants)]
    rows = []
    room = room_bytes(given)
    with SharedNode(bench.backend, given, tenants, same=same, weights_bytes=room) as node:
        for clients in counts:
            bench.say(f"{clients} clients, {'the same' if same else 'own'} constants")
            asking = bodies[:clients]
            closed_loop(node, asking, seconds=0.1, least=3 * clients, most_s=1.5)
            found = closed_loop(node, asking, seconds=bench.pick(0.5, 1.5, 1.5))
            values = found.latency.values() | {"achieved_per_s": found.per_s}
            rows.append(Row(names.SEQUENTIAL, clients, values, found.latency.count, found.failed))
    return tuple(rows)


def room_bytes(given: TunedShape) -> int:
    """Give what the constants of `ROOM` tenants take on a device, and not one tenant's more.

    A block of constants takes whole pieces of 2 MiB, and each constant begins at 256 bytes.
    """
    shape = given.shape
    block = -(-(shape.constant_bytes + 256 * len(shape.sizes())) // (2 * MIB)) * 2 * MIB
    return ROOM * block + block // 2


def cliff(given: TunedShape, rows: Sequence[Row]) -> Claim:
    """Compare the fall of throughput with what reloading constants must cost."""
    rates = {float(row.x): row.values["achieved_per_s"] for row in rows}
    before = max(rate for clients, rate in rates.items() if clients <= ROOM)
    after = min(rate for clients, rate in rates.items() if clients > ROOM)
    target_s = given.shape.target_us / 1e6
    steepest = (target_s + given.shape.constant_bytes / _RELOAD_BYTES_PER_S) / target_s
    return Claim(
        "KaaS, cGEMM with more tenants than fit",
        "throughput falls from 88 to 16 requests/s, to less than a fifth, when the tenants of each "
        "GPU are more than the seven that fit",
        f"from {before:.1f} to {after:.1f} requests/s, {before / after:.2f} times less; copying "
        f"{given.shape.constant_bytes / 1e6:.0f} MB with each request explains up to "
        f"{steepest:.2f} times",
        before / after >= 5,
    )
