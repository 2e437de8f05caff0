"""Extension modules that are older than their sources; a node that runs from its sources."""

import os
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from dandelion import extension_modules
from dandelion.cli import doctor

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = """
import sys
from tests.scheduler.sources import Sources
sys.meta_path.insert(0, Sources())
import dandelion as dd
from dandelion import extension_modules
from dandelion.dispatcher import walk

@dd.function
def count(page: str) -> int:
    return len(page.split())

@dd.function
def total(counts: list[int]) -> int:
    return sum(counts)

@dd.composition
def word_count(pages):
    return {"sum": total(count(dd.each(pages)))}

if __name__ == "__main__":
    assert walk.__file__.endswith(".py")
    with dd.Node() as node:
        node.register(word_count)
        print(node.invoke("word_count", pages=["to be or not", "to be"]).sum.value())
"""


@pytest.fixture
def compiled(tmp_path: Path) -> Path:
    """An extension module in a checkout, as old as its source."""
    package = tmp_path / "dandelion/scheduler"
    package.mkdir(parents=True)
    for name in ("walk.py", "walk" + EXTENSION_SUFFIXES[0], "other.py"):
        (package / name).touch()
        os.utime(package / name, (1000, 1000))
    return package / ("walk" + EXTENSION_SUFFIXES[0])


def test_one_that_is_as_old_as_its_source_is_not_outdated(compiled: Path) -> None:
    assert extension_modules.outdated(compiled.parent.parent) == []


def test_one_whose_source_is_newer_is_outdated(compiled: Path) -> None:
    os.utime(compiled.with_name("walk.py"), (1001, 1001))
    assert extension_modules.outdated(compiled.parent.parent) == [compiled]


def test_one_of_a_backend_is_found_too(compiled: Path) -> None:
    package = compiled.parent.parent
    backend = package.with_name("backends") / "gpu" / ("pool" + EXTENSION_SUFFIXES[0])
    backend.parent.mkdir(parents=True)
    backend.touch()
    assert extension_modules.outdated(package) == [backend]


def test_one_without_a_source_is_outdated(compiled: Path) -> None:
    compiled.with_name("walk.py").unlink()
    assert extension_modules.outdated(compiled.parent.parent) == [compiled]


def test_an_installation_has_none(compiled: Path) -> None:
    """Files of a wheel are written in any order."""
    compiled.with_name("walk.py").unlink()
    (compiled.parent.parent / "backends").mkdir()
    assert extension_modules.outdated(compiled.parent.parent) == []


def test_the_doctor_names_one_and_the_remedy(
    compiled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extension_modules, "outdated", lambda: [compiled])
    (found,) = [one for one in doctor.machine() if one.name == "extension modules"]
    assert not found.works
    assert compiled.name in found.detail
    assert "make extensions" in found.remedy


def test_a_node_runs_from_its_sources(tmp_path: Path) -> None:
    """The form without a compiler; where the tests run with extension modules, it is not theirs."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(program)],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.strip() == "6", done.stderr
