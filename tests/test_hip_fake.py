"""The HIP backend on a fake driver: its binding is the real one, the device is a fixture.

A process of its own holds the fake device, so that this one stays free for a real one.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest
from dandelion.backends.gpu.conformance import CHECKS
from dandelion.backends.gpu.conformance_language import LANGUAGE_CHECKS

from tests.fake_driver import build
from tests.fake_driver.names import CUDA_ALONE, scenario_names
from tests.fake_driver.worker import Worker, working

OF_CUDNN = {
    "what_the_library_does_not_fuse_is_done_after_it",
    "cudnn_is_not_loaded_without_what_it_needs",
}
NAMES = [
    *scenario_names(),
    *scenario_names("loops.py"),
    *scenario_names("open_arguments.py"),
    *(name for name in scenario_names("variables.py") if name not in CUDA_ALONE),
    *(name for name in scenario_names("convolutions.py") if name not in OF_CUDNN),
    *("products_are_right_in_each_type", "products_are_computed_as_they_say"),
    *("layouts_are_right", "epilogues_are_right", "what_the_library_lacks_is_done_after_it"),
    *("branches_do_not_share_a_workspace", "without_a_library_templates_do_it"),
    *("too_little_workspace_is_no_algorithm", "each_failure_of_the_library_ends_one_call"),
    "dropped_plans_release_their_products",
]


def _missing() -> str:
    if importlib.util.find_spec("hip") is None:
        return "hip-python"
    return build.missing()


pytestmark = pytest.mark.skipif(bool(_missing()), reason=f"without {_missing()}")


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with working("hip", tmp_path_factory.mktemp("fake")) as made:
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
