"""The snippets of the page on asynchronous invocations run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from dandelion import Node, Settings
from dandelion.cli.settings import load_settings
from dandelion.documents import FunctionDocument, python_function
from dandelion.frontend.server import BackgroundServer

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "docs" / "asynchronous.md").read_text()
URL = "http://127.0.0.1:8080"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def counting(text):  # type: ignore[no-untyped-def]  # runs in a sandbox
    return {"sum": str(len(text.text().split()))}


def word_count() -> FunctionDocument:
    return python_function(counting, name="word_count", inputs=("text",), outputs=("sum",))


def test_the_python_snippets(capsys: pytest.CaptureFixture[str]) -> None:
    first, *others = blocks("python")
    settings = Settings(backends=("process",), engines={"process": 1})
    with Node(settings) as node, BackgroundServer(node) as server:
        node.register(word_count())
        exec(compile(first.replace(URL, server.url), "example.py", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert printed[-1] == "3"
    assert printed[-2] == "state succeeded"
    for other in others:
        exec(compile(other, "example.py", "exec"), {})


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
