"""The static rules: every fault has its code, its position, and the nearest name."""

import itertools
import re
from pathlib import Path

import pytest

from dandelion.dataflow.excerpt import in_texts, with_excerpts
from dandelion.dataflow.graph import Application, Composition, CompositionModule, Join, Strategy
from dandelion.dataflow.language import parse
from dandelion.dataflow.validate import FunctionSignature, check_module, ensure_valid, validate
from dandelion.errors import InvalidComposition, Problem

KNOWN = {
    s.name: s
    for s in (
        FunctionSignature("HTTP", ("requests",), ("headers", "bodies")),
        FunctionSignature("Access", ("token",), ("request",)),
        FunctionSignature("Merge", ("left", "right", "style"), ("merged", "rest")),
        FunctionSignature("Old", ("a",), ("b",)),
    )
}
VALID = """\
composition Outer(a, b) => (merged, b) {
    Inner(token = each a) => (pages = bodies);
    Merge(left = keyed pages, right = keyed b) => (merged = merged) by left inner right;
}
function HTTP(requests) => (headers, bodies);
composition Inner(token) => (bodies) {
    HTTP(requests = each request) => (bodies = bodies);
    Access(token = all token) => (request = request);
}
"""


def check(text: str) -> list[Problem]:
    return validate(parse(text, "f.dc"), KNOWN.get, {"Taken"}, names=KNOWN.keys, text=text)


def test_a_valid_text_has_no_problems() -> None:
    assert check(VALID) == []
    ensure_valid(parse(VALID), KNOWN.get)


def test_declarations_are_not_needed_but_checked() -> None:
    assert check("composition C(t) => (r) { Access(token = all t) => (r = request); }") == []
    declared = "function Access(token) => (request);"
    assert check(declared * 2) == []


@pytest.mark.parametrize(
    "text",
    [
        "composition Empty() => () {}",
        "composition C(a) => (x) { Old(a = each a) => (x = b) repeat 1000000 feeding (a = b); }",
        "composition C(a) => () { Old(a = keyed a) => () by a repeat 1 until b feeding (a = b); }",
        "composition C(a) => () { Merge(left = all a) => () repeat 2 feeding (left = rest); }",
        "composition PassThrough(a, b) => (b, a) {}",
        "composition C(all) => (by) { Access(token = all all) => (by = request); }",
        "composition C(a) => () { Access(token = all a) => (); HTTP() => (); }",
        "composition C(a) => () { Merge(left = keyed a, right = all a) => () by left; }",
        "composition C(a) => (x) { Old(a = all a) => (x = b); Old(a = all x) => (y = b);}",
        "function C(a) => (a); composition C(a) => (a) {}",
    ],
)
def test_what_is_legal(text: str) -> None:
    assert check(text) == []


