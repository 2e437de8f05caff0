"""Places that tenants take in turn."""

from __future__ import annotations

import asyncio

from dandelion.tenant_places import TenantPlaces


def test_tenants_take_turns() -> None:
    async def scenario() -> list[str]:
        places, order = TenantPlaces(1), list[str]()

        async def work(tenant: str) -> None:
            async with places.taken(tenant):
                order.append(tenant)
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as group:
            for tenant in "aaaabbc":
                group.create_task(work(tenant))
        return order

    assert "".join(asyncio.run(scenario())) == "aabcaba"


def test_those_that_leave_take_no_place_along() -> None:
    async def scenario() -> None:
        places = TenantPlaces(2)

        async def work(tenant: str) -> None:
            async with places.taken(tenant):
                await asyncio.sleep(0.001)

        for step in range(40):
            tasks = [asyncio.create_task(work("ab"[at % 2])) for at in range(12)]
            for _ in range(step % 7):
                await asyncio.sleep(0.0005)
            for at, task in enumerate(tasks):
                if (at + step) % 3 == 0:
                    task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert places._free == 2
            assert not places._waiting

    asyncio.run(scenario())


def test_one_that_leaves_at_its_turn_passes_it_on() -> None:
    async def scenario() -> None:
        places = TenantPlaces(1)
        entered = asyncio.Event()

        async def work() -> None:
            async with places.taken("a"):
                entered.set()

        async with places.taken("a"):
            first, second = asyncio.create_task(work()), asyncio.create_task(work())
            await asyncio.sleep(0)
        first.cancel()  # it has its turn, and did not run yet
        await second
        assert entered.is_set()
        assert places._free == 1

    asyncio.run(scenario())
