"""Nodes that are killed, stopped and started again, while others work: three processes."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dandelion.testing import wait_until
from tests.cluster.clusters import free_addresses

ROOT = Path(__file__).resolve().parents[2]


class Member:
    """A process with a node."""

    def __init__(self, address: str, peers: list[str]) -> None:
        command = [sys.executable, "-m", "tests.cluster.member", address, ",".join(peers)]
        self.address = address
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def read(self) -> dict[str, object]:
        assert self.process.stdout is not None
        return dict(json.loads(self.process.stdout.readline()))

    def write(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def ask(self, line: str) -> dict[str, object]:
        self.write(line)
        return self.read()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.communicate()


@contextlib.contextmanager
def members(count: int = 3) -> Iterator[list[Member]]:
    peers = free_addresses(count)
    made = [Member(address, peers) for address in peers]
    try:
        for one in made:
            assert one.read() == {"ready": True}
        assert made[0].ask("register") == {"registered": True}
        wait_until(lambda: all(one.ask("alive")["records"] == 2 for one in made))
        yield made
    finally:
        for one in made:
            one.close()


@pytest.fixture
def three() -> Iterator[list[Member]]:
    with members() as made:
        yield made


def test_nodes_are_killed_and_stopped_while_others_work(three: list[Member]) -> None:
    a, b, c = three
    first = a.ask("invoke 1 120")
    assert first["right"]
    # killed while it works for another one: its calls are run elsewhere
    a.write("invoke 2 400")
    time.sleep(0.15)
    c.signal(signal.SIGKILL)
    second = a.read()
    assert second.get("right"), second
    assert float(str(second["s"])) < 5
    # the rest is a majority, which acknowledges
    assert a.ask("register") == {"registered": True}
    wait_until(lambda: a.ask("alive")["alive"] == 1, 5)
    # stopped: it does not answer, so its calls are run elsewhere
    a.write("invoke 3 400")
    time.sleep(0.15)
    b.signal(signal.SIGSTOP)
    third = a.read()
    assert third.get("right"), third
    assert float(str(third["s"])) < 5
    # now this one is alone, and acknowledges nothing
    wait_until(lambda: a.ask("alive")["alive"] == 0, 5)
    refused = a.ask("register")
    assert str(refused["error"]).startswith("CatalogUnavailable")
    # it goes on: others see that it was away, and it joins again
    b.signal(signal.SIGCONT)
    wait_until(lambda: a.ask("alive")["alive"] == 1, 5)
    wait_until(lambda: b.ask("alive")["alive"] == 1, 5)
    assert a.ask("register") == {"registered": True}
    assert b.ask("invoke 4 50")["right"]


def test_a_node_that_is_started_again_gets_the_catalogue(three: list[Member]) -> None:
    a, b, c = three
    c.signal(signal.SIGKILL)
    c.process.wait()
    wait_until(lambda: b.ask("alive")["alive"] == 1, 5)
    again = Member(c.address, [one.address for one in three])
    three.append(again)
    assert again.read() == {"ready": True}
    wait_until(lambda: again.ask("alive")["records"] == 2, 5)
    assert again.ask("invoke 1 30")["right"]