# Code | a part of the message | the nearest name; then the text, with a mark at the problem.
GOLDEN = """
## unknown-function | Acess | Access
function ¦Acess(token) => (request);
## unknown-function | Nothing |
composition C() => () {
  ¦Nothing() => ();
}
## unknown-function | Iner | Inner
composition Inner() => () {}
composition C() => () {
  ¦Iner() => ();
}
## declaration-mismatch | Access | token
function ¦Access(tokn) => (request);
## declaration-mismatch | HTTP |
function ¦HTTP(requests) => (bodies, headers);
## declaration-mismatch | HTTP |
function ¦HTTP(requests) => (headers);
## declaration-mismatch | C |
function ¦C(a) => ();
composition C(b) => () {}
## declaration-conflict | f.dc:1:10 |
function Access(token) => (request);
function ¦Access() => ();
## duplicate-composition | f.dc:1:13 |
composition C() => () {}
composition ¦C(a) => (a) {}
## name-taken | Taken |
composition ¦Taken() => () {}
## recursion | C -> C |
composition C() => () {
  ¦C() => ();
}
## recursion | A -> B -> D -> A |
composition A() => () { ¦B() => ();
}
composition B() => () { D() => ();
}
composition D() => () { A() => ();
}
## duplicate-set | input set 'a' |
composition ¦C(a, b, a) => () {}
## duplicate-set | output set 'a' |
composition ¦C(a) => (a, a) {}
## undriven-output | 'tokn' | token
composition ¦C(token) => (tokn) {}
## undriven-output | 'b' |
composition ¦C(a) => (b) { Access(token = all a) => (); }
## duplicate-producer | 'a' |
composition C(a) => () { Access() => (¦a = request); }
## duplicate-producer | produced by Access |
composition C() => () { Access() => (a = request);
  HTTP() => (¦a = headers);
}
## duplicate-producer | 'a' twice |
composition C() => () { HTTP() => (a = headers, ¦a = bodies); }
## unknown-parameter | 'request' | requests
composition C(a) => () { HTTP(¦request = all a) => (); }
## duplicate-parameter | 'token' |
composition C(a) => () {
  Access(token = all a, ¦token = each a) => ();
}
## unknown-return | 'header' | headers
composition C() => () { HTTP() => (a = bodies, ¦b = header); }
## duplicate-return | 'bodies' |
composition C() => () { HTTP() => (a = bodies, ¦b = bodies); }
## unknown-set | 'tokens' | token
composition C(token) => () { Access(¦token = each tokens) => (); }
## cycle | Access -(x)-> Access |
composition C() => () {
  ¦Access(token = all x) => (x = request);
}
## cycle | HTTP -(x)-> Access -(r)-> HTTP |
composition C() => () { Old() => (o = b);
  ¦HTTP(requests = all r) => (x = bodies);
  Access(token = all x) => (r = request);
}
## join-unbound | 'right' |
composition C(a) => () {
  Merge(left = keyed a) => () ¦by left inner right;
}
## join-unknown | 'lift' | left
composition C(aa) => () {
  Merge(left = keyed aa, right = keyed aa) => () ¦by lift inner right;
}
## join-unknown | 'aa' | left
composition C(aa) => () {
  Merge(left = keyed aa, right = keyed aa) => () ¦by aa inner right;
}
## join-duplicate | 'left' |
composition C(a) => () {
  Merge(left = keyed a) => () ¦by left inner left;
}
## join-sharding | 'all' |
composition C(a) => () {
  Merge(left = keyed a, right = all a) => () ¦by left inner right;
}
## join-sharding | 'each' |
composition C(a) => () {
  Merge(left = keyed a, right = each a) => () ¦by left inner right;
}
## join-sharding | 'anyEach' |
composition C(a) => () {
  Merge(left = keyed a, right = anyEach a) => () ¦by left inner right;
}
## join-mixed | anyKeyed |
composition C(a) => () {
  Merge(left = keyed a, right = anyKeyed a) => () ¦by left inner right;
}
## repeat-range | Old |
composition C(a) => () {
  Old(a = all a) => () ¦repeat 0 feeding (a = b);
}
## repeat-range | Old |
composition C(a) => () {
  Old(a = all a) => () ¦repeat 1000001 feeding (a = b);
}
## feed-missing | Old |
composition C(a) => () {
  Old(a = all a) => () ¦repeat 2 feeding ();
}
## feed-unbound | 'right' |
composition C(a) => () {
  Merge(left = all a) => () repeat 2 feeding (¦right = rest);
}
## feed-duplicate | 'left' |
composition C(a) => () {
  Merge(left = all a) => () repeat 2 feeding (left = rest, ¦left = merged);
}
## unknown-parameter | 'lift' | left
composition C(a) => () {
  Merge(left = all a) => () repeat 2 feeding (¦lift = rest);
}
## unknown-return | 'rast' | rest
composition C(a) => () {
  Merge(left = all a) => () repeat 2 feeding (¦left = rast);
}
## unknown-return | 'mergd' | merged
composition C(a) => () {
  Merge(left = all a) => () ¦repeat 2 until mergd feeding (left = rest);
}
## unknown-function | Nothing |
composition C(a) => () {
  ¦Nothing(x = all a) => () repeat 2 until y feeding (x = z);
}
## unknown-return | 'b = request' |
composition C(a, b) => (request) {
  Access(token = all a) => (¦request = b);
}
## unknown-parameter | 'token = each a' |
composition C(a) => () {
  Access(¦a = each token) => ();
}
"""
CASES = [case.split("\n", 1) for case in GOLDEN.strip().removeprefix("## ").split("\n## ")]


@pytest.mark.parametrize(("facts", "marked"), CASES)
def test_every_fault_has_its_code_and_place(facts: str, marked: str) -> None:
    code, named, nearest = (fact.strip() for fact in facts.split("|"))
    before, after = marked.split("¦")
    line, column = before.count("\n") + 1, len(before.rsplit("\n", 1)[-1]) + 1
    (problem,) = check(before + after)
    assert (problem.code, problem.line, problem.column) == (code, line, column)
    assert problem.where == f"f.dc:{line}:{column}"
    assert named in problem.message
    assert problem.nearest == nearest
    assert problem.excerpt.split("\n")[1].endswith("^")


def test_declared_sets_are_checked_in_order_and_number() -> None:
    for inputs, outputs in itertools.product(
        [("left", "right", "style"), ("right", "left", "style"), ("left", "right")],
        [("merged", "rest"), ("rest", "merged"), ("merged",)],
    ):
        text = f"function Merge({', '.join(inputs)}) => ({', '.join(outputs)});"
        right = (inputs, outputs) == (KNOWN["Merge"].inputs, KNOWN["Merge"].outputs)
        assert [p.code for p in check(text)] == ([] if right else ["declaration-mismatch"])


def test_a_wrong_declaration_is_one_problem_not_many() -> None:
    text = """\
function HTTP(request) => (header, bodies);
composition C(a) => (x) { HTTP(request = each a) => (x = header); }
"""
    assert [p.code for p in check(text)] == ["declaration-mismatch"]


