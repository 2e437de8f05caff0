"""Figures 5.1 and 5.2 of the GPU thesis: a small product of matrices, hot and cold."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence

from ..experiment import Bench, experiment
from ..load import HttpRequest
from ..records import Claim, Findings
from ..systems import names
from ..systems.bare import Workload, matmul_work
from ..systems.contenders import Lineup, RunningContender, dedicated, gpu_node, process_node
from ..systems.functions import variants
from .thesis import (
    CONCURRENT,
    LOAD,
    Curve,
    RequestsOf,
    against,
    claim,
    curves_of,
    panel,
    raised,
    same,
    us,
)

COLD_FUNCTIONS = 256
"""Enough that every engine has dropped each before its next turn: an engine keeps 64 modules, and
each of two workers gets about half of the calls."""


@experiment(
    "thesis_5_1", group="thesis", source="GPU thesis, Fig. 5.1",
    question="what load of hot 128 x 128 products do the engines and a dedicated server carry?",
)  # fmt: skip
def hot(bench: Bench) -> Findings:
    """Raise the load of a function that all systems have loaded."""
    rates = bench.pick((25.0, 100.0), (25.0, 50.0, 100.0, 200.0, 400.0, 800.0),
                       (50.0, 500.0, 1000.0, 2000.0, 3000.0, 4000.0))  # fmt: skip
    work = matmul_work()
    nodes = [gpu_node(bench, 0, [work]), gpu_node(bench, 2, [work]), process_node([work])]
    with Lineup(bench, [*nodes, *dedicated(bench, [work])]) as lineup:
        curves = raised(bench, lineup.running, same(work), rates, bench.pick(0.4, 1.0, 1.0))
    title = "A hot product of 128 x 128 integers under load"
    return Findings(
        (panel("hot", title, LOAD, curves, names.DEDICATED),),
        hot_claims(bench, curves),
        skips=tuple(lineup.skips),
        scaled=bench.pick("two loads, briefly", "lower loads, on processors", ""),
    )


def hot_claims(bench: Bench, curves: Sequence[Curve]) -> tuple[Claim, ...]:
    """Compare with Fig. 5.1."""
    sequential, concurrent, process, alone = curves_of(
        curves, names.SEQUENTIAL, CONCURRENT, names.PROCESS, names.DEDICATED
    )
    fastest = min(sequential.base_us, concurrent.base_us)
    slowest = max(sequential.base_us, concurrent.base_us)
    most = max(sequential.throughput, concurrent.throughput)
    words, ratio = against(concurrent, sequential)
    return (
        claim(
            bench, "5.1a",
            "the dedicated server has a much lower base latency and a higher throughput than both "
            "GPU engines",
            f"base latency {us(alone.base_us)} dedicated, {us(sequential.base_us)} "
            f"sequential, {us(concurrent.base_us)} concurrent; throughput "
            f"{alone.throughput:.0f}/s dedicated, {most:.0f}/s the better engine",
            (alone.base_us, fastest, most),
            alone.base_us < 0.7 * fastest and alone.throughput > most,
            alone, sequential, concurrent,
        ),
        claim(
            bench, "5.1b",
            "the base latency of the GPU engines is below that of the CPU engine",
            f"{us(sequential.base_us)} sequential, {us(concurrent.base_us)} concurrent, "
            f"{us(process.base_us)} CPU",
            (sequential.base_us, concurrent.base_us, process.base_us),
            slowest < process.base_us,
        ),
        claim(
            bench, "5.1b",
            "the concurrent engine carries about twice the load of the sequential one",
            words, (ratio,), ratio >= 1.75, sequential, concurrent,
        ),
    )  # fmt: skip


@experiment(
    "thesis_5_2", group="thesis", source="GPU thesis, Fig. 5.2",
    question="what does it cost if the functions that are called are cold?",
)  # fmt: skip
def cold(bench: Bench) -> Findings:
    """Raise the load of functions of which none, one half, or all were called lately."""
    rates = bench.pick((10.0,), (5.0, 15.0), (25.0, 100.0, 400.0, 800.0))
    seconds = bench.pick(0.4, 0.8, 1.0)
    most = sum(math.ceil(rate * (seconds + 0.3)) + 2 for rate in rates)
    work = matmul_work()
    codes = variants(work, min(COLD_FUNCTIONS, 2 * most))
    with tempfile.TemporaryDirectory(prefix="dandelion-bench-") as folder:
        options = {"cache": folder} if bench.gpu else {}
        with Lineup(bench, [gpu_node(bench, 0, [], cold=codes, options=options)]) as compiling:
            for running in compiling.running:  # so that others find all codes on the disk
                bench.say(f"compiling {len(codes)} functions")
                for code in codes:
                    running.request(code)
        nodes = [gpu_node(bench, n, [work], cold=codes, options=options) for n in (0, 2)]
        with Lineup(bench, [*nodes, process_node([work], codes)]) as lineup:
            found = {
                share: raised(
                    bench, lineup.running, mixed(work, codes, share), rates, seconds, f"{share} % "
                )
                for share in (100, 50, 0)
            }
    title = "A product of 128 x 128 integers under load, {} % of the calls hot"
    panels = (panel(f"hot-{s}", title.format(s), LOAD, found[s]) for s in (0, 50, 100))
    return Findings(
        tuple(panels),
        cold_claims(bench, found[100], found[0]),
        skips=tuple(lineup.skips),
        scaled=bench.pick("one load, briefly", "lower loads, on processors", ""),
        notes=(
            "Cold: no engine has the code loaded; it was compiled before, and comes from the disk.",
            "The dedicated server is left out, as in the thesis: its code is always there.",
        ),
    )


def mixed(work: Workload, codes: Sequence[Workload], hot_percent: int) -> RequestsOf:
    """Ask for 100, 50 or 0 % of hot calls, and for cold codes, one after the other, in between."""
    requested: dict[str, int] = {}

    def requests(running: RunningContender, count: int) -> Sequence[HttpRequest]:
        hot_call = running.request(work)
        if hot_percent == 100:
            return [hot_call]
        start = requested.get(running.name, 0)
        cold_calls = min(len(codes), count * (100 - hot_percent) // 100 + 1)
        requested[running.name] = start + cold_calls
        chosen = [codes[(start + i) % len(codes)] for i in range(cold_calls)]
        made = [running.unchecked(code.name, hot_call.body) for code in chosen]
        return made if not hot_percent else [r for call in made for r in (hot_call, call)]

    return requests


def cold_claims(
    bench: Bench, hot_curves: Sequence[Curve], cold_curves: Sequence[Curve]
) -> tuple[Claim, ...]:
    """Compare with Fig. 5.2."""
    systems = (names.SEQUENTIAL, CONCURRENT, names.PROCESS)
    pairs = zip(curves_of(hot_curves, *systems), curves_of(cold_curves, *systems), strict=True)
    words, slower = [], []
    for warm, cool in pairs:
        slower.append(cool.base_us / warm.base_us)
        words.append(f"{warm.system} {us(warm.base_us)} hot, {us(cool.base_us)} cold")
    return (
        claim(
            bench, "5.2",
            "cold calls raise the base latency of both GPU engines, and lower their throughput",
            "; ".join(words[:2]), slower[:2], min(slower[:2]) > 1.2,
        ),
        claim(
            bench, "5.2",
            "the base latency of the CPU engine rises only slightly, less than that of the GPU "
            "engines",
            words[2], slower, slower[2] < min(1.25, *slower[:2]),
        ),
    )  # fmt: skip
