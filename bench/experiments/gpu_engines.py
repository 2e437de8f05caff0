"""What the sequential engine costs over the same work in a bare loop over the vendor's binding.

Bare loop and engine take turns in one process, a block of calls each, so that both have the same
clock rates. A hot call is timed from making the `Call` to having its outputs; zeroing happens
between calls, as in a node, and is timed separately. Every result is checked against numpy's before
anything is timed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from dandelion.errors import BackendUnavailable
from dandelion.node import Node

from ..experiment import Bench, experiment
from ..records import (
    Axis,
    Budget,
    Findings,
    Panel,
    Plot,
    Row,
    Skip,
    at_least,
    at_most,
)
from ..samples import LATENCIES, Samples, row
from ..systems import names
from ..systems.bare import (
    BareDevice,
    Workload,
    agrees,
    bare_device,
    example_body,
    inference_work,
    matmul_work,
    ticks_work,
)
from ..systems.bare_cuda import CudaLikeStream
from ..systems.engines import LocalGpuEngine, PreparedCall, ticks
from ..systems.functions import gpu_code
from ..systems.nodes import MIB, gpu_settings, one_item, open_node, pool_for
from ..timing import in_turns

BARE_GRAPH = "bare loop, graph"
TO_PROCESS, THROUGH_NODE = "a call to its process", "a call through a node"
SEQUENTIAL_US, PROCESS_US, NODE_US = 15.0, 40.0, 60.0
REST_S = 0.005  # engine processes poll for their next call for up to 3 ms
MESSAGES = (
    "two messages between processes take about 40 us while all are awake: naming the data, "
    "encoding, a system call and a look at each end; a node's bookkeeping takes about 40 us more"
)
_ENGINES = ((names.SEQUENTIAL, 0), (names.concurrent(2), 2))

Actions = dict[str, Callable[[], object]]


def checked(prepared: PreparedCall, right: Callable[[Any], bool]) -> PreparedCall:
    """Make a call three times, so that it runs as a graph, and check each result.

    Args:
        prepared: the call.
        right: returns whether a result, as bytes, is what it should be.

    Raises:
        ValueError: a result is wrong.
    """
    for _ in range(3):
        prepared.call()
        if not right(prepared.result(np.uint8).tobytes()):
            raise ValueError("the engine gives a wrong result")
        prepared.clean_up()
    return prepared


@contextlib.contextmanager
def opened(bench: Bench) -> Iterator[tuple[BareDevice, LocalGpuEngine]]:
    """Open the device twice: bare, and for an engine in this process."""
    with LocalGpuEngine(bench.backend) as local, bare_device(bench.backend) as bare:
        yield bare, local


@contextlib.contextmanager
def gpu_node(bench: Bench, workers: int) -> Iterator[Node]:
    """Start a node in this process whose device has so many workers."""
    settings = gpu_settings(bench.backend, workers, pool_for(bench.gpu), 512 * MIB)
    with open_node(settings, workers + 1) as node:
        yield node


def bare_stream(
    closing: contextlib.ExitStack, bare: BareDevice, work: Workload, body: bytes,
    right: Callable[[bytes], bool], *, graph: bool = False,
) -> Any:  # fmt: skip  # BareStream, or its kind with zeroing
    """Open a stream of a workload, and check its result."""
    stream = closing.enter_context(bare.stream(work, graph=graph))
    if not right(stream.run(body)):
        raise ValueError("the bare loop gives a wrong result")
    return stream


@experiment(
    "gpu_matmul", group="gpu", question="what does a hot call of one kernel cost over a bare loop?",
    needs_device=True,
)  # fmt: skip
def hot_matmul(bench: Bench) -> Findings:
    """One launch between two copies of 128 KiB: bare, by an engine here, through a node."""
    skips: list[Skip] = []
    with opened(bench) as (bare, local), contextlib.ExitStack() as closing:
        timed = _time_matmul(bench, bare, local, closing, skips)
    rows = [row(system, what, samples) for (what, system), samples in timed.items()]
    title = "A product of 128 x 128 integers, hot"
    panel = Panel(
        "matmul", title, Axis("what is done"), LATENCIES, tuple(rows), Plot.BARS, names.BARE
    )
    return Findings((panel,), budgets=matmul_budgets(bench, timed), skips=tuple(skips))


def _time_matmul(
    bench: Bench, bare: BareDevice, local: LocalGpuEngine, closing: contextlib.ExitStack,
    skips: list[Skip],
) -> dict[tuple[str, str], Samples]:  # fmt: skip
    """Time all ways in turns, by what is done and the system."""
    work = matmul_work()
    body = example_body(work)

    def right(reply: bytes) -> bool:
        return agrees(work, body, reply)

    held = checked(local.prepared(gpu_code(work), {"A": body}), right)
    stream = bare_stream(closing, bare, work, body, right)
    call, zeroed = "a call", "a call and its zeroing"
    actions: dict[tuple[str, str], Callable[[], object]] = {
        (call, names.BARE): stream.go, (call, names.SEQUENTIAL): held.call,
    }  # fmt: skip
    after: dict[tuple[str, str], Callable[[], object]] = {(call, names.SEQUENTIAL): held.clean_up}
    to_process: dict[tuple[str, str], list[int]] = {}
    for name, workers in _ENGINES:
        bench.say(f"starting {name}")
        try:
            node = closing.enter_context(gpu_node(bench, workers))
        except BackendUnavailable as error:
            skips.append(Skip(name, str(error)))
            continue
        node.register(functions=[gpu_code(work)])
        given = NodeCall(node, work, body)
        for _ in range(4 * (workers + 1)):
            given.call()
            if not right(given.reply()):
                raise ValueError(f"{name} gives a wrong result")
        actions[THROUGH_NODE, name], after[THROUGH_NODE, name] = given.call, given.note
        to_process[TO_PROCESS, name] = given.to_process_ns
    if isinstance(stream, CudaLikeStream):
        actions |= {(zeroed, names.BARE): stream.go_and_zero,
                    (zeroed, names.SEQUENTIAL): held.call_and_clean_up}  # fmt: skip
        after |= {(zeroed, names.BARE): stream.wait, (zeroed, names.SEQUENTIAL): held.clean_up}
    bench.say("timing")
    keys = {f"{what}/{name}": (what, name) for what, name in actions}
    timed = in_turns(
        {text: actions[key] for text, key in keys.items()}, count=bench.pick(30, 200, 2000),
        after={text: after[key] for text, key in keys.items() if key in after}, block=100,
        rest_s=REST_S,
    )  # fmt: skip
    found = {keys[text]: samples for text, samples in timed.items()}
    count = found[call, names.BARE].count
    noted = {key: Samples(ns[-count:]) for key, ns in to_process.items()}
    order = (call, TO_PROCESS, THROUGH_NODE, zeroed)
    return dict(sorted((found | noted).items(), key=lambda item: order.index(item[0][0])))


class NodeCall:
    """A call of a workload through a node.

    Attributes:
        to_process_ns: how long the engine process had each call, from the node's traces.
    """

    def __init__(self, node: Node, work: Workload, body: bytes) -> None:
        self._node, self._work = node, work
        self._sets = one_item(work.entry, node.acquire(len(body)).write(0, body))
        self._last: Any = None  # what invoke_sets gives
        self.to_process_ns: list[int] = []

    def call(self) -> None:
        """Make the call."""
        self._last = self._node.invoke_sets(self._work.name, self._sets)

    def reply(self) -> bytes:
        """Give the result of the last call."""
        return bytes(self._last.sets[self._work.result].only().data)

    def note(self) -> None:
        """Record the time in the process of the last call."""
        spans = [s for s in self._last.trace.spans if s.name == self._work.name]
        own = [s for s in spans if s.track not in ("queue", "invocation")]
        self.to_process_ns.append(own[-1].end_ns - own[-1].start_ns)
        self._last = None


def matmul_budgets(
    bench: Bench, timed: dict[tuple[str, str], Samples]
) -> tuple[Budget, ...]:  # fmt: skip
    """Judge a GPU's values."""
    if not bench.gpu:
        return ()
    bare = timed["a call", names.BARE].median
    path = "hot GPU call, sequential engine, in-process, over bare"
    over = timed["a call", names.SEQUENTIAL].median - bare
    return (
        at_most(path, over, SEQUENTIAL_US, " us"),
        *(
            at_most(f"hot GPU call, {name}, {what}, over bare", samples.median - bare,
                    PROCESS_US if what == TO_PROCESS else NODE_US, " us", MESSAGES)
            for (what, name), samples in timed.items()
            if what in (TO_PROCESS, THROUGH_NODE)
        ),
    )  # fmt: skip


