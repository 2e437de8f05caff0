"""Outcomes made up for the tests of tables, pictures and pages: all looks, and hostile content."""

from collections.abc import Sequence

from dandelion.bench.records import (
    Axis,
    Budget,
    Claim,
    ExperimentResult,
    Findings,
    Metric,
    Panel,
    Plot,
    Row,
    Skip,
    Unit,
)

P50 = Metric("p50", "median latency", Unit.US, logarithmic=True)
P99 = Metric("p99", "p99 latency", Unit.US, logarithmic=True)
RATE = Metric("achieved_per_s", "achieved", Unit.PER_SECOND, better="higher")
HOSTILE = "<script>alert('&\"')</script> $x^2$ \x1b[31m\x00 [bold]b[/bold] ]]> %s {0} \u202eevil"


def sweep_panel() -> Panel:
    """Latency over load of four systems, as the thesis draws it."""
    systems = {
        "dandelion sequential": (400.0, 900.0),
        "dandelion concurrent": (460.0, 1700.0),
        "dedicated": (250.0, 2200.0),
        "dandelion process": (4000.0, 60.0),
    }
    rows = []
    for system, (base_us, most_per_s) in systems.items():
        for rate in (25.0, 50.0, 100.0, 200.0, 400.0, 800.0, 1600.0):
            load = rate / most_per_s
            if load > 1.5:
                continue
            p50 = base_us / (1 - load) if load < 0.95 else base_us * 20 * load
            achieved = min(rate, most_per_s)
            values = {"p50": p50, "p99": p50 * (1.8 + load), "achieved_per_s": achieved}
            note = "client was the bottleneck" if load > 1 else ""
            rows.append(Row(system, rate, values, count=int(rate * 2), note=note))
    return Panel(
        "sweep",
        "Latency against offered load, hot matmul 128 x 128",
        Axis("offered load", Unit.PER_SECOND, logarithmic=True),
        (P50, P99, RATE),
        tuple(rows),
        baseline="dedicated",
    )


def bars_panel() -> Panel:
    """A bar for each kind of sandbox and way of calling, with a spread."""
    rows = []
    for way, factor in (("paced, 50/s", 1.0), ("back to back", 2.2), ("empty pool", 9.0)):
        for system, base_us in (
            ("dandelion native", 130.0),
            ("dandelion wasm", 95.0),
            ("dandelion process", 280.0),
        ):
            p50 = base_us * factor
            values = {"p50": p50, "p99": p50 * 2.7, "p50_low": p50 * 0.95, "p50_high": p50 * 1.07}
            rows.append(Row(system, way, values, count=1000))
    return Panel("bars", "Start of a sandbox", Axis("way"), (P50, P99), tuple(rows), Plot.BARS)


def stacked_panel() -> Panel:
    """Stages of a cold, warm and hot call."""
    stages = {"load": (900.0, 40.0, 0.0), "compile": (6200.0, 0.0, 0.0), "copies": (80.0, 78, 75)}
    stages |= {"kernels": (310.0, 305.0, 300.0), "reply": (45.0, 44.0, 41.0)}
    metrics = tuple(Metric(stage, stage, Unit.US) for stage in stages)
    rows = tuple(
        Row("dandelion sequential", temperature, {s: float(v[i]) for s, v in stages.items()}, 20)
        for i, temperature in enumerate(("cold", "warm", "hot"))
    )
    return Panel("stages", "Where a call goes", Axis("call"), metrics, rows, Plot.STACKED)


def table_panel() -> Panel:
    """A table without a picture, with an own ratio and its spread."""
    ratio = Metric("ratio", "ratio", Unit.RATIO)
    size = Metric("bytes", "size", Unit.BYTES)
    rows = (
        Row("bare loop", "", {"p50": 3.2e-2, "bytes": 1536.0}, 100),
        Row(
            "dandelion null", "", {"p50": 7.2e9, "ratio": 1.5, "ratio_low": 1.4, "ratio_high": 1.7}
        ),
    )
    return Panel("table", "Sizes", Axis(""), (P50, ratio, size), rows, Plot.TABLE, "bare loop")


def hostile_panel(look: Plot = Plot.BARS) -> Panel:
    """Names and values that no experiment gives on purpose."""
    values = [1e-300, 1e300, float("nan"), float("inf"), -5.0, 0.0]
    rows = [
        Row(f"{HOSTILE} {i}", HOSTILE, {"p50": value, "p99": value}, errors=3, note=HOSTILE)
        for i, value in enumerate(values)
    ]
    rows.append(Row("dedicated", 3.0, {}))
    axis, metrics = Axis(HOSTILE, Unit.BYTES, logarithmic=True), (P50, P99)
    return Panel(f"../{HOSTILE}", HOSTILE, axis, metrics, tuple(rows), look, HOSTILE)


def empty_panel() -> Panel:
    """A panel of an experiment whose systems were all skipped."""
    return Panel("empty", "Nothing was there", Axis("x"), (P50,), ())


def result(
    experiment: str = "fig-5-1",
    panels: Sequence[Panel] = (),
    *,
    machine_name: str = "h200",
    group: str = "thesis",
    quick: bool = False,
    date: str = "2025-11-20T12:00:00Z",
) -> ExperimentResult:
    """An outcome with claims, budgets and skips."""
    gpu = machine_name == "h200"
    found = Findings(
        panels=tuple(panels or (sweep_panel(), stacked_panel())),
        claims=(
            Claim("GPU thesis, Fig. 5.1", "A dedicated server has 30 % less latency.",
                  "0.25 ms against 0.40 ms", True),
            Claim("GPU thesis, Fig. 5.5", "Four workers are no better than two.", "1.3x", False),
            Claim("GPU thesis, 5.3", "Two workers give 1.75x to 2x.", "one core only", None),
        ),
        budgets=(
            Budget("hot GPU call, sequential engine, over bare", "<= +25 µs", "+18.2 µs", True),
            Budget("no-op over HTTP, p50", "<= 1.6x raw ASGI", "1.64x", False, "two cores"),
        ),
        skips=(Skip("Ray actors", "not installed: pip install ray"),),
        scaled="" if gpu else "64 x 64 instead of 128 x 128, on processors",
        notes=("Rates are offered by one generator.",),
    )  # fmt: skip
    return ExperimentResult(
        experiment, group, "How does latency grow with load?", "GPU thesis, Fig. 5.1",
        {"cpu": "Xeon 8481C" if gpu else "EPYC 7B13", "cores": "16" if gpu else "2"},
        machine_name, "cuda" if gpu else "opencl", "c2feb7e+", date, 42.5, quick, found,
    )  # fmt: skip


def hostile_result() -> ExperimentResult:
    """An outcome whose every text is hostile."""
    panels = tuple(hostile_panel(look) for look in Plot)
    found = Findings(
        panels, (Claim(HOSTILE, HOSTILE, HOSTILE),), (Budget(HOSTILE, HOSTILE, HOSTILE, True),),
        (Skip(HOSTILE, HOSTILE),), HOSTILE, (HOSTILE,),
    )  # fmt: skip
    return ExperimentResult(
        f"../../{HOSTILE}", HOSTILE, HOSTILE, HOSTILE, {HOSTILE: HOSTILE}, f"/{HOSTILE}", HOSTILE,
        HOSTILE, HOSTILE, 1.0, True, found,
    )  # fmt: skip
