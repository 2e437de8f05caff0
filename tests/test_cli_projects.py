"""From an empty folder to a deployed composition: init, run, dev, deploy; top and trace."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dandelion import Client
from dandelion.catalog import Removal
from dandelion.cli import loading
from dandelion.cli.loading import load_program
from dandelion.cli.main import main
from dandelion.cli.sources import ProgramFailed, read_sources
from dandelion.documents import RegistrationDocument
from dandelion.errors import Unknown, from_record
from dandelion.frontend.server import BackgroundServer
from dandelion.node import Node, Settings
from dandelion.testing import wait_until

Command = Callable[..., tuple[int, str, str]]


NAMED = """
import dandelion as dd

@dd.function
def {name}() -> int:
    return {value}
"""
NESTED = """
import dandelion as dd

@dd.function
def louder(text: str) -> str:
    return text + "!"

@dd.composition
def innermost(a):
    return {"b": louder(a)}

@dd.composition
def outermost(a):
    return {"b": innermost(a)}
"""


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("DANDELION_BACKENDS", "null,process")
    monkeypatch.delenv("DANDELION_URL", raising=False)

    def run(*arguments: object) -> tuple[int, str, str]:
        code = main([str(a) for a in arguments])
        return (code, *capfd.readouterr())

    return run


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    settings = Settings(backends=("null", "process"), engines={"process": 1}, arena_bytes=32 << 20)
    with Node(settings) as node, BackgroundServer(node) as server:
        assert node.wait_ready(60)
        yield server.url


@pytest.fixture
def app(command: Command, tmp_path: Path) -> Path:
    assert command("init", tmp_path / "project")[0] == 0
    return tmp_path / "project" / "app.py"


def test_init_keeps_existing_files(command: Command, app: Path) -> None:
    app.write_text("mine")
    code, _, error = command("init", app.parent)
    assert code == 2
    assert "app.py" in error
    assert app.read_text() == "mine"
    assert "it is a file" in command("init", app)[2]


def test_the_tests_of_a_new_project_pass(app: Path) -> None:
    arguments = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(app.parent)]
    done = subprocess.run(arguments, cwd=app.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


ADD = """

@dd.function
def add(a: int, b: int, more: list) -> int:
    return a + b + sum(more)
"""


NEEDY = """

@dd.function(packages=["there-is-no-such-package"])
def needy(x: str) -> str:
    return x
