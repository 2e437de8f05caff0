"""Figures 5.3 to 5.7 of the GPU thesis: a layer of a network, repeated, and on batches of images.

A convolution, a ReLU and a max-pooling of images of 224 x 224; so many repetitions stand for a
network that is so deep.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..experiment import Bench, experiment
from ..records import Axis, Claim, Findings
from ..systems import names
from ..systems.bare import inference_work
from ..systems.contenders import Lineup, dedicated, gpu_node, process_node
from .thesis import (
    CONCURRENT,
    FIXED_RATE,
    LOAD,
    Curve,
    against,
    claim,
    curves_of,
    panel,
    raised,
    same,
    us,
    varied,
)

DEPTH = 500


@experiment(
    "thesis_5_3", group="thesis", source="GPU thesis, Fig. 5.3",
    question="from which depth of a network on is a GPU worth its copies?",
)  # fmt: skip
def depth(bench: Bench) -> Findings:
    """Vary the repetitions at a fixed load."""
    depths = bench.pick((1, 5), (1, 2, 5, 10, 20), (1, 10, 50, 100, 250, 500))
    rate = bench.pick(10.0, 10.0, FIXED_RATE)
    points = [(float(times), inference_work(times)) for times in depths]
    works = [work for _, work in points]
    nodes = [gpu_node(bench, 0, works), gpu_node(bench, 2, works), process_node(works)]
    with Lineup(bench, [*nodes, *dedicated(bench, works)]) as lineup:
        curves = varied(bench, lineup.running, points, rate, bench.pick(0.4, 1.2, 1.5))
    title = f"A layer of a network, repeated, at {rate:g} requests in a second"
    axis = Axis("repetitions of the layer")
    return Findings(
        (panel("repetitions", title, axis, curves, names.DEDICATED),),
        depth_claims(bench, curves),
        skips=tuple(lineup.skips),
        scaled=bench.pick("few repetitions, briefly", "few repetitions and requests", ""),
    )


def depth_claims(bench: Bench, curves: Sequence[Curve]) -> tuple[Claim, ...]:
    """Compare with Fig. 5.3."""
    found = curves_of(curves, names.SEQUENTIAL, CONCURRENT, names.PROCESS)
    sequential, concurrent, _ = found
    tails = [curve.quantile_us(0, 99.0) for curve in found]
    gain = tails[2] / max(tails[:2])
    half, whole = _per_repetition(sequential, -2), _per_repetition(sequential, -1)
    more = concurrent.base_us / sequential.base_us
    return (
        claim(
            bench, "5.3",
            "at a single repetition already, the p99 of the GPU engines is three to four times "
            "lower than that of the CPU engine",
            f"p99 {us(tails[0])} sequential, {us(tails[1])} concurrent, {us(tails[2])} CPU: "
            f"{gain:.1f}x",
            (gain,), gain >= 3,
        ),
        claim(
            bench, "5.3", "latency grows linearly with the repetitions",
            f"sequential, {half:.2f} us for each repetition up to the last but one number of "
            f"them, {whole:.2f} us up to the last",
            (half, whole), 0.8 < whole / half < 1.25,
        ),
        claim(
            bench, "5.3",
            "the concurrent engine's base latency is slightly higher than the sequential one's",
            f"{us(concurrent.base_us)} against {us(sequential.base_us)}: {more:.2f}x",
            (more,), 1.0 < more < 1.5,
        ),
    )  # fmt: skip


def _per_repetition(curve: Curve, index: int) -> float:
    """Give the microseconds that each repetition after the first adds, up to one of the points."""
    if len(curve.points) < 3:
        return math.nan
    (first, _), (last, _) = curve.points[0], curve.points[index]
    return (curve.quantile_us(index) - curve.base_us) / (last - first)


@experiment(
    "thesis_5_4", group="thesis", source="GPU thesis, Fig. 5.4",
    question="what load of a deep network do the engines and a dedicated server carry?",
)  # fmt: skip
def deep(bench: Bench) -> Findings:
    """Raise the load at 500 repetitions."""
    times = bench.pick(5, 10, DEPTH)
    rates = bench.pick((5.0, 40.0), (5.0, 20.0, 50.0, 100.0, 200.0),
                       (2.0, 50.0, 150.0, 250.0, 350.0, 450.0, 600.0))  # fmt: skip
    work = inference_work(times)
    nodes = [gpu_node(bench, 0, [work]), gpu_node(bench, 2, [work]), process_node([work])]
    with Lineup(bench, [*nodes, *dedicated(bench, [work])]) as lineup:
        curves = raised(bench, lineup.running, same(work), rates, bench.pick(0.4, 1.0, 1.2))
    title = f"{times} repetitions of a layer of a network under load"
    return Findings(
        (panel("deep", title, LOAD, curves, names.DEDICATED),),
        deep_claims(bench, curves),
        skips=tuple(lineup.skips),
        scaled="" if times == DEPTH else f"{times} repetitions instead of 500",
    )


def deep_claims(bench: Bench, curves: Sequence[Curve]) -> tuple[Claim, ...]:
    """Compare with Fig. 5.4."""
    sequential, concurrent, process, alone, graph = curves_of(
        curves, names.SEQUENTIAL, CONCURRENT, names.PROCESS, names.DEDICATED, names.DEDICATED_GRAPH
    )
    best = min((c.base_us for c in (alone, graph) if c.points), default=math.nan)
    worst = max(sequential.base_us, concurrent.base_us) / best
    words, ratio = against(concurrent, sequential)
    beside, level = against(alone, concurrent)
    return (
        claim(
            bench, "5.4a",
            "the CPU engine cannot keep up: its base latency is about 600 ms, and 125 cores carry "
            "200 requests in a second",
            f"base latency {us(process.base_us)}, throughput {process.throughput:.0f}/s; "
            f"sequential {us(sequential.base_us)}, {sequential.throughput:.0f}/s",
            (process.throughput, sequential.throughput),
            process.throughput < 0.5 * sequential.throughput,
        ),
        claim(
            bench, "5.4b",
            "the GPU engines' base latency is similar to that of the dedicated server",
            f"{us(sequential.base_us)} sequential, {us(concurrent.base_us)} concurrent, "
            f"{us(alone.base_us)} dedicated launching one by one, {us(best)} the better dedicated "
            "one",
            (worst, alone.base_us), worst <= 1.25,
        ),
        claim(
            bench, "5.4b", "the concurrent engine carries twice the load of the sequential one",
            words, (ratio,), ratio >= 1.75, sequential, concurrent,
        ),
        claim(
            bench, "5.4b", "the dedicated server behaves like the concurrent engine",
            beside, (level,), 0.8 <= level <= 1.25, alone, concurrent,
        ),
    )  # fmt: skip


@experiment(
    "thesis_5_5", group="thesis", question="how many workers should share a GPU?",
    source="GPU thesis, Fig. 5.5",
)  # fmt: skip
def workers(bench: Bench) -> Findings:
    """Raise the load at 500 repetitions on nodes with more and more workers."""
    times = bench.pick(5, 10, DEPTH)
    counts = bench.pick((1, 2), (1, 2, 4), (1, 2, 4, 8))
    rates = bench.pick((5.0, 40.0), (10.0, 40.0, 80.0, 160.0),
                       (25.0, 150.0, 300.0, 450.0, 700.0, 1000.0, 1400.0))  # fmt: skip
    work = inference_work(times)
    with Lineup(bench, [gpu_node(bench, count, [work]) for count in (0, *counts)]) as lineup:
        curves = raised(bench, lineup.running, same(work), rates, bench.pick(0.4, 1.0, 1.0))
    title = f"{times} repetitions of a layer of a network under load, by workers"
    scaled = f"{times} repetitions instead of 500, at most {counts[-1]} workers"
    return Findings(
        (panel("workers", title, LOAD, curves, names.SEQUENTIAL),),
        worker_claims(bench, curves),
        skips=tuple(lineup.skips),
        scaled="" if times == DEPTH else scaled,
    )


def worker_claims(bench: Bench, curves: Sequence[Curve]) -> tuple[Claim, ...]:
    """Compare with Fig. 5.5."""
    two, four, eight = curves_of(curves, *(names.concurrent(count) for count in (2, 4, 8)))
    words, ratio = against(four, two)
    both = [x for x, load in two.points if load.count and not math.isnan(four.at(x))]
    rise = four.at(both[-1]) / two.at(both[-1]) if both else math.nan
    further = f", eight workers {eight.throughput:.0f}/s" if eight.points else ""
    return (
        claim(
            bench, "5.5",
            "base latencies are alike, but under load that of four workers is about twice that of "
            "two",
            f"base latency {us(two.base_us)} with two, {us(four.base_us)} with four; at the "
            f"highest common load four have {rise:.2f}x the latency of two",
            (rise,), four.base_us < 1.25 * two.base_us and rise >= 1.5,
        ),
        claim(
            bench, "5.5",
            "four workers carry no more than two: about 800 requests in a second on four GPUs",
            words + further, (ratio,), ratio <= 1.15, two, four,
        ),
    )  # fmt: skip


@experiment(
    "thesis_5_6", group="thesis", question="from which batch on is the GPU full?",
    source="GPU thesis, Fig. 5.6",
)  # fmt: skip
def batches(bench: Bench) -> Findings:
    """Vary the batch at a fixed load."""
    times = bench.pick(1, 2, DEPTH)
    rate = bench.pick(10.0, 10.0, FIXED_RATE)
    sizes = bench.pick((1, 2), (1, 2, 3, 4, 6, 10), (1, 2, 3, 4, 6, 8, 10))
    points = [(float(size), inference_work(times, size)) for size in sizes]
    works = [work for _, work in points]
    nodes = [gpu_node(bench, 0, works), gpu_node(bench, 2, works)]
    with Lineup(bench, [*nodes, *dedicated(bench, works)]) as lineup:
        curves = varied(bench, lineup.running, points, rate, bench.pick(0.4, 1.0, 1.5))
    title = f"{times} repetitions of a layer on a batch, at {rate:g} requests in a second"
    return Findings(
        (panel("batches", title, Axis("images in a batch"), curves, names.DEDICATED),),
        batch_claims(bench, curves),
        skips=tuple(lineup.skips),
        scaled="" if times == DEPTH else f"{times} repetitions, {rate:g} requests in a second",
    )


def batch_claims(bench: Bench, curves: Sequence[Curve]) -> tuple[Claim, ...]:
    """Compare with Fig. 5.6."""
    (sequential,) = curves_of(curves, names.SEQUENTIAL)
    one = sequential.at(1.0)
    two, three, ten = (sequential.at(size) / one for size in (2.0, 3.0, 10.0))
    return (
        claim(
            bench, "5.6",
            "latency rises only slightly from batch 1 to batch 2, before the GPU is full",
            f"sequential, {us(one)} at 1, {two:.2f}x at 2", (two,), two < 1.25,
        ),
        claim(
            bench, "5.6",
            "from batch 3 on the GPU is full, and latency grows linearly; batch 10 takes about 2.5 "
            "times as long as batch 1",
            f"sequential, {three:.2f}x at 3, {ten:.2f}x at 10", (three, ten), 2.0 <= ten <= 3.0,
        ),
    )  # fmt: skip


@experiment(
    "thesis_5_7", group="thesis", question="do workers still help where a call fills the GPU?",
    source="GPU thesis, Fig. 5.7",
)  # fmt: skip
def batches_under_load(bench: Bench) -> Findings:
    """Raise the load at batch 2 and at batch 8."""
    times = bench.pick(1, 2, DEPTH)
    rates = {
        2: bench.pick((5.0, 40.0), (10.0, 40.0, 100.0, 200.0), (25.0, 100.0, 200.0, 300.0, 450.0)),
        8: bench.pick((5.0, 20.0), (5.0, 20.0, 40.0, 80.0), (25.0, 75.0, 125.0, 200.0, 300.0)),
    }
    works = {size: inference_work(times, size) for size in rates}
    seconds = bench.pick(0.4, 1.0, 1.5)
    with Lineup(bench, [gpu_node(bench, n, list(works.values())) for n in (0, 2)]) as lineup:
        found = {
            n: raised(bench, lineup.running, same(work), rates[n], seconds, f"batch {n}, ")
            for n, work in works.items()
        }
    title = f"{times} repetitions of a layer on a batch of {{}} under load"
    return Findings(
        tuple(
            panel(f"batch-{size}", title.format(size), LOAD, curves, names.SEQUENTIAL)
            for size, curves in found.items()
        ),
        full_claims(bench, found),
        skips=tuple(lineup.skips),
        scaled="" if times == DEPTH else f"{times} repetitions, lower loads",
    )


def full_claims(bench: Bench, found: dict[int, list[Curve]]) -> tuple[Claim, ...]:
    """Compare with Fig. 5.7."""
    small, apart = against(*curves_of(found[2], CONCURRENT, names.SEQUENTIAL))
    large, full = against(*curves_of(found[8], CONCURRENT, names.SEQUENTIAL))
    return (
        claim(
            bench, "5.7a",
            "at batch 2, before the GPU is full, the concurrent engine carries about 1.75 times "
            "the load of the sequential one",
            small, (apart,), apart >= 1.5, *found[2],
        ),
        claim(
            bench, "5.7b",
            "at batch 8 the GPU is full with either engine: the concurrent one carries merely 25 "
            "requests in a second more",
            large, (full,), full < 1.25, *found[8],
        ),
    )  # fmt: skip
