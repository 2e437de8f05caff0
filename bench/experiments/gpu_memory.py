"""How fast an engine's copies and zeroing are, and what constants cost."""

from __future__ import annotations

import numpy as np

from ..experiment import Bench, experiment
from ..records import Axis, Findings, Metric, Panel, Plot, Row, Skip, Unit, at_least
from ..samples import LATENCIES, Samples, row
from ..systems import names
from ..systems.bare_cuda import BareCudaLike, VendorMemory
from ..systems.engines import LocalGpuEngine, PreparedCall, weighed
from ..systems.nodes import MIB
from ..timing import in_turns
from .gpu_engines import checked, opened

RATE = Metric("rate", "rate", Unit.BYTES_PER_SECOND, better="higher")


@experiment(
    "gpu_memory", group="gpu", question="how fast are copies from the arena, and zeroing?",
    needs_gpu=True,
)  # fmt: skip
def memory(bench: Bench) -> Findings:
    """64 MiB to the device and 1 GiB zeroed, against CUDA's own memory and its fill of words."""
    host, place = 64 * MIB, bench.pick(256 * MIB, 256 * MIB, 1024 * MIB)
    with opened(bench) as (bare, local):
        if bench.backend != "cuda" or not isinstance(bare, BareCudaLike):
            reason = "the best there is, is only known on CUDA"
            return Findings((), skips=(Skip(f"memory on {bench.backend}", reason),))
        timed = _time_memory(bench, local, host, place)
    rows = tuple(
        Row(system, what, found.values() | {"rate": size / found.median * 1e6}, found.count)
        for what, size in (("64 MiB to the device", host), ("zeroing", place))
        for system, found in timed[what].items()
    )
    panel = Panel("memory", "Copies and zeroing", Axis("what"), (RATE, *LATENCIES), rows, Plot.BARS,
                  names.BARE)  # fmt: skip
    budgets = (
        at_least(path, timed[what][names.BARE].median / timed[what][names.SEQUENTIAL].median, share,
                 "")
        for path, what, share in (
            ("copies from the arena, of pinned bandwidth", "64 MiB to the device", 0.95),
            ("zeroing, of memset bandwidth", "zeroing", 0.9),
        )
    )  # fmt: skip
    return Findings((panel,), budgets=tuple(budgets))


def _time_memory(
    bench: Bench, local: LocalGpuEngine, host: int, place: int
) -> dict[str, dict[str, Samples]]:
    """Time copies and zeroing in turns, by what and by system."""
    device = local.engine.device
    data = local.domain.acquire(host)
    data.view[:] = bytes(host)
    source = data.view.toreadonly()

    def copy() -> None:
        device.copy_in(0, source)
        device.synchronize()

    def zero() -> None:
        device.zero(0, place)
        device.synchronize()

    count = bench.pick(10, 10, 50)
    with VendorMemory(place, host) as vendor:
        bench.say("copies")
        copies = in_turns({names.BARE: vendor.copy_in, names.SEQUENTIAL: copy}, count=count,
                          warm_up=3, block=5)  # fmt: skip
        bench.say("zeroing")
        zeros = in_turns({names.BARE: vendor.zero, names.SEQUENTIAL: zero}, count=2 * count,
                         warm_up=3, block=5)  # fmt: skip
    return {"64 MiB to the device": copies, "zeroing": zeros}


@experiment(
    "gpu_constants", group="gpu", needs_device=True,
    question="what do constants cost that stay on the device, against copying them?",
)  # fmt: skip
def constants(bench: Bench) -> Findings:
    """Weights that stay, that are copied with each call, and two tenants in turn."""
    size = bench.pick(1 * MIB, 4 * MIB, 64 * MIB)
    x = np.arange(1024, dtype=np.int32)
    calls: list[PreparedCall] = []
    timed: dict[str, Samples] = {}
    with opened(bench) as (_, local):
        for number, fixed in ((1, True), (2, True), (1, False)):
            weights = np.full(size // 4, number, np.int32).tobytes()
            document = weighed(f"tenant_{number}_{fixed}", weights, fixed)
            given = {"x": x.tobytes()} if fixed else {"x": x.tobytes(), "w": weights}
            wanted = (x + np.int32(number)).tobytes()
            calls.append(checked(local.prepared(document, given), wanted.__eq__))
        one, other, copied = calls
        count, unused = bench.pick(20, 50, 300), "the other tenant"
        for turns, times in (
            ({"on the device": one}, count),
            ({"on the device, two tenants in turn": one, unused: other}, count),
            ({"copied with each call": copied}, max(5, count // 6)),
        ):
            bench.say(", ".join(turns))
            timed |= in_turns({name: held.call for name, held in turns.items()}, count=times,
                              after={name: h.clean_up for name, h in turns.items()})  # fmt: skip
    rows = tuple(row(names.SEQUENTIAL, what, s) for what, s in timed.items() if what != unused)
    title = f"A call with {size // MIB} MiB of constants"
    panel = Panel("constants", title, Axis("where they are"), LATENCIES, rows, Plot.BARS)
    scaled = "" if bench.gpu else f"{size // MIB} MiB, on a device that keeps no constants"
    return Findings((panel,), scaled=scaled)
