"""The experiments of KNIX on a shared GPU, with our engine in place of its GPU manager.

KNIX trained networks for minutes on an RTX 6000. Tencent's GPU manager divided its compute units
and memory among containers. What the experiments ask does not depend on what is computed, so calls
of known device times stand for training steps here, and runs take seconds.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

import dandelion.blueprint as bp
from dandelion.documents import FunctionDocument, gpu_function
from dandelion.node import Node

from ..experiment import Bench, experiment
from ..records import Axis, Claim, Findings, Metric, Panel, Plot, Row, Unit
from ..samples import LATENCIES, row
from ..systems import names
from ..systems.bare import agrees, bare_device, example_body, inference_work
from ..systems.functions import gpu_code
from ..systems.nodes import MIB, one_item
from ..systems.spinning import Callers, SpunCall, spin_nodes, used_s, windows
from ..timing import in_turns
from .gpu_engines import bare_stream, gpu_node

RUN = Metric("run", "run time", Unit.US)
OVER = Metric("over", "over alone", Unit.RATIO)
USED = Metric("used", "device used", Unit.RATIO, better="higher")
MEAN = Metric("mean", "mean share", Unit.RATIO, better="")
APART = Metric("apart", "standard deviation of the mean shares", Unit.RATIO)
SWING = Metric("swing", "swing of a share over its mean", Unit.RATIO)
STEP_S = 0.004
_KINDS = "synthetic calls of 4 ms stand for training steps"


@experiment(
    "knix_overhead", group="knix", needs_device=True,
    question="what does a shared GPU cost one tenant over the bare device?",
    source="KNIX, overhead of virtual GPUs",
)  # fmt: skip
def overhead(bench: Bench) -> Findings:
    """Run a network bare and through a node, in turns."""
    work = inference_work(bench.pick(2, 10, 500))
    body = example_body(work)
    with contextlib.ExitStack() as closing:
        bare = closing.enter_context(bare_device(bench.backend))
        stream = bare_stream(closing, bare, work, body, lambda reply: agrees(work, body, reply))
        node = closing.enter_context(gpu_node(bench, 0))
        node.register(functions=[gpu_code(work)])
        sets = one_item(work.entry, node.acquire(len(body)).write(0, body))

        def call() -> bytes:
            result = node.invoke_sets(work.name, sets).sets[work.result]
            assert result is not None
            return bytes(result.items[0].data)

        if not agrees(work, body, call()):
            raise ValueError("the node gives a wrong result")
        actions: Mapping[str, Callable[[], object]] = {
            names.BARE: stream.go,
            names.SEQUENTIAL: call,
        }
        timed = in_turns(actions, count=bench.pick(5, 20, 100), warm_up=3)
    rows = tuple(row(name, work.name, samples) for name, samples in timed.items())
    panel = Panel(
        "overhead", "A network, bare and through a node", Axis("work"), LATENCIES, rows, Plot.BARS,
        names.BARE,
    )  # fmt: skip
    more = 100 * (timed[names.SEQUENTIAL].median / timed[names.BARE].median - 1)
    claim = Claim(
        "KNIX, overhead of virtual GPUs",
        "a virtual GPU costs less than 15 % of the run time; of the printed times +0.6 % with "
        "TensorFlow, +17.6 % with PyTorch and -14.8 % with MXNet",
        f"{more:+.1f} % through a node, over single launches in a bare loop",
        more < 15 if bench.gpu else None,
    )
    return Findings((panel,), (claim,))


def job_times(calls: Sequence[SpunCall], groups: Sequence[Callers]) -> dict[str, float]:
    """Give the run time of each tenant, from its begin to its last answer."""
    return {
        g.tenant: max(c.end_s for c in calls if c.tenant == g.tenant) - g.begin_s for g in groups
    }


@experiment(
    "knix_partitioning", group="knix", needs_device=True,
    question="how does the run time of a job grow with the number of tenants?",
    source="KNIX, partitioning: 1 to 8 virtual GPUs",
)  # fmt: skip
def partitioning(bench: Bench) -> Findings:
    """Give 1 to 8 tenants with equal shares the same job at the same time."""
    counts = bench.pick((1, 2), (1, 2, 4), (1, 2, 4, 6, 8))
    job_s, rounds = bench.pick(0.08, 0.4, 1.0), bench.pick(1, 2, 3)
    tenants = {f"tenant{i}": 1.0 for i in range(max(counts))}
    found: dict[int, list[float]] = {}
    with spin_nodes(bench, tenants, ("fair",)) as nodes:
        node = nodes["fair"]
        calls = round(job_s * node.lanes / STEP_S)
        for _ in range(rounds):
            for count in counts:
                bench.say(f"{count} tenants")
                groups = [
                    Callers(name, 2 * node.lanes + 2, (STEP_S,), calls=calls)
                    for name in list(tenants)[:count]
                ]
                times = job_times(node.run(groups), groups)
                found.setdefault(count, []).append(statistics.mean(times.values()))
    run_s = {count: statistics.median(times) for count, times in found.items()}
    rows = tuple(
        Row(names.DANDELION, count, {"run": s * 1e6, "over": s / run_s[1]}, len(found[count]))
        for count, s in run_s.items()
    )
    panel = Panel("partitioning", "Run time of a job", Axis("tenants"), (RUN, OVER), rows)
    most = max(counts)
    over = run_s[most] / run_s[1]
    claim = Claim(
        "KNIX, partitioning",
        "8 functions fit on a GPU; run time is linear in the share for many virtual GPUs, and "
        "grows less for few, which use idle shares",
        f"{most} tenants fit; with {most} a job takes {over:.2f} times as long as alone",
        over < 1.15 * most if bench.gpu else None,
    )
    return Findings((panel,), (claim,), notes=(_KINDS,))


@experiment(
    "knix_fairness", group="knix", needs_device=True,
    question="do tenants with equal shares get equal parts of the device?",
    source="KNIX, isolation and fairness: 2, 4 and 8 sandboxes",
)  # fmt: skip
def fairness(bench: Bench) -> Findings:
    """Let 2, 4 and 8 tenants call all the time, and compare their parts of the device."""
    counts = bench.pick((2,), (2, 4), (2, 4, 8))
    seconds, span_s = bench.pick(0.6, 3.0, 10.0), bench.pick(0.2, 0.5, 0.5)
    tenants = {f"tenant{i}": 1.0 for i in range(max(counts))}
    rows = []
    with spin_nodes(bench, tenants, ("fair",)) as nodes:
        node = nodes["fair"]
        for count in counts:
            bench.say(f"{count} tenants")
            chosen = list(tenants)[:count]
            groups = [Callers(name, 2 * node.lanes + 2, (STEP_S,)) for name in chosen]
            calls = node.run(groups, seconds)
            parts = [used_s(calls, *window) for window in windows(0.0, seconds, span_s)]
            rows.append(Row(names.DANDELION, count, evenness(parts, chosen), len(calls)))
    panel = Panel(
        "fairness", f"Shares of equal tenants, in windows of {span_s:g} s", Axis("tenants"),
        (MEAN, APART, SWING), tuple(rows), Plot.TABLE,
    )  # fmt: skip
    apart, swing = (100 * max(r.values[key] for r in rows) for key in ("apart", "swing"))
    claim = Claim(
        "KNIX, isolation and fairness",
        "mean parts of 2, 4 and 8 sandboxes differ by a standard deviation of less than 0.13 % of "
        "the GPU, while the part at one time swings by 20 to 30 %",
        f"standard deviation {apart:.2f} % of the device; in windows of {span_s:g} s a share "
        f"swings by at most {swing:.1f} % of its mean",
        swing < 20 if bench.gpu else None,
    )
    return Findings((panel,), (claim,), notes=(_KINDS,))


def evenness(parts: Sequence[Mapping[str, float]], tenants: Sequence[str]) -> dict[str, float]:
    """Give the mean share, the deviation of the tenants' means, and the largest swing of one."""
    shares = [
        [part.get(name, 0.0) / (sum(part.values()) or 1.0) for part in parts] for name in tenants
    ]
    means = [statistics.mean(series) for series in shares]
    swings = [
        max(abs(share - mean) for share in series) / (mean or 1.0)
        for series, mean in zip(shares, means, strict=True)
    ]
    mean = statistics.mean(means)
    return {"mean": mean, "apart": statistics.pstdev(means), "swing": max(swings)}


