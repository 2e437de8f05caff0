"""How fast is memory zeroed between users, and does anyone wait for it?

Contexts of the arena are compared with a bare memset of the same kind of memory, and so is device
memory, as an engine zeroes it after a call. Giving a context back must cost its owner nothing,
whatever its size, and a call's zeroing must cost its caller nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Mapping, Sequence

from dandelion.errors import BackendUnavailable
from dandelion.memory import SharedDomain
from dandelion.memory.lease import address_of

from ..experiment import Bench, experiment
from ..records import Axis, Budget, Findings, Metric, Panel, Plot, Row, Skip, Unit
from ..samples import P50, P99, Samples, row
from ..systems import zeroing as device
from ..timing import in_turns, ratio

KIB, MIB = 1024, 1024 * 1024
BARE, ARENA = device.BARE, "dandelion arena"
BACKGROUND, NOT_ZEROED = "zeroed in the background", "never zeroed until the arena is full"
ROOM = 8
"""Contexts that the arena has room for, where they are not zeroed in time."""
RATE = Metric("rate", "zeroed", Unit.BYTES_PER_SECOND, better="higher")
SHARE = Metric("ratio", "rate over bare memset", Unit.RATIO, drawn=False, better="higher")
SIZE = Axis("size", Unit.BYTES, logarithmic=True)
LEAST = 0.9
FLAT = 2.0


def _arena_rates(size: int, count: int, seconds: float) -> dict[str, Samples]:
    """Time zeroing a context that was given back, and a memset of another."""
    with contextlib.closing(SharedDomain(2 * size)) as domain:
        other = domain.acquire(size)
        address = address_of(other.view)

        def give_back() -> None:
            domain.acquire(size)

        give_back()
        return in_turns(
            {BARE: lambda: ctypes.memset(address, 0, size), ARENA: domain.recycle},
            count=count, seconds=seconds, after={ARENA: give_back},
        )  # fmt: skip


def _owner_costs(size: int, count: int, seconds: float) -> dict[str, Samples]:
    """Time acquiring a context and giving it back, zeroed in the background or not at all."""
    with (
        contextlib.closing(SharedDomain(ROOM * size)) as zeroed,
        contextlib.closing(SharedDomain(ROOM * size)) as full,
    ):
        return in_turns(
            {BACKGROUND: lambda: zeroed.acquire(size), NOT_ZEROED: lambda: full.acquire(size)},
            count=count, seconds=seconds, after={BACKGROUND: zeroed.recycle},
        )  # fmt: skip


def rate_rows(size: int, timed: Mapping[str, Samples], baseline: str) -> list[Row]:
    """Make rows of rates; the ratio is that of rates, so more is better."""
    rows = []
    for name, samples in timed.items():
        made = row(name, float(size), samples)
        found = ratio(timed[baseline], samples)
        made.values["rate"] = size / (made.values["p50"] / 1e6)
        made.values.update(ratio=found.median, ratio_low=found.low, ratio_high=found.high)
        rows.append(made)
    return rows


@experiment("zeroing", group="data", question="What does zeroing cost, and who pays for it?")
def zeroing(bench: Bench) -> Findings:
    """Zero contexts and device memory of growing size."""
    sizes = bench.pick([64 * KIB, 4 * MIB], [4 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB],
                       [4 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB, 256 * MIB])  # fmt: skip
    count, seconds = (50, 0.3) if bench.quick else (300, 2.0)
    rates: list[Row] = []
    owners: list[Row] = []
    for size in sizes:
        bench.say(f"arena, {size // KIB} KiB")
        rates += rate_rows(size, _arena_rates(size, count, seconds), BARE)
        timed = _owner_costs(size, count, seconds)
        owners += [row(name, float(size), timed[name]) for name in timed]
    panels = [
        Panel("arena", "Contexts of the arena, zeroed", SIZE, (RATE, P50, P99, SHARE),
              tuple(rates), Plot.LINES, BARE),
        Panel("owner", "What acquiring a context and giving it back costs its owner", SIZE,
              (P50, P99), tuple(owners), Plot.LINES),
    ]  # fmt: skip
    budgets = [rate_budget("zeroing of contexts", ARENA, rates), owner_budget(owners)]
    skips: list[Skip] = []
    if bench.backend:
        bench.say(f"memory of {bench.backend}")
        _device(bench, panels, budgets, skips)
    else:
        skips.append(Skip("device memory", "no GPU backend: give one with --backend"))
    scaled = "" if bench.gpu else "device memory is host memory, up to 64 MiB of it"
    return Findings(tuple(panels), budgets=tuple(budgets), skips=tuple(skips), scaled=scaled)


def rate_budget(path: str, system: str, rows: Sequence[Row]) -> Budget:
    """Judge the rate at the largest size, which is what a bandwidth is."""
    last = [r for r in rows if r.system == system][-1]
    share = last.values["ratio"]
    at = f"{last.values['rate'] / 1e9:.1f} GB/s at {float(last.x) / MIB:,.0f} MiB"
    why = "" if share >= LEAST else "what comes before and after the memset costs too much"
    return Budget(path, f">= {LEAST:.0%} of memset", f"{share:.0%}, {at}", share >= LEAST, why)


def owner_budget(rows: Sequence[Row]) -> Budget:
    """Judge whether what an owner pays grows with the size."""
    p50 = [r.values["p50"] for r in rows if r.system == BACKGROUND]
    passes = p50[-1] <= FLAT * p50[0]
    return Budget(
        "zeroing is off the path of a context's owner", f"<= {FLAT:.0f}x, largest to smallest",
        f"{p50[-1]:.1f} us against {p50[0]:.1f} us", passes,
        "" if passes else "it grows with the size",
    )  # fmt: skip


def _device(bench: Bench, panels: list[Panel], budgets: list[Budget], skips: list[Skip]) -> None:
    sizes = bench.pick((MIB,), (64 * KIB, MIB, 16 * MIB, 64 * MIB),
                       (64 * KIB, MIB, 16 * MIB, 256 * MIB, 1024 * MIB))  # fmt: skip
    calls = bench.pick((MIB,), (64 * KIB, MIB, 16 * MIB), (64 * KIB, MIB, 16 * MIB, 64 * MIB))
    count, seconds = (20, 0.5) if bench.quick else (100, 2.0)
    try:
        found = device.ask(device.ZeroOrder(bench.backend, sizes, calls, count, seconds))
    except BackendUnavailable as error:
        skips.append(Skip(f"memory of {bench.backend}", str(error)))
        return
    rates = [made for size in sizes for made in rate_rows(size, found.sizes[size], BARE)]
    after = tuple(
        row(name, float(size), samples)
        for size in calls
        for name, samples in found.calls[size].items()
    )
    panels += [
        Panel("device", f"Memory of a device, zeroed: {found.device}", SIZE,
              (RATE, P50, P99, SHARE), tuple(rates), Plot.LINES, BARE),
        Panel("after", "A call, and the zeroing that its caller does not wait for", SIZE,
              (P50, P99), after, Plot.LINES),
    ]  # fmt: skip
    if bench.gpu:
        budgets.append(rate_budget("zeroing of device memory", device.ENGINE, rates))
