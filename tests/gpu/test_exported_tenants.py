"""24 tenants with one exported model each on CUDA; see `tests.exported_tenants`."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="the extra 'export' is not installed")
pytest.importorskip("tinygrad", reason="the extra 'export' is not installed")

from dandelion.node import Node, Settings
from tests.exported_tenants import (
    WEIGHT_BYTES,
    Tenants,
    check_answers_and_scans,
    check_stored_once,
    register,
)

POOL_BYTES = 256 << 20
TENANTS = Tenants(24, 12)


@pytest.mark.parametrize("workers", ["0", "2"])
def test_each_tenant_gets_the_answers_of_its_own_model(cuda: str, workers: str) -> None:
    options = {"cuda": {"pool_bytes": str(POOL_BYTES), "weights": "1G", "workers": workers}}
    with Node(Settings(backends=("cuda",), options=options)) as node:
        assert node.wait_ready(60)
        register(node, TENANTS, POOL_BYTES)
        check_stored_once(node, TENANTS)
        check_answers_and_scans(node, TENANTS, rounds=8)
        copied = node.info().constants
        if workers == "0":  # each worker keeps constants of its own
            assert TENANTS.models <= copied.copies < TENANTS.count
            assert copied.copied_bytes >= TENANTS.models * WEIGHT_BYTES
