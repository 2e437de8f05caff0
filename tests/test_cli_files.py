"""The command line without a node: usage, checks, graphs, the doctor."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dandelion import __version__
from dandelion.cli import doctor
from dandelion.frontend.server import BackgroundServer
from dandelion.node import Node
from dandelion.tokens import Right, TokenRecord
from dandelion.tokens.file import write_tokens
from dandelion.tokens.records import digest_of
from tests.cli_commands import BAD, GOOD, ROOT, Command, given_command
from tests.node.served import DOCUMENT, SETTINGS, GateDriver

command = pytest.fixture()(given_command)

BLUEPRINT = ROOT / "compositions" / "vector_add" / "add.json"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with Node(SETTINGS, [GateDriver()]) as node:
        node.register(DOCUMENT)
        assert node.wait_ready()
        with BackgroundServer(node, drain_s=5) as server:
            yield server.url


@pytest.fixture
def remote(command: Command, url: str, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setenv("DANDELION_URL", url)
    return command


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("", "COMMAND"),
        ("nothing", "not one of serve, init"),
        ("invok", "did you mean 'invoke'"),
        ("invoke", "required: NAME;"),
        ("invoke x --dedline 3", "did you mean '--deadline'"),
        ("invoke x a=b --deadline soon", "--deadline"),
        ("ls --no", "no such option '--no'"),
        ("ls x", "not one of functions, compositions, libraries, backends, engines"),
        ("ls enigne", "did you mean 'engines'"),
        ("ls lib", "did you mean 'libraries'"),
        ("ls functions more", "unexpected argument 'more'"),
        (
            "serve app.py",
            "unexpected argument 'app.py'; to serve what a file defines: dandelion dev FILE",
        ),
        ("list", "there is no 'list'; did you mean 'ls'?"),
        ("delete x", "there is no 'delete'; did you mean 'rm'?"),
        ("--json ls", "after the command"),
        ("bench lst", "did you mean 'list'"),
        ("serve --prto 80", "did you mean '--port'"),
        ("serve --frontend 2", "did you mean '--frontends'"),
        ("graph x --format png", "not one of svg, mermaid, json, text"),
        ("graph x --name y", "selects from a file"),
    ],
)
def test_wrong_usage(command: Command, arguments: str, said: str) -> None:
    code, out, error = command(*arguments.split())
    assert (code, out) == (2, "")
    assert said in error
    assert len(error.splitlines()) == 1 or "--json" in arguments
    code, _, error = command(*arguments.split(), "--json")
    assert code == 2
    assert said in json.loads(error)["detail"] or "--no" in arguments


def test_version_and_help(command: Command) -> None:
    assert command("--version")[:2] == (0, f"dandelion {__version__}\n")
    assert command("--help")[0] == 0
    for verb in ("serve", "register", "invoke", "ls", "describe", "rm", "check", "graph", "doctor"):
        assert command(verb, "--help")[0] == 0


@pytest.mark.parametrize("arguments", ["--version", "serve --help", "token list --tokens FILE"])
def test_a_full_disk_is_one_line(tmp_path: Path, arguments: str) -> None:
    path = tmp_path / "tokens.toml"
    write_tokens(path, [TokenRecord(name="a", sha256=digest_of("a"), rights=(Right.READ,))])
    command = [sys.executable, "-m", "dandelion", *arguments.replace("FILE", str(path)).split()]
    with open("/dev/full", "w") as full:
        found = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False)
    assert (found.returncode, found.stderr) == (1, b"dandelion: No space left on device\n")


def test_help_whose_reader_has_exited() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "dandelion", "serve", "--help"]
    found = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (found.returncode, found.stderr) == (1, b"")


INTERRUPTED = """
import runpy, signal, sys

module, sys.argv[1:] = sys.argv[1], ["invoke", "f", "--url", "http://127.0.0.1:1"]

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:  # as modules in C do
                raise ImportError from None

