"""FIXTURE. Scenarios of library operations on a fake or real device; see `scenarios`.

The expected results are those of `dandelion.backends.gpu.reference_library`.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt
from dandelion.backends.gpu.hipblaslt_binding import load as load_hipblaslt
from dandelion.backends.gpu.reference_library import STORED, compute, narrowed

import dandelion.blueprint as bp
from dandelion.blueprint.operation_calls import (
    GemmCall,
    OperationCall,
    evaluated,
    operand_calls,
)
from dandelion.blueprint.operation_records import Conv2d, Gemm
from dandelion.errors import DeviceFault, InvalidBlueprint, InvalidInput
from dandelion.function import Function
from tests.fake_driver.fake import Fake, Runner, function, numbers
from tests.fake_driver.scenarios import SHARED_FILES, expect

TOLERANCES = {"f64": 1e-12, "f32": 2e-5, "f16": 2e-3, "bf16": 1.6e-2}
ROUNDED = {"tf32": 2e-3, "f16": 2e-3, "bf16": 1.6e-2}
CALLS = 3  # the first is launched, the second captured and replayed, the third replayed


class Case:
    """A function of one operation, with random inputs.

    Args:
        operands: numbers of elements of the input buffers, by name.
        length: number of elements of the result.
        static: names of the inputs that are constants of the function.
        fields: of `Blueprint.gemm`, or of `Blueprint.convolution` if there is an ``image``;
            operands are names or functions of the blueprint.
    """

    def __init__(
        self, operands: dict[str, int], length: int, static: tuple[str, ...] = (), **fields: Any
    ) -> None:
        self.dtype = bp.ElementType(fields.get("dtype", "f32"))
        self.compute = fields.get("compute", "")
        random = np.random.default_rng(len(operands) + length)
        self.data = {
            name: narrowed(random.standard_normal(count), self.dtype)
            for name, count in operands.items()
        }
        varying = [name for name in operands if name not in static]
        made = bp.Blueprint(inputs=varying, weights=static, outputs=["y"])
        y = made.buffer("y", length * self.dtype.size_bytes)
        given = {k: v(made) if callable(v) else v for k, v in fields.items()}
        names = ("a", "b", "c", "bias", "image", "weight", "addend")
        given = {k: made[v] if k in names and isinstance(v, str) else v for k, v in given.items()}
        add = made.convolution if "image" in fields else made.gemm
        add(out=given.pop("out", y), **given)
        self.varying = varying
        self.config = made.build()
        fixed = {name: self.data[name].tobytes() for name in static}
        self.function: Function = function(made, {}, static=fixed)

    def operation(self) -> OperationCall:
        """The operation with its sizes, which are all constants."""
        action = self.config.blueprint.control_flow[0]
        assert isinstance(action, Gemm | Conv2d)
        return evaluated(action, lambda field, size, low, high: size.value)  # type: ignore[union-attr]  # all are constants

    def expected(self) -> npt.NDArray[Any]:
        """What the reference gives."""
        call = self.operation()
        size = self.config.blueprint.buffers["y"].value  # type: ignore[union-attr]  # a constant
        arrays = {
            **self.data,
            "y": np.zeros(size // self.dtype.size_bytes, STORED[self.dtype]),
        }
        parts = {}
        for name, operand in operand_calls(call):
            at = operand.offset_bytes // self.dtype.size_bytes
            parts[name] = arrays[operand.buffer][at : at + operand.elements]
        compute(call, parts)
        return arrays["y"].astype(np.float64)

    def check(self, runner: Runner) -> None:
        """Call it some times; all results must be right."""
        wanted = self.expected()
        names = (*self.varying, *self.config.blueprint.weights)
        for _ in range(CALLS):
            inputs = [runner.one(name, self.data[name]) for name in names]
            made = runner.run(self.function, *inputs)[0]
            assert made is not None
            found = made.numpy(STORED[self.dtype]).astype(np.float64)
            error = np.abs(found - wanted).max() / max(1.0, np.abs(wanted).max())
            bound = ROUNDED.get(self.compute, TOLERANCES[self.dtype.value])
            assert error < bound, f"error {error}, allowed {bound}"


def _plain(**fields: Any) -> Case:
    return Case({"a": 35 * 24, "b": 24 * 17}, 35 * 17, a="a", b="b", m=35, n=17, k=24, **fields)


def runner_of(fake: Fake) -> Runner:
    """An engine with room for what a library needs."""
    return Runner(fake, pool_bytes=(1 if fake.counts else 128) << 20)


def is_in_library(runner: Runner, kind: type[OperationCall] = GemmCall) -> bool:
    """Tell whether operations of a kind are carried out by a library, if there is one."""
    if runner.engine.device.backend == "hip" and load_hipblaslt() is None:
        return True  # HIP over NVIDIA's driver
    libraries: Any = runner.engine.device.lowering().library
    return kind not in libraries.parts or bool(libraries.parts[kind].is_present)


def _check_in_library(fake: Fake, case: Case, runner: Runner) -> None:
    """Check a case that the library must carry out."""
    before = fake.operations.fake_lt_launched() if fake.operations else 0
    case.check(runner)
    assert is_in_library(runner)
    if fake.operations:
        assert fake.operations.fake_lt_launched() > before, "a template did it"


def _compute(fake: Fake) -> int:
    return int(fake.operations.fake_lt_compute()) if fake.operations else 0


# --- products -------------------------------------------------------------------------------


def products_are_right_in_each_type(fake: Fake) -> None:
    runner = runner_of(fake)
    for dtype in TOLERANCES:
        _check_in_library(fake, _plain(dtype=dtype), runner)
    runner.close()
    fake.nothing_left()


def products_are_computed_as_they_say(fake: Fake) -> None:
    runner = runner_of(fake)
    known = {"f32": 68, "tf32": 77, "bf16": 75, "f16": 74, "f64": 70}
    if fake.kind == "hip":
        known = {"f32": 2, "tf32": 2, "bf16": 5, "f16": 4, "f64": 7}
    for name in ("f32", "tf32", "bf16", "f16"):
        _check_in_library(fake, _plain(compute=name), runner)
        assert _compute(fake) in (0, known[name]), name
    _plain(dtype="f64").check(runner)
    assert _compute(fake) in (0, known["f64"])
    runner.close()


def layouts_are_right(fake: Fake) -> None:
    runner = runner_of(fake)
    for a_is_transposed in (False, True):
        for b_is_transposed in (False, True):
            columns_a, columns_b = (7, 9) if a_is_transposed else (9, 7), (5, 9)
            lda = columns_a[0] + 3
            ldb = (columns_b[1] if b_is_transposed else columns_b[0]) + 2

            def a(made: bp.Blueprint, ld: int = lda, flag: bool = a_is_transposed) -> bp.Matrix:
                return bp.matrix(made["a"], offset=16, transposed=flag, ld=ld, batch_stride=128)

            def b(made: bp.Blueprint, ld: int = ldb, flag: bool = b_is_transposed) -> bp.Matrix:
                return bp.matrix(made["b"], transposed=flag, ld=ld, batch_stride=0)

            def out(made: bp.Blueprint) -> bp.Matrix:
                return bp.matrix(made["y"], offset=8, ld=6, batch_stride=60)

            case = Case({"a": 400, "b": 120}, 200, a=a, b=b, out=out, m=7, n=5, k=9, batch=3)
            _check_in_library(fake, case, runner)
    runner.close()
    fake.nothing_left()


def epilogues_are_right(fake: Fake) -> None:
    runner = runner_of(fake)
    for activation in ("none", "relu", "gelu_tanh"):
        case = Case(
            {"a": 12 * 8, "b": 8 * 6, "c": 12 * 6, "v": 12}, 12 * 6, a="a", b="b", c="c",
            bias=lambda made: bp.part(made["v"], 8), m=12, n=6, k=8, alpha=0.5, beta=-2.0,
            activation=activation,
        )  # fmt: skip
        _check_in_library(fake, case, runner)
    runner.close()


def what_the_library_lacks_is_done_after_it(fake: Fake) -> None:
    """A bias of each row."""
    runner = runner_of(fake)
    case = Case(
        {"a": 12 * 8, "b": 8 * 6, "v": 12}, 12 * 6, a="a", b="b", bias="v", bias_axis="rows", m=12,
        n=6, k=8, activation="relu",
    )  # fmt: skip
    _check_in_library(fake, case, runner)
    runner.close()
    fake.nothing_left()


def constants_stay_protected(fake: Fake) -> None:
    """The weights of a product are read where they are kept, closed to writing."""
    runner = runner_of(fake)
    Case({"x": 4 * 512, "w": 512 * 64}, 4 * 64, ("w",), a="x", b="w", m=4, n=64, k=512).check(
        runner
    )
    if fake.counts:
        assert fake.live()["mapped"] == 1, "they are resident"
    runner.close()
    fake.nothing_left()


def _branches() -> tuple[Function, npt.NDArray[Any]]:
    """Three products of one matrix, and a last one of two of them."""
    size = 16
    x = np.random.default_rng(3).standard_normal((size, size)).astype(np.float32)
    made = bp.Blueprint(inputs=["x"], outputs=["y"])
    names = ["q", "k", "v"]
    shape = {"m": size, "n": size, "k": size}
    for name in names:
        made.buffer(name, like="x", temporary=True)
        made.gemm(made.x, bp.matrix(made.x, transposed=name == "k"), made[name], **shape)
    y = made.buffer("y", like="x")
    made.gemm(made.q, made.k, y, c=made.v, **shape)
    return function(made, {}), x


def branches_do_not_share_a_workspace(fake: Fake) -> None:
    """Products that do not depend on each other are captured side by side."""
    runner = runner_of(fake)
    wanted, x = _branches()
    expected = (x @ x) @ (x @ x.T) + x @ x
    for _ in range(CALLS):
        found = numbers(runner.run(wanted, runner.one("x", x)), np.float32)
        assert np.abs(found.reshape(x.shape) - expected).max() < 1e-3
    if fake.counts:
        nodes, _, roots, path = fake.graph()
        assert (nodes, roots, path) == (4, 3, 2), fake.graph()
    runner.close()
    fake.nothing_left()


# --- faults of the library ------------------------------------------------------------------


def without_a_library_templates_do_it(fake: Fake) -> None:
    fake.operations.fake_lt_fail(0)  # to make its handle
    runner = runner_of(fake)
    _plain().check(runner)
    assert not is_in_library(runner)
    runner.close()
    fake.nothing_left()


def too_little_workspace_is_no_algorithm(fake: Fake) -> None:
    fake.operations.fake_lt_need(64 << 20)
    runner = runner_of(fake)
    _plain().check(runner)
    runner.close()
    fake.nothing_left()


def each_failure_of_the_library_ends_one_call(fake: Fake) -> None:
    """Whichever of its functions fails: a typed error or a right result, and nothing is left."""
    case = _plain(bias=None, activation="relu")
    runner = runner_of(fake)
    case.check(runner)
    total = fake.operations.fake_lt_calls()
    runner.close()
    messages: list[str] = []
    for number in range(total):
        fake.reset()
        runner = runner_of(fake)
        fake.operations.fake_lt_fail(number)
        try:
            case.check(runner)
        except DeviceFault as error:
            messages.append(str(error))
        fake.operations.fake_lt_fail(-1)
        case.check(runner)
        runner.close()
        fake.nothing_left()
    assert messages
    assert all("BLAS_STATUS_INTERNAL_ERROR" in text for text in messages), messages


def dropped_plans_release_their_products(fake: Fake) -> None:
    runner = runner_of(fake)
    case = _plain()
    case.check(runner)
    assert fake.operations.fake_lt_live(1) == 1
    runner.engine.forget(case.function)
    assert fake.operations.fake_lt_live(1) == 0
    runner.close()


def calls_that_cannot_be_launched_release_their_products(fake: Fake) -> None:
    made = bp.Blueprint(inputs=["a", "b"], outputs=["y"], modules={"k": "k.c"})
    y = made.buffer("y", 35 * 17 * 4)
    made.gemm(out=y, a=made.a, b=made.b, m=35, n=17, k=24)
    made.launch("shared", [y], block=64, shared_mem_bytes=1 << 20)
    wanted = function(made, SHARED_FILES)
    inputs = {"a": bytes(35 * 24 * 4), "b": bytes(24 * 17 * 4)}
    runner = runner_of(fake)
    for _ in range(3):
        expect(
            InvalidBlueprint,
            lambda: runner.run(wanted, *(runner.one(n, data) for n, data in inputs.items())),
        )
    if fake.operations:
        assert [fake.operations.fake_lt_live(kind) for kind in range(1, 4)] == [0, 0, 0]
    runner.close()
    fake.nothing_left()


def a_library_that_is_not_installed_is_not_missed(fake: Fake) -> None:
    from dandelion.backends.gpu.cublaslt_binding import load, status_text

    assert load(11080) is None, "no version of the interface is so old"
    assert load(13000, []) is not None, "the loader has it already"
    assert status_text(13) == "CUBLAS_STATUS_EXECUTION_FAILED"
    home = os.environ["CUDA_HOME"]
    os.environ["CUDA_HOME"] = "relative"
    try:
        assert load(13000) is not None
    finally:
        os.environ["CUDA_HOME"] = home


def impossible_operations_are_refused(fake: Fake) -> None:
    """Sizes that only a call shows: a typed error that names the field, and the next call works."""
    made = bp.Blueprint(inputs=["cfg", "a", "b"], outputs=["y"])
    y = made.buffer("y", 4 * 64)
    made.gemm(made.a, made.b, y, m=made.cfg[0], n=8, k=made.cfg[1])
    wanted = function(made, {})
    runner = runner_of(fake)
    a, b = np.ones(128, np.float32), np.ones(64, np.float32)

    def call(m: int, k: int) -> npt.NDArray[Any]:
        cfg = np.array([m, k], np.int64)
        sets = (runner.one("cfg", cfg), runner.one("a", a), runner.one("b", b))
        found = runner.run(wanted, *sets)[0]
        assert found is not None
        return found.numpy(np.float32).copy()

    hostile = {(9, 8): "out", (8, 9): "b", (0, 8): "m", (-1, 8): "m", (2**62, 8): "m"}
    for (m, k), field in hostile.items():
        error = expect(InvalidInput, lambda m=m, k=k: call(m, k))
        assert f"control_flow[0].{field}:" in str(error), error
        assert (call(8, 8)[:64] == 8).all()
    runner.close()
    fake.nothing_left()


ON_REAL_DEVICES = (
    products_are_right_in_each_type,
    products_are_computed_as_they_say,
    layouts_are_right,
    epilogues_are_right,
    what_the_library_lacks_is_done_after_it,
    constants_stay_protected,
    branches_do_not_share_a_workspace,
    impossible_operations_are_refused,
)
