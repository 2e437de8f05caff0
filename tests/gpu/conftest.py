"""What needs a GPU: skipped, with the backend's own words, where there is none."""

from __future__ import annotations

import pytest

from dandelion.driver import load_driver
from dandelion.errors import BackendUnavailable


@pytest.fixture(scope="session")
def cuda() -> str:
    """The architecture of the first NVIDIA device."""
    try:
        return load_driver("cuda").factory().probe()[0].details["architecture"]
    except BackendUnavailable as error:
        pytest.skip(str(error))
