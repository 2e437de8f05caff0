"""Asynchronous invocations of a node that starts again, or whose store fails."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any

import pytest

from dandelion import Node
from dandelion.asynchronous.failures import InterruptedTooOften
from dandelion.asynchronous.records import KeptState
from dandelion.driver import AsyncEngine, Call, Hosting, InstanceSets
from dandelion.errors import (
    ApplicationFailed,
    Cancelled,
    CatalogUnavailable,
    DiskFull,
    Unknown,
)
from dandelion.node.kept_problems import QUIET_S, StoreProblems
from dandelion.node.kept_service import KeptService
from dandelion.testing import ScriptedDriver, echo, wait_until
from tests.asynchronous.async_nodes import LIMIT_S, node_of, settings_of
from tests.node.served import GateDriver, function


@pytest.fixture(params=["memory", "sqlite"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory:" if request.param == "memory" else f"sqlite:{tmp_path / 'store'}"


def test_a_close_in_order_takes_the_attempt_back(tmp_path: Path) -> None:
    catalog = f"sqlite:{tmp_path}"
    driver = GateDriver()
    with node_of(driver, catalog=catalog) as node:
        under_way = node.submit("wait", a=b"again").id
        ended = node.submit("echo", a=bytes(range(256)) * 1024).id
        node.submitted(ended).result(LIMIT_S)
        failed = node.submit("fails", x=b"1").id
        with pytest.raises(ApplicationFailed):
            node.submitted(failed).result(LIMIT_S)
        assert driver.gate.entered()
    driver = GateDriver()
    driver.gate.open(10)
    with Node(settings_of(catalog=catalog), [driver]) as node:
        assert node.submitted(under_way).result(LIMIT_S).b.bytes() == b"again"
        assert node.submitted(under_way).view().attempts == 1
        assert node.submitted(ended).result(LIMIT_S).b.bytes() == bytes(range(256)) * 1024
        with pytest.raises(ApplicationFailed):
            node.submitted(failed).result(LIMIT_S)


def test_in_memory_nothing_survives_and_nothing_is_left() -> None:
    with node_of() as node:
        for _ in range(3):
            node.submit("echo", a=bytes(100_000)).result(LIMIT_S)
        handle = node.submit("wait", a=b"1")
        handle.cancel()
        with pytest.raises(Cancelled):
            handle.result(LIMIT_S)
        assert not node._parts.kept._inputs
        assert not node._parts.kept._runner._outputs
        gc.collect()
        wait_until(lambda: node.info().arena.used_bytes == 0, LIMIT_S)


def test_attempts_are_counted_and_limited(tmp_path: Path) -> None:
    catalog = f"sqlite:{tmp_path}"
    with node_of(catalog=catalog, async_attempts=1) as node:
        handle = node.submit("wait", a=b"1")
        assert handle.state() is KeptState.RUNNING
        lives = node._parts.kept.lives
        lives.closing = lambda: None  # type: ignore[method-assign]  # as if it were killed:
        lives.is_closing = True  # nothing more is stored
    with (
        Node(settings_of(catalog=catalog, async_attempts=1), [GateDriver()]) as node,
        pytest.raises(InterruptedTooOften),
    ):
        node.submitted(handle.id).result(LIMIT_S)


def test_all_attempts_have_the_same_id(tmp_path: Path) -> None:
    seen: list[str] = []

    async def note(engine: AsyncEngine, call: Call) -> InstanceSets:
        seen.append(call.invocation)
        if len(seen) == 1:
            await asyncio.Event().wait()
        return echo(engine, call)

    catalog = f"sqlite:{tmp_path}"
    for _ in range(2):
        driver = ScriptedDriver("io", hosting=Hosting.LOOP)
        driver.script.run_async = note
        with Node(settings_of(catalog=catalog), [driver]) as node:
            if not seen:
                node.register(function("send", ("a",), ("b",), "io"))
                id_ = node.submit("send", a=b"1").id
                wait_until(lambda: seen, LIMIT_S)
            else:
                assert node.submitted(id_).result(LIMIT_S).b.bytes() == b"1"
    assert seen == [id_, id_]


def test_a_function_that_was_removed_meanwhile_fails_the_invocation(tmp_path: Path) -> None:
    catalog = f"sqlite:{tmp_path}"
    driver = GateDriver()
    with node_of(driver, catalog=catalog, async_running=1) as node:
        first = node.submit("wait", a=b"1")
        second = node.submit("bug", a=b"2")
        node.remove(type(node.describe("bug")), "bug")
        driver.gate.open(5)
        first.result(LIMIT_S)
        with pytest.raises(Unknown):
            second.result(LIMIT_S)


class Failing:
    """Makes writes of a node's store fail.

    Attributes:
        left: how many more.
    """

    def __init__(self, service: KeptService) -> None:
        self.left = 0
        self._write = service._store.write
        service._store.write = self.write  # type: ignore[method-assign]  # of this node only

    def write(self, steps: Any) -> None:
        if self.left:
            self.left -= 1
            raise DiskFull("disk", "No space left on device", 1, 0)
        self._write(steps)


def test_a_full_disk_refuses_and_fails_typed(catalog: str) -> None:
    driver = GateDriver()
    with node_of(driver, catalog=catalog) as node:
        disk = Failing(node._parts.kept)
        disk.left = 1
        with pytest.raises(DiskFull):
            node.submit("echo", a=b"1")
        handle = node.submit("wait", a=b"1")
        assert driver.gate.entered()
        disk.left = 1
        driver.gate.open()
        with pytest.raises(DiskFull):
            handle.result(LIMIT_S)
        handle = node.submit("wait", a=b"2")
        assert driver.gate.entered()
        disk.left = 3  # nor can the failure be stored, at first
        driver.gate.open()
        with pytest.raises(DiskFull):
            handle.result(LIMIT_S)
        wait_until(lambda: not node._parts.kept.lives._unsaved, LIMIT_S)
        assert node.submit("echo", a=b"1").result(LIMIT_S).b.bytes() == b"1"


def test_a_full_disk_is_logged_once_a_minute(
    catalog: str, caplog: pytest.LogCaptureFixture
) -> None:
    driver = GateDriver()
    with node_of(driver, catalog=catalog) as node:
        disk = Failing(node._parts.kept)
        handles = [node.submit("wait", a=b"1") for _ in range(8)]
        assert driver.gate.entered()
        disk.left = 30
        driver.gate.open(len(handles))
        for handle in handles:
            with pytest.raises(DiskFull):
                handle.result(LIMIT_S)
        wait_until(lambda: not node._parts.kept.lives._unsaved, LIMIT_S)
        assert disk.left == 0
    assert caplog.text.count("cannot be stored") == 1


def test_failures_that_were_not_logged_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    times_s = iter((1.0, 2.0, 3.0, 1.0 + QUIET_S, 2.0 + QUIET_S, 3.0 + QUIET_S))
    problems = StoreProblems(lambda: next(times_s))
    for _ in range(5):
        problems.add("1", DiskFull("disk", "No space left on device", 1, 0))
    problems.add("1", CatalogUnavailable("disk", "it is locked", "wait"))
    first, second, other = [record.getMessage() for record in caplog.records]
    assert "more failures" not in first
    assert "2 more failures" in second
    assert "locked" in other
