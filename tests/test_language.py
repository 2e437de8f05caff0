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
from dandelion.errors import InvalidComposition, Problem

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


def problems_of(text: str) -> list[Problem]:
    with pytest.raises(InvalidComposition) as caught:
        parse(text, "file.dc")
    return list(caught.value.problems)


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


# Text (with a mark at the fault), what was expected, the nearest name.
GOLDEN = [
    ("function F(a) => (b)¦", "';'", ""),
    ("function F¦", "'('", ""),
    ("function F(a) ¦(b);", "'=>'", ""),
    ("function F(a) ¦-> (b);", "", "=>"),
    ("function F(a,¦, b) => ();", "a name or ')'", ""),
    ("function F(¦, a) => ();", "a name or ')'", ""),
    ("function F(a ¦b) => ();", "',' or ')'", ""),
    ("function ¦9lives() => ();", "names of ASCII letters", ""),
    ("function ¦naïve() => ();", "names of ASCII letters", ""),
    ("function F(a¦@) => ();", "names of ASCII letters", ""),
    ("¦functionF(a) => (b);", "'function', 'composition' or the end of the text", "function"),
    ("¦functon F(a) => (b);", "'function'", "function"),
    ("¦compositon C(a) => (b) {}", "'composition'", "composition"),
    ("¦{}", "'function'", ""),
    ("composition C(a) => (b) ¦", "'{'", ""),
    ("composition C(a) => (b)¦;", "'{'", ""),
    ("composition C(a) => (b) {¦", "a name or '}'", ""),
    ("composition C(a) => (b) {\n  F(x = ¦a) => ();\n}", "'optional', 'all', 'each'", ""),
    ("composition C(a) => (b) {\n  F(x = ¦Each a) => ();\n}", "'each'", "each"),
    ("composition C(a) => (b) {\n  F(x = ¦anykeyed a) => ();\n}", "'anyKeyed'", "anyKeyed"),
    ("composition C(a) => (b) {\n  F(x = ¦allX) => ();\n}", "'all'", "all"),
    ("composition C(a) => (b) {\n  F(x = optional ¦a) => ();\n}", "'all', 'each'", ""),
    ("composition C(a) => (b) {\n  F(x = all¦) => ();\n}", "a name", ""),
    ("composition C(a) => (b) {\n  F(x¦: all a) => ();\n}", "", "="),
    ("composition C(a) => (b) {\n  F(x = all a) => (¦);\n}".replace("¦)", "b¦)"), "'='", ""),
    (
        "composition C(a) => (b) {\n  F(x = all a) => () ¦}",
        "';', 'by', 'repeat', 'attempts' or 'catch'",
        "",
    ),
    ("composition C(a) => (b) {\n  F() => () by¦;\n}", "a name", ""),
    ("composition C(a) => (b) {\n  F() => () by x ¦outer y;\n}", "'full'", "full"),
    ("composition C(a) => (b) {\n  F() => () by x ¦iner y;\n}", "'inner'", "inner"),
    ("composition C(a) => (b) {\n  F() => () by x inner¦;\n}", "a name", ""),
    (
        "composition C(a) => (b) {\n  F() => () by x inner y ¦z;\n}",
        "';', 'repeat', 'attempts', 'catch', 'cross'",
        "",
    ),
    ("composition C(a) => (b) {\n  F() => () ¦repet 3;\n}", "'repeat'", "repeat"),
    ("composition C(a) => (b) {\n  F() => () ¦loop 3;\n}", "'repeat'", "repeat"),
    ("composition C(a) => (b) {\n  F() => () ¦retry 3;\n}", "'attempts'", "attempts"),
    ("composition C(a) => (b) {\n  F() => () ¦catsh e;\n}", "'catch'", "catch"),
    ("composition C(a) => (b) {\n  F() => () attempts ¦x;\n}", "a number", ""),
    ("composition C(a) => (b) {\n  F() => () attempts 3 ¦pause 1;\n}", "'backoff'", "backoff"),
    ("composition C(a) => (b) {\n  F() => () attempts 3 backoff 0¦.5s;\n}", "such as 0.5", ""),
    ("composition C(a) => (b) {\n  F() => () attempts 3 ¦for (Raised);\n}", "'on'", "on"),
    ("composition C(a) => (b) {\n  F() => () catch e on (¦);\n}", "a name", ""),
    ("composition C(a) => (b) {\n  F() => () repeat ¦feeding (a = b);\n}", "a number", ""),
    ("composition C(a) => (b) {\n  F() => () repeat ¦007 feeding ();\n}", "without zeros", ""),
    ("composition C(a) => (b) {\n  F() => () repeat 3¦;\n}", "'feeding' or 'until'", ""),
    ("composition C(a) => (b) {\n  F() => () repeat 3 ¦times;\n}", "'feeding' or 'until'", ""),
    ("composition C(a) => (b) {\n  F() => () repeat 3 ¦while x;\n}", "'until'", "until"),
    ("composition C(a) => (b) {\n  F() => () repeat 3 until¦;\n}", "a name", ""),
    ("composition C(a) => (b) {\n  F() => () repeat 3 feeding ¦a = b;\n}", "'('", ""),
    ("composition C(a) => (b) {\n  F() => () repeat 3 feeding (a¦);\n}", "'='", ""),
    ("composition C(a) => (b) {\n  F() => () repeat 3 feeding (a=b) ¦by x;\n}", "';'", ""),
    ("composition C(¦3) => () {}", "a name or ')'", ""),
    (
        f"composition C(a) => (b) {{\n  F() => () repeat ¦{'9' * 19} feeding ();\n}}",
        "18 digits",
        "",
    ),
    ("composition C(a) => (b) {\n  ¦=> ();\n}", "a name or '}'", ""),
    ("composition C(a) => (b) { } ¦}", "'function'", ""),
    ('function F(a) => (b); ¦"text"', "names of ASCII letters", ""),
    ("function F() => (); ¦// comment, with (signs);\n", "", "#"),
    ("function F(a)\t=> (b)\t¦x;", "';'", ""),
]