def test_all_problems_come_in_the_order_of_the_text() -> None:
    text = """\
function Nope(a, a) => (b);
composition Taken(a, a) => (zz) {
    Nope(x = all y, a = each a) => (a = b, c = d) by x;
}
composition Two() => () { Gone() => (); Two() => (); }
"""
    problems = check(text)
    places = [(p.line, p.column) for p in problems]
    assert places == sorted(places)
    assert sorted(p.code for p in problems) == [
        "duplicate-producer",
        "duplicate-set",
        "duplicate-set",
        "join-sharding",
        "name-taken",
        "recursion",
        "undriven-output",
        "unknown-function",
        "unknown-function",
        "unknown-parameter",
        "unknown-return",
        "unknown-set",
    ]


def test_problems_of_several_texts_get_excerpts_of_their_own() -> None:
    texts = {"a.dc": "composition A() => (x) {}", "b:c": "\ncomposition B() => (y) {}"}
    modules = [parse(text, file) for file, text in texts.items()]
    module = CompositionModule((), tuple(c for m in modules for c in m.compositions))
    problems = with_excerpts(validate(module, KNOWN.get), in_texts(texts))
    assert [p.excerpt.split("\n")[0].split("| ")[1] for p in problems] == [
        "composition A() => (x) {}",
        "composition B() => (y) {}",
    ]


def test_ensure_valid_raises_all_of_them() -> None:
    with pytest.raises(InvalidComposition) as caught:
        ensure_valid(parse("composition C(a, a) => (b) {}"), KNOWN.get)
    assert [p.code for p in caught.value.problems] == ["duplicate-set", "undriven-output"]


def test_check_module_takes_declarations_at_their_word() -> None:
    text = "function Later(a) => (b); composition C(a) => (b) { Later(a = all a) => (b = b); }"
    assert check_module(parse(text)) == []
    assert [p.code for p in validate(parse(text), KNOWN.get)] == ["unknown-function"]
    undeclared = "composition C(a) => () { Later(a = all a) => (); }"
    assert [p.code for p in check_module(parse(undeclared))] == ["unknown-function"]
    wrong = text.replace("all a", "all c").replace("b = b", "b = c")
    codes = [p.code for p in check_module(parse(wrong))]
    assert codes == ["unknown-set", "unknown-return"]
    assert [
        p.code for p in check_module(parse(text), {"Later": FunctionSignature("Later")}.get)
    ] == ["declaration-mismatch"]


def test_recursion_is_found_through_registered_compositions() -> None:
    text = "composition A() => () { Old() => (); }"
    uses = {"Old": ("HTTP", "Older"), "Older": ("A",)}
    problems = validate(parse(text), KNOWN.get, uses=lambda name: uses.get(name, ()))
    assert [p.code for p in problems] == ["recursion"]
    assert "A -> Old -> Older -> A" in problems[0].message
    assert validate(parse(text), KNOWN.get, uses=lambda name: ("Old",)) == []


def test_a_composition_replaces_the_registered_one_of_its_name() -> None:
    text = """\
composition Old(x) => (x) {}
composition C(a) => (b) { Old(x = all a) => (b = x); }
"""
    assert check(text) == []


@pytest.mark.parametrize("order", [(), ("left",), ("left", "right", "style")])
def test_a_join_needs_a_word_between_two_sets(order: tuple[str, ...]) -> None:
    join = Join(order, (Strategy.INNER,))
    composition = Composition("C", applications=(Application("Merge", join=join),))
    codes = [p.code for p in validate(CompositionModule((), (composition,)), KNOWN.get)]
    assert codes[0] == "join-shape"


@pytest.mark.parametrize("name", ["", "9a", "a b", "naïve", "a\n", "x" * 256, "a-b"])
def test_names_are_checked_where_no_text_did(name: str) -> None:
    module = CompositionModule((), (Composition("C", (name,)),))
    assert [p.code for p in validate(module, KNOWN.get)] == ["bad-name"]


def test_many_problems_take_little_time() -> None:
    uses = "".join(f"Access(token = all set{i}) => (token{i} = request);" for i in range(3000))
    assert len(check(f"composition C() => () {{ {uses} }}")) == 200


def test_the_specification_lists_every_code() -> None:
    root = Path(__file__).resolve().parent.parent
    listed = set(re.findall(r"^\| `([a-z-]+)` \|", (root / "docs/language.md").read_text(), re.M))
    calls = r"""(?:problem|refuse|Problem|_differs|no_such_set)\(\s*"([a-z-]+)","""
    sources = (path.read_text() for path in (root / "dandelion/dataflow").glob("*.py"))
    used = {code for source in sources for code in re.findall(calls, source)}
    shardings = {"all", "each", "keyed"}
    assert listed - shardings == used
