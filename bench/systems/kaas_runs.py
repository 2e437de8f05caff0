"""What the experiments on KaaS share: sizes for this machine, and shapes fitted to its device."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from ..closing import Closing
from ..experiment import Bench
from .kaas_shapes import Scale, Shape, Tuned, calibrated, tuned
from .partitions import TenantProcess
from .tenant_process import Ready, Start

NO_DEVICE = "no backend for GPU functions works here: pip install dandelion-engine[opencl]"
CONSTANT_LIMIT_BYTES = 170_000_000
"""Constants of one tenant on a GPU, where many tenants are there at once."""

_POCL_THREADS = 16


def scaled(bench: Bench, shape: Shape, *, limit_bytes: int = CONSTANT_LIMIT_BYTES) -> Shape:
    """Give a shape in the size for this run.

    Args:
        bench: of the run.
        shape: in the paper's size.
        limit_bytes: what the constants of a tenant may come to on a GPU; 0 for any size.
    """
    size = max(1.0, shape.constant_bytes / limit_bytes) if limit_bytes else 1.0
    full = Scale(constants=size)
    launches = 1 if shape.launches < 10 else 10
    quick, small = Scale(launches, 20.0, 1024.0, 64.0), Scale(launches, 10.0, 256.0, 16.0)
    fitting: Shape = bench.pick(quick, small, full).of(shape)
    return fitting


def scaled_words(bench: Bench, *, limit_bytes: int = CONSTANT_LIMIT_BYTES) -> str:
    """Say what `scaled` did."""
    if bench.gpu and not bench.quick:
        limit = f"constants of a tenant at most {limit_bytes // 10**6} MB"
        return limit if limit_bytes else ""
    time, constants, buffers = bench.pick((20, 1024, 64), (10, 256, 16), (1, 1, 1))
    return (
        f"a tenth of the launches, 1/{time} of the time, 1/{constants} of the constants, "
        f"1/{buffers} of the other buffers"
    )


class Device(Closing):
    """The device as a process without an engine sees it; fits shapes to it.

    Args:
        bench: of the run.

    Raises:
        BackendUnavailable: there is none.
    """

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._process = TenantProcess(Start(bench.backend))
        try:
            self.facts: Ready = self._process.wait()
        except BaseException:
            self._process.close()
            raise

    def fit(self, shape: Shape, *, empty: bool = False) -> Tuned:
        """Give a shape whose requests take on this device as long as they should.

        Args:
            shape: in the size for this run.
            empty: its kernels shall do next to nothing instead.
        """
        threads = 0 if self._bench.gpu else _POCL_THREADS
        given = tuned(shape, self.facts.compute_units, threads=threads)
        if empty:
            return given
        self._bench.say(f"calibrating {shape.name}")
        count = self._bench.pick(3, 5, 5)
        return calibrated(given, lambda tried: statistics.median(self.times(tried, count)))

    def times(self, given: Tuned, count: int, *, graph: bool = False) -> list[float]:
        """Time requests in the process itself, in microseconds."""
        return self._process.timed(given, count, graph=graph)

    def close(self) -> None:
        """End the process. May be called twice."""
        self._process.close()


def fitted(
    bench: Bench, shapes: Sequence[Shape], *, limit_bytes: int = CONSTANT_LIMIT_BYTES
) -> list[Tuned]:
    """Fit shapes to the device; see `scaled`.

    Raises:
        BackendUnavailable: there is no device.
    """
    with Device(bench) as device:
        return [device.fit(scaled(bench, shape, limit_bytes=limit_bytes)) for shape in shapes]
