"""Tenants with one exported model each on OpenCL; see `tests.exported_tenants`."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="the extra 'export' is not installed")
pytest.importorskip("tinygrad", reason="the extra 'export' is not installed")

from dandelion.driver import load_driver
from dandelion.errors import BackendUnavailable
from dandelion.node import Node, Settings
from tests.exported_tenants import Tenants, check_answers_and_scans, check_stored_once, register

POOL_BYTES = 4 << 20
TENANTS = Tenants(6, 2)  # a host for each model compiles; on CUDA there are more


def test_each_tenant_gets_the_answers_of_its_own_model() -> None:
    try:
        load_driver("opencl").factory().probe()
    except BackendUnavailable as error:
        pytest.skip(str(error))
    options = {"opencl": {"pool_bytes": str(POOL_BYTES)}}
    settings = Settings(backends=("opencl",), options=options, arena_bytes=64 << 20)
    with Node(settings) as node:
        register(node, TENANTS, POOL_BYTES)
        check_stored_once(node, TENANTS)
        check_answers_and_scans(node, TENANTS, rounds=4)
