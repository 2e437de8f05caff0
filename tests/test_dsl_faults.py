"""Descriptions of compositions that are refused, at the line of the program."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import dandelion
from dandelion.dataflow.dsl import (
    SetHandle,
    SetLike,
    any_keyed,
    composition,
    each,
    functions,
    http,
    join,
    keyed,
)
from tests.log_composition import access, merge, problem_of, render

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


@fault("no-value", "len(x)")
def counted(x: Any) -> Any:
    return render(pages=[x] * len(x))


@fault("no-value", "x + 1")
def added(x: Any) -> Any:
    return x + 1


@fault("no-value", "2 * access(token=x)")
def multiplied(x: Any) -> Any:
    return 2 * access(token=x)


@fault("no-value", "x < 3")
def compared(x: Any) -> Any:
    return x < 3


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


@fault("join-shape", "join(x)")
def joined_by_position(x: Any) -> Any:
    return merge(join(x)).merged


@fault("join-shape", ".inner(x)")
def joined_with_a_set_by_position(x: Any) -> Any:
    return merge(join(a=x).inner(x)).merged


@fault("bad-attempts", "backoff=1")
def a_pause_without_its_unit(x: Any) -> Any:
    return render(pages=x).attempts(3, backoff=1)


@fault("bad-attempts", "attempts()")
def attempts_without_a_number(x: Any) -> Any:
    return render(pages=x).attempts()


@fault("bad-attempts", "catch(when=")
def caught_when(x: Any) -> Any:
    return render(pages=x).catch(when="Raised")


@fault("bad-loop", "repeat(10)")
def a_loop_that_is_not_fed(x: Any) -> Any:
    return render(pages=x).repeat(10)


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


def test_methods_of_applications_are_no_functions() -> None:
    with pytest.raises(AttributeError, match=r"write result\.catch\(\.\.\.\)"):
        dandelion.catch(render)


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
