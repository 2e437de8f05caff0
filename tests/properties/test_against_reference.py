"""The dispatcher and the naive interpreter agree on random compositions, and on all small joins.

In half of the compositions some instances fail, and some applications have attempts or catch
failures. Whether an instance fails depends on its inputs and attempts. Within a nested composition
all errors are of one kind, since which one is seen first depends on the order of finishing.

``DANDELION_EXAMPLES=10000`` asks for more than every run tries, ``DANDELION_KEYS=5`` for chains of
joins over all sets of the keys 0 to 4. A seed names a composition, so a failure can be repeated.
"""

import hashlib
import itertools
import json
import os
import random
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest

from dandelion.data import Item, ItemSet, SetSpec
from dandelion.dataflow.graph import (
    Application,
    AttemptsClause,
    Binding,
    CatchClause,
    Composition,
    CompositionModule,
    Feed,
    Join,
    RepeatClause,
    Return,
    Sharding,
    Strategy,
)
from dandelion.dataflow.sharding import Partitioning, joined_rows
from dandelion.dataflow.validate import FunctionSignature, validate
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
from dandelion.dispatcher import walk as walk_file
from dandelion.dispatcher.frames import InFlight
from dandelion.errors import DandelionError, EngineDied, Exited, Raised, root_of
from dandelion.failures import caught_item
from dandelion.function import FunctionSpec
from tests.reference import Failed, Interpreter, Partitions, Path, Set, TooBig, Triple

KEYS = int(os.environ.get("DANDELION_KEYS", "3"))
EXAMPLES = int(os.environ.get("DANDELION_EXAMPLES", "1600"))
FUNCTIONS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "One": (("a",), ("x",)),
    "Two": (("a", "b"), ("x", "y")),
    "Three": (("a", "b", "c"), ("x",)),
    "Source": ((), ("x",)),
}
MINIMA = {"Two": {"a": 5}, "Three": {"a": 2, "c": 4}}
SPECS = {
    name: FunctionSpec(
        name,
        tuple(SetSpec(s, min_bytes=MINIMA.get(name, {}).get(s, 0)) for s in inputs),
        tuple(map(SetSpec, outputs)),
    )
    for name, (inputs, outputs) in FUNCTIONS.items()
}
ERRORS: dict[str, DandelionError] = {
    "Raised": Raised("F", "no"),
    "Exited": Exited("F", 3),
    "EngineDied": EngineDied("engine", "lost"),
}
FAMILIES = {"FunctionError": frozenset({"Raised", "Exited"})}
KINDS = ((), (), (), ("Raised",), ("FunctionError",), ("Exited", "EngineDied"), ("TimedOut",))
TRANSIENT = frozenset({"EngineDied"})
Callables = dict[str, tuple[tuple[str, ...], tuple[str, ...]]]


def compute(name: str, sets: list[Set], path: Path = ()) -> list[Set]:
    """A pure function that depends on everything it is given, also on the order of items."""
    seed = hashlib.sha256(repr((name, sets)).encode()).digest()
    outputs = []
    for at in range(len(FUNCTIONS[name][1])):
        count = (0, 1, 2, 3, 5)[seed[at] % 5]
        outputs.append(
            [(f"{seed[i + 4]:x}", seed[i + 9] % 5, seed[i : i + seed[i] % 4]) for i in range(count)]
        )
    return outputs


@dataclass(frozen=True)
class Failures:
    """Which instances fail: a part of them, with errors that differ outside of compositions."""

    part: float
    inner: str

    def kind(self, name: str, sets: list[Set], path: Path) -> str | None:
        """Return the kind of error of one attempt of an instance, None if it succeeds."""
        seed = hashlib.sha256(repr((name, sets, path)).encode()).digest()
        if seed[0] >= 256 * self.part:
            return None
        return self.inner if len(path) > 1 else sorted(ERRORS)[seed[1] % len(ERRORS)]

    def run(self, name: str, sets: list[Set], path: Path) -> list[Set]:
        """Run a function as the interpreter does."""
        kind = self.kind(name, sets, path)
        if kind is not None:
            raise Failed(kind)
        return compute(name, sets)


def error_item(
    kind: str, application: str, instance: int, attempts: int, each: Set, keyed: Set
) -> Triple:
    """Make an item of an errors set, from the description in docs/language.md."""
    data = json.dumps(
        {
            "kind": kind,
            "message": str(ERRORS[kind]),
            "application": application,
            "instance": instance,
            "attempts": attempts,
        },
        separators=(",", ":"),
    )
    name = each[0][0] if each else f"{application}.{instance}"
    return name, (each or keyed or [("", 0, b"")])[0][1], data.encode()


