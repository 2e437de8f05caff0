"""What the sequential engine costs over the same work in a bare loop over the vendor's binding.

Bare and engine take turns in one process, a block of calls each, so that both see the same clocks.
A hot call is timed from making the `Call` to having its outputs; zeroing happens between calls, as
in a node, and is timed apart. Before anything is timed its result was held against numpy's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from dandelion.data import Item, ItemSet
from dandelion.errors import BackendUnavailable
from dandelion.node import Node, Settings

from ..columns import LATENCIES, row
from ..experiment import Bench, experiment
from ..histogram import Histogram
from ..records import Axis, Budget, Found, Look, Panel, Row, Skip
from ..systems import names
from ..systems.bare import (
    BareDevice,
    Work,
    agrees,
    bare_device,
    example_body,
    inference_work,
    matmul_work,
    ticks_work,
)
from ..systems.bare_cuda import CudaLikeLane
from ..systems.engine import EngineProcess, HeldCall, LocalEngine, ticks
from ..systems.entrants import POOL, gpu_code
from ..timing import in_turns

BARE_GRAPH = "bare loop, graph"
CONCURRENT = names.concurrent(2)
MIB = 1 << 20
TO_PROCESS, THROUGH_NODE = "a call to its process", "a call through a node"
SEQUENTIAL_US, NODE_US = 25.0, 60.0
REST_S = 0.005  # engine processes look for their next call for as long as 3 ms
MESSAGES = (
    "two messages between processes take about 40 us, with nobody asleep: naming the data, "
    "encoding, a system call and a look at each end; a node's bookkeeping takes about 40 us more"
)
GRAPH_RATIO, INFERENCE_RATIO, ONE_BY_ONE_RATIO = 1.15, 1.1, 3.0
COLD_US = 10_000.0


def checked(held: HeldCall, work: Work, body: bytes) -> HeldCall:
    """Make a call three times, so that it runs as a graph, and hold each result against numpy's.

    Raises:
        ValueError: a result is wrong.
    """
    for _ in range(3):
        held.call()
        if not agrees(work, body, held.result(np.uint8).tobytes()):
            raise ValueError(f"the engine gives a wrong result for {work.name}")
        held.settle()
    return held


@contextlib.contextmanager
def opened(bench: Bench) -> Iterator[tuple[BareDevice, LocalEngine] | Skip]:
    """Open the device twice: bare, and for an engine in this process."""
    with contextlib.ExitStack() as closing:
        try:
            local = closing.enter_context(LocalEngine(bench.backend))
            bare = closing.enter_context(bare_device(bench.backend))
        except BackendUnavailable as error:
            yield Skip(names.SEQUENTIAL, str(error))
            return
        yield bare, local


def under(path: str, measured: float, limit: float, unit: str, why: str = "") -> Budget:
    """Make a line of the budget with an upper bound."""
    ok = measured <= limit
    return Budget(path, f"<= {limit:g}{unit}", f"{measured:.2f}{unit}", ok, "" if ok else why)


def over(path: str, measured: float, limit: float, unit: str, why: str = "") -> Budget:
    """Make a line of the budget with a lower bound."""
    ok = measured >= limit
    return Budget(path, f">= {limit:g}{unit}", f"{measured:.3g}{unit}", ok, "" if ok else why)


def median(timed: Histogram) -> float:
    """Give the median in microseconds."""
    found: float = timed.percentile(50.0)
    return found


@experiment(
    "gpu_matmul",
    group="gpu",
    question="what does a hot call of one kernel cost over a bare loop?",
)
def hot_matmul(bench: Bench) -> Found:
    """One launch between two copies of 128 KiB: bare, by an engine here, through a node."""
    with opened(bench) as got:
        if isinstance(got, Skip):
            return Found((), skips=(got,))
        bare, local = got
        timed, skips = time_matmul(bench, bare, local)
    rows = [
        row(names.BARE, "a call", timed["bare"]),
        row(names.SEQUENTIAL, "a call", timed["engine"]),
        *(
            row(name, what, timed[f"{name}, {what}"])
            for what in (TO_PROCESS, THROUGH_NODE)
            for name in (names.SEQUENTIAL, CONCURRENT)
            if f"{name}, {what}" in timed
        ),
    ]
    if "bare, zeroed" in timed:
        rows += [
            row(names.BARE, "a call and its zeroing", timed["bare, zeroed"]),
            row(names.SEQUENTIAL, "a call and its zeroing", timed["engine, zeroed"]),
        ]
    title = "A product of 128 x 128 integers, hot"
    panel = Panel(
        "matmul", title, Axis("what is done"), LATENCIES, tuple(rows), Look.BARS, names.BARE
    )
    return Found((panel,), budgets=matmul_budgets(bench, timed), skips=tuple(skips))


def time_matmul(
    bench: Bench, bare: BareDevice, local: LocalEngine
) -> tuple[dict[str, Histogram], list[Skip]]:
    """Time all ways in turns; keys are the systems, and "zeroed" where zeroing is waited for."""
    work = matmul_work()
    body = example_body(work)
    held = checked(local.held(gpu_code(work), {"A": body}), work, body)
    skips: list[Skip] = []
    with contextlib.ExitStack() as closing:
        lane = closing.enter_context(bare.lane(work))
        if not agrees(work, body, lane.run(body)):
            raise ValueError("the bare loop gives a wrong result")
        actions: dict[str, Callable[[], object]] = {"bare": lane.go, "engine": held.call}
        after: dict[str, Callable[[], object]] = {"engine": held.settle}
        if isinstance(lane, CudaLikeLane):
            actions |= {"bare, zeroed": lane.go_and_zero, "engine, zeroed": held.call_and_settle}
            after |= {"bare, zeroed": lane.wait, "engine, zeroed": held.settle}
        for name, workers in ((names.SEQUENTIAL, 0), (CONCURRENT, 2)):
            bench.say(f"starting {name}")
            process = closing.enter_context(EngineProcess(bench.backend, workers))
            sent = checked(process.held(gpu_code(work), {"A": body}), work, body)
            actions[f"{name}, {TO_PROCESS}"] = sent.call
            after[f"{name}, {TO_PROCESS}"] = sent.settle
            node = started(bench, workers, closing)
            if isinstance(node, Skip):
                skips.append(node)
                continue
            node.register(functions=[gpu_code(work)])
            sets = {"A": ItemSet("A", (Item("A", 0, node.acquire(len(body)).write(0, body)),))}
            call = partial(node.invoke_sets, work.name, sets)
            for _ in range(4 * (workers + 1)):
                found = call().sets[work.result]
                if found is None or not agrees(work, body, bytes(found.only().data)):
                    raise ValueError(f"{name} gives a wrong result")
            actions[f"{name}, {THROUGH_NODE}"] = call
        bench.say("timing")
        count = bench.pick(30, 200, 2000)
        return in_turns(actions, count=count, after=after, block=100, rest_s=REST_S), skips


def started(bench: Bench, workers: int, closing: contextlib.ExitStack) -> Node | Skip:
    """Start a node in this process whose device has so many workers, and wait for all of them."""
    name = names.concurrent(workers) if workers else names.SEQUENTIAL
    options = {bench.backend: {"workers": str(workers), "pool_bytes": POOL}}
    if not bench.gpu:
        options[bench.backend]["pool_bytes"] = "256M"
    settings = Settings(backends=(bench.backend,), options=options, arena_bytes=512 * MIB)
    node = closing.enter_context(Node(settings))
    while len([e for e in node.engines() if e.state == "ready"]) < workers + 1:
        there = node.engines()
        if not any(e.state in ("ready", "starting") for e in there) or any(
            e.name and e.reason for e in there
        ):
            return Skip(name, "; ".join(e.reason for e in there if e.reason))
        node.wait_ready(0.05)
    return node


def matmul_budgets(bench: Bench, timed: dict[str, Histogram]) -> tuple[Budget, ...]:
    """Hold a GPU's figures against the budget."""
    if not bench.gpu:
        return ()
    bare = median(timed["bare"])
    lines = [
        under("hot GPU call, sequential engine, in-process, over bare",
              median(timed["engine"]) - bare, SEQUENTIAL_US, " us"),
        *(
            under(f"hot GPU call, {name}, {what}, over bare",
                  median(timed[f"{name}, {what}"]) - bare, NODE_US, " us", MESSAGES)
            for what in (TO_PROCESS, THROUGH_NODE)
            for name in (names.SEQUENTIAL, CONCURRENT)
            if f"{name}, {what}" in timed
        ),
    ]  # fmt: skip
    return tuple(lines)


