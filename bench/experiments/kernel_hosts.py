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
from collections.abc import Iterator, Mapping

from ..experiment import Bench, experiment
from ..load import HttpRequest, LoadResult, closed_loop
from ..process_facts import processor_s
from ..records import Axis, Findings, Metric, Panel, Plot, Row, Skip, Unit, at_most
from ..samples import P50, P99, RATE
from ..systems.functions import KernelChain, network, vector_addition
from ..systems.nodes import MIB, gpu_settings, node_server

UNCONFINED = "unconfined"
THREADS, ALONE = "kernel hosts with threads", "kernel hosts without threads"
_DEVICES = "POCL_DEVICES"
KINDS: Mapping[str, str] = {UNCONFINED: "pthread", THREADS: "pthread", ALONE: "basic"}
MOST_RATIO = 2.0
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
        rows = []
        for kind in KINDS:
            bench.say(f"{chain.name}, {kind}")
            rows += _measured(bench, chain, kind)
        for row in rows:
            base = next(r for r in rows if (r.system, r.x) == (UNCONFINED, row.x))
            row.values["ratio"] = row.values["processor"] / base.values["processor"]
        title = f"{chain.name} over HTTP"
        panels.append(
            Panel(
                f"kernel_hosts_{chain.function}", title, Axis("callers"),
                (P50, P99, RATE, PROCESSOR, OVER), tuple(rows), Plot.BARS, UNCONFINED,
            )
        )  # fmt: skip
        if not bench.quick:
            found = next(r for r in rows if r.system == ALONE)
            what = f"{chain.name}, processor time of a call in kernel hosts without threads"
            budgets.append(at_most(what, found.values["ratio"], MOST_RATIO, "x", of=" unconfined"))
    return Findings(tuple(panels), budgets=tuple(budgets))


def _measured(bench: Bench, chain: KernelChain, kind: str) -> list[Row]:
    options = {"unconfined": "true"} if kind == UNCONFINED else {}
    settings = gpu_settings("opencl", 0, "64M", 256 * MIB, **options) | {"cache_bytes": 0}
    rows = []
    with _devices(KINDS[kind]), node_server(settings, (chain.document,), engines=1) as server:
        request = HttpRequest(f"/v1/invoke/{chain.function}", chain.body)
        _load(server.port, request, 1, 0.2 if bench.quick else 2.0)
        for callers in (1, 8):
            before_s = processor_s(server.pid)
            load = _load(server.port, request, callers, bench.pick(0.3, 4.0, 4.0))
            used_s = processor_s(server.pid) - before_s
            values = load.values() | {"processor": used_s / max(load.count, 1) * 1e6}
            rows.append(Row(kind, str(callers), values, load.count, load.failed, load.note))
    return rows


def _load(port: int, request: HttpRequest, callers: int, seconds: float) -> LoadResult:
    return closed_loop(port, request, callers=callers, seconds=seconds, warm_up_s=0.0)


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
