"""Memory domains give out contexts: the bounded memory of one invocation."""

from dandelion.memory.context import Context, DomainStats, MemoryDomain
from dandelion.memory.heap import HeapDomain
from dandelion.memory.shared import ArenaMap, SharedDomain
from dandelion.memory.transfer import TransferCounts, Transfers
from dandelion.memory.wrappers import Failing, Limited, Tracked

__all__ = [
    "ArenaMap",
    "Context",
    "DomainStats",
    "Failing",
    "HeapDomain",
    "Limited",
    "MemoryDomain",
    "SharedDomain",
    "Tracked",
    "TransferCounts",
    "Transfers",
]
