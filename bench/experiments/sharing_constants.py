"""What calls cost whose constants do not all fit on the device, against what the bus allows.

Each tenant has a function with constants of its own; all together take twice the memory that the
device keeps for constants. Callers in closed loops draw tenants by Zipf's law. What was evicted has
to be copied again. At best that takes the longer one of two times: of the
calls with constants that are there, and of the missing bytes at the measured rate of pinned copies.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import uvloop

import dandelion.blueprint as bp
from dandelion.documents import FunctionDocument, gpu_function
from dandelion.node import Node
from dandelion.scheduler.counts import ConstantsCounts

from ..experiment import Bench, experiment
from ..records import Axis, Findings, Metric, Panel, Plot, Row, Skip, Unit
from ..samples import P50, P99, RATE, Samples
from ..systems import names
from ..systems.nodes import MIB, open_node, pool_for
from .gpu_engines import opened

CALLERS, EXPONENT = 16, 1.0
_SETTLINGS = 4
X = np.arange(1024, dtype=np.int32)
HITS = Metric("hits", "hit ratio", Unit.RATIO, better="higher")
COPIED = Metric("copied_bytes", "bytes of constants copied", Unit.BYTES, better="")
OF_BEST = Metric("of_best", "throughput, of what the bus and the calls alone allow", Unit.RATIO,
                 better="higher")  # fmt: skip

_SOURCE = """#include "dandelion.h"
KERNEL void work(GLOBAL const i32 *x, GLOBAL const i32 *w, GLOBAL i32 *y, u64 width, u64 steps) {
    u64 at = GLOBAL_ID(0);
    i32 sum = 0;
    for (u64 k = 0; k < steps; k++) {
        i32 found = w[at];
        sum += found;
        at = (at + 8191 + (found & 1)) % width;
    }
    y[GLOBAL_ID(0)] = x[GLOBAL_ID(0)] + sum;
}
"""


@dataclass(frozen=True, slots=True)
class Load:
    """What is called.

    Attributes:
        tenants: each with one function.
        size_bytes: of the constants of each.
        steps: loads of a kernel's thread, one after the other.
        seconds: of the measurement.
        settling_s: before it; the node chooses how many workers run.
    """

    tenants: int
    size_bytes: int
    steps: int
    seconds: float
    settling_s: float

    def function(self, tenant: int) -> FunctionDocument:
        """Describe the function of a tenant: all its constants have the same value."""
        width = self.size_bytes // 4
        weights = np.full(width, value(tenant), np.int32).tobytes()
        static = {"w": {"w": weights}}
        b = bp.Blueprint(["x"], weights=static, outputs=["y"], modules={"work": "work.c"})
        y = b.buffer("y", like=b.x)
        b.launch("work", [b.x, b["w"], y, width, self.steps], grid=X.size // 128, block=128)
        return gpu_function(
            "work", b.json(), inputs=["x", "w"], outputs=["y"], files={"work.c": _SOURCE},
            static=static,
        )  # fmt: skip

    def draws(self, seed: int, count: int) -> list[int]:
        """Draw tenants by Zipf's law."""
        weights = 1.0 / np.arange(1, self.tenants + 1) ** EXPONENT
        draw = np.random.default_rng(seed)
        found = draw.choice(self.tenants, count, p=weights / weights.sum())
        return [int(tenant) for tenant in found]


def value(tenant: int) -> int:
    """Give the value of a tenant's constants; it is even, as the kernel expects."""
    return 2 * tenant + 2


@experiment(
    "sharing_constants", group="sharing", needs_device=True,
    question="what do calls cost whose constants do not all fit on the device?",
)  # fmt: skip
def constants(bench: Bench) -> Findings:
    """Call the functions of 64 tenants."""
    load = bench.pick(
        Load(6, MIB, 100, 0.3, 0.1),
        Load(16, 2 * MIB, 1000, 1.0, 1.0),
        Load(64, 64 * MIB, 600, 5.0, 10.0),
    )
    bytes_per_s = _copy_rate(bench)
    with _node(bench, load) as node:
        keeps = any(e.constants_bytes for e in node.capacity().engines)
        for tenant in range(load.tenants):
            node.register(load.function(tenant), tenant=f"t{tenant}")
        bench.say("one tenant")
        uvloop.run(_called(node, load, [[0] * 100] * CALLERS, load.settling_s))
        alone, _ = _measured(node, load, [[0] * 100] * CALLERS, load.seconds / 2)
        drawn = [load.draws(bench.seed + i, 10_000) for i in range(CALLERS)]
        bench.say("all tenants")
        _settle(node, load, drawn)
        found, counts = _measured(node, load, drawn[::-1], load.seconds)
    row = _row(found, counts, alone, bytes_per_s, load.seconds)
    columns = (RATE, P50, P99, HITS, COPIED, OF_BEST)
    title = f"{load.tenants} tenants with {load.size_bytes // MIB} MiB each, room for half of them"
    panel = Panel("constants", title, Axis("what is called"), columns, (row,), Plot.BARS)
    note = f"Pinned copies run at {bytes_per_s / 1e9:.1f} GB/s; {CALLERS} callers in closed loops."
    skips: tuple[Skip, ...] = ()
    if not keeps:
        why = "its devices keep no constants, so they are copied with each call"
        skips = (Skip(f"constants on {bench.backend}", why),)
    return Findings((panel,), notes=(note,), skips=skips)


