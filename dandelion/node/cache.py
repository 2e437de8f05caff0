"""Results of pure functions, kept by content: the same inputs need not be computed twice.

A function opts in (`FunctionSpec.cache`). The key is the function's tenant, name and version, the
content of all its inputs, including names, keys and types of items, and the item that the call is
made for; static sets are part of the version. Bounded in bytes, least recently used first out.
Results are kept by reference, so they occupy the arena.
"""

from __future__ import annotations

import hashlib
import struct
from collections import OrderedDict
from dataclasses import dataclass

import msgspec

from dandelion.data import Origin
from dandelion.driver import InstanceSets
from dandelion.function import FunctionSpec

_PAGE_BYTES = 4096
_encoder = msgspec.msgpack.Encoder()  # values delimit themselves, so no two calls look alike


@dataclass(slots=True)
class CacheCounts:
    """What the cache did; `bytes` is what it holds."""

    hits: int = 0
    misses: int = 0
    evictions: int = 0
    bytes: int = 0


class ResultCache:
    """Keeps outputs by content of inputs. Used on the node's loop.

    Args:
        limit_bytes: how much the kept outputs may occupy; a larger result is not kept.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._kept: OrderedDict[bytes, tuple[str, int, InstanceSets]] = OrderedDict()
        self.counts = CacheCounts()

    def get(self, key: bytes) -> InstanceSets | None:
        """Find a result."""
        found = self._kept.get(key)
        if found is None:
            self.counts.misses += 1
            return None
        self.counts.hits += 1
        self._kept.move_to_end(key)
        return found[2]

    def put(self, key: bytes, function: str, outputs: InstanceSets) -> None:
        """Keep a result of a function, ``tenant/function``; drop others if there is no room."""
        size = _occupied_bytes(outputs)
        if size > self._limit_bytes or key in self._kept:
            return
        self._kept[key] = (function, size, outputs)
        self.counts.bytes += size
        while self.counts.bytes > self._limit_bytes:
            self.counts.bytes -= self._kept.popitem(last=False)[1][1]
            self.counts.evictions += 1

    def drop(self, function: str) -> None:
        """Forget the results of a function that was removed, ``tenant/function``."""
        for key in [k for k, kept in self._kept.items() if kept[0] == function]:
            self.counts.bytes -= self._kept.pop(key)[1]


def content_key(
    name: str, function: FunctionSpec, inputs: InstanceSets, origin: Origin | None
) -> bytes:
    """Name a call by its content. Reads all of the inputs' data once.

    Args:
        name: ``tenant/function``.
        function: gives the version.
        inputs: of the call.
        origin: the item that it is made for.
    """
    digest = hashlib.blake2b(f"{name}\0{function.version}".encode(), digest_size=24)
    digest.update(_encoder.encode(origin))
    for item_set in inputs:
        digest.update(struct.pack("<q", -1 if item_set is None else len(item_set.items)))
        for item in item_set.items if item_set is not None else ():
            digest.update(
                _encoder.encode((item.name, item.key, item.size_bytes, item.dtype, item.shape))
            )
            digest.update(item.data)
    return digest.digest()


def _occupied_bytes(outputs: InstanceSets) -> int:
    sizes = (item.size_bytes for s in outputs if s is not None for item in s.items)
    return sum(-(-size // _PAGE_BYTES) * _PAGE_BYTES for size in sizes) + _PAGE_BYTES
