"""What a request of a KaaS shape must give, computed with numpy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from dandelion.bench.systems.kaas_graphs import INPUT, OUTPUT, constant_word, kernels_of, links
from dandelion.bench.systems.kaas_shapes import WORD_BYTES, TunedShape

Words = npt.NDArray[np.uint32]
_GOLDEN = 0x9E3779B9


def expected(given: TunedShape, tenant: int, request: bytes) -> bytes:
    """Compute with numpy what a request must give."""
    shape = given.shape
    lanes = np.arange(given.lanes, dtype=np.uint32)
    numbers = {name: at for at, (name, _) in enumerate(kernels_of(shape))}
    buffers = {INPUT: np.frombuffer(request, np.uint32)}
    for link in links(given):
        value = buffers[link.x][lanes % link.x_words] + np.uint32(numbers[link.kernel] + 1)
        for name in link.constants:
            value = value + _total(given, tenant, name, buffers[INPUT])
        for _ in range(given.rounds):
            value ^= value << np.uint32(13)
            value ^= value >> np.uint32(17)
            value ^= value << np.uint32(5)
            value += np.uint32(_GOLDEN)
        buffers[link.y] = value[: link.y_words]
    found = np.zeros(shape.output_bytes // WORD_BYTES, np.uint32)
    found[: len(buffers[OUTPUT])] = buffers[OUTPUT]
    return found.tobytes()


def _total(given: TunedShape, tenant: int, name: str, request: Words) -> Words:
    """Give what each thread reads of one constant: the sum of every so many words of it."""
    lanes = given.lanes
    if name == INPUT:
        padded = np.zeros(-(-len(request) // lanes) * lanes, np.uint32)
        padded[: len(request)] = request
        columns: Words = padded.reshape(-1, lanes).sum(axis=0, dtype=np.uint32)
        return columns
    size = given.shape.sizes()[int(name[1:])] // WORD_BYTES
    counts = (size - np.arange(lanes) + lanes - 1) // lanes
    word = constant_word(tenant, int(name[1:]))
    return np.maximum(counts, 0).astype(np.uint32) * np.uint32(word)
