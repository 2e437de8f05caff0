"""Is the harness right? A server of known latencies is measured, and must come back as it is.

The server takes 5 ms for most requests, 20 ms for some and 60 ms for two in a thousand, and in the
second case it stalls as a whole again and again. What its clients must see follows from the times
at which requests were intended and from the server's own account of when it answered; `script` is
what would follow if no machine were between the two. A closed loop with as many callers as the load
needs is asked beside it: while the server stalls it does not ask, so it misses nearly all of the
waiting.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from ..experiment import Bench, experiment
from ..histogram import PERCENTILES, Histogram
from ..load import Arrivals, Load, closed_loop, intended_times, open_loop
from ..records import Axis, Budget, Claim, Found, Look, Metric, Panel, Row, Unit
from ..systems.script import (
    REQUEST,
    Script,
    Times,
    account_of,
    delays_ns,
    replay,
    scripted_server,
)

_NS = 1_000_000_000
_BASE_US = 5_000.0
_DELAYS = ((_BASE_US, 0.983), (4 * _BASE_US, 0.015), (12 * _BASE_US, 0.002))
_CONNECTIONS = 1024
_WARM_UP_S = 0.5
_TOLERANCE = 0.02
_JUDGED = ("p50", "p99", "p999")

ACCOUNT = "server's account"
SCRIPT = "script"
OPEN = "open loop"
CLOSED = "closed loop"

_NAMES = {"p50": "median", "p90": "p90", "p99": "p99", "p999": "p99.9"}
_METRICS = (
    *(Metric(key, name, Unit.US, logarithmic=True) for key, name in _NAMES.items()),
    Metric("achieved_per_s", "answers", Unit.PER_SECOND, drawn=False, better=""),
)


class Case(msgspec.Struct, frozen=True):
    """How a server behaves, and how it is asked."""

    name: str
    script: Script
    rate_per_s: float
    seconds: float
    seed: int


class Seen(msgspec.Struct, frozen=True):
    """What came of a case.

    Attributes:
        load: what the open loop measured.
        account: what its requests must have seen, by what the server did.
        script: what they would have seen of a perfect machine.
        arrivals: how long after its intended time each request was read, if none was held up by a
            stall.
    """

    load: Load
    account: Histogram
    script: Histogram
    arrivals: Histogram

    def deviations(self, expected: Histogram) -> dict[str, float]:
        """Give how far the measured percentiles are from the expected, relative and signed."""
        measured = Histogram.of(self.load.latency)
        places = {key: PERCENTILES[key] for key in _JUDGED}
        return {k: measured.percentile(q) / expected.percentile(q) - 1 for k, q in places.items()}


@experiment(
    "harness",
    group="harness",
    question="Does a server with known latencies come back as it is, also while it stalls?",
)
def harness(bench: Bench) -> Found:
    """Measure a scripted server, with and without stalls, by an open and a closed loop."""
    seconds, stall_s, every_s = bench.pick((1.5, 0.15, 0.35), (6.0, 0.3, 1.7), (20.0, 0.3, 1.7))
    rate = 500.0
    stalled = f"{stall_s * 1000:.0f} ms stalls"
    cases = [
        Case("no stalls", Script(_DELAYS), rate, seconds, bench.seed),
        Case(stalled, Script(_DELAYS, every_s, stall_s), rate, seconds, bench.seed),
    ]
    seen = {}
    for case in cases:
        bench.say(f"open loop, {case.name}")
        seen[case.name] = ask_openly(case)
    bench.say(f"closed loop, {stalled}")
    closed = _ask_closed(cases[1])
    rows = [row for case in cases for row in _rows(case.name, seen[case.name])]
    rows.append(_row(CLOSED, stalled, Histogram.of(closed.latency), closed.achieved_per_s))
    panel = Panel(
        "latency",
        "Latency of a server that is known, and what two kinds of load say of it",
        Axis("server"),
        _METRICS,
        tuple(rows),
        Look.BARS,
        ACCOUNT,
    )
    return Found(
        (panel,),
        claims=(_omission(seen[stalled], closed),),
        budgets=tuple(b for name, found in seen.items() for b in budgets_of(name, found)),
        notes=tuple(_note(name, found) for name, found in seen.items()),
    )


def ask_openly(case: Case) -> Seen:
    """Put a scripted server under an open load, and work out what that must have seen."""
    with scripted_server(case.script) as server:
        load = open_loop(
            server.port, REQUEST, rate_per_s=case.rate_per_s, seconds=case.seconds,
            connections=_CONNECTIONS, warm_up_s=_WARM_UP_S, seed=case.seed,
        )  # fmt: skip
        account = account_of(server)
    whole_s = case.seconds + _WARM_UP_S
    times = intended_times(case.rate_per_s, whole_s, Arrivals.POISSON, case.seed)
    intended = times + load.started_ns
    takes = delays_ns(case.script, len(intended))
    answered, got = np.full((2, len(intended)), -1, np.int64)
    answered[list(account.numbers)] = account.answered_ns
    got[list(account.numbers)] = account.got_ns
    counts = intended >= load.started_ns + round(_WARM_UP_S * _NS)
    script = replay(intended, takes, account.stalls_ns) - intended
    right = counts & (answered >= 0)
    held = replay(intended, np.zeros_like(intended), account.stalls_ns) > intended
    return Seen(
        load,
        _histogram((answered - intended)[right]),
        _histogram(script[counts]),
        _histogram((got - intended)[right & ~held]),
    )


def _histogram(values_ns: Times) -> Histogram:
    histogram = Histogram()
    for value in values_ns.tolist():
        histogram.record_ns(value)
    return histogram


def _ask_closed(case: Case) -> Load:
    """Let just as many callers ask as make the same load when nothing stalls."""
    mean_us = sum(delay * share for delay, share in case.script.delays_us)
    callers = max(1, round(case.rate_per_s * mean_us / 1e6))
    with scripted_server(case.script) as server:
        return closed_loop(server.port, REQUEST, callers=callers, seconds=case.seconds)


def _rows(case: str, seen: Seen) -> Sequence[Row]:
    return (
        _row(SCRIPT, case, seen.script),
        _row(ACCOUNT, case, seen.account),
        _row(
            OPEN, case, Histogram.of(seen.load.latency), seen.load.achieved_per_s, seen.load.note,
            seen.load.failed,
        ),
    )  # fmt: skip


def _row(
    system: str,
    case: str,
    latency: Histogram,
    achieved_per_s: float | None = None,
    note: str = "",
    errors: int = 0,
) -> Row:
    found = latency.values()
    values = {key: found[key] for key in _NAMES if key in found}
    if achieved_per_s is not None:
        values["achieved_per_s"] = achieved_per_s
    return Row(system, case, values, latency.count, errors, note)


def budgets_of(case: str, seen: Seen) -> tuple[Budget, ...]:
    """Judge a case: by what the server did, and, in its tail, by what the script says.

    The median is not judged by the script: of 5 ms it leaves 100 us for both processes to wake up.
    """
    against_account = seen.deviations(seen.account)
    tail = {"p999": seen.deviations(seen.script)["p999"]}
    return (
        _budget(f"harness, median, p99 and p99.9 of a known server, {case}", against_account, seen),
        _budget(f"harness, p99.9 of a script, {case}", tail, seen),
    )


def _budget(path: str, found: dict[str, float], seen: Seen) -> Budget:
    measured = ", ".join(f"{_NAMES[key]} {value:+.2%}" for key, value in found.items())
    passes = bool(all(abs(value) <= _TOLERANCE for value in found.values()))
    why = "" if passes else _note("here", seen)
    return Budget(path, f"within {_TOLERANCE:.0%}", measured, passes, why)


def _note(case: str, seen: Seen) -> str:
    load = seen.load
    rest = f"; {load.note}" if load.note else ""
    return (
        f"{case}: requests reached the server {seen.arrivals.percentile(50):.0f} us (median) and "
        f"{seen.arrivals.percentile(99):.0f} us (p99) after their intended time; the generator was "
        f"late by {load.late_us_p99:.0f} us at p99, and busy for {load.busy:.0%} of its time{rest}"
    )


def _omission(seen: Seen, closed: Load) -> Claim:
    openly = Histogram.of(seen.load.latency).percentile(90)
    closely = Histogram.of(closed.latency).percentile(90)
    return Claim(
        "coordinated omission",
        "a client that waits for answers before it asks again misses the waiting in a stall",
        f"p90 of a server that stalls: {openly / 1000:.0f} ms by an open loop, "
        f"{closely / 1000:.0f} ms by a closed one",
        bool(openly > 2 * closely),
    )
