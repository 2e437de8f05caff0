"""Nodes that are killed, stopped and started again, while others work: three processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from dandelion.testing import wait_until
from tests.cluster.clusters import free_addresses

ROOT = Path(__file__).resolve().parents[2]


class Members:
    """A process that forks nodes.

    Args:
        folder: for pipes.
        peers: addresses of all nodes.
        prefix: of the command that starts the process.
    """

    def __init__(self, folder: Path, peers: list[str], prefix: Sequence[str] = ()) -> None:
        self.folder, self.peers = folder, peers
        self.count = 0
        self.made: list[Member] = []
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "tests.cluster.member", str(folder)],
            cwd=ROOT,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def start(self, address: str) -> Member:
        self.count += 1
        pipes = [self.folder / f"{self.count}.{end}" for end in ("in", "out")]
        for pipe in pipes:
            os.mkfifo(pipe)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{self.count} {address} {','.join(self.peers)}\n")
        self.process.stdin.flush()
        member = Member(int(self.process.stdout.readline()), address, *pipes)
        self.made.append(member)
        return member

    def close(self) -> None:
        for member in self.made:
            member.close()
        self.process.kill()
        self.process.communicate()


class Member:
    """A process with a node."""

    def __init__(self, process: int, address: str, given: Path, out: Path) -> None:
        self.process, self.address = process, address
        self._given = given.open("w")
        self._out = out.open()

    def read(self) -> dict[str, object]:
        return dict(json.loads(self._out.readline()))

    def write(self, line: str) -> None:
        self._given.write(line + "\n")
        self._given.flush()

    def ask(self, line: str) -> dict[str, object]:
        self.write(line)
        return self.read()

    def signal(self, number: int) -> None:
        os.kill(self.process, number)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.signal(signal.SIGKILL)
        with contextlib.suppress(OSError):
            self._given.close()
        self._out.close()


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Members]:
    made = Members(tmp_path_factory.mktemp("nodes"), free_addresses(3))
    try:
        for address in made.peers:
            made.start(address)
        for one in made.made:
            assert one.read() == {"ready": True}
        assert made.made[0].ask("register") == {"registered": True}
        wait_until(lambda: all(one.ask("alive")["records"] == 2 for one in made.made))
        yield made
    finally:
        made.close()


def test_a_node_is_killed_and_started_again(members: Members) -> None:
    a, b, c = members.made
    assert a.ask("invoke 1 120")["right"]
    a.write("invoke 2 250")
    time.sleep(0.15)  # so that calls are under way
    c.signal(signal.SIGKILL)
    found = a.read()
    assert found.get("right"), found
    wait_until(lambda: a.ask("alive")["alive"] == 1)
    assert a.ask("register") == {"registered": True}  # two of three are a majority
    again = members.start(c.address)
    assert again.read() == {"ready": True}
    wait_until(lambda: again.ask("alive")["records"] == 2)
    assert again.ask("invoke 3 30")["right"]
    assert b.ask("alive")["alive"] == 2


def test_a_node_that_is_stopped_is_given_up_and_joins_again(members: Members) -> None:
    a, b, c = members.made[0], members.made[1], members.made[-1]
    c.signal(signal.SIGSTOP)
    wait_until(lambda: a.ask("alive")["alive"] == 1)
    a.write("invoke 4 200")
    time.sleep(0.15)  # so that calls are under way
    b.signal(signal.SIGSTOP)
    found = a.read()
    assert found.get("right"), found
    wait_until(lambda: a.ask("alive")["alive"] == 0)
    refused = a.ask("register")  # it is alone, so it acknowledges nothing
    assert str(refused["error"]).startswith("CatalogUnavailable")
    b.signal(signal.SIGCONT)
    c.signal(signal.SIGCONT)
    for one in (a, b, c):
        wait_until(lambda one=one: one.ask("alive")["alive"] == 2)  # type: ignore[misc]
    assert a.ask("register") == {"registered": True}
    assert b.ask("invoke 5 50")["right"]


def test_asynchronous_invocations_of_a_killed_node_end_once_elsewhere(members: Members) -> None:
    a, b, owner = members.made[0], members.made[1], members.made[-1]
    submitted = owner.ask("submit 200")
    owner.signal(signal.SIGKILL)
    ids = submitted["ids"]
    assert isinstance(ids, list)
    assert int(str(submitted["ended"])) < 200  # some are under way
    requested = " ".join(["results", *ids])
    a.write(requested)
    b.write(requested)
    found, there = a.read()["results"], b.read()["results"]
    assert isinstance(found, list)
    wanted = [[f"TEXT {number} {k}" for k in range(5)] for number in range(200)]
    assert [texts for texts, _ in found] == wanted
    assert found == there  # also when they ended
    again = members.start(owner.address)
    assert again.read() == {"ready": True}
    assert again.ask(requested)["results"] == found
    for one in (a, b, again):
        assert sorted(one.ask("kept")["kept"]) == sorted(ids)  # type: ignore[call-overload]
