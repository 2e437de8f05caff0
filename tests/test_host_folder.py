"""Folders of kernel hosts, made and removed while other brokers do the same."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from dandelion.backends.gpu import host_folder
from dandelion.backends.gpu.host_folder import HostFolders


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_folder_is_there_until_its_broker_ends(temporary: Path) -> None:
    folders = HostFolders()
    made = folders.make()
    host_folder.sweep()
    assert made.is_dir()
    folders.close()
    folders.close()
    assert not list(temporary.iterdir())


def test_what_a_killed_broker_left_is_removed(temporary: Path) -> None:
    (temporary / "dandelion-kernels-left" / "1").mkdir(parents=True)
    folders = HostFolders()
    assert [path.name for path in temporary.iterdir()] == [folders.make().parent.name]
    folders.close()


@pytest.mark.parametrize(
    ("module", "name"), [(tempfile, "mkdtemp"), (os, "open")], ids=["made", "opened"]
)
def test_another_broker_may_sweep_before_the_folder_is_locked(
    module: Any, name: str, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, swept = getattr(module, name), []

    def and_sweep(*given: Any, **options: Any) -> Any:
        result = real(*given, **options)
        if not swept:
            swept.append(True)
            host_folder.sweep()
        return result

    monkeypatch.setattr(module, name, and_sweep)
    folders = HostFolders()
    assert swept
    assert folders.make().is_dir()
    host_folder.sweep()
    assert folders.make().is_dir()
    folders.close()
    assert not list(temporary.iterdir())
