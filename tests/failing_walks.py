"""Walks of compositions that handle failures, driven by hand."""

import random
from collections.abc import Callable

import msgspec

from dandelion.data import Item, ItemSet, SetSpec
from dandelion.dataflow.language import parse
from dandelion.dataflow.sharding import Partitioning
from dandelion.dispatcher import (
    Cancel,
    Complete,
    CompositionPlan,
    Fail,
    Instruction,
    Pause,
    Run,
    Walk,
    compile_composition,
)
from dandelion.errors import (
    DandelionError,
    EngineDied,
    Raised,
)
from dandelion.failures import CaughtFailure
from dandelion.function import FunctionSpec

POLICY = Partitioning("auto", 1, 2)
RAISED = Raised("F", "ValueError: no")
DIED = EngineDied("e", "gone")
Outputs = tuple[ItemSet | None, ...]
Answer = Callable[[Run], Outputs | DandelionError]


def spec(name: str, inputs: str, outputs: str, kind: str = "compute") -> FunctionSpec:
    sets = [tuple(SetSpec(s) for s in names.split()) for names in (inputs, outputs)]
    return FunctionSpec(name, *sets, kind=kind)


FUNCTIONS = {
    "F": spec("F", "a", "b"),
    "G": spec("G", "a", "b"),
    "Step": spec("Step", "x y", "out open"),
    "Net": spec("Net", "a", "b", "io"),
    "Join": spec("Join", "a b", "c"),
}


def plan(text: str) -> CompositionPlan:
    """Compile the last composition of a text."""
    targets: dict[str, FunctionSpec | CompositionPlan] = dict(FUNCTIONS)
    for composition in parse(text).compositions:
        targets[composition.name] = made = compile_composition(composition, targets.__getitem__)
    return made


def passed_on(run: Run) -> Outputs:
    first = run.inputs[0]
    return tuple(
        None if first is None else ItemSet(o.name, first.items) for o in run.function.outputs
    )


def failing(*names: str, error: DandelionError = RAISED) -> Answer:
    """Fail for items of these names."""

    def answer(run: Run) -> Outputs | DandelionError:
        items = [i.name for s in run.inputs if s is not None for i in s]
        return error if set(items) & set(names) else passed_on(run)

    return answer


def drive(
    text: str, answer: Answer, *inputs: ItemSet | None, seed: int = 0, window: int = 64
) -> Outputs | DandelionError:
    """Carry out the instructions of a composition in a random order."""
    walk, source = Walk(plan(text), POLICY, window), random.Random(seed)
    out: list[Instruction] = walk.start(inputs)
    while True:
        instruction = out.pop(source.randrange(len(out)))
        if isinstance(instruction, Complete | Fail):
            assert not [one for one in out if not isinstance(one, Cancel)]
            assert walk.held() == (0, 0)
            done = isinstance(instruction, Complete)
            return instruction.outputs if done else instruction.error
        out += step(walk, instruction, answer)
        cancelled = [one.instance for one in out if isinstance(one, Cancel)]
        out = [o for o in out if not isinstance(o, Cancel) and number_of(o) not in cancelled]


def step(walk: Walk, instruction: Instruction, answer: Answer) -> list[Instruction]:
    if isinstance(instruction, Pause):
        return walk.again(instruction.instance)
    assert isinstance(instruction, Run)
    found = answer(instruction)
    if isinstance(found, DandelionError):
        return walk.failed(instruction.instance, found)
    return walk.finished(instruction.instance, found)


def number_of(instruction: Instruction) -> int | None:
    return instruction.instance if isinstance(instruction, Run | Pause) else None


def items(count: int, name: str = "s") -> ItemSet:
    return ItemSet(name, tuple(Item(f"i{n}", n % 3, b"%d" % n) for n in range(count)))


def outputs_of(found: Outputs | DandelionError) -> Outputs:
    assert isinstance(found, tuple), found
    return found


def read(found: ItemSet | None) -> list[CaughtFailure]:
    return [] if found is None else [msgspec.json.decode(i.data, type=CaughtFailure) for i in found]
