"""What a simulated node runs: functions, compositions and tenants."""

from __future__ import annotations

import random

from dandelion.data import SetSpec
from dandelion.dataflow.language import parse
from dandelion.dispatcher import CompositionPlan, compile_composition
from dandelion.dispatcher.plan import direct_plan
from dandelion.function import (
    Batching,
    CodeObject,
    FunctionSpec,
    Limits,
    StaticItem,
    digest_of,
)
from dandelion.scheduler import Quota, Tenant

TEXT = """
function one(x) => (y);
function gpu(x) => (y);
function io(x) => (y);
composition chain(x) => (z) {
    one(x = all x) => (a = y);
    gpu(x = all a) => (b = y);
    one(x = all b) => (z = y);
}
composition fan(x) => (z) {
    gpu(x = each x) => (a = y);
    one(x = each a) => (b = y);
    io(x = all b) => (z = y);
}
"""
parse(TEXT)  # what reads texts is loaded on first use: here with all else, see `sources`
HANDLED = """
composition inner(x) => (z) {
    one(x = each x) => (a = y) attempts 2 on (Raised, Overloaded) backoff 0.01;
    gpu(x = each a) => (z = y);
}
composition caught(x) => (z, e, f) {
    gpu(x = each x) => (a = y) attempts 3 on (FunctionError, CapacityError) backoff 0.02 catch e;
    inner(x = each x) => (b = z) attempts 2 on (FunctionError) catch f;
    one(x = optional all a) => (z = y) repeat 2 feeding (x = y) attempts 5 on (Raised, Faulted);
}
composition patient(x) => (z, e) {
    inner(x = each x) => (a = z) attempts 3 on (FunctionError) backoff 0.2;
    io(x = each x) => (z = y) attempts 100 on (CapacityError, Raised) backoff 0.001 catch e;
}
"""
"""Compositions that handle failures."""


class World:
    """Functions and compositions, and the tenants that run them.

    Args:
        source: of all that is random.
        crowded: few functions.
        device_only: many functions that share devices.
        handles: some compositions handle failures.

    Attributes:
        plans: of the functions and compositions.
        sizes: of the functions' code and constants, and of the constants alone, by name.
    """

    def __init__(
        self, source: random.Random, crowded: bool, device_only: bool, handles: bool
    ) -> None:
        self.random = source
        self.crowded = crowded
        self.device_only = device_only
        self.handles = handles
        self.sizes: dict[str, tuple[int, int]] = {}
        self.plans = self._make_plans()

    def _function(self, name: str, code_format: str, kind: str = "compute") -> FunctionSpec:
        cache = kind == "compute" and self.random.random() < 0.2
        constants = self.random.choice([60, 100, 200] if self.device_only else [0, 0, 50, 200])
        self.sizes[name] = (constants + self.random.choice([0, 10, 100]), constants)
        batching = None
        if kind == "compute" and self.random.random() < (1 if self.crowded else 0.3):
            wait_s = self.random.choice([0.0, 0.005, 0.05])
            batching = Batching(("x",), self.random.choice([2, 3, 30]), wait_s)
        return FunctionSpec(
            name,
            (SetSpec("x"),),
            (SetSpec("y"),),
            code=(CodeObject(code_format),),
            kind=kind,
            static=self._static(name, constants),
            cache=cache,
            batching=batching,
            limits=Limits(
                concurrency=self.random.choice([1, 2, 100]),
                queue_length=self.random.choice([2, 10, 1000]),
            ),
            version=1,
        )

    def _static(self, name: str, constants: int) -> dict[str, tuple[StaticItem, ...]]:
        """Give constants, which some functions have in common."""
        if not constants:
            return {}
        content = f"of {constants} bytes" if self.random.random() < 0.3 else name
        return {"w": (StaticItem("w", digest_of(content.encode())),)}

    def _make_plans(self) -> list[CompositionPlan]:
        specs = {
            "one": self._function("one", "cpu"),
            "gpu": self._function("gpu", "gpu"),
            "io": self._function("io", "net", "io"),
        }
        more = 0 if self.crowded else 8
        formats = ["gpu"] if self.device_only else ["cpu", "gpu"]
        extra = [self._function(f"f{i}", self.random.choice(formats)) for i in range(more)]
        plans = [direct_plan(spec) for spec in (*specs.values(), *extra)]
        handled = HANDLED if self.handles else ""
        parsed = parse(TEXT + handled, "simulation")
        targets: dict[str, FunctionSpec | CompositionPlan] = dict(specs)
        for composition in parsed.compositions:
            plan = compile_composition(composition, targets.__getitem__)
            plans.append(plan)
            targets[plan.name] = plan
        return plans

    def tenant(self, number: int) -> Tenant:
        return Tenant(
            f"t{number}",
            Quota(
                self.random.choice([3, 20, 100]),
                self.random.choice([1, 2, 100]),
                self.random.choice([150, 400, 2000, 1 << 40]),
                self.random.choice([100, 1 << 40]),
                self.random.choice([5, 30, 1000]),
                self.random.choice([60, 1 << 40]),
            ),
            self.random.choice([1.0, 1.0, 4.0]),
            share_constants=self.random.random() < 0.8,
        )

    def change(self, tenant: Tenant) -> None:
        """Raise quotas of a tenant, and give it another weight."""
        old = tenant.quota
        more = self.random.choice([1, 2, 10])
        tenant.quota = old._replace(
            calls=old.calls * more,
            arena_bytes=old.arena_bytes * self.random.choice([1, 2]),
            device_bytes=old.device_bytes * self.random.choice([1, 2]),
        )
        tenant.weight = self.random.choice([1.0, 4.0])
