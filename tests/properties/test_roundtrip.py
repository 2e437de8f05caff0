"""Properties of the language: printed text is parsed back; any text parses or is refused."""

import re

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from dandelion.dataflow.draw import to_json as draw_json
from dandelion.dataflow.draw import to_mermaid, to_svg
from dandelion.dataflow.graph import (
    TIMES_LIMIT,
    Application,
    AttemptsClause,
    Binding,
    CatchClause,
    Composition,
    CompositionModule,
    Declaration,
    Feed,
    Join,
    RepeatClause,
    Return,
    Sharding,
    Strategy,
)
from dandelion.dataflow.language import parse
from dandelion.dataflow.printer import from_json, print_module, to_json
from dandelion.dataflow.validate import check_module, validate
from dandelion.errors import InvalidComposition, Problem
from dandelion.failures import ATTEMPTS_LIMIT, KINDS

KEYWORDS = ["function", "composition", "optional", "by", "all", "each", "inner", "left", "_"]
KEYWORDS += ["repeat", "until", "feeding", "attempts", "backoff", "catch", "on"]
names = st.sampled_from(KEYWORDS) | st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
keyed = st.sampled_from([Sharding.KEYED, Sharding.ANY_KEYED])
KEEP = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def distinct(least: int = 0, most: int = 4) -> st.SearchStrategy[list[str]]:
    return st.lists(names, unique=True, min_size=least, max_size=most)


@st.composite
def applications(
    draw: st.DrawFn, declaration: Declaration, known: list[str], fresh: list[str]
) -> Application:
    """A valid application; it takes names for its outputs from `fresh`, adds them to `known`."""
    parameters = draw(st.permutations(declaration.inputs)) if known else []
    bound = parameters[: draw(st.integers(0, len(parameters)))]
    joined = bound[: draw(st.integers(0, len(bound)))] if draw(st.booleans()) else []
    kind = draw(keyed)
    bindings = [
        Binding(
            name,
            draw(st.sampled_from(known)),
            kind if name in joined else draw(st.sampled_from(list(Sharding))),
            draw(st.booleans()),
        )
        for name in draw(st.permutations(bound))
    ]
    words = st.sampled_from(list(Strategy))
    join = Join(tuple(joined), tuple(draw(words) for _ in joined[1:])) if joined else None
    outputs = draw(st.permutations(declaration.outputs))
    returns = [Return(fresh.pop(), output) for output in outputs[: len(fresh)]]
    known += [returned.target for returned in returns]
    repeat = None
    if bound and declaration.outputs and draw(st.booleans()):
        repeat = draw(repeats(bound, declaration.outputs))
    attempts = draw(st.none() | retries())
    catch = None
    if fresh and draw(st.booleans()):
        catch = CatchClause(fresh.pop(), draw(kinds()))
        known.append(catch.target)
    return Application(
        declaration.name, tuple(bindings), tuple(returns), join, repeat, attempts, catch
    )


def kinds() -> st.SearchStrategy[tuple[str, ...]]:
    return st.lists(st.sampled_from(sorted(KINDS)), unique=True, max_size=4).map(tuple)


@st.composite
def retries(draw: st.DrawFn) -> AttemptsClause:
    """Valid attempts; every pause of whole milliseconds survives text and JSON."""
    backoff_ms = draw(st.sampled_from([0, 1, 10, 500, 1000, 60_000]) | st.integers(0, 60_000))
    return AttemptsClause(draw(st.integers(1, ATTEMPTS_LIMIT)), draw(kinds()), backoff_ms / 1000)


@st.composite
def repeats(draw: st.DrawFn, bound: list[str], outputs: tuple[str, ...]) -> RepeatClause:
    """A valid loop."""
    fed = draw(st.lists(st.sampled_from(bound), unique=True, min_size=1))
    feeds = tuple(Feed(parameter, draw(st.sampled_from(outputs))) for parameter in fed)
    until = draw(st.none() | st.sampled_from(outputs))
    return RepeatClause(draw(st.integers(1, TIMES_LIMIT)), until, feeds)


@st.composite
def compositions(draw: st.DrawFn, name: str, declarations: list[Declaration]) -> Composition:
    inputs = draw(distinct())
    fresh = [n for n in draw(distinct(most=10)) if n not in inputs]
    known = list(inputs)
    parts: list[Application] = []
    for _ in range(draw(st.integers(0, 5)) if declarations else 0):
        called = draw(st.sampled_from(declarations))
        parts.append(draw(applications(called, known, fresh)))
    order = draw(st.permutations(parts))
    outputs = draw(st.lists(st.sampled_from(known), unique=True, max_size=4)) if known else []
    return Composition(name, tuple(inputs), tuple(outputs), tuple(order))


@st.composite
def modules(draw: st.DrawFn) -> CompositionModule:
    """A valid module; compositions may apply those that were made before them."""
    callable_names = draw(distinct(most=7))
    split = draw(st.integers(0, len(callable_names)))
    declarations = [
        Declaration(name, tuple(draw(distinct())), tuple(draw(distinct())))
        for name in callable_names[:split]
    ]
    known = list(declarations)
    made: list[Composition] = []
    for name in callable_names[split:]:
        made.append(draw(compositions(name, known)))
        known.append(Declaration(name, made[-1].inputs, made[-1].outputs))
    return CompositionModule(tuple(declarations), tuple(draw(st.permutations(made))))


@KEEP
@given(modules())
def test_valid_modules_are_valid_and_survive_text_and_json(module: CompositionModule) -> None:
    assert check_module(module) == []
    text = print_module(module)
    assert parse(text) == module
    assert print_module(parse(text)) == text
    assert from_json(to_json(module)) == module


