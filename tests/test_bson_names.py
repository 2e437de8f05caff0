"""Names of the original: functions, sets, declarations, and the names of sets in replies."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dandelion.catalog import CompositionRecord
from dandelion.data import SetSpec
from dandelion.dataflow.language import parse
from dandelion.errors import InvalidInput, Unknown
from dandelion.frontend.bson.functions import function_document
from dandelion.frontend.bson.names import identifier_of, set_names, with_registered_names
from dandelion.frontend.bson.producers import Label, labels_of
from dandelion.frontend.bson.requests import DeclaredInput, FunctionRequest
from dandelion.function import CodeObject, FunctionSpec, StaticItem, digest_of

IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")


def function(
    name: str, inputs: str, outputs: str, *, labels: list[str] | None = None, kind: str = "compute"
) -> FunctionSpec:
    options = {} if labels is None else {"output_names": json.dumps(labels)}
    code = CodeObject("http" if kind == "io" else "elf", options=options)
    sets = (tuple(map(SetSpec, names.split())) for names in (inputs, outputs))
    return FunctionSpec(name, *sets, code=(code,), kind=kind)


KNOWN: dict[str, FunctionSpec | CompositionRecord] = {
    f.name: f
    for f in (
        function("f", "a b", "c d"),
        function("unnamed", "input_0", "output_0", labels=[""]),
        function("HTTP", "requests", "headers bodies", kind="io"),
        function("HTTP_RESPONSE", "request", "response body", kind="io"),
        FunctionSpec(
            "fixed",
            (SetSpec("x"), SetSpec("w")),
            (SetSpec("y"),),
            {"w": (StaticItem("i", digest_of(b"")),)},
            (CodeObject("elf"),),
        ),
    )
}


def find(name: str) -> FunctionSpec | CompositionRecord:
    if name not in KNOWN:
        raise Unknown("function", name)
    return KNOWN[name]


def composition(text: str, others: dict[str, CompositionRecord] | None = None) -> CompositionRecord:
    made = parse(text).compositions[0]
    uses = tuple(dict.fromkeys(a.function for a in made.applications))
    return CompositionRecord(made.name, text, made.inputs, made.outputs, uses)


@given(st.lists(st.text(max_size=20), unique=True, min_size=2, max_size=2))
def test_names_become_different_identifiers(names: list[str]) -> None:
    made = []
    for name in names:
        try:
            made.append(identifier_of(name))
        except InvalidInput:
            assert not name or len(name) > 10  # ten characters always fit
            return
    assert made[0] != made[1]
    assert all(IDENTIFIER.fullmatch(one) for one in made)


def test_identifiers_stand_for_themselves() -> None:
    assert identifier_of("chain_scaling") == "chain_scaling"
    assert identifier_of("chain-scaling") == "renamed_chain_2d_scaling"
    assert identifier_of("renamed_chain_2d_scaling") != identifier_of("chain-scaling")
    for bad in ("", "a" * 129):
        with pytest.raises(InvalidInput):
            identifier_of(bad)


@given(st.lists(st.sampled_from(["", "a", "a-b", "input_0", "input_0_", "input_1", "é"])))
def test_sets_get_different_names(given_names: list[str]) -> None:
    made = set_names(given_names, "input")
    assert len(set(made)) == len(given_names)
    assert all(IDENTIFIER.fullmatch(one) for one in made)
    for name, one in zip(given_names, made, strict=True):
        if given_names.count(name) == 1 and IDENTIFIER.fullmatch(name):
            assert one == name


def rewritten(text: str) -> str:
    return re.sub(r"\s+", " ", with_registered_names(text, find)).strip()


def test_declared_names_are_replaced_by_position() -> None:
    text = rewritten(
        "function f(left, right) => (one, two); composition c(x, y) => (z, u) {"
        " f(right = keyed y, left = keyed x) => (z = two, u = one) by left inner right; }"
    )
    assert "function f(a, b) => (c, d);" in text
    assert "b = keyed y, a = keyed x" in text
    assert "(z = d, u = c) by a inner b" in text


@pytest.mark.parametrize(
    "text",
    [
        "function f(a, b) => (c, d); composition c(x) => (y) { f(a = all x) => (y = c); }",
        "function f(a) => (c); composition c(x) => (y) { f(a = all x) => (y = c); }",
        "function none(q) => (r); composition c(x) => (y) { none(q = all x) => (y = r); }",
        "function f(q, q) => (c, d); composition c(x) => (y) { f(q = all x) => (y = c); }",
    ],
    ids=["registered names", "another number", "unknown", "twice"],
)
def test_other_texts_are_left_to_the_usual_check(text: str) -> None:
    assert with_registered_names(text, find) == text


def test_http_of_older_versions_is_another_function() -> None:
    text = rewritten(
        "function HTTP (request) => (response, body); composition c(x) => (y) {"
        " HTTP(request = each x) => (y = response); }"
    )
    assert "function HTTP_RESPONSE(request) => (response, body);" in text
    assert "HTTP_RESPONSE(request = each x) => (y = response)" in text
    text = rewritten(
        "function HTTP (r) => (h, b); composition c(x) => (y) { HTTP(r = each x) => (y = b); }"
    )
    assert "HTTP(requests = each x) => (y = bodies)" in text


def test_bound_sets_that_are_fixed_are_dropped() -> None:
    text = rewritten(
        "function fixed(p, q) => (r); composition c(x, v) => (y) {"
        " fixed(p = each x, q = all v) => (y = r); }"
    )
    assert "fixed(x = each x) => (y = y)" in text
    kept = rewritten(
        "function fixed(p, q) => (r); composition c(x, v) => (y) {"
        " fixed(p = each x, q = each v) => (y = r); }"
    )
    assert "w = each v" in kept  # so the usual check reports it


INNER = composition(
    "function f(a, b) => (c, d); composition inner(p, q) => (r, p) { f(a = all q) => (r = d); }"
)
CASES: list[tuple[str, tuple[Label, ...]]] = [
    ("composition t(x, y) => (y, x) {}", (1, 0)),
    ("composition t(x) => (y) { f(a = all x) => (y = d); }", ("d",)),
    ("composition t(x) => (y) { f(a = all x) => (m = c); f(a = all m) => (y = c); }", ("c",)),
    ("composition t(x) => (y) { unnamed(input_0 = all x) => (y = output_0); }", ("",)),
    ("composition t(w, x) => (h, b) { HTTP(requests = all x) => (h = headers, b = bodies); }",
     (1, 1)),
    ("composition t(x) => (b) { f(a = all x) => (m = d); HTTP(requests = all m) => (b = bodies); }",
     ("d",)),
    ("composition t(x) => (y) { HTTP() => (y = bodies); }", ("",)),
    ("composition t(x, y) => (u, v) { inner(p = all y, q = all x) => (u = r, v = p); }", ("d", 1)),
    ("composition t(x) => (u) { inner(q = all x) => (u = p); }", ("",)),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), CASES)
def test_sets_have_the_names_of_their_producers(text: str, expected: tuple[Label, ...]) -> None:
    def finding(name: str) -> FunctionSpec | CompositionRecord:
        return INNER if name == "inner" else find(name)

    lookup: Callable[[str], FunctionSpec | CompositionRecord] = finding
    assert labels_of(composition(text), lookup) == expected


def test_a_function_keeps_its_own_names_in_options() -> None:
    request = FunctionRequest(
        "my-f", 3 << 20, "Kvm", "", (DeclaredInput(""), DeclaredInput("w", ("i",))),
        ("", "out"), (7,), (b"elf", b"item"),
    )  # fmt: skip
    made = function_document(request)
    assert made.name == "renamed_my_2d_f"
    assert [(s.name, s.min_bytes) for s in made.inputs if isinstance(s, SetSpec)] == [
        ("input_0", 7), ("w", 0)
    ]  # fmt: skip
    assert made.outputs == ("output_0", "out")
    options = made.code[0].options
    assert json.loads(options["input_names"]) == ["", "w"]
    assert json.loads(options["output_names"]) == ["", "out"]
    assert options["context_bytes"] == str(3 << 20)
    assert list(made.static) == ["w"]


@pytest.mark.parametrize("engine_type", ["Cheri", "process", ""])
def test_other_engine_types_are_refused(engine_type: str) -> None:
    request = FunctionRequest("f", 1, engine_type, "", (), (), (), (b"",))
    with pytest.raises(InvalidInput, match="engine_type"):
        function_document(request)
