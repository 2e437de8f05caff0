"""What happens when the constants of all tenants are more than a GPU has room for.

KaaS' throughput of cGEMM fell to less than a fifth when four GPUs with room for seven tenants each
had more tenants than that. Here the engine is given room for the constants of seven tenants, and
requests bring back what went for others. A second run has the same constants for all tenants,
which an engine that knows constants by their content holds once.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..experiment import Bench, experiment
from ..records import Axis, Claim, Found, Metric, Panel, Row, Skip, Unit
from ..systems import kaas_graphs, kaas_runs, names
from ..systems.kaas_shapes import CGEMM, Tuned
from ..systems.tenants import MIB, Dandelion, closed_loop

METRICS = (
    Metric("achieved_per_s", "requests", Unit.PER_SECOND, better="higher"),
    Metric("p50", "median latency", Unit.US, drawn=False),
)
ROOM = 7
"""Tenants whose constants fit; as many as on KaaS' GPUs."""

CLIENTS = (1, 4, 7, 8, 16)
_BACK_BYTES_PER_S = 10e9
"""What bringing constants back reaches at the very least, over PCI Express 4.0."""

CONSTANT_BYTES = 512 * 10**6
"""Of each tenant, a quarter of the paper's: the host keeps them several times for 16 tenants."""


@experiment(
    "kaas_memory",
    group="kaas",
    question="what if the tenants' constants do not all fit on the device?",
    source="KaaS, collapse of cGEMM at 29 clients",
    needs_gpu=True,
)
def memory(bench: Bench) -> Found:
    """Ask with more and more tenants, with constants of their own and with the same."""
    if not bench.gpu:
        reason = "constants stay on NVIDIA and AMD devices only; elsewhere each call copies them"
        return Found((), skips=(Skip("kaas_memory", reason),))
    (given,) = kaas_runs.fitted(bench, [CGEMM], limit_bytes=CONSTANT_BYTES)
    counts: Sequence[int] = bench.pick((1, 7, 8), CLIENTS, CLIENTS)
    different = _rows(bench, given, counts, same=False)
    same = _rows(bench, given, counts, same=True)
    axis = Axis("clients")
    own = Panel("own", "constants of their own", axis, METRICS, different)
    shared = Panel("same", "the same constants", axis, METRICS, same)
    return Found(
        (own, shared),
        (_cliff(given, different),),
        scaled=kaas_runs.scaled_words(bench, limit_bytes=CONSTANT_BYTES),
        notes=(f"The engine may hold the constants of {ROOM} tenants.",),
    )


def _rows(bench: Bench, given: Tuned, counts: Sequence[int], *, same: bool) -> tuple[Row, ...]:
    tenants = max(counts)
    bodies = [kaas_graphs.body(given.shape, bench.seed + t) for t in range(tenants)]
    room = room_bytes(given)
    rows = []
    with Dandelion(bench.backend, given, tenants, same=same, weights_bytes=room) as node:
        for clients in counts:
            bench.say(f"{clients} clients, {'the same' if same else 'own'} constants")
            asking = bodies[:clients]
            closed_loop(node, asking, seconds=0.1, least=3 * clients, most_s=1.5)
            found = closed_loop(node, asking, seconds=bench.pick(0.5, 1.5, 1.5))
            values = found.latency.values() | {"achieved_per_s": found.per_s}
            failed = sum(found.errors.values())
            rows.append(Row(names.SEQUENTIAL, clients, values, found.latency.count, failed))
    return tuple(rows)


def room_bytes(given: Tuned) -> int:
    """Tell what the constants of `ROOM` tenants take on a device, and not one tenant's more.

    A block of constants takes whole pieces of 2 MiB, and each constant begins at 256 bytes.
    """
    shape = given.shape
    block = -(-(shape.constant_bytes + 256 * len(shape.sizes())) // (2 * MIB)) * 2 * MIB
    return ROOM * block + block // 2


def _cliff(given: Tuned, rows: Sequence[Row]) -> Claim:
    """Hold the fall of throughput against what bringing constants back must cost."""
    rates = {float(row.x): row.values["achieved_per_s"] for row in rows}
    before = max(rate for clients, rate in rates.items() if clients <= ROOM)
    after = min(rate for clients, rate in rates.items() if clients > ROOM)
    back_s = given.shape.constant_bytes / _BACK_BYTES_PER_S
    steepest = (given.shape.target_us / 1e6 + back_s) / (given.shape.target_us / 1e6)
    return Claim(
        "KaaS, cGEMM with more tenants than fit",
        "throughput falls from 88 to 16 requests/s, to less than a fifth, when the tenants of each "
        "GPU are more than the seven that fit",
        f"from {before:.1f} to {after:.1f} requests/s, {before / after:.2f} times less; copying "
        f"{given.shape.constant_bytes / 1e6:.0f} MB with each request explains up to "
        f"{steepest:.2f} times",
        before / after >= 5,
    )
