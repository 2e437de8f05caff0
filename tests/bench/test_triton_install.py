"""Finding Triton in a virtual environment, against a made-up one whose server is the stand-in."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from dandelion.bench.records import Skip
from dandelion.bench.systems import names, steps
from dandelion.bench.systems.contenders import Lineup
from dandelion.bench.systems.functions import network
from dandelion.bench.systems.triton import TritonEnsembles, TritonServer, no_op_model
from dandelion.bench.systems.triton_install import (
    PROGRAM,
    REMEDY,
    VARIABLE,
    find_triton,
    missing_triton,
)

from tests.bench.test_triton import QUICK, triton
from tests.bench.triton_stand_in import PARTS, script

THIS = f"{sys.version_info.major}.{sys.version_info.minor}"
LIBRARIES = "LD_LIBRARY_PATH"
OTHER = f"{sys.version_info.major}.{sys.version_info.minor + 1}"


@dataclass(frozen=True)
class Environment:
    """A virtual environment with nvidia-pytriton, as pip would make it.

    Attributes:
        home: its folder.
        base: of the Python that it was made from.
        version: of that Python.
    """

    home: Path
    base: Path
    version: str = THIS

    @property
    def packages(self) -> Path:
        return self.home / "lib" / f"python{self.version}" / "site-packages"

    @property
    def package(self) -> Path:
        return self.packages / "pytriton" / "tritonserver"

    @property
    def program(self) -> Path:
        return self.package / "bin" / PROGRAM

    @property
    def stub(self) -> Path:
        return self.package / "python_backend_stubs" / self.version / PARTS[0]

    @property
    def library(self) -> Path:
        return self.base / "lib" / f"libpython{self.version}.so.1.0"

    def make(self) -> None:
        python = self.base / "bin" / f"python{self.version}"
        write(python, runs=True)
        write(self.library)
        write(self.stub, runs=True)
        for part in PARTS[1:]:
            write(self.package / "backends" / "python" / part)
        write(self.program, script(sysconfig.get_path("purelib")), runs=True)
        self.has("numpy", "1.26.4")
        (self.home / "bin").mkdir()
        (self.home / "bin" / "python3").symlink_to(python)

    def has(self, name: str, version: str) -> None:
        """Say that a package is installed."""
        (self.packages / f"{name}-{version}.dist-info").mkdir()

    def lose(self, name: str) -> None:
        """Remove what says that a package is installed."""
        (found,) = self.packages.glob(f"{name}-*.dist-info")
        found.rmdir()


def write(place: Path, text: str = "", *, runs: bool = False) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    if runs:
        place.chmod(0o755)


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    """Make one that is whole, and name it; servers' folders are made beside it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    found = Environment(tmp_path / "environment", tmp_path / "base")
    found.make()
    monkeypatch.setenv(VARIABLE, str(found.home))
    return found


