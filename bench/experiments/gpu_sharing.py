"""What workers that share a device buy.

Nodes in this process, one after the other, with no worker, two and eight, each asked by as many
threads as keep its engines busy; throughput is counted over a fixed time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from dandelion.compositions.inference import bundle as inference

from dandelion.documents import FunctionDocument, RegistrationDocument, gpu_function
from dandelion.function import Limits
from dandelion.node import Node

from ..columns import ACHIEVED
from ..experiment import Bench, experiment
from ..records import Axis, Budget, Found, Look, Metric, Panel, Row, Skip, Unit
from ..systems import names
from ..timing import throughput
from .gpu_engines import over, started

SHARED = (
    "its blocks fill a part of the units already: two bare processes under MPS, each replaying the "
    "same graph, reached 1.84 times one of them on an H200"
)
TWO, EIGHT = names.concurrent(2), names.concurrent(8)
RATIO = Metric("ratio", "over the sequential engine", Unit.RATIO, better="higher")

SPIN = """#include "dandelion.h"
KERNEL void spin(GLOBAL u64 *a, u64 rounds) {
    u64 x = a[0] + LOCAL_ID(0);
    for (u64 i = 0; i < rounds; i++) { x = x * 6364136223846793005UL + 1442695040888963407UL; }
    if (LOCAL_ID(0) == 0) { a[0] = x; }
}
"""
ONE = np.ones(1, np.uint64)


def one_block(name: str, source: str, arguments: str = "") -> FunctionDocument:
    """Describe a function of one kernel, one block of 32 threads, in place on its input `a`."""
    launch = f"""["{name}", [{{"Ptr": "a"}}{arguments}], {{"block_dim_x": {{"Absolute": 32}}}}]"""
    blueprint = f"""{{
      "modules": {{"work": "work.c"}}, "kernels": {{"{name}": "work"}},
      "blueprint": {{"inputs": ["a"], "buffers": {{}}, "outputs": ["a"],
        "control_flow": [{{"ExecKernel": {launch}}}]}}
    }}"""
    files = {"work.c": source}
    limits = Limits(wall_s=10.0)
    return gpu_function(name, blueprint, inputs=["a"], outputs=["a"], files=files, limits=limits)


def documents(rounds: int) -> tuple[RegistrationDocument, ...]:
    """Describe everything that is called here; `rounds` says how long `spin` takes."""
    spin = one_block("spin", SPIN, f', {{"Constant": {rounds}}}')
    return inference.document(), RegistrationDocument(functions=(spin,))


def on_nodes(
    bench: Bench,
    registered: Sequence[RegistrationDocument],
    measure: Callable[[str, int, Node], None],
) -> tuple[Skip, ...]:
    """Have something measured on a node without workers, with two and with eight.

    Args:
        bench: of the experiment; small runs leave eight workers out.
        registered: on each node.
        measure: gets the name of the system, how many workers it has, and the node.

    Returns:
        What did not come up, and why.
    """
    skips: list[Skip] = []
    for count in bench.pick((0, 2), (0, 2), (0, 2, 8)):
        system = names.concurrent(count) if count else names.SEQUENTIAL
        with contextlib.ExitStack() as closing:
            bench.say(f"starting {system}")
            node = started(bench, count, closing)
            if isinstance(node, Skip):
                skips.append(node)
                continue
            for document in registered:
                node.register(document)
            measure(system, count, node)
    return tuple(skips)


def spun(rounds: int) -> int:
    """What `spin` makes of 1, with the powers of its step instead of a loop."""
    factor, term = 6364136223846793005, 1442695040888963407
    whole_factor, whole_term = 1, 0
    while rounds:
        if rounds % 2:
            whole_factor, whole_term = whole_factor * factor, whole_term * factor + term
        factor, term = factor * factor, term * factor + term
        rounds //= 2
        whole_factor, whole_term = whole_factor % 2**64, whole_term % 2**64
        factor, term = factor % 2**64, term % 2**64
    return (whole_factor + whole_term) % 2**64


@dataclass(frozen=True, slots=True)
class Errand:
    """Something that is called again and again.

    Attributes:
        name: for people.
        function: what is invoked.
        inputs: its sets.
        right: whether a result is what it should be.
    """

    name: str
    function: str
    inputs: Mapping[str, Any]
    right: Callable[[Mapping[str, Any]], bool]


def errands(bench: Bench) -> tuple[int, tuple[Errand, ...]]:
    """Give the rounds of `spin`, and what is called."""
    rounds = bench.pick(20_000, 100_000, 2_000_000)
    depth, shallow, batch = bench.pick((2, 1, 2), (5, 2, 4), (500, 100, 16))
    deep = inference.example_inputs(1, depth, 1)
    wide = inference.example_inputs(1, shallow, batch)

    def layers(given: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], bool]:
        wanted = inference.expected(given)
        return lambda found: bool(inference.agrees(inference.results(found), wanted))

    return rounds, (
        Errand(
            "one block",
            "spin",
            {"a": ONE},
            lambda found: bool(found["a"].numpy(np.uint64, (-1,))[0] == spun(rounds)),
        ),
        Errand(f"inference x{depth}, unsaturated", "inference", deep, layers(deep)),
        Errand(f"inference x{shallow}, batch {batch}, saturated", "inference", wide, layers(wide)),
    )


@experiment(
    "gpu_workers",
    group="gpu",
    question="what do workers that share a device buy?",
    needs_gpu=True,
)
def workers(bench: Bench) -> Found:
    """Compare the throughput of nodes with no worker, two and eight."""
    rounds, wanted = errands(bench)
    found: dict[tuple[str, str], float] = {}
    notes: list[str] = []

    def measure(system: str, count: int, node: Node) -> None:
        for errand in wanted:
            bench.say(f"{system}, {errand.name}")
            found[errand.name, system] = answered(bench, node, errand, count)
        calls = ", ".join(f"{e.name} {e.calls}" for e in node.engines() if e.name)
        notes.append(f"{system}: calls by engine: {calls}")

    skips = on_nodes(bench, documents(rounds), measure)
    rows = tuple(_row(system, errand, found) for errand, system in found)
    panel = Panel(
        "workers", "Throughput by workers", Axis("what is called"), (ACHIEVED, RATIO), rows,
        Look.BARS, names.SEQUENTIAL,
    )  # fmt: skip
    return Found((panel,), budgets=budgets(bench, found), skips=skips, notes=tuple(notes))


def answered(bench: Bench, node: Node, errand: Errand, count: int) -> float:
    """Count calls in a second, after each engine has had some and all results were right.

    Raises:
        ValueError: a result is wrong.
    """
    call = partial(node.invoke, errand.function, **errand.inputs)
    callers = max(2, 2 * count)
    with ThreadPoolExecutor(callers) as pool:
        for outputs in pool.map(lambda _: call(), range(4 * (count + 1))):
            if not errand.right(outputs):
                raise ValueError(f"a wrong result of {errand.function}")
    return float(throughput(call, callers, bench.pick(0.3, 1.0, 3.0)))


def _row(system: str, errand: str, found: Mapping[tuple[str, str], float]) -> Row:
    values = {"achieved_per_s": found[errand, system]}
    base = found.get((errand, names.SEQUENTIAL))
    if base:
        values["ratio"] = found[errand, system] / base
    return Row(system, errand, values, 1)


def budgets(bench: Bench, found: Mapping[tuple[str, str], float]) -> tuple[Budget, ...]:
    """Hold a GPU's figures against the budget."""
    if not bench.gpu or bench.quick:
        return ()
    lines = []
    for errand in dict.fromkeys(errand for errand, _ in found):
        base = found.get((errand, names.SEQUENTIAL))
        for system, limits in ((TWO, (1.9, 1.9, 0.95)), (EIGHT, (7.0, 0.0, 0.95))):
            limit = limits[0 if errand == "one block" else 2 if "batch" in errand else 1]
            if base and limit and (errand, system) in found:
                ratio = found[errand, system] / base
                lines.append(over(f"{system}, {errand}, throughput over sequential", ratio, limit,
                                  "x", SHARED))  # fmt: skip
    return tuple(lines)
