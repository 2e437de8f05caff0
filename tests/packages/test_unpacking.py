"""What a wheel may contain, and where it goes."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from dandelion.packages.unpacking import BadWheel, compile_all, unpack


class Full(Exception):
    pass


def archive(files: Mapping[str, str], mode: int = 0o100644) -> io.BytesIO:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as file:
        for name, text in files.items():
            member = zipfile.ZipInfo(name)
            member.external_attr = mode << 16
            file.writestr(member, text, zipfile.ZIP_DEFLATED)
    return made


def free(size_bytes: int, files: int) -> None:
    """Count nothing."""


def test_modules_are_kept_and_scripts_are_not(tmp_path: Path) -> None:
    files = {
        "a/__init__.py": "x = 1",
        "a-1.data/purelib/b.py": "",
        "a-1.data/platlib/c/d.py": "",
        "a-1.data/scripts/run": "",
        "a-1.data/data/etc/passwd": "",
        "a-1.dist-info/METADATA": "",
    }
    unpack(archive(files), tmp_path, free)
    found = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
    assert found == {"a/__init__.py", "b.py", "c/d.py", "a-1.dist-info/METADATA"}


@pytest.mark.parametrize(
    "name", ["../x", "/x", "a/../../x", "a\\..\\x", "a-1.data/purelib/../../../x", "a\nb", "."]
)
def test_names_cannot_leave_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadWheel):
        unpack(archive({"first.py": "", name: "bad"}), tmp_path / "site", free)
    assert not (tmp_path / "site").exists()  # names are checked before anything is written


@pytest.mark.parametrize("name", ["x" * 250, "/".join("ab" * 40), "/".join(["y" * 200] * 6)])
def test_names_that_are_too_long_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadWheel, match="too long"):
        unpack(archive({"first.py": "", name: "bad"}), tmp_path / "site", free)
    assert not (tmp_path / "site").exists()


def test_files_that_are_there_twice(tmp_path: Path) -> None:
    moved = "a-1.data/purelib/a.py"
    unpack(archive({"a.py": "x = 1", moved: "x = 1"}), tmp_path, free)
    with pytest.raises(BadWheel, match="another wheel"):
        unpack(archive({"a.py": "x = 2"}), tmp_path, free)
    with pytest.raises(BadWheel, match="twice"):
        unpack(archive({"b.py": "x = 1", "b-1.data/purelib/b.py": "x = 2"}), tmp_path, free)
    assert {path.name for path in tmp_path.iterdir()} == {"a.py", "b.py"}


def test_folders_are_counted_as_files_are(tmp_path: Path) -> None:
    spent = 0

    def spend(size_bytes: int, files: int) -> None:
        nonlocal spent
        spent += files

    unpack(archive({f"{i}/a/b/c/d.py": "" for i in range(3)} | {"0/a/e.py": ""}), tmp_path, spend)
    assert spent == len(list(tmp_path.rglob("*"))) == 4 + 3 * 4


def test_a_member_far_behind_the_end_is_damage(tmp_path: Path) -> None:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        file.writestr("a.py", "")
        file.filelist[0].header_offset = (1 << 64) - 1
    with pytest.raises(BadWheel):
        unpack(made, tmp_path, free)


def test_links_and_devices_are_refused(tmp_path: Path) -> None:
    for mode in (0o120777, 0o020666, 0o010666):
        with pytest.raises(BadWheel):
            unpack(archive({"a.py": "/etc/passwd"}, mode), tmp_path, free)
    assert not list(tmp_path.iterdir())


def test_a_member_that_is_larger_than_allowed(tmp_path: Path) -> None:
    left = 1 << 20

    def spend(size_bytes: int, files: int) -> None:
        nonlocal left
        left -= size_bytes
        if left < 0:
            raise Full

    bomb = archive({"a.bin": "0" * (64 << 20)})
    assert len(bomb.getvalue()) < 1 << 20
    with pytest.raises(Full):
        unpack(bomb, tmp_path, spend)
    assert (tmp_path / "a.bin").stat().st_size <= 1 << 20


def test_two_wheels_may_share_equal_files_only(tmp_path: Path) -> None:
    unpack(archive({"space/__init__.py": "", "space/a.py": "1"}), tmp_path, free)
    unpack(archive({"space/__init__.py": "", "space/b.py": "2"}), tmp_path, free)
    with pytest.raises(BadWheel, match=r"space/a\.py"):
        unpack(archive({"space/a.py": "other"}), tmp_path, free)
    assert (tmp_path / "space/a.py").read_text() == "1"
    for name in ("space/a.py/x.py", "space"):
        with pytest.raises(BadWheel):
            unpack(archive({name: "1"}), tmp_path, free)


def test_damage_is_found(tmp_path: Path) -> None:
    data = bytearray(archive({"a.py": "x" * 1000}).getvalue())
    for at in (0, 35, len(data) - 30):
        broken = data.copy()
        broken[at : at + 6] = b"\xff" * 6
        with pytest.raises(BadWheel):
            unpack(io.BytesIO(bytes(broken)), tmp_path / str(at), free)


def test_modules_are_compiled_but_not_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"good.py": "x = 1", "bad.py": "x = = 1", "nul.py": "\0", "p/tests/a.py": "y = 1"}
    unpack(archive(files), tmp_path, free)
    monkeypatch.chdir(tmp_path)
    compile_all(Path(), free)
    assert [p.name.partition(".")[0] for p in tmp_path.rglob("*.pyc")] == ["good"]