@KEEP
@given(modules(), st.sampled_from(["", " ", "\n", "\t# a comment, with (signs);\n", "\u3000"]))
def test_blanks_mean_nothing(module: CompositionModule, blank: str) -> None:
    text = re.sub(r"=>|[(){},;=]", lambda m: f"{blank}{m[0]}{blank}", print_module(module))
    assert parse(text) == module


@settings(KEEP, max_examples=25)
@given(modules())
def test_every_valid_composition_can_be_drawn(module: CompositionModule) -> None:
    for composition in module.compositions:
        for draw in (to_svg, to_mermaid, draw_json):
            assert draw(composition) == draw(composition)


# --- arbitrary text ----------------------------------------------------------------------

WORDS = (
    "function composition by optional all each keyed anyEach anyKeyed cross inner left "
    "repeat until feeding attempts backoff catch on Raised F G a b"
)
SIGNS = ["(", ")", "{", "}", ",", ";", "=", "=>", "->", ":", "#", "@", "\n", '"', "'", "//"]
TOKENS = [
    *WORDS.split(),
    *SIGNS,
    "1",
    "0",
    "10",
    "0.5",
    ".5",
    "007",
    "9" * 30,
    "é",
    "\x00",
    "\ud800",
]
VALID = """\
function F(a, b) => (c, d);
composition C(a, b) => (c) {
    F(a = keyed a, b = optional keyed b) => (c = c, x = d) by a inner b;
    F(a = each x) => () repeat 3 until c feeding (a = d, b = c);
    F(a = each c) => () attempts 3 on (Raised) backoff 0.5 catch e on (Raised, TimedOut);
}
"""


def read(text: str) -> tuple[CompositionModule | None, tuple[Problem, ...]]:
    try:
        return parse(text, "f.dc"), ()
    except InvalidComposition as error:
        return None, error.problems


def reads_or_refuses(text: str) -> None:
    module, problems = read(text)
    lines = text.split("\n")
    for problem in problems:
        assert problem.where == f"f.dc:{problem.line}:{problem.column}"
        assert 1 <= problem.line <= len(lines)
        assert 1 <= problem.column <= len(lines[problem.line - 1]) + 1
        assert problem.expected or problem.nearest
        assert "^" in problem.excerpt.split("\n")[1]
        str(problem).encode()
    if module is None:
        assert problems
        return
    assert parse(print_module(module)) == module
    for problem in (*check_module(module, text=text), *validate(module, lambda _: None)):
        assert problem.line


@settings(KEEP, max_examples=250)
@given(st.lists(st.sampled_from(TOKENS), max_size=40).map(" ".join))
@example("composition C() => () {" + "function " * 5)
@example("function" + " (" * 50)
@example("function F(a: float32[2, ?], b) => (c);")
def test_token_soup_is_read_or_refused_with_a_place(text: str) -> None:
    reads_or_refuses(text)


@settings(KEEP, max_examples=100)
@given(st.text(max_size=60))
def test_any_text_is_read_or_refused_with_a_place(text: str) -> None:
    reads_or_refuses(text)


@st.composite
def mutations(draw: st.DrawFn) -> str:
    """A valid text with some places deleted, doubled or overwritten."""
    text = VALID
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = draw(st.integers(start, min(len(text), start + 12)))
        text = text[:start] + draw(st.sampled_from(["", text[start:end] * 2, *TOKENS])) + text[end:]
    return text


@settings(KEEP, max_examples=250)
@given(mutations())
@example(VALID.replace("backoff 0.5", "backoff 0.00000075"))
def test_damaged_texts_are_read_or_refused_with_a_place(text: str) -> None:
    reads_or_refuses(text)


@settings(KEEP, max_examples=100)
@given(mutations())
def test_damage_in_one_composition_leaves_the_next_one_alone(text: str) -> None:
    assume(not set(text) & set("#\"'/"))  # those can put the closing brace into a comment or string
    _, before = read(text)
    assume(before)
    assume(text.endswith("}\n") and text.count("{") == text.count("}") == 1)
    _, after = read(f"{text}\ncomposition Fine(a) => (a) {{ }}\n")
    assert [(p.where, p.message) for p in after] == [(p.where, p.message) for p in before]


@pytest.mark.parametrize(
    "text",
    [
        "@ " * 20_000,
        "function F(" + "a, " * 20_000,
        "{" * 20_000,
        "x;\n" * 20_000,
        "composition C() => () {" * 2_000,
        "function composition " * 5_000,
        "a" * 200_000 + "é",
        "composition C() => () {" + "F(a = al b) => ();\n" * 5_000,
        "composition C() => () { F() => () repeat " + "9" * 100_000 + " feeding (); }",
        "composition C() => () { F() => () repeat 1 feeding (" + "a = b, " * 10_000 + "); }",
        "composition C() => () { F() => () catch e on (" + "a, " * 10_000 + "b); }",
        "composition C() => () { F() => () attempts 3 backoff 0." + "9" * 100_000 + "; }",
    ],
)
def test_large_nonsense_is_refused_soon(text: str) -> None:
    reads_or_refuses(text)


@KEEP
@given(st.text(max_size=4), st.text(max_size=4))
def test_records_with_any_names_can_be_checked_and_drawn(name: str, other: str) -> None:
    application = Application(name, (Binding(name, name),), (Return(other, name),), Join((), ()))
    composition = Composition(name, (name,), (other,), (application,))
    codes = {problem.code for problem in check_module(CompositionModule((), (composition,)))}
    assert "join-shape" in codes
    assert ("bad-name" in codes) == any(not is_name(n) for n in (name, other))
    assert to_svg(composition).startswith("<svg")


def is_name(text: str) -> bool:
    return text.isascii() and text.isidentifier()
