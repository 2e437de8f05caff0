"""The constants that the engine processes of one device share.

One process copies constants to the device, and offers a descriptor of their memory; the others map
that memory. The node keeps the descriptor as long as the scheduler lets any of them keep the
constants, so they survive the process that copied them.

Everything happens on the node's loop, but for closing descriptors: the last one of some memory
frees it, which takes some 100 us.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import Executor as Pool
from dataclasses import dataclass, field
from typing import Protocol

from dandelion.driver import SharedConstants
from dandelion.scheduler import Flow


class Member(Protocol):
    """The executor of a process that shares constants."""

    def drop_constants(self, flows: Iterable[Flow]) -> None:
        """Have the process drop the constants of flows."""

    def resume(self) -> None:
        """Send calls that waited for constants, in a later event."""


@dataclass(slots=True, eq=False)
class _Entry:
    """Constants with one content.

    Attributes:
        key: of `SharedConstants`.
        descriptor: of their memory; -1 before they are copied.
        source: the process that copies them now.
        mapped: the processes that have mapped or copied them, or are about to.
        failed: the processes whose calls were to copy them and did not: no call waits for these
            any more.
        flows: those for which each process keeps them.
    """

    key: str = ""
    descriptor: int = -1
    source: Member | None = None
    mapped: set[Member] = field(default_factory=set)
    failed: set[Member] = field(default_factory=set)
    flows: dict[Member, set[Flow]] = field(default_factory=dict)


class ConstantsExchange:
    """What is copied once for all engine processes of one device.

    Args:
        pool: closes descriptors.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._entries: dict[str, _Entry] = {}
        self._members: dict[Member, None] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def join(self, member: Member) -> None:
        """A process is up."""
        self._members[member] = None

    def is_copied_elsewhere(self, member: Member, flow: Flow) -> bool:
        """Tell whether another process copies the constants of a flow now."""
        entry = self._entries.get(flow.constants)
        return entry is not None and entry.source is not None and entry.source is not member

    def kept(self, member: Member, flow: Flow) -> SharedConstants | None:
        """A call is sent to a process that keeps the constants of its flow.

        Returns:
            What the process is to map; None if it has them or is to copy them. The descriptor
            stays open until the flow is dropped.
        """
        entry = self._entries.get(flow.constants)
        if entry is None:
            entry = self._entries[flow.constants] = _Entry()
        flows = entry.flows.get(member)
        if flows is None:
            flows = entry.flows[member] = set()
        flows.add(flow)
        if entry.descriptor < 0:
            if entry.source is None and member not in entry.failed:
                entry.source = member
        elif member not in entry.mapped:
            entry.mapped.add(member)
            return SharedConstants(entry.key, entry.descriptor)
        return None

    def copied(self, member: Member, flow: Flow, constants: SharedConstants) -> None:
        """A process has copied constants; the descriptor is taken over."""
        entry = self._entries.get(flow.constants)
        if entry is None or member not in entry.flows:  # they were dropped meanwhile
            self._close(constants.descriptor)
            return
        if entry.descriptor >= 0:  # they could not be mapped
            self._close(entry.descriptor)
            entry.mapped.clear()
        entry.key, entry.descriptor = constants
        entry.mapped.add(member)
        self._settled(entry)

    def ended(self, member: Member, flow: Flow) -> None:
        """A call of a flow has ended; another process copies the constants if this one did not."""
        entry = self._entries.get(flow.constants)
        if entry is not None and entry.source is member:
            entry.failed.add(member)
            self._settled(entry)

    def drop(self, flows: Iterable[Flow]) -> None:
        """Flows keep their constants no longer: have all processes drop them."""
        for flow in flows:
            entry = self._entries.get(flow.constants)
            if entry is not None:
                for member in [m for m, kept in entry.flows.items() if flow in kept]:
                    self._forget(entry, member, {flow})
                    member.drop_constants((flow,))
                self._close_unused(flow.constants, entry)

    def forgot(self, member: Member, flow: Flow) -> None:
        """A process has dropped the constants of a flow with its function."""
        entry = self._entries.get(flow.constants)
        if entry is not None and member in entry.flows:
            self._forget(entry, member, {flow})
            self._close_unused(flow.constants, entry)

    def leave(self, member: Member) -> None:
        """A process is lost, or was closed."""
        self._members.pop(member, None)
        for content, entry in list(self._entries.items()):
            if member in entry.flows:
                self._forget(entry, member, entry.flows[member])
                self._close_unused(content, entry)

    def _forget(self, entry: _Entry, member: Member, flows: set[Flow]) -> None:
        entry.flows[member] -= flows
        if entry.flows[member]:
            return
        del entry.flows[member]
        entry.mapped.discard(member)
        entry.failed.discard(member)
        if entry.source is member:
            self._settled(entry)

    def _settled(self, entry: _Entry) -> None:
        """No process copies constants now: calls that waited for that go on."""
        source, entry.source = entry.source, None
        if source is not None:
            for member in self._members:
                if member is not source:
                    member.resume()

    def _close_unused(self, content: str, entry: _Entry) -> None:
        if not entry.flows:
            del self._entries[content]
            if entry.descriptor >= 0:
                self._close(entry.descriptor)

    def _close(self, descriptor: int) -> None:
        try:
            self._pool.submit(os.close, descriptor)
        except RuntimeError:  # the node closes
            os.close(descriptor)
