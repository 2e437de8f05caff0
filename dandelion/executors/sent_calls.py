"""Calls that an engine process has, and what it answers in the arena."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from dandelion.data import Item, ItemSet
from dandelion.engine_process.messages import WireItem, WireSet
from dandelion.executors.incoming import Incoming
from dandelion.function import Function
from dandelion.memory import Context
from dandelion.scheduler import CallState


class Watcher(Protocol):
    """Reports when descriptors are ready; see `dandelion.node.poll`."""

    def watch(self, fd: int, ready: Callable[[], None]) -> None:
        """Call `ready` on the loop whenever there is something to read."""

    def unwatch(self, fd: int) -> None:
        """Stop that."""


class SentCall:
    """A call that the process has.

    Attributes:
        result: the context for its outputs; None if the process maps no arena.
        incoming: its outputs, if they come behind the answer.
        deadline_ns: when it must have been answered, without the grace; meaningful for the first.
    """

    __slots__ = ("call", "deadline_ns", "function", "incoming", "limit_ns", "result")

    def __init__(
        self, call: CallState, function: Function, result: Context | None, limit_ns: int
    ) -> None:
        self.call = call
        self.function = function
        self.result = result
        self.limit_ns = limit_ns
        self.deadline_ns = 0
        self.incoming: Incoming | None = None

    def begin(self, now_ns: int) -> None:
        """Count its time from now."""
        self.call.started_ns = now_ns
        self.deadline_ns = min(self.call.invocation.deadline_ns, now_ns + self.limit_ns)


def read_set(wire: WireSet, result: Context) -> ItemSet:
    """Return a set that a process put into the context for its outputs, as views."""
    start = result.offset_bytes
    items = tuple([_read_item(item, result, start) for item in wire.items])
    return ItemSet(wire.name, items, wire.dtype, wire.shape)


def _read_item(wire: WireItem, result: Context, start: int) -> Item:
    data = result.read(wire.offset - start, wire.size) if wire.size else b""
    return Item(wire.name, wire.key, data, wire.dtype, wire.shape)
