"""The scenarios of the fake device that hold on any, played on a real one.

CUDA as it is, HIP over NVIDIA's driver. Each has a process of its own: some break their device.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from dandelion.backends.gpu.conformance import CHECKS
from dandelion.backends.gpu.conformance_language import LANGUAGE_CHECKS

from tests.fake_driver import build
from tests.fake_driver.names import CUDA_ALONE, real_scenario_names
from tests.fake_driver.worker import working

KINDS = ("real_cuda", "hip_on_cuda")
FILES = (
    "scenarios.py", "operations.py", "convolutions.py", "loops.py", "sharing.py", "variables.py",
    "open_arguments.py",
)  # fmt: skip
SHARING = "sharing.py"  # of constants, which HIP's engines do not offer
SCENARIOS = [
    (kind, name)
    for kind in KINDS
    for file in FILES
    for name in real_scenario_names(file)
    if kind != "hip_on_cuda" or (file != SHARING and name not in CUDA_ALONE)
]


def _need(kind: str) -> None:
    if kind == "hip_on_cuda" and importlib.util.find_spec("hip") is None:
        pytest.skip("without hip-python")
    if build.missing():
        pytest.skip(f"without {build.missing()}")


@pytest.mark.parametrize("kind", KINDS)
def test_conformance(cuda: str, kind: str, tmp_path: Path) -> None:
    _need(kind)
    with working(kind, tmp_path) as worker:
        for check in (*CHECKS, *LANGUAGE_CHECKS):
            answer = worker.run(check.__name__)
            assert answer == "ok", f"{check.__name__}: {answer}"


@pytest.mark.parametrize(("kind", "name"), SCENARIOS)
def test_scenario(cuda: str, kind: str, name: str, tmp_path: Path) -> None:
    _need(kind)
    with working(kind, tmp_path) as worker:
        answer = worker.run(name)
        assert answer == "ok", answer
