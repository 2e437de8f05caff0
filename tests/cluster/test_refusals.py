"""Calls that another node refuses: some are sent again, others never."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dandelion.cluster import Cluster
from dandelion.driver import Call, Driver, Engine, InstanceSets
from dandelion.errors import BackendUnavailable, NoEngine, Overloaded, QuotaExceeded
from dandelion.node import Node
from dandelion.settings import TenantSettings
from dandelion.testing import wait_until
from tests.cluster.clusters import function, nodes, scripted, text_of

SMALL: dict[str, object] = {"tenants": {"default": TenantSettings(arena_bytes=1 << 20)}}


def worker(name: str, ran: list[str]) -> Driver:
    def run(engine: Engine, call: Call) -> InstanceSets:
        ran.append(name)
        return (call.inputs[0],)

    return scripted(run)


def sent_calls(node: Node) -> int:
    info = node.info().cluster
    assert info is not None
    return info.sent_calls


def registered(made: Sequence[Node]) -> None:
    made[-1].register(function("work"))
    for node in made:
        wait_until(lambda node=node: len(node.records()) == 1)  # type: ignore[misc]


def test_a_call_beyond_a_quota_fails_with_the_error_of_the_only_node() -> None:
    ran: list[str] = []
    with nodes([[], [worker("b", ran)]], own=[{}, SMALL]) as made:
        registered(made)
        with pytest.raises(QuotaExceeded):
            made[0].invoke("work", x=bytes(2 << 20), deadline_s=20)
        assert sent_calls(made[0]) == 1
        assert text_of(made[0].invoke("work", x=b"a")["y"]) == "a"
    assert ran == ["b"]


def test_a_call_that_one_node_refused_runs_on_another_one() -> None:
    ran: list[str] = []
    drivers = [[], [worker("b", ran)], [worker("c", ran)]]
    with nodes(drivers, own=[{}, SMALL, {}]) as made:
        registered(made)
        for _ in range(6):
            made[0].invoke("work", x=bytes(2 << 20), deadline_s=20)
        assert sent_calls(made[0]) <= 12
    assert ran == ["c"] * 6


def side(node: Node) -> Cluster:
    part = node._parts.cluster
    assert isinstance(part, Cluster)
    return part


@pytest.mark.parametrize(
    "error", [BackendUnavailable("packages", "no source"), NoEngine("work", ("work",), ())]
)
def test_what_a_node_lacks_is_the_error_of_the_call(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    with nodes([[], [worker("b", [])]]) as made:
        registered(made)

        def refuse(invocation: object) -> None:
            raise error

        monkeypatch.setattr(side(made[1]), "submit", refuse)
        with pytest.raises(type(error)):
            made[0].invoke("work", x=b"a", deadline_s=20)
        assert sent_calls(made[0]) == 1


def test_a_node_that_was_busy_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with nodes([[], [worker("b", [])]]) as made:
        registered(made)
        there = side(made[1])
        submit, left = there.submit, [1, 1]

        def busy(invocation: object) -> None:
            if left:
                raise Overloaded(left.pop(), 1)
            submit(invocation)  # type: ignore[arg-type]

        monkeypatch.setattr(there, "submit", busy)
        assert text_of(made[0].invoke("work", x=b"a", deadline_s=20)["y"]) == "a"
        assert sent_calls(made[0]) == 3
