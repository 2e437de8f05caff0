"""Figures 5.1 and 5.2 of the GPU thesis: a small product of matrices, hot and cold."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence

from ..experiment import Bench, experiment
from ..load import HttpRequest
from ..records import Claim, Found
from ..systems import names
from ..systems.bare import Work, matmul_work
from ..systems.entrants import Entrant, Entrants, variants
from .thesis import (
    LOAD,
    Curve,
    Requests,
    Verdict,
    claim,
    curve_of,
    panel,
    raised,
    same,
    twice,
    unsure,
    us,
)

CONCURRENT = names.concurrent(2)
COLD_FUNCTIONS = 256
"""Enough that each has been dropped by every engine before its turn comes again: an engine keeps 64
modules, and each of two workers gets about half of the calls."""


@experiment(
    "thesis_5_1",
    group="thesis",
    question="what load of hot 128 x 128 products do the engines and a dedicated server carry?",
    source="GPU thesis, Fig. 5.1",
)
def hot(bench: Bench) -> Found:
    """Raise the load of a function that everybody has loaded."""
    rates = bench.pick((25.0, 100.0), (25.0, 50.0, 100.0, 200.0, 400.0, 800.0), GPU_RATES)
    work = matmul_work()
    with Entrants(bench, [work]) as entrants:
        entrants.node(0)
        entrants.node(2)
        entrants.process()
        entrants.dedicated()
        curves = raised(bench, entrants.all(), same(work), rates, bench.pick(0.4, 1.0, 1.0))
    title = "A hot product of 128 x 128 integers under load"
    return Found(
        (panel("hot", title, LOAD, curves, names.DEDICATED),),
        hot_claims(bench, curves),
        skips=tuple(entrants.skips),
        scaled=bench.pick("two loads, briefly", "lower loads, on processors", ""),
    )


GPU_RATES = (50.0, 500.0, 1000.0, 2000.0, 3000.0, 4000.0)


def hot_claims(bench: Bench, curves: Sequence[Curve]) -> tuple[Claim, ...]:
    """Hold Fig. 5.1 against what was measured."""
    sequential, concurrent = curve_of(curves, names.SEQUENTIAL), curve_of(curves, CONCURRENT)
    process = curve_of(curves, names.PROCESS)
    dedicated = curve_of(curves, names.DEDICATED)
    fastest = min(sequential.base_us, concurrent.base_us)
    most = max(sequential.throughput, concurrent.throughput)
    words, ratio = twice(curves, CONCURRENT, names.SEQUENTIAL)
    return (
        claim(
            "5.1a",
            "the dedicated server has a much lower base latency and a higher throughput than both "
            "GPU engines",
            Verdict(
                f"base latency {us(dedicated.base_us)} dedicated, {us(sequential.base_us)} "
                f"sequential, {us(concurrent.base_us)} concurrent; throughput "
                f"{dedicated.throughput:.0f}/s dedicated, {most:.0f}/s the better engine",
                (dedicated.base_us, fastest, most),
                dedicated.base_us < 0.7 * fastest and dedicated.throughput > most,
                unsure(bench, dedicated, sequential, concurrent),
            ),
        ),
        claim(
            "5.1b",
            "the base latency of the GPU engines is below that of the CPU engine",
            Verdict(
                f"{us(sequential.base_us)} sequential, {us(concurrent.base_us)} concurrent, "
                f"{us(process.base_us)} CPU",
                (sequential.base_us, concurrent.base_us, process.base_us),
                max(sequential.base_us, concurrent.base_us) < process.base_us,
                unsure(bench),
            ),
        ),
        claim(
            "5.1b",
            "the concurrent engine carries about twice the load of the sequential one",
            Verdict(words, (ratio,), ratio >= 1.75, unsure(bench, sequential, concurrent)),
        ),
    )


@experiment(
    "thesis_5_2",
    group="thesis",
    question="what does it cost if the functions that are called are cold?",
    source="GPU thesis, Fig. 5.2",
)
def cold(bench: Bench) -> Found:
    """Raise the load of functions of which none, one half, or all were called lately."""
    rates = bench.pick((10.0,), (5.0, 15.0), (25.0, 100.0, 400.0, 800.0))
    seconds = bench.pick(0.4, 0.8, 1.0)
    most = sum(math.ceil(rate * (seconds + 0.3)) + 2 for rate in rates)
    work = matmul_work()
    codes = variants(work, min(COLD_FUNCTIONS, 2 * most))
    with tempfile.TemporaryDirectory(prefix="dandelion-bench-") as folder:
        options = {"cache": folder} if bench.gpu else {}
        compiled(bench, codes, options)
        with Entrants(bench, [work], cold=codes, options=options) as entrants:
            entrants.node(0)
            entrants.node(2)
            entrants.process()
            found = {
                share: raised(
                    bench, entrants.all(), mixed(work, codes, share), rates, seconds, f"{share} % "
                )
                for share in (100, 50, 0)
            }
    title = "A product of 128 x 128 integers under load, {} % of the calls hot"
    panels = (panel(f"hot-{s}", title.format(s), LOAD, found[s]) for s in (0, 50, 100))
    return Found(
        tuple(panels),
        cold_claims(bench, found[100], found[0]),
        skips=tuple(entrants.skips),
        scaled=bench.pick("one load, briefly", "lower loads, on processors", ""),
        notes=(
            "Cold: no engine has the code loaded; it was compiled before, and comes from the disk.",
            "The dedicated server is left out, as in the thesis: its code is always there.",
        ),
    )


def compiled(bench: Bench, codes: Sequence[Work], options: dict[str, str]) -> None:
    """Let a node of its own compile all codes, so that others find them on the disk."""
    with Entrants(bench, [], cold=codes, options=options) as entrants:
        entrants.node(0)
        for entrant in entrants.all():
            bench.say(f"compiling {len(codes)} functions")
            for code in codes:
                entrant.request(code)


def mixed(work: Work, codes: Sequence[Work], hot_percent: int) -> Requests:
    """Ask for 100, 50 or 0 % of hot calls, and for cold codes, one after the other, in between."""
    asked: dict[str, int] = {}

    def requests(entrant: Entrant, count: int) -> Sequence[HttpRequest]:
        hot_call = entrant.request(work)
        if hot_percent == 100:
            return [hot_call]
        start = asked.get(entrant.name, 0)
        cold_calls = min(len(codes), count * (100 - hot_percent) // 100 + 1)
        asked[entrant.name] = start + cold_calls
        chosen = [codes[(start + i) % len(codes)] for i in range(cold_calls)]
        made = [entrant.unchecked(code, hot_call.body) for code in chosen]
        return made if not hot_percent else [r for call in made for r in (hot_call, call)]

    return requests


def cold_claims(
    bench: Bench, hot_curves: Sequence[Curve], cold_curves: Sequence[Curve]
) -> tuple[Claim, ...]:
    """Hold Fig. 5.2 against what was measured."""
    words = []
    figures = []
    slower = {}
    for system in (names.SEQUENTIAL, CONCURRENT, names.PROCESS):
        warm, cool = curve_of(hot_curves, system), curve_of(cold_curves, system)
        slower[system] = cool.base_us / warm.base_us
        figures.append(slower[system])
        words.append(f"{system} {us(warm.base_us)} hot, {us(cool.base_us)} cold")
    engines = (slower[names.SEQUENTIAL], slower[CONCURRENT])
    return (
        claim(
            "5.2",
            "cold calls raise the base latency of both GPU engines, and lower their throughput",
            Verdict("; ".join(words[:2]), tuple(figures[:2]), min(engines) > 1.2, unsure(bench)),
        ),
        claim(
            "5.2",
            "the base latency of the CPU engine rises only slightly, less than that of the GPU "
            "engines",
            Verdict(
                words[2],
                tuple(figures),
                slower[names.PROCESS] < min(1.25, *engines),
                unsure(bench),
            ),
        ),
    )
