"""Variables of loaded modules: where they lie on the device, and the values that they begin with.

Toolkits put tables into modules as variables, CUDA's before 13.5 one of 24 bytes for `sinf` alone.
Copying the first values back takes microseconds, loading the module afresh milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .calls import Calls
from .cudalike_code import Do, FirstValue

MOST_BYTES = 64 * 1024
MOST_VARIABLES = 16
"""Modules with more are loaded afresh: each variable is a copy of its own."""


def first_values(
    calls: Calls, module: Any, listed: Mapping[str, int], stream: Any, do: Do
) -> tuple[FirstValue, ...]:
    """Read the variables of a module that was just loaded.

    Args:
        module: the driver's handle.
        listed: sizes of all its variables in bytes, by symbol.
        do: gives the result of a call, or raises.

    Returns:
        Nothing if they are too many, or the driver does not find one as it is listed.

    Raises:
        DeviceFault: the device failed.
    """
    if len(listed) > MOST_VARIABLES or sum(listed.values()) > MOST_BYTES:
        return ()
    read = []
    for symbol, size in listed.items():
        answer = calls.get_variable(module, symbol.encode())
        if answer[0] or int(answer[2]) != size:
            return ()
        data = bytearray(size)
        do("load", calls.copy_out(memoryview(data), answer[1], size, stream))
        read.append((answer[1], data))
    do("load", calls.synchronize(stream))
    return tuple(FirstValue(address, bytes(data)) for address, data in read)