@experiment(
    "gpu_launches", group="gpu", needs_device=True,
    question="what do many launches cost, one by one, as a bare graph, and by an engine?",
)  # fmt: skip
def launches(bench: Bench) -> Findings:
    """One block of one kernel, again and again, between two copies of 8 bytes."""
    counts = bench.pick((1, 10), (1, 10, 100), (1, 2, 3, 4, 6, 10, 100, 1500))
    rows: list[Row] = []
    timed: dict[str, Samples] = {}
    with opened(bench) as (bare, local):
        for count in counts:
            bench.say(f"{count} launches")
            timed = _time_launches(bench, bare, local, count)
            rows += [row(system, float(count), found) for system, found in timed.items()]
        reason = "" if bare.graphs else "OpenCL has no graphs: run it on CUDA or HIP"
    title = "Launches of one block, with everything around them"
    baseline = names.BARE if reason else BARE_GRAPH
    panel = Panel("launches", title, Axis("launches", logarithmic=True), LATENCIES, tuple(rows),
                  baseline=baseline)  # fmt: skip
    return Findings(
        (panel,),
        budgets=launch_budgets(bench, counts[-1], timed),
        skips=(Skip(BARE_GRAPH, reason),) if reason else (),
        scaled=bench.pick("few launches", "at most 100 launches", ""),
    )


