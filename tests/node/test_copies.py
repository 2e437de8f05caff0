"""How often data is copied on each kind of edge, held against the table in ARCHITECTURE.md."""

from collections.abc import Iterator

import numpy as np
import pytest

from dandelion.documents import (
    CodeDocument,
    FunctionDocument,
    RegistrationDocument,
    gpu_function,
    python_function,
)
from dandelion.frontend.client import Client
from dandelion.frontend.server import BackgroundServer
from dandelion.memory import TransferCounts
from dandelion.node import Node, Settings

SOURCE = """#include "dandelion.h"
KERNEL void twice(GLOBAL const u8 *a, GLOBAL u8 *b, u64 n) {
    u64 i = GLOBAL_ID(0);
    if (i < n) { b[i] = (u8)(a[i] * 2); }
}
"""
BLUEPRINT = """{
  "modules": {"twice": "twice.c"}, "kernels": {"twice": "twice"},
  "blueprint": {"inputs": ["a"], "buffers": {"b": {"Sizeof": "a"}}, "outputs": ["b"],
    "control_flow": [{"ExecKernel": ["twice", [{"Ptr": "a"}, {"Ptr": "b"}, {"Sizeof": "a"}],
      {"grid_dim_x": {"Absolute": 4096}, "block_dim_x": {"Absolute": 256}}]}]}
}"""
SIZE = 1 << 20
TEXT = """
function Null(a) => (b);
function Twice(a) => (b);
function Copy(a) => (b);
composition Gpu2(x) => (y) { Twice(a = all x) => (m = b); Twice(a = all m) => (y = b); }
composition Mixed(x) => (y) { Copy(a = all x) => (m = b); Twice(a = all m) => (y = b); }
"""


def duplicate(a):  # type: ignore[no-untyped-def]  # runs in a sandbox, from its source
    return bytes(a[0].data)


DOCUMENT = RegistrationDocument(
    functions=(
        FunctionDocument("Null", ("a",), ("b",), code=(CodeDocument("null"),)),
        gpu_function("Twice", BLUEPRINT, inputs=["a"], outputs=["b"], files={"twice.c": SOURCE}),
        python_function(duplicate, outputs=["b"], name="Copy", entry="duplicate"),
    ),
    compositions=(TEXT,),
)


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    settings = Settings(backends=("null", "process", "opencl"), engines={"process": 1})
    with Node(settings) as node:
        node.register(DOCUMENT)
        assert node.wait_ready()
        yield node


class Copies:
    """Counts what is copied into the arena while it is entered."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.made = 0
        self.referred = 0

    def __enter__(self) -> "Copies":
        self._before: TransferCounts = self._node.info().transfers
        return self

    def __exit__(self, *_: object) -> None:
        after = self._node.info().transfers
        self.made = after.copies - self._before.copies
        self.referred = after.references - self._before.references


DATA = np.arange(SIZE, dtype=np.uint8).tobytes()
TWICE = (np.frombuffer(DATA, np.uint8) * 2).tobytes()


def test_in_process_data_is_referred_to(node: Node) -> None:
    with Copies(node) as copies:
        result = node.invoke("Null", a=DATA)
    assert result.b[0].data is DATA
    assert copies.made == 0


def test_the_heap_is_copied_once_and_results_are_passed_on_by_reference(node: Node) -> None:
    with Copies(node) as copies:
        result = node.invoke("Gpu2", x=DATA)
    assert result.y.bytes() == (np.frombuffer(TWICE, np.uint8) * 2).tobytes()
    assert (copies.made, copies.referred) == (
        1,
        1,
    )  # the caller copied, one call runs both functions


def test_a_sandbox_hands_over_in_the_arena(node: Node) -> None:
    with Copies(node) as copies:
        result = node.invoke("Mixed", x=DATA)
    assert result.y.bytes() == TWICE
    assert (copies.made, copies.referred) == (0, 1)


def test_a_body_goes_to_a_device_without_another_copy(node: Node) -> None:
    with BackgroundServer(node) as server, Client(server.url) as client, Copies(node) as copies:
        result = client.invoke("Twice", a=DATA)
    assert result.b.bytes() == TWICE
    assert (copies.made, copies.referred) == (0, 1)
