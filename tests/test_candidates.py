"""Candidates of a blueprint: how they are written, checked, measured, and kept."""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from dandelion.backends.cuda import CudaDevice
from dandelion.backends.gpu import candidates
from dandelion.backends.gpu.compiling import CodeCache, RuntimeCompiler
from dandelion.backends.gpu.compiling_checker import CompilingChecker
from dandelion.backends.gpu.device import Handle, Variables
from dandelion.backends.gpu.host import HostDevice, Memory
from dandelion.backends.gpu.measurements import Measurements
from dandelion.backends.gpu.opencl_device import OpenClDevice
from dandelion.backends.gpu.options import GpuOptions
from dandelion.backends.gpu.plan import Launch, plan
from dandelion.backends.gpu.sequential import SequentialEngine

import dandelion.blueprint as bp
from dandelion.blueprint import Candidates
from dandelion.blueprint.uses import integers_read, optional_kernels, written_buffers
from dandelion.data import Item, ItemSet, SetSpec
from dandelion.driver import Call
from dandelion.errors import (
    BackendUnavailable,
    Cancelled,
    DeviceFault,
    InvalidBlueprint,
    InvalidFunction,
    InvalidInput,
)
from dandelion.function import CodeObject, Function, FunctionSpec, digest_of
from dandelion.memory import HeapDomain
from dandelion.testing import StoppedCall

POOL_BYTES = 1 << 16
FAR_NS = 2**62
X = np.arange(64, dtype=np.int32)
ran: Counter[str] = Counter()


def _host(name: str, pause_s: float) -> object:
    def kernel(launch: Launch, x: Memory, y: Memory) -> None:
        ran[name] += 1
        time.sleep(pause_s)
        y.view(np.int32)[:] += 2 * x.view(np.int32)

    return kernel


KERNELS = {"slow": _host("slow", 0.004), "fast": _host("fast", 0), "mid": _host("mid", 0.002)}
SOURCE = b"""
#include "dandelion.h"
KERNEL void slow(GLOBAL const i32 *x, GLOBAL i32 *y)
{
    u64 i = GLOBAL_ID(0);
    f32 waste = 0;
    for (u32 k = 0; k < 200000; k++)
        waste += 1.0f / (f32)(k + i + 1);
    y[i] += 2 * x[i] + (waste < 0);
}
KERNEL void fast(GLOBAL const i32 *x, GLOBAL i32 *y) { y[GLOBAL_ID(0)] += 2 * x[GLOBAL_ID(0)]; }
"""
FILES = {"k.host": " ".join(KERNELS).encode(), "k.c": SOURCE}


@pytest.fixture(autouse=True)
def _nothing_ran() -> Iterator[None]:
    ran.clear()
    yield
    ran.clear()


def blueprint(
    *groups: tuple[str, ...], times: int = 1, files: Iterable[str] = tuple(FILES)
) -> bp.Blueprint:
    """For each group candidates that launch one of its kernels; each adds 2 * x to y."""
    b = bp.Blueprint(inputs=["x"], outputs=["y"], modules={"k": list(files)})
    y = b.buffer("y", like="x")
    with b.repeat(times):
        for names in groups:
            with b.candidates() as made:
                for name in names:
                    with made.alternative():
                        b.launch(name, [b.x, y], grid=1, block=64)
    return b


def function(b: bp.Blueprint, files: dict[str, bytes] = FILES) -> Function:
    main = b.json().encode()
    code = CodeObject("blueprint", digest_of(main), {n: digest_of(d) for n, d in files.items()})
    return Function(
        FunctionSpec("F", (SetSpec("x"),), (SetSpec("y"),), code=(code,)), code, main, files
    )


def call(wanted: Function, x: np.ndarray[tuple[int], np.dtype[np.int32]] = X) -> Call:
    sets = (ItemSet("x", (Item("i", 0, x.tobytes()),)),)
    return Call(0, wanted, sets, HeapDomain(1 << 20), FAR_NS)