@experiment(
    "gpu_launches",
    group="gpu",
    question="what do many launches cost, one by one, as a bare graph, and by an engine?",
)
def launches(bench: Bench) -> Found:
    """One block of one kernel, again and again, between two copies of 8 bytes."""
    counts = bench.pick((1, 10), (1, 10, 100), (1, 2, 3, 4, 6, 10, 100, 1500))
    rows: list[Row] = []
    skips: list[Skip] = []
    timed: dict[str, Histogram] = {}
    with opened(bench) as got:
        if isinstance(got, Skip):
            return Found((), skips=(got,))
        bare, local = got
        for count in counts:
            bench.say(f"{count} launches")
            timed = time_launches(bench, bare, local, count)
            rows += [row(system, float(count), found) for system, found in timed.items()]
        if not bare.graphs:
            skips.append(Skip(BARE_GRAPH, "OpenCL has no graphs: run it on CUDA or HIP"))
    title = "Launches of one block, with everything around them"
    panel = Panel(
        "launches", title, Axis("launches", logarithmic=True), LATENCIES, tuple(rows),
        baseline=BARE_GRAPH if not skips else names.BARE,
    )  # fmt: skip
    return Found(
        (panel,),
        budgets=launch_budgets(bench, counts[-1], timed),
        skips=tuple(skips),
        scaled=bench.pick("few launches", "at most 100 launches", ""),
    )


