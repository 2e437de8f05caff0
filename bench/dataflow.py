"""What do compositions cost before anything runs, and how much memory does a wide one take?

A composition of 500 statements is read, checked, compiled, printed and drawn; sets of 10,000 items
are spread over instances and merged; walks are driven with functions that cost nothing. The ratio
of the last rows is not one of times: it is the peak of all memory over the bytes of the items.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from functools import partial

import msgspec
from dandelion.bench.measure import Sample, keep_name, report, timed

from dandelion.data import Item, ItemSet, SetSpec
from dandelion.dataflow.draw import to_svg
from dandelion.dataflow.graph import Sharding, Strategy
from dandelion.dataflow.language import parse
from dandelion.dataflow.printer import print_module
from dandelion.dataflow.sharding import Group, Partitioning, groups_of, instances, merged
from dandelion.dataflow.validate import check_module
from dandelion.dispatcher import Complete, CompositionPlan, Run, Walk, compile_composition
from dandelion.function import FunctionSpec

STATEMENTS = 500
FUNCTIONS = 50
WIDE = 10_000
POLICY = Partitioning("fixed", 16, 2)
MEMORY_BUDGET = "peak <= 2x data"
Function = Callable[[ItemSet | None], ItemSet]


def long_text() -> str:
    """A chain of applications, each with two inputs and two outputs."""
    parts = [f"function F{i}(a, b) => (c, d);\n" for i in range(FUNCTIONS)]
    parts.append(f"composition Long(s0, x) => (s{STATEMENTS}) {{\n")
    for i in range(STATEMENTS):
        bindings = f"a = each s{i}, b = optional all x"
        parts.append(f"    F{i % FUNCTIONS}({bindings}) => (s{i + 1} = c, t{i} = d);\n")
    return "".join([*parts, "}\n"])


def function(number: int) -> FunctionSpec:
    """The registered form of a function of `long_text`."""
    return FunctionSpec(
        f"F{number}", (SetSpec("a"), SetSpec("b")), (SetSpec("c"), SetSpec("d"))
    )  # fmt: skip


def texts() -> list[Sample]:
    """Time everything that is done with a text, each statement."""
    text = long_text()
    module = parse(text)
    composition = module.compositions[0]
    known = {f"F{i}": function(i) for i in range(FUNCTIONS)}
    assert check_module(module) == []

    def each(name: str, action: Callable[[], object], budget: str) -> Sample:
        return timed(
            f"{name} 500 statements, each", action, count=15, per=STATEMENTS, budget=budget
        )

    return [
        each("read", lambda: parse(text), "<= 200 us"),
        each("check", lambda: check_module(module), "<= 50 us"),
        each("compile", lambda: compile_composition(composition, known.__getitem__), "<= 50 us"),
        each("print", lambda: print_module(module), "<= 50 us"),
        each("draw", lambda: to_svg(composition), "<= 1000 us"),
    ]


def items(count: int, size_bytes: int, keys: int) -> ItemSet:
    """A set of items with bytes of their own."""
    return ItemSet("s", tuple(Item(str(i), i % keys, bytes(size_bytes)) for i in range(count)))


def expand(groups: tuple[Group, ...], sets: list[ItemSet | None]) -> None:
    """Make all instances."""
    list(instances(groups, sets, POLICY))


def sharding() -> list[Sample]:
    """Time expansion and merge of 10,000 items, each."""
    wide = items(WIDE, 8, WIDE)
    square = items(100, 8, 100)
    outputs = [(ItemSet("o", (item,)),) for item in wide]
    every = (Sharding.EACH, Sharding.KEYED, Sharding.ANY_EACH, Sharding.ANY_KEYED)
    cases: list[tuple[str, tuple[Group, ...], list[ItemSet | None]]] = [
        (f"expand {one.value}", groups_of([one]), [wide]) for one in every
    ]
    both = groups_of([Sharding.EACH, Sharding.ALL])
    cases.append(("expand each, all", both, [wide, wide]))
    cases.append(("expand each, each", groups_of([Sharding.EACH] * 2), [square, square]))
    full = groups_of([Sharding.KEYED] * 2, (0, 1), (Strategy.FULL,))
    cases.append(("join full", full, [wide, wide]))
    samples = [
        timed(f"{name}: 10,000, each", partial(expand, groups, sets), count=20, per=WIDE,
              budget="<= 20 us")
        for name, groups, sets in cases
    ]  # fmt: skip
    merge = timed("merge: 10,000, each", lambda: merged(("o",), outputs), count=20, per=WIDE,
                  budget="<= 1 us")  # fmt: skip
    return [*samples, merge]


FAN = "composition Fan(x) => (y) { F(a = each x) => (y = c); }"
LOOP = "composition Loop(x) => (y) { F(a = all x) => (y = c) repeat 10000 feeding (a = c); }"


def plan_of(text: str) -> CompositionPlan:
    """Compile a text that applies F."""
    spec = FunctionSpec("F", (SetSpec("a"),), (SetSpec("c"),))
    return compile_composition(parse(text).compositions[0], {"F": spec}.__getitem__)


def drive(plan: CompositionPlan, given: ItemSet, answer: Function) -> None:
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


def peak_over_data(plan: CompositionPlan, size_bytes: int, data_bytes: int) -> float:
    """Drive a walk over 10,000 items, from the making of its inputs; give peak over data."""

    def answer(_: ItemSet | None) -> ItemSet:
        return ItemSet("c", (Item("out", 0, bytes(size_bytes)),))

    tracemalloc.start()
    drive(plan, items(WIDE, size_bytes, WIDE), answer)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / data_bytes


def walks() -> list[Sample]:
    """Time walks, each instance, and take their memory."""
    fan, loop = plan_of(FAN), plan_of(LOOP)
    same = ItemSet("c", (Item("out", 0, b"x"),))
    small = items(WIDE, 8, WIDE)
    samples = [
        timed("walk each: 10,000 instances, each", lambda: drive(fan, small, lambda _: same),
              count=10, per=WIDE, budget="<= 5 us"),
        timed("walk repeat: 10,000 iterations, each", lambda: drive(loop, same, lambda _: same),
              count=10, per=WIDE, budget="<= 10 us"),
    ]  # fmt: skip
    for size_bytes in (1024, 16 * 1024):
        ratio = peak_over_data(fan, size_bytes, 2 * WIDE * size_bytes)
        wide = items(WIDE, size_bytes, WIDE)
        timing = timed(f"walk each: 10,000 items of {size_bytes // 1024} KiB",
                       partial(drive, fan, wide, lambda _: same), count=3, per=WIDE,
                       budget=MEMORY_BUDGET)  # fmt: skip
        samples.append(
            msgspec.structs.replace(timing, baseline="its data, peak memory", ratio=ratio)
        )
    return samples


def main() -> None:
    """Run and print."""
    samples = [*texts(), *sharding(), *walks()]
    report("dataflow", "what do compositions cost before anything runs?", samples, keep_name())


if __name__ == "__main__":
    main()