@experiment(
    "knix_elasticity", group="knix", needs_device=True,
    question="what does it gain that a tenant uses the idle share of another one?",
    source="KNIX, elasticity: shares of 0.1 and 0.9",
)  # fmt: skip
def elasticity(bench: Bench) -> Findings:
    """Give jobs to tenants with shares 0.1 and 0.9: work-conserving, and with fixed engines."""
    scale_s = bench.pick(0.1, 1.0, 3.0)
    shares = {"small": 1.0, "large": 9.0}
    workers = bench.pick(2, 2, 10)
    found: dict[str, tuple[dict[str, float], float]] = {}
    with spin_nodes(bench, shares, ("fair", "static"), workers) as nodes:
        for policy, node in nodes.items():
            bench.say(f"elasticity, policy {policy}")
            steps = round(scale_s * node.lanes / STEP_S)
            count = 2 * node.lanes + 2
            groups = [
                Callers("small", count, (STEP_S,), calls=steps),
                Callers("large", count, (STEP_S,), begin_s=0.1 * scale_s, calls=steps),
            ]
            calls = node.run(groups)
            whole_s = max(call.end_s for call in calls) * node.lanes
            used = sum(call.length_s for call in calls) / whole_s
            found[policy] = (job_times(calls, groups), used)
    rows = tuple(
        Row(names.policy(policy), tenant, {"run": s * 1e6, "used": used}, steps)
        for policy, (times, used) in found.items() for tenant, s in times.items()
    )  # fmt: skip
    panel = Panel(
        "elasticity", "Two jobs of equal work, shares 0.1 and 0.9", Axis("tenant"), (RUN, USED),
        rows, Plot.BARS, names.policy("static"),
    )  # fmt: skip
    (elastic, used), (fixed, used_fixed) = found["fair"], found["static"]
    small, large = (100 * (elastic[name] / fixed[name] - 1) for name in shares)
    more = 100 * (used / used_fixed - 1)
    claim = Claim(
        "KNIX, elasticity",
        "against hard limits, the job with a tenth of the GPU takes 80 % less time, the other one "
        "15 % more, and the mean utilization is 73.5 % higher",
        f"{small:+.0f} %, {large:+.0f} %, utilization {more:+.0f} %, with {workers} workers, "
        "against fixed workers for each tenant",
        small < -50 and large < 15 and more > 0 if bench.gpu else None,
    )
    return Findings((panel,), (claim,), notes=(_KINDS,))


