"""The composition language: parsing, refusals and their messages, printing."""

import pytest

from dandelion.dataflow.graph import (
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
    SourcePosition,
    Strategy,
)
from dandelion.dataflow.language import parse, parse_signature
from dandelion.dataflow.printer import from_json, print_module, to_json
from dandelion.errors import InvalidComposition

LOGS = """\
function HTTP (requests) => (headers, bodies);
function Access(token) => (request);

# who may read what
composition RenderLogs(token, topic,) => (html) {
    Render(pages = keyed pages, names = optional keyed topic) => (html = html)
        by pages left names;
    HTTP(requests = each request) => (pages = bodies,);  # statements may be in any order
    Access(token = all token) => (request = request);
}
function Render( pages, names ) => ( html );
"""


def only(text: str) -> Application:
    """The application of a text of one composition with one application."""
    return parse(f"composition C(a, b) => (c) {{ {text} }}").compositions[0].applications[0]


def test_reads_everything_a_text_may_hold() -> None:
    module = parse(LOGS, "logs.dc")
    assert module.declarations == (
        Declaration("HTTP", ("requests",), ("headers", "bodies")),
        Declaration("Access", ("token",), ("request",)),
        Declaration("Render", ("pages", "names"), ("html",)),
    )
    render = Application(
        "Render",
        (
            Binding("pages", "pages", Sharding.KEYED),
            Binding("names", "topic", Sharding.KEYED, optional=True),
        ),
        (Return("html", "html"),),
        Join(("pages", "names"), (Strategy.LEFT,)),
    )
    http = Application(
        "HTTP", (Binding("requests", "request", Sharding.EACH),), (Return("pages", "bodies"),)
    )
    access = Application("Access", (Binding("token", "token"),), (Return("request", "request"),))
    assert module.compositions == (
        Composition("RenderLogs", ("token", "topic"), ("html",), (render, http, access)),
    )


def test_places_are_those_of_the_names() -> None:
    module = parse(LOGS, "logs.dc")
    render, http, _ = module.compositions[0].applications
    places = [
        module.declarations[0].place,
        module.declarations[2].place,
        module.compositions[0].place,
        render.place,
        render.bindings[1].place,
        render.returns[0].place,
        render.join.place if render.join else SourcePosition(),
        http.place,
    ]
    assert [(p.line, p.column, p.file) for p in places] == [
        (1, 10, "logs.dc"),
        (11, 10, "logs.dc"),
        (5, 13, "logs.dc"),
        (6, 5, "logs.dc"),
        (6, 33, "logs.dc"),
        (6, 67, "logs.dc"),
        (7, 9, "logs.dc"),
        (8, 5, "logs.dc"),
    ]


@pytest.mark.parametrize("sharding", list(Sharding))
@pytest.mark.parametrize("optional", [False, True])
def test_reads_every_sharding(sharding: Sharding, optional: bool) -> None:
    word = "optional " if optional else ""
    application = only(f"F(x = {word}{sharding.value} a) => ();")
    assert application.bindings == (Binding("x", "a", sharding, optional),)


@pytest.mark.parametrize("strategy", list(Strategy))
def test_reads_every_join(strategy: Strategy) -> None:
    join = only(f"F(x = keyed a, y = keyed b) => () by x {strategy.value} y;").join
    assert join == Join(("x", "y"), (strategy,))


def test_reads_a_chain_of_joins() -> None:
    join = only("F() => () by x cross y inner z full w;").join
    strategies = (Strategy.CROSS, Strategy.INNER, Strategy.FULL)
    assert join == Join(("x", "y", "z", "w"), strategies)


def test_a_join_may_have_one_name() -> None:
    assert only("F(x = keyed a) => () by x;").join == Join(("x",), ())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("repeat 1 feeding (x = y)", RepeatClause(1, None, (Feed("x", "y"),))),
        ("repeat 30 until o feeding (x = y, z = w,)",
         RepeatClause(30, "o", (Feed("x", "y"), Feed("z", "w")))),
        ("by x repeat 999999999999999999 feeding ()", RepeatClause(10**18 - 1)),
        ("repeat 0 until repeat feeding (x=y)", RepeatClause(0, "repeat", (Feed("x", "y"),))),
    ],
)  # fmt: skip
def test_reads_loops(text: str, expected: RepeatClause) -> None:
    found = only(f"F(x = keyed a) => () {text};")
    assert found.repeat == expected
    assert (found.join is not None) == ("by" in text)