"""


def test_run_needs_the_packages_of_what_it_runs_only(command: Command, app: Path) -> None:
    app.write_text(app.read_text() + NEEDY)
    code, out, _ = command("run", f"{app}:count", "page=a b a", "--raw")
    assert (code, json.loads(out)) == (0, {"a": 2, "b": 1})
    code, _, error = command("run", f"{app}:needy", "x=a")
    assert code == 1
    assert "`dandelion wheels FILE` makes one" in error


def test_run(command: Command, app: Path) -> None:
    code, out, _ = command("run", app, "pages=One and one", "--json")
    assert code == 0
    assert json.loads(out)["sets"]["words"][0]["value"] == {"one": 2, "and": 1}
    code, out, _ = command("run", f"{app}:count", "page=a b a", "--raw")
    assert (code, json.loads(out)) == (0, {"a": 2, "b": 1})
    app.write_text(app.read_text() + ADD)
    code, out, _ = command("run", f"{app}:add", "a:=1", "b=2", "more:=[3, 4]", "--raw")
    assert (code, json.loads(out)) == (0, 10)
    code, _, error = command("run", f"{app}:add", "a=[1]", "b=2", "more:=[3]")
    assert code == 1
    assert "a list of numbers is one item" in error
    code, _, error = command("run", f"{app}:cound", "page=a")
    assert code == 2
    assert "did you mean 'count'?" in error
    assert command("run", app.parent / "none.py")[0] == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = (", "was never closed"),
        ("import nothing_like_this", "nothing_like_this"),
        ("1 / 0", "ZeroDivisionError"),
        ("x = 1", "nothing to register; put @dandelion.function"),
        ("import os; os._exit(3)", "code 3"),
        ("import sys; sys.exit('bye')", "bye"),
    ],
)
def test_a_file_that_cannot_be_loaded(app: Path, text: str, said: str) -> None:
    app.write_text(text)
    with pytest.raises(ProgramFailed) as caught:
        load_program(app)
    assert said in str(caught.value)
    assert str(app) in caught.value.files


def test_a_file_that_cannot_be_read_is_named(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(_: object) -> RegistrationDocument:
        raise PermissionError(errno.EACCES, "Permission denied", str(app))

    monkeypatch.setattr(loading, "read_sources", denied)
    loaded = loading._load(app.parent)
    assert loaded.error is not None
    found = str(from_record(loaded.error))
    assert found == f"{app.parent} cannot be loaded: {app}: Permission denied"


def test_register_shows_only_lines_of_the_user(command: Command, app: Path) -> None:
    app.write_text(app.read_text() + "\n\n@dd.composition\ndef bad(x):\n    return missing\n")
    with pytest.raises(ProgramFailed) as caught:
        read_sources([app])
    assert "return missing" in caught.value.message
    assert "importlib" not in str(caught.value)
    assert "dsl.py" not in str(caught.value)
    code, _, error = command("register", app, "--url", "http://127.0.0.1:1")
    assert code == 1
    assert "NameError" in error


def test_register_finds_files_beside_the_program(app: Path) -> None:
    name = f"beside_{app.parent.name.replace('-', '_')}"
    (app.parent / f"{name}.py").write_text("LIMIT = 3\n")
    app.write_text(f"from {name} import LIMIT\n{app.read_text()}")
    before = list(sys.path)
    assert {f.name for f in read_sources([app]).functions} == {"count", "total"}
    assert sys.path == before


def test_a_program_may_print_and_import_its_neighbours(app: Path) -> None:
    (app.parent / "words.py").write_text("LIMIT = 3\n")
    text = app.read_text().replace("import re\n", "import re\n\nfrom words import LIMIT\n")
    app.write_text(text + "print('hello', LIMIT)\n")
    document, files = load_program(app)
    assert {f.name for f in document.functions} == {"count", "total"}
    assert [Path(file).name for file in files] == ["app.py", "words.py"]


@pytest.mark.parametrize(
    ("text", "files"),
    [
        ("LIMIT = (\n", ["app.py", "words.py"]),
        ("raise ValueError\n", ["app.py", "words.py"]),
        ("e = ValueError()\ne.__cause__ = e\nraise e\n", ["app.py", "words.py"]),
        ("import deep.er\n", ["app.py", "deep/er.py", "deep/er/__init__.py", "words.py"]),
        ("from deep import er\n", ["app.py", "deep", "words.py"]),
        ("import deep\n", ["app.py", "deep.py", "deep/__init__.py", "words.py"]),
        ("__import__('a/\\0')\n", ["app.py", "words.py"]),
        ("exec('1 / 0')\n", ["app.py", "words.py"]),
    ],
)
def test_a_program_that_fails_is_made_of_the_modules_that_failed_too(
    app: Path, text: str, files: list[str]
) -> None:
    (app.parent / "words.py").write_text(text)
    if "er" in re.findall(r"\w+", text):
        (app.parent / "deep").mkdir()
        (app.parent / "deep" / "__init__.py").touch()
        files = [*files, "deep/__init__.py"]
    app.write_text(f"import words\n{app.read_text()}")
    with pytest.raises(ProgramFailed) as caught:
        load_program(app)
    folder = app.parent.resolve()
    found = {str(Path(file).relative_to(folder)) for file in caught.value.files}
    assert found == set(files)


def test_dev_reloads_when_a_module_that_failed_is_corrected(app: Path) -> None:
    words = app.parent / "words.py"
    words.write_text("LIMIT = (\n")
    app.write_text(f"import words\n{app.read_text()}")
    dev = Development(app)
    try:
        dev.until("was never closed")
        dev.until("stays")
        words.write_text("LIMIT = 3\n")
        dev.until("registered count 1")
    finally:
        assert dev.end() == 0


def test_deploy_shows_changes_and_takes_them_back(command: Command, app: Path, url: str) -> None:
    def deploy(*more: str) -> tuple[int, dict[str, object], str]:
        code, out, error = command("deploy", app, "--url", url, "--json", *more)
        return code, json.loads(out) if out.startswith("{") else {}, error

    def changes(*more: str) -> dict[str, tuple[str, list[str]]]:
        _, found, _ = deploy(*more)
        return {c["name"]: (c["change"], c["breaking"]) for c in found["changes"]}  # type: ignore[attr-defined,index]

    assert {change for change, _ in changes("--dry-run").values()} == {"new"}
    assert deploy()[0] == 0
    assert {change for change, _ in changes().values()} == {"same"}
    code, out, _ = command("deploy", app, "--url", url)
    assert (code, out.splitlines()[-1]) == (0, f"nothing to deploy: {url} has all of it already")
    app.write_text(app.read_text().replace("lower()", "upper()"))
    assert changes("--dry-run")["count"] == ("changed", [])
    assert deploy()[0] == 0
    with Client(url) as client:
        assert client.invoke("word_count", pages="a").words.json() == {"A": 1}
        assert command("deploy", app, "--undo", "--url", url)[0] == 0
        assert client.invoke("word_count", pages="a").words.json() == {"a": 1}
    assert command("deploy", app, "--undo", "--url", url)[0] == 2  # only the last one is known
    text = app.read_text().replace("word_count(pages)", "word_count(texts)")
    app.write_text(text.replace("dd.each(pages)", "dd.each(texts)"))
    broken = changes("--dry-run")["word_count"][1]
    assert broken == ["input 'pages' is removed", "input 'texts' is added"]
    code, _, error = deploy()
    assert code == 1
    assert "--yes" in error
    assert deploy("--yes")[0] == 0
    command("register", app, "--url", url)
    app.write_text(app.read_text().replace("upper()", "lower()").replace("texts", "words"))
    command("register", app, "--url", url)
    code, _, error = command("deploy", app, "--undo", "--url", url)
    assert code == 1
    assert "was registered after" in error


@pytest.mark.parametrize(
    ("typed", "code"), [(b"\x04", 1), (b"n\n", 1), (b"\xff\n", 1), (b"y\n", 0)]
)
def test_deploy_asks_at_the_terminal(
    command: Command,
    tmp_path: Path,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    typed: bytes,
    code: int,
) -> None:
    app = tmp_path / "app.py"
    text = NAMED.format(name="asked", value=1)
    app.write_text(text)
    assert command("deploy", app, "--yes", "--url", url)[0] == 0
    app.write_text(text.replace("()", "(more: str)"))
    keyboard, terminal = os.openpty()
    with open(keyboard, "wb", buffering=0) as keys, open(terminal, encoding="utf-8") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        found, out, error = command("deploy", app, "--json", "--url", url)
        assert (found, out) == (1, ""), "a program that reads JSON cannot answer"
        keys.write(typed)
        found, out, error = command("deploy", app, "--url", url)
    assert found == code
    assert "Deploy it?" in error
    assert "Deploy it?" not in out


def test_a_name_that_changes_its_kind_is_removed_first(
    command: Command, tmp_path: Path, url: str
) -> None:
    app = tmp_path / "app.py"
    app.write_text(EXCHANGED.format(function="kind", sets="text", composition="kinds"))
    assert command("deploy", app, "--url", url)[0] == 0
    app.write_text(EXCHANGED.format(function="other", sets="text", composition="kind"))
    code, _, error = command("deploy", app, "--url", url)
    assert code == 1
    assert "dandelion rm kinds" in error  # the composition would not fit the new version
    assert command("rm", "kinds", "--url", url)[0] == 0
    code, _, error = command("deploy", app, "--url", url)
    assert code == 1
    assert "a function has this name" in error
    assert "dandelion rm kind\n" in error
    assert command("rm", "kind", "--url", url)[0] == 0
    assert command("deploy", app, "--url", url)[0] == 0


def test_a_deployment_after_a_removal_is_taken_back(command: Command, app: Path, url: str) -> None:
    def planned() -> dict[str, tuple[str, int]]:
        code, out, _ = command("deploy", app, "--dry-run", "--json", "--url", url)
        assert code == 0
        return {c["name"]: (c["change"], c["version"]) for c in json.loads(out)["changes"]}

    assert command("deploy", app, "--yes", "--url", url)[0] == 0
    before = {name: version for name, (_, version) in planned().items()}
    for name in ("word_count", "total", "count"):
        assert command("rm", name, "--url", url)[0] == 0
    assert planned() == {name: ("new", version + 1) for name, version in before.items()}
    assert command("deploy", app, "--url", url)[0] == 0
    assert command("rm", "word_count", "--url", url)[0] == 0
    code, out, _ = command("deploy", app, "--undo", "--url", url)
    assert code == 0
    assert out.splitlines() == [
        f"removed function count, version {before['count'] + 1}",
        f"removed function total, version {before['total'] + 1}",
        f"composition word_count, version {before['word_count'] + 1}, is not there any more",
    ]
    code, _, error = command("deploy", app, "--undo", "--url", url)
    assert code == 2
    assert "nothing is left that was deployed" in error


def test_each_file_is_taken_back_by_itself(command: Command, app: Path, url: str) -> None:
    def deploy(path: Path, *more: str) -> tuple[int, str]:
        code, out, _ = command("deploy", path, "--yes", *more, "--url", url)
        return code, out

    one, two = app.parent / "one.py", app.parent / "two.py"
    for path in (one, two):
        path.write_text(NAMED.format(name=path.stem, value=1))
        assert deploy(path)[0] == 0
    for path in (one, two):
        path.write_text(NAMED.format(name=path.stem, value=2))
        assert deploy(path)[0] == 0
    for path in (one, two):
        code, out = deploy(path, "--undo")
        assert (code, out.split(",")[0]) == (0, f"removed function {path.stem}")
    with Client(url) as client:
        assert [client.invoke(p.stem).result.json() for p in (one, two)] == [1, 1]


def test_a_deployment_is_taken_back_with_its_token(command: Command, app: Path, url: str) -> None:
    """The token stands for the tenant, who may have other functions of these names."""
    app.write_text(NAMED.format(name="mine", value=1))
    assert command("deploy", app, "--url", url, "--token", "a" * 40)[0] == 0
    code, _, error = command("deploy", app, "--undo", "--url", url, "--token", "b" * 40)
    assert code == 2
    assert "check FILE, --url and the token" in error
    assert command("deploy", app, "--undo", "--url", url, "--token", "a" * 40)[0] == 0
    assert "a" * 40 not in (app.parent / ".dandelion-deployed.json").read_text()


def test_deployments_at_the_same_time_are_all_noted(command: Command, app: Path, url: str) -> None:
    paths = [app.parent / f"at_once_{number}.py" for number in range(3)]
    for path in paths:
        path.write_text(NAMED.format(name=path.stem, value=1))
    arguments = [sys.executable, "-m", "dandelion", "deploy", "--url", url]
    running = [subprocess.Popen([*arguments, path], stdout=subprocess.DEVNULL) for path in paths]
    assert [process.wait(60) for process in running] == [0] * len(paths)
    for path in paths:
        assert command("deploy", path, "--undo", "--url", url)[0] == 0


def test_a_deployment_while_the_last_one_is_taken_back_is_noted(
    command: Command, tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = tmp_path / "app.py"
    app.write_text(NAMED.format(name="meanwhile", value=1))
    assert command("deploy", app, "--url", url)[0] == 0
    app.write_text(NAMED.format(name="meanwhile", value=2))
    remove = Client.remove_together

    def removed(client: Client, things: list[Removal]) -> None:
        remove(client, things)
        monkeypatch.undo()
        assert main(["deploy", str(app), "--url", url]) == 0

    monkeypatch.setattr(Client, "remove_together", removed)
    assert command("deploy", app, "--undo", "--url", url)[0] == 0
    code, out, _ = command("deploy", app, "--undo", "--url", url)
    assert (code, out) == (0, "removed function meanwhile, version 2\n")


def test_a_deployment_that_cannot_be_noted_is_made(
    command: Command, tmp_path: Path, url: str
) -> None:
    app = tmp_path / "app.py"
    app.write_text(NAMED.format(name="unnoted", value=1))
    (tmp_path / ".dandelion-deployed.json.new").mkdir()
    code, out, error = command("deploy", app, "--url", url)
    assert code == 0
    assert out.endswith(f"deployed to {url}\n")
    assert "'--undo' cannot take this deployment back" in error


def test_deploy_names_the_file_of_a_problem(command: Command, tmp_path: Path, url: str) -> None:
    (tmp_path / "bad.dandelion").write_text("function not_there(a) => (b);\n")
    code, _, error = command("deploy", tmp_path, "--url", url)
    assert code == 1
    assert f"{tmp_path / 'bad.dandelion'}:1:10: " in error


def test_commands_of_init_work_in_any_folder(command: Command, tmp_path: Path) -> None:
    folder = tmp_path / "with blanks; and 'quotes'"
    code, out, _ = command("init", folder)
    assert code == 0
    lines = [line.partition("  # ")[0] for line in out.splitlines() if line.startswith("  ")]
    named = [shlex.split(line)[2] for line in lines if "app.py" in line]
    assert named == [str(folder / "app.py")] * 3


def test_paths_that_are_not_valid_unicode(command: Command, tmp_path: Path, url: str) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    code, out, _ = command("init", folder, "--json")
    assert code == 0
    assert json.loads(out)["files"][0] == str(tmp_path / "caf\\udce9" / "app.py")
    app = (folder / "app.py").rename(folder / os.fsdecode(b"\xe9.py"))
    code, out, _ = command("check", app, "--json")
    assert code == 0
    assert json.loads(out)[0]["problems"] == []
    assert command("deploy", app, "--yes", "--url", url)[0] == 0
    assert command("deploy", app, "--undo", "--url", url)[0] == 0
    app.write_text("(")
    code, _, error = command("deploy", app, "--url", url)
    assert code == 1
    assert "was never closed" in error


def test_what_uses_each_other_is_taken_back_together(command: Command, app: Path, url: str) -> None:
    app.write_text(NESTED)
    assert command("deploy", app, "--yes", "--url", url)[0] == 0
    changed = NESTED.replace("(text: str)", "(text: str, more: str)").replace(
        "louder(a)", "louder(a, a)"
    )
    app.write_text(changed)
    assert command("deploy", app, "--yes", "--url", url)[0] == 0
    with Client(url) as client:
        assert client.invoke("outermost", a="x").b.text() == "x!"
    code, out, _ = command("deploy", app, "--undo", "--url", url)
    assert code == 0, out
    assert sorted(line.split()[2] for line in out.splitlines()) == ["innermost,", "louder,"]
    with Client(url) as client:
        assert client.invoke("outermost", a="x").b.text() == "x!"
    app.write_text(changed)
    for name in ("outermost", "innermost", "louder"):
        assert command("rm", name, "--url", url)[0] == 0
    assert command("deploy", app, "--yes", "--url", url)[0] == 0
    assert command("deploy", app, "--undo", "--url", url)[0] == 0, "with nested compositions"
    with Client(url) as client:
        assert {"outermost", "innermost", "louder"}.isdisjoint(e.name for e in client.list())


def test_top_and_trace(command: Command, app: Path, url: str) -> None:
    command("register", app, "--url", url)
    with Client(url) as client:
        sets = {client.describe("word_count").inputs[0].name: "a b"}
        id_ = client.invoke_sets("word_count", sets).id
        with pytest.raises(Exception, match="InputMismatch"):
            client.invoke_sets("word_count", {next(iter(sets)): [b"\xff"]})
    code, out, _ = command("top", "--url", url)
    assert code == 0
    assert id_ in out
    assert "count" in out
    assert json.loads(command("top", "--url", url, "--json")[1])["cursor"] >= 2
    code, out, _ = command("trace", id_, "--url", url)
    assert code == 0
    assert "outcome: ok" in out
    assert "total" in out
    line = next(line for line in out.splitlines() if "process:" in line)
    assert re.search(r" (sandbox|run) \d", line), "the stages that took long"
    target = app.parent / "trace.json"
    assert command("trace", id_, "--url", url, "-o", target)[0] == 0
    assert json.loads(target.read_bytes())["otherData"]["outcome"] == "ok"


@pytest.mark.parametrize("terminal", [{}, {"FORCE_COLOR": "1", "TERM": "dumb"}])
def test_top_is_shown_once_where_it_cannot_be_overwritten(
    command: Command,
    tmp_path: Path,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    terminal: dict[str, str],
) -> None:
    name = "long_" * 20
    app = tmp_path / "app.py"
    app.write_text(NAMED.format(name=name, value=1))
    assert command("register", app, "--url", url)[0] == 0
    with Client(url) as client:
        client.invoke_sets(name, {})
    monkeypatch.setenv("COLUMNS", "40")
    for variable, value in terminal.items():
        monkeypatch.setenv(variable, value)
    code, out, _ = command("top", "--url", url)
    assert code == 0
    assert name in out or terminal, "a program may read it"
    assert "p99 ms" in out


def test_completion_knows_the_verbs_and_their_options(command: Command) -> None:
    code, out, _ = command("completion", "bash")
    assert code == 0
    assert "deploy" in out
    script = out + "\nCOMP_WORDS=(dandelion dep) COMP_CWORD=1\n"
    script += "_shtab_dandelion\necho ${COMPREPLY[@]}\n"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["deploy"]
    assert command("completion", "fsh")[0] == 2


class Development:
    """``dandelion dev`` in a process of its own."""

    def __init__(self, app: Path) -> None:
        backends = "null,process"
        environment = {**os.environ, "DANDELION_BACKENDS": backends, "COLUMNS": "200"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "dandelion", "dev", str(app), "--port", "0"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.url = self.until("serves").split()[0]

    def until(self, text: str) -> str:
        """Read lines until one has a text."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if text in line:
                return line
        raise AssertionError(f"it ended before it said '{text}'")

    def end(self) -> int:
        """Press Ctrl-C."""
        self._process.send_signal(signal.SIGINT)
        self._process.communicate(timeout=30)  # it may still say something
        return self._process.returncode


