"""What do the instruments themselves cost, and how far can they be trusted?

Two of them: the loop that times calls in turns, which is asked to time nothing, and the generator
of HTTP load, which is let loose on a server that answers at once. What the generator shows there is
the least that it can show of any server on this machine, and where it calls itself the bottleneck
ends what it can be used for.
"""

from __future__ import annotations

from ..columns import LATENCIES, P50, P99, row
from ..experiment import Bench, experiment
from ..load import Load, open_loop, sweep
from ..records import Axis, Found, Look, Metric, Panel, Row, Unit
from ..systems.script import REQUEST, Script, scripted_server
from ..timing import in_turns

_AT_ONCE = Script(((0.0, 1.0),))
_LATE = Metric("late", "sent late, p99", Unit.US, logarithmic=True, drawn=False)
_BUSY = Metric("busy", "generator busy", Unit.RATIO, drawn=False, better="")
_ACHIEVED = Metric("achieved_per_s", "answers", Unit.PER_SECOND, drawn=False, better="higher")


@experiment(
    "instruments",
    group="harness",
    question="What do the instruments themselves cost, and up to which load can they be used?",
)
def instruments(bench: Bench) -> Found:
    """Time nothing, and put load on a server that does nothing."""
    bench.say("timing nothing")
    return Found((_clock(bench), _generator(bench)))


def _clock(bench: Bench) -> Panel:
    count = bench.pick(2_000, 100_000, 100_000)
    timed = in_turns({"one": _nothing, "many": _nothing}, count=count, block=10)
    timed["one"].merge(timed["many"])
    rows = (row("timing in turns", "a call of nothing", timed["one"]),)
    return Panel("clock", "A call that does nothing", Axis("what"), LATENCIES, rows, Look.TABLE)


def _nothing() -> None:
    pass


def _generator(bench: Bench) -> Panel:
    seconds = bench.pick(0.3, 2.0, 2.0)
    rates = bench.pick(
        (100.0, 1000.0, 4000.0),
        (100.0, 300.0, 1000.0, 2000.0, 4000.0, 8000.0, 16_000.0),
        (100.0, 300.0, 1000.0, 2000.0, 4000.0, 8000.0, 16_000.0, 32_000.0),
    )
    with scripted_server(_AT_ONCE) as server:

        def measure(rate: float) -> Load:
            bench.say(f"{rate:.0f} requests/s")
            return open_loop(
                server.port, REQUEST, rate_per_s=rate, seconds=seconds, warm_up_s=0.2,
                seed=bench.seed,
            )  # fmt: skip

        loads = sweep(measure, rates, latency_bound_us=20_000)
    return Panel(
        "generator",
        "A server that answers at once, asked by an open loop",
        Axis("offered load", Unit.PER_SECOND, logarithmic=True),
        (P50, P99, _LATE, _BUSY, _ACHIEVED),
        tuple(_row(rate, load) for rate, load in loads),
    )


def _row(rate: float, load: Load) -> Row:
    values = load.values() | {"late": load.late_us_p99, "busy": load.busy}
    return Row("open loop", rate, values, load.count, load.failed, load.note)