def host(kept: Path | None = None, **fields: bool) -> SequentialEngine:
    device = HostDevice(KERNELS, POOL_BYTES, **fields)  # type: ignore[arg-type]  # functions
    device.measurements = Measurements("host", None if kept is None else CodeCache(kept))
    return SequentialEngine(device, POOL_BYTES)


def run(engine: SequentialEngine, wanted: Function) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    (out,) = engine.run(call(wanted))
    engine.clean_up()
    assert out is not None
    return np.frombuffer(bytes(out.items[0].data), np.int32)


def run_twice(engine: SequentialEngine, wanted: Function) -> None:
    """Run a call, whose time is then known, and one that measures before it."""
    for _ in range(2):
        run(engine, wanted)


# --- choosing -----------------------------------------------------------------------------------


@pytest.mark.parametrize("lazy", [False, True])
def test_the_fastest_is_chosen_for_each(lazy: bool) -> None:
    """With right results from the first call on."""
    engine = host(lazy=lazy, graphs=lazy)
    wanted = function(blueprint(("slow", "fast"), ("mid", "slow", "fast"), ("fast",)))
    for _ in range(3):
        ran_before = Counter(ran)
        assert (run(engine, wanted) == 6 * X).all()
    assert ran - ran_before == Counter({"fast": 3})
    engine.close()


def test_times_of_all_iterations_count() -> None:
    """One launch of 'mid' takes longer than one of 'fast', but two of those are no longer so."""
    engine = host()
    wanted = function(blueprint(("slow", "mid"), times=3))
    run_twice(engine, wanted)
    ran.clear()
    assert (run(engine, wanted) == 6 * X).all()
    assert ran == Counter({"mid": 3})
    engine.close()


def test_the_choice_is_kept_for_later_engines(tmp_path: Path) -> None:
    wanted = function(blueprint(("slow", "fast")))
    engine = host(tmp_path)
    run(engine, wanted)
    assert ran == Counter({"slow": 1}), "a first call is not measured"
    run(engine, wanted)
    engine.close()
    assert ran["slow"] == 1 + candidates.RUNS
    ran.clear()
    engine = host(tmp_path)
    assert (run(engine, wanted) == 2 * X).all()
    engine.close()
    assert ran == Counter({"fast": 1})


@pytest.mark.parametrize("kept", [b"[]", b'{"elsewhere": 0}', b'{"blueprint.control_flow[0]": 7}'])
def test_what_was_kept_is_checked(kept: bytes, tmp_path: Path) -> None:
    class Wrong(Measurements):
        def get(self, key: str) -> bytes | None:
            return kept

    engine = host()
    engine.device.measurements = Wrong()
    once = bp.Blueprint(inputs=["x"], outputs=["y"], modules={"k": list(FILES)})
    y = once.buffer("y", like="x")
    with once.candidates() as made:
        for name in ("slow", "fast"):
            with made.alternative():
                once.launch(name, [once.x, y], grid=1, block=64)
    run_twice(engine, function(once))
    assert ran["fast"] == candidates.RUNS + 1
    engine.close()


class Flaky(HostDevice):
    """Fails once at its n-th zeroing or restoring. Its modules have variables if `restores`."""

    left = -1
    restores = False

    def _count(self, what: str) -> None:
        self.left -= 1
        if self.left == -1:
            raise DeviceFault(self.name, what, "it was to fail")

    def _zero(self, offset_bytes: int, size_bytes: int) -> None:
        self._count("zero")
        super()._zero(offset_bytes, size_bytes)

    def _variables(self, module: Handle) -> Variables:
        return Variables.RESTORED if self.restores else Variables.NONE

    def _restore(self, module: Handle) -> None:
        self._count("restore")


@pytest.mark.parametrize("restores", [False, True])
@pytest.mark.parametrize("left", range(18))
def test_a_failure_to_clean_while_measuring(left: int, restores: bool) -> None:
    """The call that measures succeeds, or fails with what failed; the next one is right."""
    device = Flaky(KERNELS, POOL_BYTES)  # type: ignore[arg-type]  # functions
    device.restores = restores
    engine = SequentialEngine(device, POOL_BYTES)
    wanted = function(blueprint(("slow", "fast")))
    run(engine, wanted)
    device.left = left
    with contextlib.suppress(DeviceFault):
        assert (run(engine, wanted) == 2 * X).all()
    engine.clean_up()
    assert (run(engine, wanted) == 2 * X).all()
    assert engine.pool.is_clean
    engine.close()


