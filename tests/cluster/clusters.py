"""Clusters of nodes on loopback, in this process or in processes of their own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from dandelion.cluster import Cluster, ClusterSettings
from dandelion.cluster.kept_copies import CopyLimits
from dandelion.cluster.membership import MemberState
from dandelion.data import ItemSet, SetSpec
from dandelion.documents import CodeDocument, FunctionDocument
from dandelion.driver import Call, Driver, Engine, InstanceSets
from dandelion.node import Node, Settings
from dandelion.testing import wait_until
from dandelion.testing.scripted import Script, ScriptedDriver
from tests.loopback import free_ports, own_host

SECRET = b"a secret of the cluster in tests"


def free_addresses(count: int) -> list[str]:
    """Choose addresses that nothing listens on."""
    host = own_host()
    return [f"{host}:{port}" for port in free_ports(count, host)]


def settings(**given: object) -> Settings:
    """Settings of a small node."""
    return Settings(**{"backends": ("null",), "arena_bytes": 64 << 20, **given})  # type: ignore[arg-type]


def scripted(run: Callable[[Engine, Call], InstanceSets], engines: int = 1) -> ScriptedDriver:
    """Make a backend ``work`` whose calls do as `run` does, on so many engines."""
    from dandelion.driver import Capacity

    resources = {str(n): Capacity() for n in range(engines)}
    return ScriptedDriver("work", Script(run=run), resources=resources)


def function(name: str, *inputs: SetSpec | str, code: str = "work") -> FunctionDocument:
    """Make a function with one output set, ``y``."""
    return FunctionDocument(name, inputs or ("x",), ("y",), code=(CodeDocument(code, "code"),))


def alive(node: Node) -> int:
    """How many other nodes a node sees as alive."""
    info = node.info().cluster
    assert info is not None
    return sum(member.state == MemberState.ALIVE.value for member in info.members)


@contextlib.contextmanager
def nodes(
    drivers: Sequence[Sequence[Driver]],
    secrets: Sequence[bytes] | None = None,
    joined: bool = True,
    catalogs: Sequence[str] | None = None,
    own: Sequence[dict[str, object]] | None = None,
    copies: CopyLimits | None = None,
    **given: object,
) -> Iterator[list[Node]]:
    """Run nodes of one cluster in this process, one for each list of drivers.

    Args:
        drivers: of each node.
        secrets, catalogs, own: of each node; `own` are further settings.
        joined: wait until they know each other.
        copies: how many of asynchronous invocations of others each keeps.
        given: settings of all.
    """
    addresses = free_addresses(len(drivers))
    keys = secrets or [SECRET] * len(drivers)
    with contextlib.ExitStack() as opened:
        made = []
        for number, (address, mine, key) in enumerate(zip(addresses, drivers, keys, strict=True)):
            limits = copies or CopyLimits()
            peers = tuple(addresses)
            cluster = Cluster(ClusterSettings(address, key, peers=peers, copies=limits))
            if catalogs:
                given["catalog"] = catalogs[number]
            further = own[number] if own else {}
            node = Node(settings(**{**given, **further}), mine, cluster)
            made.append(opened.enter_context(node))
        if joined:
            for node in made:
                wait_until(lambda node=node: alive(node) == len(made) - 1)  # type: ignore[misc]
            for node in made:
                assert node.wait_ready(60)
            wait_until(lambda: _know_engines(made))
        yield made


def _know_engines(made: Sequence[Node]) -> bool:
    """Whether all nodes know what engines all others have."""
    infos = [info for info in (node.cluster() for node in made) if info is not None]
    own = {info.node: m.engines for info in infos for m in info.members if m.name == info.node}
    return all(m.engines == own[m.name] for info in infos for m in info.members)


def text_of(item_set: ItemSet | None) -> str:
    """The only item of a set, as text."""
    assert item_set is not None
    return item_set.text()
