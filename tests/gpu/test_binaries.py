"""Cubins, fat binaries and PTX from CUDA's compiler, where that is installed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from dandelion.backends.gpu.code_info import info_of
from dandelion.backends.gpu.launch_sizes import misfits

import dandelion.blueprint as bp
from dandelion.blueprint.reading import read_config
from dandelion.errors import InvalidBlueprint, InvalidFunction
from dandelion.function import Function
from tests.fake_driver.fake import Real, Runner, function, numbers

SOURCE = """
__device__ int counter = 5;
extern "C" __global__ void one(int *y) { y[0] = 1; }
#ifdef VARIABLE
extern "C" __global__ void count(int *y) { y[0] = counter++; }
#endif
"""
Build = Callable[..., bytes]


@pytest.fixture
def build(cuda: str, tmp_path: Path) -> Build:
    if shutil.which("nvcc") is None:
        pytest.skip("without nvcc")
    (tmp_path / "k.cu").write_text(SOURCE)

    def run(*options: str) -> bytes:
        command = ["nvcc", *options, "-o", str(tmp_path / "out"), str(tmp_path / "k.cu")]
        subprocess.run(command, check=True)
        return (tmp_path / "out").read_bytes()

    return run


@pytest.fixture
def runner(cuda: str, tmp_path: Path) -> Iterator[Runner]:
    made = Runner(Real("cuda", tmp_path / "cache"))
    yield made
    made.close()


def wanted(name: str, data: bytes, kernel: str = "one") -> Function:
    b = bp.Blueprint(inputs=["x"], outputs=["y"], modules={"k": name})
    b.launch(kernel, [b.buffer("y", size=4)])
    return function(b, {name: data})


def result(runner: Runner, name: str, data: bytes, kernel: str = "one") -> int:
    (value,) = numbers(runner.run(wanted(name, data, kernel), runner.one("x", b"1234")))
    return int(value)


def test_each_kind_of_binary_runs(cuda: str, build: Build, runner: Runner) -> None:
    number = cuda.removeprefix("sm_")
    both = f"arch=compute_{number},code=[sm_{number},compute_{number}]"
    for name, options in (
        ("k.cubin", ("-cubin", f"-arch={cuda}")),
        ("k.fatbin", ("-fatbin", "-gencode", both)),
        ("k.fatbin", ("-fatbin", f"-gencode=arch=compute_{number},code={cuda}")),
        ("k.ptx", ("-ptx", "-arch=compute_80")),
    ):
        for _ in range(3):
            assert result(runner, name, build(*options)) == 1


def test_variables_are_seen_in_each_kind(cuda: str, build: Build, runner: Runner) -> None:
    for name, options, loads in (
        ("k.cubin", ("-cubin", f"-arch={cuda}"), 1),
        ("k.fatbin", ("-fatbin", f"-arch={cuda}"), 1),
        ("k.ptx", ("-ptx", f"-arch={cuda}"), 3),
    ):
        data = build("-DVARIABLE", *options)
        assert info_of(data).variables
        before = runner.engine.modules.loads
        for _ in range(3):
            assert result(runner, name, data, "count") == 5
        assert runner.engine.modules.loads - before == loads


def test_a_cubin_for_another_device(cuda: str, build: Build, runner: Runner) -> None:
    data = build("-cubin", "-arch=sm_80")
    assert info_of(data).arch == "sm_80"
    with pytest.raises(InvalidFunction, match=f"it is code for sm_80, this device is {cuda}"):
        result(runner, "k.cubin", data)


def test_ptx_that_is_wrong_shows_the_compilers_words(runner: Runner) -> None:
    text = b".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry one() { nonsense; }\n\0"
    with pytest.raises((InvalidFunction, InvalidBlueprint), match="nonsense"):
        result(runner, "k.ptx", text)


# --- the sizes of parameters ----------------------------------------------------------------

STRUCTS = (
    "struct S { int a[5]; char c; }; struct Three { char c[3]; }; struct Large { int a[1200]; };"
)
SIGNATURES = {
    "none": ("", ()),
    "pointers": ("const float *x, float *y", (8, 8)),
    "scalars": ("char a, short b, int c, float d, double e, long long f, bool g",
                (1, 2, 4, 4, 8, 8, 1)),
    "structs": ("S s, Three t, int *y, Three u, S v", (24, 3, 8, 3, 24)),
    "large": ("Large l, int *y, short s", (4800, 8, 2)),
    "unused": ("int a, int b, int *y, int c", (4, 4, 8, 4)),
}  # fmt: skip


def sized_source() -> str:
    """Kernels of which each writes, if it can, and most do not use all that they get."""
    lines = [STRUCTS]
    for name, (declared, _) in SIGNATURES.items():
        body = "y[0] = 1;" if "*y" in declared else ""
        lines.append(f'extern "C" __global__ void {name}({declared}) {{ {body} }}')
    return "\n".join(lines)


def by_nvrtc(source: str, arch: str) -> tuple[bytes, bytes]:
    """Compile to a cubin and to PTX by CUDA's library."""
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc")

    def do(answer: tuple[Any, ...]) -> Any:
        assert int(answer[0]) == 0, answer[0]
        return answer[1] if len(answer) > 1 else None

    program = do(nvrtc.nvrtcCreateProgram(source.encode(), b"k.cu", 0, [], []))
    do(nvrtc.nvrtcCompileProgram(program, 1, [f"--gpu-architecture={arch}".encode()]))
    cubin = bytearray(do(nvrtc.nvrtcGetCUBINSize(program)))
    do(nvrtc.nvrtcGetCUBIN(program, cubin))
    ptx = bytearray(do(nvrtc.nvrtcGetPTXSize(program)))
    do(nvrtc.nvrtcGetPTX(program, ptx))
    do(nvrtc.nvrtcDestroyProgram(program))
    return bytes(cubin), bytes(ptx)


