"""docs/language.md: its texts are valid, its pictures and messages up to date."""

import itertools
import linecache
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from dandelion import function
from dandelion.catalog import MemoryCatalog
from dandelion.data import SetSpec
from dandelion.dataflow.dsl import composition, each, functions, keyed
from dandelion.dataflow.language import parse
from dandelion.dataflow.printer import from_json, print_module, to_json
from dandelion.dataflow.rules_names import FunctionSignature
from dandelion.dataflow.syntax_words import spellings
from dandelion.dataflow.validate import check_module, validate
from dandelion.documents import RegistrationDocument
from dandelion.errors import InvalidComposition
from dandelion.function import Digest, FunctionSpec
from dandelion.registration import Registrar

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = (DOCS / "language.md").read_text("utf-8")
BLOCKS: list[tuple[str, str]] = re.findall(r"^```(.*)\n([^`]*?)^```$", PAGE, re.MULTILINE)
TEXTS = [text for kind, text in BLOCKS if kind == "dandelion"]
FAULTS = re.findall(r"^### `(.*?)`\n\n```(\w+) fault\n(.*?)```\n\n```text\n(.*?)\n```$", PAGE,
                    re.MULTILINE | re.DOTALL)  # fmt: skip
KNOWN = {
    "HTTP": FunctionSpec("HTTP", (SetSpec("requests"),), (SetSpec("headers"), SetSpec("bodies"))),
    "Access": FunctionSpec("Access", (SetSpec("token"),), (SetSpec("request"),)),
    "Merge": FunctionSpec(
        "Merge", (SetSpec("left"), SetSpec("right")), (SetSpec("merged"), SetSpec("rest"))
    ),
    "Classify": FunctionSpec(
        "Classify", (SetSpec("image"), SetSpec("weights")), (SetSpec("label"),),
        {"weights": (("w", Digest("0" * 64)),)},
    ),
}  # fmt: skip
SIGNATURES = {n: FunctionSignature(n, s.input_names, s.output_names) for n, s in KNOWN.items()}


# --- texts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", TEXTS)
def test_every_text_is_valid_and_canonical_but_for_comments(text: str) -> None:
    module = parse(text)
    assert check_module(module, text=text) == []
    assert print_module(module) == re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)
    assert from_json(to_json(module)) == module


def test_every_block_is_of_a_kind_that_is_tested() -> None:
    kinds = {kind for kind, _ in BLOCKS}
    assert kinds == {"dandelion", "ebnf", "json", "text", "dandelion fault", "json fault",
                     "python fault"}  # fmt: skip


def test_json_says_the_same_as_the_text_before_it() -> None:
    pairs = [(a, b) for a, b in itertools.pairwise(BLOCKS) if b[0] == "json"]
    assert pairs
    for (kind, text), (_, view) in pairs:
        assert kind == "dandelion"
        assert from_json(view) == parse(text)
        assert msgspec.json.decode(view) == msgspec.json.decode(to_json(parse(text)))


def test_the_grammar_has_the_words_and_signs_of_the_parser() -> None:
    (ebnf,) = (text for kind, text in BLOCKS if kind == "ebnf")
    quoted = set(re.findall(r'"([^"\s]+)"', ebnf)) - {"_", "0", "1", "9"}
    assert quoted == set(spellings().values())


def test_pictures_are_up_to_date() -> None:
    drawn: Callable[[], dict[str, str]] = runpy.run_path(str(DOCS / "draw_pictures.py"))["pictures"]
    wanted = drawn()
    assert list(wanted) == re.findall(r"\]\(pictures/(.*?)\)", PAGE)
    found = {file: (DOCS / "pictures" / file).read_text("utf-8") for file in wanted}
    assert found == wanted, "run: python -m docs.draw_pictures"


# --- messages ---------------------------------------------------------------------------------


def said(kind: str, text: str) -> str:
    """The message for a text in the language, in JSON or in Python."""
    if kind == "python":
        return about_python(text)
    file = "logs.dandelion"
    try:
        module = parse(text, file) if kind == "dandelion" else from_json(text)
        source = text if kind == "dandelion" else ""
        problems = validate(module, SIGNATURES.get, {"HTTP"}, names=SIGNATURES.keys, text=source)
        if not problems:
            document = RegistrationDocument(compositions=(text,))
            Registrar(MemoryCatalog(), KNOWN, {}).draft(document)
        return str(InvalidComposition(tuple(problems)))
    except InvalidComposition as error:
        return str(error).replace("composition 1:", f"{file}:")


def about_python(text: str) -> str:
    (access,) = functions("Access(token) -> (request)")
    names = {"access": access, "composition": composition, "each": each, "keyed": keyed}
    names["function"] = function
    linecache.cache["logs.py"] = (len(text), None, text.splitlines(keepends=True), "logs.py")
    try:
        exec(compile(text, "logs.py", "exec"), {"__name__": "logs", **names})
    except InvalidComposition as error:
        return str(error)
    finally:
        del linecache.cache["logs.py"]
    return ""


@pytest.mark.parametrize(("code", "kind", "text", "message"), FAULTS, ids=[f[0] for f in FAULTS])
def test_messages(code: str, kind: str, text: str, message: str) -> None:
    if code == "no-value" and sys.version_info >= (3, 13):  # which names what is iterated over
        message = message.replace(":25:", ":59:").replace(" " * 25 + "^", " " * 59 + "^" * 6)
    assert said(kind, text) == message


def test_every_code_has_its_rule_and_its_message() -> None:
    listed = re.findall(r"^\| `([a-z-]+)` \| [^|]+ \|$", PAGE.split("## Meaning")[0], re.MULTILINE)
    explained = [code for code, *_ in FAULTS]
    assert sorted([*listed, "static-set"]) == sorted(explained)
