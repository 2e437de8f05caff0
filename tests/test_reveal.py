"""Files that root alone can reach, for processes that gave the rights of root up."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dandelion.confinement import lockdown

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="others can only reach their own files")
PROGRAM = """
import sys
from pathlib import Path
from dandelion.confinement import lockdown
memory, *wanted = sys.argv[1:]
if not lockdown.mount_memory(memory, 1 << 20, 100):
    print("not permitted")
    sys.exit()
print(lockdown.reveal(wanted, mounts=True) or "all")
lockdown.drop_identity()
for path in (*wanted, str(Path(wanted[0]).parent / "other")):
    try:
        print(sorted(p.name for p in Path(path).iterdir()) if Path(path).is_dir()
              else Path(path).read_text())
    except OSError as error:
        print(type(error).__name__)
"""


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder that only root enters, below folders that everybody does; pytest's are not."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield _furnished(Path(name))


def _furnished(folder: Path) -> Path:
    home = folder / "home"
    (home / "inner" / "library").mkdir(parents=True)
    (home / "inner" / "library" / "code").write_text("in a folder")
    (home / "inner" / "file").write_text("a file")
    (home / "inner" / "other").write_text("not wanted")
    home.chmod(0o700)
    (folder / "memory").mkdir()
    return home


def printed(home: Path, *wanted: Path) -> list[str]:
    words = [sys.executable, "-c", PROGRAM, str(home.parent / "memory"), *map(str, wanted)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert not done.returncode, done.stderr
    lines = done.stdout.splitlines()
    if lines == ["not permitted"]:
        pytest.skip("this process may not mount")
    return lines


def test_nobody_reaches_what_is_revealed_and_nothing_else(home: Path) -> None:
    found = printed(home, home / "inner" / "library", home / "inner" / "file", home / "missing")
    assert found[0] == "all"
    assert found[1:] == ["['code']", "a file", "FileNotFoundError", "FileNotFoundError"]
    assert (home / "inner" / "other").read_text() == "not wanted", "others see what was there"
    assert home.stat().st_mode & 0o777 == 0o700


def test_what_everybody_reaches_stays_as_it_is(home: Path) -> None:
    home.chmod(0o755)
    assert lockdown.reveal([str(home / "inner" / "library")], mounts=False) == ""
    found = printed(home, home / "inner" / "file")
    assert found == ["all", "a file", "not wanted"]


def test_without_mounts_of_its_own_nothing_is_covered(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def refused(*given: object, **more: object) -> None:
        tried.append(given)
        raise PermissionError

    monkeypatch.setattr("dandelion.confinement.libc.mount", refused)
    assert lockdown.reveal([str(home / "inner" / "file")], mounts=False) == str(home)
    assert not tried, "others would see it"
    assert lockdown.reveal([str(home / "inner" / "file")], mounts=True) == str(home)
