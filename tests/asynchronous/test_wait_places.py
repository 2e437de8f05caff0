"""Handles that wait for results take turns, so that they leave connections of their client free."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from dandelion.frontend import wait_places
from dandelion.frontend.async_client import AsyncClient
from dandelion.frontend.client import Client
from dandelion.frontend.server import BackgroundServer
from dandelion.frontend.wait_places import SHORT_S, AsyncWaitPlaces, WaitPlaces
from dandelion.testing import wait_until
from tests.asynchronous.async_nodes import LIMIT_S, node_of
from tests.node.served import GateDriver

HANDLES = 10


@pytest.fixture
def served() -> Iterator[tuple[str, GateDriver]]:
    driver = GateDriver()
    with node_of(driver, async_running=HANDLES) as node, BackgroundServer(node) as server:
        yield server.url, driver


def test_handles_in_threads_leave_connections_to_other_requests(
    served: tuple[str, GateDriver], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wait_places, "SHORT_S", 0.05)
    url, driver = served
    with Client(url, LIMIT_S / 4, connections=2) as client, ThreadPoolExecutor(HANDLES) as pool:
        handles = [client.submit("wait", a=b"%d" % i) for i in range(HANDLES)]
        waits = [pool.submit(handle.result, LIMIT_S) for handle in handles]
        wait_until(lambda: len(client._places._waiting) == HANDLES - 1)
        assert len(client.invocations().invocations) == HANDLES
        driver.gate.open(HANDLES)
        assert [wait.result().b.bytes() for wait in waits] == [b"%d" % i for i in range(HANDLES)]
        assert not client._places._holding


def test_awaited_handles_leave_connections_to_other_requests(
    served: tuple[str, GateDriver], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wait_places, "SHORT_S", 0.05)
    url, driver = served

    async def main() -> None:
        async with AsyncClient(url, LIMIT_S / 4, connections=2) as client:
            handles = [await client.submit("wait", a=b"%d" % i) for i in range(HANDLES)]
            waits = asyncio.gather(*(handle.result(LIMIT_S) for handle in handles))
            while client._places._waiting < HANDLES - 1:
                await asyncio.sleep(0.01)
            assert len((await client.invocations()).invocations) == HANDLES
            driver.gate.open(HANDLES)
            found = [sets.b.bytes() for sets in await waits]
            assert found == [b"%d" % i for i in range(HANDLES)]

    asyncio.run(main())


def test_the_first_one_goes_first_and_waits_are_short_while_others_wait() -> None:
    places, order, shown = WaitPlaces(2), [], []

    def take(name: str) -> None:
        with places.taken(LIMIT_S) as wait_s:
            order.append(name)
            shown.append(wait_s)

    threads = [threading.Thread(target=take, args=(name,)) for name in "abc"]
    with places.taken(LIMIT_S) as wait_s:
        assert SHORT_S < wait_s <= LIMIT_S
        for count, thread in enumerate(threads, 1):
            thread.start()
            wait_until(lambda: len(places._waiting) == count)  # noqa: B023 - called at once
    for thread in threads:
        thread.join()
    assert order == ["a", "b", "c"]
    assert shown[:2] == [SHORT_S] * 2
    assert SHORT_S < shown[2] <= LIMIT_S


def test_without_a_place_in_time_nothing_is_waited_for() -> None:
    places = WaitPlaces(1)
    with places.taken(LIMIT_S):
        with places.taken(0.01) as wait_s:
            assert wait_s == 0.0
        with places.taken(0.0) as wait_s:  # needs none
            assert wait_s == 0.0
        assert not places._waiting
    with places.taken(LIMIT_S) as wait_s:
        assert wait_s > SHORT_S

    async def awaited() -> None:
        places = AsyncWaitPlaces(1)
        async with places.taken(LIMIT_S):
            async with places.taken(0.01) as wait_s:
                assert wait_s == 0.0
            left = asyncio.create_task(places.taken(LIMIT_S).__aenter__())
            while not places._waiting:
                await asyncio.sleep(0)
            left.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await left
        async with places.taken(LIMIT_S) as wait_s:
            assert wait_s > SHORT_S

    asyncio.run(awaited())


def test_a_forked_process_has_all_places() -> None:
    places = WaitPlaces(2)
    with places.taken(LIMIT_S):
        child = os.fork()
        if not child:
            code = 1
            with places.taken(0.01) as wait_s:
                code = int(not wait_s)
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
