"""Arguments of Triton kernels, and the export without Triton: none of this imports it."""

from __future__ import annotations

import subprocess
import sys
import types
from typing import Any

import pytest

import dandelion
import dandelion.blueprint as bp
from dandelion.blueprint import Ptr, Scalar, ScalarType
from dandelion.data import SetSpec
from dandelion.errors import BackendUnavailable, InvalidInput
from dandelion.export import Pointer
from dandelion.export.targets import target_named
from dandelion.export.triton_arguments import KernelArguments, factor_of, kernel_arguments
from dandelion.export.triton_binding import Parameter

SETS = {"x": SetSpec("x", "float16"), "raw": SetSpec("raw"), "c": SetSpec("c", "complex64")}
X = bp.Buffer("x")


def parameter(name: str = "p", kind: str = "", **more: Any) -> Parameter:
    given = {"constant": False, "has_default": False, "default": None}
    given |= {"specialize": True, "align": True}
    return Parameter(name, type=kind, **{**given, **more})


def bound(value: Any, kind: str = "", **more: Any) -> KernelArguments:
    return kernel_arguments([parameter("p", kind, **more)], {"p": value}, {}, SETS, ["work"])


@pytest.mark.parametrize(
    ("value", "declared", "kind", "passed", "aligned"),
    [
        ("x", "", "*fp16", Ptr("x"), True),
        (X, "", "*fp16", Ptr("x"), True),
        (Pointer("raw", "bf16"), "", "*bf16", Ptr("raw"), True),
        ("raw", "*fp32", "*fp32", Ptr("raw"), True),
        (Pointer("work", "i32"), "", "*i32", Ptr("work"), True),
        (5, "", "i32", Scalar(ScalarType.I32, 5), False),
        (0, "", "i32", Scalar(ScalarType.I32, 0), True),
        (32, "", "i32", Scalar(ScalarType.I32, 32), True),
        (-48, "", "i32", Scalar(ScalarType.I32, -48), True),
        (2**31, "", "i64", Scalar(ScalarType.I64, 2**31), True),
        (1, "i64", "i64", Scalar(ScalarType.I64, 1), False),
        (7, "u8", "u8", Scalar(ScalarType.U8, 7), False),
        (7, "fp32", "fp32", Scalar(ScalarType.F32, 7.0), False),
        (0.5, "", "fp32", Scalar(ScalarType.F32, 0.5), False),
        (0.5, "fp64", "fp64", Scalar(ScalarType.F64, 0.5), False),
        (True, "", "i1", Scalar(ScalarType.U8, 1), False),
        (bp.scalar("u16", 3), "", "u16", Scalar(ScalarType.U16, 3), False),
        (X[0], "", "i32", Scalar(ScalarType.I32, X[0].size), False),
        (X[0] * 16, "", "i32", Scalar(ScalarType.I32, (X[0] * 16).size), True),
        (X[0] * 16, "i64", "i64", Scalar(ScalarType.I64, (X[0] * 16).size), True),
    ],
)
def test_types_follow_from_values(
    value: Any, declared: str, kind: str, passed: object, aligned: bool
) -> None:
    found = bound(value, declared)
    assert found.signature == {"p": kind}
    assert found.passed == {"p": passed}
    assert found.aligned == (("p",) if aligned else ())
    assert not found.constants


def test_one_is_compiled_in_unless_the_kernel_forbids_it() -> None:
    assert bound(1).constants == {"p": 1}
    assert bound(1).signature == {"p": "constexpr"}
    assert not bound(1).passed
    assert bound(1, specialize=False, align=False).passed == {"p": Scalar(ScalarType.I32, 1)}
    assert bound(32, align=False).aligned == ()


class TensorDescriptor:
    """Stands for Triton's class of that name."""


@pytest.mark.parametrize(
    ("value", "declared", "words"),
    [
        ("y", "", "no set 'y'"),
        ("raw", "", "no element type"),
        ("c", "", "complex64"),
        ("work", "", "no element type"),
        ("x", "i32", "declared i32"),
        (0.5, "bf16", "bf16"),
        (bp.scalar("i64", 4), "i32", "declared i32"),
        (X[0], "fp32", "a size is an integer"),
        (None, "", "give None in 'constants'"),
        (TensorDescriptor(), "", "make_tensor_descriptor"),
    ],
)
def test_what_a_blueprint_cannot_express(value: Any, declared: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        bound(value, declared)


def test_where_values_come_from() -> None:
    parameters = [
        parameter("x"),
        parameter("block", constant=True),
        parameter("mode", constant=True, has_default=True, default="fast"),
        parameter("bias"),
    ]
    found = kernel_arguments(parameters, {}, {"block": 64, "bias": None}, SETS, ())
    assert found.passed == {"x": Ptr("x")}
    assert found.constants == {"block": 64, "mode": "fast", "bias": None}
    for arguments, constants, where in (
        ({"block": 1}, {"bias": None}, "arguments.block"),
        ({"bias": 1}, {"bias": 1, "block": 1}, "constants.bias"),
        ({}, {"bias": None}, "constants.block"),
        ({}, {"block": 64}, "arguments.bias"),
        ({"boas": 1}, {"block": 64}, "arguments.boas"),
    ):
        with pytest.raises(InvalidInput) as caught:
            kernel_arguments(parameters, arguments, constants, SETS, ())
        assert caught.value.where == where


@pytest.mark.parametrize(
    ("size", "factor"),
    [
        (bp.Absolute(48), 48),
        (bp.Mul((bp.Absolute(4), X[0].size, bp.Absolute(4))), 16),
        (bp.Add((bp.Absolute(32), bp.Mul((X[0].size, bp.Absolute(48))))), 16),
        (bp.Add((X[0].size, bp.Absolute(16))), 1),
        (bp.CeilDiv(bp.Absolute(32), bp.Absolute(2)), 1),
        (bp.Sizeof("x"), 1),
    ],
)
def test_factors_of_sizes(size: bp.Size, factor: int) -> None:
    assert factor_of(size) == factor


@pytest.mark.parametrize(
    ("arch", "backend", "warp", "suffix"),
    [
        ("sm_80", "cuda", 32, "cubin"),
        ("sm_120", "cuda", 32, "cubin"),
        ("gfx90a", "hip", 64, "hsaco"),
        ("gfx942", "hip", 64, "hsaco"),
        ("gfx1100", "hip", 32, "hsaco"),
    ],
)
def test_targets(arch: str, backend: str, warp: int, suffix: str) -> None:
    target = target_named(arch)
    assert (target.backend, target.warp_threads, target.suffix) == (backend, warp, suffix)


@pytest.mark.parametrize("arch", ["", "sm90", "sm_9", "gfx", "gfx942:xnack-", "sm_90a", "h100"])
def test_no_targets(arch: str) -> None:
    with pytest.raises(InvalidInput):
        target_named(arch)


def test_without_triton_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(BackendUnavailable, match=r"pip install 'dandelion-engine\[export\]'"):
        dandelion.triton_function("f", object(), inputs=["x"], outputs=["y"], grid=1)


def test_another_version_of_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    other = types.ModuleType("triton")
    other.__version__ = "3.60.1"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "triton", other)
    with pytest.raises(BackendUnavailable, match=r"version 3\.60\.1 is installed"):
        dandelion.triton_function("f", object(), inputs=["x"], outputs=["y"], grid=1)


def test_the_export_is_imported_without_triton() -> None:
    code = "import sys, dandelion; dandelion.triton_function; print('triton' in sys.modules)"
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"
