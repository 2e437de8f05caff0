"""FIXTURE. Scenarios of the CUDA and HIP backends on a fake device.

Each function here is one test, named by the tests and run in a process of its own; see `worker`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from dandelion.backends.gpu.compiling import CodeCache
from dandelion.backends.gpu.constants import ResidentConstants, WeightsLimit
from dandelion.backends.gpu.pacing import StepTimes

import dandelion.blueprint as bp
from dandelion.driver import load_driver
from dandelion.errors import (
    BackendUnavailable,
    Cancelled,
    DandelionError,
    DeviceFull,
    EngineDied,
    Faulted,
    InvalidBlueprint,
    InvalidFunction,
    InvalidInput,
)
from dandelion.function import Function
from tests.fake_driver.compile import compiled, image
from tests.fake_driver.fake import LONG_NS, Fake, Runner, function, numbers

SOURCE = """
#include "dandelion.h"

KERNEL void accumulate(GLOBAL const i32 *x, GLOBAL i32 *sum, u64 count)
{
    if (GLOBAL_ID(0) < count)
        sum[GLOBAL_ID(0)] += x[GLOBAL_ID(0)];
}

KERNEL void weigh(GLOBAL const i32 *w, GLOBAL const i32 *x, GLOBAL i32 *y, u64 count)
{
    if (GLOBAL_ID(0) < count)
        y[GLOBAL_ID(0)] = w[GLOBAL_ID(0)] + x[GLOBAL_ID(0)];
}

KERNEL void spoil(GLOBAL const i32 *w, GLOBAL i32 *y)
{
    ((GLOBAL i32 *)w)[0] = 7;
    y[0] = w[0];
}

KERNEL void read_at(u64 address, GLOBAL i32 *y)
{
    y[0] = *(GLOBAL const i32 *)address;
}
"""
SHARED = """
#include "dandelion.h"

