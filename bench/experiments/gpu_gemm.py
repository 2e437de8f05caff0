"""What a product of matrices costs as an action of a blueprint, beside `torch.mm` in a CUDA graph.

A function fills two matrices with random numbers on the device and multiplies them some times. It
is called with many and with one product; the difference is what the products take, without the
call, its copies and the filling. The same is done with torch.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

import dandelion.blueprint as bp
from dandelion.blueprint.builder import ArgumentLike
from dandelion.documents import FunctionDocument, gpu_function
from dandelion.errors import BackendUnavailable

from ..experiment import Bench, experiment
from ..records import Axis, Findings, Panel, Plot, Row, Skip, at_most
from ..samples import LATENCIES, Samples, row
from ..systems import names
from ..systems.engines import LocalGpuEngine
from ..systems.torch_products import torch_products
from ..timing import Action, in_turns
from .gpu_engines import checked

TORCH = "torch.mm, CUDA graph"
MANY = 33
MOST_RATIO = 1.1
LEAST_US = 20.0
"""Shorter products are within the noise of a difference of two calls."""
SIZES = ((128, 768, 768), (128, 3072, 768), (1024, 1024, 1024), (4096, 4096, 4096))
PRECISIONS = ("f32", "tf32", "bf16")
TOLERANCES = {"f32": 1e-4, "tf32": 5e-3, "bf16": 2e-2}
_PICKED = 256
_SOURCE = """
#include "dandelion.h"
KERNEL void fill(GLOBAL ITEM *x, u64 count, u32 salt)
{
    u64 i = GLOBAL_ID(0);
    u32 h = (u32)i * 2654435761u + salt;
    h ^= h >> 15;
    h *= 2246822519u;
    h ^= h >> 13;
    f32 value = (f32)(h >> 8) / 16777216.0f - 0.5f;
    if (i < count)
        x[i] = STORED(value);
}
KERNEL void pick(GLOBAL const ITEM *x, GLOBAL ITEM *y)
{
    y[GLOBAL_ID(0)] = x[GLOBAL_ID(0)];
}
"""


def products(m: int, n: int, k: int, precision: str, count: int) -> FunctionDocument:
    """Describe the function; its output is the beginning of the product's first row."""
    short = precision == "bf16"
    item = 2 if short else 4
    b = bp.Blueprint(inputs=["x"], outputs=["y"], modules={"k": "products.c"})
    b.kernel("fill", access=("write", "value", "value"))
    b.kernel("pick", access=("read", "write"))
    places = {"left": m * k, "right": k * n, "made": m * n}
    for name, elements in places.items():
        b.buffer(name, elements * item, temporary=True)
    for salt, name in enumerate(("left", "right"), start=1):
        elements = places[name]
        args: list[ArgumentLike] = [b[name], bp.scalar("u64", elements), bp.scalar("u32", salt)]
        b.launch("fill", args, grid=-(-elements // 256), block=256)
    dtype, compute = ("bf16", "f32") if short else ("f32", precision)
    with b.repeat(count):
        b.gemm(b.left, b.right, b.made, m=m, n=n, k=k, dtype=dtype, compute=compute)
    b.launch("pick", [b.made, b.buffer("y", _PICKED * item)], grid=1, block=_PICKED)
    stored = "(u16)(AS_U32(v) >> 16)" if short else "(v)"
    head = f"#define ITEM {'u16' if short else 'f32'}\n#define STORED(v) {stored}\n"
    source = _SOURCE.replace('#include "dandelion.h"\n', f'#include "dandelion.h"\n{head}')
    name = f"products_{m}_{n}_{k}_{precision}_{count}"
    return gpu_function(name, b.json(), inputs=["x"], outputs=["y"], files={"products.c": source})


def filled(count: int, salt: int, precision: str) -> npt.NDArray[np.float32]:
    """What the kernel writes."""
    h = np.arange(count, dtype=np.uint32) * np.uint32(2654435761) + np.uint32(salt)
    h ^= h >> np.uint32(15)
    h *= np.uint32(2246822519)
    h ^= h >> np.uint32(13)
    value = (h >> np.uint32(8)).astype(np.float32) / np.float32(16777216) - np.float32(0.5)
    if precision == "bf16":
        value = (value.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    return value.astype(np.float32)


def is_right(data: bytes, m: int, n: int, k: int, precision: str) -> bool:
    """Compare the beginning of the first row with numpy."""
    width = min(n, _PICKED)
    left = filled(m * k, 1, precision)[:k].astype(np.float64)
    right = filled(k * n, 2, precision).reshape(k, n)[:, :width].astype(np.float64)
    expected = left @ right
    if precision == "bf16":
        bits = np.frombuffer(data, np.uint16).astype(np.uint32) << np.uint32(16)
        found = bits.view(np.float32)[:width].astype(np.float64)
    else:
        found = np.frombuffer(data, np.float32)[:width].astype(np.float64)
    error = np.abs(found - expected).max() / np.abs(expected).max()
    return bool(error < TOLERANCES[precision])


@experiment(
    "gpu_gemm", group="gpu", needs_device=True,
    question="what does a product of matrices cost over torch.mm?",
)  # fmt: skip
def gemm(bench: Bench) -> Findings:
    """Products as actions of a blueprint, and `torch.mm`, both in graphs."""
    sizes = bench.pick(((16, 32, 16),), ((64, 64, 64), (128, 768, 768)), SIZES)
    panels, lines = [], []
    skipped: list[Skip] = []
    with LocalGpuEngine(bench.backend) as local:
        for precision in PRECISIONS:
            rows: list[Row] = []
            for m, n, k in sizes:
                bench.say(f"timing {m} x {n} x {k} in {precision}")
                timed, reason = _timed(bench, local, m, n, k, precision)
                rows += [row(what, f"{m} x {n} x {k}", found) for what, found in timed.items()]
                if reason:
                    skipped.append(Skip(f"{TORCH}, {precision}", reason))
                elif timed[TORCH].median >= LEAST_US:
                    path = f"a product {m} x {n} x {k} in {precision}, over torch.mm"
                    ratio = timed[names.SEQUENTIAL].median / timed[TORCH].median
                    lines.append(at_most(path, ratio, MOST_RATIO, "x"))
            title = f"One product in {precision}, within a graph"
            axis = Axis("rows, columns, depth")
            panels.append(Panel(precision, title, axis, LATENCIES, tuple(rows), Plot.BARS, TORCH))
    judged = bench.gpu and not bench.quick
    return Findings(
        tuple(panels), budgets=tuple(lines) if judged else (), skips=tuple(dict.fromkeys(skipped))
    )


def _timed(
    bench: Bench, local: LocalGpuEngine, m: int, n: int, k: int, precision: str
) -> tuple[dict[str, Samples], str]:
    """Time one product; also gives why torch was left out."""
    reason = ""
    actions: dict[str, Action] = {}
    after: dict[str, Action] = {}
    for count in (1, MANY):
        document = products(m, n, k, precision, count)
        held = checked(
            local.prepared(document, {"x": bytes(64)}),
            lambda data: is_right(data, m, n, k, precision),
        )
        actions[f"{names.SEQUENTIAL}/{count}"] = held.call
        after[f"{names.SEQUENTIAL}/{count}"] = held.clean_up
    try:
        for count in (1, MANY):
            actions[f"{TORCH}/{count}"] = torch_products(m, n, k, precision, count)
    except BackendUnavailable as error:
        reason = str(error)
    calls = in_turns(actions, count=bench.pick(4, 10, 60), warm_up=4, block=5, after=after)
    found: dict[str, Samples] = {}
    for what in (names.SEQUENTIAL, TORCH):
        if f"{what}/{MANY}" in calls:
            found[what] = calls[f"{what}/{MANY}"].of_each(calls[f"{what}/1"], MANY - 1)
    return found, reason