@pytest.mark.parametrize(("marked", "expected", "nearest"), GOLDEN)
def test_says_where_and_what_was_expected(marked: str, expected: str, nearest: str) -> None:
    before, after = marked.split("¦")
    line, column = before.count("\n") + 1, len(before.rsplit("\n", 1)[-1]) + 1
    if not after.strip():  # the end of the text is right behind the last word
        column = len(before.rstrip().rsplit("\n", 1)[-1]) + 1
    first = problems_of(before + after)[0]
    assert (first.code, first.line, first.column) == ("syntax", line, column)
    assert first.where == f"file.dc:{line}:{column}"
    assert expected in first.expected
    assert first.nearest == nearest
    source, caret = first.excerpt.split("\n")
    shown = source.split("| ", 1)[1]
    assert shown.strip() == (before + after).split("\n")[line - 1].replace("\t", " ").strip()
    assert caret.index("^") - caret.index("|") - 2 == column - 1


# What people write, within a composition Logs(token) => (request), and what they are told.
ADVICE = [
    ("F(x = token) => ();",
     "say how its instances share the items; with 'all token' each gets the whole set"),
    ("F(x = ) => ();", "a binding is 'input = all set', or another sharding than 'all'"),
    ("F(all token) => ();", "the input set of the function comes first, as in 'input = all token'"),
    ("F(token) => ();", "say which set 'token' is bound to, as in 'token = all set'"),
    ("F(x = all token) => (request);",
     "say which output of the function 'request' is, as in 'request = output'"),
    ("F(x = all token) => (request = r)\n  G() => ();", "a ';' is missing after ')' in line 2"),
    ("F(x = all token);",
     "name its outputs, as in '=> (set = output)', or drop them with '=> ()'"),
    ("request = F(x = all token);",
     "an application is 'Function(input = all set) => (set = output);'"),
    ("F(x = all token) => request;", "write sets in brackets, as in '(request)'"),
    ("F(x = all token) => () repeat feeding (x = r);",
     "say how many iterations there may be, as in 'repeat 10 feeding (input = output)'"),
    ("F(x = all token) => () repeat 10;",
     "say which input is fed with which output, as in 'feeding (input = output)'"),
    ("F(x = all token) => () repeat 10 times feeding (x = r);",
     "say which input is fed with which output, as in 'feeding (input = output)'"),
    ("F(x = all token) => () repeat 10 feeding (x);",
     "say which output feeds 'x', as in 'x = output'"),
    ("F(x = all token) => () attempts;",
     "say how often an instance may be run, as in 'attempts 3'"),
    ("F(x = all token) => () attempts 3 backoff;",
     "say how many seconds to wait before the second attempt, as in 'backoff 0.5'"),
    ("F(x = all token) => () attempts 3 on TimedOut;",
     "write kinds of errors in brackets, as in 'on (TimedOut)'"),
    ("F(x = all token) => () attempts 3 backoff 0.5 on (TimedOut);",
     "write 'on' before 'backoff', as in 'attempts 3 on (RequestFailed) backoff 0.5'"),
    ("F(x = all token) => () catch (e);", "name the errors set, as in 'catch errors'"),
    ("F(x = all token) => () catch e attempts 3;",
     "clauses have the order 'by', 'repeat', 'attempts', 'catch'"),
    ("F(x = all token) => () repeat 2 feeding (x = r) by x;",
     "clauses have the order 'by', 'repeat', 'attempts', 'catch'"),
    ("F(x = all token) => () catch e catch f;", "an application has one clause 'catch'"),
]  # fmt: skip


