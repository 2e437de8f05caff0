"""How tenants share a device: by weight, beside greedy ones, alone, and when one comes back.

Calls have known durations on the device, see `dandelion.bench.systems.spinning`. Nodes have default
settings, so they choose how many workers the device has. Only where a share that comes back is
timed is that number fixed: what the device can do must not change meanwhile.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from ..experiment import Bench, experiment
from ..records import (
    Axis,
    Budget,
    Findings,
    Metric,
    Panel,
    Plot,
    Row,
    Skip,
    Unit,
    at_least,
    at_most,
)
from ..samples import P50, P99, RATE, Samples, spread
from ..systems import names
from ..systems.spinning import (
    Callers,
    SpinNode,
    SpunCall,
    deviation,
    latencies,
    spin_nodes,
    used_s,
    windows,
)

SHARE = Metric("share", "share of device time", Unit.RATIO, better="")
DUE = Metric("due", "by weight", Unit.RATIO, better="")
OFF = Metric("off", "largest difference, median window", Unit.RATIO)
OFF_WORST = Metric("off_worst", "largest difference, worst window", Unit.RATIO)
USED = Metric("used", "device used", Unit.RATIO, better="higher")
BACK = Metric("back", "until the share is back", Unit.US)
OVER = (
    Metric("p50_over", "median over alone", Unit.RATIO),
    Metric("p99_over", "99th percentile over alone", Unit.RATIO),
)
WEIGHTS = {"one": 1.0, "two": 2.0, "four": 4.0}
MIXED_S = (0.0001, 0.0005, 0.002, 0.01, 0.05)
LIGHT, GREEDY = "light", "greedy"
ALONE, SHORT_CALLS = "alone", "beside 32 callers of 4 ms"
LONG_CALLS = "beside one caller of 500 ms, 500 launches"
LATER_MS = {SHORT_CALLS: 5.0, LONG_CALLS: 5.0}
"""How much later the 99th percentile may come than alone: a running call of 4 ms, and 1 ms."""

_BACK_SPAN_S, _BACK_STEP_S = 0.05, 0.005
_LENT_WORKERS = 4


@experiment(
    "sharing_weights", group="sharing", needs_device=True,
    question="do tenants that always wait get device time by their weights?",
)  # fmt: skip
def weights(bench: Bench) -> Findings:
    """Three tenants with weights 1, 2 and 4, each with 16 callers of calls of all lengths."""
    lengths = MIXED_S[:4] if bench.quick else MIXED_S
    seconds, span_s = bench.pick(0.8, 6.0, 21.0), bench.pick(0.3, 1.0, 1.0)
    groups = [Callers(name, 16, lengths) for name in WEIGHTS]
    rows: list[Row] = []
    off: dict[str, list[float]] = {}
    with spin_nodes(bench, WEIGHTS, ("fair", "fifo")) as nodes:
        for policy, node in nodes.items():
            bench.say(f"weights 1, 2, 4, policy {policy}")
            calls = node.run(groups, seconds)
            parts = [used_s(calls, *w) for w in windows(0.15 * span_s, seconds, span_s)]
            off[policy] = [deviation(part, WEIGHTS) for part in parts]
            rows += _shares(policy, calls, parts, off[policy])
    panel = Panel(
        "weights", f"Device time by weight, in windows of {span_s:g} s", Axis("weight"),
        (SHARE, DUE, OFF, OFF_WORST), tuple(rows), Plot.BARS,
    )  # fmt: skip
    budgets: tuple[Budget, ...] = ()
    if bench.judges:
        measured = 100 * statistics.median(off["fair"])
        why = f"the worst window: {100 * max(off['fair']):.1f} %"
        path = "device time off the weights 1:2:4, median window of 1 s"
        budgets = (at_most(path, measured, 5.0, " %", why),)
    return Findings((panel,), budgets=budgets)


def _shares(
    policy: str, calls: Sequence[SpunCall], parts: Sequence[Mapping[str, float]],
    off: Sequence[float],
) -> list[Row]:  # fmt: skip
    rows = []
    for name, weight in WEIGHTS.items():
        shares = [part.get(name, 0.0) / (sum(part.values()) or 1.0) for part in parts]
        values = spread("share", shares) | {"due": weight / sum(WEIGHTS.values())}
        values |= {"off": statistics.median(off), "off_worst": max(off)}
        count = sum(call.tenant == name for call in calls)
        rows.append(Row(names.policy(policy), f"{weight:g}", values, count))
    return rows


@experiment(
    "sharing_light", group="sharing", needs_device=True,
    question="how long does a light tenant wait beside greedy ones?",
)  # fmt: skip
def light(bench: Bench) -> Findings:
    """One caller of calls of 0.1 ms: alone, beside many short calls, beside long blueprints."""
    rounds, seconds = bench.pick(1, 2, 5), bench.pick(0.25, 1.5, 2.0)
    long_s, launches = bench.pick((0.05, 50), (0.5, 500), (0.5, 500))
    one = Callers(LIGHT, 1, (0.0001,))
    beside = {
        ALONE: [one],
        SHORT_CALLS: [one, Callers(GREEDY, 32, (0.004,))],
        LONG_CALLS: [one, Callers(GREEDY, 1, (long_s,), launches)],
    }
    found: dict[tuple[str, str], Samples] = {}
    with spin_nodes(bench, {LIGHT: 1.0, GREEDY: 1.0}, ("fair", "fifo")) as nodes:
        for _ in range(rounds):
            for x, groups in beside.items():
                for policy, node in nodes.items():
                    bench.say(f"{x}, policy {policy}")
                    samples = latencies(node.run(groups, seconds), LIGHT)
                    found.setdefault((policy, x), Samples([])).ns += samples.ns
    rows = []
    for (policy, x), samples in found.items():
        alone = found[policy, ALONE]
        over = {f"p{q}_over": samples.percentile(q) / alone.percentile(q) for q in (50, 99)}
        rows.append(Row(names.policy(policy), x, samples.values() | over, samples.count))
    panel = Panel(
        "light", "A tenant with one caller of calls of 0.1 ms", Axis("load"), (P50, P99, *OVER),
        tuple(rows), Plot.BARS,
    )  # fmt: skip
    scaled = f"long calls of {long_s * 1e3:g} ms, {launches} launches" if bench.quick else ""
    return Findings((panel,), budgets=light_budgets(bench, found), scaled=scaled)


def light_budgets(
    bench: Bench, found: Mapping[tuple[str, str], Samples]
) -> tuple[Budget, ...]:  # fmt: skip
    """Judge a GPU's values."""
    if not bench.judges:
        return ()
    alone = found["fair", ALONE].percentile(99)
    return tuple(
        at_most(
            f"a light tenant {x}, p99 later than alone",
            (found["fair", x].percentile(99) - alone) / 1e3, limit_ms, " ms",
        )
        for x, limit_ms in LATER_MS.items()
    )  # fmt: skip


