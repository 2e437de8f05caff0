"""Settings of a node. Every field can come from a TOML file, the environment or a flag."""

from __future__ import annotations

import os

import msgspec

MIB = 1024 * 1024
_SPIN_US = 200
_ENGINE_SPIN_US = 3000
_SPIN_CORES = 8


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a node is set up.

    Attributes:
        host, port: where the frontend listens; port 0 takes a free one.
        catalog: ``memory:`` or ``sqlite:FOLDER``.
        backends: which backends to start; ``a|b`` starts the first of them that works here.
        options: settings of backends, by backend and name, such as ``{"http": {"allow": "..."}}``.
        engines: how many engines to start for a backend; by default one for each resource.
        arena_bytes: size of the arena: all host memory for data that is in flight.
        body_limit_bytes: largest request body.
        items_limit: how many items a request may have in all its sets.
        default_deadline_s: deadline of an invocation that names none.
        max_waiting: invocations that may be under way at once; more are refused.
        partitioning: partitions of ``any`` shardings: ``max``, ``fixed:N``, ``auto``.
        cache_bytes: memory for results of functions that opted in; part of the arena, of which it
            takes one half at most.
        keep_traces: how many finished invocations can be looked at.
        spin_us: how long a caller looks for the answer of an engine process before it sleeps, in
            microseconds. It saves the time of waking up and costs a core meanwhile; -1 is 200 where
            there are 8 cores or more, else 0.
        engine_spin_us: the same of engine processes, which look for the next call; -1 is 3000 where
            there are 8 cores or more, else 0.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    catalog: str = "memory:"
    backends: tuple[str, ...] = ("null", "process", "native", "wasm", "http", "cuda|hip|opencl")
    options: dict[str, dict[str, str]] = {}
    engines: dict[str, int] = {}
    arena_bytes: int = 1024 * MIB
    body_limit_bytes: int = 256 * MIB
    items_limit: int = 100_000
    default_deadline_s: float = 60.0
    max_waiting: int = 4096
    partitioning: str = "auto"
    cache_bytes: int = 64 * MIB
    keep_traces: int = 256
    spin_us: int = -1
    engine_spin_us: int = -1

    @property
    def spins_us(self) -> tuple[int, int]:
        """`spin_us` and `engine_spin_us`, decided for this machine."""
        spare = len(os.sched_getaffinity(0)) >= _SPIN_CORES
        caller = _SPIN_US if spare else 0
        engine = _ENGINE_SPIN_US if spare else 0
        return (
            self.spin_us if self.spin_us >= 0 else caller,
            self.engine_spin_us if self.engine_spin_us >= 0 else engine,
        )
