"""The Python DSL: results of descriptions, and messages for wrong ones."""

import inspect
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
from dandelion.dataflow.validate import check_module
from dandelion.documents import FunctionDocument, python_function
from dandelion.errors import InvalidComposition, Problem, Raised, RequestFailed, TimedOut
from dandelion.function import FunctionSpec

DOCS = Path(__file__).resolve().parent.parent / "docs"

access, fan_out, render, merge = functions(
    "Access(token) -> (request)",
    "FanOut(page, topic) => (requests)",
    "Render(pages) -> (html)",
    "Merge(a, b, c, style) -> (merged, rest)",
)


@composition
def render_logs(token: SetHandle, topic: SetHandle) -> dict[str, Any]:
    """Show the logs of a topic."""
    login = http(requests=each(access(token=token)))
    logs = http(requests=each(fan_out(page=login.bodies, topic=topic)))
    return {"html": render(pages=logs.bodies)}


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
        return {"out": again, "errors": errors, "again": again.attempts(9).catch("FunctionError")}

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


# --- names of sets ----------------------------------------------------------------------------


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


# --- nesting, documents -----------------------------------------------------------------------


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


# --- what is refused --------------------------------------------------------------------------

FAULTS: dict[str, Callable[..., Any]] = {}


def fault(code: str, mark: str, nearest: str = "") -> Callable[[Callable[..., Any]], None]:
    """Expect a problem of that code in the line with `mark`."""

    def add(function: Callable[..., Any]) -> None:
        FAULTS[f"{code}|{mark}|{nearest}|{function.__name__}"] = function

    return add


@fault("unknown-parameter", "page=x", "pages")
def unknown_parameter(x: Any) -> Any:
    return render(page=x)


@fault("unknown-return", "bodie", "bodies")
def unknown_output(x: Any) -> Any:
    return http(requests=x).bodie


@fault("not-a-set", "b'bytes'")
def a_value(x: Any) -> Any:
    return render(pages=b'bytes')  # fmt: skip


@fault("not-a-set", "render(x, x)")
def too_many_positional_sets(x: Any) -> Any:
    return render(x, x)


@fault("duplicate-parameter", "render(x, pages=x)")
def a_set_by_position_and_by_name(x: Any) -> Any:
    return render(x, pages=x)


@fault("not-a-set", "pages=application")
def which_output(x: Any) -> Any:
    application = http(requests=x)
    return render(pages=application)


@fault("not-a-set", "def which_result")
def which_result(x: Any) -> Any:
    return http(requests=x)


@fault("bad-return", "def sharded_result")
def sharded_result(x: Any) -> Any:
    return each(x)


@fault("bad-return", "def nothing")
def nothing(x: Any) -> Any:
    pass


@fault("bad-return", "def a_tuple")
def a_tuple(x: Any) -> Any:
    return (x, x)


@fault("bad-return", "def odd_keys")
def odd_keys(x: Any) -> Any:
    return {1: x}


@fault("duplicate-producer", "def taken_names")
def taken_names(x: Any) -> Any:
    return {"x": access(token=x), "next_x": x}


@fault("bad-loop", ".repeat(3, feed=7)")
def a_number_is_fed(x: Any) -> Any:
    return merge(a=x).repeat(3, feed=7)  # type: ignore[arg-type]


@fault("not-a-set", "render([1, 2])")
def a_value_for_a_set(x: Any) -> Any:
    return render([1, 2])


@fault("no-value", "if x:")
def a_condition(x: Any) -> Any:
    if x:
        return x
    return None


@fault("no-value", "for item in x")
def a_loop(x: Any) -> Any:
    return [item for item in x]  # noqa: C416


@fault("no-value", "if not access(token=x):")
def a_condition_on_an_application(x: Any) -> Any:
    if not access(token=x):
        return x
    return access(token=x)


@fault("no-value", "for item in access(token=x)")
def a_loop_over_an_application(x: Any) -> Any:
    return [item for item in access(token=x)]  # noqa: C416


@fault("no-value", "one, two = access(token=x)")
def an_application_taken_apart(x: Any) -> Any:
    one, two = access(token=x)
    return {"one": one, "two": two}


@fault("no-value", 'if x == "yes":')
def a_set_compared(x: Any) -> Any:
    if x == "yes":
        return access(token=x)
    return x


@fault("no-value", "if access(token=x) != 3:")
def an_application_compared(x: Any) -> Any:
    if access(token=x) != 3:
        return access(token=x)
    return x


@fault("two-shardings", "each(keyed(x))")
def two_shardings(x: Any) -> Any:
    return render(pages=each(keyed(x)))


@fault("join-sharding", "b=each(x)")
def joined_each(x: Any) -> Any:
    return merge(join(a=x).inner(b=each(x))).merged


@fault("join-mixed", "b=any_keyed(x)")
def mixed_join(x: Any) -> Any:
    return merge(join(a=x).inner(b=any_keyed(x))).merged


@fault("join-duplicate", "inner(a=x)")
def joined_twice(x: Any) -> Any:
    return merge(join(a=x).inner(a=x)).merged


@fault("join-shape", "a=x, b=x")
def two_at_once(x: Any) -> Any:
    return merge(join(a=x, b=x)).merged


@fault("duplicate-parameter", "a=x), a=x")
def bound_twice(x: Any) -> Any:
    return merge(join(a=x), a=x).merged


@fault("unknown-parameter", "aa=x", "a")
def unknown_joined(x: Any) -> Any:
    return merge(join(aa=x)).merged


