"""Tenants with one exported model each: answers, what is stored, and what others can read.

Weights of a model end with words that have its number. A scan reads the pool from its own input to
the end and counts such words of others; its own input has them, so a scan that reads nothing fails.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import torch
from torch import nn

import dandelion.blueprint as bp
from dandelion.catalog import MemoryCatalog
from dandelion.documents import FunctionDocument, gpu_function, static_contents
from dandelion.export import export_module
from dandelion.export.torch_binding import load
from dandelion.node import Node

CALLERS = 8
WORDS, WIDTH, CLASSES = 1024, 32, 5
MARK, MARKED_ROWS = 0xD00D0000, WORDS // 2
THREADS, INPUT_WORDS = 1024, 4096
WEIGHT_BYTES = 4 * (WORDS * WIDTH + WIDTH * CLASSES + CLASSES)
SCAN = """
#include "dandelion.h"
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


class Words(nn.Module):
    """Classifies a few words; the second half of its table is never read."""

    def __init__(self, number: int) -> None:
        super().__init__()
        torch.manual_seed(number)
        self.words = nn.Embedding(WORDS, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)
        marks = np.full((MARKED_ROWS, WIDTH), MARK | number, np.uint32).view(np.float32)
        with torch.no_grad():
            self.words.weight[-MARKED_ROWS:] = torch.from_numpy(marks)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.words(ids).mean(1)).softmax(-1)


@dataclass(frozen=True, slots=True)
class Tenants:
    """How many they are; several have the same model."""

    count: int
    models: int

    def model_of(self, tenant: int) -> int:
        return tenant % self.models


def documents(models: int) -> list[FunctionDocument]:
    """The function of each model: the first is exported, the others have other weights in it."""
    first = Words(0).eval()
    made = export_module("Classify", first, (torch.zeros(1, 4, dtype=torch.int64),), device="cpu")
    ((group, items),) = made.function.static.items()
    (packed,) = items.values()
    weights = np.frombuffer(load_content(packed), np.float32)
    places = {}
    for name, value in first.state_dict().items():
        place = weights.tobytes().find(value.numpy().tobytes())
        assert place >= 0, f"{name} is stored in another form"
        places[name] = place // 4
    found = []
    for number in range(models):
        own = weights.copy()
        for name, value in Words(number).state_dict().items():
            own[places[name] : places[name] + value.numel()] = value.numpy().reshape(-1)
        static = static_contents({group: {group: own}})
        found.append(msgspec.structs.replace(made.function, static=static))
    return found


def load_content(value: Any) -> bytes:
    """Bytes of a static item in a document."""
    return bytes(value.data.bytes() if hasattr(value.data, "bytes") else value.data)


def scanner(pool_bytes: int) -> FunctionDocument:
    b = bp.Blueprint(["x"], outputs=["own", "foreign"], modules={"k": "k.c"})
    made = [b.buffer(name, 4 * THREADS) for name in ("own", "foreign")]
    numbers = [bp.scalar("u64", pool_bytes // 4), bp.scalar("u64", THREADS)]
    b.launch("scan", [b.x, *made, *numbers], grid=THREADS // 64, block=64)
    files = {"k.c": SCAN}
    return gpu_function("Scan", b.json(), inputs=["x"], outputs=["own", "foreign"], files=files)


def register(node: Node, tenants: Tenants, pool_bytes: int) -> None:
    """Give each tenant its model and the scan."""
    models = documents(tenants.models)
    for tenant in range(tenants.count):
        own = [models[tenants.model_of(tenant)], scanner(pool_bytes)]
        node.register(functions=own, tenant=f"t{tenant}")


def check_answers_and_scans(node: Node, tenants: Tenants, rounds: int) -> None:
    """Call all models from several threads, and scan after each call."""
    modules = [Words(number).eval() for number in range(tenants.models)]

    def calls(number: int) -> tuple[int, int]:
        tenant = number % tenants.count
        model = tenants.model_of(tenant)
        name, mark = f"t{tenant}", MARK | model
        ids = np.random.default_rng(number).integers(0, WORDS - MARKED_ROWS, (1, 4))
        found = node.invoke("Classify", ids=ids, tenant=name)["output"].numpy()
        with torch.no_grad():
            wanted = modules[model](torch.from_numpy(ids)).numpy()
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)
        x = np.full(INPUT_WORDS, mark, np.uint32).tobytes()
        scan = node.invoke("Scan", x=x, tenant=name)
        return int(scan.own.numpy(np.uint32).sum()), int(scan.foreign.numpy(np.uint32).sum())

    load()  # torch in this thread first
    with ThreadPoolExecutor(CALLERS) as pool:
        counts = list(pool.map(calls, range(rounds * tenants.count)))
    assert {own for own, _ in counts} == {INPUT_WORDS}
    assert {foreign for _, foreign in counts} == {0}


def check_stored_once(node: Node, tenants: Tenants) -> None:
    """All code is stored once, and each of the different weights."""
    catalog = node._parts.stores.catalog
    assert isinstance(catalog, MemoryCatalog)
    stored = sum(len(data) for data in catalog._blobs.values())
    assert tenants.models * WEIGHT_BYTES < stored < (tenants.models + 1) * WEIGHT_BYTES
