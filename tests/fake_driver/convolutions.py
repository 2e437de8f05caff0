"""FIXTURE. Scenarios of convolutions in a library on a fake or real device; see `scenarios`."""

from __future__ import annotations

import contextlib
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from dandelion.backends.gpu import cudnn_binding, timed_library
from dandelion.backends.gpu.compiling import CodeCache
from dandelion.backends.gpu.cudnn_binding import load
from dandelion.backends.gpu.miopen_binding import load as load_miopen

import dandelion.blueprint as bp
from dandelion.blueprint.operation_calls import ConvolutionCall
from dandelion.errors import DeviceFault
from tests.fake_driver.fake import Fake, Runner, function, numbers
from tests.fake_driver.operations import CALLS, Case, is_in_library, runner_of
from tests.fake_driver.scenarios import expect

GEMM, INEXACT, SLOW, FAST, RANDOM, TF32 = (
    0,
    2,
    3,
    4,
    5,
    7,
)  # engines of ``cudnn.c``, solutions of ``miopen.c``


def _case(
    *, groups: int = 1, layout: str = "nchw", padding: Any = 1, stride: Any = 1, dilation: Any = 1,
    kernel: int = 3, followed: bool = True, offset: int = 16, **fields: Any,
) -> Case:  # fmt: skip
    batch, channels, filters, size = 2, 4, 6, (9, 7)
    pads, strides, steps = (
        one if isinstance(one, tuple) else (one, one) for one in (padding, stride, dilation)
    )
    made = batch * filters
    for at in range(2):
        made *= (size[at] + 2 * pads[at] - steps[at] * (kernel - 1) - 1) // strides[at] + 1
    operands = {"x": 8 + batch * channels * 63, "w": filters * channels // groups * kernel**2}
    if followed:
        operands |= {"v": filters + 8, "r": made}
        fields |= {"addend": "r", "bias": lambda made: bp.part(made["v"], 16)}
    return Case(
        operands, made, image=lambda made: bp.part(made["x"], offset), weight="w", batch=batch,
        channels=channels, size=size, filters=filters, kernel=kernel, padding=pads, stride=strides,
        dilation=steps, groups=groups, layout=layout, **fields,
    )  # fmt: skip


def _check_in_library(fake: Fake, case: Case, runner: Any) -> None:
    """Check a case that the library of convolutions must carry out."""
    before = fake.convolutions.fake_dnn_launched() if fake.convolutions else 0
    case.check(runner)
    assert is_in_library(runner, ConvolutionCall)
    if fake.convolutions:
        assert fake.convolutions.fake_dnn_launched() > before, "a template did it"


def convolutions_are_right(fake: Fake) -> None:
    """In each layout and type, with what may follow."""
    runner = runner_of(fake)
    activations = ("relu",) if fake.kind == "hip" else ("none", "relu", "gelu_tanh")
    for layout in ("nchw", "nhwc"):
        for dtype in ("f32", "f16", "bf16"):
            for activation in activations:
                case = _case(layout=layout, dtype=dtype, activation=activation)
                _check_in_library(fake, case, runner)
            _check_in_library(fake, _case(layout=layout, dtype=dtype, followed=False), runner)
    runner.close()
    fake.nothing_left()


def operands_may_begin_anywhere(fake: Fake) -> None:
    """cuDNN is told how they are aligned; MIOpen is not asked for those it could not load."""
    runner = runner_of(fake)
    for dtype, offset in (("f32", 8), ("f32", 4), ("f16", 2)):
        _case(dtype=dtype, offset=offset, layout="nhwc").check(runner)
    if fake.convolutions is not None:
        assert bool(fake.convolutions.fake_dnn_launched()) is (fake.kind == "cuda")
    runner.close()
    fake.nothing_left()


def shapes_of_convolutions_are_right(fake: Fake) -> None:
    """Groups, depthwise, strides, padding and dilation that differ by direction, 1 x 1."""
    runner = runner_of(fake)
    for layout in ("nchw", "nhwc"):
        for fields in (
            {"groups": 2}, {"groups": 2, "followed": False}, {"stride": (2, 1), "padding": (0, 2)},
            {"dilation": (1, 2), "padding": 2}, {"kernel": 1, "padding": 0},
        ):  # fmt: skip
            given: dict[str, Any] = {"layout": layout, **fields}
            _check_in_library(fake, _case(**given), runner)
    runner.close()
    fake.nothing_left()


def dilation_with_groups_is_right(fake: Fake) -> None:
    """MIOpen is not asked for it: its documentation says that it has none."""
    runner = runner_of(fake)
    _case(groups=2, dilation=2, padding=2).check(runner)
    if fake.convolutions is not None:
        assert bool(fake.convolutions.fake_dnn_launched()) is (fake.kind == "cuda")
    runner.close()
    fake.nothing_left()


def doubles_are_left_to_others(fake: Fake) -> None:
    runner = runner_of(fake)
    _case(dtype="f64", activation="relu").check(runner)
    assert fake.convolutions is None or not fake.convolutions.fake_dnn_launched()
    runner.close()
    fake.nothing_left()


def sums_in_place_are_left_to_others(fake: Fake) -> None:
    """Where the addend is the result, the library may overwrite it before it is read."""
    made = bp.Blueprint(inputs=["x", "w", "y"], outputs=["y"])
    size = {"batch": 1, "channels": 1, "filters": 1, "kernel": 1}
    made.convolution(made.x, made.w, made.y, addend=made.y, size=(4, 4), **size)
    runner = runner_of(fake)
    x, w, y = np.arange(16, dtype=np.float32), np.full(1, 2, np.float32), np.ones(16, np.float32)
    for _ in range(CALLS):
        sets = (runner.one("x", x), runner.one("w", w), runner.one("y", y))
        found = numbers(runner.run(function(made, {}), *sets), np.float32)
        assert (found == 2 * x + 1).all()
    assert fake.convolutions is None or not fake.convolutions.fake_dnn_launched()
    runner.close()
    fake.nothing_left()


def convolution_weights_stay_protected(fake: Fake) -> None:
    runner = runner_of(fake)
    case = Case(
        {"x": 64 * 16, "w": 64 * 64 * 9}, 64 * 16, ("w",), image="x", weight="w", batch=1,
        channels=64, size=(4, 4), filters=64, kernel=3, padding=1, layout="nhwc",
    )  # fmt: skip
    _check_in_library(fake, case, runner)
    if fake.counts:
        assert fake.live()["mapped"] == 1, "they are resident"
    runner.close()
    fake.nothing_left()


# --- the choice of an engine ------------------------------------------------------------------


def the_fastest_engine_is_chosen_once(fake: Fake) -> None:
    """Engines are timed, once for a device: the answer is kept beside compiled code."""
    case = _case(layout="nhwc")
    counts = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(2):
            fake.convolutions.fake_dnn_reset()
            runner = Runner(fake, cache=CodeCache(Path(folder)))
            case.check(runner)
            counts.append(fake.convolutions.fake_dnn_launched())
            assert fake.convolutions.fake_dnn_engine() == FAST
            runner.close()
            fake.nothing_left()
    assert counts[1] == 3, "launched, captured, and launched to be compared with its graph"
    assert counts[0] > counts[1] + 2, "there were trials"


def engines_are_as_exact_as_the_operation(fake: Fake) -> None:
    """No tensor cores or other roundings for products of f32, and never an engine that differs from
    run to run."""
    for compute, allowed in (("f32", False), ("tf32", True), ("bf16", True)):
        fake.convolutions.fake_dnn_reset()
        with tempfile.TemporaryDirectory() as folder:
            runner = Runner(fake, cache=CodeCache(Path(folder)))
            _case(compute=compute).check(runner)
            runner.close()
        tried = fake.convolutions.fake_dnn_engines()
        assert bool(tried & 1 << INEXACT) is allowed, (compute, tried)
        assert bool(tried & 1 << TF32) is (allowed and fake.kind == "hip")
        assert not tried & (1 << RANDOM | 1 << GEMM)
    fake.nothing_left()


def exact_engines_are_found_behind_many_others(fake: Fake) -> None:
    """As cuDNN proposes them: first all that use tensor cores."""
    if fake.kind == "hip":
        return
    fake.convolutions.fake_dnn_propose_inexact(40)
    runner = Runner(fake)
    _check_in_library(fake, _case(), runner)
    assert not fake.convolutions.fake_dnn_engines() & 1 << INEXACT
    runner.close()
    fake.nothing_left()


def without_room_for_trials_the_first_engine_is_taken(fake: Fake) -> None:
    fake.library.fake_set_memory(3 << 20)  # the pool takes nearly all of it
    with tempfile.TemporaryDirectory() as folder:
        runner = Runner(fake, pool_bytes=3 << 20, cache=CodeCache(Path(folder)))
        _case().check(runner)
        assert fake.convolutions.fake_dnn_engine() == SLOW
        assert not list(Path(folder).glob("*.measured")), "nothing was measured"
        runner.close()
    fake.nothing_left()


def without_time_for_trials_the_first_engine_is_taken(fake: Fake) -> None:
    """Measuring takes no more than half of a call's time."""
    with tempfile.TemporaryDirectory() as folder:
        runner = Runner(fake, cache=CodeCache(Path(folder)))
        device: Any = runner.engine.device
        device.trials_until = time.monotonic()
        case = _case(followed=False)
        assert device.lowering().library.workspace_bytes(case.operation()) is not None
        assert not fake.convolutions.fake_dnn_launched(), "it was not timed"
        case.check(runner)
        assert fake.convolutions.fake_dnn_engine() == SLOW
        assert not list(Path(folder).glob("*.measured"))
        assert 25 < device.trials_until - time.monotonic() <= 30, "half of the limit of that call"
        runner.close()
    fake.nothing_left()


def what_the_library_does_not_fuse_is_done_after_it(fake: Fake) -> None:
    fake.convolutions.fake_dnn_know_epilogues(0)
    runner = runner_of(fake)
    for layout in ("nchw", "nhwc"):
        for fields in ({}, {"groups": 2}):
            case = _case(layout=layout, activation="relu", **fields)
            _check_in_library(fake, case, runner)
    runner.close()
    fake.nothing_left()


# --- faults of the library ----------------------------------------------------------------------


def without_a_library_of_convolutions_others_do_it(fake: Fake) -> None:
    fake.convolutions.fake_dnn_fail(0)  # to make its handle
    runner = runner_of(fake)
    for fields in ({}, {"groups": 2}, {"layout": "nhwc"}):
        _case(**fields).check(runner)
    assert not is_in_library(runner, ConvolutionCall)
    runner.close()
    fake.nothing_left()


def each_failure_in_convolutions_ends_one_call(fake: Fake) -> None:
    """Whichever of its functions fails: a typed error or a right result, and nothing is left."""
    case = _case(followed=False)
    with tempfile.TemporaryDirectory() as folder:
        cache = CodeCache(Path(folder))
        runner = Runner(fake, cache=cache)
        case.check(runner)  # now the engine is known, and later ones are not timed
        runner.close()
        fake.reset()
        runner = Runner(fake, cache=cache)
        case.check(runner)
        total = fake.convolutions.fake_dnn_calls()
        runner.close()
        messages: list[str] = []
        for number in range(total):
            fake.reset()
            runner = Runner(fake, cache=cache)
            fake.convolutions.fake_dnn_fail(number)
            try:
                case.check(runner)
            except DeviceFault as error:
                messages.append(str(error))
            fake.convolutions.fake_dnn_fail(-1)
            case.check(runner)
            runner.close()
            fake.nothing_left()
    assert messages
    shown = {"cuda": "CUDNN_STATUS_INTERNAL_ERROR: on demand", "hip": "miopenStatusInternalError"}
    assert all(shown[fake.kind] in text for text in messages), messages


def failures_in_trials_cost_no_call(fake: Fake) -> None:
    """An engine that fails while it is timed is not chosen; the driver may fail there too."""
    case = _case(layout="nhwc")
    for number in range(0, 200, 37):
        fake.reset()
        with tempfile.TemporaryDirectory() as folder:
            runner = Runner(fake, cache=CodeCache(Path(folder)))
            fake.convolutions.fake_dnn_fail(90 + number)
            with contextlib.suppress(DeviceFault):
                case.check(runner)
            fake.convolutions.fake_dnn_fail(-1)
            case.check(runner)
            runner.close()
            fake.nothing_left()


def dropped_plans_release_their_convolutions(fake: Fake) -> None:
    runner = runner_of(fake)
    case = _case()
    case.check(runner)
    alive = fake.convolutions.fake_dnn_live(1)
    runner.engine.forget(case.function)
    packs = 1 if fake.kind == "cuda" else 0  # MIOpen takes addresses without one
    assert fake.convolutions.fake_dnn_live(1) == alive - packs
    case.check(runner)
    runner.close()
    fake.nothing_left()


def shapes_beyond_the_bound_are_right(fake: Fake) -> None:
    """Handles of ways are kept while they are used, and dropped ways are chosen as before."""
    bound = timed_library._KNOWN
    runner = runner_of(fake)
    cases = [_case(padding=padding) for padding in range(1, 5)]
    try:
        timed_library._KNOWN = 2
        for case in cases:
            case.check(runner)
        for case in cases:
            runner.engine.forget(case.function)
            case.check(runner)
    finally:
        timed_library._KNOWN = bound
    runner.close()
    fake.nothing_left()


def dropped_ways_are_chosen_again(fake: Fake) -> None:
    """The memory of a plan that was made before is that of the way which was chosen then."""
    bound = timed_library._KNOWN
    case = _case(followed=False)
    with tempfile.TemporaryDirectory() as folder:
        runner = Runner(fake, cache=CodeCache(Path(folder)))
        device: Any = runner.engine.device
        library = device.lowering().library
        try:
            timed_library._KNOWN = 1
            device.trials_until = time.monotonic()  # so the first way is taken
            needed = library.workspace_bytes(case.operation())
            assert needed
            library.workspace_bytes(_case(followed=False, padding=2).operation())
            case.check(runner)
            assert fake.convolutions.fake_dnn_engine() == SLOW
        finally:
            timed_library._KNOWN = bound
        places = dict.fromkeys(("image", "weight", "out"), 0)
        expect(DeviceFault, lambda: library.prepare(case.operation(), places, (0, needed - 1)))
        runner.close()
    fake.nothing_left()


def miopen_is_loaded_where_it_is(fake: Fake) -> None:
    found = load_miopen()
    assert found is not None
    assert found.version == 3_005_001
    assert load_miopen([Path("/nowhere")]) is not None, "the loader has it already"


def cudnn_is_not_loaded_without_what_it_needs(fake: Fake) -> None:
    """It would end the process."""
    assert load(13000) is not None
    assert load(12080) is None, "it is for a newer driver"
    needed = cudnn_binding._NEEDED
    try:
        cudnn_binding._NEEDED = (*needed, "libmissing.so")
        assert load(13000) is None
    finally:
        cudnn_binding._NEEDED = needed


ON_REAL_DEVICES = (
    convolutions_are_right,
    shapes_of_convolutions_are_right,
    sums_in_place_are_left_to_others,
    doubles_are_left_to_others,
    convolution_weights_stay_protected,
    operands_may_begin_anywhere,
    dilation_with_groups_is_right,
)
