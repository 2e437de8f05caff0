"""What do compositions cost before anything runs, and how much memory does a wide one take?

Compositions of growing length are read, checked, compiled, printed and drawn; sets of many items
are spread over instances and merged; walks are driven with functions that cost nothing.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Sequence
from functools import partial

from dandelion.data import Item, ItemSet, SetSpec
from dandelion.dataflow.draw import to_svg
from dandelion.dataflow.graph import Sharding, Strategy
from dandelion.dataflow.language import parse
from dandelion.dataflow.printer import print_module
from dandelion.dataflow.sharding import Partitioning, groups_of, instances, merged
from dandelion.dataflow.validate import check_module
from dandelion.dispatcher import Complete, CompositionPlan, Run, Walk, compile_composition
from dandelion.function import FunctionSpec

from ..experiment import Bench, experiment
from ..records import Axis, Budget, Findings, Metric, Panel, Plot, Row, Unit, at_most
from ..samples import LATENCIES, row
from ..timing import in_turns

FUNCTIONS = 50
POLICY = Partitioning("fixed", 16, 2)
PEAK = Metric("ratio", "peak memory over data", Unit.RATIO)
TEXT_LIMITS_US = {"read": 200.0, "check": 50.0, "compile": 50.0, "print": 50.0, "draw": 1000.0}
WALK_LIMITS_US = {"walk, each": 5.0, "walk, repeat": 10.0}
FAN = "composition Fan(x) => (y) { F(a = each x) => (y = c); }"
LOOP = "composition Loop(x) => (y) { F(a = all x) => (y = c) repeat %d feeding (a = c); }"
Action = Callable[[], object]


def _long_text(statements: int) -> str:
    """Write a chain of applications, each with two inputs and two outputs."""
    parts = [f"function F{i}(a, b) => (c, d);\n" for i in range(FUNCTIONS)]
    parts.append(f"composition Long(s0, x) => (s{statements}) {{\n")
    for i in range(statements):
        bindings = f"a = each s{i}, b = optional all x"
        parts.append(f"    F{i % FUNCTIONS}({bindings}) => (s{i + 1} = c, t{i} = d);\n")
    return "".join([*parts, "}\n"])


def _text_actions(statements: int) -> dict[str, Action]:
    """Give everything that is done with a text, by name."""
    text = _long_text(statements)
    module = parse(text)
    composition = module.compositions[0]
    sets = (SetSpec("a"), SetSpec("b")), (SetSpec("c"), SetSpec("d"))
    known = {f"F{i}": FunctionSpec(f"F{i}", *sets) for i in range(FUNCTIONS)}
    assert check_module(module) == []
    return {
        "read": lambda: parse(text),
        "check": lambda: check_module(module),
        "compile": lambda: compile_composition(composition, known.__getitem__),
        "print": lambda: print_module(module),
        "draw": lambda: to_svg(composition),
    }


@experiment("language", group="dispatcher", question="What does a composition cost before it runs?")
def language(bench: Bench) -> Findings:
    """Read, check, compile, print and draw compositions of growing length."""
    sizes = bench.pick([10, 100], [10, 100, 500, 1000], [10, 100, 500, 1000])
    rows: list[Row] = []
    for size in sizes:
        bench.say(f"{size} statements")
        timed = in_turns(_text_actions(size), count=20, warm_up=2, seconds=8.0)
        rows += [row(name, float(size), timed[name], per=size) for name in timed]
    panel = Panel(
        "texts", "Each statement of a composition, by their number",
        Axis("statements", logarithmic=True), LATENCIES, tuple(rows), Plot.LINES,
    )  # fmt: skip
    longest = {r.system: r.values["p50"] for r in rows if r.x == sizes[-1]}
    budgets = tuple(
        at_most(
            f"{name} a composition, each of {sizes[-1]} statements", longest[name], limit, " us"
        )
        for name, limit in TEXT_LIMITS_US.items()
    )
    return Findings((panel,), budgets=budgets)


def _items(count: int, size_bytes: int, keys: int) -> ItemSet:
    """Make a set of items, each with its own bytes."""
    return ItemSet("s", tuple(Item(str(i), i % keys, bytes(size_bytes)) for i in range(count)))


def _sharding_actions(wide: int, square: int) -> dict[str, Action]:
    """Expand `wide` items, or two sets of `square`, and merge `wide` results."""
    many, few = _items(wide, 8, wide), _items(square, 8, square)
    each, keyed = Sharding.EACH, Sharding.KEYED
    cases: list[tuple[str, list[Sharding], Sequence[ItemSet | None]]] = [
        (f"expand, {one.value}", [one], [many])
        for one in (each, keyed, Sharding.ANY_EACH, Sharding.ANY_KEYED)
    ]
    cases.append(("expand, each and all", [each, Sharding.ALL], [many, many]))
    cases.append(("expand, each and each", [each, each], [few, few]))
    actions: dict[str, Action] = {
        name: partial(_expand, groups_of(modes), sets) for name, modes, sets in cases
    }
    full = groups_of([keyed, keyed], (0, 1), (Strategy.FULL,))
    outputs = [(ItemSet("o", (item,)),) for item in many]
    actions["expand, full join"] = partial(_expand, full, [many, many])
    return actions | {"merge": lambda: merged(("o",), outputs)}


def _expand(groups: object, sets: Sequence[ItemSet | None]) -> None:
    list(instances(groups, sets, POLICY))  # type: ignore[arg-type]  # what groups_of gives


def _plan(text: str) -> CompositionPlan:
    spec = FunctionSpec("F", (SetSpec("a"),), (SetSpec("c"),))
    return compile_composition(parse(text).compositions[0], {"F": spec}.__getitem__)


def _drive(
    plan: CompositionPlan, given: ItemSet, answer: Callable[[ItemSet | None], ItemSet]
) -> None:
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


def _walk_actions(wide: int) -> dict[str, Action]:
    """Walk over `wide` instances or iterations, with functions that cost nothing."""
    fan, loop = _plan(FAN), _plan(LOOP % wide)
    same = ItemSet("c", (Item("out", 0, b"x"),))
    small = _items(wide, 8, wide)
    return {
        "walk, each": lambda: _drive(fan, small, lambda _: same),
        "walk, repeat": lambda: _drive(loop, same, lambda _: same),
    }


def _peak_over_data(wide: int, size_bytes: int) -> float:
    """Drive a walk over items, including the making of its inputs; give peak memory over data."""

    def answer(_: ItemSet | None) -> ItemSet:
        return ItemSet("c", (Item("out", 0, bytes(size_bytes)),))

    plan = _plan(FAN)
    tracemalloc.start()
    try:
        _drive(plan, _items(wide, size_bytes, wide), answer)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return peak / (2 * wide * size_bytes)


@experiment("walks", group="dispatcher", question="What do wide compositions cost by themselves?")
def walks(bench: Bench) -> Findings:
    """Time expansion, merge and walks for each item, and measure the memory of a wide walk."""
    wide = bench.pick(1000, 10_000, 10_000)
    bench.say(f"{wide} items")
    square = round(wide**0.5)
    actions = _sharding_actions(wide, square) | _walk_actions(wide)
    timed = in_turns(actions, count=20, warm_up=2, seconds=10.0)
    per = dict.fromkeys(actions, wide) | {"expand, each and each": square * square}
    rows = tuple(row("dandelion", name, timed[name], per=per[name]) for name in actions)
    costs = Panel(
        "items", f"Each of {wide} items or instances", Axis("what is done"), LATENCIES, rows,
        Plot.BARS,
    )  # fmt: skip
    peaks = {size: _peak_over_data(wide, size) for size in (1024, 16 * 1024)}
    memory = Panel(
        "peak", f"Peak memory of a fan-out over {wide} items, over the bytes of its items",
        Axis("bytes of an item", Unit.BYTES), (PEAK,),
        tuple(Row("dandelion", float(s), {"ratio": peaks[s]}, 1) for s in peaks), Plot.TABLE,
    )  # fmt: skip
    p50 = {r.x: r.values["p50"] for r in rows}
    budgets: list[Budget] = [
        at_most(f"{n}: an instance", p50[n], limit, " us") for n, limit in WALK_LIMITS_US.items()
    ]
    worst = max(peaks.values())
    budgets.append(at_most("memory of a wide composition", worst, 2, "x", of=" its data"))
    return Findings((costs, memory), budgets=tuple(budgets))
