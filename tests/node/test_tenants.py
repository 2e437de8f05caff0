"""Tenants take turns on a device: none ever sees a byte of another, also after faults."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dandelion.documents import FunctionDocument, RegistrationDocument, gpu_function
from dandelion.driver import load_driver
from dandelion.errors import BackendUnavailable, Faulted
from dandelion.node import Node, Settings

TENANTS = 24
ROUNDS = 3
SOURCE = """#include "dandelion.h"
KERNEL void scan(GLOBAL const u8 *own, GLOBAL u8 *scratch, u64 scratch_bytes, GLOBAL u64 *found) {
    u64 foreign = 0;
    for (u64 i = GLOBAL_ID(0); i < scratch_bytes; i += LOCAL_SIZE(0) * NUM_GROUPS(0)) {
        if (scratch[i] != 0) { foreign++; }
        scratch[i] = own[0];
    }
    found[GLOBAL_ID(0)] += foreign;
}
KERNEL void stray(GLOBAL u64 *a) {
    GLOBAL volatile u64 *far = (GLOBAL volatile u64 *)(u64)8;
    a[0] = *far;
}
"""
BLUEPRINT = """{
  "modules": {"tenant": "tenant.c"}, "kernels": {"scan": "tenant"},
  "blueprint": {
    "inputs": ["own"],
    "buffers": {"scratch": {"Absolute": 1500000}, "found": {"Absolute": 2048}},
    "outputs": ["found"],
    "control_flow": [{"ExecKernel": ["scan",
      [{"Ptr": "own"}, {"Ptr": "scratch"}, {"Sizeof": "scratch"}, {"Ptr": "found"}],
      {"grid_dim_x": {"Absolute": 4}, "block_dim_x": {"Absolute": 64}}]}]
  }
}"""
STRAY = """{
  "modules": {"tenant": "tenant.c"}, "kernels": {"stray": "tenant"},
  "blueprint": {"inputs": ["a"], "buffers": {}, "outputs": ["a"],
    "control_flow": [{"ExecKernel": ["stray", [{"Ptr": "a"}], {}]}]}
}"""


def tenant(number: int) -> FunctionDocument:
    """A function of its own, with a source that differs from all others."""
    source = f"{SOURCE}/* tenant {number} */\n"
    return gpu_function(
        f"tenant{number}", BLUEPRINT, inputs=["own"], outputs=["found: uint64"],
        files={"tenant.c": source},
    )  # fmt: skip


@pytest.fixture(scope="module", params=["opencl", "cuda"])
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    try:
        load_driver(request.param).factory().probe()
    except BackendUnavailable as error:
        pytest.skip(str(error))
    settings = {"workers": "2", "pool_bytes": "2M"}
    if request.param == "opencl":  # confined, no two tenants share a process
        settings["unconfined"] = "true"
    options = {request.param: settings}
    with Node(Settings(backends=(request.param,), options=options)) as node:
        stray = gpu_function(
            "stray", STRAY, inputs=["a"], outputs=["a"], files={"tenant.c": SOURCE}
        )
        functions = (*(tenant(i) for i in range(TENANTS)), stray)
        node.register(RegistrationDocument(functions=functions))
        while len(node.engines()) < 3 or not node.ready():
            node.wait_ready(0.05)
        yield node


def foreign_bytes(node: Node, number: int) -> int:
    own = np.full(4096, number + 1, np.uint8)
    return int(node.invoke(f"tenant{number}", own=own).found.numpy().sum())


def test_no_tenant_sees_a_byte_of_another(node: Node) -> None:
    turns = [i for _ in range(ROUNDS) for i in range(TENANTS)]
    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(lambda i: foreign_bytes(node, i), turns)) == 0
        with pytest.raises(Faulted):
            node.invoke("stray", a=np.zeros(1, np.uint64))
        assert sum(pool.map(lambda i: foreign_bytes(node, i), turns)) == 0
