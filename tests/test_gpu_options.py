"""The setting `workers` of GPU backends."""

from __future__ import annotations

import pytest
from dandelion.backends.cuda import CudaDriver
from dandelion.backends.gpu.options import AUTO_WORKER_BYTES, AUTO_WORKERS, GpuOptions

from dandelion.errors import InvalidInput


def options(**given: str) -> GpuOptions:
    found = GpuOptions("cuda", CudaDriver.settings)
    found.update(given)
    return found


@pytest.mark.parametrize(
    ("text", "most", "elastic"),
    [("auto", 10, True), ("auto:16", 16, True), ("2", 2, False), ("0", 0, False)],
)
def test_workers_are_a_number_or_chosen(text: str, most: int, elastic: bool) -> None:
    found = options(workers=text, role="worker")
    memory_bytes = 21 * AUTO_WORKER_BYTES
    assert (found.workers(memory_bytes), found.elastic()) == (most, elastic)
    assert found.memory_share(memory_bytes) == 0.5 / max(most, 1)
    sequential = options(workers=text, role="sequential")
    assert sequential.memory_share(memory_bytes) == (0.5 if most else 1.0)


def test_the_node_chooses_by_default() -> None:
    least, most = AUTO_WORKERS
    assert options().elastic()
    assert [options().workers(n << 30) for n in (0, 24, 80, 1000)] == [least, 3, 10, most]


@pytest.mark.parametrize("text", ["many", "auto:", "auto:49", "auto16", "-1", "auto:x"])
def test_other_values_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="auto"):
        options(workers=text)
