"""What it costs that kernels on the host's processors run in processes of their own.

The small network of `plover_cnn` and a vector addition are called over HTTP, by one caller and by
several. A node runs them in its engine process (`unconfined`), in confined kernel hosts whose
OpenCL library has threads, and in those where the thread that launches a kernel runs it. By default
a node finds out which of the latter two is faster for each function; here it is told. Beside the
latency is the processor time of all processes of the node for each call, which depends less on what
else runs.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from dandelion.errors import InternalError

from ..experiment import Bench, experiment
from ..http_client import fetch
from ..load import HttpRequest, closed_loop
from ..process_facts import processor_s
from ..processes import ServerProcess
from ..records import Axis, Findings, Metric, Panel, Plot, Row, Skip, Unit, at_most
from ..samples import P50, P99, RATE, Samples
from ..systems.functions import KernelChain, network, vector_addition
from ..systems.nodes import MIB, gpu_settings, node_server

UNCONFINED = "unconfined"
THREADS, ALONE = "kernel hosts with threads", "kernel hosts without threads"
_DEVICES = "POCL_DEVICES"
KINDS: Mapping[str, str] = {UNCONFINED: "pthread", THREADS: "pthread", ALONE: "basic"}
MOST_RATIO = 2.0
TURNS = 6
_DRAIN_S = 20.0  # on a busy machine the last answers to eight callers may take more than a second
PROCESSOR = Metric("processor", "processor time of a call", Unit.US)
OVER = Metric("ratio", "processor time over unconfined", Unit.RATIO)


@experiment(
    "kernel_hosts", group="gpu", needs_device=True,
    question="what does it cost that kernels on processors run in processes of their own?",
)  # fmt: skip
def kernel_hosts(bench: Bench) -> Findings:
    """Call each function on each kind of node."""
    if bench.backend != "opencl" or bench.gpu:
        return Findings((), skips=(Skip("kernel hosts", "kernels run on a device of their own"),))
    panels, budgets = [], []
    for chain in (network(), vector_addition())[: bench.pick(1, 2, 2)]:
        rows = _measured(bench, chain)
        for row in rows:
            base = next(r for r in rows if (r.system, r.x) == (UNCONFINED, row.x))
            least_us = max(base.values["processor"], 1.0)  # it is counted in ticks
            row.values["ratio"] = row.values["processor"] / least_us
        panels.append(
            Panel(
                f"kernel_hosts_{chain.function}", f"{chain.name} over HTTP", Axis("callers"),
                (P50, P99, RATE, PROCESSOR, OVER), tuple(rows), Plot.BARS, UNCONFINED,
            )
        )  # fmt: skip
        found = next((r for r in rows if r.system == ALONE), None)
        if found is not None and not bench.quick:
            what = f"{chain.name}, processor time of a call in kernel hosts without threads"
            budgets.append(at_most(what, found.values["ratio"], MOST_RATIO, "x", of=" unconfined"))
    return Findings(tuple(panels), budgets=tuple(budgets))


@dataclass(slots=True)
class _Served:
    """What the node of one kind did for one number of callers."""

    latency: Samples
    processor_s: float = 0.0
    seconds: float = 0.0
    errors: Counter[str] = field(default_factory=Counter)

    def row(self, kind: str, callers: int) -> Row:
        count = self.latency.count
        values = self.latency.values()
        values["achieved_per_s"] = count / self.seconds
        values["processor"] = self.processor_s / max(count, 1) * 1e6
        reasons = ", ".join(f"{times} x {what}" for what, times in sorted(self.errors.items()))
        return Row(kind, str(callers), values, count, self.errors.total(), reasons)


def _measured(bench: Bench, chain: KernelChain) -> list[Row]:
    """Load the nodes in turns, while the others are idle."""
    request = HttpRequest(f"/v1/invoke/{chain.function}", chain.body)
    found = {(callers, kind): _Served(Samples([])) for callers in (1, 8) for kind in KINDS}
    with contextlib.ExitStack() as closing:
        nodes = {kind: closing.enter_context(_node(chain, kind)) for kind in KINDS}
        for kind, server in nodes.items():
            for _ in range(bench.pick(1, 50, 50)):
                if not chain.expected(fetch(server.port, request)):
                    raise InternalError(f"{kind}: {chain.name} gave a wrong result")
        for _ in range(bench.pick(1, TURNS, TURNS)):
            for (callers, kind), served in found.items():
                bench.say(f"{chain.name}, {callers} callers, {kind}")
                server = nodes[kind]
                before_s = processor_s(server.pid)
                load = closed_loop(
                    server.port, request, callers=callers,
                    seconds=0.3 if bench.quick else 1.0, warm_up_s=0.0, drain_s=_DRAIN_S,
                )  # fmt: skip
                served.processor_s += processor_s(server.pid) - before_s
                served.latency.ns += load.latency.ns
                served.seconds += load.seconds
                served.errors.update(load.errors)
    return [served.row(kind, callers) for (callers, kind), served in found.items()]


@contextlib.contextmanager
def _node(chain: KernelChain, kind: str) -> Iterator[ServerProcess]:
    unconfined = "true" if kind == UNCONFINED else "false"
    settings = gpu_settings("opencl", 0, "64M", 256 * MIB, unconfined=unconfined)
    settings |= {"cache_bytes": 0}
    with _devices(KINDS[kind]), node_server(settings, (chain.document,), engines=1) as server:
        yield server


@contextlib.contextmanager
def _devices(names: str) -> Iterator[None]:
    """Choose the devices of PoCL for processes that are started in here."""
    before = os.environ.get(_DEVICES)
    os.environ[_DEVICES] = names
    try:
        yield
    finally:
        del os.environ[_DEVICES]
        if before is not None:
            os.environ[_DEVICES] = before
