"""The dispatcher and the naive interpreter agree on random compositions.

``DANDELION_EXAMPLES=10000`` asks for more than every run tries. A seed
names a composition, so a failure can be repeated.
"""

import hashlib
import os
import random

import pytest

from dandelion.data import Item, ItemSet, SetSpec
from dandelion.dataflow.graph import (
    Application,
    Binding,
    Composition,
    Join,
    Module,
    Return,
    Sharding,
    Strategy,
)
from dandelion.dataflow.sharding import Partitioning
from dandelion.dataflow.validate import Signature, validate
from dandelion.dispatcher import Complete, CompositionPlan, Run, Walk, compile_composition
from dandelion.function import FunctionSpec
from tests.reference import Interpreter, Set, TooBig

EXAMPLES = int(os.environ.get("DANDELION_EXAMPLES", "1600"))
FUNCTIONS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "One": (("a",), ("x",)),
    "Two": (("a", "b"), ("x", "y")),
    "Three": (("a", "b", "c"), ("x",)),
    "Source": ((), ("x",)),
}
SPECS = {
    name: FunctionSpec(name, tuple(map(SetSpec, i)), tuple(map(SetSpec, o)))
    for name, (i, o) in FUNCTIONS.items()
}
Callables = dict[str, tuple[tuple[str, ...], tuple[str, ...]]]
EXACT = (Sharding.ALL, Sharding.EACH, Sharding.KEYED)


def compute(name: str, sets: list[Set]) -> list[Set]:
    """A pure function that depends on everything it is given, also on the order of items."""
    seed = hashlib.sha256(repr((name, sets)).encode()).digest()
    outputs = []
    for at in range(len(FUNCTIONS[name][1])):
        count = (0, 1, 2, 3, 5)[seed[at] % 5]
        outputs.append(
            [(f"{seed[i + 4]:x}", seed[i + 9] % 5, seed[i : i + 3]) for i in range(count)]
        )
    return outputs


def application(
    source: random.Random, available: list[str], callables: Callables, at: int
) -> tuple[Application, list[str]]:
    """Apply something to sets that are there; give the names of what it makes."""
    name = source.choice(sorted(callables))
    inputs, outputs = callables[name]
    join_all = len(inputs) > 1 and source.random() < 0.5
    bindings = []
    pool = source.sample(available, len(available)) * 3
    for parameter, favourite in zip(inputs, pool, strict=False):
        if join_all or source.random() < 0.85:
            sharding = Sharding.KEYED if join_all else source.choice(EXACT)
            bindings.append(Binding(parameter, favourite, sharding, source.random() < 0.5))
    keyed = [b.parameter for b in bindings if b.sharding is Sharding.KEYED]
    join = None
    if len(keyed) > 1 and source.random() < 0.8:
        order = source.sample(keyed, source.randint(2, len(keyed)))
        join = Join(tuple(order), tuple(source.choice(list(Strategy)) for _ in order[1:]))
    targets = [f"m{at}_{output}" for output in outputs if source.random() < 0.9]
    returns = tuple(Return(t, t.split("_", 1)[1]) for t in targets)
    return Application(name, tuple(bindings), returns, join), targets


def composition(source: random.Random, name: str, callables: Callables) -> Composition:
    """Make a valid composition that returns most of what happens in it."""
    inputs = [f"i{n}" for n in range(source.randint(0, 3))]
    available = list(inputs)
    found = []
    for at in range(source.randint(1, 5)):
        one, targets = application(source, available, callables, at)
        found.append(one)
        available += targets
    source.shuffle(found)
    outputs = available if source.random() < 0.8 else available[:1]
    return Composition(name, tuple(inputs), tuple(outputs), tuple(found))


def items(source: random.Random) -> Set:
    """Make a set with repeated, unsorted keys; often empty."""
    count = source.choice((0, 1, 2, 3, 5))
    return [(source.choice("pqrs"), source.randrange(5), source.randbytes(2)) for _ in range(count)]


def item_set(name: str, triples: Set) -> ItemSet | None:
    return ItemSet(name, tuple(Item(*t) for t in triples)) if triples else None


def triples(found: ItemSet | None) -> Set:
    return [] if found is None else [(i.name, i.key, bytes(i.data)) for i in found]


def walk(plan: CompositionPlan, inputs: list[ItemSet | None], source: random.Random) -> list[Set]:
    """Drive a walk, finishing instances in a random order."""
    state = Walk(plan, Partitioning("auto", 1, 2), window=source.choice((1, 3, 64)))
    out = list(state.start(inputs))
    while True:
        instruction = out.pop(source.randrange(len(out)))
        if isinstance(instruction, Complete):
            assert not out
            return [triples(s) for s in instruction.outputs]
        assert isinstance(instruction, Run)
        results = compute(instruction.function.name, [triples(s) for s in instruction.inputs])
        names = instruction.function.output_names
        sets = tuple(item_set(n, r) for n, r in zip(names, results, strict=True))
        out += state.finished(instruction.instance, sets)


def check(seed: int) -> bool:
    """Compare the two on one composition. False if it makes too many instances to wait for."""
    source = random.Random(seed)
    inner = composition(source, "Inner", FUNCTIONS)
    callables = {**FUNCTIONS, "Inner": (inner.inputs, inner.outputs)}
    outer = composition(source, "Outer", callables)
    known = {n: Signature(n, i, o) for n, (i, o) in callables.items()}
    for one in (inner, outer):
        assert not validate(Module((), (one,)), known.get), one
    given = {name: items(source) for name in outer.inputs}
    reference = Interpreter(compute, callables, {"Inner": inner}, budget=300)
    try:
        expected = reference.invoke(outer, given)
    except TooBig:
        return False
    targets = {**SPECS, "Inner": compile_composition(inner, SPECS.__getitem__)}
    plan = compile_composition(outer, targets.__getitem__)
    found = walk(plan, [item_set(n, given[n]) for n in outer.inputs], source)
    assert found == [expected[name] for name in outer.outputs], f"seed {seed}: {outer}"
    return True


@pytest.mark.parametrize("part", range(8))
def test_dispatcher_and_reference_agree(part: int) -> None:
    compared = sum(check(seed) for seed in range(part, EXAMPLES, 8))
    assert compared > EXAMPLES / 8 * 0.8, "the generator makes too much that is not compared"