def test_dev_reloads_and_shows_what_happens(app: Path) -> None:
    dev = Development(app)
    try:
        dev.until("registered count 1")
        with Client(dev.url) as client:
            assert client.invoke("word_count", pages="a A").words.json() == {"a": 2}
            assert "word_count ok" in dev.until("word_count")
            text = app.read_text()
            app.write_text(text + "x = (\n")
            dev.until("was never closed")
            assert client.invoke("word_count", pages="a A").words.json() == {"a": 2}
            printing = text.replace(
                "    return Counter(WORD", "    print('on', page)\n    return Counter(WORD"
            )
            app.write_text(printing.replace(".lower()", ""))
            dev.until("registered count 2")
            assert client.invoke("word_count", pages="a A").words.json() == {"a": 1, "A": 1}
            dev.until("count stdout: on a A")
            with pytest.raises(Exception, match="page"):
                client.invoke("word_count", pages=b"\xff")
            assert "ApplicationFailed" in dev.until("ApplicationFailed")
    finally:
        assert dev.end() == 0


def test_an_edit_while_a_file_is_loaded_is_not_lost(app: Path) -> None:
    text = app.read_text()
    app.write_text(text + "import time\n\ntime.sleep(1.5)\n")
    dev = Development(app)
    try:
        time.sleep(0.7)  # it has been read by now, and not been registered
        app.write_text(text.replace(".lower()", ""))
        with Client(dev.url) as client:
            wait_until(lambda: counts(client) == {"a": 1, "A": 1})
    finally:
        assert dev.end() == 0