@pytest.fixture
def on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a program on the PATH."""
    program = tmp_path / "elsewhere" / PROGRAM
    write(program, "#!/bin/sh\n", runs=True)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return program


def test_the_network_is_served_from_it(environment: Environment) -> None:
    with Lineup(QUICK, [triton()]) as lineup:
        lineup.check("network", network().body, network().expected)
        assert lineup.skips == []
    assert list(environment.home.parent.glob("triton-*")) == []


def test_ensembles_run_in_it_though_nothing_of_it_is_executable(environment: Environment) -> None:
    environment.program.chmod(0o644)
    environment.stub.chmod(0o644)
    ensembles = TritonEnsembles()
    try:
        assert ensembles.chain(3) is not None
    finally:
        ensembles.close()
    assert not os.access(environment.stub, os.X_OK)  # what is not ours stays as it is


def variables(command: list[str], name: str) -> list[str]:
    """List the folders that a command sets a variable to."""
    assert command[0] == "env"
    (found,) = (word for word in command if word.startswith(f"{name}="))
    return found.removeprefix(f"{name}=").split(os.pathsep)


def test_it_comes_before_what_is_on_the_path(
    environment: Environment, on_the_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(LIBRARIES, "/before")
    command = find_triton().command(tmp_path / "one")
    path = variables(command, "PATH")
    assert path[:2] == [str(environment.home / "bin"), str(on_the_path.parent)]
    libraries = variables(command, LIBRARIES)
    assert libraries[1:] == [str(environment.packages / "nvidia_pytriton.libs"), "/before"]
    assert [p.name for p in Path(libraries[0]).iterdir()] == [environment.library.name]
    monkeypatch.delenv(LIBRARIES)
    assert len(variables(find_triton().command(tmp_path / "other"), LIBRARIES)) == 2
    monkeypatch.delenv(VARIABLE)
    assert find_triton().command(tmp_path / "third") == [str(on_the_path)]


def later_numpy(environment: Environment) -> None:
    environment.lose("numpy")
    environment.has("numpy", "2.4.6")


LACKS: dict[str, tuple[Callable[[Environment], object], str, str]] = {
    "no environment": (lambda e: shutil.rmtree(e.home), "virtual environment", REMEDY),
    "no package": (lambda e: shutil.rmtree(e.package), "nvidia-pytriton", REMEDY),
    "no stub": (lambda e: e.stub.unlink(), f"Python {THIS}", REMEDY),
    "no library": (lambda e: e.library.unlink(), f"libpython{THIS}.so.1.0", "--enable-shared"),
    "no NumPy": (lambda e: e.lose("numpy"), "lacks NumPy", "pip install 'numpy<2'"),
    "late NumPy": (later_numpy, "NumPy 2.4.6", "pip install 'numpy<2'"),
}


@pytest.mark.usefixtures("on_the_path")
@pytest.mark.parametrize(("spoil", "what", "remedy"), LACKS.values(), ids=LACKS)
def test_one_that_lacks_something_is_refused_and_told(
    environment: Environment,
    spoil: Callable[[Environment], object],
    what: str,
    remedy: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert missing_triton() == ""
    spoil(environment)
    reason = missing_triton()
    assert str(environment.home) in reason
    assert VARIABLE in reason
    assert what in reason
    assert remedy in reason
    assert triton().missing == reason
    monkeypatch.setattr(steps, "_installed", lambda name: False)
    skips: list[Skip] = []
    with steps.step_runners(False, skips) as found:
        assert found == []
    assert [s.reason for s in skips if s.what == names.TRITON] == [reason]


def test_one_of_another_python_needs_this_package_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = Environment(tmp_path / "environment", tmp_path / "base", OTHER)
    environment.make()
    monkeypatch.setenv(VARIABLE, str(environment.home))
    assert OTHER in missing_triton()
    environment.has("dandelion_engine", "0.1.0")
    assert missing_triton() == ""


@pytest.mark.parametrize("place", ["lib64", "lib/some-linux-gnu"])
def test_the_library_is_found_where_systems_have_it(environment: Environment, place: str) -> None:
    moved = environment.base / place / environment.library.name
    moved.parent.mkdir()
    environment.library.rename(moved)
    assert find_triton().library == moved


def test_the_library_is_found_though_the_program_is_a_copy(environment: Environment) -> None:
    program = environment.home / "bin" / "python3"
    program.unlink()
    write(program, runs=True)
    assert "libpython" in missing_triton()
    (environment.home / "pyvenv.cfg").write_text(
        f"home = {environment.base}/bin\ninclude-system-site-packages = false\n"
    )
    assert find_triton().library == environment.library


def test_the_home_folder_may_be_abbreviated(
    environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(environment.home.parent))
    monkeypatch.setenv(VARIABLE, f"~/{environment.home.name}")
    assert find_triton().program == environment.program


def test_parts_lie_together_while_it_runs(environment: Environment) -> None:
    with TritonServer([no_op_model()]):
        (folder,) = environment.home.parent.glob("triton-*")
        (stub,) = folder.rglob(PARTS[0])
        assert {p.name for p in stub.parent.iterdir()} >= set(PARTS)
        assert os.access(stub, os.X_OK)
        assert len(list(folder.rglob(environment.library.name))) == 1
    assert not folder.exists()
