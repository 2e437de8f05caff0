"""Memory domains allocate contexts: the bounded memory of one invocation."""

from dandelion.memory.context import Context, DomainStats, MemoryDomain
from dandelion.memory.heap import HeapDomain
from dandelion.memory.shared import ArenaMap, SharedDomain
from dandelion.memory.transfer import TransferCounts, Transfers

__all__ = [
    "ArenaMap",
    "Context",
    "DomainStats",
    "HeapDomain",
    "MemoryDomain",
    "SharedDomain",
    "TransferCounts",
    "Transfers",
]
