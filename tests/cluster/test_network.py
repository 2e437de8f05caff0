"""Three nodes in network namespaces of their own, joined by a bridge: cut, paused and slow links.

It takes root and iproute2. The bridge has a namespace, too, so nothing of the machine is changed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator

import pytest

from dandelion.testing import wait_until
from tests.cluster.test_loss import Member, Members

SWITCH = f"dandelion-{os.getpid()}-switch"
NAMES = [f"dandelion-{os.getpid()}-{number}" for number in range(3)]
PEERS = [f"10.77.0.{number + 1}:7077" for number in range(3)]


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=20)


@pytest.fixture(scope="module")
def links() -> Iterator[list[str]]:
    """Make the namespaces; give the names of the links at the switch."""
    if os.geteuid() or shutil.which("ip") is None:
        pytest.skip("network namespaces take root and iproute2")
    with contextlib.ExitStack() as made:
        try:
            for name in (SWITCH, *NAMES):
                ip("netns", "add", name)
                made.callback(ip, "netns", "del", name)
            ip("-n", SWITCH, "link", "add", "br0", "type", "bridge")
            ip("-n", SWITCH, "link", "set", "br0", "up")
            for number, name in enumerate(NAMES):
                there = ("peer", "name", "eth0", "netns", name)
                ip("-n", SWITCH, "link", "add", f"port{number}", "type", "veth", *there)
                ip("-n", SWITCH, "link", "set", f"port{number}", "master", "br0", "up")
                ip("-n", name, "addr", "add", f"10.77.0.{number + 1}/24", "dev", "eth0")
                for device in ("lo", "eth0"):
                    ip("-n", name, "link", "set", device, "up")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespaces here: {error.stderr.strip()}")
        yield [f"port{number}" for number in range(3)]


@pytest.fixture(scope="module")
def members(links: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Member]]:
    with contextlib.ExitStack() as opened:
        groups = []
        for number, name in enumerate(NAMES):
            folder = tmp_path_factory.mktemp(f"node{number}")
            groups.append(Members(folder, PEERS, ("ip", "netns", "exec", name)))
            opened.callback(groups[-1].close)
        made = [group.start(address) for group, address in zip(groups, PEERS, strict=True)]
        for one in made:
            assert one.read() == {"ready": True}
        assert made[0].ask("register") == {"registered": True}
        wait_until(lambda: all(one.ask("alive")["records"] == 2 for one in made))
        yield made


def wait_all_back(members: list[Member]) -> None:
    """Wait until all nodes see all others."""
    wait_until(lambda: all(one.ask("alive")["alive"] == 2 for one in members))


def wanted(count: int) -> list[list[str]]:
    return [[f"TEXT {number} {k}" for k in range(5)] for number in range(count)]


def test_a_link_is_cut_and_comes_back(links: list[str], members: list[Member]) -> None:
    a, b, c = members
    ids = c.ask("submit 60")["ids"]
    assert isinstance(ids, list)
    a.write("invoke 1 200")
    ip("-n", SWITCH, "link", "set", links[2], "down")
    found = a.read()
    assert found.get("right"), found
    results = b.ask(" ".join(["results", *ids]))["results"]
    assert isinstance(results, list)
    assert [texts for texts, _ in results] == wanted(60)
    wait_until(lambda: c.ask("alive")["alive"] == 0)
    assert str(c.ask("register")["error"]).startswith("CatalogUnavailable")
    assert c.ask("invoke 2 5")["right"]  # what it can do alone, it does
    assert a.ask("register") == {"registered": True}
    ip("-n", SWITCH, "link", "set", links[2], "up")
    wait_all_back(members)
    wait_until(lambda: c.ask("alive")["records"] == a.ask("alive")["records"])
    assert c.ask(" ".join(["results", *ids]))["results"] == results
    assert c.ask("invoke 3 20")["right"]


def test_a_node_is_paused(members: list[Member]) -> None:
    a, b, c = members
    ids = c.ask("submit 20")["ids"]
    assert isinstance(ids, list)
    a.write("invoke 4 120")
    c.signal(signal.SIGSTOP)
    found = a.read()
    assert found.get("right"), found
    results = b.ask(" ".join(["results", *ids]))["results"]
    assert isinstance(results, list)
    assert [texts for texts, _ in results] == wanted(20)
    c.signal(signal.SIGCONT)
    wait_all_back(members)
    assert c.ask(" ".join(["results", *ids]))["results"] == results


SHAPES = [
    ("netem", "delay", "60ms", "20ms", "loss", "1%"),
    ("tbf", "rate", "1mbit", "burst", "16kbit", "latency", "200ms"),
]
"""A slow link; the first one that the kernel has is taken."""


def shaped(device: str, verb: str, *words: str) -> str:
    """Change the queue of a device; return what is wrong."""
    command = ["tc", "-n", SWITCH, "qdisc", verb, "dev", device, "root", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    return done.stderr.strip()


def test_a_link_is_slow(links: list[str], members: list[Member]) -> None:
    if shutil.which("tc") is None:
        pytest.skip("a slow link takes tc of iproute2")
    problems = [shaped(links[2], "add", *shape) for shape in SHAPES[:1]]
    if problems[0]:
        problems.append(shaped(links[2], "add", *SHAPES[1]))
    if all(problems):
        pytest.skip(f"no slow links here: {problems}")
    a, b, c = members
    assert a.ask("invoke 5 60")["right"]
    ids = c.ask("submit 20")["ids"]
    assert isinstance(ids, list)
    results = b.ask(" ".join(["results", *ids]))["results"]
    assert isinstance(results, list)
    assert [texts for texts, _ in results] == wanted(20)
    assert c.ask("invoke 6 20")["right"]
    assert not shaped(links[2], "del")
    wait_all_back(members)
