"""Random compositions give the same on a cluster of three as the naive interpreter says.

The compositions and the interpreter are those of ``tests/properties/test_against_reference.py``.
One node has no engine for the functions, so all of its calls run elsewhere.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from dandelion.catalog import CompositionRecord
from dandelion.data import Item, ItemSet, SetSpec
from dandelion.dataflow.graph import CompositionModule, Declaration
from dandelion.dataflow.printer import print_module
from dandelion.documents import CodeDocument, FunctionDocument
from dandelion.driver import Call, Engine, InstanceSets
from dandelion.node import Node
from dandelion.testing import wait_until
from tests.cluster.clusters import nodes, scripted
from tests.properties import test_against_reference as against
from tests.reference import Interpreter, Partitions

MODES = ("max", "fixed:3")


def run(engine: Engine, call: Call) -> InstanceSets:
    """Do as the interpreter's functions."""
    given = [against.triples(one) for one in call.inputs]
    spec = call.function.spec
    found = against.compute(spec.name, given)
    return tuple(
        ItemSet(s.name, tuple(Item(*t) for t in made)) if made else None
        for s, made in zip(spec.outputs, found, strict=True)
    )


@pytest.fixture(scope="module", params=MODES)
def cluster(request: pytest.FixtureRequest) -> Iterator[tuple[list[Node], str]]:
    functions = [
        FunctionDocument(
            name,
            tuple(SetSpec(s, min_bytes=against.MINIMA.get(name, {}).get(s, 0)) for s in inputs),
            outputs,
            code=(CodeDocument("work", "code"),),
        )
        for name, (inputs, outputs) in against.FUNCTIONS.items()
    ]
    drivers = [[], [scripted(run)], [scripted(run)]]
    with nodes(drivers, partitioning=request.param) as made:
        made[1].register(*functions)
        yield made, request.param


def test_the_same_as_the_interpreter(cluster: tuple[list[Node], str]) -> None:
    made, mode = cluster
    compared = sum(_compare(made, mode, seed) for seed in range(0, 50, 2))
    assert compared > 15
    info = made[0].cluster()
    assert info is not None
    assert info.sent_calls > 50


def _compare(made: list[Node], mode: str, seed: int) -> bool:
    source = random.Random(seed)
    callables = dict(against.FUNCTIONS)
    inner = against.composition(source, "Inner", callables)
    callables["Inner"] = (inner.inputs, inner.outputs)
    outer = against.composition(source, "Outer", callables)
    given = {name: against.items(source) for name in outer.inputs}
    word, _, number = mode.partition(":")
    partitions = Partitions(word, int(number or 1), against.MINIMA)
    reference = Interpreter(against.compute, callables, {"Inner": inner}, 200, partitions)
    expected = against.interpreted(reference, outer, given)
    if not isinstance(expected, list):
        return False
    declared = tuple(Declaration(n, i, o) for n, (i, o) in against.FUNCTIONS.items())
    owner = made[seed % 3 if seed % 3 else 1]
    owner.register(print_module(CompositionModule(declared, (inner, outer))))
    versions = owner.versions(CompositionRecord, "Outer")
    for node in made:
        wait_until(lambda node=node: node.versions(CompositionRecord, "Outer") == versions)  # type: ignore[misc]
        sets = {name: against.item_set(name, triples) for name, triples in given.items()}
        found = node.invoke_sets("Outer", sets).sets
        got = [against.triples(found[name]) for name in outer.outputs]
        assert got == expected, f"seed {seed}: {outer}"
    return True
