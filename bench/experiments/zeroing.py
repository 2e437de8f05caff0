"""How fast is memory zeroed between users, and who waits for it?

Contexts of the arena are held against a bare memset of the same kind of memory, and so is device
memory, as an engine zeroes it after a call. Giving a context back must cost its owner nothing,
whatever its size, and so must a call's zeroing cost its caller.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Mapping, Sequence

from dandelion.errors import BackendUnavailable
from dandelion.memory import SharedDomain
from dandelion.memory.context import address_of

from ..columns import P50, P99, row
from ..experiment import Bench, experiment
from ..histogram import Histogram
from ..records import Axis, Budget, Found, Look, Metric, Panel, Row, Skip, Unit
from ..systems import zeroing as device
from ..timing import in_turns, ratio

KIB, MIB = 1024, 1024 * 1024
BARE, ARENA = device.BARE, "dandelion arena"
KEPT_CLEAN, NOT_CLEAN = "zeroed in the background", "never zeroed until the arena is full"
ROOM = 8
"""Contexts that the arena has room for, where nobody zeroes them in time."""
RATE = Metric("rate", "zeroed", Unit.BYTES_PER_SECOND, better="higher")
SHARE = Metric("ratio", "rate over bare memset", Unit.RATIO, drawn=False, better="higher")
LEAST = 0.9
FLAT = 2.0


def arena_rates(size: int, count: int, seconds: float) -> dict[str, Histogram]:
    """Time zeroing a context that was given back, and a memset of another."""
    with contextlib.closing(SharedDomain(2 * size)) as domain:
        other = domain.acquire(size)
        address = address_of(other.view)

        def give_back() -> None:
            domain.acquire(size)

        give_back()
        found: dict[str, Histogram] = in_turns(
            {BARE: lambda: ctypes.memset(address, 0, size), ARENA: domain.recycle},
            count=count, seconds=seconds, after={ARENA: give_back},
        )  # fmt: skip
    return found


def owner_costs(size: int, count: int, seconds: float) -> dict[str, Histogram]:
    """Time acquiring a context and giving it back, cleaned in the background or not at all."""
    with (
        contextlib.closing(SharedDomain(ROOM * size)) as kept,
        contextlib.closing(SharedDomain(ROOM * size)) as full,
    ):
        found: dict[str, Histogram] = in_turns(
            {KEPT_CLEAN: lambda: kept.acquire(size), NOT_CLEAN: lambda: full.acquire(size)},
            count=count, seconds=seconds, after={KEPT_CLEAN: kept.recycle},
        )  # fmt: skip
    return found


def rate_rows(size: int, timed: Mapping[str, Histogram], baseline: str) -> list[Row]:
    """Make rows of rates; the ratio is that of rates, so more is better."""
    rows = []
    for name, histogram in timed.items():
        made = row(name, float(size), histogram)
        found = ratio(timed[baseline], histogram)
        made.values["rate"] = size / (made.values["p50"] / 1e6)
        made.values.update(ratio=found.median, ratio_low=found.low, ratio_high=found.high)
        rows.append(made)
    return rows


@experiment("zeroing", group="data", question="What does zeroing cost, and who pays for it?")
def zeroing(bench: Bench) -> Found:
    """Zero contexts and device memory of growing size."""
    sizes = bench.pick([64 * KIB, 4 * MIB], [4 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB],
                       [4 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB, 256 * MIB])  # fmt: skip
    count, seconds = (50, 0.3) if bench.quick else (300, 2.0)
    rates: list[Row] = []
    owners: list[Row] = []
    for size in sizes:
        bench.say(f"arena, {size // KIB} KiB")
        rates += rate_rows(size, arena_rates(size, count, seconds), BARE)
        timed = owner_costs(size, count, seconds)
        owners += [row(name, float(size), timed[name]) for name in timed]
    axis = Axis("size", Unit.BYTES, logarithmic=True)
    panels = [
        Panel("arena", "Contexts of the arena, zeroed", axis, (RATE, P50, P99, SHARE),
              tuple(rates), Look.LINES, BARE),
        Panel("owner", "What acquiring a context and giving it back costs its owner", axis,
              (P50, P99), tuple(owners), Look.LINES),
    ]  # fmt: skip
    budgets = [_kept("zeroing of contexts", ARENA, rates), _off_the_path(owners)]
    skips: list[Skip] = []
    if bench.backend:
        bench.say(f"memory of {bench.backend}")
        _device(bench, panels, budgets, skips)
    else:
        skips.append(Skip("device memory", "no GPU backend: give one with --backend"))
    scaled = "" if bench.gpu else "device memory is host memory, up to 64 MiB of it"
    return Found(tuple(panels), budgets=tuple(budgets), skips=tuple(skips), scaled=scaled)


def _kept(path: str, system: str, rows: Sequence[Row]) -> Budget:
    """Judge the rate at the largest size, which is what a bandwidth is."""
    last = [r for r in rows if r.system == system][-1]
    share = last.values["ratio"]
    at = f"{last.values['rate'] / 1e9:.1f} GB/s at {float(last.x) / MIB:,.0f} MiB"
    why = "" if share >= LEAST else "what comes before and after the memset costs too much"
    return Budget(path, f">= {LEAST:.0%} of memset", f"{share:.0%}, {at}", share >= LEAST, why)


def _off_the_path(rows: Sequence[Row]) -> Budget:
    """Judge whether what an owner pays grows with the size."""
    p50 = [r.values["p50"] for r in rows if r.system == KEPT_CLEAN]
    first, last = p50[0], p50[-1]
    passes = last <= FLAT * first
    return Budget(
        "zeroing is off the path of a context's owner", f"<= {FLAT:.0f}x, largest to smallest",
        f"{last:.1f} us against {first:.1f} us", passes, "" if passes else "it grows with the size",
    )  # fmt: skip


def _device(
    bench: Bench, panels: list[Panel], budgets: list[Budget], skips: list[Skip]
) -> None:  # fmt: skip
    sizes = bench.pick((MIB,), (64 * KIB, MIB, 16 * MIB, 64 * MIB),
                       (64 * KIB, MIB, 16 * MIB, 256 * MIB, 1024 * MIB))  # fmt: skip
    calls = bench.pick((MIB,), (64 * KIB, MIB, 16 * MIB), (64 * KIB, MIB, 16 * MIB, 64 * MIB))
    count, seconds = (20, 0.5) if bench.quick else (100, 2.0)
    try:
        seen = device.ask(device.ZeroOrder(bench.backend, sizes, calls, count, seconds))
    except BackendUnavailable as error:
        skips.append(Skip(f"memory of {bench.backend}", str(error)))
        return
    axis = Axis("size", Unit.BYTES, logarithmic=True)
    rates: list[Row] = []
    for size in sizes:
        timed = {name: Histogram.of(record) for name, record in seen.sizes[size].items()}
        rates += rate_rows(size, timed, BARE)
    after = tuple(
        row(name, float(size), Histogram.of(record))
        for size in calls
        for name, record in seen.calls[size].items()
    )
    panels += [
        Panel("device", f"Memory of a device, zeroed: {seen.device}", axis, (RATE, P50, P99, SHARE),
              tuple(rates), Look.LINES, BARE),
        Panel("after", "A call, and the zeroing that its caller does not wait for", axis,
              (P50, P99), after, Look.LINES),
    ]  # fmt: skip
    if bench.gpu:
        budgets.append(_kept("zeroing of device memory", device.ENGINE, rates))
