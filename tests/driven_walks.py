"""Walks that are driven by hand."""

from collections.abc import Callable

from dandelion.data import ItemSet, SetSpec
from dandelion.dataflow.graph import (
    Application,
    Binding,
    Composition,
    Return,
    Sharding,
)
from dandelion.dataflow.sharding import Partitioning
from dandelion.dispatcher import (
    Complete,
    CompositionPlan,
    Instruction,
    Run,
    Walk,
    compile_composition,
)
from dandelion.function import FunctionSpec

POLICY = Partitioning("auto", 1, 2)
Outputs = tuple[ItemSet | None, ...]


def spec(name: str, inputs: str, outputs: str) -> FunctionSpec:
    return FunctionSpec(
        name,
        tuple(SetSpec(s) for s in inputs.split()),
        tuple(SetSpec(s) for s in outputs.split()),
    )


F = spec("F", "a", "b")
PAIR = spec("Pair", "x y", "z")


def apply(
    function: str, returns: str, optional: tuple[str, ...] = (), **bindings: tuple[Sharding, str]
) -> Application:
    output, target = returns.split("=")
    return Application(
        function,
        tuple(Binding(p, s, how, p in optional) for p, (how, s) in bindings.items()),
        (Return(target, output),),
    )


def plan(composition: Composition, *targets: FunctionSpec | CompositionPlan) -> CompositionPlan:
    named = {t.name: t for t in targets}
    return compile_composition(composition, named.__getitem__)


def drive(
    walk: Walk,
    inputs: list[ItemSet | None],
    answer: Callable[[Run], Outputs],
    pick: Callable[[int], int] = lambda n: 0,
) -> Outputs:
    """Carry out instructions in an order that `pick` chooses; return the result."""
    out = list(walk.start(inputs))
    while True:
        instruction = out.pop(pick(len(out)))
        if isinstance(instruction, Complete):
            assert not out
            assert walk.in_flight == 0
            return instruction.outputs
        assert isinstance(instruction, Run)
        out += walk.finished(instruction.instance, answer(instruction))


def passed_on(run: Run) -> Outputs:
    first = run.inputs[0]
    return tuple(
        None if first is None else ItemSet(o.name, first.items) for o in run.function.outputs
    )


def chain(length: int) -> Composition:
    return Composition(
        "Chain",
        ("s0",),
        (f"s{length}",),
        tuple(apply("F", f"b=s{i + 1}", a=(Sharding.ALL, f"s{i}")) for i in range(length)),
    )


def start(walk: Walk, *inputs: ItemSet | None) -> tuple[list[Instruction], Run]:
    out = walk.start(inputs)
    run = out[0]
    assert isinstance(run, Run)
    return out, run
