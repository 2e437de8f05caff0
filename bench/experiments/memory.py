"""How much memory do nodes, engines and registered functions take, and is it returned?

Each backend is measured in its own process. A function is idle when it is registered and was never
called. After many rounds of register, invoke, fail and remove, a node must have what it had before:
nothing more of the arena, no more files, threads and children, and no more memory, except what
allocators retain.
"""

from __future__ import annotations

from dandelion.errors import BackendUnavailable

from ..experiment import Bench, experiment
from ..records import Axis, Budget, Findings, Metric, Panel, Plot, Row, Skip, Unit
from ..systems.echoes import GPU, NATIVE, NULL, PYTHON, WASM, system_of
from ..systems.footprint import Footprint, FootprintOrder, NodeState, ask

RETAINED_BYTES = 256 * 1024
"""How much more memory allocators may retain, whatever the number of rounds."""

RETAINED_EACH_BYTES = 1024
"""How much more they may retain for each round; a leak is more than that."""

SIZE = Metric("bytes", "memory of its own", Unit.BYTES)
GROWTH = (
    Metric("node", "growth of the node", Unit.BYTES),
    Metric("children", "growth of its children", Unit.BYTES, drawn=False),
    Metric("device", "growth on the device", Unit.BYTES, drawn=False),
    Metric("each", "all growth, each round", Unit.BYTES, drawn=False),
)
ROUNDS: dict[str, tuple[tuple[int, int, int], ...]] = {
    NULL: ((200, 1000, 1000), (100, 1000, 1000), (50, 500, 500)),
    PYTHON: ((100, 1000, 1000), (10, 200, 1000), (5, 100, 500)),
    NATIVE: ((100, 1000, 1000), (50, 500, 1000), (25, 250, 500)),
    WASM: ((50, 1000, 1000), (30, 500, 1000), (15, 250, 500)),
    GPU: ((50, 500, 1000), (3, 300, 1000), (2, 300, 500)),
}
"""Functions, rounds, and rounds before, in which bounded caches become full; see `Bench.pick`."""


def idle_rows(kind: str, functions: int, found: Footprint) -> list[Row]:
    """Say what a node takes, its children, and each function that is registered."""
    idle, registered = found.idle, found.registered
    assert idle is not None
    assert registered is not None
    rows = [Row(system_of(kind), "node", {"bytes": float(idle.node_bytes)}, 1)]
    if idle.children:
        word = "engine process" if kind == GPU else "zygote"
        each = idle.children_bytes / idle.children
        rows.append(Row(system_of(kind), word, {"bytes": each}, idle.children))
    each = (registered.node_bytes - idle.node_bytes) / functions
    return [*rows, Row(system_of(kind), "idle function", {"bytes": each}, functions)]


def growth_row(kind: str, cycles: int, found: Footprint) -> Row:
    """Say how much more there is after all rounds."""
    before, after = found.before, found.after
    assert before is not None
    assert after is not None
    node = float(after.node_bytes - before.node_bytes)
    children = float(after.children_bytes - before.children_bytes)
    values = {"node": node, "children": children, "each": (node + children) / cycles}
    if before.device_bytes is not None and after.device_bytes is not None:
        values["device"] = float(after.device_bytes - before.device_bytes)
    return Row(system_of(kind), "all rounds", values, cycles, note="; ".join(leaks(before, after)))


def leaks(before: NodeState, after: NodeState) -> list[str]:
    """Name what there is more of that can be counted exactly."""
    names = ("arena_bytes", "contexts", "files", "threads", "children")
    pairs = {name: (getattr(before, name), getattr(after, name)) for name in names}
    return [f"{name}: {old} to {new}" for name, (old, new) in pairs.items() if new > old]


def budget_of(rows: list[Row]) -> Budget:
    """Judge all backends together, by the one that grew most."""
    grown = {r.system: max(r.values["node"], r.values["children"]) for r in rows}
    worst = max(grown, key=lambda name: grown[name])
    wrong = [f"{r.system}: {r.note}" for r in rows if r.note]
    wrong += [
        f"{r.system}: {grown[r.system] / 1024:.0f} KiB in {r.count} rounds"
        for r in rows
        if grown[r.system] > max(RETAINED_BYTES, RETAINED_EACH_BYTES * r.count)
    ]
    wrong += [f"{r.system}: memory of the device" for r in rows if r.values.get("device", 0) > 0]
    return Budget(
        f"memory after up to {max(r.count for r in rows)} x register, invoke, fail, remove",
        "as at the start; allocators may keep 256 KiB, or 1 KiB a round",
        f"at most {grown[worst] / 1024:+.0f} KiB ({worst})", not wrong, "; ".join(wrong),
    )  # fmt: skip


@experiment(
    "memory", group="data", question="What does an idle function take, and does it come back?"
)
def memory(bench: Bench) -> Findings:
    """Measure every backend in its own process."""
    idle: list[Row] = []
    growth: list[Row] = []
    skips: list[Skip] = []
    kinds = {k: k for k in (NULL, PYTHON, NATIVE, WASM)}
    if bench.backend:
        kinds[GPU] = bench.backend
    else:
        skips.append(Skip("GPU engines", "no GPU backend: give one with --backend"))
    for kind, backend in kinds.items():
        functions, cycles, warm_up = (bench.pick(*sizes) for sizes in ROUNDS[kind])
        bench.say(f"{system_of(kind)}, {functions} functions, {cycles} rounds")
        try:
            found = ask(FootprintOrder(kind, backend, functions, cycles, warm_up))
        except BackendUnavailable as error:
            skips.append(Skip(system_of(kind), str(error)))
            continue
        idle += idle_rows(kind, functions, found)
        growth.append(growth_row(kind, cycles, found))
    panels = (
        Panel("idle", "Memory of what does nothing", Axis("what"), (SIZE,), tuple(idle), Plot.BARS),
        Panel("growth", "More memory after rounds of register, invoke, fail and remove",
              Axis("when"), GROWTH, tuple(growth), Plot.TABLE),
    )  # fmt: skip
    rounds = ", ".join(f"{k} {bench.pick(*ROUNDS[k][1])}" for k in kinds)
    scaled = "" if bench.gpu and not bench.quick else f"rounds instead of 1000: {rounds}"
    budgets = (budget_of(growth),) if growth else ()
    return Findings(panels, budgets=budgets, skips=tuple(skips), scaled=scaled)
