"""Functions of ``dandelion.h`` that are its own on processors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from dandelion.backends.gpu.opencl_device import OpenClDevice
from dandelion.backends.gpu.plan import plan
from dandelion.backends.gpu.prepared_steps import prepare_steps
from dandelion.backends.gpu.source import code_of
from dandelion.backends.gpu.templates import Template

import dandelion.blueprint as bp
from dandelion.errors import BackendUnavailable

BLOCK = 64
SPECIAL = (
    *(np.nan, np.inf, -np.inf, 0.0, -0.0, 1e38, -1e38, 1e-40, -1e-40),
    *(88.72, 88.73, -87.4, -103.9, -103.98, -104.0, -105.0),
    *(127.9999, 128.0, 129.0, -126.0, -126.5, -149.0, -149.9, -150.0, -151.0),
)
SOURCE = """#include "dandelion.h"
DEVICE f32 applied(f32 x) { return NAME(x); }
KERNEL void apply(GLOBAL f32 *y, GLOBAL const f32 *x)
{
    y[GLOBAL_ID(0)] = applied(x[GLOBAL_ID(0)]);
}
"""


def numbers() -> np.ndarray[Any, np.dtype[np.float32]]:
    """Numbers of all sizes, as many as fill blocks."""
    random = np.random.default_rng(1)
    parts = (random.uniform(-160, 135, 20_000), random.uniform(-1, 1, 20_000), SPECIAL)
    found = np.concatenate(parts).astype(np.float32)
    return np.concatenate((found, np.zeros(-len(found) % BLOCK, np.float32)))


@pytest.mark.parametrize("block", [1, BLOCK])
@pytest.mark.parametrize(
    ("name", "exact", "wrong"),
    [
        ("exp2f", np.exp2, 1.0),
        ("expf", np.exp, 1.0),
        ("sqrtf", np.sqrt, 0.5),
        ("rintf", np.rint, 0),
    ],
)
def test_results_differ_in_the_last_place_only(
    name: str, exact: Callable[[Any], Any], wrong: float, block: int
) -> None:
    device = OpenClDevice()
    try:
        device.open()
    except BackendUnavailable as error:
        pytest.skip(str(error))
    x = numbers()
    made = bp.Blueprint(inputs=["x"], outputs=["y"], modules={"m": ["m.c"]})
    y = made.buffer("y", x.nbytes)
    made.kernel("apply", module="m", access=["write", "read"])
    made.launch("apply", [y, made.x], grid=(len(x) // block, 1, 1), block=(block, 1, 1))
    planned = plan(made.build(), {"x": x.nbytes}, lambda name, at: 0)
    device.allocate(planned.used_bytes)
    device.copy_in(planned.slots["x"].offset_bytes, x.tobytes())
    module = device.load(code_of(Template("apply", SOURCE.replace("NAME", name), ())))
    device.launch(prepare_steps(device, planned.steps, {"apply": (module, "apply")}))
    device.synchronize()
    data = bytearray(x.nbytes)
    device.copy_out(planned.outputs["y"].offset_bytes, memoryview(data))
    device.close()
    found = np.frombuffer(bytes(data), np.float32)
    with np.errstate(all="ignore"):
        right = exact(x.astype(np.float64))
        nearest = right.astype(np.float32)
        usual = np.isfinite(nearest) & (right != 0)
        np.testing.assert_array_equal(found[~usual], nearest[~usual])
        error = np.abs(found[usual] - right[usual]) / np.spacing(np.abs(nearest[usual]))
    assert error.max() <= wrong
