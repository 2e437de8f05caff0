"""How fast an engine's copies and zeroing are, and what constants cost."""

from __future__ import annotations

import contextlib

import numpy as np

from ..columns import LATENCIES, row
from ..experiment import Bench, experiment
from ..histogram import Histogram
from ..records import Axis, Found, Look, Metric, Panel, Row, Skip, Unit
from ..systems import names
from ..systems.bare_cuda import BareCudaLike, BestMemory
from ..systems.engine import HeldCall, LocalEngine, weighed
from ..timing import in_turns
from .gpu_engines import MIB, median, opened, over

COPY_SHARE, ZERO_SHARE = 0.95, 0.9
RATE = Metric("rate", "rate", Unit.BYTES_PER_SECOND, better="higher")


@experiment(
    "gpu_memory",
    group="gpu",
    question="how fast are copies from the arena, and zeroing?",
    needs_gpu=True,
)
def memory(bench: Bench) -> Found:
    """64 MiB to the device and 1 GiB zeroed, against CUDA's own memory and its fill of words."""
    host, place = 64 * MIB, bench.pick(256 * MIB, 256 * MIB, 1024 * MIB)
    with opened(bench) as got:
        if isinstance(got, Skip):
            return Found((), skips=(got,))
        bare, local = got
        if bench.backend != "cuda" or not isinstance(bare, BareCudaLike):
            reason = "the best there is, is only known on CUDA"
            return Found((), skips=(Skip(f"memory on {bench.backend}", reason),))
        timed = time_memory(bench, bare, local, host, place)
    rows = tuple(
        Row(system, what, found.values() | {"rate": size / median(found) * 1e6}, found.count)
        for what, size in (("64 MiB to the device", host), ("zeroing", place))
        for system, found in ((s, timed[what, s]) for s in (names.BARE, names.SEQUENTIAL))
    )
    metrics = (RATE, *LATENCIES)
    title = "Copies and zeroing"
    panel = Panel("memory", title, Axis("what"), metrics, rows, Look.BARS, names.BARE)
    shares = {
        what: median(timed[what, names.BARE]) / median(timed[what, names.SEQUENTIAL])
        for what, _ in timed
    }
    return Found(
        (panel,),
        budgets=(
            over("copies from the arena, of pinned bandwidth", shares["64 MiB to the device"],
                 COPY_SHARE, ""),
            over("zeroing, of memset bandwidth", shares["zeroing"], ZERO_SHARE, ""),
        ),
    )  # fmt: skip


def time_memory(
    bench: Bench, bare: BareCudaLike, local: LocalEngine, host: int, place: int
) -> dict[tuple[str, str], Histogram]:
    """Time copies and zeroing in turns; keys are what, and who."""
    device = local.engine.device
    data = local.domain.acquire(host)
    data.view[:] = bytes(host)
    source = data.view.toreadonly()
    with contextlib.ExitStack() as closing:
        best = BestMemory(bare, place, host)
        closing.callback(best.close)

        def copy() -> None:
            device.copy_in(0, source)
            device.synchronize()

        def zero() -> None:
            device.zero(0, place)
            device.synchronize()

        count = bench.pick(10, 10, 50)
        bench.say("copies")
        copies = in_turns(
            {names.BARE: best.copy_in, names.SEQUENTIAL: copy}, count=count, warm_up=3, block=5
        )
        bench.say("zeroing")
        zeros = in_turns(
            {names.BARE: best.zero, names.SEQUENTIAL: zero}, count=2 * count, warm_up=3, block=5
        )
    found = {("64 MiB to the device", system): timed for system, timed in copies.items()}
    return found | {("zeroing", system): timed for system, timed in zeros.items()}


@experiment(
    "gpu_constants",
    group="gpu",
    question="what do constants cost that stay on the device, against copying them?",
)
def constants(bench: Bench) -> Found:
    """Weights that stay, that are copied with each call, and two tenants in turn."""
    size = bench.pick(1 * MIB, 4 * MIB, 64 * MIB)
    with opened(bench) as got:
        if isinstance(got, Skip):
            return Found((), skips=(got,))
        timed = time_constants(bench, got[1], size)
    rows = tuple(row(names.SEQUENTIAL, what, found) for what, found in timed.items())
    title = f"A call with {size // MIB} MiB of constants"
    panel = Panel("constants", title, Axis("where they are"), LATENCIES, rows, Look.BARS)
    return Found(
        (panel,),
        scaled="" if bench.gpu else f"{size // MIB} MiB, on a device that keeps no constants",
    )


def time_constants(bench: Bench, local: LocalEngine, size: int) -> dict[str, Histogram]:
    """Time a tenant alone, two in turn, and copying; each result is right before."""
    x = np.arange(1024, dtype=np.int32)
    calls = []
    for number, fixed in ((1, True), (2, True), (1, False)):
        weights = np.full(size // 4, number, np.int32).tobytes()
        document = weighed(f"tenant_{number}_{fixed}", weights, fixed)
        given = {"x": x.tobytes()} if fixed else {"x": x.tobytes(), "w": weights}
        held = local.held(document, given)
        for _ in range(3):
            held.call()
            if not (held.result(np.int32) == x + number).all():
                raise ValueError("the engine gives a wrong result")
            held.settle()
        calls.append(held)
    one, other, copied = calls
    count = bench.pick(20, 50, 300)

    def timed(actions: dict[str, HeldCall], count: int) -> dict[str, Histogram]:
        bench.say(", ".join(actions))
        found: dict[str, Histogram] = in_turns(
            {name: held.call for name, held in actions.items()},
            count=count,
            after={name: held.settle for name, held in actions.items()},
        )
        return found

    alone = timed({"on the device": one}, count)
    turns = timed({"on the device, two tenants in turn": one, "the other tenant": other}, count)
    each = timed({"copied with each call": copied}, max(5, count // 6))
    del turns["the other tenant"]
    return alone | turns | each
