"""The command line and packages: from an empty folder to a deployed composition, as documented."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dandelion.cli.main import main
from dandelion.cli.wheel_folder import wheel_flags
from tests.loopback import free_ports, own_host
from tests.packages.wheels import wheel

PAGE = Path(__file__).resolve().parent.parent / "docs" / "projects.md"
MINUTE_S = 60.0
STEMMER = """
class _Stemmer:
    def stemWords(self, words):
        return ["run" if word in ("runs", "running") else word for word in words]

def stemmer(language):
    return _Stemmer()
"""


def recorded() -> list[tuple[str, list[str]]]:
    """Read the commands of the recorded session, each with the lines that it printed."""
    text = PAGE.read_text()
    session = text[text.index("```console\n") + 11 :].partition("\n```")[0]
    commands: list[tuple[str, list[str]]] = []
    for line in session.splitlines():
        if line.startswith("$ "):
            commands.append((line[2:], []))
        else:
            commands[-1][1].append(line)
    return commands


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Make the environment of a user whose pip finds a stand-in for the package, offline."""
    index = tmp_path / "index"
    wheel(index, "snowballstemmer", "3.1.1", {"snowballstemmer/__init__.py": STEMMER})
    host = own_host()
    [port] = free_ports(1, host)
    return {
        **{name: value for name, value in os.environ.items() if name[:4] not in ("PIP_", "DAND")},
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(index),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "XDG_DATA_HOME": str(tmp_path / "data"),
        "COLUMNS": "200",
        "DANDELION_HOST": host,
        "DANDELION_PORT": str(port),
        "DANDELION_URL": f"http://{host}:{port}",
        "DANDELION_ENGINES": "process=1",
        "DANDELION_BACKENDS": "process",
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "empty").mkdir()
    return tmp_path / "empty"


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        os.killpg(process.pid, signal.SIGTERM)
        process.communicate(timeout=30)


def comparable(text: str, environment: dict[str, str]) -> str:
    """Leave out what differs between two sessions: addresses, ids, the rest of spaces."""
    text = text.replace(environment["DANDELION_URL"], "http://127.0.0.1:8080")
    text = text.replace(environment["XDG_DATA_HOME"], "/home/ada/.local/share")
    return re.sub(r"invocation \S+|\s+", " ", text).strip()


def test_the_recorded_session(
    folder: Path, environment: dict[str, str], started: list[subprocess.Popen[str]]
) -> None:
    began_s = time.monotonic()
    commands = recorded()
    assert [command.split()[1] for command, _ in commands] == [
        *("init", "wheels", "serve", "deploy", "invoke")
    ]
    for command, lines in commands:
        if command.endswith(" &"):
            process = subprocess.Popen(
                ["bash", "-c", f"exec {command.removesuffix(' &')}"], cwd=folder, env=environment,
                stdout=subprocess.PIPE, text=True, start_new_session=True,
            )  # fmt: skip
            started.append(process)
            assert process.stdout is not None
            lines = lines[1:]  # without the number of the job
            out = "".join(process.stdout.readline() for _ in lines)
        else:
            done = subprocess.run(
                ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True
            )
            assert done.returncode == 0, done.stderr
            out = done.stdout
        assert comparable(out, environment) == comparable("\n".join(lines), environment)
    assert time.monotonic() - began_s < MINUTE_S


@pytest.fixture
def here(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Have this process, too, use the environment; without a node."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("DANDELION_URL")
    return environment


def test_wheels(folder: Path, here: dict[str, str], capfd: pytest.CaptureFixture[str]) -> None:
    app = folder / "app.py"
    assert main(["init", str(folder), "--with-packages"]) == 0
    capfd.readouterr()
    assert main(["wheels", str(app), "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["wheels"] == ["snowballstemmer-3.1.1-py3-none-any.whl"]
    app.write_text(app.read_text().replace("snowballstemmer>=2", "not-there"))
    assert main(["wheels", str(app)]) == 1
    assert "not-there" in capfd.readouterr().err
    app.write_text(app.read_text().replace('(packages=["not-there"])', ""))
    assert main(["wheels", str(app)]) == 2
    assert "packages=[...]" in capfd.readouterr().err


def test_wheels_of_functions_that_need_different_versions(
    folder: Path, here: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    wheel(Path(here["PIP_FIND_LINKS"]), "snowballstemmer", "2.0")
    app = folder / "app.py"
    app.write_text(
        "import dandelion as dd\n\n"
        "@dd.function(packages=['snowballstemmer<3'])\ndef old() -> int:\n    return 1\n\n"
        "@dd.function(packages=['snowballstemmer>=3'])\ndef new() -> int:\n    return 2\n"
    )
    assert main(["wheels", str(app), "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["wheels"] == [
        "snowballstemmer-2.0-py3-none-any.whl",
        "snowballstemmer-3.1.1-py3-none-any.whl",
    ]


def test_which_wheels_a_program_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DANDELION_PACKAGES_FOLDER", raising=False)
    app, other = tmp_path / "app.py", tmp_path / "other"
    assert wheel_flags(app, None) == {}
    assert wheel_flags(app, other) == {"packages_folder": [str(other)]}
    (tmp_path / "wheels").mkdir()
    assert wheel_flags(app, None) == {"packages_folder": [str(tmp_path / "wheels")]}
    monkeypatch.setenv("DANDELION_PACKAGES_FOLDER", str(other))
    assert wheel_flags(app, None) == {}
