"""A node that cannot be made leaves nothing open: the next one with its catalogue can."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dandelion.errors import InvalidInput
from dandelion.node import Node, Settings, components

SECRETS = "not TOML at all {"


@pytest.fixture
def catalog(tmp_path: Path) -> str:
    file = tmp_path / "secrets.toml"
    file.write_text(SECRETS)
    file.chmod(0o600)
    return f"sqlite:{tmp_path}/catalogue"


def _opens(catalog: str) -> None:
    Node(Settings(catalog=catalog, backends=())).close()


@pytest.mark.parametrize("bad", ["secrets", "arena_bytes"])
def test_a_setting_that_cannot_be_used_leaves_the_catalogue_closed(
    catalog: str, tmp_path: Path, bad: str
) -> None:
    value: dict[str, Any] = {"secrets": str(tmp_path / "secrets.toml"), "arena_bytes": 1 << 60}
    with pytest.raises(InvalidInput):
        Node(Settings(catalog=catalog, backends=(), **{bad: value[bad]}))
    _opens(catalog)


def test_a_part_that_cannot_be_made_leaves_the_catalogue_closed(
    catalog: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patched, pytest.raises(OSError, match="open files"):
        patched.setattr(components, "Runtime", full)
        Node(Settings(catalog=catalog, backends=()))
    _opens(catalog)