sys.meta_path.insert(0, Interrupting())
runpy.run_module("dandelion", run_name="__main__")
"""


@pytest.mark.parametrize("module", ["msgspec", "dandelion.cli.invoke", "numpy"])
def test_an_interrupt_while_modules_are_loaded_ends_the_command(module: str) -> None:
    command = [sys.executable, "-c", INTERRUPTED, module]
    found = subprocess.run(command, capture_output=True, check=False)
    assert (found.returncode, found.stderr) == (-signal.SIGINT, b"")


def test_check_the_compositions_of_the_project(command: Command) -> None:
    code, out, _ = command("check", ROOT / "compositions", "--json")
    assert code == 0
    checked = json.loads(out)
    assert {c["kind"] for c in checked} == {"composition", "blueprint", "document"}
    assert not any(c["problems"] for c in checked)
    assert not any(c["file"].endswith("weights.json") for c in checked)


def test_check_points_at_the_place(command: Command, tmp_path: Path) -> None:
    bad = tmp_path / "bad.dandelion"
    bad.write_text(BAD)
    (tmp_path / "good.dandelion").write_text(GOOD)
    blueprint = json.loads(BLUEPRINT.read_text())
    blueprint["blueprint"]["inputs"] = 3
    broken = tmp_path / "broken.json"
    broken.write_text(json.dumps(blueprint))
    document = tmp_path / "document.json"
    document.write_text(json.dumps({"compositions": [GOOD, BAD]}))
    (tmp_path / "other.json").write_text('{"anything": "else"}')
    (tmp_path / ".hidden.json").write_text('{"blueprint": 3}')
    code, out, _ = command("check", tmp_path)
    assert code == 1
    assert f"{bad}:3:5: " in out
    assert "did you mean 'echo'" in out
    assert f"{broken}: blueprint.inputs" in out
    assert f"{document}: compositions[1]" in out
    assert "4 files checked, 3 with problems" in out
    assert "Python files" not in out
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "app.py").write_text("def (")
    code, out, _ = command("check", tmp_path / "empty", bad)
    assert code == 1
    assert "Python files are checked if they are named\n1 file checked" in out


def test_check_looks_into_the_sources_beside_a_blueprint(command: Command, tmp_path: Path) -> None:
    for name in ("add.json", "add.c"):
        (tmp_path / name).write_text((BLUEPRINT.parent / name).read_text())
    assert command("check", tmp_path)[0] == 0
    blueprint = json.loads(BLUEPRINT.read_text())
    launch = blueprint["blueprint"]["control_flow"][0]["ExecKernel"]
    launch[1] = launch[1][:-1]
    (tmp_path / "add.json").write_text(json.dumps(blueprint))
    assert command("check", tmp_path)[0] == 1


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("x.txt", "", 1),
        ("x.json", "[]", 1),
        ("x.json", "{", 1),
        ("x.json", '{"anything": 1}', 1),
        ("x.dandelion", "composition", 1),
        ("x.dandelion", "", 0),
        ("x.dandelion", "\udcff", 1),
        ("gone/x", None, 2),
    ],
)
def test_check_one_file(
    command: Command, tmp_path: Path, name: str, content: str | None, code: int
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content.encode("utf-8", "surrogateescape"))
    assert command("check", path)[0] == code


def test_check_does_not_read_devices_and_pipes(command: Command, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "zero.json").symlink_to("/dev/zero")
    for path in (Path("/dev/zero"), tmp_path / "zero.json", tmp_path / "pipe.py"):
        code, out, _ = command("check", path)
        assert code == 1
        assert f"{path}: it is not a regular file" in out


@pytest.mark.parametrize("verb", ["check", "deploy", "register", "run", "dev", "wheels", "graph"])
def test_a_link_to_itself_is_no_file(command: Command, tmp_path: Path, verb: str) -> None:
    loop = tmp_path / "loop.py"
    loop.symlink_to(loop)
    code, _, error = command(verb, loop)
    assert code == 2
    assert f"{loop}: no such file" in error


NESTED = """
import dandelion as dd

@dd.function
def shout(text: str) -> str:
    return text.upper()

@dd.composition
def inner(x):
    return shout(x)

@dd.composition
def outer(x):
    return inner(x)

@dd.composition
def other(x):
    return shout(x)