@pytest.mark.parametrize("missing", [0, 1])
def test_an_alternative_that_does_not_run_here_is_not_chosen(missing: int) -> None:
    names = ["slow", "slow"]
    names[missing] = "absent"
    files = {"k.host": b"slow"}
    engine = host()
    wanted = function(blueprint(tuple(names), files=files), files)
    for _ in range(3):
        assert (run(engine, wanted) == 2 * X).all()
    engine.close()


class Refusing(HostDevice):
    """Refuses to launch a kernel, as a device does for which it needs too much."""

    def __init__(self, kernels: Mapping[str, Callable[..., None]]) -> None:
        super().__init__(kernels, POOL_BYTES)
        self.refuses_all = False
        self.refuses = True
        self._refused: list[Handle] = []

    def _prepare(
        self, module: Handle, symbol: str, launch: Launch, constants: Handle | None
    ) -> Handle:
        made = super()._prepare(module, symbol, launch, constants)
        self._refused += [made] if symbol == "broken" else []
        return made

    def _launch(self, prepared: Iterable[Handle]) -> None:
        works = list(prepared)
        refused = self.refuses and any(work in self._refused for work in works)
        if self.refuses_all or refused:
            raise DeviceFault(self.name, "launch", "too many resources requested for launch")
        super()._launch(works)