def counts(client: Client) -> object:
    try:
        return client.invoke("word_count", pages="a A").words.json()
    except Unknown:
        return None


def test_dev_follows_a_link_that_leads_to_another_file(app: Path) -> None:
    link = app.with_name("current.py")
    link.symlink_to(app)
    dev = Development(link)
    try:
        dev.until("registered count 1")
        other = app.with_name("other.py")
        other.write_text(app.read_text().replace(".lower()", ""))
        for number, target in ((2, other), (3, app)):
            replaced = app.with_name("new")
            replaced.symlink_to(target)
            replaced.replace(link)
            dev.until(f"registered count {number}")
        link.unlink()
        link.write_text(other.read_text())
        dev.until("registered count 4")
    finally:
        assert dev.end() == 0


def test_dev_goes_on_after_a_file_that_never_ends(app: Path) -> None:
    text = app.read_text()
    dev = Development(app)
    try:
        dev.until("registered count 1")
        app.write_text(text + "while True: pass\n")
        with Client(dev.url) as client:
            time.sleep(1.0)
            assert counts(client) == {"a": 2}
            dev.until("word_count ok")
            app.write_text(text.replace(".lower()", ""))
            wait_until(lambda: counts(client) == {"a": 1, "A": 1})
            app.write_text(text + "while True: pass\n")
            time.sleep(1.0)
    finally:
        assert dev.end() == 0, "also while one is loaded"


