"""A device that Inductor and Triton generate code for, without one in this machine.

Both ask torch and the driver for properties of the current device. While `faked` is in force they
get those of the target. Nothing else of torch may run on the device then.

Source: torch 2.11, ``torch/_inductor/scheduler.py``, ``runtime/hints.py``, ``codegen/triton.py``.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

from dandelion.export.targets import Target

_UNITS = {"sm_80": 108, "sm_90": 132, "sm_100": 148, "gfx90a": 104, "gfx942": 304}
_OTHER_UNITS = 64
_REGISTERS = 65536
_THREADS = 2048


@contextlib.contextmanager
def faked(torch: Any, target: Target) -> Iterator[Any]:
    """Let torch's compiler see a device of an architecture.

    Args:
        torch: the module.
        target: the architecture.

    Yields:
        The device, for tensors without content.
    """
    hints = importlib.import_module("torch._inductor.runtime.hints")
    compiler = importlib.import_module("triton.backends.compiler")
    runtime = importlib.import_module("triton.runtime")
    units = _UNITS.get(target.arch, _OTHER_UNITS)
    is_nvidia = target.backend == "cuda"
    major, minor = divmod(int(target.number), 10) if is_nvidia else (9, 4)
    known = hints.DeviceProperties(
        "cuda" if is_nvidia else "hip", 0, units, target.number, major, _REGISTERS, _THREADS, 1024,
        target.warp_threads,
    )  # fmt: skip
    seen = SimpleNamespace(
        name=target.arch, major=major, minor=minor, multi_processor_count=units,
        regs_per_multiprocessor=_REGISTERS, max_threads_per_multi_processor=_THREADS,
        max_threads_per_block=1024, warp_size=target.warp_threads, gcnArchName=target.arch,
        shared_memory_per_block_optin=target.shared_limit_bytes, total_memory=1 << 36,
    )  # fmt: skip
    gpu = compiler.GPUTarget(target.backend, target.number, target.warp_threads)
    driver = SimpleNamespace(get_current_target=lambda: gpu, get_current_device=lambda: 0)
    replaced = [
        (torch.cuda, "get_device_properties", lambda *_: seen),
        (torch.cuda, "get_device_capability", lambda *_: (major, minor)),
        (torch.cuda, "current_device", lambda: 0),
        (importlib.import_module("torch._inductor.scheduler"), "has_triton", lambda: True),
        (hints.DeviceProperties, "create", lambda *_: known),
        (runtime.driver, "_active", driver),
    ]
    with contextlib.ExitStack() as stack:
        for owner, name, value in replaced:
            stack.enter_context(mock.patch.object(owner, name, value))
        yield torch.device("cuda", 0)