@fault("bad-loop", "repeat(half")
def a_fraction_of_a_loop(x: Any) -> Any:
    half: Any = 2.5
    return render(pages=x).repeat(half, feed={"pages": "html"})


@fault("bad-loop", "feed=html")
def feeding_a_handle(x: Any) -> Any:
    html: Any = render(pages=x)
    return html.repeat(2, feed=html)


@fault("bad-loop", "second loop")
def two_loops(x: Any) -> Any:
    once = render(pages=x).repeat(2, feed={"pages": "html"})
    return once.repeat(2, feed={"pages": "html"})  # second loop


@fault("repeat-range", "repeat(0")
def no_iterations(x: Any) -> Any:
    return render(pages=x).repeat(0, feed={"pages": "html"})


@fault("unknown-parameter", "repeat(2", "pages")
def unknown_fed_set(x: Any) -> Any:
    return render(pages=x).repeat(2, feed={"page": "html"})


@fault("unknown-return", "repeat(2", "html")
def unknown_end(x: Any) -> Any:
    return render(pages=x).repeat(2, feed={"pages": "html"}, until="htm")


@fault("feed-missing", "repeat(2")
def nothing_fed(x: Any) -> Any:
    return render(pages=x).repeat(2, feed={})


@fault("bad-attempts", "attempts(2.5")
def a_fraction_of_an_attempt(x: Any) -> Any:
    html: Any = render(pages=x)
    return html.attempts(2.5)


@fault("bad-attempts", "backoff_s=True")
def a_truth_for_a_pause(x: Any) -> Any:
    return render(pages=x).attempts(2, backoff_s=True)


@fault("bad-attempts", "on=[ValueError]")
def an_error_of_python(x: Any) -> Any:
    html: Any = render(pages=x)
    return html.attempts(2, on=[ValueError])


@fault("bad-attempts", "on=3")
def a_number_for_a_kind(x: Any) -> Any:
    html: Any = render(pages=x)
    return html.attempts(2, on=3)


@fault("bad-attempts", "second attempts")
def attempts_twice(x: Any) -> Any:
    html = render(pages=x).attempts(2)
    return html.attempts(2)  # second attempts


@fault("bad-attempts", "second catch")
def caught_twice(x: Any) -> Any:
    html = render(pages=x)
    return {"a": html.catch(), "b": html.catch()}  # second catch


@fault("attempts-range", "attempts(0")
def no_attempts(x: Any) -> Any:
    return render(pages=x).attempts(0)


@fault("backoff-range", "attempts(2")
def a_pause_that_is_no_number(x: Any) -> Any:
    return render(pages=x).attempts(2, backoff_s=float("nan"))


@fault("backoff-range", "attempts(2")
def a_pause_that_cannot_be_written(x: Any) -> Any:
    return render(pages=x).attempts(2, backoff_s=1 / 3)


@fault("unknown-kind", "render", "Raised")
def an_unknown_kind(x: Any) -> Any:
    return render(pages=x).catch("Raise")


@fault("bad-description", "def a_default")
def a_default(x: Any = 3) -> Any:
    return x


@fault("bad-description", "def any_number")
def any_number(*x: Any) -> Any:
    return x


@fault("bad-description", "def a_coroutine")
async def a_coroutine(x: Any) -> Any:
    return x


@fault("bad-name", "def odd_name")
def odd_name(naïve: Any) -> Any:
    return {"a": naïve}


@fault("declaration-conflict", "other")
def two_signatures(x: Any) -> Any:
    (other,) = functions("Access(token) -> (other)")
    return {"a": access(token=x), "b": other(token=x)}


@fault("recursion", "itself(x=x)")
def recursive(x: Any) -> Any:
    (itself,) = functions("recursive(x) -> (result)")
    return itself(x=x)


def problem_of(call: Callable[[], object]) -> Problem:
    with pytest.raises(InvalidComposition) as caught:
        call()
    return caught.value.problems[0]


@pytest.mark.parametrize("expected", FAULTS)
def test_faults_point_at_the_line_of_the_program(expected: str) -> None:
    code, mark, nearest, _ = expected.split("|")
    function = FAULTS[expected]
    problem = problem_of(lambda: composition(function))
    lines, first = inspect.getsourcelines(function)
    assert (problem.code, problem.nearest) == (code, nearest)
    assert mark in lines[problem.line - first]
    assert problem.where == f"{__file__}:{problem.line}:{problem.column}"
    source, caret = problem.excerpt.split("\n")
    assert source.split("| ", 1)[1] == lines[problem.line - first].rstrip()
    assert caret.strip().endswith("^")


def test_functions_are_applied_inside_of_descriptions_only() -> None:
    assert problem_of(lambda: access(token=None)).code == "outside-composition"  # type: ignore[arg-type]  # wrong on purpose


def test_sets_stay_in_their_composition() -> None:
    kept: list[SetHandle] = []

    @composition
    def first(x: SetHandle) -> SetLike:
        kept.append(x)
        return x

    def second(y: SetHandle) -> SetLike:
        return access(token=kept[0])

    def third(y: SetHandle) -> SetLike:
        return kept[0]

    assert first.name == "first"
    assert problem_of(lambda: composition(second)).code == "foreign-set"
    assert problem_of(lambda: composition(third)).code == "foreign-set"


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


# --- the tutorial -----------------------------------------------------------------------------


def test_the_tutorial_names_everything_public() -> None:
    page = (DOCS / "dsl.md").read_text()
    functions_and_values = [name for name in dsl.__all__ if not name[0].isupper()]
    assert [name for name in functions_and_values if f"{name}" not in page] == []