@experiment(
    "sharing_alone", group="sharing", needs_device=True,
    question="what throughput does fairness cost a tenant that is alone?",
)  # fmt: skip
def alone(bench: Bench) -> Findings:
    """One tenant with 16 callers, under the policies fair and fifo in turns."""
    rounds, seconds = bench.pick(1, 5, 9), bench.pick(0.2, 0.6, 1.0)
    rates: dict[tuple[float, str], list[float]] = {}
    with spin_nodes(bench, {LIGHT: 1.0}, ("fifo", "fair")) as nodes:
        for _ in range(rounds):
            for length_s in (0.0001, 0.001):
                for policy, node in nodes.items():
                    bench.say(f"calls of {length_s * 1e3:g} ms, policy {policy}")
                    calls = node.run([Callers(LIGHT, 16, (length_s,))], seconds)
                    count = sum(call.end_s <= seconds for call in calls)
                    rates.setdefault((length_s, policy), []).append(count / seconds)
    rows = tuple(
        Row(names.policy(policy), f"{length_s * 1e3:g} ms",
            spread("achieved_per_s", found), round(sum(found) * seconds))
        for (length_s, policy), found in rates.items()
    )  # fmt: skip
    panel = Panel(
        "alone", "One tenant with 16 callers", Axis("length of calls"), (RATE,), rows, Plot.BARS,
        names.policy("fifo"),
    )  # fmt: skip
    budgets = []
    for length_s in (0.0001, 0.001) if bench.judges else ():
        fair, fifo = (statistics.median(rates[length_s, p]) for p in ("fair", "fifo"))
        path = f"throughput lost to fairness, one tenant, calls of {length_s * 1e3:g} ms"
        budgets.append(at_most(path, 100 * (1 - fair / fifo), 2.0, " %"))
    return Findings((panel,), budgets=tuple(budgets))


