"""The ready-to-run compositions on a cluster of three: the same results as on one node.

The node that is asked has engines for requests only, so all functions of users run elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from dandelion.compositions.digits import bundle as digits
from dandelion.compositions.digits.file_server import serve_files
from dandelion.compositions.photo_tagging import bundle as photo_tagging
from dandelion.compositions.render_logs import bundle as render_logs
from dandelion.compositions.render_logs.world import serve_world

from dandelion.documents import RegistrationDocument
from dandelion.node import Node
from dandelion.testing import wait_until
from tests.cluster.clusters import nodes

SOME: dict[str, object] = {
    "backends": ("process", "http"),
    "engines": {"process": 1},
    "options": {"http": {"allow": "127.0.0.1", "retries": "0"}},
}
ALL = {**SOME, "backends": ("process", "http", "opencl")}
OWN = {"backends": ("null", "http"), "options": SOME["options"]}


@pytest.fixture(scope="module")
def cluster() -> Iterator[list[Node]]:
    with nodes([[], [], []], own=[OWN, SOME, ALL]) as made:
        broken = [e.reason for e in made[2].engines() if e.backend == "opencl" and e.reason]
        if broken:
            pytest.skip(broken[0])
        yield made


def registered(cluster: list[Node], document: RegistrationDocument) -> None:
    """Register where all engines are, and wait until all nodes know it."""
    wanted = {(record.name, record.version) for record in cluster[2].register(document)}
    for node in cluster:
        wait_until(lambda node=node: wanted <= {(r.name, r.version) for r in node.records()})  # type: ignore[misc]


def lost_nothing(owner: Node, sent: int) -> int:
    """Check that every call since the last time ran elsewhere; return how many there were."""
    info = owner.cluster()
    assert info is not None
    assert info.sent_calls > sent
    assert info.lost_calls == 0
    return info.sent_calls


def test_they_give_the_same_as_on_one_node(cluster: list[Node]) -> None:
    owner = cluster[0]
    registered(cluster, digits.document())
    with serve_files(digits.png_files()) as url:
        inputs = digits.example_inputs(5, url, count=12)
        outputs = owner.invoke("digits", **inputs)
    assert digits.agrees(digits.results(outputs), digits.expected(inputs))
    sent = lost_nothing(owner, 12)
    registered(cluster, photo_tagging.document())
    with serve_files(photo_tagging.png_files()) as url:
        inputs = photo_tagging.example_inputs(3, url, 8)
        found = photo_tagging.results(owner.invoke("photo_tagging", **inputs))
    assert photo_tagging.agrees(found, photo_tagging.expected(inputs))
    sent = lost_nothing(owner, sent)
    with serve_world() as url:
        registered(cluster, render_logs.document(url))
        inputs = render_logs.example_inputs(1)
        outputs = owner.invoke(render_logs.NAME, **inputs)
    assert render_logs.agrees(render_logs.results(outputs), render_logs.expected(inputs))
    lost_nothing(owner, sent)
