"""What do compositions cost before anything runs, and how much memory does a wide one take?

Compositions of growing length are read, checked, compiled, printed and drawn; sets of many items
are spread over instances and merged; walks are driven with functions that cost nothing.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from functools import partial

from dandelion.data import Item, ItemSet, SetSpec
from dandelion.dataflow.draw import to_svg
from dandelion.dataflow.graph import Sharding, Strategy
from dandelion.dataflow.language import parse
from dandelion.dataflow.printer import print_module
from dandelion.dataflow.sharding import Group, Partitioning, groups_of, instances, merged
from dandelion.dataflow.validate import check_module
from dandelion.dispatcher import Complete, CompositionPlan, Run, Walk, compile_composition
from dandelion.function import FunctionSpec

from ..columns import LATENCIES, row
from ..experiment import Bench, experiment
from ..records import Axis, Budget, Found, Look, Metric, Panel, Row, Unit
from ..timing import in_turns

FUNCTIONS = 50
POLICY = Partitioning("fixed", 16, 2)
PEAK_LIMIT = 2.0
PEAK = Metric("ratio", "peak memory over data", Unit.RATIO)
TEXT_LIMITS_US = {"read": 200.0, "check": 50.0, "compile": 50.0, "print": 50.0, "draw": 1000.0}
WALK_LIMITS_US = {"walk, each": 5.0, "walk, repeat": 10.0}
Answer = Callable[[ItemSet | None], ItemSet]
Action = Callable[[], object]


def long_text(statements: int) -> str:
    """A chain of applications, each with two inputs and two outputs."""
    parts = [f"function F{i}(a, b) => (c, d);\n" for i in range(FUNCTIONS)]
    parts.append(f"composition Long(s0, x) => (s{statements}) {{\n")
    for i in range(statements):
        bindings = f"a = each s{i}, b = optional all x"
        parts.append(f"    F{i % FUNCTIONS}({bindings}) => (s{i + 1} = c, t{i} = d);\n")
    return "".join([*parts, "}\n"])


def _function(number: int) -> FunctionSpec:
    return FunctionSpec(
        f"F{number}", (SetSpec("a"), SetSpec("b")), (SetSpec("c"), SetSpec("d"))
    )  # fmt: skip


def text_actions(statements: int) -> dict[str, Action]:
    """Everything that is done with a text, by name."""
    text = long_text(statements)
    module = parse(text)
    composition = module.compositions[0]
    known = {f"F{i}": _function(i) for i in range(FUNCTIONS)}
    assert check_module(module) == []
    return {
        "read": lambda: parse(text),
        "check": lambda: check_module(module),
        "compile": lambda: compile_composition(composition, known.__getitem__),
        "print": lambda: print_module(module),
        "draw": lambda: to_svg(composition),
    }


@experiment("language", group="dispatcher", question="What does a composition cost before it runs?")
def language(bench: Bench) -> Found:
    """Read, check, compile, print and draw compositions of growing length."""
    sizes = bench.pick([10, 100], [10, 100, 500, 1000], [10, 100, 500, 1000])
    rows: list[Row] = []
    for size in sizes:
        bench.say(f"{size} statements")
        timed = in_turns(text_actions(size), count=20, warm_up=2, seconds=8.0)
        rows += [row(name, float(size), timed[name], per=size) for name in timed]
    panel = Panel(
        "texts", "Each statement of a composition, by their number",
        Axis("statements", logarithmic=True), LATENCIES, tuple(rows), Look.LINES,
    )  # fmt: skip
    longest = {r.system: r.values["p50"] for r in rows if r.x == sizes[-1]}
    budgets = tuple(
        _within(f"{name} a composition, each of {sizes[-1]} statements", limit, longest[name])
        for name, limit in TEXT_LIMITS_US.items()
    )
    return Found((panel,), budgets=budgets)


def _within(path: str, limit_us: float, measured_us: float) -> Budget:
    return Budget(
        path, f"<= {limit_us:.0f} us", f"{measured_us:.2f} us", measured_us <= limit_us
    )  # fmt: skip


def items(count: int, size_bytes: int, keys: int) -> ItemSet:
    """A set of items with bytes of their own."""
    return ItemSet("s", tuple(Item(str(i), i % keys, bytes(size_bytes)) for i in range(count)))


def _expand(groups: tuple[Group, ...], sets: list[ItemSet | None]) -> None:
    """Make all instances."""
    list(instances(groups, sets, POLICY))


def sharding_actions(wide: int, square: int) -> dict[str, Action]:
    """Expansion of `wide` items, or of two sets of `square`, and the merge of `wide` results."""
    many, few = items(wide, 8, wide), items(square, 8, square)
    outputs = [(ItemSet("o", (item,)),) for item in many]
    every = (Sharding.EACH, Sharding.KEYED, Sharding.ANY_EACH, Sharding.ANY_KEYED)
    cases: list[tuple[str, tuple[Group, ...], list[ItemSet | None]]] = [
        (f"expand, {one.value}", groups_of([one]), [many]) for one in every
    ]
    cases.append(("expand, each and all", groups_of([Sharding.EACH, Sharding.ALL]), [many, many]))
    cases.append(("expand, each and each", groups_of([Sharding.EACH] * 2), [few, few]))
    full = groups_of([Sharding.KEYED] * 2, (0, 1), (Strategy.FULL,))
    cases.append(("expand, full join", full, [many, many]))
    actions: dict[str, Action] = {
        name: partial(_expand, groups, sets) for name, groups, sets in cases
    }
    return actions | {"merge": lambda: merged(("o",), outputs)}


FAN = "composition Fan(x) => (y) { F(a = each x) => (y = c); }"
LOOP = "composition Loop(x) => (y) { F(a = all x) => (y = c) repeat %d feeding (a = c); }"


def _plan(text: str) -> CompositionPlan:
    spec = FunctionSpec("F", (SetSpec("a"),), (SetSpec("c"),))
    return compile_composition(parse(text).compositions[0], {"F": spec}.__getitem__)


def drive(plan: CompositionPlan, given: ItemSet, answer: Answer) -> None:
    """Carry a walk to its end."""
    walk = Walk(plan, POLICY)
    out = walk.start([given])
    del given
    while True:
        instruction = out.pop()
        if isinstance(instruction, Complete):
            return
        assert isinstance(instruction, Run)
        out += walk.finished(instruction.instance, (answer(instruction.inputs[0]),))


def walk_actions(wide: int) -> dict[str, Action]:
    """Walks over `wide` instances or iterations, with functions that cost nothing."""
    fan, loop = _plan(FAN), _plan(LOOP % wide)
    same = ItemSet("c", (Item("out", 0, b"x"),))
    small = items(wide, 8, wide)
    return {
        "walk, each": lambda: drive(fan, small, lambda _: same),
        "walk, repeat": lambda: drive(loop, same, lambda _: same),
    }


def peak_over_data(wide: int, size_bytes: int) -> float:
    """Drive a walk over items, from the making of its inputs; give peak memory over data."""

    def answer(_: ItemSet | None) -> ItemSet:
        return ItemSet("c", (Item("out", 0, bytes(size_bytes)),))

    plan = _plan(FAN)
    tracemalloc.start()
    try:
        drive(plan, items(wide, size_bytes, wide), answer)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return peak / (2 * wide * size_bytes)


@experiment("walks", group="dispatcher", question="What do wide compositions cost by themselves?")
def walks(bench: Bench) -> Found:
    """Time expansion, merge and walks for each item, and take the memory of a wide walk."""
    wide = bench.pick(1000, 10_000, 10_000)
    bench.say(f"{wide} items")
    square = round(wide**0.5)
    actions = sharding_actions(wide, square) | walk_actions(wide)
    timed = in_turns(actions, count=20, warm_up=2, seconds=10.0)
    per = dict.fromkeys(actions, wide) | {"expand, each and each": square * square}
    rows = tuple(row("dandelion", name, timed[name], per=per[name]) for name in actions)
    costs = Panel(
        "items", f"Each of {wide} items or instances", Axis("what is done"), LATENCIES, rows,
        Look.BARS,
    )  # fmt: skip
    sizes = (1024, 16 * 1024)
    peaks = {size: peak_over_data(wide, size) for size in sizes}
    memory = Panel(
        "peak", f"Peak memory of a fan-out over {wide} items, over the bytes of its items",
        Axis("bytes of an item", Unit.BYTES), (PEAK,),
        tuple(Row("dandelion", float(s), {"ratio": peaks[s]}, 1) for s in sizes), Look.TABLE,
    )  # fmt: skip
    p50 = {r.x: r.values["p50"] for r in rows}
    worst = max(peaks.values())
    budgets = [
        _within(f"{name}: an instance", limit, p50[name]) for name, limit in WALK_LIMITS_US.items()
    ]
    budgets.append(
        Budget("memory of a wide composition", f"<= {PEAK_LIMIT:.0f}x its data", f"{worst:.2f}x",
               worst <= PEAK_LIMIT)
    )  # fmt: skip
    return Found((costs, memory), budgets=tuple(budgets))
