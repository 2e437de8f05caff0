"""The node's end of the link to one frontend process.

An invocation is a message in and a message out, with no task and no coroutine between them. What
takes long is a task, see `long_answers` and `kept_requests`.

`_kept` has what the frontend was given, by number: contexts of leases, sets of results. Views of a
lease that an invocation names keep the memory by themselves.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from dandelion.data import Item, ItemSet
from dandelion.errors import Cancelled, DandelionError, InternalError, InvalidInput
from dandelion.frontend_process.kept_requests import KeptRequests
from dandelion.frontend_process.link import BadMessage, Link
from dandelion.frontend_process.long_answers import LongAnswers
from dandelion.frontend_process.messages import (
    Answered,
    Ask,
    AskKept,
    Cancel,
    Drain,
    Ended,
    Failed,
    FetchKept,
    FromFrontend,
    Keep,
    Lease,
    Leased,
    LinesDropped,
    Open,
    Part,
    Ready,
    Release,
    Reload,
    Submit,
    from_frontend,
)
from dandelion.frontend_process.status import StatusWriter
from dandelion.frontend_process.wire import WireSet, WireSets, joined
from dandelion.frontend_process.wired_sets import arena_item, names_places, wired
from dandelion.memory import Context
from dandelion.node import Node
from dandelion.node.invocation import Invocation


class NodeLink:
    """Serves one frontend process. For the loop's thread alone.

    Args:
        node: what is served.
        status: brought up to date before a change of the catalogue is answered.
        peer: the socket to the process; this closes it.
        ready: called when the frontend takes connections.
        lost: called once, with the reason, when the link ends by itself.

    Attributes:
        invocations: how many were submitted.
    """

    def __init__(
        self,
        node: Node,
        status: StatusWriter,
        peer: socket.socket,
        ready: Callable[[], None],
        lost: Callable[[str], None],
    ) -> None:
        self._node = node
        self._wired_item = partial(arena_item, node.arena)
        self._lost = lost
        self._kept: dict[int, object] = {}
        self._running: dict[int, Invocation] = {}
        self._parts: dict[int, list[WireSet]] = {}
        self._waiting = KeptRequests(node, self._reply, self._send_result)
        self._long = LongAnswers(
            node, status, self._reply, self._kept.__setitem__, self._ended_by_itself
        )
        self.invocations = 0
        self._handlers: dict[type, Callable[[Any], None]] = {
            Submit: self._on_submit,
            Release: self._on_release,
            Cancel: self._on_cancel,
            Lease: self._on_lease,
            Part: self._on_part,
            Ask: lambda message: self._long.ask(message, self._leased),
            LinesDropped: lambda message: node.lines_dropped(message.count),
            Keep: lambda keep: self._waiting.keep(keep, self._sets_of(keep.number, keep.sets)),
            AskKept: self._waiting.ask,
            FetchKept: self._waiting.fetch,
            Ready: lambda _: ready(),
        }
        self._link = Link(
            asyncio.get_running_loop(), peer, from_frontend, self._received, self._ended_by_itself
        )

    @property
    def running(self) -> int:
        """How many invocations are under way."""
        return len(self._running)

    def open(self, order: Open) -> None:
        """Have the frontend serve."""
        self._link.post(order)

    def reload(self, order: Reload) -> None:
        """Have the frontend use other tokens, or read the certificate again."""
        self._link.post(order)

    def drain(self) -> None:
        """Have the frontend end what is under way and leave."""
        self._link.post(Drain())

    def close(self) -> None:
        """Close the link and cancel the frontend's invocations. Its memory stays, see `free`."""
        self._link.close()
        running, self._running = self._running, {}
        for invocation in running.values():
            self._node.cancel(invocation, Cancelled("its frontend is gone"))
        self._waiting.close()
        self._long.close()
        self._parts.clear()

    def free(self) -> None:
        """Free all memory of the frontend; no process maps the arena for it any more."""
        self._kept.clear()

    def _ended_by_itself(self, reason: str) -> None:
        self.close()
        self._lost(reason)

    def _received(self, messages: list[FromFrontend]) -> None:
        self._node.gather(self._handle, messages)

    def _handle(self, messages: list[FromFrontend]) -> None:
        for message in messages:
            self._handlers[type(message)](message)

    # --- memory ---------------------------------------------------------------------------------

    def _on_lease(self, message: Lease) -> None:
        try:
            context = self._node.acquire_to_fill(message.size)
        except DandelionError as error:
            self._fail(message.number, "", error)
            return
        self._kept[message.number] = context
        leased = Leased(message.number, context.offset_bytes)
        self._link.post(leased, ahead=message.ahead)

    def _on_release(self, message: Release) -> None:
        for number in message.numbers:
            self._kept.pop(number, None)

    def _leased(self, number: int, offset_bytes: int, size_bytes: int) -> memoryview:
        """View a part of a lease."""
        context = self._kept.get(number)
        if not isinstance(context, Context) or not (
            0 <= offset_bytes <= context.size_bytes - size_bytes and size_bytes >= 0
        ):
            raise BadMessage(f"it named memory outside of its lease {number}")
        return context.view[offset_bytes : offset_bytes + size_bytes].toreadonly()

    # --- invocations ----------------------------------------------------------------------------

    def _on_part(self, message: Part) -> None:
        self._parts.setdefault(message.number, []).append(message.set)

    def _on_submit(self, message: Submit) -> None:
        number = message.number
        sets = self._sets_of(number, message.sets)
        self.invocations += 1
        try:
            self._running[number] = self._node.begin(
                message.name,
                sets,
                version=message.version,
                deadline_s=message.deadline_s,
                priority=message.priority,
                tenant=message.tenant,
                trace_context=message.span,
                ended=partial(self._ended, number),
            )
        except DandelionError as error:
            self._fail(number, error.invocation, error)

    def _sets_of(self, number: int, wire: WireSets) -> dict[str, ItemSet | None]:
        """Give the sets that a message and its parts name."""
        if self._parts:
            parts = self._parts.pop(number, None)
            wire = joined(parts, wire) if parts is not None else wire
        return {one.name: self._set(one) for one in wire}

    def _set(self, wire: WireSet) -> ItemSet | None:
        if not wire.items:
            return None
        items = [
            Item(
                i.name,
                i.key,
                i.data if i.data is not None else self._leased(i.lease, i.offset, i.size),
                i.dtype,
                i.shape,
            )
            for i in wire.items
        ]
        return ItemSet(wire.name, tuple(items), wire.dtype, wire.shape, wire.form)

    def _on_cancel(self, message: Cancel) -> None:
        self._parts.pop(message.number, None)
        self._waiting.cancel(message.number)
        invocation = self._running.get(message.number)
        if invocation is not None:
            self._node.cancel(invocation, Cancelled("its client left"))

    def _ended(self, number: int, invocation: Invocation) -> None:
        """Send the result of an invocation."""
        if self._running.pop(number, None) is None:  # the link is closed
            return
        error = invocation.error
        if error is not None:
            self._fail(number, invocation.id, error)
            return
        outputs = invocation.outputs
        if outputs is None:
            self._fail(number, invocation.id, InternalError("it ended without a result"))
            return
        self._send_result(number, invocation.id, invocation.walk.plan.named(outputs))

    def _send_result(self, number: int, id_: str, outputs: Mapping[str, ItemSet | None]) -> None:
        sets = wired(outputs, self._wired_item)
        if sets is None:
            self._long.send(number, id_, outputs)
            return
        if names_places(sets):
            self._kept[number] = outputs
        self._reply(Ended(number, id_, sets))

    def _reply(self, message: Answered | Ended | Failed | Part) -> None:
        """Answer a request, or a part of it; with an error, if that cannot be sent."""
        try:
            self._link.post(message)
        except InvalidInput as error:
            bug = InternalError(f"an answer of the node: {error.message}")
            self._link.post(Failed(message.number, "", bug.record()))

    def _fail(self, number: int, id_: str, error: DandelionError) -> None:
        self._reply(Failed(number, id_, error.record()))
