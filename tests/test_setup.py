"""The build compiles modules where that is wanted."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MODULE = "dandelion/timers.py"
BACKEND_MODULE = "backends/gpu/adaptive_wait.py"
PROGRAM = "import dandelion.timers as t; print(t.__file__, len(t.Timers()))"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A source tree with one of the modules that are compiled."""
    return with_module(tmp_path)


def with_module(folder: Path) -> Path:
    """Make such a tree in a folder."""
    (folder / "dandelion").mkdir()
    (folder / "dandelion/__init__.py").touch()
    for name in ("setup.py", MODULE):
        shutil.copy(ROOT / name, folder / name)
    return folder


def build(tree: Path, choice: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Build in place."""
    return subprocess.run(
        [sys.executable, "setup.py", "build_ext", "--inplace"],
        cwd=tree, env=os.environ | {"DANDELION_COMPILE": choice} | variables,
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def origin(tree: Path) -> str:
    """Where the module is loaded from."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tree, env=os.environ | {"PYTHONPATH": str(tree)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    path, length = done.stdout.split()
    assert path.startswith(str(tree))
    assert length == "0"
    return path


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree with a module of a backend, too, that was built where a compiler must be."""
    tree = with_module(tmp_path_factory.mktemp("compiled"))
    (tree / "backends/gpu").mkdir(parents=True)
    (tree / "backends/__init__.py").touch()
    (tree / "backends/gpu/__init__.py").touch()
    shutil.copy(ROOT / BACKEND_MODULE, tree / BACKEND_MODULE)
    (tree / "pyproject.toml").write_text(
        """[project]
name = "tree"
version = "1"
[tool.setuptools]
packages = ["dandelion", "dandelion.backends", "dandelion.backends.gpu"]
package-dir = {"dandelion" = "dandelion", "dandelion.backends" = "backends"}
"""
    )
    done = build(tree, "1")
    assert done.returncode == 0, done.stderr
    return tree


def test_modules_of_backends_have_their_names_in_the_package(compiled: Path) -> None:
    assert list((compiled / "backends/gpu").glob("adaptive_wait.*.so"))
    path = "import sys, dandelion; dandelion.__path__.append(sys.argv[1]); "
    program = path + "import dandelion.backends.gpu.adaptive_wait as m; print(m.__file__)"
    shown = subprocess.run(
        [sys.executable, "-c", program, str(compiled)],
        cwd=compiled, env=os.environ | {"PYTHONPATH": str(compiled)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert shown.stdout.startswith(str(compiled / "backends/gpu/adaptive_wait."))
    assert shown.stdout.strip().endswith(".so")


def test_modules_are_compiled_where_they_must_be(compiled: Path) -> None:
    assert origin(compiled).endswith(".so")


def test_modules_are_compiled_where_there_is_a_compiler(tree: Path) -> None:
    done = build(tree, "")
    assert done.returncode == 0, done.stderr
    assert origin(tree).endswith(".so")


def test_they_are_not_where_that_is_not_wanted(tree: Path) -> None:
    assert build(tree, "0").returncode == 0
    assert origin(tree).endswith(".py")


@pytest.mark.parametrize("compiler", ["false", "/nowhere/cc"])
def test_without_a_compiler_they_are_not(tree: Path, compiler: str) -> None:
    done = build(tree, "", CC=compiler)
    assert done.returncode == 0, done.stderr
    assert "no C compiler" in done.stdout
    assert origin(tree).endswith(".py")


def test_without_a_compiler_the_build_fails_if_they_must_be(tree: Path) -> None:
    done = build(tree, "1", CC="false")
    assert done.returncode != 0
    assert "false" in done.stdout + done.stderr


def test_a_wrong_choice_is_refused(tree: Path) -> None:
    done = build(tree, "yes")
    assert done.returncode != 0
    assert "DANDELION_COMPILE is 'yes'; it may be 0 or 1" in done.stderr


@pytest.mark.parametrize("command", ["egg_info", "dist_info"])
def test_a_description_compiles_nothing(tree: Path, command: str) -> None:
    subprocess.run(
        [sys.executable, "setup.py", command],
        cwd=tree, env=os.environ | {"CC": "/nowhere/cc", "DANDELION_COMPILE": "1"},
        capture_output=True, check=True,
    )  # fmt: skip
