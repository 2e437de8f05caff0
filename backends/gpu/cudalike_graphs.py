"""The graphs of `.cudalike`, captured of launches on one stream, or forked over several.

A forked capture begins on the device's stream, which is lane 0. Each other lane has a stream of its
own, which joins the capture by waiting for an event of it, and is joined again at the end. A wait
between two lanes is an event, recorded behind the launch that is waited for. Streams of lanes only
capture; nothing is launched on them outside of that.

A launch whose arguments will change is found by its node, which is what its stream would wait for
next. Nodes belong to the graph that was captured, so that is kept with the executable one.

Events of captures are never waited for by the host, which the drivers refuse. One is recorded anew
once all waits for it are captured, so a capture has few.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from dandelion.errors import DandelionError, DeviceFull

from .calls import Calls, Function
from .cudalike_code import Do, Prepared
from .forks import Forks

LANES = 8
"""As many connections to its device has a process by default, so more would share them."""
_WITHOUT_TIME = 2
_WAITS_FOR_NO_OTHER = 1

_Launched: TypeAlias = Callable[[int, Any], None]
"""Told of each launch: its place and stream."""


@dataclass(slots=True, eq=False)
class CapturedGraph:
    """A graph on a device.

    Attributes:
        executable: what is replayed.
        source: what it was made of; None if that is gone, since no node will change.
        nodes: of the launches that may change, by place: the node, and its parameters, which
            refer to the memory of the launch's arguments.
    """

    executable: Any
    source: Any
    nodes: Mapping[int, tuple[Any, Any]]


class Graphs:
    """The graphs of one device.

    Args:
        calls: of the driver.
        stream: of the device.
        do: gives the result of a call, or raises.
        undo: calls, and once more if it failed.
    """

    def __init__(self, calls: Calls, stream: Any, do: Do, undo: Callable[..., None]) -> None:
        self._calls = calls
        self._do = do
        self._undo = undo
        self._streams = [stream]
        self._events: list[Any] = []
        self._graphs: list[CapturedGraph] = []

    def chain(self, launch: Callable[[], None]) -> Any:
        """Give the graph of what is launched on the device's stream."""
        return self._captured(launch)

    def make(
        self, launches: Sequence[Prepared], forks: Forks | None, changing: Container[int]
    ) -> CapturedGraph | None:
        """Make a graph of prepared launches; None if there is no room.

        Args:
            launches: in an order in which they could be launched one by one.
            forks: which of them may run side by side; None for all in order.
            changing: places of the launches that may change.
        """
        calls, stream = self._calls, self._streams[0]
        found: dict[int, Any] = {}

        def launched(place: int, stream: Any) -> None:
            if place in changing:
                found[place] = self._do("capture", calls.last_captured(stream))

        if forks is None:
            source = self._captured(lambda: self._launch(launches, launched))
        else:
            self._make_streams(max(forks.lanes))
            source = self._captured(lambda: self._launch_forked(launches, forks, launched))
        made = None
        try:
            nodes = {
                place: (node, self._do("capture", calls.node(*launches[place].arguments)))
                for place, node in found.items()
            }
            executable = self._do("capture", calls.instantiate(source))
            made = CapturedGraph(executable, source if nodes else None, nodes)
        except DeviceFull:
            return None  # launching one by one takes no memory
        finally:
            if made is None or made.source is None:
                self._undo(calls.destroy_graph, source)
        self._graphs.append(made)
        try:
            self._do("capture", calls.upload(executable, stream))
        except DandelionError:
            self.release(made)
            raise
        return made

    def _make_streams(self, lanes: int) -> None:
        while len(self._streams) <= lanes:
            stream = self._do("capture", self._calls.create_stream(_WAITS_FOR_NO_OTHER))
            self._streams.append(stream)

    def update(self, graph: CapturedGraph, places: Iterable[int]) -> None:
        """Have launches of a graph take the arguments that they have now."""
        executable, nodes, set_node = graph.executable, graph.nodes, self._calls.set_node
        for place in places:
            answer = set_node(executable, *nodes[place])
            if answer[0]:
                self._do("update", answer)

    def release(self, graph: CapturedGraph) -> None:
        """Release a graph, if that was not done."""
        if graph in self._graphs:
            self._graphs.remove(graph)
            self._undo(self._calls.destroy_executable, graph.executable)
            if graph.source is not None:
                self._undo(self._calls.destroy_graph, graph.source)

    def release_all(self) -> None:
        """Release all graphs."""
        for graph in tuple(self._graphs):
            self.release(graph)

    def _captured(self, launch: Callable[[], None]) -> Any:
        calls, stream = self._calls, self._streams[0]
        self._do("capture", calls.begin_capture(stream))
        try:
            launch()
        except DandelionError:
            answer = calls.end_capture(stream)
            if not answer[0]:
                self._undo(calls.destroy_graph, answer[1])
            raise
        return self._do("capture", self._end_capture())

    def _end_capture(self) -> tuple[Any, ...]:
        """End it; a stream that still captures could do nothing else."""
        answer = self._calls.end_capture(self._streams[0])
        if answer[0]:
            again = self._calls.end_capture(self._streams[0])
            if not again[0]:
                self._undo(self._calls.destroy_graph, again[1])
        return answer

    def _launch(self, launches: Sequence[Prepared], launched: _Launched) -> None:
        for place, item in enumerate(launches):
            self._do("launch", item.call(*item.arguments))
            launched(place, self._streams[0])

    def _launch_forked(
        self, launches: Sequence[Prepared], forks: Forks, launched: _Launched
    ) -> None:
        """Launch on the streams of the lanes, with an event for each wait between two lanes."""
        left = Counter(wait for waits in forks.waits for wait in waits)
        free = list(self._events)
        recorded: dict[int, Any] = {}
        begin = self._record(self._streams[0], free)
        joined = {0}
        for place, (item, lane) in enumerate(zip(launches, forks.lanes, strict=True)):
            stream = self._streams[lane]
            for wait in forks.waits[place]:
                self._do("capture", self._calls.wait_event(stream, recorded[wait]))
                left[wait] -= 1
                if not left[wait]:
                    free.append(recorded.pop(wait))
            if lane not in joined and not forks.waits[place]:
                self._do("capture", self._calls.wait_event(stream, begin))
            joined.add(lane)
            self._do("launch", item.call(*self._arguments(item, stream)))
            launched(place, stream)
            if left[place]:
                recorded[place] = self._record(stream, free)
        free.append(begin)
        for lane in sorted(joined - {0}):
            event = self._record(self._streams[lane], free)
            self._do("capture", self._calls.wait_event(self._streams[0], event))
            free.append(event)

    def _arguments(self, item: Prepared, stream: Any) -> tuple[Any, ...]:
        """Give the arguments of a launch with another stream in the place of the device's."""
        own = self._streams[0]
        return tuple(stream if argument is own else argument for argument in item.arguments)

    def _record(self, stream: Any, free: list[Any]) -> Any:
        if not free:
            event = self._do("capture", self._calls.create_event(_WITHOUT_TIME))
            self._events.append(event)
            free.append(event)
        self._do("capture", self._calls.record(free[-1], stream))
        return free.pop()

    def close(self) -> None:
        """Release the events, and the streams of all lanes but the device's own."""
        release: list[tuple[Function, list[Any]]] = [
            (self._calls.destroy_event, self._events),
            (self._calls.destroy_stream, self._streams[1:]),
        ]
        for call, handles in release:
            for handle in handles:
                self._undo(call, handle)
        self._events, self._streams = [], self._streams[:1]
