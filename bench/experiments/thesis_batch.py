"""Figures 5.6 and 5.7 of the GPU thesis: the layer of a network on a batch of images at once."""

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
DEPTH = 500


@experiment(
    "thesis_5_6",
    group="thesis",
    question="from which batch on is the GPU full?",
    source="GPU thesis, Fig. 5.6",
)
def batches(bench: Bench) -> Found:
    """Vary the batch at a fixed load."""
    times = bench.pick(1, 2, DEPTH)
    rate = bench.pick(10.0, 10.0, FIXED_RATE)
    sizes = bench.pick((1, 2), (1, 2, 3, 4, 6, 10), (1, 2, 3, 4, 6, 8, 10))
    works = [(float(size), inference_work(times, size)) for size in sizes]
    with Entrants(bench, [work for _, work in works]) as entrants:
        entrants.node(0)
        entrants.node(2)
        entrants.dedicated()
        curves = varied(bench, entrants.all(), works, rate, bench.pick(0.4, 1.0, 1.5))
    title = f"{times} repetitions of a layer on a batch, at {rate:g} requests in a second"
    return Found(
        (panel("batches", title, Axis("images in a batch"), curves, names.DEDICATED),),
        batch_claims(bench, curves),
        skips=tuple(entrants.skips),
        scaled="" if times == DEPTH else f"{times} repetitions, {rate:g} requests in a second",
    )


def batch_claims(bench: Bench, curves: Sequence[Curve]) -> tuple[Claim, ...]:
    """Hold Fig. 5.6 against what was measured."""
    sequential = curve_of(curves, names.SEQUENTIAL)
    one = sequential.at(1.0)
    two, three, ten = (sequential.at(size) / one for size in (2.0, 3.0, 10.0))
    return (
        claim(
            "5.6",
            "latency rises only slightly from batch 1 to batch 2, before the GPU is full",
            Verdict(f"sequential, {us(one)} at 1, {two:.2f}x at 2", (two,), two < 1.25,
                    unsure(bench)),
        ),
        claim(
            "5.6",
            "from batch 3 on the GPU is full, and latency grows linearly; batch 10 takes about 2.5 "
            "times as long as batch 1",
            Verdict(
                f"sequential, {three:.2f}x at 3, {ten:.2f}x at 10",
                (three, ten),
                2.0 <= ten <= 3.0,
                unsure(bench),
            ),
        ),
    )  # fmt: skip


@experiment(
    "thesis_5_7",
    group="thesis",
    question="do workers still help where a call fills the GPU?",
    source="GPU thesis, Fig. 5.7",
)
def batches_under_load(bench: Bench) -> Found:
    """Raise the load at batch 2 and at batch 8."""
    times = bench.pick(1, 2, DEPTH)
    rates = {
        2: bench.pick((5.0, 40.0), (10.0, 40.0, 100.0, 200.0), (25.0, 100.0, 200.0, 300.0, 450.0)),
        8: bench.pick((5.0, 20.0), (5.0, 20.0, 40.0, 80.0), (25.0, 75.0, 125.0, 200.0, 300.0)),
    }
    works = {size: inference_work(times, size) for size in rates}
    found: dict[int, list[Curve]] = {}
    with Entrants(bench, list(works.values())) as entrants:
        entrants.node(0)
        entrants.node(2)
        seconds = bench.pick(0.4, 1.0, 1.5)
        for size, work in works.items():
            found[size] = raised(
                bench, entrants.all(), same(work), rates[size], seconds, f"batch {size}, "
            )
    title = f"{times} repetitions of a layer on a batch of {{}} under load"
    return Found(
        tuple(
            panel(f"batch-{size}", title.format(size), LOAD, curves, names.SEQUENTIAL)
            for size, curves in found.items()
        ),
        full_claims(bench, found),
        skips=tuple(entrants.skips),
        scaled="" if times == DEPTH else f"{times} repetitions, lower loads",
    )


def full_claims(bench: Bench, found: dict[int, list[Curve]]) -> tuple[Claim, ...]:
    """Hold Fig. 5.7 against what was measured."""
    small, apart = twice(found[2], CONCURRENT, names.SEQUENTIAL)
    large, full = twice(found[8], CONCURRENT, names.SEQUENTIAL)
    return (
        claim(
            "5.7a",
            "at batch 2, before the GPU is full, the concurrent engine carries about 1.75 times "
            "the load of the sequential one",
            Verdict(small, (apart,), apart >= 1.5, unsure(bench, *found[2])),
        ),
        claim(
            "5.7b",
            "at batch 8 the GPU is full with either engine: the concurrent one carries merely 25 "
            "requests in a second more",
            Verdict(large, (full,), full < 1.25, unsure(bench, *found[8])),
        ),
    )
