"""What a registration would change, and what of that callers would notice."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dandelion.data import SetSpec
from dandelion.documents import CodeDocument, FunctionDocument, RegistrationDocument
from dandelion.errors import Conflict
from dandelion.node import Node, Settings

CODE = (CodeDocument("null"),)


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with Node(Settings(backends=("null",))) as node:
        yield node


def document(
    inputs: tuple[SetSpec, ...], outputs: tuple[SetSpec, ...], name: str = "F"
) -> RegistrationDocument:
    return RegistrationDocument((FunctionDocument(name, inputs, outputs, code=CODE),))


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (SetSpec("x", form="text"), SetSpec("x", form="text"), ""),
        (SetSpec("x", form="text"), SetSpec("x", form="json"), "was text, and becomes JSON"),
        (SetSpec("x", form="json"), SetSpec("x"), "was JSON, and becomes bytes"),
        (
            SetSpec("x", form="json"),
            SetSpec("x", form="json[]"),
            "was JSON, and becomes JSON, several",
        ),
        (
            SetSpec("x", form="text"),
            SetSpec("x", "float32", (2, -1)),
            "was text, and becomes float32[2, ?]",
        ),
    ],
)
@pytest.mark.parametrize("role", ["input", "output"])
def test_another_type_breaks_callers(
    node: Node, role: str, before: SetSpec, after: SetSpec, told: str
) -> None:
    def of(spec: SetSpec) -> RegistrationDocument:
        return document((spec,), ()) if role == "input" else document((), (spec,))

    node.register(of(before))
    (change,) = node.compare(of(after))
    assert change.breaking == ((f"{role} 'x' {told}",) if told else ())


def test_only_required_inputs_break_callers(node: Node) -> None:
    optional, required = SetSpec("x", optional=True), SetSpec("x")
    node.register(document((), ()))
    for first, second, told in (
        ((), (optional,), ()),
        ((), (required,), ("input 'x' is added",)),
        ((required,), (optional,), ()),
        ((optional,), (required,), ("input 'x' was optional, and becomes required",)),
        ((optional,), (), ("input 'x' is removed",)),
    ):
        node.register(document(first, ()))
        (change,) = node.compare(document(second, ()))
        assert change.breaking == told, (first, second)


def test_what_would_be_refused_is_no_change(node: Node) -> None:
    node.register("composition Named(x) => (x) {}")
    for ask in (node.compare, node.register):
        with pytest.raises(Conflict, match=r"a composition has this name; .*: dandelion rm Named"):
            ask(document((), (), "Named"))
