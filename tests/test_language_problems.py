"""Texts of compositions with mistakes: the place, and what to do."""

import pytest

from dandelion.dataflow.language import parse
from dandelion.errors import InvalidComposition, Problem


def problems_of(text: str) -> list[Problem]:
    with pytest.raises(InvalidComposition) as caught:
        parse(text, "file.dc")
    return list(caught.value.problems)


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


def test_a_type_over_several_lines_leaves_later_positions_right() -> None:
    text = "function F(a:\n    float32[2,\n    3], b) => (c)\n;\nfunction G(a b) => (c);\n"
    assert [p.where for p in problems_of(text)] == ["file.dc:1:13", "file.dc:5:14"]


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
