"""docs/language.md: its tables of instances and partitions and its patterns are correct."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from dandelion.data import Item, ItemSet, SetSpec
from dandelion.dataflow.graph import Application, Composition, Sharding
from dandelion.dataflow.language import parse
from dandelion.dataflow.sharding import Partitioning, groups_of, instances, partition_counts
from dandelion.dispatcher import (
    Complete,
    CompositionPlan,
    Pause,
    Run,
    Walk,
    compile_composition,
)
from dandelion.errors import DandelionError, Raised, RequestFailed
from dandelion.function import FunctionSpec

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "language.md").read_text("utf-8")
POLICY = Partitioning("max")
Sets = list[ItemSet | None]


def rows(table: str) -> list[list[str]]:
    """The cells of a table, by the comment before it."""
    found = re.search(rf"<!-- {table} -->\n.*\n.*\n((?:\|.*\n)+)", PAGE)
    assert found is not None
    lines = found[1].splitlines()
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines]


def policy_of(text: str) -> Partitioning:
    mode, _, rest = text.replace("`, ", ":").partition(":")
    number = int(rest.split()[0]) if rest else 1
    return Partitioning(mode, number, number)


def items(text: str) -> ItemSet | None:
    """Items such as ``a0``: the digit is the key."""
    found = tuple(Item(word, int(word[1:]), b"x") for word in text.split())
    return ItemSet("s", found) if found else None


def shown(item_set: ItemSet | None) -> str:
    return "-" if item_set is None else " ".join(item.name for item in item_set)


def instances_of(application: Application, given: Mapping[str, str]) -> str:
    """The instances of an application of ``F(a, b, c, n, p, q)``, as the page writes them."""
    inputs = ("a", "b", "c", "n", "p", "q")
    function = FunctionSpec("F", tuple(map(SetSpec, inputs)))
    composition = Composition("C", tuple(given), (), (application,))
    walk = Walk(compile_composition(composition, {"F": function}.__getitem__), POLICY)
    bound = [inputs.index(b.parameter) for b in application.bindings]
    out = walk.start([items(text) for text in given.values()])
    runs = [run for run in out if isinstance(run, Run)]
    if not runs:
        return ""
    return " ".join(f"({', '.join(shown(r.inputs[i]) for i in sorted(bound))})" for r in runs)


def application(text: str) -> Application:
    return parse(f"composition C() => () {{ {text}; }}").compositions[0].applications[0]


@pytest.mark.parametrize(("bindings", "expected"), rows("instances"))
def test_instances(bindings: str, expected: str) -> None:
    given = {"a": "a0 b1 c0", "b": "x0 y2", "c": ""}
    found = instances_of(application(f"F({bindings}) => ()"), given)
    assert found == expected.replace("skipped", "")


@pytest.mark.parametrize(("clause", "expected"), rows("joins"))
def test_joins(clause: str, expected: str) -> None:
    given = {"a": "a0 b1 d1", "b": "x1 y2", "c": "z0 w1", "n": ""}
    names = clause.split()[1::2]
    bindings = ", ".join(f"{n} = {'optional ' if n == 'n' else ''}keyed {n}" for n in names)
    assert instances_of(application(f"F({bindings}) => () {clause}"), given) == expected


@pytest.mark.parametrize(("groups", "fixed", "policy", "expected"), rows("partitions"))
def test_partitions(groups: str, fixed: str, policy: str, expected: str) -> None:
    pairs = [(int(n), int(size)) for n, size in re.findall(r"(\d+) \((\d+)\)", groups)]
    units, sizes = [n for n, _ in pairs], [size for _, size in pairs]
    found = partition_counts(units, sizes, policy_of(policy), int(fixed))
    assert ", ".join(map(str, found)) == expected


@pytest.mark.parametrize(("sizes", "minimum", "policy", "expected"), rows("minima"))
def test_minima(sizes: str, minimum: str, policy: str, expected: str) -> None:
    given = ItemSet("s", tuple(Item("i", 0, b"x" * int(size)) for size in sizes.split()))
    groups = groups_of([Sharding.ANY_EACH], minima=[int(minimum)])
    found = [i[0] for i in instances(groups, [given], policy_of(policy))]
    assert " ".join(f"({' '.join(str(i.size_bytes) for i in s or ())})" for s in found) == expected


# --- patterns ---------------------------------------------------------------------------------

Functions = Mapping[str, Callable[..., list[list[str]]]]
"""What a function does: lists of texts by position of its input sets to those of its outputs."""


def invoke(name: str, functions: Functions, **given: list[str]) -> tuple[dict[str, list[str]], int]:
    """Invoke a composition of the page; give its outputs and how many instances ran."""
    texts = re.findall(r"^```dandelion\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (module,) = (m for m in map(parse, texts) if name in {c.name for c in m.compositions})
    plans: dict[str, FunctionSpec | CompositionPlan] = {
        d.name: FunctionSpec(d.name, tuple(map(SetSpec, d.inputs)), tuple(map(SetSpec, d.outputs)))
        for d in module.declarations
    }
    for composition in module.compositions:  # the page defines before it applies
        plans[composition.name] = compile_composition(composition, plans.__getitem__)
    plan = plans[name]
    assert isinstance(plan, CompositionPlan)
    walk, ran = Walk(plan, POLICY), 0
    out = walk.start([set_of(given[spec.name]) for spec in plan.inputs])
    while True:
        instruction = out.pop(0)
        if isinstance(instruction, Complete):
            sets = zip(plan.output_names, instruction.outputs, strict=True)
            return {n: texts_of(s) for n, s in sets}, ran
        if isinstance(instruction, Pause):
            out += walk.again(instruction.instance)
            continue
        assert isinstance(instruction, Run)
        ran += 1
        try:
            found = functions[instruction.function.name](*map(texts_of, instruction.inputs))
        except DandelionError as error:
            out += walk.failed(instruction.instance, error)
        else:
            out += walk.finished(instruction.instance, tuple(map(set_of, found)))


def set_of(texts: list[str]) -> ItemSet | None:
    return ItemSet("s", tuple(Item("i", 0, t.encode()) for t in texts)) if texts else None


def texts_of(item_set: ItemSet | None) -> list[str]:
    return [] if item_set is None else [item.text() for item in item_set]


BRANCHES: Functions = {
    "Judge": lambda image: [[i for i in image if "?" not in i], [i for i in image if "?" in i]],
    "Enhance": lambda image: [[i.replace("?", "!") for i in image]],
    "Describe": lambda sharp, enhanced: [[f"{sharp} {enhanced}"]],
    "Album": lambda sharp, enhanced: [[*sharp, *enhanced]],
}


@pytest.mark.parametrize(
    ("image", "text", "instances"),
    [
        (["cat"], "['cat'] []", 2),
        (["ca?"], "[] ['ca!']", 3),
        (["cat", "do?"], "['cat'] ['do!']", 3),
    ],
)
def test_a_branch_runs_if_its_set_has_items(image: list[str], text: str, instances: int) -> None:
    found, ran = invoke("Caption", BRANCHES, image=image)
    assert (found, ran) == ({"text": [text]}, instances)


def test_a_judge_without_an_opinion_leaves_one_run_without_sets() -> None:
    silent: Functions = {**BRANCHES, "Judge": lambda image: [[], []]}
    assert invoke("Caption", silent, image=["cat"]) == ({"text": ["[] []"]}, 2)
    assert invoke("Caption", silent, image=[]) == ({"text": ["[] []"]}, 1)


def test_items_are_sorted_into_branches() -> None:
    found, ran = invoke("Sorted", BRANCHES, images=["cat", "do?", "elk", "fo?"])
    assert found == {"album": ["cat", "elk", "do!", "fo!"]}
    assert ran == 4 + 2 + 1


def step(frontier: list[str], seen: list[str], edges: list[str]) -> list[list[str]]:
    found = sorted({edge[1] for edge in edges if edge[0] in frontier} - set(seen))
    return [found, sorted({*seen, *found})]


def test_a_search_ends_when_nothing_is_open() -> None:
    edges = ["ab", "bc", "ca", "cd", "de", "xy"]
    found, ran = invoke("Reach", {"Step": step}, start=["a"], edges=edges)
    assert found == {"reached": ["a", "b", "c", "d", "e"]}
    assert ran == 5  # the last one finds nothing
    assert invoke("Reach", {"Step": step}, start=[], edges=edges) == ({"reached": []}, 0)


def move(model: list[str], gradients: list[str]) -> list[list[str]]:
    change = sum(map(int, gradients))
    return [[str(int(model[0]) + change)], [str(change)] if change else []]


def test_rounds_end_when_nothing_changes() -> None:
    train: Functions = {
        "Gradient": lambda model, batch: [[str((int(batch[0]) > int(model[0])) * 1)]],
        "Move": move,
    }
    found, ran = invoke("Train", train, model=["0"], batches=["3", "5"])
    model, count = 0, 0
    while True:
        count += 3
        change = sum(b > model for b in (3, 5))
        model += change
        if not change:
            break
    assert (found, ran) == ({"trained": [str(model)]}, count)


def test_every_item_has_a_loop_of_its_own() -> None:
    def halve(number: list[str]) -> list[list[str]]:
        half = int(number[0]) // 2
        return [[str(half)], ["more"] if half > 1 else []]

    found, ran = invoke("ShrinkAll", {"Halve": halve}, numbers=["1", "2", "9", "64"])
    assert found == {"small": ["0", "1", "1", "1"]}
    assert ran == 1 + 1 + 3 + 6


def fetch(requests: list[str]) -> list[list[str]]:
    if "down" in requests[0]:
        raise RequestFailed("HTTP", requests[0], "no connection")
    return [["200"], [f"page of {requests[0]}"]]


PAGES: Functions = {
    "HTTP": fetch,
    "Count": lambda page: [[str(len(page[0].split()))]],
    "Report": lambda counts, failures: [[f"{counts} {len(failures)}"]],
}


def test_pages_that_cannot_be_fetched_are_tried_three_times_and_reported() -> None:
    found, ran = invoke("Pages", PAGES, requests=["a", "down", "c"])
    assert found["report"] == ["['3', '3'] 1"]
    (failure,) = map(json.loads, found["failures"])
    expected = {"kind": "RequestFailed", "application": "HTTP", "instance": 1, "attempts": 3}
    assert failure == {**expected, "message": "function 'HTTP', item 'down': no connection"}
    assert ran == 2 + 3 + 2 + 1
    assert invoke("Pages", PAGES, requests=["a"])[0] == {"report": ["['3'] 0"], "failures": []}


def test_functions_of_a_composition_succeed_or_fail_together() -> None:
    def weigh(box: list[str]) -> list[list[str]]:
        if "lead" in box[0]:
            raise Raised("Weigh", "too heavy")
        return [[f"{len(box[0])} EUR"]]

    orders: Functions = {
        "Pack": lambda order: [[f"box of {order[0]}"]],
        "Weigh": weigh,
        "Apologize": lambda failures: [[json.loads(f)["message"] for f in failures]],
    }
    found, _ = invoke("Orders", orders, orders=["tea", "lead"])
    assert found["prices"] == ["10 EUR"]
    (letter,) = found["letters"]
    assert letter.startswith("Prepare.Weigh (instance 0): function 'Weigh' raised too heavy")
    assert invoke("Orders", orders, orders=["tea"])[0] == {"prices": ["10 EUR"], "letters": []}
