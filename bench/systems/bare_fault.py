"""A program: how long does a device take to tell of a fault, with no engine around?

It opens the device itself, launches a kernel that reads what is not its own, and waits. The context
is lost afterwards, so that is all that it does. It answers a `FaultOrder` with a `FaultSeen`, see
`orders`.
"""

from __future__ import annotations

import os
import sys
import time

import msgspec

from dandelion.errors import DeviceFault

from . import orders
from .bare import Step, Work, bare_device

STRAY = """#include "dandelion.h"
KERNEL void stray(GLOBAL u64 *a) {
    GLOBAL volatile u64 *far = (GLOBAL volatile u64 *)(u64)8;
    a[0] = *far;
}
"""
_LIMIT_S = 60.0


class FaultOrder(msgspec.Struct, frozen=True):
    """What is measured: a fault on the first device of a backend."""

    backend: str


class FaultSeen(msgspec.Struct, frozen=True):
    """What was found.

    Attributes:
        told_s: from the launch to the error.
        words: the error.
        missing: why there is nothing.
    """

    told_s: float = 0.0
    words: str = ""
    missing: str = ""


def ask(order: FaultOrder) -> FaultSeen:
    """Run the program. Raises as `orders.ask`."""
    return orders.ask("dandelion.bench.systems.bare_fault", order, FaultSeen, _LIMIT_S)


def measure(order: FaultOrder) -> FaultSeen:
    """Make the fault in this process.

    Raises:
        BackendUnavailable: the device does not work here.
    """
    step = Step("stray", ("a",), (1, 1, 1), (32, 1, 1))
    work = Work("stray", STRAY, {"a": 8}, "a", "a", (step,))
    lane = bare_device(order.backend).lane(work)
    begin_s = time.monotonic()
    try:
        lane.go()
    except DeviceFault as error:
        return FaultSeen(time.monotonic() - begin_s, str(error))
    return FaultSeen(missing="the device took no notice of the fault")


if __name__ == "__main__":
    code = orders.answer(FaultOrder, measure, lambda missing: FaultSeen(missing=missing))
    sys.stdout.flush()
    os._exit(code)  # a lost device cannot be closed
