"""The CUDA backend on a fake driver: its binding is the real one, the device is a fixture.

A process of its own holds the fake device, so that this one stays free for a real one.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest
from dandelion.backends.gpu.conformance import CHECKS
from dandelion.backends.gpu.conformance_language import LANGUAGE_CHECKS

from tests.fake_driver import build
from tests.fake_driver.names import scenario_names
from tests.fake_driver.worker import Worker, working

FILES = (
    "scenarios.py", "operations.py", "convolutions.py", "loops.py", "sharing.py", "variables.py",
    "open_arguments.py",
)  # fmt: skip
NAMES = [
    name
    for file in FILES
    for name in scenario_names(file)
    if name != "miopen_is_loaded_where_it_is"
]


def _missing() -> str:
    if importlib.util.find_spec("cuda") is None or not importlib.util.find_spec("cuda.bindings"):
        return "cuda-bindings"
    return build.missing()


pytestmark = pytest.mark.skipif(bool(_missing()), reason=f"without {_missing()}")


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with working("cuda", tmp_path_factory.mktemp("fake")) as made:
        yield made


@pytest.mark.parametrize("name", [check.__name__ for check in (*CHECKS, *LANGUAGE_CHECKS)])
def test_conformance(worker: Worker, name: str) -> None:
    answer = worker.run(name)
    assert answer == "ok", answer


@pytest.mark.parametrize("name", NAMES)
def test_scenario(worker: Worker, name: str) -> None:
    answer = worker.run(name)
    assert answer == "ok", answer


def test_a_scenario_that_fails_is_seen(worker: Worker) -> None:
    assert "no attribute 'there_is_no_such_scenario'" in worker.run("there_is_no_such_scenario")
