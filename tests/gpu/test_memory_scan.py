"""24 tenants call functions on one device; each also reads all memory of the pool that it can.

Data of a tenant are words with its number. A scan reads the pool from its own input to its end and
counts words of other tenants. Its own words must be found, so a scan that reads nothing fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import dandelion.blueprint as bp
from dandelion.documents import FunctionDocument, gpu_function
from dandelion.node import Node, Settings

TENANTS, ROUNDS, CALLERS = 24, 6, 12
POOL_BYTES = 256 << 20
MARK = 0xD00D0000
THREADS = 64 * 256
CONSTANT_WORDS, INPUT_WORDS = 1 << 20, 1 << 18
SOURCE = """
#include "dandelion.h"
KERNEL void keep(GLOBAL const u32 *x, GLOBAL const u32 *w, GLOBAL u32 *y, u64 rounds, u64 words)
{
    u32 sum = 0;
    for (u64 i = 0; i < rounds; i++) { sum += w[(GLOBAL_ID(0) + 977 * i) % words] & 1u; }
    y[GLOBAL_ID(0)] = x[GLOBAL_ID(0)] + sum - sum;
}
KERNEL void scan(GLOBAL const u32 *x, GLOBAL u32 *own, GLOBAL u32 *foreign, u64 words, u64 threads)
{
    u32 mine = 0, others = 0;
    for (u64 i = GLOBAL_ID(0); i < words; i += threads) {
        u32 word = x[i];
        if ((word & 0xFFFF0000u) == 0xD00D0000u) {
            if (word == x[0]) { mine++; } else { others++; }
        }
    }
    own[GLOBAL_ID(0)] = mine;
    foreign[GLOBAL_ID(0)] = others;
}
"""


def marked(tenant: int, words: int) -> bytes:
    return np.full(words, MARK | tenant, np.uint32).tobytes()


def keeper(tenant: int) -> FunctionDocument:
    """A function that has constants, and takes 0.1 to some ms."""
    b = bp.Blueprint(["x"], weights=["w"], outputs=["y"], modules={"k": "k.c"})
    y = b.buffer("y", like="x")
    numbers = [bp.scalar("u64", 2000 * (1 + tenant % 5)), bp.scalar("u64", CONSTANT_WORDS)]
    b.launch("keep", [b.x, b.w, y, *numbers], grid=INPUT_WORDS // 256, block=256)
    static = {"w": {"w": marked(tenant, CONSTANT_WORDS)}}
    return gpu_function(
        "Keep", b.json(), inputs=["x", "w"], outputs=["y"], files={"k.c": SOURCE}, static=static
    )


def scanner() -> FunctionDocument:
    b = bp.Blueprint(["x"], outputs=["own", "foreign"], modules={"k": "k.c"})
    made = [b.buffer(name, 4 * THREADS) for name in ("own", "foreign")]
    numbers = [bp.scalar("u64", POOL_BYTES // 4), bp.scalar("u64", THREADS)]
    b.launch("scan", [b.x, *made, *numbers], grid=THREADS // 256, block=256)
    files = {"k.c": SOURCE}
    return gpu_function("Scan", b.json(), inputs=["x"], outputs=["own", "foreign"], files=files)


@pytest.fixture(scope="module", params=["0", "2"])
def node(cuda: str, request: pytest.FixtureRequest) -> Iterator[Node]:
    options = {"cuda": {"pool_bytes": str(POOL_BYTES), "workers": request.param}}
    with Node(Settings(backends=("cuda",), options=options)) as started:
        assert started.wait_ready(60)
        for tenant in range(TENANTS):
            started.register(functions=[keeper(tenant), scanner()], tenant=f"t{tenant}")
        yield started


def test_no_tenant_finds_data_of_another_one(node: Node) -> None:
    def calls(tenant: int) -> tuple[int, int]:
        """Return how many words a tenant found, of its own and of others."""
        x, name = marked(tenant, INPUT_WORDS), f"t{tenant}"
        kept = node.invoke("Keep", x=x, tenant=name)
        assert bytes(kept.y.items[0].data) == x
        found = node.invoke("Scan", x=x, tenant=name)
        return int(found.own.numpy(np.uint32).sum()), int(found.foreign.numpy(np.uint32).sum())

    with ThreadPoolExecutor(CALLERS) as pool:
        counts = list(pool.map(calls, [t for _ in range(ROUNDS) for t in range(TENANTS)]))
    assert {own for own, _ in counts} == {INPUT_WORDS}
    assert {foreign for _, foreign in counts} == {0}