def test_places_in_loops_are_those_of_the_words() -> None:
    repeat = parse("composition C() => () {\n F() => ()\n  repeat 2 feeding (x = y, z = w); }")
    found = repeat.compositions[0].applications[0].repeat
    assert found is not None
    places = [found.place, *(feed.place for feed in found.feedback)]
    assert [(p.line, p.column) for p in places] == [(3, 3), (3, 21), (3, 28)]


@pytest.mark.parametrize(
    ("text", "attempts", "catch"),
    [
        ("attempts 3", AttemptsClause(3), None),
        ("attempts 3 backoff 0.5", AttemptsClause(3, (), 0.5), None),
        ("attempts 3 backoff 2", AttemptsClause(3, (), 2.0), None),
        ("attempts 0 on (Raised,)", AttemptsClause(0, ("Raised",)), None),
        (
            "attempts 2 on (on, catch) backoff 0.001",
            AttemptsClause(2, ("on", "catch"), 0.001),
            None,
        ),
        ("catch e", None, CatchClause("e")),
        ("catch catch on (Raised, TimedOut)", None, CatchClause("catch", ("Raised", "TimedOut"))),
        ("by x attempts 9 catch attempts", AttemptsClause(9), CatchClause("attempts")),
        ("by x inner catch catch on on (on)", None, CatchClause("on", ("on",))),
        ("repeat 2 feeding (x = y) attempts 4 catch e", AttemptsClause(4), CatchClause("e")),
    ],
)
def test_reads_attempts_and_errors_sets(
    text: str, attempts: AttemptsClause | None, catch: CatchClause | None
) -> None:
    found = only(f"F(x = keyed a) => () {text};")
    assert (found.attempts, found.catch) == (attempts, catch)


def test_places_of_attempts_and_errors_sets() -> None:
    text = parse("composition C() => () {\n F() => ()\n  attempts 2\n  catch e; }")
    found = text.compositions[0].applications[0]
    assert found.attempts is not None
    assert found.catch is not None
    places = [found.attempts.place, found.catch.place]
    assert [(p.line, p.column) for p in places] == [(3, 3), (4, 9)]


@pytest.mark.parametrize("text", ["", " \n\t", "# only a comment", "#", "\u2003\u00a0\n"])
def test_an_empty_text_is_an_empty_module(text: str) -> None:
    assert parse(text) == CompositionModule()


@pytest.mark.parametrize(
    "text",
    [
        "function F()=>();",
        "function\nF\n(\n)\n=>\n(\n)\n;",
        "function F ( ) => ( ) ;",
        "  function  F(  )=>(  );  ",
        "function F()#c\n=>()#d\n;#e",
        "function\u00a0F()\u2003=>();",
        "function F()\r\n=>\r\n();\r\n",
    ],
)
def test_blanks_and_comments_may_stand_anywhere(text: str) -> None:
    assert parse(text) == CompositionModule((Declaration("F"),))


KEYWORDS = [
    "function",
    "composition",
    "optional",
    "by",
    "repeat",
    "until",
    "feeding",
    "attempts",
    "backoff",
    "catch",
    "on",
    *(s.value for s in Sharding),
    *(s.value for s in Strategy),
]


@pytest.mark.parametrize("word", KEYWORDS)
def test_keywords_may_be_names(word: str) -> None:
    text = (
        f"function {word}({word}) => ({word});"
        f"composition {word}({word}) => ({word}) {{"
        f"{word}({word} = optional all {word}, {word} = keyed {word}) => ({word} = {word})"
        f" by {word} inner {word} repeat 7 until {word} feeding ({word} = {word})"
        f" attempts 3 on ({word}, {word}) backoff 0.5 catch {word} on ({word});"
        f" {word}() => () by {word}; {word}() => (); }}"
    )
    module = parse(text)
    assert module.declarations == (Declaration(word, (word,), (word,)),)
    first, second, third = module.compositions[0].applications
    bindings = (Binding(word, word, Sharding.ALL, True), Binding(word, word, Sharding.KEYED))
    join = Join((word, word), (Strategy.INNER,))
    repeat = RepeatClause(7, word, (Feed(word, word),))
    attempts, catch = AttemptsClause(3, (word, word), 0.5), CatchClause(word, (word,))
    returns = (Return(word, word),)
    assert first == Application(word, bindings, returns, join, repeat, attempts, catch)
    assert (second.join, third) == (Join((word,), ()), Application(word))


