"""What it gains that a node and its engine processes poll before they sleep.

The small network of `plover_cnn` is called in a program with a node, and over HTTP, by one caller
and by several; and by one caller beside processes that compute on all cores, whose work counts too.
One node of each kind polls for at most a millisecond, one sleeps at once. They take turns.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from functools import partial

import msgspec

from dandelion.errors import InternalError
from dandelion.node import Node
from dandelion.settings import Settings

from ..experiment import Bench, experiment
from ..http_client import fetch
from ..load import HttpRequest, closed_loop
from ..records import Axis, Findings, Metric, Panel, Plot, Row, Unit
from ..samples import P50, P99, RATE, Samples
from ..systems.functions import KernelChain, network
from ..systems.nodes import (
    MIB,
    gpu_settings,
    node_server,
    one_item,
    open_node,
    pool_for,
    wait_engines,
)
from ..timing import in_turns

SLEEPS, POLLS = "sleeping", "polling"
SPINS: Mapping[str, int] = {SLEEPS: 0, POLLS: 1000}
CALLERS = 8
TURNS = 16
BLOCK, QUICK_BLOCK = 200, 10
"""Calls of one kind in a row."""
BLOCKING, AWAITED = "a blocking call", "an awaited call"
ONE, MANY = "over HTTP, one caller", f"over HTTP, {CALLERS} callers"
BESIDE = "over HTTP, one caller, beside processes that compute"
DONE = Metric(
    "done_per_s", "steps of these processes", Unit.PER_SECOND, drawn=False, better="higher"
)
_DRAIN_S = 20.0
_COMPUTES = """
import sys, time
count, end = 0, time.perf_counter() + float(sys.argv[1])
while time.perf_counter() < end:
    sum(range(10000))
    count += 1
print(count)
"""


@experiment(
    "polling", group="gpu", needs_device=True,
    question="What does it gain that a node and its engines poll before they sleep?",
)  # fmt: skip
def polling(bench: Bench) -> Findings:
    """Call a network in all ways."""
    chain = network()
    rows = [*_blocking(bench, chain), *asyncio.run(_awaited(bench, chain)), *_served(bench, chain)]
    panel = Panel(
        "polling", f"{chain.name}, by how it is called", Axis("call"), (P50, P99, RATE, DONE),
        tuple(rows), Plot.BARS, SLEEPS,
    )  # fmt: skip
    return Findings((panel,))


def _settings(bench: Bench, kind: str) -> dict[str, object]:
    spins = {"spin_us": SPINS[kind], "engine_spin_us": SPINS[kind], "cache_bytes": 0}
    return gpu_settings(bench.backend, 0, pool_for(bench.gpu), 256 * MIB) | spins


def _row(kind: str, what: str, samples: Samples, seconds: float, **values: float) -> Row:
    values |= samples.values() | {"achieved_per_s": samples.count / seconds}
    return Row(kind, what, values, samples.count)


def _blocking(bench: Bench, chain: KernelChain) -> list[Row]:
    """Call two nodes in this process from its main thread."""
    sets = one_item(chain.work.entry, chain.body)
    block = bench.pick(QUICK_BLOCK, BLOCK, BLOCK)
    with contextlib.ExitStack() as closing:
        nodes = {
            kind: closing.enter_context(open_node(_settings(bench, kind), 1)) for kind in SPINS
        }
        for node in nodes.values():
            node.register(chain.document)
        bench.say(BLOCKING)
        timed = in_turns(
            {k: partial(node.invoke_sets, chain.function, sets) for k, node in nodes.items()},
            count=bench.pick(20, 4000, 10000), warm_up=block, block=block,
        )  # fmt: skip
    return [_row(kind, BLOCKING, found, sum(found.ns) / 1e9) for kind, found in timed.items()]


async def _awaited(bench: Bench, chain: KernelChain) -> list[Row]:
    """Await calls of two nodes on this loop."""
    sets = one_item(chain.work.entry, chain.body)
    block = bench.pick(QUICK_BLOCK, BLOCK, BLOCK)
    clock, found = time.perf_counter_ns, {kind: Samples([]) for kind in SPINS}
    async with contextlib.AsyncExitStack() as closing:
        nodes: dict[str, Node] = {}
        for kind in SPINS:
            settings = msgspec.convert(_settings(bench, kind), Settings)
            nodes[kind] = node = await closing.enter_async_context(Node(settings))
            await asyncio.to_thread(wait_engines, node, 1)
            await asyncio.to_thread(node.register, chain.document)
            for _ in range(block):
                await node.invoke_sets_async(chain.function, sets)
        bench.say(AWAITED)
        for _ in range(bench.pick(1, 20, 50)):
            for kind, node in nodes.items():
                for _ in range(block):
                    began_ns = clock()
                    await node.invoke_sets_async(chain.function, sets)
                    found[kind].ns.append(clock() - began_ns)
    return [_row(kind, AWAITED, samples, sum(samples.ns) / 1e9) for kind, samples in found.items()]


def _served(bench: Bench, chain: KernelChain) -> list[Row]:
    """Load two nodes in processes of their own."""
    request = HttpRequest(f"/v1/invoke/{chain.function}", chain.body)
    ways = ((ONE, 1, 0), (MANY, CALLERS, 0), (BESIDE, 1, len(os.sched_getaffinity(0))))
    found = {(what, kind): Samples([]) for what, _, _ in ways for kind in SPINS}
    seconds = dict.fromkeys(found, 0.0)
    done = dict.fromkeys(found, 0)
    with contextlib.ExitStack() as closing:
        servers = {
            kind: closing.enter_context(
                node_server(_settings(bench, kind), (chain.document,), engines=1)
            )
            for kind in SPINS
        }
        for kind, server in servers.items():
            for _ in range(bench.pick(1, BLOCK, BLOCK)):
                if not chain.expected(fetch(server.port, request)):
                    raise InternalError(f"{kind}: {chain.name} gave a wrong result")
        for _ in range(bench.pick(1, TURNS, TURNS)):
            for what, callers, others in ways:
                for kind, server in servers.items():
                    bench.say(f"{what}, {kind}")
                    length_s = 0.3 if bench.quick else 0.5
                    with _computing(others, length_s) as counts:
                        load = closed_loop(
                            server.port, request, callers=callers, seconds=length_s,
                            warm_up_s=0.0, drain_s=_DRAIN_S,
                        )  # fmt: skip
                    found[what, kind].ns += load.latency.ns
                    seconds[what, kind] += load.seconds
                    done[what, kind] += sum(counts)
    return [
        _row(
            kind,
            what,
            samples,
            seconds[what, kind],
            done_per_s=done[what, kind] / seconds[what, kind],
        )
        for (what, kind), samples in found.items()
    ]


@contextlib.contextmanager
def _computing(count: int, seconds: float) -> Iterator[list[int]]:
    """Run so many processes that compute; gives what each of them did, once they have ended."""
    command = [sys.executable, "-c", _COMPUTES, str(seconds)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(count)]
    counts: list[int] = []
    yield counts
    counts += [int(process.communicate()[0]) for process in running]
