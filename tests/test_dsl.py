"""The Python DSL: results of descriptions, and messages for wrong ones."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dandelion.data import SetSpec
from dandelion.dataflow import dsl
from dandelion.dataflow.dsl import (
    BoundSet,
    CompositionHandle,
    FunctionHandle,
    SetHandle,
    SetLike,
    UnknownOutput,
    all_,
    any_each,
    any_keyed,
    composition,
    each,
    functions,
    handle_of,
    http,
    join,
    keyed,
    optional,
)
from dandelion.dataflow.graph import (
    AttemptsClause,
    Binding,
    CatchClause,
    Feed,
    Join,
    RepeatClause,
    Sharding,
    Strategy,
)
from dandelion.dataflow.language import parse
from dandelion.documents import FunctionDocument, python_function
from dandelion.errors import Raised, RequestFailed, TimedOut
from dandelion.function import FunctionSpec
from tests.log_composition import access, merge, problem_of, render, render_logs

DOCS = Path(__file__).resolve().parent.parent / "docs"


def only(handle: CompositionHandle) -> tuple[Binding, ...]:
    return handle.composition.applications[-1].bindings


def test_a_description_is_the_text_one_would_have_written() -> None:
    assert (
        render_logs.text()
        == """\
function Access(token) => (request);
function HTTP(requests) => (headers, bodies);
function FanOut(page, topic) => (requests);
function Render(pages) => (html);

