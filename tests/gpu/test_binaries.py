"""Cubins, fat binaries and PTX from CUDA's compiler, where that is installed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from dandelion.backends.gpu.code_facts import facts_of

import dandelion.blueprint as bp
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
    for name, options in (
        ("k.cubin", ("-cubin", f"-arch={cuda}")),
        ("k.fatbin", ("-fatbin", f"-arch={cuda}")),
        ("k.ptx", ("-ptx", f"-arch={cuda}")),
    ):
        data = build("-DVARIABLE", *options)
        assert facts_of(data).variables
        for _ in range(3):
            assert result(runner, name, data, "count") == 5


def test_a_cubin_for_another_device(cuda: str, build: Build, runner: Runner) -> None:
    data = build("-cubin", "-arch=sm_80")
    assert facts_of(data).arch == "sm_80"
    with pytest.raises(InvalidFunction, match=f"it is code for sm_80, this device is {cuda}"):
        result(runner, "k.cubin", data)


def test_ptx_that_is_wrong_shows_the_compilers_words(runner: Runner) -> None:
    text = b".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry one() { nonsense; }\n\0"
    with pytest.raises((InvalidFunction, InvalidBlueprint), match="nonsense"):
        result(runner, "k.ptx", text)
