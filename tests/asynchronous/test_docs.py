"""The settings on the page of asynchronous invocations are accepted, and are the defaults."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from dandelion import Node, Settings
from dandelion.cli.settings import load_settings

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "docs" / "asynchronous.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_settings(tmp_path: Path) -> None:
    settings_text, secrets = blocks("toml")
    file, kept = tmp_path / "settings.toml", tmp_path / "callbacks.toml"
    kept.write_text(secrets)
    file.write_text(settings_text.replace("/etc/dandelion/callbacks.toml", str(kept)))
    settings = load_settings(file, {}, {})
    Node(msgspec.structs.replace(settings, backends=("null",))).close()


def test_the_table_of_settings_has_the_defaults() -> None:
    rows = dict(re.findall(r"\| `(async_\w+)` \| ([\d,]+|1 GiB) \|", PAGE))
    names = [f.name for f in msgspec.structs.fields(Settings) if f.name.startswith("async_")]
    assert set(rows) == set(names)
    for name, text in rows.items():
        value = 1 << 30 if text == "1 GiB" else int(text.replace(",", ""))
        assert getattr(Settings(), name) == value, name