composition render_logs(token, topic) => (html) {
    Access(token = all token) => (access_request = request);
    HTTP(requests = each access_request) => (http_bodies = bodies);
    FanOut(page = all http_bodies, topic = all topic) => (fan_out_requests = requests);
    HTTP(requests = each fan_out_requests) => (http_2_bodies = bodies);
    Render(pages = all http_2_bodies) => (html = html);
}
"""
    )


def test_text_and_description_are_the_same_module() -> None:
    assert parse(render_logs.text()) == render_logs.module
    assert render_logs.module.compositions == (render_logs.composition,)


def test_a_handle_says_what_it_is() -> None:
    assert render_logs.name == "render_logs"
    assert (render_logs.inputs, render_logs.outputs) == (("token", "topic"), ("html",))
    assert render_logs.__doc__ == "Show the logs of a topic."
    assert repr(render_logs) == "<composition render_logs(token, topic) => (html)>"
    assert repr(access) == "<function Access(token) => (request)>"


def test_a_name_may_be_given() -> None:
    @composition(name="Other")
    def f(x: SetHandle) -> SetLike:
        return x

    assert f.name == "Other"


@pytest.mark.parametrize(
    ("wrap", "sharding"),
    [
        (all_, Sharding.ALL),
        (each, Sharding.EACH),
        (keyed, Sharding.KEYED),
        (any_each, Sharding.ANY_EACH),
        (any_keyed, Sharding.ANY_KEYED),
    ],
)
def test_sharding(wrap: Callable[[SetLike], BoundSet], sharding: Sharding) -> None:
    @composition
    def f(x: SetHandle) -> SetLike:
        return render(pages=wrap(x))

    @composition
    def inside(x: SetHandle) -> SetLike:
        return render(pages=optional(wrap(x)))

    @composition
    def outside(x: SetHandle) -> SetLike:
        return render(pages=wrap(optional(x)))

    assert only(f) == (Binding("pages", "x", sharding),)
    assert only(inside) == only(outside) == (Binding("pages", "x", sharding, optional=True),)


def test_sets_by_position() -> None:
    @composition
    def by_position(x: SetHandle, y: SetHandle, z: SetHandle) -> SetLike:
        return merge(join(b=x).left(a=y), optional(z), style=each(z)).merged

    @composition
    def by_name(x: SetHandle, y: SetHandle, z: SetHandle) -> SetLike:
        return merge(join(b=x).left(a=y), c=optional(z), style=each(z)).merged

    assert only(by_position) == only(by_name)


def test_an_output_may_have_the_name_of_an_input() -> None:
    @composition
    def step(a: SetHandle, b: SetHandle) -> dict[str, Any]:
        merged = merge(a=a, b=b)
        return {"a": merged.merged, "b": b}

    @composition
    def steps(a: SetHandle, b: SetHandle) -> dict[str, Any]:
        return {"a": step(a, b).repeat(9, feed="a", until="a").a}

    assert (step.outputs, steps.outputs) == (("next_a", "b"), ("next_a",))
    (application,) = steps.composition.applications
    assert application.repeat is not None
    assert [(f.parameter, f.output) for f in application.repeat.feedback] == [("a", "next_a")]
    assert application.repeat.until == "next_a"


def test_what_is_fed_back_may_be_named_once() -> None:
    @composition
    def one_output(x: SetHandle) -> SetLike:
        return render(x).repeat(2, feed="pages")

    @composition
    def several(x: SetHandle) -> SetLike:
        again = functions("Again(a, b) -> (a, b)")[0]
        return again(x, x).repeat(2, feed=["a", "b"]).a

    def fed(made: CompositionHandle) -> list[tuple[str, str]]:
        repeat = made.composition.applications[0].repeat
        assert repeat is not None
        return [(f.parameter, f.output) for f in repeat.feedback]

    assert fed(one_output) == [("pages", "html")]
    assert fed(several) == [("a", "a"), ("b", "b")]


def test_one_returned_set_is_the_result() -> None:
    @composition
    def f(x: SetHandle) -> SetLike:
        return merge(a=x).rest

    assert f.outputs == ("result",)
    assert f.composition.applications[0].returns[0].output == "rest"


def test_a_chain_of_joins() -> None:
    @composition
    def f(x: SetHandle, y: SetHandle, z: SetHandle) -> SetLike:
        chain = join(b=x).left(a=optional(y)).full(c=keyed(z))
        return merge(chain, style=each(x)).merged

    application = f.composition.applications[0]
    assert application.join == Join(("b", "a", "c"), (Strategy.LEFT, Strategy.FULL))
    assert application.bindings == (
        Binding("b", "x", Sharding.KEYED),
        Binding("a", "y", Sharding.KEYED, optional=True),
        Binding("c", "z", Sharding.KEYED),
        Binding("style", "x", Sharding.EACH),
    )


@pytest.mark.parametrize("strategy", list(Strategy))
def test_every_join(strategy: Strategy) -> None:
    @composition
    def f(x: SetHandle, y: SetHandle) -> SetLike:
        chain = getattr(join(a=any_keyed(x)), strategy.value)(b=any_keyed(y))
        return merge(chain).merged

    assert f.composition.applications[0].join == Join(("a", "b"), (strategy,))


def test_loops() -> None:
    @composition
    def f(x: SetHandle, y: SetHandle) -> dict[str, Any]:
        first = merge(join(a=x).inner(b=y)).repeat(7, feed={"a": "merged", "b": "rest"})
        second = merge(a=first.merged).repeat(100, until="rest", feed={"a": "merged"})
        return {
            "x": x,
            "out": second.merged,
            "same": render(pages=x).repeat(1, feed={"pages": "html"}),
        }

    first, second, _ = f.composition.applications
    assert first.repeat == RepeatClause(7, None, (Feed("a", "merged"), Feed("b", "rest")))
    assert second.repeat == RepeatClause(100, "rest", (Feed("a", "merged"),))
    assert [r.output for r in second.returns] == ["merged"]
    assert parse(f.text()) == f.module


def test_an_output_set_may_be_called_repeat() -> None:
    (odd,) = functions("Odd(x) -> (repeat)")

    @composition
    def f(x: SetHandle) -> SetLike:
        return odd(x=x)["repeat"]

    assert f.composition.applications[0].returns[0].output == "repeat"


def test_attempts_and_errors_sets() -> None:
    @composition
    def f(x: SetHandle) -> dict[str, Any]:
        first = access(token=each(x)).attempts(3, backoff_s=0.5, on=[RequestFailed, "TimedOut"])
        errors = first.catch()
        second = render(pages=first).attempts(2, on=TimedOut)
        second.catch(Raised)
        again = access(token=errors)
        return {
            "out": again,
            "errors": errors,
            "again": again.attempts(9).catch(on=["FunctionError"]),
        }

    first, second, again = f.composition.applications
    assert first.attempts == AttemptsClause(3, ("RequestFailed", "TimedOut"), 0.5)
    assert first.catch == CatchClause("errors")
    assert second.attempts == AttemptsClause(2, ("TimedOut",))
    assert second.catch == CatchClause("render_errors", ("Raised",))
    assert [b.source for b in again.bindings] == ["errors"]
    assert again.catch == CatchClause("again", ("FunctionError",))
    assert parse(f.text()) == f.module


def test_an_errors_set_can_be_bound_returned_and_renamed() -> None:
    @composition
    def f(x: SetHandle, access_errors: SetHandle) -> dict[str, Any]:
        errors = access(token=each(x)).catch()
        return {"one": errors, "two": errors, "n": access(token=optional(access_errors))}

    names = [r.target for a in f.composition.applications for r in a.returns]
    assert [a.catch and a.catch.target for a in f.composition.applications] == ["one", None, None]
    assert names == ["n", "two"]
    assert parse(f.text()) == f.module


def test_output_sets_may_have_the_names_of_methods() -> None:
    (odd,) = functions("Odd(x) -> (attempts, catch)")

    @composition
    def f(x: SetHandle) -> dict[str, Any]:
        found = odd(x=x)
        return {"a": found["attempts"], "b": found["catch"]}

    assert [r.output for r in f.composition.applications[0].returns] == ["attempts", "catch"]


def test_compositions_apply_compositions() -> None:
    @composition
    def twice(token: SetHandle) -> SetLike:
        return render_logs(token=token, topic=each(render_logs(token=token)))

    @composition
    def outer(a: SetHandle) -> SetLike:
        return access(token=twice(token=render_logs(token=a)))

    names = [c.name for c in outer.module.compositions]
    assert names == ["render_logs", "twice", "outer"]
    assert [d.name for d in outer.module.declarations] == ["Access", "HTTP", "FanOut", "Render"]
    assert parse(outer.text()) == outer.module


def test_a_description_inside_a_description() -> None:
    @composition
    def outer(a: SetHandle) -> SetLike:
        @composition
        def inner(b: SetHandle) -> SetLike:
            return access(token=b)

        return inner(b=each(a))

    assert [c.name for c in outer.module.compositions] == ["inner", "outer"]


def test_handles_of_documents_and_records() -> None:
    document = python_function("def f(a): ...", name="f", inputs=["a: uint8[2]", "b"], outputs="c")
    spec = FunctionSpec("f", (SetSpec("a"), SetSpec("b")), (SetSpec("c"),))
    for described in (document, spec, FunctionDocument("f", (SetSpec("a"), "b"), ("c:u1",))):
        handle = handle_of(described)
        assert isinstance(handle, FunctionHandle)
        assert (handle.name, handle.inputs, handle.outputs) == ("f", ("a", "b"), ("c",))


def test_pictures_for_notebooks() -> None:
    assert render_logs._repr_svg_().startswith("<svg")


def test_a_failed_description_leaves_nothing_behind() -> None:
    def broken(x: SetHandle) -> SetLike:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        composition(broken)
    assert problem_of(lambda: access()).code == "outside-composition"


def test_unknown_outputs_are_attribute_errors_too() -> None:
    found: list[object] = []

    @composition
    def f(x: SetHandle) -> dict[str, Any]:
        application = http(requests=x)
        with pytest.raises(UnknownOutput) as caught:
            _ = application.header
        found.extend([caught.value.problems[0].nearest, hasattr(application, "nope")])
        found.append(sorted(dir(application)))
        return {}

    assert f.outputs == ()
    assert found == ["headers", False, ["bodies", "headers"]]
    assert issubclass(UnknownOutput, AttributeError)


@pytest.mark.parametrize("signature", ["Access", "Access(token)", "Access(token) -> request", ""])
def test_bad_signatures_point_at_the_program(signature: str) -> None:
    problem = problem_of(lambda: functions("Fine() -> ()", signature))
    assert problem.where.startswith(f"{__file__}:")
    assert problem.code == "syntax"


def test_the_tutorial_names_everything_public() -> None:
    page = (DOCS / "dsl.md").read_text()
    functions_and_values = [name for name in dsl.__all__ if not name[0].isupper()]
    assert [name for name in functions_and_values if f"{name}" not in page] == []
