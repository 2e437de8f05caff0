"""A program: how long does a device take to report a fault, without an engine?

It launches a kernel that reads memory which is not its own, and waits. It carries out a
`FaultOrder`; see `dandelion.bench.processes`.
"""

from __future__ import annotations

import os
import time

import msgspec

from dandelion.errors import DeviceFault

from ..processes import program_main, run_program
from .bare import BareLaunch, Workload, bare_device

STRAY = """#include "dandelion.h"
KERNEL void stray(GLOBAL u64 *a) {
    GLOBAL volatile u64 *far = (GLOBAL volatile u64 *)(u64)8;
    a[0] = *far;
}
"""
_LIMIT_S = 60.0


class FaultOrder(msgspec.Struct, frozen=True):
    """Input: the backend whose first device is measured."""

    backend: str


class FaultReport(msgspec.Struct, frozen=True):
    """Output: the time from the launch to the error, or why there is none."""

    reported_s: float = 0.0
    missing: str = ""


def ask(order: FaultOrder) -> FaultReport:
    """Run the program. Raises as `run_program`."""
    return run_program("dandelion.bench.systems.bare_fault", order, FaultReport, _LIMIT_S)


def measure(order: FaultOrder) -> FaultReport:
    """Make the fault in this process; the device cannot be used any more afterwards."""
    step = BareLaunch("stray", ("a",), (1, 1, 1), (32, 1, 1))
    stream = bare_device(order.backend).stream(
        Workload("stray", STRAY, {"a": 8}, "a", "a", (step,))
    )
    begin_s = time.monotonic()
    try:
        stream.go()
    except DeviceFault:
        return FaultReport(time.monotonic() - begin_s)
    return FaultReport(missing="the device did not report the fault")


if __name__ == "__main__":
    program_main(FaultOrder, measure, lambda missing: FaultReport(missing=missing))
    os._exit(0)  # a lost device cannot be closed
