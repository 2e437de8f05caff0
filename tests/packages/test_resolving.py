"""Which wheels are chosen, and what is said if none fit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.tags import sys_tags

from dandelion.packages.resolving import CannotResolve, resolve
from dandelion.packages.wheel_sources import WheelFolder
from tests.packages.wheels import digest, wheel

PROVIDED = {"numpy": "2.0.0", "msgspec": "0.19.0"}


@pytest.fixture
def descriptor(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


def chosen(descriptor: int, *wanted: str, pins: dict[str, str] | None = None) -> list[str]:
    found = resolve(wanted, [WheelFolder(descriptor)], PROVIDED, pins or {})
    return ["-".join(one.name.split("-")[:2]) for one, _ in found]


def problem(descriptor: int, *wanted: str, pins: dict[str, str] | None = None) -> tuple[str, str]:
    with pytest.raises(CannotResolve) as caught:
        chosen(descriptor, *wanted, pins=pins)
    (found,) = caught.value.problems
    return found.code, str(found)


def test_the_newest_versions_that_fit_together(tmp_path: Path, descriptor: int) -> None:
    for version in ("1.0", "1.9", "1.10", "2.0"):
        wheel(tmp_path, "base", version)
    wheel(tmp_path, "top", "1.0", requires=["base<2"])
    wheel(tmp_path, "top", "2.0", requires=["base>=3"])  # cannot be; an older top is taken
    assert chosen(descriptor, "base") == ["base-2.0"]
    assert chosen(descriptor, "top") == ["base-1.10", "top-1.0"]
    assert chosen(descriptor, "top", "base!=1.10") == ["base-1.9", "top-1.0"]


def test_what_is_no_file_is_no_wheel(tmp_path: Path, descriptor: int) -> None:
    os.mkfifo(tmp_path / "waits-1.0-py3-none-any.whl")
    (tmp_path / "folder-1.0-py3-none-any.whl").mkdir()
    (tmp_path / "itself-1.0-py3-none-any.whl").symlink_to("itself-1.0-py3-none-any.whl")
    (tmp_path / "nothing-1.0-py3-none-any.whl").symlink_to("none")
    (tmp_path / "linked-1.0-py3-none-any.whl").symlink_to(wheel(tmp_path / "else", "linked", "1.0"))
    for name in ("waits", "folder", "itself", "nothing"):
        assert problem(descriptor, name)[0] == "unknown-package"
    assert chosen(descriptor, "linked") == ["linked-1.0"]


@pytest.mark.parametrize("other", ["other-1.0", "named-2.0"])
def test_a_file_with_the_name_of_another_wheel(tmp_path: Path, descriptor: int, other: str) -> None:
    made = wheel(tmp_path, "named", "1.0")
    made.rename(made.with_name(made.name.replace("named-1.0", other)))
    assert problem(descriptor, other.split("-")[0]) == (
        "bad-wheel",
        f"{other}-py3-none-any.whl is damaged: its metadata is that of named 1.0",
    )


def test_markers_and_extras(tmp_path: Path, descriptor: int) -> None:
    wheel(tmp_path, "web", "1.0", requires=[
        "fast>=1; extra == 'speed'", "old; python_version < '3'", "plain; python_version >= '3'",
    ])  # fmt: skip
    for name in ("fast", "plain"):
        wheel(tmp_path, name, "1.0")
    assert chosen(descriptor, "web") == ["plain-1.0", "web-1.0"]
    assert chosen(descriptor, "web[speed]") == ["fast-1.0", "plain-1.0", "web-1.0"]
    assert chosen(descriptor, "nothing; python_version < '3'") == []


def test_final_versions_go_before_others(tmp_path: Path, descriptor: int) -> None:
    wheel(tmp_path, "a", "1.0")
    wheel(tmp_path, "a", "2.0rc1")
    wheel(tmp_path, "b", "3.0b1")
    assert chosen(descriptor, "a") == ["a-1.0"]
    assert chosen(descriptor, "a>=2.0rc1") == ["a-2.0rc1"]
    assert chosen(descriptor, "b") == ["b-3.0b1"]


def test_the_most_specific_wheel_of_a_version(tmp_path: Path, descriptor: int) -> None:
    best = next(iter(sys_tags()))
    wheel(tmp_path, "a", "1.0")
    wheel(tmp_path, "a", "1.0", tag=str(best))
    wheel(tmp_path, "a", "2.0", tag="cp27-cp27m-win32")
    found = resolve(["a"], [WheelFolder(descriptor)], PROVIDED, {})
    assert [one.name for one, _ in found] == [f"a-1.0-{best}.whl"]


def test_what_sandboxes_have_needs_no_wheel(tmp_path: Path, descriptor: int) -> None:
    wheel(tmp_path, "numpy", "1.26.0")
    wheel(tmp_path, "science", "1.0", requires=["numpy<2"])
    assert chosen(descriptor, "numpy") == []
    assert chosen(descriptor, "science", "numpy") == ["numpy-1.26.0", "science-1.0"]
    assert resolve(["numpy"], [], PROVIDED, {}) == []
    wheel(tmp_path, "msgspec", "0.1")
    assert problem(descriptor, "msgspec<0.19")[0] == "no-version"


def test_pins_choose_exactly_these(tmp_path: Path, descriptor: int) -> None:
    old = wheel(tmp_path, "a", "1.0")
    wheel(tmp_path, "a", "2.0")
    pins = {old.name: digest(old)}
    assert chosen(descriptor, "a", pins=pins) == ["a-1.0"]
    old.unlink()
    assert problem(descriptor, "a", pins=pins)[0] == "wheel-changed"


def test_nothing_fits(tmp_path: Path, descriptor: int) -> None:
    wheel(tmp_path, "greeting", "1.0")
    wheel(tmp_path, "left", "1.0", requires=["greeting<1"])
    wheel(tmp_path, "right", "1.0", requires=["greeting>=1"])
    wheel(tmp_path, "lost", "1.0", requires=["gone"])
    wheel(tmp_path, "windows", "1.0", tag="cp311-cp311-win_amd64")
    (tmp_path / "source-1.0.tar.gz").touch()
    assert problem(descriptor, "greetings") == (
        "unknown-package",
        "the wheel folder has no package 'greetings'; did you mean 'greeting'?",
    )
    assert problem(descriptor, "greeting>=2")[0] == "no-version"
    assert "1.0" in problem(descriptor, "greeting>=2")[1]
    assert problem(descriptor, "windows")[0] == "no-wheel"
    assert problem(descriptor, "source")[0] == "no-wheel"
    code, text = problem(descriptor, "lost")
    assert code == "unknown-package"
    assert "lost 1.0 needs 'gone'" in text
    code, text = problem(descriptor, "greeting>=1", "greeting<1")
    assert code == "no-version"
    wheel(tmp_path, "greeting", "0.5")


def test_conflicts_name_both_sides(tmp_path: Path, descriptor: int) -> None:
    wheel(tmp_path, "base", "1.0")
    wheel(tmp_path, "base", "2.0")
    wheel(tmp_path, "left", "1.0", requires=["base<2"])
    wheel(tmp_path, "right", "1.0", requires=["base>=2"])
    code, text = problem(descriptor, "left", "right")
    assert code == "conflicting-packages"
    assert "left 1.0 needs base<2" in text
    assert "right 1.0 needs base>=2" in text


@pytest.mark.parametrize("needs", ["b @ file:///etc", "b @ git+https://host/b", "b @ https://h/b"])
def test_metadata_cannot_name_places(tmp_path: Path, descriptor: int, needs: str) -> None:
    wheel(tmp_path, "a", "1.0", requires=[needs])
    assert problem(descriptor, "a")[0] == "not-by-place"


def test_damaged_wheels(tmp_path: Path, descriptor: int) -> None:
    (tmp_path / "a-1.0-py3-none-any.whl").write_bytes(b"not a zip")
    wheel(tmp_path, "b", "1.0", requires=["not a requirement"])
    path = wheel(tmp_path, "c", "1.0")
    path.rename(tmp_path / "d-1.0-py3-none-any.whl")
    (tmp_path / "d-1.0-py3-none-any.whl").write_bytes(b"PK\x05\x06" + bytes(18))  # no members
    for name in ("a", "b", "d"):
        assert problem(descriptor, name)[0] == "bad-wheel"
