"""The wheel has the files of the tree, under the names of a checkout."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MAPPED = {"backends": "dandelion/backends", "registry": "dandelion/registry"}
MAPPED |= {"compositions": "dandelion/compositions", "bench": "dandelion/bench"}
LEFT_OUT = {"__pycache__", "results"}


def tree_files() -> set[str]:
    """Files that a wheel must have, by the names they have in it."""
    found = set()
    for folder in ("dandelion", *MAPPED):
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and path.suffix != ".so" and not LEFT_OUT & set(path.parts):
                relative = path.relative_to(ROOT / folder)
                found.add(f"{MAPPED.get(folder, folder)}/{relative}")
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    build = tmp_path_factory.mktemp("build")
    listing = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    for name in listing:
        source = ROOT / name
        if source.is_file():
            target = build / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), "."],
        cwd=build, check=True, capture_output=True, env=os.environ | {"DANDELION_COMPILE": "0"},
    )  # fmt: skip
    return next(out.glob("*.whl"))


def test_wheel_has_exactly_the_tree(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {n for n in archive.namelist() if ".dist-info/" not in n}
    assert names == tree_files()


def test_wheel_runs_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    program = (
        "import dandelion, dandelion.backends.null, dandelion.registry.sqlite; "
        "from dandelion.driver import load_driver; "
        "print(load_driver('null').name, dandelion.__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path, env={"PYTHONPATH": str(tmp_path / "site"), "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    name, origin = done.stdout.split()
    assert name == "null"
    assert origin.startswith(str(tmp_path))