COMPOSED, FILE = names.DANDELION, f"{names.DANDELION}, through a file"
_INCREMENT = """#include "dandelion.h"
KERNEL void increment(GLOBAL const f32 *x, GLOBAL f32 *y, u64 count) {
    u64 step = GLOBAL_SIZE(0);
    for (u64 i = GLOBAL_ID(0); i < count; i += step) { y[i] = x[i] + 1.0f; }
}
"""
_TWICE = """
function increment(x) => (y);
composition twice(x) => (z) {
    increment(x = all x) => (y = y);
    increment(x = all y) => (z = y);
}
"""


def increment() -> FunctionDocument:
    """Describe a function that adds 1 to each float32 of `x`."""
    b = bp.Blueprint(["x"], modules={"increment": "increment.c"})
    b.launch("increment", [b.x, b.buffer("y", like="x"), b.x.elements("f32")], grid=256, block=64)
    files = {"increment.c": _INCREMENT}
    return gpu_function("increment", b.json(), inputs=["x"], outputs=["y"], files=files)


@experiment(
    "knix_sharing", group="knix", needs_device=True,
    question="what does it cost to hand data from one function to the next?",
    source="KNIX, data sharing: the file system of a sandbox against a volume",
)  # fmt: skip
def data_sharing(bench: Bench) -> Findings:
    """Hand data over inside of a composition, and through a file that the caller writes."""
    sizes = bench.pick((1,), (1, 16), (1, 16, 64))
    rows = []
    gains = []
    with gpu_node(bench, 0) as node, tempfile.TemporaryDirectory() as folder:
        node.register(_TWICE, functions=[increment()])
        for size in sizes:
            bench.say(f"{size} MiB")
            x = np.arange(size * MIB // 4, dtype=np.float32)
            actions = {
                COMPOSED: partial(only, node, "twice", x.tobytes()),
                FILE: partial(through_file, node, x.tobytes(), Path(folder) / "y"),
            }
            for name, action in actions.items():
                if not np.array_equal(np.frombuffer(action(), np.float32), x + 1 + 1):
                    raise ValueError(f"{name} gives a wrong result")
            timed = in_turns(actions, count=bench.pick(3, 10, 40), warm_up=2)
            rows += [row(name, f"{size} MiB", samples) for name, samples in timed.items()]
            gains.append(100 * (1 - timed[COMPOSED].median / timed[FILE].median))
    panel = Panel(
        "data_sharing", "Two functions, one after the other", Axis("data"), LATENCIES, tuple(rows),
        Plot.BARS, FILE,
    )  # fmt: skip
    claim = Claim(
        "KNIX, data sharing",
        "a model of more than 550 MB is read and written 14 to 26 % faster in the file system of a "
        "sandbox that functions share than on a volume of the same node",
        f"handing data over inside of a composition takes {min(gains):.0f} to {max(gains):.0f} % "
        "less time than two calls with a file between them",
        min(gains) > 14 if bench.gpu else None,
    )
    return Findings((panel,), (claim,))


def only(node: Node, name: str, given: bytes) -> bytes:
    """Invoke a function or composition with one input and one result."""
    (result,) = node.invoke(name, x=given).values()
    assert result is not None
    return bytes(result.items[0].data)


def through_file(node: Node, given: bytes, path: Path) -> bytes:
    """Run both functions by themselves; the first one's result is written to a file and read."""
    path.write_bytes(only(node, "increment", given))
    return only(node, "increment", path.read_bytes())
