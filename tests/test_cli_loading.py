"""Files of users that fork, print, or do not end are loaded in a process of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dandelion.cli import dev
from dandelion.cli.loading import load_program, load_sources
from dandelion.cli.output import WrongUsage
from dandelion.cli.sources import ProgramFailed
from dandelion.testing import wait_until
from tests.cli_commands import GOOD, Command, given_command
from tests.processes import lives

command = pytest.fixture()(given_command)

PROGRAM = """
import os, sys, time
from pathlib import Path

import dandelion as dd

@dd.function
def same(x: str) -> str:
    return x

"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    path = tmp_path / "app.py"
    path.write_text(PROGRAM)
    return path


def append(app: Path, text: str) -> None:
    app.write_text(app.read_text() + text)


@pytest.mark.parametrize("does", ["pass", "time.sleep(600)", "sys.exit(3)"])
def test_a_file_that_forks_is_loaded_once(app: Path, does: str) -> None:
    note = app.with_name("child")
    append(app, "if child := os.fork():\n")
    append(app, f"    Path({str(note)!r}).write_text(str(child))\nelse:\n    {does}\n")
    document, files = load_program(app)
    assert [function.name for function in document.functions] == ["same"]
    assert files == (str(app.resolve()),)
    wait_until(lambda: not lives(int(note.read_text())))


@pytest.mark.parametrize("answer", [b"\xc1", b"\x80\x80", b"\x01"])
def test_an_answer_that_is_not_valid_names_the_file(app: Path, answer: bytes) -> None:
    append(app, f"os.write(int(sys.argv[2]), {answer!r})\n")
    with pytest.raises(ProgramFailed) as caught:
        load_program(app)
    assert str(app) in str(caught.value)


def test_dev_ends_with_an_error_if_it_cannot_watch(
    command: Command, app: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: Path) -> None:
        raise OSError("no process can be started")

    monkeypatch.setenv("DANDELION_BACKENDS", "null")
    monkeypatch.setattr(dev, "Loading", refused)
    code, out, error = command("dev", app, "--port", "0")
    assert code == 1
    assert "serves" in out
    assert "no process can be started" in error


def test_dev_drains_and_ends_when_its_terminal_is_closed(app: Path) -> None:
    environment = {**os.environ, "DANDELION_BACKENDS": "null"}
    arguments = [sys.executable, "-m", "dandelion", "dev", str(app), "--port", "0"]
    with subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert any("registered same" in line for line in process.stdout)
        process.send_signal(signal.SIGHUP)
        process.communicate(timeout=20)
    assert process.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_file_that_does_not_end_ends_with_the_command(app: Path, number: int) -> None:
    note = app.with_name("loader")
    append(app, f"Path({str(note)!r}).write_text(f'{{os.getpid()}}.')\nwhile True: pass\n")
    process = subprocess.Popen([sys.executable, "-m", "dandelion", "check", str(app)])
    try:
        wait_until(lambda: note.exists() and note.read_text().endswith("."))
    finally:
        process.send_signal(number)
        process.wait()
    loader = int(note.read_text()[:-1])
    try:
        wait_until(lambda: not lives(loader))
    finally:
        if lives(loader):
            os.kill(loader, signal.SIGKILL)


def test_files_are_loaded_where_the_ends_of_children_are_ignored(app: Path) -> None:
    start = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN)"
    start += "; os.execv(sys.executable, [sys.executable, '-m', 'dandelion', 'check', sys.argv[1]])"
    done = subprocess.run([sys.executable, "-c", start, str(app)], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_file_is_not_loaded_for_a_command_that_has_ended(app: Path) -> None:
    note = app.with_name("executed")
    append(app, f"Path({str(note)!r}).touch()\n")
    arguments = [sys.executable, "-m", "dandelion.cli.loading", str(app), "1", "0"]
    done = subprocess.run(arguments, stdout=subprocess.PIPE, check=False)
    assert (done.returncode, done.stdout) == (1, b"")
    assert not note.exists()


PRINTING = "print('by print', flush=True)\nos.write(1, b'by a descriptor')\n"


@pytest.mark.parametrize("arguments", ["check {} --json", "run {} x=1 --raw", "graph {} --json"])
def test_what_a_file_prints_is_not_in_the_output(
    command: Command, app: Path, monkeypatch: pytest.MonkeyPatch, arguments: str
) -> None:
    monkeypatch.setenv("DANDELION_BACKENDS", "null,process")
    append(app, "\n@dd.composition\ndef all_same(x):\n    return {'y': same(x)}\n")
    append(app, PRINTING)
    code, out, error = command(*arguments.format(app).split())
    assert code == 0
    assert json.loads(out)
    assert "by print" in error
    assert "by a descriptor" in error


def test_what_a_file_of_a_module_prints_is_not_in_the_output(command: Command, app: Path) -> None:
    append(app, "print('by print')\n")
    code, out, error = command("export", f"{app}:missing", "--json")
    assert (code, out) == (1, "")
    assert "by print" in error


STOP = "class Stop(BaseException): pass\nraise Stop('at once')\n"
FAILING = "def document(): raise ValueError('no document')\n"


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("os._exit(0)\n", 1, "ended its process with code 0"),
        (FAILING, 1, "ValueError: no document"),
        (STOP, 1, "Stop: at once"),
        ("os.fork()\n", 3, "http://127.0.0.1:1"),
    ],
)
@pytest.mark.parametrize("is_bundle", [False, True])
def test_register_loads_files_as_deploy_does(
    app: Path, text: str, code: int, said: str, is_bundle: bool
) -> None:
    append(app, text)
    named = app
    if is_bundle:
        app.rename(app.with_name("bundle.py"))
        named = app.parent
    for verb in ("register", "deploy"):
        arguments = [sys.executable, "-m", "dandelion", verb, str(named)]
        arguments += ["--url", "http://127.0.0.1:1"]
        done = subprocess.run(arguments, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (code, "")
        assert done.stderr.count(said) == 1
        assert "dandelion/cli" not in done.stderr


def test_files_that_are_registered_together_are_one_document(app: Path) -> None:
    text, folder = app.with_name("one.dandelion"), app.with_name("two.py")
    text.write_text(GOOD)
    folder.mkdir()
    (folder / "two.dandelion").write_text("composition three(x) => (x) {}")
    document = load_sources([app, text, folder])
    assert [function.name for function in document.functions] == ["same"]
    assert len(document.compositions) == 2
    with pytest.raises(WrongUsage):
        load_sources([app.with_name("missing.py")])
