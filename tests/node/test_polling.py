"""The node's loop polls for answers, and stops."""

from __future__ import annotations

import pytest

from dandelion.node import Node
from dandelion.polling import Allowance, Polling
from dandelion.settings import Settings, TenantSettings
from dandelion.testing.waiting import wait_until


def polling_settings(spin_us: int) -> Settings:
    return Settings(backends=("null",), arena_bytes=1 << 20, spin_us=spin_us)


def taught(limit_us: int) -> Polling:
    """What has learned to poll as long as it may."""
    polling = Polling(Allowance(limit_us))
    polling._window_ns = 1000 * limit_us
    return polling


def test_a_loop_that_polls_is_stopped_in_between() -> None:
    with Node(polling_settings(1000)) as node:
        runtime = node._runtime
        runtime._polling = taught(1000)
    runtime._look()  # it was still to be called


def test_a_loop_does_not_poll_for_ever() -> None:
    with Node(polling_settings(1000)) as node:
        node._runtime._polling = taught(1000)
        for weight in range(1, 20):
            node.set_tenant("other", TenantSettings(weight=weight))
        wait_until(lambda: not node._runtime._polls)


def test_a_loop_does_not_poll_while_much_is_under_way() -> None:
    with Node(polling_settings(1000)) as node:
        runtime = node._runtime

        def polls(most: int) -> bool:
            runtime._polling = taught(200_000)
            runtime._polling.allowance.most = most
            node.set_tenant("other", TenantSettings(weight=2))
            return runtime._polls

        assert not any(polls(-1) for _ in range(20))
        wait_until(lambda: polls(1))  # once no other process delays it


@pytest.mark.parametrize(
    ("cores", "expected"), [(1, (0, 0)), (2, (1000, 1000)), (7, (1000, 1000)), (8, (3000, 3000))]
)
def test_the_default_depends_on_the_cores(
    cores: int, expected: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)))
    assert Settings().spins_us == expected
    assert Settings(spin_us=7, engine_spin_us=0).spins_us == (7, 0)
