"""Asynchronous invocations in-process and by the clients: handles, limits, tenants, restarts."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dandelion import AsyncClient, Client, Node
from dandelion.asynchronous.failures import KeptFull, KeyReused, NotEnded
from dandelion.asynchronous.handle import InvocationHandle, KeptAccess
from dandelion.asynchronous.records import KeptState, KeptView, Watched
from dandelion.asynchronous.store import Part
from dandelion.asynchronous.stored_sets import decode_sets
from dandelion.data import Bytes, ItemSet, Sets
from dandelion.errors import (
    ApplicationFailed,
    Cancelled,
    InvalidInput,
    Overloaded,
    Unknown,
)
from dandelion.frontend.server import BackgroundServer
from dandelion.node import kept_reader
from dandelion.settings import TenantSettings
from dandelion.testing import wait_until
from tests.asynchronous.async_nodes import LIMIT_S, node_of, settings_of
from tests.node.served import DOCUMENT, GateDriver


@pytest.fixture(params=["memory", "sqlite"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory:" if request.param == "memory" else f"sqlite:{tmp_path / 'store'}"


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


class WaitsOfRequests(KeptAccess):
    """Has no result before the third request."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def result(self, id_: str, wait_s: float) -> Sets:
        self.seconds.append(wait_s)
        if len(self.seconds) < 3:
            raise NotEnded(id_, "running")
        return Sets({})

    def watch(self, id_: str, after: str, wait_s: float, *, end: bool) -> Watched:
        raise NotImplementedError

    def cancel(self, id_: str) -> KeptView:
        raise NotImplementedError


def test_requests_for_a_result_end_before_proxies_give_up() -> None:
    access = WaitsOfRequests()
    InvocationHandle("1", access).result()
    assert len(access.seconds) == 3
    assert all(0 < seconds <= 25 for seconds in access.seconds), "proxies wait 30 s or more"


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


def test_other_calls_go_on_while_a_large_result_is_read(
    catalog: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, others = threading.Event(), threading.Event()

    def decode_late(data: Bytes) -> dict[str, ItemSet | None]:
        begun.set()
        assert others.wait(LIMIT_S / 4), "the loop is blocked"
        return decode_sets(data)

    with node_of(catalog=catalog) as node, ThreadPoolExecutor(1) as thread:
        handle = node.submit("echo", a=bytes(1 << 20))
        wait_until(lambda: handle.state().has_ended, LIMIT_S)
        monkeypatch.setattr(kept_reader, "decode_sets", decode_late)
        result = thread.submit(handle.result, LIMIT_S)
        assert begun.wait(LIMIT_S)
        assert node.invoke("echo", a=b"1").b.bytes() == b"1"
        others.set()
        assert result.result(LIMIT_S).b.bytes() == bytes(1 << 20)


def test_a_result_that_is_deleted_while_it_is_read_is_unknown(tmp_path: Path) -> None:
    with node_of(catalog=f"sqlite:{tmp_path}") as node:
        handle = node.submit("echo", a=bytes(100_000))
        handle.result(LIMIT_S)
        store = node._parts.kept._store
        read = store.read

        def read_late(id_: str, part: Part) -> Bytes:
            handle.cancel()
            wait_until(lambda: not list(tmp_path.glob("invocations/*.result")), LIMIT_S)
            return read(id_, part)

        store.read = read_late  # type: ignore[method-assign]  # of this node only
        with pytest.raises(Unknown) as caught:
            handle.result(LIMIT_S)
        assert (caught.value.kind, caught.value.name) == ("invocation", handle.id)


def test_pages_are_whole_after_the_clock_was_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.time
    with node_of() as node:
        submitted = []
        for shift_s in (0.0, -600.0, 60.0, -900.0):
            monkeypatch.setattr(time, "time", lambda shift_s=shift_s: real() + shift_s)
            handle = node.submit("echo", a=b"1")
            handle.result(LIMIT_S)
            submitted.append(handle.id)
        listed, after = list[str](), ""
        while True:
            page = node.kept.blocking(node.kept.list(tenant="default", after=after, limit=1))
            listed += [view.id for view in page.invocations]
            after = page.after
            if not after:
                break
    assert listed == submitted[::-1]