@pytest.mark.parametrize("word", KEYWORDS)
def test_names_may_begin_with_keywords(word: str) -> None:
    name = f"{word}X"
    application = only(f"{name}({name} = all {name}) => ({name} = {name});")
    assert application == Application(name, (Binding(name, name),), (Return(name, name),))


def test_reads_signatures_with_either_arrow() -> None:
    place = SourcePosition(3, 4, "user.py")
    expected = Declaration("F", ("a", "b"), ("c",))
    assert parse_signature("F(a, b) -> (c)", place) == expected
    assert parse_signature(" F (a,b,)=>( c )", place) == expected
    assert parse_signature("F(a, b) -> (c)", place).place.line == 3


@pytest.mark.parametrize("text", ["", "F", "F(a)", "F(a) -> b", "F(a) - (b)", "F(a) -> (b);"])
def test_refuses_bad_signatures_at_the_place_of_the_user(text: str) -> None:
    with pytest.raises(InvalidComposition) as caught:
        parse_signature(text, SourcePosition(3, 4, "user.py"))
    (problem,) = caught.value.problems
    assert (problem.where, problem.line, problem.column) == ("user.py:3:4", 3, 4)
    assert problem.excerpt.split("\n")[0].endswith(text)


def test_prints_canonical_text() -> None:
    assert (
        print_module(parse(LOGS))
        == """\
function HTTP(requests) => (headers, bodies);
function Access(token) => (request);
function Render(pages, names) => (html);

composition RenderLogs(token, topic) => (html) {
    Render(pages = keyed pages, names = optional keyed topic) => (html = html) by pages left names;
    HTTP(requests = each request) => (pages = bodies);
    Access(token = all token) => (request = request);
}
"""
    )


def test_breaks_long_lines() -> None:
    bindings = ", ".join(f"parameter{i} = each source{i}" for i in range(9))
    text = f"composition C() => () {{ F({bindings}) => (a = b, c = d) by x inner y; }}"
    printed = print_module(parse(text))
    assert max(len(line) for line in printed.split("\n")) <= 100
    assert parse(printed) == parse(text)


def test_prints_loops_and_breaks_long_ones() -> None:
    text = "composition C(a) => () {{ F(x = all a) => () by x repeat 5 until o feeding ({}); }}"
    printed = print_module(parse(text.format("x = y")))
    assert "    F(x = all a) => () by x repeat 5 until o feeding (x = y);\n" in printed
    printed = print_module(parse(text.format("parameter_x = output_y, parameter_z = output_w")))
    first, second = "    F(x = all a) => ()\n", "        by x repeat 5 until o feeding (parameter_x"
    assert f"{first}{second}" in printed
    feeds = ", ".join(f"parameter{i} = output{i}" for i in range(9))
    printed = print_module(parse(text.format(feeds)))
    assert max(len(line) for line in printed.split("\n")) <= 100
    assert parse(printed) == parse(text.format(feeds))
    assert parse(printed) != parse(text.format(feeds).replace("5 until o", "5"))


def test_json_is_readable_and_without_places() -> None:
    text = to_json(parse("composition C(a) => (b) { F(x = anyEach a) => (b = r); }", "f.dc"))
    assert '"sharding": "anyEach"' in text
    assert "place" not in text
    assert "f.dc" not in text


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("{", "document"),
        (b"\xff", "document"),
        ("[]", "document"),
        ('{"compositions": [{"name": 3}]}', "compositions[0].name"),
        ('{"declarations": [{}]}', "declarations[0]"),
    ],
)
def test_json_that_does_not_fit_is_refused(text: str | bytes, where: str) -> None:
    with pytest.raises(InvalidComposition) as caught:
        from_json(text)
    assert caught.value.problems[0].where == where
