"""What a launch of a Triton kernel costs in a blueprint, beside Triton's own launcher.

The kernel multiplies two square matrices. It is launched once and many times in a row; the
difference is what the launches take, without the call and its copies. Both run the same kernel,
and their results are compared bit by bit.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from dandelion.errors import BackendUnavailable

from ..experiment import Bench, experiment
from ..records import Axis, Findings, Panel, Plot, Skip, at_least
from ..samples import LATENCIES, row
from ..systems import names
from ..systems.engines import LocalGpuEngine
from ..systems.triton_kernels import matmul_function, torch_launches
from ..timing import in_turns
from .gpu_engines import checked

TRITON = "Triton's launcher"
LEAST_RATIO = 0.95
ONE, MANY = 1, 201


@experiment(
    "gpu_triton", group="gpu", needs_device=True,
    question="what does a launch of a Triton kernel cost over Triton's own launcher?",
)  # fmt: skip
def launches(bench: Bench) -> Findings:
    """Products of matrices by one Triton kernel, launched by a blueprint and by Triton."""
    size = bench.pick(128, 512, 2048)
    source = np.random.default_rng(bench.seed)
    left, right = (source.standard_normal((size, size)).astype(np.float16) for _ in range(2))
    with LocalGpuEngine(bench.backend) as local:
        try:
            if not local.engine.capacity.archs or bench.backend == "opencl":
                raise BackendUnavailable("triton", f"code for {bench.backend}", "use cuda or hip")
            document = matmul_function(size, local.engine.capacity.archs[0])
            theirs = torch_launches(size, left, right)
        except BackendUnavailable as error:
            return Findings((), skips=(Skip(TRITON, str(error)),))
        given = {"a": left.tobytes(), "b": right.tobytes()}
        product = theirs(1).cpu().numpy().tobytes()
        held = {
            count: checked(
                local.prepared(document, given | {"times": np.int64(count).tobytes()}),
                product.__eq__,
            )
            for count in (ONE, MANY)
        }
        bench.say("timing")
        ours = {f"{names.SEQUENTIAL}/{count}": call.call for count, call in held.items()}
        after = {f"{names.SEQUENTIAL}/{count}": call.clean_up for count, call in held.items()}
        calls = in_turns(
            ours | {f"{TRITON}/{count}": partial(theirs, count) for count in (ONE, MANY)},
            count=bench.pick(4, 10, 60), warm_up=6, block=5, after=after,
        )  # fmt: skip
    timed = {
        what: calls[f"{what}/{MANY}"].of_each(calls[f"{what}/{ONE}"], MANY - ONE)
        for what in (names.SEQUENTIAL, TRITON)
    }
    rows = tuple(row(what, f"{size} x {size}", found) for what, found in timed.items())
    panel = Panel(
        "triton", "One launch of a product in f16", Axis("rows and columns"), LATENCIES, rows,
        Plot.BARS, TRITON,
    )  # fmt: skip
    ratio = timed[TRITON].median / timed[names.SEQUENTIAL].median
    path = "a launch of a Triton kernel: Triton's own launcher, over a blueprint"
    judged = bench.gpu and not bench.quick
    return Findings((panel,), budgets=(at_least(path, ratio, LEAST_RATIO, "x"),) if judged else ())
