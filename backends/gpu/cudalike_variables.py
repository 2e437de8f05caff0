"""Variables of loaded modules: where they lie on the device, and the values that they begin with.

Toolkits put tables into modules as variables, CUDA's before 13.5 one of 24 bytes for `sinf` alone.
Copying the first values back takes microseconds, loading the module afresh milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from .calls import Calls
from .cubin import Variable
from .cudalike_code import Do, FirstValue

MOST_BYTES = 64 * 1024
MOST_VARIABLES = 16
"""Modules with more are loaded afresh: each variable is a copy of its own."""


def first_values(
    calls: Calls, module: Any, listed: Mapping[str, Variable], stream: Any, do: Do
) -> tuple[FirstValue, ...]:
    """Read the variables of a module that was just loaded.

    Args:
        module: the driver's handle.
        listed: all its variables, by symbol.
        do: gives the result of a call, or raises.

    Returns:
        Nothing if they are too many, or do not lie on the device as they are listed.

    Raises:
        DeviceFault: the device failed.
    """
    if len(listed) > MOST_VARIABLES or sum(v.held_bytes for v in listed.values()) > MOST_BYTES:
        return ()
    found = []
    for symbol, variable in listed.items():
        answer = calls.get_variable(module, symbol.encode())
        if answer[0] or int(answer[2]) != variable.size_bytes:
            return ()
        found.append((int(answer[1]), bytearray(variable.held_bytes)))
    found.sort(key=lambda one: one[0])
    for (start, data), (following, _) in pairwise(found):
        if start + len(data) > following:
            return ()
    try:
        for start, data in found:
            view = memoryview(data)
            do("load", calls.copy_out(view, calls.pointer(start), len(data), stream))
    finally:
        do("load", calls.synchronize(stream))
    return tuple(FirstValue(calls.pointer(start), bytes(data)) for start, data in found)
