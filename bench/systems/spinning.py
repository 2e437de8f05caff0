"""Nodes whose calls take known times on the device, and callers of several tenants.

The one function repeats a kernel of a single thread that does dependent operations. Its input says
how many, and how often the kernel is launched, so calls of all lengths are calls of one function.
How long one operation takes is measured when a node starts. Then the device time that each tenant
had in a window follows from its answers alone: a call had the device for its length, until its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import uvloop
from numpy.typing import NDArray

import dandelion.blueprint as bp
from dandelion.documents import FunctionDocument, gpu_function
from dandelion.errors import BackendUnavailable
from dandelion.function import Limits
from dandelion.node import Node
from dandelion.settings import Settings, TenantSettings

from ..experiment import Bench
from ..processes import Closeable
from ..samples import Samples
from .nodes import MIB, pool_for

FUNCTION = "spin"
_SOURCE = """#include "dandelion.h"
KERNEL void spin(GLOBAL const u64 *a, GLOBAL u64 *y) {
    u64 x = y[0] + 1;
    for (u64 i = 0; i < a[0]; i++) { x = x * 6364136223846793005UL + 1442695040888963407UL; }
    y[0] = x;
}
"""
_NO_TENANTS: Mapping[str, TenantSettings] = MappingProxyType({})
_READY_S = 120.0
_CALIBRATED_S = 0.01


def spun(rounds: int) -> int:
    """Compute what `spin` makes of 1, with the powers of its step instead of a loop."""
    factor, term = 6364136223846793005, 1442695040888963407
    whole_factor, whole_term = 1, 0
    while rounds:
        if rounds % 2:
            whole_factor, whole_term = whole_factor * factor, whole_term * factor + term
        factor, term = factor * factor, term * factor + term
        rounds //= 2
        whole_factor, whole_term = whole_factor % 2**64, whole_term % 2**64
        factor, term = factor % 2**64, term % 2**64
    return (whole_factor + whole_term) % 2**64


def spin() -> FunctionDocument:
    """Describe the function: `a` has the operations of a launch and the number of launches."""
    b = bp.Blueprint(inputs=["a"], modules={"spin": "spin.c"})
    y = b.buffer("y", 8)
    with b.repeat(b.a[1]):
        b.launch("spin", [b.a, y])
    return gpu_function(
        FUNCTION, b.json(), inputs=["a"], outputs=["y"], files={"spin.c": _SOURCE},
        limits=Limits(wall_s=60.0),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Callers:
    """Callers of one tenant, each of which calls again as soon as it has its answer.

    Attributes:
        count: how many there are.
        lengths_s: device times of their calls, drawn at random.
        launches: of each call, which share its length.
        begin_s: when they begin, after the start of the run.
        calls: how many they make together; 0 for as many as there is time for.
    """

    tenant: str
    count: int
    lengths_s: tuple[float, ...]
    launches: int = 1
    begin_s: float = 0.0
    calls: int = 0


@dataclass(frozen=True, slots=True)
class SpunCall:
    """A call that was answered: its device time, its begin and its end after the start."""

    tenant: str
    length_s: float
    begin_s: float
    end_s: float


class SpinNode(Closeable):
    """A node with the function for several tenants.

    Args:
        bench: names the backend.
        weights: of the tenants.
        policy: of the node.
        workers: that share the device; None for the backend's default.
        devices: how many are used at most.
        rounds_per_s: operations of a device in a second; 0 to measure them.

    Raises:
        BackendUnavailable: no engine starts.
        ValueError: the function gives a wrong result.
    """

    def __init__(
        self,
        bench: Bench,
        weights: Mapping[str, float],
        *,
        policy: str = "fair",
        workers: int | None = None,
        devices: int = 1,
        rounds_per_s: float = 0.0,
    ) -> None:
        shares = {name: TenantSettings(weight=weight) for name, weight in weights.items()}
        opened = default_node(
            bench, workers=workers, devices=devices, policy=policy, tenants=shares
        )  # fmt: skip
        self._warm: set[tuple[str, float, int]] = set()
        self._seed = bench.seed
        with contextlib.ExitStack() as closing:
            self.node = closing.enter_context(opened)
            resources = Counter(e.resource for e in self.node.engines() if e.state == "ready")
            self.devices = len(resources)
            self.lanes = sum(max(1, count - 1) for count in resources.values())
            for tenant in weights:
                self.node.register(spin(), tenant=tenant)
            self._check(next(iter(weights)))
            self.rounds_per_s = rounds_per_s or self._calibrated(next(iter(weights)))
            self._closing = closing.pop_all()

    def close(self) -> None:
        self._closing.close()

    def run(self, groups: Sequence[Callers], seconds: float = math.inf) -> list[SpunCall]:
        """Let callers call until the time is over or all have made their calls.

        Each tenant's calls are made some times before, which does not count.
        """
        for group in groups:
            for length_s in group.lengths_s:
                if (key := (group.tenant, length_s, group.launches)) not in self._warm:
                    self._warm.add(key)
                    uvloop.run(self._repeated(group, length_s))
        return uvloop.run(self._run(groups, seconds))

    async def _run(self, groups: Sequence[Callers], seconds: float) -> list[SpunCall]:
        made: list[SpunCall] = []
        begun = time.perf_counter()

        async def call_on(group: Callers, left: Iterator[int], seed: int) -> None:
            draw = random.Random(seed)
            await asyncio.sleep(group.begin_s)
            while (start_s := time.perf_counter() - begun) < seconds and next(left, 0):
                length_s = draw.choice(group.lengths_s)
                await self._call(group, length_s)
                end_s = time.perf_counter() - begun
                made.append(SpunCall(group.tenant, length_s, start_s, end_s))

        async with asyncio.TaskGroup() as tasks:
            for group in groups:
                left = iter(range(group.calls or 10**9, 0, -1))
                for number in range(group.count):
                    tasks.create_task(call_on(group, left, self._seed + number))
        return made

    async def _repeated(self, group: Callers, length_s: float) -> None:
        for _ in range(3):
            calls = [self._call(group, length_s) for _ in range(max(2, self.lanes))]
            await asyncio.gather(*calls)

    async def _call(self, group: Callers, length_s: float) -> None:
        rounds = round(length_s * self.rounds_per_s / group.launches)
        given = _input(rounds, group.launches)
        await self.node.invoke_async(FUNCTION, tenant=group.tenant, a=given, deadline_s=300.0)

    def _check(self, tenant: str) -> None:
        found = self.node.invoke(FUNCTION, tenant=tenant, a=_input(1000, 1))["y"]
        assert found is not None
        if found.numpy(np.uint64, (-1,))[0] != spun(1000):
            raise ValueError("the function gives a wrong result")

    def _calibrated(self, tenant: str) -> float:
        """Measure operations in a second, from the difference of a short and a long call."""
        few, many = 1000, 4000
        base_s = self._median_s(tenant, few)
        while (took_s := self._median_s(tenant, many)) - base_s < _CALIBRATED_S:
            many *= 4
        return (many - few) / (took_s - base_s)

    def _median_s(self, tenant: str, rounds: int) -> float:
        took_s = []
        for _ in range(7):
            begin = time.perf_counter()
            self.node.invoke(FUNCTION, tenant=tenant, a=_input(rounds, 1))
            took_s.append(time.perf_counter() - begin)
        return statistics.median(took_s[2:])


def _input(rounds: int, launches: int) -> NDArray[np.int64]:
    return np.array([rounds, launches], np.int64)


@contextlib.contextmanager
def default_node(
    bench: Bench, *, workers: int | None = None, devices: int = 1, arena_bytes: int = 256 * MIB,
    policy: str = "fair", tenants: Mapping[str, TenantSettings] = _NO_TENANTS,
) -> Iterator[Node]:  # fmt: skip
    """Start a node, and wait for its engines, however many its backend starts by default.

    Raises:
        BackendUnavailable: none of them starts.
    """
    options = {"pool_bytes": pool_for(bench.gpu)}
    if workers is not None:
        options["workers"] = str(workers)
    settings = Settings(
        backends=(bench.backend,), options={bench.backend: options}, policy=policy,
        engines={bench.backend: devices}, arena_bytes=arena_bytes, keep_traces=4,
        tenants=dict(tenants),
    )  # fmt: skip
    with Node(settings) as node:
        node.wait_ready(_READY_S)
        if not any(engine.state == "ready" for engine in node.engines()):
            reasons = "; ".join(dict.fromkeys(e.reason for e in node.engines() if e.reason))
            raise BackendUnavailable("node", reasons or "no engine started")
        yield node


@contextlib.contextmanager
def spin_nodes(
    bench: Bench, weights: Mapping[str, float], policies: Iterable[str], workers: int | None = None
) -> Iterator[dict[str, SpinNode]]:
    """Start a node for each policy on the same device, with the same number of operations."""
    found: dict[str, SpinNode] = {}
    with contextlib.ExitStack() as closing:
        rounds_per_s = 0.0
        for policy in policies:
            bench.say(f"starting a node, policy {policy}")
            node = SpinNode(
                bench, weights, policy=policy, workers=workers, rounds_per_s=rounds_per_s
            )
            found[policy] = closing.enter_context(node)
            rounds_per_s = node.rounds_per_s
        yield found


def used_s(calls: Iterable[SpunCall], begin_s: float, end_s: float) -> dict[str, float]:
    """Add up the device time of each tenant in a window."""
    found: dict[str, float] = {}
    for call in calls:
        inside = min(call.end_s, end_s) - max(call.end_s - call.length_s, begin_s)
        found[call.tenant] = found.get(call.tenant, 0.0) + max(0.0, inside)
    return found


def windows(begin_s: float, end_s: float, length_s: float) -> list[tuple[float, float]]:
    """Divide a time into windows of one length; a rest is left out."""
    count = max(1, int((end_s - begin_s) / length_s + 1e-9))
    return [(begin_s + i * length_s, begin_s + (i + 1) * length_s) for i in range(count)]


def deviation(used: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """Give the largest difference of a tenant's part of a window from its share by weight."""
    whole, weight = sum(used.values()) or math.inf, sum(weights.values())
    return max(abs(used.get(name, 0.0) / whole - w / weight) for name, w in weights.items())


def latencies(calls: Iterable[SpunCall], tenant: str) -> Samples:
    """Give the latencies of one tenant."""
    return Samples.of_us((c.end_s - c.begin_s) * 1e6 for c in calls if c.tenant == tenant)
