"""The limits of a function. Settings have caps of them, and know of no data and no arrays."""

from __future__ import annotations

import msgspec

MIB = 1024 * 1024


class Limits(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The limits of one instance of a function, and of the number of its instances.

    Attributes:
        memory_bytes: host memory of the instance, without its inputs.
        wall_s: wall-clock seconds.
        cpu_s: CPU seconds, where the backend can measure them.
        output_bytes: data of all output items together.
        output_items: number of output items.
        concurrency: calls of the function that are on engines at the same time; more wait.
        queue_length: calls of it that wait for an engine; more are refused.
    """

    memory_bytes: int = 512 * MIB
    wall_s: float = 60.0
    cpu_s: float = 60.0
    output_bytes: int = 256 * MIB
    output_items: int = 100_000
    concurrency: int = 1_000_000
    queue_length: int = 1_000_000

    def within(self, caps: Limits) -> Limits:
        """Return these limits, each lowered to its cap."""
        mine, most = msgspec.structs.asdict(self), msgspec.structs.asdict(caps)
        over = {name: most[name] for name, value in mine.items() if value > most[name]}
        return msgspec.structs.replace(self, **over) if over else self