"""


def test_a_graph_as_text_has_all_that_it_applies(command: Command, tmp_path: Path) -> None:
    path, text = tmp_path / "nested.py", tmp_path / "outer.dandelion"
    path.write_text(NESTED)
    code, _, error = command("graph", path)
    assert code == 1
    assert "the text has 3 compositions; name one (--name on the command line)" in error
    code, out, _ = command("graph", path, "--name", "outer", "--format", "text")
    assert code == 0
    assert "composition inner" in out
    assert "other" not in out
    text.write_text(out)
    assert command("check", text)[0] == 0


PROGRAM = """
import dandelion as dd

@dd.function
def slow(n: int) -> int:
    return n

@dd.composition
def sums(numbers):
    {}
    return {{"sums": slow(dd.each(numbers))}}
"""


WITH_TEXT = """
from dandelion.documents import RegistrationDocument

def document():
    return RegistrationDocument(compositions=("composition",))
"""


DECLARED = """
import dandelion as dd

@dd.function({})
def {}({}: str) -> int:
    return 1
"""


@pytest.mark.parametrize(
    ("program", "found"),
    [
        (PROGRAM.format("pass"), ""),
        (PROGRAM.format("if numbers: pass"), r"x\.py:10:\d+: a set has no value"),
        (WITH_TEXT, r"x\.py: compositions\[0\]"),
        ("x = 1", "nothing to register"),
        ("raise ValueError('no')", "ValueError: no"),
        (DECLARED.format("", "größe", "x"), r"x\.py: function größe: 'größe' is not a valid id"),
        (DECLARED.format("", "f", "名前"), r"x\.py: function f: inputs\[0\]: '名前' is not"),
        (DECLARED.format("batching=dd.Batching(('y',))", "f", "x"), "'y' is not an input set"),
        (DECLARED.format("limits={'wall_s': -1}", "f", "x"), "f: limits: wall_s is -1"),
        (DECLARED.format("limits={'wall_s': 9999}, secrets={'x': 'KEY'}", "f", "x"), ""),
    ],
)
def test_check_a_python_file(command: Command, tmp_path: Path, program: str, found: str) -> None:
    path = tmp_path / "x.py"
    path.write_text(program)
    code, out, _ = command("check", path)
    assert code == bool(found)
    assert re.search(found, out)
    assert "named\n0 files" in command("check", tmp_path)[1], "it has to be named"


def test_graph_of_a_file(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "good.dandelion"
    path.write_text(GOOD)
    assert command("graph", path, "--name", "one", "--format", "mermaid")[1].startswith("flowchart")
    assert json.loads(command("graph", path, "--name", "one", "--json")[1])["name"] == "one"
    svg = tmp_path / "one.svg"
    assert command("graph", path, "--name", "one", "-o", svg)[0] == 0
    assert svg.read_text().startswith("<svg")
    assert command("graph", path)[0] == 1  # there are two
    assert command("graph", path, "--name", "on")[0] == 1
    assert command("graph", tmp_path / "no.dandelion")[0] == 2


PROGRAM = """
import dandelion as dd

@dd.function
def shout(text: str) -> str:
    return text.upper()

@dd.composition
def once(texts):
    return {"loud": shout(dd.each(texts))}

@dd.composition
def again(texts):
    return {"loud": once(texts)}
