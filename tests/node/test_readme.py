"""The example of the README runs as it stands, against a node and embedded."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dandelion.frontend.client import Client
from dandelion.frontend.server import BackgroundServer
from dandelion.node import Node, Settings

README = (Path(__file__).resolve().parent.parent.parent / "README.md").read_text()
URL = "http://127.0.0.1:8080"


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", README, re.DOTALL)
    assert found is not None
    return found.group(1)


@pytest.fixture
def server() -> Iterator[BackgroundServer]:
    settings = Settings(backends=("process",), engines={"process": 1})
    with Node(settings) as node, BackgroundServer(node) as server:
        yield server


def run(program: str, tmp_path: Path) -> None:
    path = tmp_path / "example.py"  # the DSL and documents read sources from files
    path.write_text(program)
    exec(compile(program, str(path), "exec"), {"__name__": "example"})


def test_the_python_example_and_its_curl(
    server: BackgroundServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(block("python").replace(URL, server.url), tmp_path)
    assert capsys.readouterr().out == "6\n"
    request = re.search(r"-d '(\{.*\})'", README)
    assert request is not None
    with Client(server.url) as client:
        sets = json.loads(request.group(1))["values"]
        assert client.invoke("word_count", **sets).sum.text() == "6"


def test_the_example_embedded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(block("python").replace(f'dd.Client("{URL}")', "dd.Node()"), tmp_path)
    assert capsys.readouterr().out == "6\n"


def test_every_page_that_is_linked_is_there() -> None:
    root = Path(__file__).resolve().parent.parent.parent
    for link in re.findall(r"\]\(([^)#]+)\)", README):
        if not link.startswith("http"):
            assert (root / link).exists(), link
