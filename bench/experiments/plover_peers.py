"""PyPlover's network behind other servers: what does serving it over HTTP cost?"""

from __future__ import annotations

import contextlib

from ..experiment import Bench, experiment
from ..load import closed_loop
from ..records import Axis, Found, Metric, Panel, Row, Skip, Unit
from ..systems import names
from ..systems.peers_serving import entries, running
from ..systems.plover_chains import network

METRICS = (
    Metric("p50", "median latency", Unit.US, logarithmic=True),
    Metric("p99", "99th percentile", Unit.US, logarithmic=True, drawn=False),
    Metric("achieved_per_s", "requests", Unit.PER_SECOND, drawn=False, better="higher"),
)
NO_DEVICE = "no backend for GPU functions works here: pip install dandelion-engine[opencl]"


@experiment(
    "plover_peers",
    group="plover",
    question="what does it cost to serve the same small network in other ways?",
)
def peers(bench: Bench) -> Found:
    """Ask every server that is installed, in turns, with one caller and with several."""
    if not bench.backend:
        return Found((), skips=(Skip("plover_peers", NO_DEVICE),))
    chain = network()
    skips: list[Skip] = []
    rows: list[Row] = []
    counts = bench.pick((1,), (1, 8), (1, 8, 32))
    seconds = bench.pick(0.3, 1.0, 2.0)
    with contextlib.ExitStack() as stack:
        servers = []
        for entry in entries(bench, chain):
            bench.say(f"starting {entry.name}")
            found = stack.enter_context(running(entry, chain, skips))
            if found is not None:
                servers.append((entry.name, *found))
        for callers in counts:
            for name, server, request in servers:
                bench.say(f"{callers} callers, {name}")
                load = closed_loop(
                    server.port, request, callers=callers, seconds=seconds, warm_up_s=0.3
                )
                rows.append(Row(name, callers, load.values(), load.count, load.failed, load.note))
    title = f"{chain.name} over HTTP, callers that wait for their answers"
    axis = Axis("callers", logarithmic=True)
    return Found(
        (Panel("serving", title, axis, METRICS, tuple(rows), baseline=names.DEDICATED),),
        skips=tuple(skips),
        notes=(_SAME_WEIGHTS, _EACH),
    )


_SAME_WEIGHTS = (
    "Peers run the network in PyTorch, one launch after the other; the dedicated server and the "
    "node run our kernels. All have the same weights on the device, and results are compared."
)
_EACH = (
    "Only the node isolates: it zeroes what a request used, and a fault ends one engine. LitServe "
    "takes and gives JSON, Triton a little JSON before the bytes, all others bytes."
)
