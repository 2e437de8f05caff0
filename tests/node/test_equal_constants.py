"""Tenants of a node whose functions have equal constants, on a fake CUDA device."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import dandelion.blueprint as bp
from dandelion.documents import FunctionDocument, gpu_function
from dandelion.node import Node
from dandelion.settings import TenantSettings

from .fake_cuda import MIB, built, cuda_node, missing

X = np.arange(256, dtype=np.int32)
SOURCE = """
#include "dandelion.h"
KERNEL void weigh(GLOBAL const i32 *w, GLOBAL const i32 *x, GLOBAL i32 *y)
{
    y[GLOBAL_ID(0)] = x[GLOBAL_ID(0)] + w[GLOBAL_ID(0)];
}
"""


pytestmark = pytest.mark.skipif(bool(missing()), reason=f"without {missing()}")


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("fake"))


@pytest.fixture
def node(libraries: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Node]:
    options = {"weights": "8M", "workers": "0"}
    with cuda_node(libraries, monkeypatch, tmp_path, options) as made:
        yield made


def weighing() -> FunctionDocument:
    """y = x + w"""
    weights = np.arange(MIB, dtype=np.int32)
    b = bp.Blueprint(["x"], weights={"w": {"w": weights.tobytes()}}, outputs=["y"],
                     modules={"k": "k.c"})  # fmt: skip
    y = b.buffer("y", like=b.x)
    b.launch("weigh", [b["w"], b.x, y], grid=4, block=64)
    return gpu_function(
        "f", b.json(), inputs=["x", "w"], outputs=["y"], files={"k.c": SOURCE},
        static={"w": {"w": weights.tobytes()}},
    )  # fmt: skip


def test_tenants_share_equal_constants_unless_one_shares_none(node: Node) -> None:
    tenants = ["one", "two", "apart"]
    node.set_tenant("apart", TenantSettings(share_constants=False))
    for tenant in tenants:
        node.register(weighing(), tenant=tenant)
        for _ in range(3):
            outputs = node.invoke("f", x=X, tenant=tenant)
            assert (outputs["y"].numpy(np.int32) == X + X).all()  # type: ignore[union-attr]
    (place,) = node._runtime.scheduler.calls.residency.devices.values()
    assert (place.used_bytes, len(place), len(place.flows)) == (8 * MIB, 2, 3)
    assert {t.name: size for t, size in place.by_tenant.items()} == dict.fromkeys(tenants, 4 * MIB)
