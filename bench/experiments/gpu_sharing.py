"""What workers that share a device gain.

Nodes in this process, one after the other, with no worker, two and eight, each called by as many
threads as keep its engines busy; throughput is counted over a fixed time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from dandelion.compositions.inference import bundle as inference

from dandelion.documents import FunctionDocument, RegistrationDocument, gpu_function
from dandelion.errors import BackendUnavailable
from dandelion.function import Limits
from dandelion.node import Node

from ..experiment import Bench, experiment
from ..records import Axis, Budget, Findings, Metric, Panel, Plot, Row, Skip, Unit, at_least
from ..samples import ACHIEVED
from ..systems import names
from ..systems.spinning import FUNCTION, spin, spun
from ..timing import throughput
from .gpu_engines import gpu_node

SHARED = (
    "its blocks fill a part of the units already: two bare processes under MPS, each replaying the "
    "same graph, reached 1.84 times one of them on an H200"
)
RATIO = Metric("ratio", "over the sequential engine", Unit.RATIO, better="higher")


def one_block(name: str, source: str) -> FunctionDocument:
    """Describe a function of one kernel, one block of 32 threads, in place on its input `a`."""
    launch = f"""["{name}", [{{"Ptr": "a"}}], {{"block_dim_x": {{"Absolute": 32}}}}]"""
    blueprint = f"""{{
      "modules": {{"work": "work.c"}}, "kernels": {{"{name}": "work"}},
      "blueprint": {{"inputs": ["a"], "buffers": {{}}, "outputs": ["a"],
        "control_flow": [{{"ExecKernel": {launch}}}]}}
    }}"""
    files, limits = {"work.c": source}, Limits(wall_s=10.0)
    return gpu_function(name, blueprint, inputs=["a"], outputs=["a"], files=files, limits=limits)


def on_nodes(
    bench: Bench,
    registered: Sequence[RegistrationDocument],
    measure: Callable[[str, int, Node], None],
) -> tuple[Skip, ...]:
    """Measure something on a node without workers, with two and with eight.

    Args:
        bench: of the experiment; small runs leave eight workers out.
        registered: on each node.
        measure: gets the name of the system, how many workers it has, and the node.

    Returns:
        What did not start, and why.
    """
    skips: list[Skip] = []
    for count in bench.pick((0, 2), (0, 2), (0, 2, 8)):
        system = names.engines(count)
        bench.say(f"starting {system}")
        try:
            with gpu_node(bench, count) as node:
                for document in registered:
                    node.register(document)
                measure(system, count, node)
        except BackendUnavailable as error:
            skips.append(Skip(system, str(error)))
    return tuple(skips)


@dataclass(frozen=True, slots=True)
class CheckedCall:
    """A call that is made repeatedly.

    Attributes:
        function, inputs: what is invoked, and its sets.
        right: returns whether a result is what it should be.
    """

    name: str
    function: str
    inputs: Mapping[str, Any]
    right: Callable[[Mapping[str, Any]], bool]


def _calls(bench: Bench, rounds: int) -> tuple[CheckedCall, ...]:
    depth, shallow, batch = bench.pick((2, 1, 2), (5, 2, 4), (500, 100, 16))

    def layers(name: str, repetitions: int, images: int) -> CheckedCall:
        given = inference.example_inputs(1, repetitions, images)
        wanted = inference.expected(given)
        return CheckedCall(
            name, "inference", given,
            lambda found: bool(inference.agrees(inference.results(found), wanted)),
        )  # fmt: skip

    one = CheckedCall(
        "one block", FUNCTION, {"a": np.array([rounds, 1], np.int64)},
        lambda found: bool(found["y"].numpy(np.uint64, (-1,))[0] == spun(rounds)),
    )  # fmt: skip
    return (
        one,
        layers(f"inference x{depth}, unsaturated", depth, 1),
        layers(f"inference x{shallow}, batch {batch}, saturated", shallow, batch),
    )


@experiment(
    "gpu_workers", group="gpu", question="what do workers that share a device buy?", needs_gpu=True
)
def workers(bench: Bench) -> Findings:
    """Compare the throughput of nodes with no worker, two and eight."""
    rounds = bench.pick(20_000, 100_000, 2_000_000)
    calls = _calls(bench, rounds)
    found: dict[tuple[str, str], float] = {}
    notes: list[str] = []

    def measure(system: str, count: int, node: Node) -> None:
        for call in calls:
            bench.say(f"{system}, {call.name}")
            found[call.name, system] = _answered(bench, node, call, count)
        by_engine = ", ".join(f"{e.name} {e.calls}" for e in node.engines() if e.name)
        notes.append(f"{system}: calls by engine: {by_engine}")

    documents = (inference.document(), RegistrationDocument(functions=(spin(),)))
    skips = on_nodes(bench, documents, measure)
    rows = []
    for (call, system), rate in found.items():
        base = found.get((call, names.SEQUENTIAL))
        values = {"achieved_per_s": rate} | ({"ratio": rate / base} if base else {})
        rows.append(Row(system, call, values, 1))
    panel = Panel(
        "workers", "Throughput by workers", Axis("what is called"), (ACHIEVED, RATIO), tuple(rows),
        Plot.BARS, names.SEQUENTIAL,
    )  # fmt: skip
    return Findings((panel,), budgets=budgets(bench, found), skips=skips, notes=tuple(notes))


def _answered(bench: Bench, node: Node, checked: CheckedCall, count: int) -> float:
    """Count calls per second, after each engine has had some and all results were right.

    Raises:
        ValueError: a result is wrong.
    """
    call = partial(node.invoke, checked.function, **checked.inputs)
    callers = max(2, 2 * count)
    with ThreadPoolExecutor(callers) as pool:
        for outputs in pool.map(lambda _: call(), range(4 * (count + 1))):
            if not checked.right(outputs):
                raise ValueError(f"a wrong result of {checked.function}")
    return throughput(call, callers, bench.pick(0.3, 1.0, 3.0))


def budgets(bench: Bench, found: Mapping[tuple[str, str], float]) -> tuple[Budget, ...]:
    """Judge a GPU's values."""
    if not bench.gpu or bench.quick:
        return ()
    lines = []
    for call in dict.fromkeys(call for call, _ in found):
        base = found.get((call, names.SEQUENTIAL))
        for count, limits in ((2, (1.9, 1.9, 0.95)), (8, (7.0, 0.0, 0.95))):
            system = names.concurrent(count)
            limit = limits[0 if call == "one block" else 2 if "batch" in call else 1]
            if base and limit and (call, system) in found:
                path = f"{system}, {call}, throughput over sequential"
                lines.append(at_least(path, found[call, system] / base, limit, "x", SHARED))
    return tuple(lines)
