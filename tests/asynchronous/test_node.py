"""Asynchronous invocations in-process and by the clients: handles, limits, tenants, restarts."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dandelion import AsyncClient, Client, Node
from dandelion.asynchronous.failures import InterruptedTooOften, KeptFull, KeyReused, NotEnded
from dandelion.asynchronous.handle import InvocationHandle
from dandelion.asynchronous.records import KeptState
from dandelion.driver import AsyncEngine, Call, Hosting, InstanceSets
from dandelion.errors import (
    ApplicationFailed,
    Cancelled,
    DiskFull,
    InvalidInput,
    Overloaded,
    Unknown,
)
from dandelion.frontend.server import BackgroundServer
from dandelion.node.kept_service import KeptService
from dandelion.settings import Settings, TenantSettings
from dandelion.testing import ScriptedDriver, echo, wait_until
from tests.node.served import DOCUMENT, SETTINGS, GateDriver, function

LIMIT_S = 20.0


def settings_of(**changes: Any) -> Settings:
    changed: Settings = msgspec.structs.replace(SETTINGS, **changes)
    return changed


@contextlib.contextmanager
def node_of(driver: GateDriver | None = None, **changes: Any) -> Iterator[Node]:
    driver = driver or GateDriver()
    with Node(settings_of(**changes), [driver]) as node:
        node.register(DOCUMENT)
        assert node.wait_ready()
        yield node
        driver.gate.open(1000)


@pytest.fixture(params=["memory", "sqlite"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory:" if request.param == "memory" else f"sqlite:{tmp_path / 'store'}"


# --- handles ------------------------------------------------------------------------------------


@pytest.fixture(params=["node", "client"])
def submitting(request: pytest.FixtureRequest) -> Iterator[Node | Client]:
    with node_of() as node:
        if request.param == "node":
            yield node
            return
        with BackgroundServer(node) as server, Client(server.url) as client:
            yield client


def test_a_handle(submitting: Node | Client) -> None:
    handle = submitting.submit("twice", x=[b"one", b"two"])
    assert [item.bytes() for item in handle.result(LIMIT_S).y] == [b"one", b"two"]
    assert handle.state() is KeptState.SUCCEEDED
    events = list(handle.events())
    assert events[-1].state is KeptState.SUCCEEDED
    assert sum(event.kind == "application" for event in events) == 2
    assert list(handle.events(events[-2].id)) == events[-1:]
    assert submitting.submitted(handle.id).result(0).y.items
    assert handle.cancel().state is KeptState.SUCCEEDED
    with pytest.raises(Unknown):
        handle.state()


def test_errors_are_those_of_a_synchronous_call(submitting: Node | Client) -> None:
    handle = submitting.submit("fails", x=b"1")
    with pytest.raises(ApplicationFailed) as caught:
        handle.result(LIMIT_S)
    assert caught.value.application == "fail"
    view = handle.view()
    assert view.error is not None
    assert view.error.type == "ApplicationFailed"
    with pytest.raises(Unknown):
        submitting.submit("ecko", a=b"")
    with pytest.raises(InvalidInput):
        submitting.submit("echo", b=b"")
    with pytest.raises(InvalidInput):
        submitting.submit("echo", a=b"", deadline_s=-1)
    submitting.submit("echo", a=b"1", key="k")
    with pytest.raises(KeyReused):
        submitting.submit("echo", a=b"2", key="k")


def test_a_wait_that_is_too_short(submitting: Node | Client) -> None:
    handle = submitting.submit("wait", a=b"1")
    with pytest.raises(NotEnded):
        handle.result(0.05)
    handle.cancel()
    with pytest.raises(Cancelled):
        handle.result(LIMIT_S)


def test_the_asynchronous_forms() -> None:
    async def use(submitting: Any) -> None:
        handle = await submitting("echo", a=b"1")
        assert (await handle.result(LIMIT_S)).b.bytes() == b"1"
        assert await handle.state() is KeptState.SUCCEEDED
        assert [event.state async for event in handle.events()][-1] is KeptState.SUCCEEDED
        await handle.cancel()
        with pytest.raises(Unknown):
            await handle.view()

    async def run(node: Node, url: str) -> None:
        await use(node.submit_async)
        async with AsyncClient(url) as client:
            await use(client.submit)
            assert (await client.invocations()).invocations == ()

    with node_of() as node, BackgroundServer(node) as server:
        asyncio.run(run(node, server.url))


def test_on_the_nodes_own_loop_only_coroutines_work() -> None:
    async def run() -> None:
        async with Node(settings_of(backends=("null",))) as node:
            node.register(DOCUMENT.functions[0])
            handle = await node.submit_async("echo", a=b"1")
            assert (await handle.result(LIMIT_S)).b.bytes() == b"1"
            with pytest.raises(InvalidInput):
                node.submit("echo", a=b"1")

    asyncio.run(run())


# --- tenants and limits -------------------------------------------------------------------------


def test_ids_of_other_tenants_do_not_exist() -> None:
    with node_of() as node:
        node.register(DOCUMENT.functions[0], tenant="acme")
        handle = node.submit("echo", a=b"1", key="k", tenant="acme")
        assert handle.result(LIMIT_S).b.bytes() == b"1"
        stranger = node.submitted(handle.id)
        unknown = node.submitted("0" * 32)
        for use in (
            InvocationHandle.view,
            InvocationHandle.cancel,
            lambda one: one.result(0),
            lambda one: list(one.events()),
        ):
            with pytest.raises(Unknown) as of_stranger:
                use(stranger)
            with pytest.raises(Unknown) as of_unknown:
                use(unknown)
            expected = str(of_unknown.value).replace("0" * 32, handle.id)
            assert str(of_stranger.value) == expected
        assert node.submit("echo", a=b"other", key="k").id != handle.id
        assert handle.state() is KeptState.SUCCEEDED


def test_what_runs_at_once_is_bounded_and_tenants_take_turns(catalog: str) -> None:
    driver = GateDriver()
    with node_of(driver, async_running=2, catalog=catalog) as node:
        node.register(*DOCUMENT.functions, tenant="acme")
        mine = [node.submit("wait", a=b"%d" % number) for number in range(6)]
        other = node.submit("wait", a=b"other", tenant="acme")
        states = [handle.state() for handle in mine]
        assert states.count(KeptState.RUNNING) == 2
        assert node.info().running == 2
        driver.gate.open(2)
        wait_until(lambda: other.state() is not KeptState.WAITING, LIMIT_S)
        assert [h.state() for h in mine].count(KeptState.WAITING) >= 3
        driver.gate.open(100)
        for number, handle in enumerate(mine):
            assert handle.result(LIMIT_S).b.bytes() == b"%d" % number
        assert other.result(LIMIT_S).b.bytes() == b"other"


def test_synchronous_calls_keep_half_of_the_places() -> None:
    driver = GateDriver()
    with node_of(driver, max_waiting=4) as node:
        handles = [node.submit("wait", a=b"1") for _ in range(10)]
        assert node.info().running == 2
        assert node.invoke("echo", a=b"now").b.bytes() == b"now"
        driver.gate.open(10)
        for handle in handles:
            handle.result(LIMIT_S)


def test_what_a_tenant_keeps_is_bounded(catalog: str) -> None:
    limits = {"async_keep_number": 3, "async_keep_bytes": 100_000, "catalog": catalog}
    with node_of(**limits) as node:
        handles = []
        for number in range(6):
            handles.append(node.submit("echo", a=b"%d" % number))
            handles[-1].result(LIMIT_S)
        for gone in handles[:3]:
            with pytest.raises(Unknown):
                gone.state()
        large = node.submit("echo", a=bytes(90_000))
        large.result(LIMIT_S)
        with pytest.raises(KeptFull):
            node.submit("echo", a=bytes(100_000))
        waiting = [node.submit("wait", a=b"") for _ in range(3)]
        with pytest.raises(Overloaded):
            node.submit("echo", a=b"")
        node.register(DOCUMENT.functions[0], tenant="acme")  # others are not affected
        assert node.submit("echo", a=b"1", tenant="acme").result(LIMIT_S).b.bytes() == b"1"
        for handle in waiting:
            handle.cancel()


def test_a_result_that_is_too_large_to_keep_is_an_error(catalog: str) -> None:
    with node_of(async_keep_bytes=3_000, catalog=catalog) as node:
        handle = node.submit("many", a=b"1234567890")  # gives it 300 times
        with pytest.raises(KeptFull):
            handle.result(LIMIT_S)


def test_what_has_ended_is_kept_for_a_time(catalog: str) -> None:
    with node_of(async_keep_s=0.3, catalog=catalog) as node:
        handle = node.submit("echo", a=b"1")
        assert handle.result(LIMIT_S).b.bytes() == b"1"

        def is_gone() -> bool:
            try:
                handle.state()
            except Unknown:
                return True
            return False

        wait_until(is_gone, LIMIT_S)
        wait_until(
            lambda: not node._parts.kept._store._records, LIMIT_S
        ) if catalog == "memory:" else None


def test_a_refusal_of_the_scheduler_postpones(catalog: str) -> None:
    driver = GateDriver()
    tenants = {"default": TenantSettings(invocations=1)}
    with node_of(driver, tenants=tenants, catalog=catalog) as node:
        handles = [node.submit("wait", a=b"%d" % number) for number in range(4)]
        driver.gate.open(4)
        for number, handle in enumerate(handles):
            assert handle.result(LIMIT_S).b.bytes() == b"%d" % number
            assert handle.view().attempts == 1


def test_watchers_of_a_tenant_are_bounded() -> None:
    with node_of(async_watchers=2) as node, ThreadPoolExecutor(2) as pool:
        handle = node.submit("wait", a=b"1")
        waits = [pool.submit(handle.result, LIMIT_S) for _ in range(2)]
        wait_until(lambda: node._parts.kept.views.watching["default"] == 2, LIMIT_S)
        with pytest.raises(Overloaded):
            handle.result(1)
        assert handle.state() is KeptState.RUNNING
        handle.cancel()
        for wait in waits:
            with pytest.raises(Cancelled):
                wait.result(LIMIT_S)


def test_many_waiting_cost_no_threads_and_no_arena(catalog: str) -> None:
    async def wait_for_all(node: Node, ids: list[str], begun: asyncio.Event) -> list[KeptState]:
        waits = [node.kept.watch(i, tenant="default", wait_s=60, end=True) for i in ids]
        tasks = [asyncio.ensure_future(wait) for wait in waits]
        while node._parts.kept.views.watching["default"] < len(ids):
            await asyncio.sleep(0)
        begun.set()
        return [(await task).view.state for task in tasks]

    async def run(node: Node, driver: GateDriver) -> None:
        ids = [(await node.submit_async("wait", a=bytes(5_000))).id for _ in range(300)]
        assert node.info().running == 3
        before = threading.active_count()
        begun = asyncio.Event()
        waiting = asyncio.ensure_future(wait_for_all(node, ids, begun))
        await begun.wait()
        assert threading.active_count() <= before + 8  # the pool of the node has eight at most
        assert node.info().arena.used_bytes == 0
        driver.gate.open(300)
        assert set(await waiting) == {KeptState.SUCCEEDED}

    driver = GateDriver()
    with node_of(driver, catalog=catalog, async_running=3) as node:
        asyncio.run(run(node, driver))


# --- restarts -----------------------------------------------------------------------------------


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


# --- the store fails ----------------------------------------------------------------------------


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
