"""The command line: verbs against a served node, files without one, and a server as a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dandelion.cli.output import Output
from dandelion.errors import InvalidInput
from dandelion.frontend.server import BackgroundServer
from dandelion.node import Node, Settings
from tests.cli_commands import BAD, GOOD, ROOT, Command, given_command
from tests.node.served import DOCUMENT, SETTINGS, GateDriver

command = pytest.fixture()(given_command)


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


def test_problems_of_texts_name_their_file(remote: Command, tmp_path: Path) -> None:
    good, bad, worse = (tmp_path / f"{name}.dandelion" for name in ("a", "bad", "worse"))
    good.write_text("composition fine(x) => (y) { echo(d = all x) => (y = d); }")
    bad.write_text("composition one(x) => (y) { nothing(a = all x) => (y = b); }")
    worse.write_text("\ncomposition two(x) => (y) { nothing(a = all x) => (y = b); }")
    code, _, error = remote("register", good, bad, worse)
    assert code == 1
    assert f"{bad}:1:29: there is no function or composition 'nothing'" in error
    assert f"{worse}:2:29: there is no function" in error
    assert remote("register", tmp_path)[2] == error
    assert "composition 2" not in error


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
        ("x.py", "def document(): return 3", 1, "returned an int"),
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
    assert [i["name"] for i in reply["sets"]["b"]] == ["0", "1", "data.bin"]
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
        (["echo", "a=x", "--version", "9"], 1, "version 9; it has version"),
        (["echo", "a=x", "--deadline", "-1"], 1, "deadline"),
        (["echo", "a=x", "--priority", "1001"], 1, "1001"),
        (["echo", "a=x", "--priority", "high"], 2, "high"),
        (["pair", "left=x", "right=y", "--raw"], 1, "2 items"),
        (["pair", "left=x", "right=y", "--set", "rigth"], 1, "did you mean 'right'"),
        (["fails", "x=y"], 1, "ValueError: no"),
        (["matrix", 'm:={"a": {}}'], 1, "is a dict"),
        (["matrix", "m=[[1,2]]"], 1, "write m:=[[1,2]]"),
        (["matrix", "m=0001"], 2, "text would be its raw bytes; write m:=0001"),
        (["matrix", "m=-1.5e3"], 2, "write m:=-1.5e3"),
        (["matrix", "m=abc"], 1, "for a number or other JSON, write m:=[1, 2]"),
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


def test_describe_shows_the_limits(remote: Command, tmp_path: Path) -> None:
    shown = remote("describe", "echo")[1]
    assert "512.0 MiB of memory" in shown
    assert "calls at once" not in shown  # as many as there are engines for
    assert "that wait" not in shown
    text = tmp_path / "limited.json"
    limits = {"concurrency": 3, "queue_length": 7}
    function = {"name": "few", "inputs": ["a"], "outputs": ["b"], "code": [{"format": "null"}]}
    text.write_text(json.dumps({"functions": [function | {"limits": limits}]}))
    assert remote("register", text)[0] == 0
    assert "items, 3 calls at once, 7 more that wait" in remote("describe", "few")[1]


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


def test_what_could_control_a_terminal_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "a\x1b]0;title\x07\x1b[2J\u202e\n\tb\r\x9b"
    error = InvalidInput(hostile, hostile)
    error.add_note(hostile)
    out = Output(as_json=False)
    out.line(hostile)
    out.table(["column"], [[hostile]])
    out.error(error)
    printed = capsys.readouterr()
    for text in (printed.out, printed.err):
        assert all(c.isprintable() or c in "\n\t" for c in text)
    expected = "a\\x1b]0;title\\x07\\x1b[2J\\u202e\n        b\\r\\x9b\n"
    assert printed.out.startswith(expected)
    assert printed.err.count("\\x1b[2J\\u202e\n") == 3


def test_spaces_and_joiners_of_other_scripts_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    text = "12\u00a0\u20ac \u5168\u3000\u89d2 \U0001f469\u200d\U0001f52c"
    Output(as_json=False).failure(text)
    assert text in capsys.readouterr().err
