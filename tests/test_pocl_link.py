"""Linking kernels in the process: the conformance suite on PoCL without a linker."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from dandelion.backends.gpu.pocl_link import LinkError, link

from dandelion.driver import load_driver
from dandelion.errors import BackendUnavailable

ROOT = Path(__file__).resolve().parent.parent

SUITE = """
import os, pathlib, sys
folder = pathlib.Path(sys.argv[1])
os.environ["POCL_CACHE_DIR"], os.environ["PATH"] = str(folder / "cache"), str(folder / "bin")
os.environ["POCL_LEAVE_KERNEL_COMPILER_TEMP_FILES"] = "1"
(folder / "cache").mkdir()
(folder / "bin").mkdir()
(folder / "bin" / "ld").touch(mode=0o700)
from dandelion.backends.gpu import pocl_spawn
from dandelion.backends.gpu.conformance import CHECKS, opened
from dandelion.backends.gpu.conformance_language import LANGUAGE_CHECKS
from dandelion.backends.gpu.opencl_device import OpenClDevice

first = OpenClDevice()
first.open()
linker = pocl_spawn.replace_linker()
assert linker is not None
for check in (*CHECKS, *LANGUAGE_CHECKS):
    with opened(OpenClDevice()) as device:
        check(device)
    assert not linker.failure, linker.failure
first.close()
"""


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The object files of the suite's kernels, all of which were linked and run."""
    if platform.machine() != "x86_64":
        pytest.skip("objects are linked for x86-64 only")
    try:
        load_driver("opencl").factory().probe()
    except BackendUnavailable as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("linked")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", SUITE, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return sorted(folder.rglob("*.so.o"))


def test_the_conformance_suite_runs_without_a_linker(objects: list[Path]) -> None:
    assert len(objects) > 5


def test_damaged_objects_are_refused_and_nothing_else_is_raised(objects: list[Path]) -> None:
    whole = min((path.read_bytes() for path in objects), key=len)
    for cut in range(0, len(whole), 97):
        with pytest.raises(LinkError):
            link(whole[:cut])
    for at in range(0, len(whole), 61):
        damaged = bytearray(whole)
        damaged[at] ^= 0xFF
        try:
            link(bytes(damaged))
        except LinkError:
            continue