def _row(
    found: Samples, counts: ConstantsCounts, alone: Samples, bytes_per_s: float, seconds: float
) -> Row:
    rate, alone_rate = found.count / seconds, alone.count / (seconds / 2)
    values = found.values() | {"achieved_per_s": rate}
    best = best_s(found.count, alone_rate, counts.copied_bytes, bytes_per_s)
    values["hits"] = 1.0 - min(1.0, counts.copies / max(1, found.count))
    values["copied_bytes"] = float(counts.copied_bytes)
    values["of_best"] = best / seconds
    return Row(names.DANDELION, "all tenants, by Zipf", values, found.count)


def best_s(calls: int, alone_per_s: float, missing_bytes: int, bytes_per_s: float) -> float:
    """Give the least time for some calls: that of the calls alone, or that of the copies."""
    return max(calls / max(alone_per_s, 1e-9), missing_bytes / bytes_per_s)


@contextmanager
def _node(bench: Bench, load: Load) -> Iterator[Node]:
    """Start a node whose device keeps half of all constants, for all its engines together."""
    every = load.tenants * load.size_bytes
    options = {"pool_bytes": pool_for(bench.gpu)}
    if bench.gpu:
        options["weights"] = str(every // 2)
    functions_bytes = every + load.tenants * MIB
    settings: dict[str, object] = {
        "backends": (bench.backend,),
        "options": {bench.backend: options},
        "arena_bytes": 2 * functions_bytes + 512 * MIB,
        "functions_bytes": functions_bytes,
        "keep_traces": 4,
    }
    with open_node(settings) as node:
        yield node


def _copy_rate(bench: Bench) -> float:
    """Measure copies of pinned host memory to the device, in bytes a second."""
    size, count = bench.pick((4 * MIB, 3), (16 * MIB, 5), (64 * MIB, 50))
    with opened(bench) as (_, local):
        data = local.domain.acquire(size).view.toreadonly()
        device = local.engine.device
        device.copy_in(0, data)
        device.synchronize()
        begun = time.perf_counter()
        for _ in range(count):
            device.copy_in(0, data)
        device.synchronize()
        return size * count / (time.perf_counter() - begun)


def _settle(node: Node, load: Load, draws: list[list[int]]) -> None:
    """Let callers call until no worker was started meanwhile: each start keeps the driver busy."""
    for _ in range(_SETTLINGS):
        before = _workers(node)
        uvloop.run(_called(node, load, draws, load.settling_s))
        if _workers(node) == before:
            break


def _workers(node: Node) -> int:
    return sum(engine.state in ("ready", "starting") for engine in node.engines())


def _measured(
    node: Node, load: Load, draws: list[list[int]], seconds: float
) -> tuple[Samples, ConstantsCounts]:
    """Call for some time; also count what was copied meanwhile."""
    before = node.info().constants
    found = uvloop.run(_called(node, load, draws, seconds))
    after = node.info().constants
    copies, size = after.copies - before.copies, after.copied_bytes - before.copied_bytes
    return found, ConstantsCounts(copies, size)


async def _called(node: Node, load: Load, draws: list[list[int]], seconds: float) -> Samples:
    """Let callers call the tenants that were drawn; calls that end later do not count.

    Raises:
        ValueError: a result is wrong.
    """
    found = Samples([])
    end = time.perf_counter_ns() + round(seconds * 1e9)

    async def caller(drawn: list[int]) -> None:
        step = 0
        while (start := time.perf_counter_ns()) < end:
            tenant = drawn[step % len(drawn)]
            step += 1
            outputs = await node.invoke_async("work", x=X, tenant=f"t{tenant}")
            now, y = time.perf_counter_ns(), outputs["y"]
            if y is None or not (y.numpy(np.int32) == X + load.steps * value(tenant)).all():
                raise ValueError(f"a wrong result of tenant {tenant}")
            if now < end:
                found.ns.append(now - start)

    await asyncio.gather(*map(caller, draws))
    return found
