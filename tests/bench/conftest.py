"""What holds for all tests of experiments."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from dandelion.bench.systems.nodes import GPU_OPTIONS


@pytest.fixture(scope="session", autouse=True)
def _nodes_start_quickly() -> Iterator[None]:
    """Leave out kernel hosts, of which each opens the device and compiles anew."""
    with pytest.MonkeyPatch.context() as changes:
        changes.setitem(GPU_OPTIONS, "opencl", {"unconfined": "true"})
        yield
