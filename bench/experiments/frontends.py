"""How does the rate of no-ops over HTTP grow with the number of frontend processes?

Closed loops from several generators against one node with 1, 2, 4, ... frontends, in turns. With
one, HTTP is parsed in the node's process. The time of the node's process is what an invocation
costs the one thread that all frontends share: its inverse is the rate that no number of frontends
can pass.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dandelion.documents import RegistrationDocument

from ..experiment import Bench, experiment
from ..load import HttpRequest, LoadResult, closed_loop
from ..process_facts import children
from ..processes import ServerProcess
from ..records import Axis, Budget, Findings, Metric, Panel, Plot, Row, Unit
from ..samples import P50, P99, Samples
from ..systems.echoes import NULL, echo
from ..systems.nodes import node_server

BODY = b"x" * 64
CALLERS = 128
GENERATORS = 4
CORES = 16
"""With fewer, generators and frontends take each other's time, and the budget says nothing."""
FRONTENDS, BAR = 4, 3.2
RATE = Metric("rate", "right answers", Unit.PER_SECOND, better="higher")
OVER_ONE = Metric("ratio", "over one frontend", Unit.RATIO, drawn=False, better="higher")
NODE = Metric("node_us", "time of the node for each", Unit.US, drawn=False)
OTHERS = Metric("frontends_us", "time of the frontends for each", Unit.US, drawn=False)


@experiment(
    "http_frontends",
    group="dispatcher",
    question="How does the rate of no-ops over HTTP grow with the number of frontends?",
)
def http_frontends(bench: Bench) -> Findings:
    """Ask nodes with more and more frontends, each as fast as it answers."""
    cores = len(os.sched_getaffinity(0))
    counts = [1, 2] if bench.quick else [n for n in (1, 2, 4, 8) if n <= max(2, cores // 2)]
    rounds = 1 if bench.quick else 3
    best: dict[int, dict[str, float]] = {}
    loads: dict[int, LoadResult] = {}
    for _ in range(rounds):
        for count in counts:
            bench.say(f"{count} frontends")
            values, load = _measured(bench, count)
            if count not in best or values["rate"] > best[count]["rate"]:
                best[count], loads[count] = values, load
    for values in best.values():
        values["ratio"] = values["rate"] / best[1]["rate"]
    rows = tuple(
        Row("dandelion null", float(n), best[n], loads[n].count, loads[n].failed, loads[n].note)
        for n in counts
    )
    panel = Panel(
        "frontends", f"Closed loops of {CALLERS} clients: rate by the number of frontends",
        Axis("frontends", logarithmic=True), (RATE, OVER_ONE, P50, P99, NODE, OTHERS), rows,
        Plot.LINES,
    )  # fmt: skip
    notes = (f"The best of {rounds} rounds. Generators share the {cores} cores of this machine.",)
    return Findings((panel,), budgets=_budgets(best, cores), notes=notes)


def _measured(bench: Bench, count: int) -> tuple[dict[str, float], LoadResult]:
    document = RegistrationDocument(functions=(echo(NULL, "F"),))
    seconds, warm_up_s = (0.6, 0.3) if bench.quick else (4.0, 2.0)
    request = HttpRequest("/v1/invoke/F", BODY, expect=BODY)
    with node_server({"backends": [NULL], "frontends": count}, [document]) as server:
        frontends = _frontends(server)
        before = _cpu_s(server.pid), sum(map(_cpu_s, frontends))

        def generate(_: int) -> LoadResult:
            return closed_loop(
                server.port, request, callers=CALLERS // GENERATORS, seconds=seconds,
                warm_up_s=warm_up_s,
            )  # fmt: skip

        with ThreadPoolExecutor(GENERATORS) as generators:
            loads = list(generators.map(generate, range(GENERATORS)))
        after = _cpu_s(server.pid), sum(map(_cpu_s, frontends))
    latency = Samples([ns for load in loads for ns in load.latency.ns])
    rate = sum(load.achieved_per_s for load in loads)
    requests = rate * (seconds + warm_up_s)  # the processors' time is that of the warm-up, too
    values = latency.values() | {
        "rate": rate,
        "node_us": 1e6 * (after[0] - before[0]) / max(1.0, requests),
        "frontends_us": 1e6 * (after[1] - before[1]) / max(1.0, requests),
    }
    return values, max(loads, key=lambda load: (load.bottleneck, load.failed))


def _frontends(server: ServerProcess) -> list[int]:
    def is_frontend(pid: int) -> bool:
        return b"dandelion.frontend_process" in Path(f"/proc/{pid}/cmdline").read_bytes()

    return [pid for pid in children(server.pid) if is_frontend(pid)]


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _budgets(best: dict[int, dict[str, float]], cores: int) -> tuple[Budget, ...]:
    if FRONTENDS not in best or cores < CORES:
        return ()
    ratio = best[FRONTENDS]["ratio"]
    return (
        Budget(
            f"no-ops over HTTP with {FRONTENDS} frontends", f">= {BAR}x one", f"{ratio:.2f}x",
            ratio >= BAR,
        ),
    )  # fmt: skip
