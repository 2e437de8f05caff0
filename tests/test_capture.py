"""Functions with what they use of their module: what is captured, and what is refused."""

from __future__ import annotations

import linecache
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dandelion as dd
from dandelion.capture import capture
from dandelion.decorators import PythonFunction
from dandelion.documents import FunctionDocument
from dandelion.errors import InvalidFunction, InvalidInput, Raised
from dandelion.node import Node, Settings
from dandelion.recording.records import decode_recording
from dandelion.replay.debug import debug
from dandelion.set_values import item_set

from .captured import program
from .captured.project import tools

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = Path(program.__file__).read_text().splitlines()


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    settings = Settings(backends=("process",), engines={"process": 1}, arena_bytes=32 * 2**20)
    with Node(settings) as started:
        yield started


def line_of(text: str) -> int:
    (found,) = [at for at, line in enumerate(PROGRAM, start=1) if line.strip() == text]
    return found


@pytest.mark.parametrize("name", ["constants", "classes", "imports", "project", "late"])
def test_a_captured_function_does_what_it_does_here(node: Node, name: str) -> None:
    function: PythonFunction = getattr(program, name)
    node.register(function)
    program.counter["calls"] = 0
    assert node.invoke(name, x="x").result.value() == function("x")


def test_structures_are_decoded_and_encoded(node: Node) -> None:
    node.register(program.structures)
    given = program.Record("r", [program.Point(x=1.0)])
    found = node.invoke("structures", record=given, point=program.Point(x=2.0)).result.value()
    assert found["name"] == "R"
    assert [point["x"] for point in found["points"]] == [1.0, 2.0]
    assert node.invoke("structures", record=given).result.value()["points"][1]["x"] == -1.0
    with pytest.raises(Raised, match=r"expected Record, found '\{\}'; the field 'name' is missing"):
        node.invoke("structures", record="{}")


def test_names_in_annotations_are_not_needed(node: Node) -> None:
    assert "npt" not in program.annotated.source.replace("npt.NDArray", "").replace("npt.Arr", "")
    node.register(program.annotated)
    assert node.invoke("annotated", x=[1, 2]).result.value() == 4


def test_only_what_is_used_is_captured() -> None:
    text = program.late.source
    assert [line for line in text.splitlines() if line] == [
        "from dandelion import Item",
        "def late(x: str) -> str:",
        "    return defined_below(x)",
        "def defined_below(x):",
        '    return Item("i", 0, x.encode()).text() + "!"',
    ]


def test_lines_are_those_of_the_file() -> None:
    for name in ("constants", "classes", "imports"):
        lines = getattr(program, name).source.splitlines()
        kept = [(at, line) for at, line in enumerate(lines) if line.startswith(("    ", "def "))]
        assert len(kept) > 5
        assert all(PROGRAM[at] == line for at, line in kept if "= __import__" not in line)


def test_tracebacks_name_file_and_line(node: Node) -> None:
    node.register(program.raises)
    with pytest.raises(Raised) as caught:
        node.invoke("raises", x="x")
    assert caught.value.traceback == (
        "Traceback (most recent call last):\n"
        f'  File "<function raises: program.py>", line {line_of("return raising(middle)")}, '
        "in raises\n"
        "    return raising(middle)\n"
        f'  File "<function raises: program.py>", line {line_of("raise KeyError(x)")}, in raising\n'
        "    raise KeyError(x)\n"
    )


def test_tracebacks_name_lines_of_modules_of_the_project(node: Node) -> None:
    node.register(program.raises_elsewhere)
    with pytest.raises(Raised) as caught:
        node.invoke("raises_elsewhere", x="x")
    lines = Path(tools.__file__).read_text().splitlines()
    at = lines.index('    raise ValueError("in the project")') + 1
    named = f'File "<function raises_elsewhere: tests.captured.project.tools>", line {at}, in fails'
    assert named in caught.value.traceback
    assert 'raise ValueError("in the project")' in caught.value.traceback


def test_modules_of_the_project_are_captured_without_decorators() -> None:
    files = program.project.document.code[0].files
    assert sorted(files) == [
        "module:tests.captured.project.inner.deep",
        "module:tests.captured.project.tools",
        "package:tests",
        "package:tests.captured",
        "package:tests.captured.project",
        "package:tests.captured.project.inner",
    ]
    text = str(files["module:tests.captured.project.tools"])
    assert "def twice" in text
    assert "@dd" not in text
    assert "def both" not in text
    assert len(text.splitlines()) == len(Path(tools.__file__).read_text().splitlines())


def test_imports_of_the_source_are_declared(node: Node) -> None:
    assert "imports" not in program.random_numbers.document.code[0].options
    assert "numpy.random" in program.random_numbers.document.code[0].options["uses"]
    node.register(program.random_numbers)
    assert node.invoke("random_numbers", x="").result.value() == program.random_numbers("")