def test_sizes_of_parameters_as_nvrtc_writes_them(cuda: str) -> None:
    expected = {name: sizes for name, (_, sizes) in SIGNATURES.items()}
    for arch in dict.fromkeys(("sm_80", "sm_90", "sm_100", "sm_120", cuda)):
        for data in by_nvrtc(sized_source(), arch):
            info = info_of(data)
            assert info.kernels == expected, arch
            assert info.complete


def test_sizes_of_parameters_as_nvcc_writes_them(cuda: str, build: Build, tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text(sized_source())
    expected = {name: sizes for name, (_, sizes) in SIGNATURES.items()}
    plain = ("-Xfatbin", "-compress=false")
    for options in (
        ("-cubin", f"-arch={cuda}"),
        ("-cubin", "-rdc=true", f"-arch={cuda}"),
        ("-ptx", "-arch=compute_80"),
        ("-fatbin", *plain, "-gencode", "arch=compute_80,code=[sm_80,compute_80]"),
    ):
        assert info_of(build(*options)).kernels == expected, options


def test_the_driver_tells_the_same_sizes(cuda: str, runner: Runner) -> None:
    """A launch that registration takes runs, and one that it refuses the driver's sizes refuse."""
    cubin, _ = by_nvrtc(sized_source(), cuda)
    for good in (True, False):
        b = bp.Blueprint(inputs=["x"], outputs=["y"], modules={"k": "k.cubin"})
        y = b.buffer("y", size=4)
        last = bp.scalar("i32" if good else "i64", 4)
        b.launch("unused", [bp.scalar("i32", 1), bp.scalar("i32", 2), y, last])
        config, problems = read_config(b.json())
        assert not problems
        found = misfits(config, {"k.cubin": cubin})
        fn = function(b, {"k.cubin": cubin})
        if good:
            assert found == []
            assert int(numbers(runner.run(fn, runner.one("x", b"1234")))[0]) == 1
        else:
            assert [p.where for p in found] == ["blueprint.control_flow[0].args[3]"]
            with pytest.raises(InvalidBlueprint, match="argument 3 has 8 bytes, the parameter 4"):
                runner.run(fn, runner.one("x", b"1234"))
