"""Names of sets in descriptions of compositions."""

from typing import Any

from dandelion.dataflow.dsl import (
    SetHandle,
    composition,
    each,
    http,
)
from dandelion.dataflow.language import parse
from dandelion.dataflow.validate import check_module
from tests.log_composition import access, merge, render_logs


def test_names_never_meet() -> None:
    @composition
    def f(access_request: SetHandle) -> dict[str, Any]:
        first = access(token=access_request)
        second = access(token=first)
        third = access(token=second)
        return {"access_2_request": third, "x": merge(a=first, b=second).merged}

    targets = [r.target for a in f.composition.applications for r in a.returns]
    assert len(set(targets)) == len(targets)
    assert targets == ["access_request_2", "access_2_request_2", "access_2_request", "x"]


def test_unused_outputs_and_applications_without_readers() -> None:
    @composition
    def f(x: SetHandle) -> dict[str, Any]:
        http(requests=each(x))
        application = merge(a=x)
        assert isinstance(application.rest, SetHandle)
        return {}

    assert [a.returns for a in f.composition.applications] == [(), ()]


def test_a_set_under_two_names_is_renamed_by_a_composition() -> None:
    @composition
    def f(x: SetHandle, y: SetHandle) -> dict[str, Any]:
        made = access(token=x)
        return {"one": made, "two": made, "three": y, "y": y, "set": made}

    assert f.outputs == ("one", "two", "three", "y", "set")
    assert [c.name for c in f.module.compositions] == ["_same", "f"]
    renames = {
        a.returns[0].target: a.bindings[0].source
        for a in f.composition.applications
        if a.function == "_same"
    }
    assert renames == {"two": "one", "three": "y", "set": "one"}
    assert check_module(parse(f.text())) == []


def test_an_input_may_be_passed_through() -> None:
    @composition
    def f(x: SetHandle) -> dict[str, Any]:
        return {"x": x}

    assert (f.outputs, f.composition.applications) == (("x",), ())


def test_the_same_program_gives_the_same_text() -> None:
    def f(x: SetHandle) -> dict[str, Any]:
        return {"a": render_logs(token=x, topic=x), "b": x}

    assert composition(f).text() == composition(f).text()