@pytest.mark.parametrize(("statement", "advice"), ADVICE)
def test_says_what_to_do(statement: str, advice: str) -> None:
    text = f"composition Logs(token) => (request) {{\n  {statement}\n}}"
    (problem,) = problems_of(text)
    name = statement.split("(")[0].split()[0]
    assert problem.message == f"cannot read the application of '{name}': {advice}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("composition C(a) => b {\n}",
         "cannot read the head of composition 'C': write sets in brackets, as in '(b)'"),
        ("composition C(a) => (b) {\n", "cannot read composition 'C': its '}' is missing"),
        ("function F(a) => (b)\nfunction G(a) => (b);",
         "cannot read the declaration of 'F': a ';' is missing after ')' in line 1"),
        ("function F(a) => (b)",
         "cannot read the declaration of 'F': a ';' is missing after ')' in line 1"),
        ('composition C(a) => () { F(x = all a) => (b = "c"); }',
         "cannot read '\"c\"': a composition contains no data; pass data as a set"),
        ("function F(a) -> (b);", "cannot read '->'"),
        ("composition C(a) => () { F(x = all a y = all a) => (); }",
         "cannot read the application of 'F'"),
    ],
)  # fmt: skip
def test_says_what_to_do_elsewhere(text: str, message: str) -> None:
    assert problems_of(text)[0].message == message


def test_one_mistake_is_one_problem() -> None:
    for marked, _, _ in GOLDEN:
        assert len(problems_of(marked.replace("¦", ""))) == 1, marked


def test_reports_every_faulty_statement() -> None:
    text = """\
function F(a => (b);
compositon One(a) => (b) {
    F(a = a) => (b = b);
    F(a = all a) => (b = b)
    G(a = al a) => (c = b);
    H(a = all a) => (d = b);
}
composition Two(a) -> (b) {
    F(a = all a) => (b b);
function G(a) => (b)
"""
    found = [(p.line, p.column, p.nearest) for p in problems_of(text)]
    assert found == [
        (1, 14, ""),
        (2, 1, "composition"),
        (3, 11, ""),
        (5, 5, ""),
        (5, 11, "all"),
        (8, 20, "=>"),
        (9, 24, ""),
        (10, 1, ""),
        (10, 21, ""),
    ]


def test_says_what_it_was_reading() -> None:
    assert "declaration of 'F'" in problems_of("function F(a => (b);")[0].message
    assert "composition 'C'" in problems_of("composition C(a) (b) {}")[0].message
    inside = problems_of("composition C(a) => (b) { Fun(a = b) => (); }")[0]
    assert "application of 'Fun'" in inside.message
    assert inside.found == "'b'"


def test_long_lines_are_shown_around_the_fault() -> None:
    text = f"function F({', '.join(f'name{i}' for i in range(200))} here) => ();"
    problem = problems_of(text)[0]
    source, caret = problem.excerpt.split("\n")
    assert len(source) < 120
    assert source[caret.index("^") :].startswith("here")
    assert problem.column == text.index("here") + 1


def test_the_number_of_problems_is_bounded() -> None:
    assert len(problems_of("@ " * 1000)) <= 20
    assert len(problems_of("x;\n" * 1000)) <= 20


def test_control_characters_do_not_reach_the_message() -> None:
    text = str(InvalidComposition(tuple(problems_of("function \x1b[31m\x00\ud800F() => ();"))))
    assert all(c.isprintable() or c == "\n" for c in text)


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