"""


def test_a_graph_of_what_is_no_text(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "x.dandelion"
    path.write_bytes(b"\xff")
    code, _, error = command("graph", path)
    assert (code, error) == (1, f"dandelion: {path}: not valid UTF-8: invalid start byte\n")


def test_graph_of_a_python_file(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "app.py"
    path.write_text(PROGRAM)
    code, drawn, _ = command("graph", path, "--name", "once")
    assert code == 0
    assert drawn.count("function shout") == 1
    assert "composition once" in drawn
    assert "composition again" in command("graph", path, "--name", "again")[1]
    code, _, error = command("graph", path)
    assert (code, "once, again" in error) == (1, True)
    code, _, error = command("graph", path, "--name", "agian")
    assert (code, "did you mean 'again'" in error) == (1, True)
    path.write_text(PROGRAM.partition("@dd.composition")[0])
    code, _, error = command("graph", path)
    assert (code, "has no composition" in error) == (1, True)


def test_the_suffix_says_what_a_graph_is_written_as(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "good.dandelion"
    path.write_text(GOOD)
    for suffix, begin in (
        *((".svg", "<svg"), (".SVG", "<svg"), (".mmd", "flowchart"), (".md", "```mermaid\nflow")),
        *((".json", "{"), (".txt", "function echo"), (".dandelion", "function echo")),
    ):
        target = tmp_path / f"graph{suffix}"
        assert command("graph", path, "--name", "one", "-o", target)[0] == 0
        assert target.read_text().startswith(begin)
    target = tmp_path / "graph"
    assert command("graph", path, "--name", "one", "--format", "svg", "-o", target)[0] == 0
    assert target.read_text().startswith("<svg")


@pytest.mark.parametrize(
    "arguments", ["-o g.png", "-o g.svgz", "-o g.svg --format json", "-o g.svg --json"]
)
def test_a_graph_is_not_written_as_something_else(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "good.dandelion"
    path.write_text(GOOD)
    code, _, error = command("graph", path, "--name", "one", *arguments.split())
    assert code == 2
    assert "svg" in error
    assert [p.name for p in tmp_path.iterdir()] == ["good.dandelion"]


def test_graph_of_a_node(remote: Command) -> None:
    code, out, _ = remote("graph", "twice")
    assert code == 0
    assert "composition twice" in out


def test_doctor(command: Command) -> None:
    code, out, _ = command("doctor", "--json")
    assert json.loads(out)["verdict"]["runs_functions"] == (code == 0)
    found = {(f["area"], f["name"]): f for f in json.loads(out)["findings"]}
    assert found["memory", "arena"]["works"]
    assert found["backend", "null:null"]["works"]
    assert found["registry", "sqlite"]["works"]
    compute = [f for (area, name), f in found.items() if area == "backend" and f["works"]]
    assert code == (0 if len(compute) > 2 else 1)  # null and http alone run no functions of users


def test_doctor_ends_with_a_verdict() -> None:
    findings = [
        doctor.Finding("memory", "arena", True, "memfd"),
        doctor.Finding("backend", "cuda", False, "no driver", "pip install 'x[cuda]', and more"),
        doctor.Finding("backend", "hip", False, "no library"),
        doctor.Finding("backend", "null:null", True, "answers"),
        doctor.Finding("backend", "process:0", True, "core 0"),
    ]
    verdict = doctor.judge(findings)
    lines = "\n".join(doctor.lines_of(verdict, findings)).splitlines()
    assert "works: null, process" in lines
    assert "does not work: cuda, hip" in lines
    assert "    pip install 'x[cuda]'" in lines
    assert lines[-2].startswith("verdict: a node can run functions")
    assert lines[-1] == "    dandelion serve"
    nothing = doctor.judge(findings[:-1])
    assert not nothing.runs_functions
    assert [*doctor.lines_of(nothing, findings[:-1])][-1].startswith("verdict: a node cannot")


def test_a_backend_without_its_sandbox_does_not_work() -> None:
    findings = [
        doctor.Finding("memory", "arena", True, "memfd"),
        doctor.Finding("backend", "opencl:cpu", True, "pthread"),
        doctor.Finding("sandbox", "opencl", False, "others than root cannot enter /root/tmp"),
        doctor.Finding("backend", "process:0", True, "core 0"),
        doctor.Finding("sandbox", "process: user", True, "65534 (nobody)"),
    ]
    verdict = doctor.judge(findings)
    assert (verdict.works, verdict.does_not_work) == (("process",), ("opencl",))


def test_doctor_shows_cores_as_one_line() -> None:
    cores = [doctor.Finding("backend", f"p:{n}", True, f"core {n} (runs p)") for n in range(64)]
    others = [doctor.Finding("backend", "q:0", True, "core 0 (runs q)")]
    first, second = doctor.merged([*cores, *others])
    assert first.name == "p:0 to 63"
    assert "64 alike" in first.detail
    assert second == others[0]
