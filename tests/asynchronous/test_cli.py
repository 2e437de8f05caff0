"""The verbs of asynchronous invocations."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dandelion.cli.main import main
from dandelion.frontend.server import BackgroundServer
from dandelion.node import Node
from tests.node.served import DOCUMENT, SETTINGS, GateDriver

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[str, GateDriver]]:
    driver = GateDriver()
    with Node(SETTINGS, [driver]) as node:
        node.register(DOCUMENT)
        assert node.wait_ready()
        with BackgroundServer(node) as server:
            yield server.url, driver
        driver.gate.open(100)


@pytest.fixture
def command(
    served: tuple[str, GateDriver],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Command:
    """Runs a command; returns its exit code, standard output and standard error."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(verb: str, *arguments: object) -> tuple[int, str, str]:
        code = main([verb, "--url", served[0], *map(str, arguments)])
        return (code, *capfd.readouterr())

    return run


def test_an_invocation_with_a_key_is_repeated(command: Command) -> None:
    results = [command("invoke", "echo", "a=hello", "--key", "i1", "--json") for _ in range(2)]
    assert results[0][0] == 0
    assert results[0] == results[1]
    assert command("invoke", "echo", "a=other", "--key", "i1")[0] != 0


def test_submit_and_result(command: Command, tmp_path: Path) -> None:
    code, id_, _ = command("submit", "echo", "a=hello", "--key", "k1")
    assert code == 0
    id_ = id_.strip()
    assert command("submit", "echo", "a=hello", "--key", "k1", "--json")[1] == (
        f'{{\n  "id": "{id_}"\n}}\n'
    )
    code, out, _ = command("result", id_)
    assert code == 0
    assert "hello" in out
    assert command("result", id_, "--raw")[1] == "hello"
    file = tmp_path / "out"
    assert command("result", id_, "--set", "b", "-o", file)[0] == 0
    assert file.read_bytes() == b"hello"
    shown = json.loads(command("result", id_, "--json")[1])
    assert shown["id"] == id_
    assert shown["sets"]["b"][0]["text"] == "hello"


def test_invocations_lists_and_describes(command: Command) -> None:
    id_ = command("submit", "echo", "a=1")[1].strip()
    failed = command("submit", "fails", "x=1")[1].strip()
    assert command("result", failed)[0] == 1
    command("result", id_)
    code, out, _ = command("invocations")
    assert code == 0
    assert out.index(failed) < out.index(id_)
    assert "ApplicationFailed" in out
    listed = json.loads(command("invocations", "--state", "failed", "--limit", 1, "--json")[1])
    assert [one["id"] for one in listed["invocations"]] == [failed]
    assert "more: --after" in command("invocations", "--limit", 1)[1]
    described = json.loads(command("invocations", id_, "--json")[1])
    assert described["state"] == "succeeded"
    assert "raised ValueError" in command("invocations", failed)[1]


def test_following(command: Command) -> None:
    code, out, _ = command("submit", "twice", "x=1", "x=2", "--follow")
    lines = out.splitlines()
    assert (code, lines[-1]) == (0, "succeeded")
    assert any("y is complete (items: 2, " in line for line in lines)
    assert any("instances: " in line and " ended, 0 running" in line for line in lines)
    code, out, _ = command("submit", "fails", "x=1", "--follow")
    assert code == 1
    assert out.splitlines()[-1].startswith("failed: ")
    code, out, _ = command("invocations", lines[0], "--follow", "--json")
    events = [json.loads(line) for line in out.splitlines()]
    assert (code, events[-1]["state"]) == (0, "succeeded")


def test_cancelling(command: Command, served: tuple[str, GateDriver]) -> None:
    id_ = command("submit", "wait", "a=1")[1].strip()
    assert served[1].gate.entered()
    code, _, error = command("result", id_, "--wait", "0.05")
    assert code == 1
    assert "is running" in error
    code, out, _ = command("cancel", id_)
    assert code == 0
    assert "is being cancelled" in out
    assert command("result", id_)[0] == 1
    [shown] = json.loads(command("cancel", id_, "--json")[1])
    assert shown["state"] == "cancelled"
    code, _, error = command("invocations", id_)
    assert code == 1
    assert "no invocation" in error
    id_ = command("submit", "echo", "a=1")[1].strip()
    assert command("result", id_)[0] == 0
    assert "forgotten; its state was succeeded" in command("cancel", id_)[1]


def test_wrong_usage(command: Command) -> None:
    assert command("submit", "ecko", "a=1")[0] == 1
    assert command("invocations", "--state", "done")[0] == 2
    assert command("submit", "echo", "a=1", "--callback", "https://x.example/")[0] == 1
    assert command("cancel")[0] == 2
