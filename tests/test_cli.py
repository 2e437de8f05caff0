"""The command line: verbs against a served node, files without one, and a server as a process."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dandelion import __version__
from dandelion.cli import doctor, serve
from dandelion.cli.main import main
from dandelion.cli.settings import load_settings, setting_help, unknown_variables
from dandelion.errors import InvalidInput
from dandelion.frontend.logs import TextLines
from dandelion.frontend.server import BackgroundServer
from dandelion.node import Node, Settings
from tests.node.served import DOCUMENT, SETTINGS, GateDriver

ROOT = Path(__file__).resolve().parent.parent
GOOD = """function echo(a) => (b);
composition one(x) => (y) { echo(a = all x) => (y = b); }
composition two(x) => (y) { one(x = each x) => (y = y); }
"""
BAD = "function echo(a) => (b);\ncomposition one(x) => (y) {\n    ecko(a = all x) => (y = b);\n}\n"
BLUEPRINT = ROOT / "compositions" / "vector_add" / "add.json"

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with Node(SETTINGS, [GateDriver()]) as node:
        node.register(DOCUMENT)
        assert node.wait_ready()
        with BackgroundServer(node, drain_s=5) as server:
            yield server.url


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs a command; returns its exit code, standard output and standard error."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("DANDELION_URL", raising=False)

    def run(*arguments: object) -> tuple[int, str, str]:
        code = main([str(a) for a in arguments])
        return (code, *capfd.readouterr())

    return run


@pytest.fixture
def remote(command: Command, url: str, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setenv("DANDELION_URL", url)
    return command


# --- with a node --------------------------------------------------------------------------------


def test_register_ls_describe_rm(remote: Command, tmp_path: Path) -> None:
    text = tmp_path / "good.dandelion"
    text.write_text(GOOD)
    code, out, _ = remote("register", text, "--json")
    assert code == 0
    assert {r["name"] for r in json.loads(out)["registered"]} == {"one", "two"}
    code, out, _ = remote("ls", "compositions", "--json")
    assert {"one", "two", "twice"} <= {e["name"] for e in json.loads(out)}
    assert {e["kind"] for e in json.loads(out)} == {"composition"}
    code, out, _ = remote("describe", "two")
    assert "composition two" in out
    assert remote("rm", "one")[0] == 1  # two uses it
    assert json.loads(remote("rm", "two", "--json")[1])[0]["name"] == "two"
    assert remote("rm", "one")[0] == 0
    assert remote("describe", "one")[0] == 1


def test_tables_for_people(remote: Command) -> None:
    code, out, _ = remote("ls")
    assert code == 0
    assert "(left, right) -> (left, right)" in out
    assert "6 bytes" in out  # the library
    assert "fixed" in remote("describe", "fixed")[1]
    assert "float32" in remote("describe", "matrix")[1]
    assert "sha256" in remote("describe", "lib/k.cl")[1]


@pytest.mark.parametrize("kind", ["python", "folder", "bundle", "json"])
def test_what_can_be_registered(remote: Command, tmp_path: Path, kind: str) -> None:
    document = "from dandelion.documents import *\ndef document():\n    return {}\n"
    made = (
        "RegistrationDocument(functions=(FunctionDocument(NAME, ('a',), ('b',), "
        "code=(CodeDocument('null'),)),))"
    )
    name = f"from_{kind}"
    path = tmp_path
    if kind == "python":
        path = tmp_path / "module.py"
        path.write_text(document.format(made.replace("NAME", repr(name))))
    elif kind == "bundle":
        (tmp_path / "neighbour.py").write_text(f"NAME = {name!r}\n")
        text = "from .neighbour import NAME\n" + document.format(made)
        (tmp_path / "bundle.py").write_text(text)
    elif kind == "folder":
        (tmp_path / "a.dandelion").write_text(GOOD.replace("one", name).replace("two", "second"))
    else:
        path = tmp_path / "document.json"
        function = {"name": name, "inputs": ["a"], "outputs": ["b"], "code": [{"format": "null"}]}
        path.write_text(json.dumps({"functions": [function]}))
    code, out, _ = remote("register", path, "--json")
    assert code == 0
    assert name in {r["name"] for r in json.loads(out)["registered"]}


@pytest.mark.parametrize(
    ("file", "content", "code", "said"),
    [
        ("x.txt", "", 1, "cannot be registered"),
        ("x.py", "pass", 1, "nothing to register; put @dandelion.function"),
        ("x.py", "def document(): return 3", 1, "returned a int"),
        ("x.py", "def", 1, "cannot be loaded"),
        ("x.py", "import no_such_module_here", 1, "cannot be loaded"),
        ("x.py", "import sys\nsys.exit(3)", 1, "line 2"),
        ("x.py", "import sys\nsys.exit('bye')", 1, "bye"),
        ("x.json", '{"functions": [{"name": 3}]}', 1, "functions[0].name"),
        ("x.json", "{", 1, "body"),
        ("x.dandelion", BAD, 1, "did you mean 'echo'"),
        ("x.dandelion", "\udcff", 1, "UTF-8"),
        ("gone/x.dandelion", None, 2, "no such file"),
    ],
)
def test_what_cannot_be_registered(
    remote: Command, tmp_path: Path, file: str, content: str | None, code: int, said: str
) -> None:
    path = tmp_path / file
    if content is not None:
        path.write_bytes(content.encode("utf-8", "surrogateescape"))
    got, _, error = remote("register", path)
    assert got == code
    assert said in error
    assert "Traceback" not in error


def test_invoke(remote: Command, tmp_path: Path) -> None:
    data = tmp_path / "data.bin"
    data.write_bytes(b"\xff\0\1")
    assert "text" in remote("invoke", "echo", "a=text")[1]
    assert "ff 00 01" in remote("invoke", "echo", f"a=@{data}")[1]
    assert "data.bin" in remote("invoke", "echo", f"a=@{data}")[1]
    assert "(empty)" in remote("invoke", "echo", "a:=null")[1]
    assert '{"k":[1,null]}' in remote("invoke", "echo", 'a:={"n": {"k": [1, null]}}')[1]
    assert "1, 2, 3, 4" in remote("invoke", "matrix", "m:=[[1,2],[3,4]]")[1]
    reply = json.loads(remote("invoke", "echo", "a=p", "a=q", f"a=@{data}", "--json")[1])
    assert [i["name"] for i in reply["sets"]["b"]] == ["a", "a", "data.bin"]
    assert remote("invoke", "echo", "a=plain text", "--raw")[1] == "plain text"
    target = tmp_path / "out"
    assert remote("invoke", "pair", "left=L", "right=R", "--set", "right", "-o", target)[0] == 0
    assert target.read_bytes() == b"R"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["echo", "a"], 2, "write set=text"),
        (["echo", "=x"], 2, "write set=text"),
        (["echo", "a:={"], 2, "not valid JSON"),
        (["echo", "a:=1", "a=x"], 2, "once"),
        (["echo", "a=@/no/such/file"], 1, "No such file"),
        (["echo", "aa=x"], 1, "did you mean 'a'"),
        (["ecko", "a=x"], 1, "did you mean 'echo'"),
        (["echo", "a=x", "--version", "9"], 1, "version 9"),
        (["echo", "a=x", "--deadline", "-1"], 1, "deadline"),
        (["echo", "a=x", "--priority", "1001"], 1, "1001"),
        (["echo", "a=x", "--priority", "high"], 2, "high"),
        (["pair", "left=x", "right=y", "--raw"], 1, "2 items"),
        (["pair", "left=x", "right=y", "--set", "rigth"], 1, "did you mean 'right'"),
        (["fails", "x=y"], 1, "ValueError: no"),
        (["matrix", 'm:={"a": {}}'], 1, "is a dict"),
        (["matrix", "m=[[1,2]]"], 1, "write m:=[[1,2]]"),
    ],
)
def test_invocations_that_go_wrong(
    remote: Command, arguments: list[str], code: int, said: str
) -> None:
    got, _, error = remote("invoke", *arguments)
    assert got == code
    assert said in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    "arguments",
    [
        "invoke BAD a=x",
        "invoke echo BAD=x",
        "invoke echo BAD:=1",
        "invoke echo a=x --token @FILE",
        "submit BAD a=x",
        "describe BAD",
        "rm BAD",
        "trace BAD",
        "result BAD",
        "cancel BAD",
        "logs --function BAD",
        "invocations --after BAD",
        "capacity BAD",
    ],
)
def test_what_is_not_unicode_is_refused(remote: Command, tmp_path: Path, arguments: str) -> None:
    (tmp_path / "token").write_bytes(b"\xff")
    text = arguments.replace("BAD", "\udcff").replace("FILE", str(tmp_path / "token"))
    code, _, error = remote(*text.split())
    assert code == 1
    assert error.startswith("dandelion: ")


def test_integers_are_shown_with_all_digits(remote: Command) -> None:
    numbers = 'm:={"numbers": [1234567, -9007199254740993], "dtype": "int64"}'
    shown = remote("invoke", "echo", numbers.replace("m:=", "a:="))[1]
    assert "int64[2]: 1234567, -9007199254740993" in shown


def test_output_that_cannot_have_all_characters(url: str) -> None:
    command = [sys.executable, "-m", "dandelion", "invoke", "echo", "a=\u20ac", "--url", url]
    found = subprocess.run(
        command, capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii"}, check=False
    )
    assert found.returncode == 0, found.stderr
    assert rb"\u20ac" in found.stdout
    closed = subprocess.run(  # standard input and output are closed
        ["sh", "-c", 'exec "$@" <&- >&-', "sh", *command], stderr=subprocess.PIPE, check=False
    )
    assert (closed.returncode, closed.stderr) == (0, b"")


@pytest.mark.parametrize(
    "order",
    [
        "--deadline 5 --set right pair left=L right=R",
        "pair --deadline 5 left=L --set right right=R",
        "pair left=L --deadline 5 right=R --set right",
        "pair left=L right=R --set=right --deadline=5",
    ],
)
def test_options_lie_anywhere(remote: Command, order: str) -> None:
    assert remote("invoke", *order.split(), "--raw") == (0, "R", "")
    assert remote("invoke", "--raw", *order.split()) == (0, "R", "")


def test_tables_are_whole_where_there_is_no_terminal(
    remote: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    name = "long" * 30
    text = tmp_path / "long.dandelion"
    text.write_text(GOOD.replace("one", name).replace("two", "outer"))
    assert remote("register", text)[0] == 0
    lines = remote("ls", "compositions")[1].splitlines()
    assert f"composition   {name}   1" in "\n".join(lines)
    assert any(line.endswith(f"uses {name}") for line in lines)
    assert lines == [line.rstrip() for line in lines]


def test_tables_are_folded_on_a_terminal() -> None:
    ours, theirs = os.openpty()
    program = """if True:
        from dandelion.cli.output import Output
        Output(False).table(("a", "b"), [("x" * 150, "y")])
    """
    environment = dict(os.environ, COLUMNS="80", TERM="dumb", PYTHONPATH=str(ROOT))
    with open(ours, "rb", buffering=0) as terminal:  # a descriptor, not a path
        with open(theirs, "wb") as out:
            command = [sys.executable, "-c", program]
            subprocess.run(command, stdout=out, env=environment, check=True, timeout=60)
        shown = terminal.read(4096).decode()
    assert max(map(len, shown.splitlines())) <= 80
    assert shown.count("x") == 150


@pytest.mark.parametrize("kind", ["libraries", "library", "Functions", "compositions"])
def test_one_kind(remote: Command, kind: str) -> None:
    code, out, _ = remote("ls", kind, "--json")
    assert code == 0
    (found,) = {entry["kind"] for entry in json.loads(out)}
    assert found[:4] == kind.lower()[:4]


def test_engines_and_backends(remote: Command) -> None:
    engines = json.loads(remote("ls", "engines", "--json")[1])
    assert {"null", "gate:0"} <= {engine["name"] for engine in engines}
    found = {b["backend"]: b["engines"] for b in json.loads(remote("ls", "backends", "--json")[1])}
    assert found["null"] == {"ready": 1}
    assert "gate:0" in remote("ls", "engines")[1]
    assert "1 ready" in remote("ls", "backends")[1]


def test_nothing_is_said_to_be_nothing(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(backends=(), arena_bytes=1 << 20)
    with Node(settings) as node, BackgroundServer(node, drain_s=1) as server:
        monkeypatch.setenv("DANDELION_URL", server.url)
        assert "no libraries" in command("ls", "libraries")[1]
        assert json.loads(command("ls", "libraries", "--json")[1]) == []


def test_describe_shows_the_limits(remote: Command) -> None:
    assert "512.0 MiB of memory" in remote("describe", "echo")[1]


def test_errors_as_json(remote: Command) -> None:
    code, out, error = remote("invoke", "ecko", "a=x", "--json")
    assert (code, out) == (1, "")
    assert json.loads(error)["error"]["type"] == "Unknown"


def test_debug_shows_the_traceback(remote: Command) -> None:
    assert "Traceback" in remote("invoke", "ecko", "a=x", "--debug")[2]


def test_unreachable(command: Command) -> None:
    code, _, error = command("ls", "--url", "http://127.0.0.1:1")
    assert code == 3
    assert "http://127.0.0.1:1" in error


# --- without a node -----------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("program", "found"),
    [
        (PROGRAM.format("pass"), ""),
        (PROGRAM.format("if numbers: pass"), r"x\.py:10:\d+: a set has no value"),
        (WITH_TEXT, r"x\.py: compositions\[0\]"),
        ("x = 1", "nothing to register"),
        ("raise ValueError('no')", "ValueError: no"),
    ],
)
def test_check_a_python_file(command: Command, tmp_path: Path, program: str, found: str) -> None:
    path = tmp_path / "x.py"
    path.write_text(program)
    code, out, _ = command("check", path)
    assert code == bool(found)
    assert re.search(found, out)
    assert command("check", tmp_path)[1].startswith("0 files"), "it has to be named"


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


def test_doctor_shows_cores_as_one_line() -> None:
    cores = [doctor.Finding("backend", f"p:{n}", True, f"core {n} (runs p)") for n in range(64)]
    others = [doctor.Finding("backend", "q:0", True, "core 0 (runs q)")]
    first, second = doctor.merged([*cores, *others])
    assert first.name == "p:0 to 63"
    assert "64 alike" in first.detail
    assert second == others[0]


# --- settings -----------------------------------------------------------------------------------


def test_flags_above_environment_above_file(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text(
        'host = "0.0.0.0"\nport = 1\nmax_waiting = 5\narena_bytes = "64MiB"\n'
        'backends = ["null"]\n[options.http]\nallow = "example.org"\n[engines]\nprocess = 2\n'
    )
    environment = {"DANDELION_PORT": "2", "DANDELION_MAX_WAITING": "6", "DANDELION_URL": "x"}
    settings = load_settings(file, environment, {"port": ["3"]})
    assert (settings.host, settings.port, settings.max_waiting) == ("0.0.0.0", 3, 6)
    assert settings.arena_bytes == 64 << 20
    assert settings.backends == ("null",)
    assert settings.options == {"http": {"allow": "example.org"}}
    assert settings.engines == {"process": 2}
    assert load_settings(None, {}, {}) == Settings()


def test_settings_as_text() -> None:
    flags = {
        "backends": ["null, cuda|opencl"],
        "engines": ["process=2,null=1"],
        "options": ["http.allow=a.org", "http.timeout_s=3"],
        "body_limit_bytes": ["1GiB", "2GiB"],
        "default_deadline_s": ["1.5"],
        "hosts": ["a.example, b.example"],
        "cors_origins": ["https://a.example"],
        "body_rate_bytes": ["1KiB"],
        "head_timeout_s": ["2.5"],
    }
    settings = load_settings(None, {}, flags)
    assert settings.backends == ("null", "cuda|opencl")
    assert settings.engines == {"process": 2, "null": 1}
    assert settings.options == {"http": {"allow": "a.org", "timeout_s": "3"}}
    assert (settings.body_limit_bytes, settings.default_deadline_s) == (2 << 30, 1.5)
    assert settings.hosts == ("a.example", "b.example")
    assert settings.cors_origins == ("https://a.example",)
    assert (settings.body_rate_bytes, settings.head_timeout_s) == (1024, 2.5)


@pytest.mark.parametrize(
    ("text", "flags", "where"),
    [
        ("porrt = 3", {}, "porrt"),
        ('port = "many"', {}, "port"),
        ("port = [", {}, "node.toml"),
        ("[options.http]\nallow = true", {}, "options.http.allow"),
        ("[options]\nhttp = 3", {}, "options.http"),
        ("options = 3", {}, "options"),
        ("", {"port": ["99999"]}, "--port"),
        ("", {"keep_traces": ["-1"]}, "--keep-traces"),
        ("", {"max_waiting": ["0"]}, "--max-waiting"),
        ("", {"default_deadline_s": ["nan"]}, "--default-deadline-s"),
        ("max_wall_s = -1", {}, "max_wall_s"),
        ("", {"port": ["many"]}, "--port"),
        ("", {"arena_bytes": ["3 potatoes"]}, "--arena-bytes"),
        ("", {"engines": ["process"]}, "--engines"),
        ("", {"engines": ["process=two"]}, "--engines"),
        ("", {"options": ["allow=x"]}, "--options"),
        ("", {"options": ["http.allow=a.org,b.org"]}, "--options"),
        ("max_connections = 0", {}, "max_connections"),
        ("", {"head_timeout_s": ["0"]}, "--head-timeout-s"),
    ],
)
def test_bad_settings(tmp_path: Path, text: str, flags: dict[str, list[str]], where: str) -> None:
    file = tmp_path / "node.toml"
    file.write_text(text)
    with pytest.raises(InvalidInput) as caught:
        load_settings(file, {}, flags)
    assert where in caught.value.where


def test_numbers_of_options_may_be_written_as_numbers(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text("[options.http]\nretries = 3\nconnect_s = 1.5\n")
    assert load_settings(file, {}, {}).options == {"http": {"retries": "3", "connect_s": "1.5"}}


def test_tables_of_options_are_joined_with_dots(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text(
        "[options.s3]\nconcurrency = 9\n[options.s3.store.pictures]\n"
        'bucket = "b"\nread_only = true\ntenants = ["a", "b"]\n'
    )
    assert load_settings(file, {}, {}).options == {
        "s3": {
            "concurrency": "9",
            "store.pictures.bucket": "b",
            "store.pictures.read_only": "yes",
            "store.pictures.tenants": "a,b",
        }
    }


def test_variables_that_are_no_settings_are_named() -> None:
    environment = {
        "DANDELION_BACKEND": "null",
        "DANDELION_X": "",
        "OTHER": "",
        "DANDELION_PORT": "1",
        "DANDELION_URL": "http://x",
        "DANDELION_SETTINGS": "file",
    }
    first, second = unknown_variables(environment)
    assert "DANDELION_BACKEND is" in first
    assert "did you mean DANDELION_BACKENDS" in first
    assert "DANDELION_X is" in second


@pytest.mark.parametrize("field", Settings.__struct_fields__)
def test_every_setting_is_explained(field: str) -> None:
    assert len(setting_help(field).partition("[")[0]) > 10


# --- a server as a process ----------------------------------------------------------------------


SERVED = ("--port", "0", "--backends", "null", "--arena-bytes", "4MiB", "--catalog", "memory:")


def start_server(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "dandelion", "serve", *SERVED, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={k: v for k, v in os.environ.items() if not k.startswith("DANDELION_")} | environment,
    )


def test_a_terminal_shows_logs_as_text() -> None:
    record = logging.makeLogRecord({"msg": "a\x1b[2J", "levelname": "INFO", "port": 8080})
    line = TextLines().format(record)
    assert re.fullmatch(r"\d\d:\d\d:\d\d info a\\x1b\[2J port=8080", line)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_until_a_signal(number: int) -> None:
    with start_server("--json") as process:
        assert process.stdout is not None
        place: dict[str, Any] = json.loads(process.stdout.readline())
        assert place["pid"] == process.pid
        with urllib.request.urlopen(place["url"] + "/healthz", timeout=20) as answer:
            assert answer.status == 200
        process.send_signal(number)
        out, errors = process.communicate(timeout=20)
    assert process.returncode == 0
    assert out == ""
    lines = [json.loads(line) for line in errors.splitlines()]
    assert any(line["message"] == "listening" and line["port"] == place["port"] for line in lines)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--backends", "null,bogus"], "unknown backend 'bogus'"),
        (["--options", "htp.allow=1"], "did you mean 'http'"),
        (["--max-waiting", "x"], "--max-waiting"),
        (["--arena-bytes", "100000000TiB"], "smaller arena"),
        (["--catalog", "nothing:here"], "nothing"),
        (["--settings", "/no/such/file.toml"], "/no/such/file.toml"),
        (["--host", "no.such.host.invalid"], "no.such.host.invalid"),
        (["--hosts", "http://a.example"], "hosts"),
        (["--cors-origins", "*"], "cors_origins"),
    ],
)
def test_serve_with_bad_settings(
    command: Command, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    for name in [name for name in os.environ if name.startswith("DANDELION_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(serve, "log_to_stderr", lambda level: None)  # this process is not a server
    code, _, errors = command("serve", *SERVED, *arguments)
    assert code == 1
    assert said in errors
    assert "Traceback" not in errors


def test_a_server_that_cannot_start_ends_with_the_reason(tmp_path: Path) -> None:
    lost = tmp_path / "blobs" / "ab" / ("0" * 62)
    lost.parent.mkdir(parents=True)
    lost.touch()
    with start_server("--catalog", f"sqlite:{tmp_path}") as process:
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "restore catalog.sqlite from a copy" in errors
    assert "Traceback" not in errors


def test_serve_warns_of_variables_that_it_does_not_know() -> None:
    with start_server("--json", DANDELION_BACKEND="x") as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["port"]
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=20)
    assert any(
        line["level"] == "warning" and "DANDELION_BACKENDS" in line["message"]
        for line in map(json.loads, errors.splitlines())
    )
