"""The dispatcher and the naive interpreter agree on random compositions.

``DANDELION_EXAMPLES=10000`` asks for more than the few hundred that every run tries.
"""

import hashlib
import os
import random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

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
from tests.reference import Interpreter, Set

EXAMPLES = int(os.environ.get("DANDELION_EXAMPLES", "250"))
FUNCTIONS = {
    "One": (("a",), ("x",)),
    "Two": (("a", "b"), ("x", "y")),
    "Three": (("a", "b", "c"), ("x",)),
    "Source": ((), ("x",)),
}
SPECS = {
    name: FunctionSpec(name, tuple(map(SetSpec, i)), tuple(map(SetSpec, o)))
    for name, (i, o) in FUNCTIONS.items()
}
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


@st.composite
def applications(
    draw: st.DrawFn,
    available: list[str],
    callables: dict[str, tuple[tuple[str, ...], ...]],
    at: int,
) -> tuple[Application, list[str]]:
    name = draw(st.sampled_from(sorted(callables, reverse=True)))
    inputs, outputs = callables[name]
    bindings = []
    join_all = len(inputs) > 1 and draw(st.booleans())
    favourites = draw(st.permutations(available[-4:])) * 3
    for parameter, favourite in zip(inputs, [*favourites, None, None, None], strict=False):
        if available and (join_all or draw(st.integers(0, 7))):
            source = favourite or draw(st.sampled_from(available))
            sharding = Sharding.KEYED if join_all else draw(st.sampled_from(EXACT))
            bindings.append(Binding(parameter, source, sharding, draw(st.booleans())))
    keyed = [b.parameter for b in bindings if b.sharding is Sharding.KEYED]
    join = None
    if len(keyed) > 1 and (join_all or draw(st.booleans())):
        order = draw(st.permutations(keyed))[: draw(st.integers(2, len(keyed)))]
        strategies = [draw(st.sampled_from(Strategy)) for _ in order[1:]]
        join = Join(tuple(order), tuple(strategies))
    targets = [f"m{at}_{output}" for output in outputs if draw(st.integers(0, 5))]
    returns = tuple(Return(t, t.split("_", 1)[1]) for t in targets)
    return Application(name, tuple(bindings), returns, join), targets


@st.composite
def compositions(
    draw: st.DrawFn, name: str, callables: dict[str, tuple[tuple[str, ...], ...]]
) -> Composition:
    inputs = [f"i{n}" for n in range(draw(st.sampled_from((2, 3, 1, 0))))]
    available = list(inputs)
    found = []
    for at in range(draw(st.integers(1, 5))):
        application, targets = draw(applications(available, callables, at))
        found.append(application)
        available += targets
    outputs = (
        draw(st.lists(st.sampled_from(available), unique=True, max_size=3)) if available else []
    )
    shuffled = draw(st.permutations(found))
    return Composition(name, tuple(inputs), tuple(outputs), tuple(shuffled))


items = st.lists(
    st.tuples(st.sampled_from("pqrs"), st.integers(0, 4), st.binary(max_size=2)), max_size=5
)


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


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.data())
def test_dispatcher_and_reference_agree(data: st.DataObject) -> None:
    inner = data.draw(compositions("Inner", FUNCTIONS))
    callables = {**FUNCTIONS, "Inner": (inner.inputs, inner.outputs)}
    outer = data.draw(compositions("Outer", callables))
    for composition in (inner, outer):
        known = {n: Signature(n, i, o) for n, (i, o) in callables.items()}
        assert not validate(Module((), (composition,)), known.get), composition
    given_sets = {name: data.draw(items) for name in outer.inputs}
    expected = Interpreter(compute, callables, {"Inner": inner}).invoke(outer, given_sets)

    compiled_inner = compile_composition(inner, SPECS.__getitem__)
    targets = {**SPECS, "Inner": compiled_inner}
    plan = compile_composition(outer, targets.__getitem__)
    source = random.Random(data.draw(st.integers(0, 2**32)))
    found = walk(plan, [item_set(n, given_sets[n]) for n in outer.inputs], source)
    assert found == [expected[name] for name in outer.outputs]