def _time_launches(
    bench: Bench, bare: BareDevice, local: LocalGpuEngine, times: int
) -> dict[str, Samples]:
    """Time so many launches in all ways, in turns."""

    def right(reply: bytes) -> bool:
        return bool(np.frombuffer(reply, np.int64)[0] == times)

    held = checked(local.prepared(ticks(times), {"x": bytes(8)}), right)
    actions: Actions = {names.SEQUENTIAL: held.call}
    with contextlib.ExitStack() as closing:
        for name, graph in ((names.BARE, False), (BARE_GRAPH, True)):
            if not graph or bare.graphs:
                work = ticks_work(times)
                actions[name] = bare_stream(closing, bare, work, bytes(8), right, graph=graph).go
        count, after = bench.pick(20, 100, 300), {names.SEQUENTIAL: held.clean_up}
        return in_turns(actions, count=count, after=after, block=5)


def launch_budgets(bench: Bench, times: int, timed: dict[str, Samples]) -> tuple[Budget, ...]:
    """Judge a GPU's values for the most launches."""
    if not bench.gpu or BARE_GRAPH not in timed:
        return ()
    ours = timed[names.SEQUENTIAL].median
    return (
        at_most(f"{times}-launch blueprint, hot, over one bare graph",
                ours / timed[BARE_GRAPH].median, 1.15, "x"),
        at_least(f"{times} launches one by one, over the blueprint",
                 timed[names.BARE].median / ours, 3.0, "x",
                 "what one launch costs the host is the machine's; the blueprint is held against a "
                 "graph"),
    )  # fmt: skip


@experiment(
    "gpu_inference", group="gpu", question="what does a deep network cost over one bare graph?",
    needs_device=True,
)  # fmt: skip
def deep(bench: Bench) -> Findings:
    """Three kernels, many times: the layer of `inference`."""
    work = inference_work(bench.pick(2, 10, 500))
    body = example_body(work)

    def right(reply: bytes) -> bool:
        return agrees(work, body, reply)

    with opened(bench) as (bare, local), contextlib.ExitStack() as closing:
        held = checked(local.prepared(gpu_code(work), {"images": body}), right)
        name = BARE_GRAPH if bare.graphs else names.BARE
        stream = bare_stream(closing, bare, work, body, right, graph=bare.graphs)
        bench.say("timing")
        timed = in_turns(
            {name: stream.go, names.SEQUENTIAL: held.call}, count=bench.pick(10, 50, 100),
            warm_up=3, after={names.SEQUENTIAL: held.clean_up}, block=5,
        )  # fmt: skip
    x = f"{work.times} repetitions"
    rows = tuple(row(system, x, found) for system, found in timed.items())
    title = "A layer of a network, repeated"
    panel = Panel("inference", title, Axis("what is done"), LATENCIES, rows, Plot.BARS, name)
    over_bare = timed[names.SEQUENTIAL].median / timed[name].median
    path = f"inference, {work.times} repetitions, hot, over one bare graph"
    budgets = (at_most(path, over_bare, 1.1, "x"),) if bench.gpu else ()
    return Findings((panel,), budgets=budgets, scaled="" if bench.gpu else x)


@experiment(
    "gpu_cold", group="gpu", needs_device=True,
    question="what does the first call of a function cost whose code is on the disk?",
)  # fmt: skip
def cold(bench: Bench) -> Findings:
    """The engine is ready, the function was compiled once, and nothing of it is loaded."""
    work = matmul_work()
    body = example_body(work)
    with opened(bench) as (_, local):
        held = checked(
            local.prepared(gpu_code(work), {"A": body}), lambda reply: agrees(work, body, reply)
        )
        bench.say("timing")

        def after() -> None:
            held.clean_up()
            held.forget()

        held.forget()
        count = bench.pick(3, 10, 30)
        timed = in_turns({"cold": held.call}, count=count, warm_up=1, after={"cold": after})["cold"]
    rows = (row(names.SEQUENTIAL, "first call", timed),)
    panel = Panel("cold", "A cold call", Axis("what is done"), LATENCIES, rows, Plot.BARS)
    line = at_most("cold: registered, code on disk, engine up", timed.median, 10_000, " us")
    return Findings((panel,), budgets=(line,) if bench.gpu else ())
