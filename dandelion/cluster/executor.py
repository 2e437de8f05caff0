"""Engines of other nodes, to the scheduler: one for each backend that any of them has.

Such an engine has as many places as there are free engines on the other nodes, and some for calls
ahead. It has no work of its own: it chooses the node (`placement`) and gives the call to the link.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dandelion.cluster.link import OutLink
from dandelion.cluster.placement import NS_PER_BYTE, Placement
from dandelion.cluster.wire_sets import SHARED_BYTES
from dandelion.errors import DandelionError, EngineDied, NodeLost
from dandelion.executors import Executor, StartedEngine, Surroundings
from dandelion.executors.contract import finish
from dandelion.node.runtime import Runtime
from dandelion.scheduler import CallState, EngineState, Flow

FIRST_ID = 1 << 40
"""Ids of such engines; others count from 1."""
OVERHEAD_NS = 500_000.0
"""What a call on another node costs beside the round trip."""


class RemoteEngines:
    """All such engines of a node.

    Args:
        runtime: of the node.
        around: what all executors share.
        placement: the other nodes.
        links: to them, by name.
    """

    def __init__(
        self,
        runtime: Runtime,
        around: Surroundings,
        placement: Placement,
        links: Mapping[str, OutLink],
    ) -> None:
        self._runtime = runtime
        self._around = around
        self._placement = placement
        self._links = links
        self._executors: dict[str, RemoteExecutor] = {}

    def refresh(self, round_trip_ns: int) -> None:
        """Have the scheduler know the engines of all other nodes."""
        backends = self._placement.backends()
        for backend, formats in backends.items():
            if backend not in self._executors:
                number = len(self._executors) + 1
                made = self._executors[backend] = RemoteExecutor(
                    number,
                    backend,
                    formats,
                    self._around,
                    self._placement,
                    self._links,
                    self._runtime.resized,
                )
                self._runtime.add(made)
        for backend, executor in self._executors.items():
            executor.engine.transfer_ns = OVERHEAD_NS + round_trip_ns
            executor.refresh(backends.get(backend))

    def answered(self, backend: str) -> None:
        """A call ended there."""
        executor = self._executors.get(backend)
        if executor is not None:
            executor.resize()


class RemoteExecutor(Executor):
    """Sends calls to other nodes.

    Args:
        number: distinguishes such engines of a node.
        backend: whose engines it stands for.
        formats: of code objects that they run.
        around: what all executors share.
        placement: the other nodes.
        links: to them, by name.
        resized: called with the number of places, for the scheduler.
    """

    def __init__(
        self,
        number: int,
        backend: str,
        formats: frozenset[str],
        around: Surroundings,
        placement: Placement,
        links: Mapping[str, OutLink],
        resized: Callable[[EngineState, int], None],
    ) -> None:
        engine = EngineState(
            FIRST_ID + number, formats, ("cluster", backend), places=-1, remote=True
        )
        engine.transfer_ns, engine.transfer_ns_per_byte = OVERHEAD_NS, NS_PER_BYTE
        info = StartedEngine("", "cluster", backend, f"engines '{backend}' of other nodes")
        super().__init__(engine, info, around)
        self.backend = backend
        self._placement = placement
        self._links = links
        self._resized = resized
        self._up = False

    @property
    def _exists(self) -> bool:
        return self.backend in self._placement.backends()

    def start(self) -> None:
        self.info.name = f"cluster:{self.backend}"
        if self._exists:
            self._up = True
            self.engine.places = self._places()
            self.events.up(self.engine, self.info)
        else:
            gone = NodeLost("cluster", f"no node with a backend '{self.backend}' is up")
            self.events.start_failed(self.engine, gone)

    def refresh(self, formats: frozenset[str] | None) -> None:
        """Nodes came or went; they run these formats, None if none takes calls.

        Calls that a node has may end while it drains, or is only late with its answers.
        """
        if formats is None:
            if self.engine.sent:
                self.resize()
            elif self._up:
                self._up = False
                gone = EngineDied(self.info.name, "no other node has such engines any more")
                self.events.lost(self.engine, gone, {})
        elif not self._up or formats != self.engine.formats:
            self.engine.formats = formats
            self.start()
        else:
            self.resize()

    def resize(self) -> None:
        """Calls ended, or nodes said what is free."""
        places = self._places()
        if self._up and places != self.engine.places:
            self._resized(self.engine, places)

    def _places(self) -> int:
        placement = self._placement
        ahead = self.engine.behind = placement.ahead(self.backend)
        return placement.under_way(self.backend) + placement.free(self.backend) + ahead or -1

    def send(self, call: CallState, evict: tuple[Flow, ...] = (), keep: bool = False) -> None:
        flow = call.flow
        formats = call.run.application.formats
        wanted = next(name for name in formats if name in self.engine.formats)
        size, there = self._sizes(call)
        refusals = call.refusals or {}
        name = self._placement.choose(self.backend, flow, size, there, wanted, refusals)
        link = None if name is None else self._links.get(name)
        if link is None:
            if name is not None:
                self._placement.not_sent(name, self.backend)
            if name is None and refusals:
                call.barred += (self.engine.id,)
            else:
                self._resized(self.engine, -1)
            self.events.failed(call, NodeLost("cluster", "no node took the call"), begun=False)
            return
        assert name is not None, "it has a link"
        try:
            link.run(call, self.backend)
        except DandelionError as error:
            self._placement.not_sent(name, self.backend)
            finish(self.events, call, None, error)

    def _sizes(self, call: CallState) -> tuple[int, dict[str, int]]:
        """Return the size of a call's inputs, and of those that lie on other nodes already."""
        there: dict[str, int] = {}
        size = 0
        for one in call.run.inputs:
            for item in () if one is None else one.items:
                size += item.size_bytes
                if item.size_bytes >= SHARED_BYTES:
                    for name, link in self._links.items():
                        if link.exchange.place_of(item.data) is not None:
                            there[name] = there.get(name, 0) + item.size_bytes
        return size, there

    def stop(self, call: CallState) -> None:
        for link in self._links.values():
            link.stop(call)

    def forget(self, flow: Flow) -> None:
        self._placement.forget(flow)
        for link in self._links.values():
            link.forget(flow)

    def close(self) -> None:
        """There is nothing of it; its links are closed with the cluster."""