@experiment(
    "sharing_lent", group="sharing", needs_device=True,
    question="is an idle share lent, and how soon is it back?",
)  # fmt: skip
def lent(bench: Bench) -> Findings:
    """A tenant with a tenth of the shares has the device; then the other tenant calls.

    Both have more callers than there are workers, so each could use all of them.
    """
    rounds, half_s = bench.pick(1, 3, 7), bench.pick(0.3, 0.8, 1.0)
    tenants = {LIGHT: 1.0, GREEDY: 9.0}
    groups = [Callers(LIGHT, 16, (0.004,)), Callers(GREEDY, 16, (0.004,), begin_s=half_s)]
    used, back = [], []
    with spin_nodes(bench, tenants, ("fair",), _LENT_WORKERS) as nodes:
        node = nodes["fair"]
        for _ in range(rounds):
            bench.say("lending")
            calls = node.run(groups, 2 * half_s)
            whole = half_s * 0.8 * node.lanes
            used.append(used_s(calls, half_s * 0.2, half_s)[LIGHT] / whole)
            back.append(back_s(calls, GREEDY, half_s, 2 * half_s, 0.9) * 1e6)
    values = spread("used", used) | spread("back", back)
    row = Row(names.policy("fair"), "0.1 and 0.9", values, rounds)
    panel = Panel("lent", "A share that is lent", Axis("shares"), (USED, BACK), (row,), Plot.TABLE)
    budgets: tuple[Budget, ...] = ()
    if bench.judges:
        budgets = (
            at_least("device used by a tenant of share 0.1, alone", values["used"], 0.95, ""),
            at_most("until a share of 0.9 is back", values["back"] / 1e3, 100.0, " ms"),
        )
    return Findings((panel,), budgets=budgets)


def back_s(
    calls: Sequence[SpunCall], tenant: str, begin_s: float, end_s: float, share: float
) -> float:
    """Give the time until a tenant has nine tenths of its share of the next 50 ms.

    Returns:
        Seconds after `begin_s`; the whole time if that never comes.
    """
    at_s = begin_s
    while at_s + _BACK_SPAN_S <= end_s:
        used = used_s(calls, at_s, at_s + _BACK_SPAN_S)
        if used.get(tenant, 0.0) >= 0.9 * share * (sum(used.values()) or 1.0):
            return at_s - begin_s
        at_s += _BACK_STEP_S
    return end_s - begin_s


@experiment(
    "sharing_devices", group="sharing", needs_device=True,
    question="how does throughput grow from one device to two, with 32 tenants?",
)  # fmt: skip
def devices(bench: Bench) -> Findings:
    """Give all engines of one device and of two to 32 tenants with two callers each, in turns."""
    tenants = dict.fromkeys((f"tenant{i}" for i in range(bench.pick(4, 4, 32))), 1.0)
    rounds, seconds = bench.pick(1, 3, 5), bench.pick(0.3, 1.0, 2.0)
    rates: dict[int, list[float]] = {1: [], 2: []}
    bench.say("starting a node with two devices")
    with SpinNode(bench, tenants, devices=2) as two:
        if two.devices < 2:
            return Findings((), skips=(Skip("two devices", "there is one device here"),))
        with SpinNode(bench, tenants, rounds_per_s=two.rounds_per_s) as one:
            groups = [Callers(name, 2 * one.lanes, (0.002,)) for name in tenants]
            for _ in range(rounds):
                for count, node in ((1, one), (2, two)):
                    bench.say(f"{count} devices")
                    calls = node.run(groups, seconds)
                    done = sum(call.end_s <= seconds for call in calls)
                    rates[count].append(done / seconds)
    rows = tuple(
        Row(names.DANDELION, count, spread("achieved_per_s", found))
        for count, found in rates.items()
    )
    panel = Panel("devices", "Throughput by devices", Axis("devices"), (RATE,), rows)
    gain = statistics.median(rates[2]) / statistics.median(rates[1])
    line = at_least("two devices over one, 32 tenants", gain, 1.95, "x")
    return Findings((panel,), budgets=(line,) if bench.judges else ())
