"""Code and constants of functions come and go in memory, and the answers stay right."""

import asyncio
import gc
import random
import time

import pytest

from dandelion.documents import CodeDocument, Content, FunctionDocument
from dandelion.errors import QuotaExceeded
from dandelion.function import FunctionSpec
from dandelion.node import Node, Settings, TenantSettings
from dandelion.node.reloads import RELOADS, WINDOW_NS, ReloadWatch
from dandelion.scheduler import Flow, Tenant

MIB = 1 << 20
ARENA = 16 * MIB
COUNT, SIZE = 64, MIB


def constant(name: str, data: bytes) -> FunctionDocument:
    """Make a function that gives a constant."""
    return FunctionDocument(
        name,
        ("weights",),
        ("out",),
        code=(CodeDocument("null"),),
        static={"weights": {"w": Content(data=data)}},
    )


def filled(number: int, size: int = SIZE) -> bytes:
    return bytes([number]) * size


def node_with(arena_bytes: int = ARENA, **settings: object) -> Node:
    return Node(Settings(backends=("null",), arena_bytes=arena_bytes, **settings))  # type: ignore[arg-type]  # passed on


def test_constants_of_four_times_the_arena_are_called_at_random() -> None:
    choose = random.Random(5)
    with node_with() as node:
        node.register(functions=[constant(f"f{i}", filled(i)) for i in range(COUNT)])
        for _ in range(300):
            number = choose.randrange(COUNT)
            assert node.invoke(f"f{number}").out.bytes() == filled(number)
            info = node.info()
            assert sum(info.functions_bytes.values()) <= ARENA // 2
            assert info.arena.used_bytes <= ARENA


def test_functions_that_take_turns_in_memory_are_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with node_with() as node:
        node.register(functions=[constant(f"f{i}", filled(i)) for i in range(COUNT)])
        for number in range(COUNT):
            node.invoke(f"f{number}")
        assert "functions_bytes" not in caplog.text, "each was loaded once"
        for number in range(COUNT):
            node.invoke(f"f{number}")
    assert caplog.text.count("functions_bytes") == 1


def test_a_reload_now_and_then_is_not_reported() -> None:
    watch, flow = ReloadWatch(), Flow(Tenant("t"), FunctionSpec("f"))
    every_ns = WINDOW_NS // (RELOADS - 2)
    for times in range(2 * RELOADS):
        watch.evicted(flow)
        assert not watch.loads(flow, times * every_ns)
        assert not watch.loads(flow, times * every_ns), "it was not evicted in between"


def test_many_callers_share_memory_that_is_too_small() -> None:
    async def main() -> None:
        async with node_with() as node:
            node.register(functions=[constant(f"f{i}", filled(i)) for i in range(COUNT)])

            async def call(number: int) -> bool:
                found = await node.invoke_async(f"f{number}")
                return bool(found.out.bytes() == filled(number))

            numbers = [random.Random(i).randrange(COUNT) for i in range(200)]
            for at in range(0, len(numbers), 4):  # what they return lies in the arena, too
                assert all(await asyncio.gather(*map(call, numbers[at : at + 4])))

    asyncio.run(main())


def test_a_function_that_can_never_fit_fails_with_its_size_and_others_go_on() -> None:
    with node_with() as node:
        node.register(constant("large", filled(1, ARENA)), constant("small", filled(2)))
        with pytest.raises(QuotaExceeded) as caught:
            node.invoke("large")
        error = caught.value
        assert (error.owner, error.needed_bytes, error.quota_bytes) == (
            "this node",
            ARENA,
            ARENA // 2,
        )
        assert "'large'" in error.what
        assert "'functions_bytes'" in str(error)
        assert node.invoke("small").out.bytes() == filled(2)


def test_memory_of_a_removed_function_is_freed() -> None:
    with node_with() as node:
        node.register(constant("f", filled(1)))
        node.invoke("f")
        assert node.info().functions_bytes == {"default": SIZE}
        record = node.describe("f")
        node.remove(type(record), "f")
        assert node.info().functions_bytes == {}


def test_a_tenant_keeps_to_its_own_memory() -> None:
    quota = TenantSettings(arena_bytes=3 * MIB)
    with node_with(tenants={"a": quota}) as node:
        for tenant in ("a", "b"):
            functions = [constant(f"f{i}", filled(i)) for i in range(6)]
            node.register(functions=functions, tenant=tenant)
        for _ in range(3):
            for number in range(6):
                assert node.invoke(f"f{number}", tenant="a").out.bytes() == filled(number)
                assert node.invoke(f"f{number}", tenant="b").out.bytes() == filled(number)
                found = node.info().functions_bytes
                assert found["a"] <= 3 * MIB
                assert found["a"] + found["b"] <= ARENA // 2


def test_the_loop_is_never_kept_for_long() -> None:
    """The processor time of each step of the loop is bounded, whatever comes.

    Wall-clock time would depend on what else the machine does.
    """
    steps: list[float] = []
    data = random.Random(1).randbytes(100 * MIB)

    async def main() -> None:
        async with node_with(512 * MIB) as node:
            loop = asyncio.get_running_loop()
            last = time.thread_time()

            def beat() -> None:
                nonlocal last
                now = time.thread_time()
                steps.append(now - last)
                last = now
                loop.call_later(0.001, beat)

            loop.call_soon(beat)
            await asyncio.to_thread(node.register, constant("large", data))
            large = await node.invoke_async("large")
            assert large.out.only().size_bytes == len(data)
            for number in range(1000):
                tenant = f"t{number}"
                await asyncio.to_thread(node.register, constant("f", b"%d" % number), tenant=tenant)
            for first in range(0, 1000, 10):  # a burst of tasks would be one step of the loop
                numbers = range(first, first + 10)
                calls = [node.invoke_async("f", tenant=f"t{number}") for number in numbers]
                found = await asyncio.gather(*calls)
                assert [sets.out.bytes() for sets in found] == [b"%d" % i for i in numbers]

    gc.disable()  # a collection would look at what other tests have left
    try:
        asyncio.run(main())
    finally:
        gc.enable()
    assert max(steps) < 0.05