def time_launches(
    bench: Bench, bare: BareDevice, local: LocalEngine, times: int
) -> dict[str, Histogram]:
    """Time so many launches in all ways, in turns."""
    held = local.held(ticks(times), {"x": bytes(8)})
    for _ in range(3):
        held.call()
        if held.result(np.int64)[0] != times:
            raise ValueError("the engine gives a wrong result")
        held.settle()
    actions: dict[str, Callable[[], object]] = {names.SEQUENTIAL: held.call}
    with contextlib.ExitStack() as closing:
        for name, graph in ((names.BARE, False), (BARE_GRAPH, True)):
            if not graph or bare.graphs:
                lane = closing.enter_context(bare.lane(ticks_work(times), graph=graph))
                if np.frombuffer(lane.run(bytes(8)), np.int64)[0] != times:
                    raise ValueError(f"{name} gives a wrong result")
                actions[name] = lane.go
        count = bench.pick(20, 100, 300)
        after = {names.SEQUENTIAL: held.settle}
        timed: dict[str, Histogram] = in_turns(actions, count=count, after=after, block=5)
        return timed


def launch_budgets(bench: Bench, times: int, timed: dict[str, Histogram]) -> tuple[Budget, ...]:
    """Hold a GPU's figures for the most launches against the budget."""
    if not bench.gpu or BARE_GRAPH not in timed:
        return ()
    ours = median(timed[names.SEQUENTIAL])
    return (
        under(f"{times}-launch blueprint, hot, over one bare graph",
              ours / median(timed[BARE_GRAPH]), GRAPH_RATIO, "x"),
        over(f"{times} launches one by one, over the blueprint",
             median(timed[names.BARE]) / ours, ONE_BY_ONE_RATIO, "x",
             "what one launch costs the host is the machine's; the blueprint is held against a "
             "graph"),
    )  # fmt: skip


@experiment(
    "gpu_inference",
    group="gpu",
    question="what does a deep network cost over one bare graph?",
)
def deep(bench: Bench) -> Found:
    """Three kernels, many times: the layer of `inference`."""
    work = inference_work(bench.pick(2, 10, 500))
    body = example_body(work)
    with opened(bench) as got:
        if isinstance(got, Skip):
            return Found((), skips=(got,))
        bare, local = got
        held = checked(local.held(gpu_code(work), {"images": body}), work, body)
        name = BARE_GRAPH if bare.graphs else names.BARE
        with bare.lane(work, graph=bare.graphs) as lane:
            if not agrees(work, body, lane.run(body)):
                raise ValueError("the bare loop gives a wrong result")
            bench.say("timing")
            timed = in_turns(
                {name: lane.go, names.SEQUENTIAL: held.call},
                count=bench.pick(10, 50, 100),
                warm_up=3,
                after={names.SEQUENTIAL: held.settle},
                block=5,
            )
    x = f"{work.times} repetitions"
    rows = tuple(row(system, x, found) for system, found in timed.items())
    title = "A layer of a network, repeated"
    panel = Panel("inference", title, Axis("what is done"), LATENCIES, rows, Look.BARS, name)
    over_bare = median(timed[names.SEQUENTIAL]) / median(timed[name])
    path = f"inference, {work.times} repetitions, hot, over one bare graph"
    budgets = (under(path, over_bare, INFERENCE_RATIO, "x"),) if bench.gpu else ()
    return Found((panel,), budgets=budgets, scaled="" if bench.gpu else x)


@experiment(
    "gpu_cold",
    group="gpu",
    question="what does the first call of a function cost whose code is on the disk?",
)
def cold(bench: Bench) -> Found:
    """The engine is up, the function was compiled once, and nothing of it is loaded."""
    work = matmul_work()
    body = example_body(work)
    with opened(bench) as got:
        if isinstance(got, Skip):
            return Found((), skips=(got,))
        held = checked(got[1].held(gpu_code(work), {"A": body}), work, body)
        bench.say("timing")

        def after() -> None:
            held.settle()
            held.forget()

        held.forget()
        timed = in_turns(
            {"cold": held.call}, count=bench.pick(3, 10, 30), warm_up=1, after={"cold": after}
        )
    rows = (row(names.SEQUENTIAL, "first call", timed["cold"]),)
    panel = Panel("cold", "A cold call", Axis("what is done"), LATENCIES, rows, Look.BARS)
    path = "cold: registered, code on disk, engine up"
    measured = median(timed["cold"])
    return Found((panel,), budgets=(under(path, measured, COLD_US, " us"),) if bench.gpu else ())