KERNEL void shared(GLOBAL i32 *y DYNAMIC_LOCAL)
{
    USE_DYNAMIC_LOCAL(i32, tile);
    tile[LOCAL_ID(0)] = (i32)LOCAL_ID(0);
    BARRIER();
    y[LOCAL_ID(0)] = tile[LOCAL_SIZE(0) - 1 - LOCAL_ID(0)];
}
"""
FILES = {"k.c": SOURCE.encode()}
SHARED_FILES = {"k.c": SHARED.encode()}
"""Apart, since all kernels of a file with a barrier run in fibers, which takes longer."""
WEIGHTS = np.arange(50_000, dtype=np.int32)
X = np.arange(1000, dtype=np.int32)
OUT_OF_MEMORY, OTHER, BROKEN = 2, 304, 719
COMPILER = 1  # out of memory, to both compilers; invalid value, to both drivers


@functools.cache
def totals(times: int = 3) -> Function:
    """y = times * x, through a temporary buffer."""
    b = bp.Blueprint(inputs=["x"], outputs=["y"], modules={"k": "k.c"})
    t = b.buffer("t", like="x", temporary=True)
    y = b.buffer("y", like="x")
    count = b.x.elements("i32")
    shape: dict[str, Any] = {"grid": bp.ceil_div(count, 64), "block": 64}
    with b.repeat(times):
        b.launch("accumulate", [b.x, t, bp.scalar("u64", count)], **shape)
    b.launch("accumulate", [t, y, bp.scalar("u64", count)], **shape)
    return function(b, FILES)


def weighed(weights: npt.NDArray[Any] = WEIGHTS, name: str = "F") -> Function:
    """y = w + x, with w a static set; each time another record of equal content."""
    return replace(_weighed(weights.tobytes(), name))


@functools.cache
def _weighed(weights: bytes, name: str) -> Function:
    b = bp.Blueprint(inputs=["x"], weights=["w"], outputs=["y"], modules={"k": "k.c"})
    y = b.buffer("y", like="x")
    count = b.x.elements("i32")
    shape: dict[str, Any] = {"grid": bp.ceil_div(count, 64), "block": 64}
    b.launch("weigh", [b.w, b.x, y, bp.scalar("u64", count)], **shape)
    return function(b, FILES, static={"w": weights}, name=name)


def launching(kernel: str, args: list[Any], size: int = 4096, **launch: Any) -> Function:
    """One launch of a kernel that writes to y; `args` come before the buffer."""
    b = bp.Blueprint(inputs=["x"], outputs=["y"], modules={"k": "k.c"})
    y = b.buffer("y", size=size)
    b.launch(kernel, [*args, y], **launch)
    return function(b, SHARED_FILES if kernel == "shared" else FILES)


def needing(shared_bytes: int, launched_bytes: int) -> Function:
    """A launch of a kernel whose code asks for an amount of dynamic local memory."""
    code = bp.Code("k.c", shared_mem_bytes=shared_bytes)
    b = bp.Blueprint(inputs=["x"], outputs=["y"], modules={"k": code})
    b.launch("shared", [b.buffer("y", size=4096)], block=64, shared_mem_bytes=launched_bytes)
    return function(b, SHARED_FILES)


def run_weighed(
    runner: Runner,
    wanted: Function,
    weights: npt.NDArray[Any] = WEIGHTS,
    keep: bool = True,
) -> npt.NDArray[Any]:
    """Run `weighed` on X."""
    return numbers(runner.run(wanted, runner.one("x", X), runner.one("w", weights), keep=keep))


def expect(error: type[DandelionError], action: Any) -> DandelionError:
    """Return the error that an action raises."""
    try:
        action()
    except error as caught:
        return caught
    raise AssertionError(f"no {error.__name__}")


# --- whole calls ----------------------------------------------------------------------------


def calls_are_right_and_leave_nothing(fake: Fake) -> None:
    runner = Runner(fake)
    wanted, other = totals(), weighed()
    for _ in range(4):
        assert (numbers(runner.run(wanted, runner.one("x", X))) == 3 * X).all()
        assert (run_weighed(runner, other) == X + WEIGHTS[: X.size]).all()
    if fake.counts:
        assert fake.live()["executable"] == 2, "each runs as a graph from its second call on"
    runner.engine.forget(wanted)
    if fake.counts:
        assert fake.live()["executable"] == 1
    runner.engine.forget(other)
    assert {"module", "executable", "graph", "mapped"}.isdisjoint(fake.live())
    assert (numbers(runner.run(wanted, runner.one("x", X))) == 3 * X).all()
    runner.close()
    runner.close()
    fake.nothing_left()


def hot_calls_ask_for_little(fake: Fake) -> None:
    """A hot call is its copies, one graph, one wait, one zeroing."""
    runner = Runner(fake)
    for _ in range(3):
        runner.run(totals(50), runner.one("x", X))
    before = fake.calls()
    runner.run(totals(50), runner.one("x", X))
    assert fake.calls() - before == 5
    runner.close()


def calls_of_many_sizes_stay_hot(fake: Fake) -> None:
    runner = Runner(fake)
    for last in (False, False, True):
        for count in range(1, 151):
            before = fake.calls()
            given = runner.one("x", X[:count])
            assert (numbers(runner.run(totals(), given)) == 3 * X[:count]).all()
            assert not last or fake.calls() - before == 5, count
    runner.close()


def others_make_room_for_code(fake: Fake) -> None:
    """Without room for a module, those that no call uses are unloaded."""
    b = bp.Blueprint(inputs=["x"], outputs=["y"], modules={"k": "k.c"})
    count = b.x.elements("i32")
    shape: dict[str, Any] = {"grid": bp.ceil_div(count, 64), "block": 64}
    b.launch("accumulate", [b.x, b.buffer("y", like="x"), bp.scalar("u64", count)], **shape)
    other = function(b, {"k.c": FILES["k.c"] + b"\n"})
    loads = 0
    runner = Runner(fake)
    runner.run(other, runner.one("x", X))  # it is compiled then
    runner.close()
    for number in range(20):
        fake.reset()
        runner = Runner(fake)
        assert (numbers(runner.run(totals(), runner.one("x", X))) == 3 * X).all()
        fake.fail(number, OUT_OF_MEMORY)
        with contextlib.suppress(DandelionError):
            assert (numbers(runner.run(other, runner.one("x", X))) == X).all()
            loads += "ModuleLoad" in fake.failed()
        fake.fail(-1, 0)
        for _ in range(2):
            assert (numbers(runner.run(other, runner.one("x", X))) == X).all()
            assert (numbers(runner.run(totals(), runner.one("x", X))) == 3 * X).all()
        runner.close()
        fake.nothing_left()
    assert loads == 1, "it was tried again, with room"


def _whole_life(fake: Fake, made: list[Runner], part_ns: int = LONG_NS) -> None:
    """From opening to closing, with graphs, constants, two tenants and a removed function."""
    runner = Runner(fake, part_ns=part_ns)
    made.append(runner)
    try:
        for _ in range(2):
            assert (numbers(runner.run(totals(), runner.one("x", X))) == 3 * X).all()
            assert (run_weighed(runner, weighed()) == X + WEIGHTS[: X.size]).all()
        runner.engine.forget(totals())
    finally:
        runner.engine.close()


def fail_each(
    fake: Fake, code: int, part_ns: int = LONG_NS, life: Callable[..., None] = _whole_life
) -> None:
    fake.reset()
    life(fake, [], part_ns)
    total = fake.calls()
    assert total > 60
    seen = set()
    raised = 0
    for number in range(total):
        fake.reset()
        fake.fail(number, code)
        made: list[Runner] = []
        try:
            life(fake, made, part_ns)
        except DandelionError:
            raised += 1
        seen.add(fake.failed())
        for runner in made:
            runner.nothing_alive()
        if code != BROKEN:
            assert fake.live() == {}, (number, fake.failed(), fake.live())
            assert fake.library.fake_leaked() == 0, (number, fake.failed())
        if number % 7 == 0:  # and a new engine, in a new process, is right
            fake.reset()
            life(fake, [], part_ns)
            fake.nothing_left()
    assert raised > total // 2
    assert len(seen) > 30, sorted(seen)


def life_of(
    play: Callable[[Runner, int], None], numbers: Sequence[int]
) -> Callable[[Fake, list[Runner], int], None]:
    """Give a life for `fail_each`: an engine that plays with each number, whatever failed before.

    Args:
        play: makes calls and checks their results.
        numbers: one after the other.
    """

    def life(fake: Fake, made: list[Runner], part_ns: int) -> None:
        runner = Runner(fake, part_ns=part_ns)
        made.append(runner)
        failure: DandelionError | None = None
        try:
            for number in numbers:
                try:
                    play(runner, number)
                except DandelionError as error:
                    failure = error
            if failure is not None:
                raise failure
        finally:
            runner.engine.close()

    return life


def every_call_fails_once_out_of_memory(fake: Fake) -> None:
    fail_each(fake, OUT_OF_MEMORY)


def every_call_fails_once(fake: Fake) -> None:
    fail_each(fake, OTHER)


def every_call_of_parts_fails_once(fake: Fake) -> None:
    fail_each(fake, OTHER, part_ns=1)


def every_call_breaks_the_device_once(fake: Fake) -> None:
    fail_each(fake, BROKEN)


def every_call_of_the_compiler_fails_once(fake: Fake) -> None:
    """Nothing is compiled in advance; no program of the compiler is left behind."""
    folder = fake.cache.folder.parent / "cold"
    names = set()
    for number in range(200):
        fake.reset()
        for path in folder.glob("*"):
            path.unlink()
        device = fake.device(CodeCache(folder))
        from dandelion.backends.gpu.conformance import opened
        from dandelion.backends.gpu.conformance_kernels import code_for

        with contextlib.suppress(DandelionError), opened(device):
            code = code_for(device)
            fake.fail(number, COMPILER)
            device.load(code)
        names.add(fake.failed())
        if not fake.failed():
            break
        allowed = "DestroyProgram" in fake.failed()
        assert fake.live() == ({"program": 1} if allowed else {}), (fake.failed(), fake.live())
    assert any("Compile" in name for name in names), names


# --- parts ----------------------------------------------------------------------------------


def chain(times: int = 20) -> Function:
    """Adds x and t to each other in turn: its result depends on the order of all launches."""
    b = bp.Blueprint(inputs=["x"], outputs=["x"], modules={"k": "k.c"})
    t = b.buffer("t", like="x", temporary=True)
    count = b.x.elements("i32")
    shape: dict[str, Any] = {"grid": bp.ceil_div(count, 64), "block": 64}
    with b.repeat(times):
        b.launch("accumulate", [b.x, t, bp.scalar("u64", count)], **shape)
        b.launch("accumulate", [t, b.x, bp.scalar("u64", count)], **shape)
    return function(b, FILES, outputs=("x",))


def parts_give_the_bits_that_the_whole_gives(fake: Fake) -> None:
    found = []
    for part_ns in (1, 50_000, LONG_NS):
        runner = Runner(fake, part_ns=part_ns)
        found += [numbers(runner.run(chain(), runner.one("x", X))).tobytes() for _ in range(4)]
        if fake.counts:
            expected = {1: 40, LONG_NS: 1}.get(part_ns, fake.live()["executable"])
            assert fake.live()["executable"] == expected
        runner.close()
        fake.nothing_left()
    assert len(set(found)) == 1


def stopped_calls_leave_nothing(fake: Fake) -> None:
    for calls_before in range(3):
        _stop_calls(Runner(fake, part_ns=1), fake, calls_before)
        fake.nothing_left()


def _stop_calls(runner: Runner, fake: Fake, calls_before: int) -> None:
    right = [numbers(runner.run(chain(), runner.one("x", X))) for _ in range(calls_before)]
    for looks in range(6):
        expect(Cancelled, lambda looks=looks: runner.run_stopped(chain(), looks, X))
        assert not runner.engine.pool.dirty_bytes
    if fake.counts:
        assert fake.live()["event"] <= 3, "events are used again"
    right += [numbers(runner.run(chain(), runner.one("x", X))) for _ in range(3)]
    assert all((found == right[0]).all() for found in right)
    runner.close()


# --- branches -------------------------------------------------------------------------------


@contextlib.contextmanager
def long_steps() -> Iterator[None]:
    """Each step takes as long as is worth lanes, however fast the device is."""
    real = StepTimes.expected_ns
    StepTimes.expected_ns = lambda self, index: 1e5  # type: ignore[method-assign]
    try:
        yield
    finally:
        StepTimes.expected_ns = real  # type: ignore[method-assign]


def branches(width: int = 3) -> Function:
    """y = (2 + 4 + 8 + ... + 1) * x: chains of 2 launches and more, joined one after the other."""
    b = bp.Blueprint(inputs=["x"], outputs=["y"], modules={"k": "k.c"})
    y = b.buffer("y", like="x")
    count = bp.scalar("u64", b.x.elements("i32"))
    shape: dict[str, Any] = {"grid": bp.ceil_div(b.x.elements("i32"), 64), "block": 64}
    ends = []
    for branch in range(width):
        end = b.buffer(f"end{branch}", like="x", temporary=True)
        b.launch("accumulate", [b.x, end, count], **shape)
        for i in range(branch + 1):
            twice = b.buffer(f"twice{branch}_{i}", like="x", temporary=True)
            b.launch("accumulate", [end, twice, count], **shape)
            b.launch("accumulate", [twice, end, count], **shape)
        ends.append(end)
    for end in [b.x, *ends]:
        b.launch("accumulate", [end, y, count], **shape)
    return function(b, FILES)


def branches_are_forked_and_joined(fake: Fake) -> None:
    runner = Runner(fake)
    for _ in range(4):
        with long_steps():
            assert (numbers(runner.run(branches(), runner.one("x", X))) == 15 * X).all()
    if fake.counts:
        nodes, edges, roots, path = fake.graph()
        assert (nodes, roots, path) == (19, 4, 8), "four branches: one has only y's first launch"
        assert edges == nodes - roots + 3, "a tree that joins"
        assert fake.live()["stream"] == 4, "one for each branch"
    runner.close()
    fake.nothing_left()


def _life_with_branches(fake: Fake, made: list[Runner], part_ns: int) -> None:
    runner = Runner(fake, part_ns=part_ns)
    made.append(runner)
    try:
        with long_steps():
            for _ in range(2):
                found = numbers(runner.run(branches(2), runner.one("x", X)))
                assert (found == 7 * X).all()
    finally:
        runner.engine.close()


def every_call_of_forked_graphs_fails_once(fake: Fake) -> None:
    fail_each(fake, OTHER, life=_life_with_branches)


def forked_graphs_have_few_events(fake: Fake) -> None:
    runner = Runner(fake)
    with long_steps():
        for times in (2, 3, 8):
            for _ in range(2):
                runner.run(branches(times), runner.one("x", X))
    if fake.counts:
        assert fake.live()["stream"] == 8, "no more than there are lanes"
        assert fake.live()["event"] <= 12
    runner.close()
    fake.nothing_left()


def chains_are_captured_as_ever(fake: Fake) -> None:
    """No stream, no event and no call more than the launches need."""
    runner = Runner(fake)
    sets = [runner.one("x", X) for _ in range(3)]
    with long_steps():
        calls = []
        for one in sets:
            before = fake.calls()
            runner.run(chain(), one)
            calls.append(fake.calls() - before)
    assert calls[1] - calls[2] == 40 + 5, "launches; begin, end, make, upload and drop a graph"
    assert fake.graph() == (40, 39, 1, 40)
    assert fake.live()["stream"] == 1
    runner.close()
    fake.nothing_left()


# --- faults ---------------------------------------------------------------------------------


def a_bad_address_ends_the_call_and_the_engine(fake: Fake) -> None:
    runner = Runner(fake)
    wild = launching("read_at", [bp.scalar("u64", 4096)])
    error = str(expect(Faulted, lambda: runner.run(wild, runner.one("x", X))))
    assert "wait: " in error or "synchronize: " in error
    assert runner.engine.lost
    expect(EngineDied, lambda: runner.run(totals(), runner.one("x", X)))
    runner.close()
    fake.nothing_left()


def a_write_beyond_the_pool_faults(fake: Fake) -> None:
    runner = Runner(fake, pool_bytes=8192)
    beyond = launching("accumulate", [], size=64)
    b = bp.Blueprint(inputs=["x"], outputs=["y"], modules={"k": "k.c"})
    y = b.buffer("y", size=64)
    b.launch("accumulate", [b.x, y, bp.scalar("u64", 100_000)], grid=1000, block=64)
    beyond = function(b, FILES)
    expect(Faulted, lambda: runner.run(beyond, runner.one("x", X)))
    runner.close()
    fake.nothing_left()


# --- constants ------------------------------------------------------------------------------


def _resident(runner: Runner) -> ResidentConstants:
    (resident,) = runner.engine.constants._resident.values()
    return resident


def constants_are_brought_once(fake: Fake) -> None:
    runner = Runner(fake)
    for _ in range(3):
        assert (run_weighed(runner, weighed()) == X + WEIGHTS[: X.size]).all()
        runner.run(totals(), runner.one("x", X))
    assert runner.engine.constants.uploads == 1
    same = weighed(name="G")
    assert (run_weighed(runner, same) == X + WEIGHTS[: X.size]).all()
    assert runner.engine.constants.uploads == 1, "equal content is there already"
    runner.engine.forget(weighed())
    assert len(runner.engine.constants) == 1, "the other function needs it"
    runner.engine.forget(same)
    assert len(runner.engine.constants) == 0
    assert "mapped" not in fake.live()
    runner.close()
    fake.nothing_left()


def constants_are_closed_to_others(fake: Fake) -> None:
    runner = Runner(fake)
    run_weighed(runner, weighed())
    address = _resident(runner).memory.address  # type: ignore[attr-defined]  # a handle of this device
    spy = launching("read_at", [bp.scalar("u64", address)])
    expect(Faulted, lambda: runner.run(spy, runner.one("x", X)))
    runner.close()
    fake.nothing_left()


def constants_cannot_be_written_to(fake: Fake) -> None:
    runner = Runner(fake)
    b = bp.Blueprint(inputs=["x"], weights=["w"], outputs=["y"], modules={"k": "k.c"})
    b.launch("spoil", [b.w, b.buffer("y", size=64)])
    wanted = function(b, FILES, static={"w": WEIGHTS.tobytes()})
    sets = (runner.one("x", X), runner.one("w", WEIGHTS))
    expect(Faulted, lambda: runner.run(wanted, *sets))
    runner.close()
    fake.nothing_left()


def constants_that_kernels_write_to_are_copied(fake: Fake) -> None:
    runner = Runner(fake)
    b = bp.Blueprint(inputs=["x"], weights=["w"], outputs=["w"], modules={"k": "k.c"})
    count = bp.scalar("u64", 1000)
    b.launch("accumulate", [b.x, b.w, count], grid=16, block=64)
    wanted = function(b, FILES, outputs=("w",), static={"w": WEIGHTS.tobytes()})
    for _ in range(3):
        sets = (runner.one("x", X), runner.one("w", WEIGHTS))
        assert (numbers(runner.run(wanted, *sets))[:1000] == X + WEIGHTS[:1000]).all()
    assert len(runner.engine.constants) == 0
    runner.close()


def small_constants_are_copied(fake: Fake) -> None:
    runner = Runner(fake)
    few = WEIGHTS[:1000]
    for _ in range(2):
        assert (run_weighed(runner, weighed(few), few) == X + few).all()
    assert len(runner.engine.constants) == 0
    runner.close()


def constants_stay_as_the_node_decides(fake: Fake) -> None:
    """Three functions of 2 MiB each where there is room for two."""
    runner = Runner(fake, weights=WeightsLimit(4 << 20))
    sets = [WEIGHTS + i for i in range(3)]
    wanted = [weighed(w, f"F{i}") for i, w in enumerate(sets)]
    constants = runner.engine.constants
    for _ in range(3):
        for i in range(3):
            assert (run_weighed(runner, wanted[i], sets[i]) == X + sets[i][: X.size]).all()
    assert (constants.uploads, constants.used_bytes) == (2, 4 << 20)
    runner.engine.evict(wanted[0])
    assert constants.used_bytes == 2 << 20
    for keep in (False, True, False, True):
        for i in (2, 1, 0):
            found = run_weighed(runner, wanted[i], sets[i], keep)
            assert (found == X + sets[i][: X.size]).all()
    assert (constants.uploads, constants.used_bytes) == (3, 4 << 20)
    runner.close()
    fake.nothing_left()


def without_room_constants_are_copied(fake: Fake) -> None:
    fake.library.fake_set_memory(3 << 20)
    runner = Runner(fake, pool_bytes=2 << 20)
    for _ in range(3):
        assert (run_weighed(runner, weighed()) == X + WEIGHTS[: X.size]).all()
    assert len(runner.engine.constants) == 0
    runner.close()
    fake.nothing_left()


def without_virtual_memory_constants_are_copied(fake: Fake) -> None:
    fake.library.fake_set_virtual_memory(0)
    runner = Runner(fake)
    assert not runner.engine.device.abilities.protected_memory
    for _ in range(3):
        assert (run_weighed(runner, weighed()) == X + WEIGHTS[: X.size]).all()
    runner.close()
    fake.nothing_left()


# --- code -----------------------------------------------------------------------------------


def _binary(kind: str, arch: str) -> bytes:
    library, _ = compiled('extern "C" __global__ void k(int *y) { y[0] = 1; }')
    return image(kind, arch, library, parameters={"k": [8]})


def _of_binary(fake: Fake, arch: str, declared: str = "") -> Function:
    name = "k.cubin" if fake.kind == "cuda" else "k.hsaco"
    b = bp.Blueprint(inputs=["x"], outputs=["y"], modules={"k": name})
    b.launch("k", [b.buffer("y", size=4)])
    document = __import__("json").loads(b.json())
    if declared:
        document["modules"] = {"k": [{"path": name, "backend": fake.kind, "arch": declared}]}
    return function(document, {name: _binary(fake.kind, arch)})


def binaries_for_this_device_run(fake: Fake) -> None:
    runner = Runner(fake)
    for declared in ("", fake.arch):
        wanted = _of_binary(fake, fake.arch, declared)
        assert numbers(runner.run(wanted, runner.one("x", X))).tolist() == [1]
    runner.close()
    fake.nothing_left()


def binaries_for_other_devices_say_so(fake: Fake) -> None:
    other = "sm_86" if fake.kind == "cuda" else "gfx1100"
    runner = Runner(fake)
    for declared, kind in (("", InvalidFunction), (other, InvalidBlueprint)):
        wanted = _of_binary(fake, other, declared)
        error = expect(kind, lambda w=wanted: runner.run(w, runner.one("x", X)))
        assert f"code for {other}, this device is {fake.arch}" in str(error), str(error)
    runner.close()


def what_is_no_binary_is_refused(fake: Fake) -> None:
    name = "k.cubin" if fake.kind == "cuda" else "k.hsaco"
    runner = Runner(fake)
    for data in (b"\x7fELF" + bytes(200), bytes(300), b"text" * 50):
        b = bp.Blueprint(inputs=["x"], outputs=["y"], modules={"k": name})
        b.launch("k", [b.buffer("y", size=4)])
        expect(
            InvalidFunction,
            lambda b=b, data=data: runner.run(function(b, {name: data}), runner.one("x", X)),
        )
    runner.close()
    fake.nothing_left()


def launches_keep_to_the_limits(fake: Fake) -> None:
    runner = Runner(fake)

    def run(wanted: Function) -> npt.NDArray[Any]:
        return numbers(runner.run(wanted, runner.one("x", X)))

    right = run(launching("shared", [], block=64, shared_mem_bytes=60_000))
    assert (right[:64] == np.arange(64)[::-1]).all(), "more than 48 KiB must be asked for"
    right = run(needing(60_000, launched_bytes=300_000))
    assert (right[:64] == np.arange(64)[::-1]).all(), "the number of the code counts"
    for bad in (
        needing(300_000, launched_bytes=0),
        launching("shared", [], block=64, shared_mem_bytes=300_000),
        launching("missing", []),
        launching("shared", [bp.scalar("u64", 1)]),
        launching("read_at", [bp.scalar("u32", 1)]),
    ):
        expect(InvalidBlueprint, lambda bad=bad: run(bad))
    assert (run(totals())[: X.size] == 3 * X).all()
    runner.close()
    fake.nothing_left()


def too_large_a_pool_says_what_there_is(fake: Fake) -> None:
    error = expect(DeviceFull, lambda: Runner(fake, pool_bytes=1 << 40))
    assert isinstance(error, DeviceFull)
    assert (error.needed_bytes, error.pool_bytes) == (1 << 40, 256 << 20)
    fake.nothing_left()


def the_pool_leaves_room_for_constants(fake: Fake) -> None:
    fake.library.fake_set_memory(1 << 30)
    runner = Runner(fake, pool_bytes=0, weights=WeightsLimit(share=0.25))
    usable = runner.engine.device.properties().memory_bytes
    assert 0.7 * usable < runner.engine.pool.size_bytes < 0.8 * usable
    runner.close()


# --- the cache of compiled code -------------------------------------------------------------


def damaged_code_is_compiled_again(fake: Fake) -> None:
    folder = fake.cache.folder.parent / "damaged"
    cache = CodeCache(folder)

    def run() -> None:
        runner = Runner(fake, cache=cache)
        assert (numbers(runner.run(totals(), runner.one("x", X))) == 3 * X).all()
        runner.close()

    run()
    (path,) = folder.iterdir()
    assert path.name.endswith(fake.arch)
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", whole[:-1] + b"\0\0", whole[20:]):
        path.write_bytes(damaged)
        run()
        assert path.read_bytes() == whole
    fake.nothing_left()


def code_is_compiled_once(fake: Fake) -> None:
    import os

    folder = fake.cache.folder.parent / "once"
    for _ in range(2):
        runner = Runner(fake, cache=CodeCache(folder))
        runner.run(totals(), runner.one("x", X))
        runner.close()
        compiler = os.environ.pop("FAKE_COMPILER", None) or compiler  # noqa: F821  # none any more
    os.environ["FAKE_COMPILER"] = compiler


# --- the driver -----------------------------------------------------------------------------


def the_driver_lists_devices_and_takes_settings(fake: Fake) -> None:
    driver = load_driver(fake.kind)
    driver.configure({"pool_bytes": "2M", "cache": str(fake.cache.folder), "weights": "10%"})
    (resource,) = driver.factory().probe()
    assert resource.name == "0"
    assert resource.description == "Fake device (a fixture)"
    assert resource.memory_bytes == 256 << 20
    assert resource.details["architecture"] == fake.arch
    engine = driver.factory().engine("0")
    engine.close()
    fake.nothing_left()
    for name in ("1", "quantum7"):
        expect(BackendUnavailable, lambda name=name: driver.factory().engine(name))
    for bad in ({"weights": "much"}, {"weights": "99%"}, {"weights": "x%"}, {"cach": "off"}):
        expect(InvalidInput, lambda bad=bad: load_driver(fake.kind).configure(bad))
    fake.nothing_left()


ON_REAL_DEVICES = (
    calls_are_right_and_leave_nothing,
    parts_give_the_bits_that_the_whole_gives,
    stopped_calls_leave_nothing,
    branches_are_forked_and_joined,
    a_bad_address_ends_the_call_and_the_engine,
    constants_are_brought_once,
    constants_are_closed_to_others,
    constants_cannot_be_written_to,
    constants_that_kernels_write_to_are_copied,
    small_constants_are_copied,
    constants_stay_as_the_node_decides,
    what_is_no_binary_is_refused,
    launches_keep_to_the_limits,
    damaged_code_is_compiled_again,
)
"""Scenarios that hold on any device; each in a process of its own, since some break theirs."""
