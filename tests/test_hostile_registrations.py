"""Python files that harm the process in which they are read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dandelion.data import SetSpec
from dandelion.documents import (
    CodeDocument,
    FunctionDocument,
)
from dandelion.errors import InvalidFunction, Raised
from dandelion.node import Node, Settings

LAZY = "def f(x):\n    return x\n"


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    settings = Settings(backends=("process",), engines={"process": 1}, arena_bytes=32 * 2**20)
    with Node(settings) as started:
        yield started


def hostile(files: dict[str, Any], values: str = "{}", main: str = LAZY) -> FunctionDocument:
    code = CodeDocument("python", main, files, {"entry": "f", "values": values})
    return FunctionDocument("hostile", (SetSpec("x"),), ("y",), code=(code,))


@pytest.mark.parametrize(
    ("document", "code"),
    [
        (hostile({}, values="{"), "bad-values"),
        (hostile({}, values='{"inputs": {"x": "str; import os"}}'), "bad-values"),
        (hostile({}, values='{"inputs": {"z": "str"}}'), "bad-values"),
        (hostile({}, values='{"outputs": ["str", "str"]}'), "bad-values"),
        (hostile({f"module:m{i}": "" for i in range(65)}), "too-many-files"),
        (hostile({"module:big": "#" * (1 << 20)}), "too-long"),
        (hostile({"module:broken": "def"}), "syntax"),
        (hostile({"module:deep": "(" * 300 + ")" * 300}), "syntax"),
        (hostile({"module:costly": "x = " + "-" * 500_000 + "1"}), "no-code"),
        (hostile({"module:imports": "import email"}), "undeclared-import"),
    ],
)
def test_hostile_sources_are_refused(node: Node, document: FunctionDocument, code: str) -> None:
    with pytest.raises(InvalidFunction) as caught:
        node.register(document)
    assert code in {problem.code for problem in caught.value.problems}


def test_modules_are_executed_in_the_sandbox_alone(node: Node, tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    text = f"open({str(witness)!r}, 'w').write('executed')"
    node.register(hostile({"module:evil": text, "module:json": "x = 1"}))
    assert node.invoke("hostile", x="fine").y.text() == "fine"  # it is not imported
    node.register(hostile({"module:evil": text}, main="import evil\n" + LAZY))
    with pytest.raises(Exception, match="open a file"):
        node.invoke("hostile", x="")
    assert not witness.exists()


def test_modules_of_a_function_do_not_replace_others(node: Node) -> None:
    main = "import json\ndef f(x):\n    return json.dumps(x.text())\n"
    node.register(hostile({"module:json": "def dumps(x): return 'replaced'"}, main=main))
    assert node.invoke("hostile", x="a").y.text() == '"a"'


def test_versions_with_the_same_text_are_told_apart(node: Node) -> None:
    """What a function gets depends on its kinds and its files, and not on its main text alone."""
    main = "def f(x):\n    return type(x).__name__ + globals().get('part', '')\n"
    documents = [
        hostile({}, '{"inputs": {"x": "str"}}', main),
        hostile({}, '{"inputs": {"x": "bytes"}}', main),
        hostile({"part:1": "part = '1'"}, '{"inputs": {"x": "bytes"}}', main),
    ]
    versions = [node.register(document)[0].version for document in documents]
    for _ in range(2):
        found = [node.invoke("hostile", version=v, x="a").y.text() for v in versions]
        assert found == ["str", "bytes", "bytes1"]


def test_files_with_other_names_are_ignored(node: Node) -> None:
    node.register(hostile({"../../etc/passwd": "1", "module:../x": "(", "readme": "("}))
    assert node.invoke("hostile", x="fine").y.text() == "fine"


def test_errors_of_modules_show_their_source(node: Node) -> None:
    node.register(hostile({"part:1 cell": "\n\nraise ValueError('early')"}))
    with pytest.raises(Raised) as caught:
        node.invoke("hostile", x="")
    assert 'File "<function hostile: 1 cell>", line 3' in caught.value.traceback