@pytest.mark.parametrize("most_steps", [0, candidates.MOST_STEPS])
@pytest.mark.parametrize("broken", [("broken", "fast"), ("fast", "broken"), ("broken", "broken")])
def test_an_alternative_that_cannot_be_launched_is_not_chosen(
    broken: tuple[str, str], most_steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by the first call either, before anything was measured, nor in plans that are not."""
    monkeypatch.setattr(candidates, "MOST_STEPS", most_steps)
    engine = SequentialEngine(Refusing({**KERNELS, "broken": _host("broken", 0)}), POOL_BYTES)  # type: ignore[dict-item]  # functions
    files = {"k.host": b"fast broken"}
    wanted = function(blueprint(broken, files=files), files)
    for _ in range(3):
        if "fast" in broken:
            assert (run(engine, wanted) == 2 * X).all()
            continue
        with pytest.raises(DeviceFault):
            engine.run(call(wanted))
    assert not ran["broken"]
    engine.close()


def test_long_plans_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "MOST_STEPS", 0)
    engine = host()
    engine.device.measurements = kept = Kept()
    for _ in range(3):
        assert (run(engine, function(blueprint(("mid", "fast"), times=3))) == 6 * X).all()
    assert ran == Counter({"mid": 9})
    assert not kept.texts
    monkeypatch.setattr(candidates, "MOST_STEPS", 1)  # a step counts once, however often it runs
    run_twice(engine, function(blueprint(("mid", "fast"), times=2)))
    assert ran["fast"]
    engine.close()


def test_a_failure_of_all_is_not_remembered() -> None:
    """The device may have been full, or used by others."""
    device = Refusing({**KERNELS, "broken": _host("broken", 0)})  # type: ignore[dict-item]  # functions
    engine = SequentialEngine(device, POOL_BYTES)
    files = {"k.host": b"broken"}
    wanted = function(blueprint(("broken", "broken"), files=files), files)
    for _ in range(2):
        with pytest.raises(DeviceFault, match="too many resources"):
            engine.run(call(wanted))
        engine.clean_up()
        engine.evict(wanted)  # its plans are made again
    device.refuses = False
    assert (run(engine, wanted) == 2 * X).all()
    engine.close()


def test_a_failure_after_calls_that_worked_changes_nothing() -> None:
    """It has another cause."""
    device = Refusing({**KERNELS, "long": _host("long", 0.06)})  # type: ignore[dict-item]  # functions
    engine = SequentialEngine(device, POOL_BYTES)
    files = {"k.host": b"long fast"}
    wanted = function(blueprint(("long", "fast"), files=files), files)
    run(engine, wanted)
    device.refuses_all = True
    with pytest.raises(DeviceFault):
        engine.run(limited(wanted, 0.2))  # no time for measuring
    device.refuses_all = False
    engine.clean_up()
    engine.run(limited(wanted, 0.2))
    assert ran == Counter({"long": 2})
    engine.close()


def test_without_one_that_runs_the_call_fails_and_the_next_works() -> None:
    engine = host()
    files = {"k.host": b"absent gone"}
    wanted = function(blueprint(("absent", "gone"), files=files), files)
    for _ in range(2):
        with pytest.raises((InvalidBlueprint, InvalidFunction)):
            engine.run(call(wanted))
    assert (run(engine, function(blueprint(("fast",)))) == 2 * X).all()
    engine.close()


def test_a_call_can_be_stopped_while_it_is_measured() -> None:
    engine = host()
    wanted = function(blueprint(("slow", "fast")))
    run(engine, wanted)
    with pytest.raises(Cancelled):
        engine.run(StoppedCall.like(call(wanted), 2))
    engine.clean_up()
    assert (run(engine, wanted) == 2 * X).all()
    engine.close()


def test_one_that_needs_more_memory_than_there_is() -> None:
    b = bp.Blueprint(inputs=["x"], outputs=["y"], modules={"k": list(FILES)})
    y, t = b.buffer("y", like="x"), b.buffer("t", POOL_BYTES * 2, temporary=True)
    with b.candidates() as made:
        with made.alternative():
            b.launch("slow", [b.x, y], grid=1, block=64)
        with made.alternative():
            b.zero(t)
            b.launch("fast", [b.x, y], grid=1, block=64)
    engine = host()
    run_twice(engine, function(b))
    assert not ran["fast"]
    engine.close()


def test_on_opencl() -> None:
    try:
        device = OpenClDevice()
        device.open()
    except BackendUnavailable as error:
        pytest.skip(str(error))
    engine = SequentialEngine(device, POOL_BYTES)
    wanted = function(blueprint(("slow", "fast")))
    for count in range(
        20
    ):  # nothing is measured before a call was quick, and the machine may be busy
        assert (run(engine, wanted) == 2 * X).all()
        (state,) = engine._chooser._states.values()
        if count and not state.is_open:
            break
    assert not state.is_open, "it was measured, whichever is faster here"
    engine.close()


def _advance(launch: Launch, x: Memory, y: Memory, at: Memory, more: Memory) -> None:
    """Add the next element of x; beyond the last one it fails, as a device does."""
    index = int(at[0])
    y.view(np.int32)[0] += x.view(np.int32)[index]
    at[0] = index + 1
    more.view(np.uint32)[0] = index + 1 < len(X)


def steps(most: int) -> bp.Blueprint:
    """A loop that ends by a word after the last element, with candidates in it."""
    b = bp.Blueprint(inputs=["x"], outputs=["y"], modules={"k": ["k.host"]})
    y, at, more = (b.buffer(name, size) for name, size in (("y", 4), ("at", 4), ("more", 4)))
    with b.repeat_while(more, at_most=most), b.candidates() as made:
        for name in ("advance", "advance_slowly"):
            with made.alternative():
                b.launch(name, [b.x, y, at, more])
    return b


def test_a_loop_is_measured_only_as_often_as_its_word_says() -> None:
    """Iterations after its end would find data that no call has; here they break the device."""
    kernels = {"advance": _advance, "advance_slowly": _advance}
    files = {"k.host": " ".join(kernels).encode()}
    for lazy in (False, True):
        engine = SequentialEngine(HostDevice(kernels, POOL_BYTES, lazy=lazy), POOL_BYTES)
        for _ in range(2):
            (out,) = engine.run(call(function(steps(3 * len(X)), files)))
            engine.clean_up()
            assert out is not None
            assert out.items[0].numpy(np.int32) == [X.sum()]
        engine.close()


def test_a_call_can_be_stopped_within_a_run() -> None:
    """Between the launches of a loop."""
    engine = host(lazy=True)
    wanted = function(blueprint(("slow", "mid"), times=40))
    run(engine, wanted)
    with pytest.raises(Cancelled):
        engine.run(StoppedCall.like(call(wanted), 5))
    assert 0 < ran["slow"] - 40 < 40
    engine.close()


def limited(wanted: Function, limit_s: float) -> Call:
    made = call(wanted)
    made.deadline_ns = time.monotonic_ns() + round(limit_s * 1e9)
    made.limit_s = limit_s
    return made


class Kept(Measurements):
    """Notes what is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[bytes] = []

    def put(self, key: str, data: bytes) -> None:
        self.texts.append(data)


@pytest.mark.parametrize("pause_s", [0.16, 0.08])
def test_measuring_leaves_time_for_the_call(
    pause_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that takes most of the limit is not repeated: neither in the first call nor later. One
    kernel cannot be stopped."""
    engine = SequentialEngine(
        HostDevice({"long": _host("long", pause_s), "fast": KERNELS["fast"]}, POOL_BYTES),  # type: ignore[dict-item]  # functions
        POOL_BYTES,
    )
    engine.device.measurements = kept = Kept()
    files = {"k.host": b"long fast"}
    wanted = function(blueprint(("long", "fast"), files=files), files)
    for count in (1, 2):
        (out,) = engine.run(limited(wanted, 0.3))
        engine.clean_up()
        assert out is not None
        assert ran == Counter({"long": count})
    assert not kept.texts
    monkeypatch.setattr(candidates, "RUNS", 1)
    run(engine, wanted)  # there is time
    assert ran["fast"] == 2
    assert len(kept.texts) == 1
    engine.close()


def test_an_alternative_that_takes_too_long_is_given_up() -> None:
    """In time for the call, and what is not known is not kept for later engines."""
    engine = host(lazy=True)
    engine.device.measurements = kept = Kept()
    b = bp.Blueprint(inputs=["x"], outputs=["y"], modules={"k": list(FILES)})
    y = b.buffer("y", like="x")
    with b.candidates() as made:
        with made.alternative():
            b.launch("mid", [b.x, y], grid=1, block=64)
        with made.alternative(), b.repeat(500):
            b.launch("slow", [b.x, y], grid=1, block=64)
    wanted = function(b)
    assert (run(engine, wanted) == 2 * X).all()
    for _ in range(2):
        (out,) = engine.run(limited(wanted, 0.2))
        engine.clean_up()
        assert out is not None
        assert (out.items[0].numpy(np.int32) == 2 * X).all()
    assert 0 < ran["slow"] < 40
    assert not kept.texts
    engine.close()


def test_long_alternatives_are_all_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that come first leave time for the others, instead of being run again."""
    monkeypatch.setattr(candidates, "LIMIT_S", 0.4)
    kernels = {"long": _host("long", 0.15), "fast": KERNELS["fast"]}
    engine = SequentialEngine(HostDevice(kernels, POOL_BYTES), POOL_BYTES)  # type: ignore[arg-type]  # functions
    engine.device.measurements = kept = Kept()
    files = {"k.host": b"long fast"}
    wanted = function(blueprint(("long", "fast"), files=files), files)
    run_twice(engine, wanted)
    assert ran == Counter({"long": 2, "fast": candidates.RUNS + 1})
    assert len(kept.texts) == 1
    engine.close()


def test_a_choice_is_not_kept_while_an_alternative_was_not_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A later engine may have the time."""
    monkeypatch.setattr(candidates, "LIMIT_S", 0.4)
    kernels = {n: _host(n, 0.15) for n in ("long", "longer")} | {"fast": KERNELS["fast"]}
    engine = SequentialEngine(HostDevice(kernels, POOL_BYTES), POOL_BYTES)  # type: ignore[arg-type]  # functions
    engine.device.measurements = kept = Kept()
    files = {"k.host": b"long longer fast"}
    run_twice(engine, function(blueprint(("long", "longer", "fast"), files=files), files))
    assert ran["fast"] == 0
    assert not kept.texts
    engine.close()


# --- the format ---------------------------------------------------------------------------------


def test_written_and_read() -> None:
    made = blueprint(("slow", "fast"), times=2).build()
    again = bp.parse_blueprint(bp.print_blueprint(made), FILES)
    assert again == made
    (repeat,) = made.blueprint.control_flow
    assert isinstance(repeat, bp.Repeat)
    assert isinstance(repeat.actions[0], Candidates)
    assert written_buffers(made) == {"x", "y"}, "nothing is declared of the kernels"
    assert not integers_read(made)
    plain = blueprint(("slow", "fast"), files=["k.c"]).build()
    with pytest.raises(InvalidInput, match="candidates"):
        bp.print_blueprint(plain, bp.Spelling.ORIGINAL)
    assert "the fastest of" in blueprint(("slow", "fast"))._repr_html_()


def test_kernels_that_may_be_missing_on_a_device() -> None:
    """Those that some alternatives launch, and nothing else does."""
    b = blueprint(("slow", "fast"), ("slow", "mid"))
    b.launch("fast", [b.x, b.x], grid=1)
    assert optional_kernels(b.build()) == {"slow", "mid"}
    assert optional_kernels(blueprint(("slow",)).build()) == set()


def test_a_binary_for_other_devices_can_be_registered() -> None:
    """As one of several alternatives, but not as the only one."""
    options, compiler = GpuOptions("cuda", {"cache": "off"}), RuntimeCompiler(CudaDevice.compiler())
    checker = CompilingChecker(options, CudaDevice, compiler)
    for names, is_refused in ((("slow", "other"), False), (("other",), True)):
        b = bp.Blueprint(
            inputs=["x"], outputs=["y"],
            modules={"k": ["k.c"], "m": [bp.Code("m.bin", backend="cuda", arch="sm_80")]},
        )  # fmt: skip
        b.kernel("slow", module="k")
        b.kernel("other", module="m", access=("read", "both"))
        y = b.buffer("y", like="x")
        with b.candidates() as made:
            for name in names:
                with made.alternative():
                    b.launch(name, [b.x, y], grid=1, block=64)
        wanted = function(b, {"k.c": SOURCE, "m.bin": b"\x7fELF"})
        if is_refused:
            with pytest.raises(InvalidBlueprint):
                checker.prepare(wanted, ("sm_90",))
        else:
            checker.prepare(wanted, ("sm_90",))


def test_plans_have_one_alternative() -> None:
    config = blueprint(("slow", "fast"), ("fast", "slow")).build()
    sizes = {"x": X.nbytes}
    first = plan(config, sizes, lambda name, index: 0)
    places = [group.where for group in first.groups]
    second = plan(config, sizes, lambda name, index: 0, choices={places[0]: 1})
    kernels = [[getattr(s, "kernel", "") for s in one.steps] for one in (first, second)]
    assert kernels == [["slow", "fast"], ["fast", "fast"]]
    assert [(g.count, g.first, g.end) for g in first.groups] == [(2, 0, 1), (2, 1, 2)]


@pytest.mark.parametrize(
    ("alternatives", "code"),
    [
        ([], "out-of-range"),
        ([[{"ZeroBuffer": "y"}]] * 17, "out-of-range"),
        ([[]], "empty"),
        ([[{"Candidates": [[{"ZeroBuffer": "y"}]]}]], "depth"),
        ([[{"Repeat": [2, [{"Candidates": [[{"ZeroBuffer": "y"}]]}]]}]], "depth"),
        ([[{"ZeroBuffer": "z"}]], "unknown-buffer"),
        ([{"ZeroBuffer": "y"}], "type"),
        ({}, "type"),
    ],
)
def test_wrong_candidates_are_refused(alternatives: object, code: str) -> None:
    document = blueprint(("slow",)).build()
    text = bp.print_blueprint(document)
    written = json.loads(text)
    written["blueprint"]["control_flow"] = [{"Candidates": alternatives}]
    with pytest.raises(InvalidBlueprint) as caught:
        bp.parse_blueprint(json.dumps(written).encode(), FILES)
    assert code in {problem.code for problem in caught.value.problems}
