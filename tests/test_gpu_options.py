"""The setting `workers` of GPU backends."""

from __future__ import annotations

import pytest
from dandelion.backends.cuda import CudaDriver
from dandelion.backends.gpu.options import AUTO_WORKERS, GpuOptions

from dandelion.errors import InvalidInput


def options(**given: str) -> GpuOptions:
    found = GpuOptions("cuda", CudaDriver.settings)
    found.update(given)
    return found


@pytest.mark.parametrize(
    ("text", "most", "elastic"),
    [("auto", AUTO_WORKERS, True), ("auto:16", 16, True), ("2", 2, False), ("0", 0, False)],
)
def test_workers_are_a_number_or_chosen(text: str, most: int, elastic: bool) -> None:
    found = options(workers=text, role="worker")
    assert (found.workers(), found.elastic()) == (most, elastic)
    assert found.memory_share() == 0.5 / max(most, 1)
    assert options(workers=text, role="sequential").memory_share() == (0.5 if most else 1.0)


def test_the_node_chooses_by_default() -> None:
    assert (options().workers(), options().elastic()) == (AUTO_WORKERS, True)


@pytest.mark.parametrize("text", ["many", "auto:", "auto:49", "auto16", "-1", "auto:x"])
def test_other_values_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="auto"):
        options(workers=text)
