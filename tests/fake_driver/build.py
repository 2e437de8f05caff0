"""FIXTURE. Build the fake driver libraries with the C compiler of this machine, and load them.

The vendors' bindings ask the system for ``libcuda.so.1`` and so on; a library of that name that is
in the process already is what they get. So a process that called `load` has a fake device and never
a real one: tests do that in a process of their own.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
_FLAGS = ["-std=gnu11", "-shared", "-fPIC", "-O1", "-g", "-Wall", "-Wextra", "-Werror"]
_NAMES = {
    "cuda": ("libcuda.so.1", ("libnvrtc.so.13", "libnvrtc.so.12")),
    "hip": ("libamdhip64.so", ("libhiprtc.so",)),
    "hip_on_cuda": ("libamdhip64.so", ("libhiprtc.so",)),
}


OPERATIONS = {
    "cuda": {"cublaslt": "libcublasLt.so.13", "cudnn": "libcudnn.so.9"},
    "hip": {"cublaslt": "libhipblaslt.so.1", "miopen": "libMIOpen.so.1"},
}
"""The libraries of operations of each kind, by the name of their source."""


def missing() -> str:
    """Return what this machine lacks, or an empty text."""
    return ", ".join(name for name in ("cc", "g++") if shutil.which(name) is None)


def build(kind: str, folder: Path) -> list[Path]:
    """Build the libraries of a kind into a folder; return them in the order of loading."""
    name, others = _NAMES[kind]
    sources = [HERE / f"{kind}.c", *([] if kind == "hip_on_cuda" else [HERE / "core.c"])]
    first = folder / name
    _cc("-o", first, f"-Wl,-soname,{name}", *sources, "-ldl")
    made = [first]
    for other in others:  # these link to the first library
        _cc("-o", folder / other, f"-Wl,-soname,{other}", "-xc", os.devnull, "-xnone",
            "-Wl,--no-as-needed", first)  # fmt: skip
        made.append(folder / other)
    (folder / "lib").mkdir(exist_ok=True)
    for source, library in OPERATIONS.get(kind, {}).items():
        made.append(folder / "lib" / library)
        vendor = ["-DAMD"] if kind == "hip" else []
        _cc("-o", made[-1], f"-Wl,-soname,{library}", *vendor, HERE / f"{source}.c", "-lm",
            "-Wl,--no-as-needed", first)  # fmt: skip
    return made


def _cc(*arguments: object) -> None:
    subprocess.run(["cc", *_FLAGS, *map(str, arguments)], check=True)


def environment(folder: Path) -> dict[str, str]:
    """Return the variables with which further processes find libraries that were built."""
    compiler = f"{sys.executable} {HERE / 'compile.py'}"
    return {"FAKE_COMPILER": compiler, "FAKE_HEADERS": str(folder), "LD_LIBRARY_PATH": str(folder)}


def load(kind: str, folder: Path) -> ctypes.CDLL:
    """Build and load a kind into this process; return the library with the test's own functions."""
    if kind == "hip_on_cuda":
        pathfinder = importlib.import_module("cuda.pathfinder")
        os.environ["NVRTC_LIBRARY"] = pathfinder.load_nvidia_dynamic_lib("nvrtc").abs_path
    os.environ.update(environment(folder))
    os.environ[{"cuda": "CUDA_HOME"}.get(kind, "ROCM_PATH")] = str(folder)
    first, *others = [ctypes.CDLL(str(p), mode=ctypes.RTLD_GLOBAL) for p in build(kind, folder)]
    _KEPT.extend((first, *others))
    return first


def operations(kind: str, folder: Path) -> list[ctypes.CDLL]:
    """Return the libraries of operations of a kind, which were built."""
    return [ctypes.CDLL(str(folder / "lib" / name)) for name in OPERATIONS[kind].values()]


_KEPT: list[ctypes.CDLL] = []