@pytest.mark.parametrize(
    ("name", "text", "part"),
    [
        ("uses_state", "return stateful.read()", "'stateful' is a TextIOWrapper"),
        ("uses_nothing", "return not_defined(x)  # noqa: F821", "'not_defined' is not defined"),
        ("uses_composition", "return composed(x)", "'composed' is a composition"),
    ],
)
def test_what_cannot_be_captured_is_refused_at_its_line(name: str, text: str, part: str) -> None:
    with pytest.raises(InvalidFunction) as caught:
        _ = getattr(program, name).document
    (problem,) = caught.value.problems
    assert problem.code == "not-captured"
    assert part in problem.message
    assert problem.where.startswith(program.__file__)
    assert problem.line == line_of(text)
    assert PROGRAM[problem.line - 1][problem.column - 1 :].startswith(problem.message.split("'")[1])


def test_include_takes_what_the_source_does_not_show(node: Node) -> None:
    node.register(program.included, program.left_out)
    assert node.invoke("included", x="x").result.text() == "x!"
    with pytest.raises(Raised, match="KeyError"):
        node.invoke("left_out", x="x")
    with pytest.raises(InvalidFunction, match="include has"):
        _ = dd.function(program.through_globals, include=[object()]).document


def test_variables_of_a_function_around_it_are_refused() -> None:
    def helper(x: str) -> str:
        return x

    def inner(x: str) -> str:
        return helper(x)

    with pytest.raises(InvalidFunction, match="'helper', a variable of the function around it"):
        capture(inner)


def test_a_nested_function_without_variables_is_captured() -> None:
    def inner(x: str) -> str:
        return (
            """a text
that is not indented"""
            + x
        )

    found = capture(inner)
    namespace: dict[str, Any] = {}
    exec(found.text, namespace)
    assert namespace["inner"]("!") == inner("!")
    assert namespace["inner"].__code__.co_firstlineno == inner.__code__.co_firstlineno


@pytest.mark.parametrize("value", [len, 3, print, str, lambda x: x])
def test_what_is_no_function_is_refused(value: Any) -> None:
    with pytest.raises((InvalidInput, InvalidFunction)):
        _ = dd.function(value, outputs="x").document


def test_a_function_without_source_is_refused() -> None:
    namespace: dict[str, Any] = {}
    exec(compile("def f(x): return x", "<made>", "exec"), namespace)
    with pytest.raises(InvalidFunction, match="the source of function 'f' is not available"):
        capture(namespace["f"])


def test_a_file_that_has_changed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "changing.py"
    path.write_text("def f(x):\n    return x\n")
    namespace: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), namespace)
    path.write_text("\n\n\ndef f(x):\n    return x\n")
    with pytest.raises(InvalidFunction, match="changed since it was loaded"):
        capture(namespace["f"])


def cell(number: int, text: str, namespace: dict[str, Any]) -> None:
    """Execute a cell as IPython does: under a name of its own, with its lines in `linecache`."""
    name = f"<ipython-input-{number}-test_capture>"
    text = textwrap.dedent(text)
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    exec(compile(text, name, "exec"), namespace)


@pytest.fixture
def notebook() -> Iterator[dict[str, Any]]:
    known = set(linecache.cache)
    yield {"__name__": "__main__"}
    for name in set(linecache.cache) - known:
        del linecache.cache[name]


def test_functions_of_notebooks_use_other_cells(node: Node, notebook: dict[str, Any]) -> None:
    cell(1, "import json\nimport dandelion as dd\nSUFFIX = '?'", notebook)
    cell(2, "def helper(x):\n    return json.dumps(x) + SUFFIX", notebook)
    cell(3, "class Base:\n    end = '.'", notebook)
    cell(
        4,
        """
        class Derived(Base):
            pass

        @dd.function
        def from_cells(x: str) -> str:
            if not x:
                raise ValueError("nothing")
            return helper(x) + Derived.end
        """,
        notebook,
    )
    node.register(notebook["from_cells"])
    assert node.invoke("from_cells", x="a").result.text() == '"a"?.'
    with pytest.raises(Raised) as caught:
        node.invoke("from_cells", x="")
    assert 'File "<function from_cells>", line 8, in from_cells' in caught.value.traceback
    cell(5, "SUFFIX = '!'", notebook)
    assert node.register(notebook["from_cells"])[0].version == 2
    assert node.invoke("from_cells", x="a").result.text() == '"a"!.'


def test_a_recorded_call_runs_in_a_debugger(node: Node) -> None:
    node.register(program.project)
    given = item_set("x", "x")
    recording = decode_recording(node.record("project", {"x": given}))
    seen: list[Any] = []
    finders = sys.meta_path.copy()
    same = debug(recording, recording.calls[0], lambda f, **given: seen.append(given) or f(**given))
    assert same
    assert seen == [{"x": "x"}]
    assert sys.meta_path == finders


def test_the_same_code_gives_the_same_document(node: Node) -> None:
    """Sets and their order depend on the process, documents do not."""
    script = (
        "import hashlib, msgspec\n"
        "from tests.captured import program as p\n"
        "documents = [p.constants.document, p.classes.document, p.project.document]\n"
        "print(hashlib.sha256(msgspec.json.encode(documents)).hexdigest())\n"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", script],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1
    first = node.register(program.constants)
    assert node.register(program.constants) == first


def test_a_document_is_plain_data() -> None:
    document = program.structures.document
    assert isinstance(document, FunctionDocument)
    assert document.code[0].options["entry"] == "structures"
    assert [s if isinstance(s, str) else (s.name, s.form, s.optional) for s in document.inputs] == [
        ("record", "json", False),
        ("point", "json", True),
    ]
