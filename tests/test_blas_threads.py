"""Threads of numpy: programs that do not compute have one, those of users as many as before."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dandelion.search_path import loaded_without_threads, one_blas_thread
from dandelion.testing import FakeEngineProcess
from tests.played_nodes import played_driver, played_node, wait_ready

NAME = "OPENBLAS_NUM_THREADS"
SCRIPT = """
import os
process.note("threads", os.environ.get("OPENBLAS_NUM_THREADS", "all"))
process.opened()
process.ready()
process.call()
"""


def without_choice() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != NAME}


@pytest.fixture
def _undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NAME, raising=False)


def test_a_verb_for_a_node_starts_no_threads() -> None:
    code = (
        "import os; from dandelion.cli.main import main;"
        "main(['ls', '--url', 'http://127.0.0.1:9']);"
        "print(len(os.listdir('/proc/self/task')), 'OPENBLAS_NUM_THREADS' in os.environ)"
    )
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, env=without_choice(), capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["1", "False"]


def test_programs_of_users_have_all_threads(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"import os; raise ValueError('threads:', os.environ.get('{NAME}'))")
    command = [sys.executable, "-m", "dandelion", "check", str(program)]
    run = subprocess.run(command, env=without_choice(), capture_output=True, text=True, check=False)
    assert "('threads:', None)" in run.stdout


def test_a_choice_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "3")
    assert one_blas_thread() == {}
    with loaded_without_threads():
        assert os.environ[NAME] == "3"
    assert os.environ[NAME] == "3"


@pytest.mark.usefixtures("_undecided")
@pytest.mark.parametrize(("uses_blas", "threads"), [(True, "all"), (False, "1")])
def test_engines_that_compute_with_it_have_all_threads(
    tmp_path: Path, uses_blas: bool, threads: str
) -> None:
    driver = played_driver()
    driver.uses_blas = uses_blas  # type: ignore[misc]  # drivers have it by class
    fake = FakeEngineProcess(tmp_path, SCRIPT)
    with played_node(fake, drivers=[driver], names=()) as node:
        wait_ready(node, 1)
    assert fake.notes("threads") == [threads]