@pytest.mark.parametrize("said", ["serves", "begun"])
def test_ctrl_c_while_dev_loads_a_file_says_nothing(app: Path, said: str) -> None:
    """A terminal sends it to the node, its engines and the process that loads the file."""
    slow = "import time\n\nprint('begun', flush=True)\ntime.sleep(60)\n"
    app.write_text(slow + app.read_text())
    with subprocess.Popen(
        [sys.executable, "-m", "dandelion", "dev", str(app), "--port", "0"],
        env={**os.environ, "DANDELION_BACKENDS": "null,process"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as dev:
        stream = dev.stdout if said == "serves" else dev.stderr
        assert stream is not None
        assert any(said in line for line in stream)
        os.killpg(dev.pid, signal.SIGINT)
        lines, errors = dev.communicate(timeout=30)
    assert dev.returncode == 0
    assert not lines or said == "begun"
    assert errors.strip() in ("", "begun")  # it may end between the text and the end of its line


def test_dev_removes_what_the_file_no_longer_defines(app: Path) -> None:
    dev = Development(app)
    try:
        dev.until("registered count 1")
        with Client(dev.url) as client:
            app.write_text(re.sub(r"\bcount\b", "number", app.read_text()))
            dev.until("registered number 1")
            dev.until("removed count")
            assert sorted(one.name for one in client.list()) == ["number", "total", "word_count"]
            client.register("composition uses(p) => (w) { number(page = all p) => (w = result); }")
            app.write_text(app.read_text().replace("number", "count"))
            dev.until("registered count 2")
            assert "uses" in dev.until("number")
            assert client.invoke("word_count", pages="a A").words.json() == {"a": 2}
            dev.until("word_count ok")
            client.remove("uses")
            app.write_text(app.read_text() + "\n# changed\n")
            dev.until("removed number")
    finally:
        assert dev.end() == 0


EXCHANGED = """
import dandelion as dd

@dd.function
def {function}({sets}: str) -> str:
    return {sets}.upper()

@dd.composition
def {composition}(a):
    return {{"b": {function}(a)}}
"""


def test_dev_exchanges_the_names_of_a_function_and_a_composition(tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    app.write_text(EXCHANGED.format(function="up", sets="text", composition="whole"))
    dev = Development(app)
    try:
        dev.until("registered up 1")
        with Client(dev.url) as client:
            app.write_text(EXCHANGED.format(function="whole", sets="text", composition="up"))
            dev.until("registered whole 1, up 1")
            assert client.invoke("up", a="x").b.text() == "X"
            assert client.invoke("whole", text="x").result.text() == "X"
            client.register("composition uses(p) => (w) { whole(text = all p) => (w = result); }")
            app.write_text(EXCHANGED.format(function="up", sets="text", composition="whole"))
            assert "'uses'" in dev.until("breaks it")
            dev.until("stays")
            assert client.invoke("up", a="x").b.text() == "X"
            dev.until("up ok")
    finally:
        assert dev.end() == 0


def test_dev_replaces_a_composition_together_with_its_function(tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    app.write_text(EXCHANGED.format(function="up", sets="text", composition="old"))
    dev = Development(app)
    try:
        dev.until("registered up 1")
        app.write_text(EXCHANGED.format(function="up", sets="word", composition="new"))
        dev.until("registered up 2, new 1")
        dev.until("removed old")
    finally:
        assert dev.end() == 0


def test_an_edit_counts_though_size_and_time_stay(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    app, words = tmp_path / "app.py", tmp_path / "words.py"
    app.write_text(
        "import dandelion as dd\nimport words\n\n\n"
        "@dd.function\ndef said(x: str) -> str:\n    return words.WORD + x + 'a'\n"
    )
    for word, end in (("one", "a"), ("two", "a"), ("two", "b")):
        words.write_text(f"WORD = '{word}'\n")
        app.write_text(app.read_text()[:-3] + f"{end}'\n")
        for file in (app, words):
            os.utime(file, (1e9, 1e9))
        _, out, error = command("run", f"{app}:said", "x=-", "--json")
        assert f"{word}-{end}" in out, error
    assert not list(tmp_path.rglob("*.pyc"))


def test_run_starts_what_the_file_needs_only(
    command: Command, app: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[str, ...]] = []
    start = Node.__init__

    def noting(self: Node, settings: Settings) -> None:
        started.append(settings.backends)
        start(self, settings)

    monkeypatch.setattr(Node, "__init__", noting)
    monkeypatch.delenv("DANDELION_BACKENDS")
    assert command("run", app, "pages=One")[0] == 0
    assert started == [("process", "http")]
    code, _, error = command("run", app, "hello")
    assert code == 2
    assert "not SET=VALUE" in error
    assert len(started) == 1  # that is known without a node
