"""Figures 5.3, 5.4 and 5.5 of the GPU thesis: a layer of a network, again and again.

A convolution, a ReLU and a max-pooling of one image of 224 x 224; so many repetitions stand for a
network that is so deep.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..experiment import Bench, experiment
from ..records import Axis, Claim, Found
from ..systems import names
from ..systems.bare import inference_work
from ..systems.entrants import Entrants
from .thesis import (
    FIXED_RATE,
    LOAD,
    Curve,
    Verdict,
    claim,
    curve_of,
    panel,
    raised,
    same,
    twice,
    unsure,
    us,
    varied,
)

CONCURRENT = names.concurrent(2)


@experiment(
    "thesis_5_3",
    group="thesis",
    question="from which depth of a network on is a GPU worth its copies?",
    source="GPU thesis, Fig. 5.3",
)
def depth(bench: Bench) -> Found:
    """Vary the repetitions at a fixed load."""
    depths = bench.pick((1, 5), (1, 2, 5, 10, 20), (1, 10, 50, 100, 250, 500))
    rate = bench.pick(10.0, 10.0, FIXED_RATE)
    works = [(float(times), inference_work(times)) for times in depths]
    with Entrants(bench, [work for _, work in works]) as entrants:
        entrants.node(0)
        entrants.node(2)
        entrants.process()
        entrants.dedicated()
        curves = varied(bench, entrants.all(), works, rate, bench.pick(0.4, 1.2, 1.5))
    axis = Axis("repetitions of the layer")
    title = f"A layer of a network, repeated, at {rate:g} requests in a second"
    return Found(
        (panel("repetitions", title, axis, curves, names.DEDICATED),),
        depth_claims(bench, curves),
        skips=tuple(entrants.skips),
        scaled=bench.pick("few repetitions, briefly", "few repetitions and requests", ""),
    )


def depth_claims(bench: Bench, curves: Sequence[Curve]) -> tuple[Claim, ...]:
    """Hold Fig. 5.3 against what was measured."""
    sequential, concurrent = curve_of(curves, names.SEQUENTIAL), curve_of(curves, CONCURRENT)
    process = curve_of(curves, names.PROCESS)
    tails = [curve.quantile_us(0, 99.0) for curve in (sequential, concurrent, process)]
    gain = tails[2] / max(tails[:2])
    half, whole = per_repetition(sequential, -2), per_repetition(sequential, -1)
    more = concurrent.base_us / sequential.base_us
    return (
        claim(
            "5.3",
            "at a single repetition already, the p99 of the GPU engines is three to four times "
            "lower than that of the CPU engine",
            Verdict(
                f"p99 {us(tails[0])} sequential, {us(tails[1])} concurrent, {us(tails[2])} CPU: "
                f"{gain:.1f}x",
                (gain,),
                gain >= 3,
                unsure(bench),
            ),
        ),
        claim(
            "5.3",
            "latency grows linearly with the repetitions",
            Verdict(
                f"sequential, {half:.2f} us for each repetition up to the last but one number of "
                f"them, {whole:.2f} us up to the last",
                (half, whole),
                0.8 < whole / half < 1.25,
                unsure(bench),
            ),
        ),
        claim(
            "5.3",
            "the concurrent engine's base latency is slightly higher than the sequential one's",
            Verdict(
                f"{us(concurrent.base_us)} against {us(sequential.base_us)}: {more:.2f}x",
                (more,),
                1.0 < more < 1.5,
                unsure(bench),
            ),
        ),
    )


def per_repetition(curve: Curve, index: int) -> float:
    """Give the microseconds that each repetition after the first adds, up to one of the points."""
    if len(curve.points) < 3:
        return float("nan")
    (first, _), (last, _) = curve.points[0], curve.points[index]
    return (curve.median_us(index) - curve.base_us) / (last - first)


@experiment(
    "thesis_5_4",
    group="thesis",
    question="what load of a deep network do the engines and a dedicated server carry?",
    source="GPU thesis, Fig. 5.4",
)
def deep(bench: Bench) -> Found:
    """Raise the load at 500 repetitions."""
    times = bench.pick(5, 10, 500)
    rates = bench.pick(
        (5.0, 40.0), (5.0, 20.0, 50.0, 100.0, 200.0), (2.0, 50.0, 150.0, 250.0, 350.0, 450.0, 600.0)
    )
    work = inference_work(times)
    with Entrants(bench, [work]) as entrants:
        entrants.node(0)
        entrants.node(2)
        entrants.process()
        entrants.dedicated()
        curves = raised(bench, entrants.all(), same(work), rates, bench.pick(0.4, 1.0, 1.2))
    title = f"{times} repetitions of a layer of a network under load"
    return Found(
        (panel("deep", title, LOAD, curves, names.DEDICATED),),
        deep_claims(bench, curves),
        skips=tuple(entrants.skips),
        scaled="" if times == 500 else f"{times} repetitions instead of 500",
    )


def deep_claims(bench: Bench, curves: Sequence[Curve]) -> tuple[Claim, ...]:
    """Hold Fig. 5.4 against what was measured."""
    sequential, concurrent = curve_of(curves, names.SEQUENTIAL), curve_of(curves, CONCURRENT)
    process, dedicated = curve_of(curves, names.PROCESS), curve_of(curves, names.DEDICATED)
    graph = curve_of(curves, names.DEDICATED_GRAPH)
    best = min((c.base_us for c in (dedicated, graph) if c.points), default=float("nan"))
    worst = max(sequential.base_us, concurrent.base_us) / best
    words, ratio = twice(curves, CONCURRENT, names.SEQUENTIAL)
    beside, level = twice(curves, names.DEDICATED, CONCURRENT)
    return (
        claim(
            "5.4a",
            "the CPU engine cannot keep up: its base latency is about 600 ms, and 125 cores carry "
            "200 requests in a second",
            Verdict(
                f"base latency {us(process.base_us)}, throughput {process.throughput:.0f}/s; "
                f"sequential {us(sequential.base_us)}, {sequential.throughput:.0f}/s",
                (process.throughput, sequential.throughput),
                process.throughput < 0.5 * sequential.throughput,
                unsure(bench),
            ),
        ),
        claim(
            "5.4b",
            "the GPU engines' base latency is similar to that of the dedicated server",
            Verdict(
                f"{us(sequential.base_us)} sequential, {us(concurrent.base_us)} concurrent, "
                f"{us(dedicated.base_us)} dedicated launching one by one, "
                f"{us(best)} the better dedicated one",
                (worst, dedicated.base_us),
                worst <= 1.25,
                unsure(bench),
            ),
        ),
        claim(
            "5.4b",
            "the concurrent engine carries twice the load of the sequential one",
            Verdict(words, (ratio,), ratio >= 1.75, unsure(bench, sequential, concurrent)),
        ),
        claim(
            "5.4b",
            "the dedicated server behaves like the concurrent engine",
            Verdict(beside, (level,), 0.8 <= level <= 1.25, unsure(bench, dedicated, concurrent)),
        ),
    )


@experiment(
    "thesis_5_5",
    group="thesis",
    question="how many workers should share a GPU?",
    source="GPU thesis, Fig. 5.5",
)
def workers(bench: Bench) -> Found:
    """Raise the load at 500 repetitions on nodes with more and more workers."""
    times = bench.pick(5, 10, 500)
    counts = bench.pick((1, 2), (1, 2, 4), (1, 2, 4, 8))
    rates = bench.pick(
        (5.0, 40.0), (10.0, 40.0, 80.0, 160.0), (25.0, 150.0, 300.0, 450.0, 700.0, 1000.0, 1400.0)
    )
    work = inference_work(times)
    with Entrants(bench, [work]) as entrants:
        entrants.node(0)
        for count in counts:
            entrants.node(count)
        curves = raised(bench, entrants.all(), same(work), rates, bench.pick(0.4, 1.0, 1.0))
    title = f"{times} repetitions of a layer of a network under load, by workers"
    scaled = f"{times} repetitions instead of 500, at most {counts[-1]} workers"
    return Found(
        (panel("workers", title, LOAD, curves, names.SEQUENTIAL),),
        worker_claims(bench, curves),
        skips=tuple(entrants.skips),
        scaled="" if times == 500 else scaled,
    )


def worker_claims(bench: Bench, curves: Sequence[Curve]) -> tuple[Claim, ...]:
    """Hold Fig. 5.5 against what was measured."""
    two, four = (curve_of(curves, names.concurrent(count)) for count in (2, 4))
    eight = curve_of(curves, names.concurrent(8))
    words, ratio = twice(curves, names.concurrent(4), CONCURRENT)
    same_load = [x for x, load in two.points if load.count and four.at(x) == four.at(x)]
    rise = four.at(same_load[-1]) / two.at(same_load[-1]) if same_load else float("nan")
    further = f", eight workers {eight.throughput:.0f}/s" if eight.points else ""
    return (
        claim(
            "5.5",
            "base latencies are alike, but under load that of four workers is about twice that of "
            "two",
            Verdict(
                f"base latency {us(two.base_us)} with two, {us(four.base_us)} with four; at the "
                f"highest common load four have {rise:.2f}x the latency of two",
                (rise,),
                four.base_us < 1.25 * two.base_us and rise >= 1.5,
                unsure(bench),
            ),
        ),
        claim(
            "5.5",
            "four workers carry no more than two: about 800 requests in a second on four GPUs",
            Verdict(words + further, (ratio,), ratio <= 1.15, unsure(bench, two, four)),
        ),
    )