@pytest.fixture(autouse=True)
def _messages_without_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which of several instances fails first depends on the order, and so would messages."""

    def made(error: DandelionError, *rest: Any) -> Item:
        return caught_item(root_of(error), *rest)

    monkeypatch.setattr(walk_file, "caught_item", made)


def clauses(source: random.Random, at: int) -> tuple[AttemptsClause | None, CatchClause | None]:
    """Handle failures of an application, perhaps."""
    attempts = catch = None
    if source.random() < 0.5:
        times, backoff_s = source.choice((1, 2, 2, 3)), source.choice((0.0, 0.0, 0.5))
        attempts = AttemptsClause(times, source.choice(KINDS), backoff_s)
    if source.random() < 0.6:
        catch = CatchClause(f"m{at}_errors", source.choice(KINDS))
    return attempts, catch


def application(
    source: random.Random, available: list[str], callables: Callables, at: int, fails: bool
) -> tuple[Application, list[str]]:
    """Apply a function to existing sets; return the names of its results."""
    name = source.choice(sorted(callables))
    inputs, outputs = callables[name]
    join_all = len(inputs) > 1 and source.random() < 0.5
    kind = source.choice((Sharding.KEYED, Sharding.KEYED, Sharding.ANY_KEYED))
    bindings = []
    pool = source.sample(available, len(available)) * 3
    for parameter, favourite in zip(inputs, pool, strict=False):
        if join_all or source.random() < 0.85:
            sharding = kind if join_all else source.choice(list(Sharding))
            bindings.append(Binding(parameter, favourite, sharding, source.random() < 0.5))
    keyed = [b.parameter for b in bindings if b.sharding is kind]
    join = None
    if len(keyed) > 1 and source.random() < 0.8:
        order = source.sample(keyed, source.randint(2, len(keyed)))
        join = Join(tuple(order), tuple(source.choice(list(Strategy)) for _ in order[1:]))
    targets = [f"m{at}_{output}" for output in outputs if source.random() < 0.9]
    returns = tuple(Return(t, t.split("_", 1)[1]) for t in targets)
    targets = list(targets)
    repeat = None
    if bindings and outputs and source.random() < 0.25:
        repeat = loop(source, [b.parameter for b in bindings], outputs)
    attempts, catch = clauses(source, at) if fails else (None, None)
    if catch is not None:
        targets.append(catch.target)
    found = Application(name, tuple(bindings), returns, join, repeat, attempts, catch)
    return found, targets


def loop(source: random.Random, bound: list[str], outputs: tuple[str, ...]) -> RepeatClause:
    """Repeat an application a few times, fed with some of its outputs."""
    fed = source.sample(bound, source.randint(1, len(bound)))
    feeds = tuple(Feed(parameter, source.choice(outputs)) for parameter in fed)
    until = source.choice(outputs) if source.random() < 0.5 else None
    return RepeatClause(source.choice((1, 2, 3, 3, 5)), until, feeds)


def composition(
    source: random.Random, name: str, callables: Callables, fails: bool = False
) -> Composition:
    """Make a valid composition that returns most of its sets."""
    inputs = [f"i{n}" for n in range(source.randint(0, 3))]
    available = list(inputs)
    found = []
    for at in range(source.randint(1, 5)):
        one, targets = application(source, available, callables, at, fails)
        found.append(one)
        available += targets
    source.shuffle(found)
    outputs = available if source.random() < 0.8 else available[:1]
    return Composition(name, tuple(inputs), tuple(outputs), tuple(found))


def items(source: random.Random) -> Set:
    """Make a set with repeated, unsorted keys; often empty."""
    count = source.choice((0, 1, 2, 3, 5))
    return [
        (source.choice("pqrs"), source.randrange(5), source.randbytes(source.choice((0, 1, 2, 6))))
        for _ in range(count)
    ]


def item_set(name: str, triples: Set) -> ItemSet | None:
    return ItemSet(name, tuple(Item(*t) for t in triples)) if triples else None


def triples(found: ItemSet | None) -> Set:
    return [] if found is None else [(i.name, i.key, bytes(i.data)) for i in found]


def walk(
    plan: CompositionPlan,
    inputs: list[ItemSet | None],
    policy: Partitioning,
    source: random.Random,
    failures: Failures,
) -> list[Set] | str:
    """Drive a walk, finishing instances in a random order.

    Returns:
        The outputs, or the kind of error that the walk failed with.
    """
    state = Walk(plan, policy, source.choice((1, 3, 64)), source.choice((0, 0, 1, 4)))
    out = list(state.start(inputs))
    while True:
        while state.has_more and (not out or source.random() < 0.5):
            out = after(out, state.resume())
        instruction = out.pop(source.randrange(len(out)))
        if isinstance(instruction, Complete):
            assert not any(state.expects(one.instance) for one in out if isinstance(one, Run))
            assert not state.has_more or state.has_dropped  # what cancels others was put back
            assert not state.in_flight
            return [triples(s) for s in instruction.outputs]
        if isinstance(instruction, Fail):
            assert not out or state.has_dropped
            return type(root_of(instruction.error)).__name__
        out = after(out, answered(state, instruction, failures, source))


def answered(
    state: Walk, instruction: Instruction, failures: Failures, source: random.Random
) -> list[Instruction]:
    """Carry out an instruction; sometimes a walk gets its next instructions later."""
    if isinstance(instruction, Pause):
        return state.again(instruction.instance)
    assert isinstance(instruction, Run)
    if state.has_dropped and not state.expects(instruction.instance):
        return []  # the instruction that cancels it was put back
    name, inputs = instruction.function.name, [triples(s) for s in instruction.inputs]
    kind = failures.kind(name, inputs, path_of(state, instruction))
    if kind is not None:
        found = state.failed(instruction.instance, ERRORS[kind])
        if state.done or source.random() < 0.7:
            return found
        state.put_back(found)
        return []
    names, results = instruction.function.output_names, compute(name, inputs)
    sets = tuple(item_set(n, r) for n, r in zip(names, results, strict=True))
    return state.finished(instruction.instance, sets)


def after(out: list[Instruction], more: list[Instruction]) -> list[Instruction]:
    """Add instructions, and remove what they cancel."""
    cancelled = {one.instance for one in more if isinstance(one, Cancel)}
    kept = [one for one in more if not isinstance(one, Cancel)]
    return [
        one
        for one in (*out, *kept)
        if not isinstance(one, Run | Pause) or one.instance not in cancelled
    ]


def path_of(state: Walk, run: Run) -> Path:
    """Return the attempts of an instance and of those that it is inside of."""
    found = []
    call: InFlight | None = state._in_flight[run.instance]
    assert call is not None
    assert call.attempt == run.attempt
    while call is not None:
        found.append(call.attempt)
        call = call.frame.parent
    return tuple(reversed(found))


def check(seed: int) -> bool:
    """Compare the two on one composition. False if it makes too many instances to wait for."""
    source = random.Random(seed)
    fails = seed % 2 == 1
    inner = composition(source, "Inner", FUNCTIONS, fails)
    callables = {**FUNCTIONS, "Inner": (inner.inputs, inner.outputs)}
    middle = composition(source, "Middle", callables, fails)
    callables["Middle"] = (middle.inputs, middle.outputs)
    outer = composition(source, "Outer", callables, fails)
    part = source.choice((0.1, 0.3, 0.5)) if fails else 0.0
    failures = Failures(part, source.choice(sorted(ERRORS)))
    known = {n: FunctionSignature(n, i, o) for n, (i, o) in callables.items()}
    for one in (inner, middle, outer):
        assert not validate(CompositionModule((), (one,)), known.get), one
    given = {name: items(source) for name in outer.inputs}
    mode, number = source.choice(("max", "fixed", "auto")), source.randint(1, 7)
    partitions = Partitions(mode, number, MINIMA)
    reference = Interpreter(
        failures.run,
        callables,
        {"Inner": inner, "Middle": middle},
        300,
        partitions,
        error_item,
        FAMILIES,
        TRANSIENT,
    )
    expected = interpreted(reference, outer, given)
    if expected is None:
        return False
    targets: dict[str, FunctionSpec | CompositionPlan] = dict(SPECS)
    for nested in (inner, middle):
        targets[nested.name] = compile_composition(nested, targets.__getitem__)
    plan = compile_composition(outer, targets.__getitem__)
    policy = Partitioning(mode, number, number)
    found = walk(plan, [item_set(n, given[n]) for n in outer.inputs], policy, source, failures)
    if isinstance(expected, set):
        assert found in expected, f"seed {seed}: {outer}"
    else:
        assert found == expected, f"seed {seed}: {outer}"
    SEEN[outcome_of(expected, reference)] += 1
    return True


SEEN: Counter[str] = Counter()
"""How many compositions of each kind were compared, see `outcome_of`."""


def outcome_of(expected: list[Set] | set[str], reference: Interpreter) -> str:
    """Tell the cases apart that a campaign should have many of."""
    if isinstance(expected, set):
        return "failed"
    handled = (reference.caught > 0, reference.retried > 0)
    return {(True, True): "both", (True, False): "caught", (False, True): "retried"}.get(
        handled, "plain"
    )


def interpreted(
    reference: Interpreter, outer: Composition, given: dict[str, Set]
) -> list[Set] | set[str] | None:
    """Return the outputs, or the kinds of errors that it may fail with; None if it is too big."""
    try:
        expected = reference.invoke(outer, given)
    except TooBig:
        return None
    except Failed:
        return set(ERRORS)  # of several failures, any may be the first
    return [expected[name] for name in outer.outputs]


@pytest.mark.parametrize("part", range(8))
def test_dispatcher_and_reference_agree(part: int) -> None:
    SEEN.clear()
    seeds = range(part * EXAMPLES // 8, (part + 1) * EXAMPLES // 8)
    compared = sum(check(seed) for seed in seeds)
    assert compared > len(seeds) * 0.8, "the generator makes too much that is not compared"
    tried_again = SEEN["retried"] + SEEN["both"]
    assert min(SEEN["plain"], SEEN["failed"], SEEN["caught"], tried_again), dict(SEEN)
    print(dict(SEEN))


def key_sets(name: str) -> list[Set]:
    """One set for every subset of the keys; two items of a key where that is even."""
    subsets = itertools.chain.from_iterable(
        itertools.combinations(range(KEYS), n) for n in range(KEYS + 1)
    )
    return [
        [(f"{name}{n}", k, b"") for k in subset for n in range(2 - k % 2)] for subset in subsets
    ]


Keys = tuple[int | None, ...]
Table = list[list[Set]]


def relation(strategies: tuple[Strategy, ...], sets: list[set[int]]) -> set[Keys]:
    """The rows of a chain of joins, by the definition of each join, unordered."""
    if not strategies:
        return {(key,) for key in sets[0]}
    *before, strategy = strategies
    left, right = relation(tuple(before), sets[:-1]), sets[-1]

    def key_of(row: Keys) -> int | None:
        if before and before[-1] is Strategy.CROSS:
            return row[-1]
        return next((key for key in reversed(row) if key is not None), None)

    rows = set()
    for row, key in itertools.product(left | {(None,) * (len(sets) - 1)}, [*right, None]):
        alone_left = key is None and row in left and key_of(row) not in right
        alone_right = key is not None and row not in left
        alone_right = alone_right and key not in {key_of(other) for other in left}
        both = key is not None and row in left and key == key_of(row)
        if strategy is Strategy.CROSS:
            wanted = key is not None and row in left
        elif strategy is Strategy.INNER:
            wanted = both
        elif strategy is Strategy.LEFT:
            wanted = both or alone_left
        elif strategy is Strategy.RIGHT:
            wanted = both or alone_right
        else:
            wanted = both or alone_left or alone_right
        if wanted:
            rows.add((*row, key))
    return rows


def rows_of(strategies: tuple[Strategy, ...], sets: tuple[Set, ...]) -> tuple[Table, Table]:
    """Rows of a chain of joins, from the engine and from the reference."""
    bound = dict(zip("abc"[: len(sets)], sets, strict=True))
    reference = Interpreter(compute, {}, {}).join(list(bound), list(strategies), bound)
    found = joined_rows([item_set(n, s) for n, s in bound.items()], strategies)
    return (
        [[triples(part) for part in row] for row in found],
        [[row.get(name, []) for name in bound] for row in reference],
    )


def agree(strategies: tuple[Strategy, ...], sets: tuple[Set, ...]) -> None:
    found, expected = rows_of(strategies, sets)
    assert found == expected, sets
    keys: list[Keys] = [tuple(part[0][1] if part else None for part in row) for row in found]
    assert len(set(keys)) == len(keys)
    assert set(keys) == relation(strategies, [{i[1] for i in s} for s in sets]), sets


@pytest.mark.parametrize("first", list(Strategy))
@pytest.mark.parametrize("second", list(Strategy))
def test_all_chains_of_three_joins(first: Strategy, second: Strategy) -> None:
    for sets in itertools.product(key_sets("a"), key_sets("b"), key_sets("c")):
        agree((first, second), sets)


@pytest.mark.parametrize("strategy", list(Strategy))
def test_all_pairs_of_joins(strategy: Strategy) -> None:
    for sets in itertools.product(key_sets("a"), key_sets("b")):
        agree((strategy,), sets)
