"""The settings of a GPU backend, read and checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from dandelion.errors import InvalidInput, nearest

from .confined import DEFAULT_PROCESSES, MAX_PROCESSES
from .constants import WeightsLimit

MAX_WORKERS = 48  # clients that one MPS server takes
AUTO = "auto"
AUTO_WORKERS = (2, 16)
"""So many at least and at most, if the node chooses,"""
AUTO_WORKER_BYTES = 4 << 30
"""and as many as have this much memory each."""
"""The most that the node starts by itself. Each has its part of the memory from the beginning, so
more would leave little for each; a start takes seconds, so the node cannot divide it anew."""
_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


class GpuOptions:
    """Settings by name, as the driver, its checker, planner and factory share them.

    Every GPU backend has ``pool_bytes`` (``512M``), the size of each engine's buffer pool, by
    default what the device offers; ``exact_stages`` (``true``), to measure each stage of a call at
    some cost; ``workers``, how many further engines share each device, 0 for none, or ``auto``: the
    node starts as many as help, at most N with ``auto:N``. With workers the
    sequential engine takes one half of the device's memory and the workers the other half, in equal
    parts, started or not. ``standby``: whether a process waits to replace a sequential engine that
    a fault ended. ``role``, set by the node: ``sequential`` or ``worker``; without a role an engine
    takes all.

    Args:
        backend: its name, for errors.
        defaults: all settings that the backend has.
    """

    SHARED: ClassVar[Mapping[str, str]] = {
        "pool_bytes": "0",
        "exact_stages": "false",
        "workers": "0",
        "standby": "false",
        "role": "",
    }

    def __init__(self, backend: str, defaults: Mapping[str, str]) -> None:
        self.backend = backend
        self.given: dict[str, str] = {}
        self._defaults = defaults

    def update(self, given: Mapping[str, str]) -> None:
        """Take settings.

        Raises:
            InvalidInput: a setting is unknown or has a bad value.
        """
        for name in given:
            if name not in self._defaults:
                close = nearest(name, self._defaults)
                known = ", ".join(self._defaults)
                hint = f"did you mean '{close}'?" if close else f"known: {known}"
                raise InvalidInput(f"{self.backend}.{name}", "unknown setting", hint)
        self.given.update(given)
        self.size("pool_bytes")
        for name in ("exact_stages", "standby", "unconfined"):
            self.flag(name)
        self.workers()
        self.worker_percentage()
        self.processes()
        self.weights()

    def text(self, name: str) -> str:
        """Give a setting as it is written; empty if the backend has none of that name."""
        return self.given.get(name, self._defaults.get(name, "")).strip()

    def flag(self, name: str) -> bool:
        """Read a setting that is true or false; false if the backend has none of that name.

        Raises:
            InvalidInput: it is something else.
        """
        text = self.given.get(name, self._defaults.get(name, "false")).lower()
        if text not in ("true", "false", "1", "0", "yes", "no"):
            raise InvalidInput(f"{self.backend}.{name}", f"'{text}' is neither true nor false")
        return text in ("true", "1", "yes")

    def size(self, name: str) -> int:
        """Read a size in bytes; 0 if the backend has no setting of that name.

        Raises:
            InvalidInput: it is no size.
        """
        text = (self.text(name) or "0").lower().removesuffix("b").removesuffix("i")
        unit = text[-1:] if text[-1:] in ("k", "m", "g", "t") else ""
        try:
            return int(float(text.removesuffix(unit)) * _UNITS[unit])
        except (ValueError, OverflowError):
            where = f"{self.backend}.{name}"
            raise InvalidInput(where, f"'{text}' is not a size", "write 512M or 2G") from None

    def workers(self, memory_bytes: int = 0) -> int:
        """How many further engines share a device with so much memory, at most."""
        text = self.text("workers")
        if text == AUTO:
            least, most = AUTO_WORKERS
            return max(least, min(memory_bytes // 2 // AUTO_WORKER_BYTES, most))
        number = text.removeprefix(f"{AUTO}:")
        if not (number.isdecimal() and int(number) <= MAX_WORKERS):
            hint = f"write 0 to {MAX_WORKERS}, {AUTO}, or {AUTO}:N for at most N"
            message = f"'{text}' is not a number of workers"
            raise InvalidInput(f"{self.backend}.workers", message, hint)
        return int(number)

    def elastic(self) -> bool:
        """Whether the node chooses how many of the workers run."""
        return self.text("workers").startswith(AUTO)

    def worker_percentage(self) -> str:
        """Part of the compute units that each worker may use; empty for all."""
        text = self.text("worker_percentage")
        if text and not (text.isdecimal() and 0 < int(text) <= 100):
            where = f"{self.backend}.worker_percentage"
            raise InvalidInput(where, f"'{text}' is not a percentage", "write 1 to 100")
        return text

    def processes(self) -> int:
        """How many functions have a confined process at a time, where kernels run on the host."""
        text = self.text("processes") or str(DEFAULT_PROCESSES)
        if not (text.isdecimal() and 1 <= int(text) <= MAX_PROCESSES):
            where = f"{self.backend}.processes"
            message = f"'{text}' is not a number of processes"
            raise InvalidInput(where, message, f"write 1 to {MAX_PROCESSES}")
        return int(text)

    def weights(self) -> WeightsLimit:
        """How much of an engine's device memory constants may take."""
        text = self.text("weights")
        if not text.endswith("%"):
            return WeightsLimit(self.size("weights"))
        try:
            percent = float(text[:-1])
        except ValueError:
            percent = -1.0
        if not 0 <= percent <= 80:
            where = f"{self.backend}.weights"
            raise InvalidInput(where, f"'{text}' is not a share", "write 0% to 80%, or a size")
        return WeightsLimit(share=percent / 100)

    def shares_device(self, memory_bytes: int) -> bool:
        """Tell whether an engine shares its device with others of the node, by its role."""
        return self.text("role") == "worker" or (
            self.text("role") == "sequential" and self.workers(memory_bytes) > 0
        )

    def memory_share(self, memory_bytes: int) -> float:
        """Share of the device's memory that an engine takes, by its role."""
        workers, role = self.workers(memory_bytes), self.text("role")
        shares = {"worker": 0.5 / max(workers, 1), "sequential": 0.5 if workers else 1.0}
        return shares.get(role, 1.0)
