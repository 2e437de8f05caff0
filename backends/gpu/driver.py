"""What the drivers of all GPU backends share: everything but the device itself."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Mapping
from typing import ClassVar

from dandelion.blueprint.reading import read_config
from dandelion.confinement.lockdown import landlock_abi
from dandelion.data import Bytes, Item
from dandelion.driver import Demand, Driver, Engine, Hosting, InstanceSets
from dandelion.errors import InvalidBlueprint, InvalidInput, nearest
from dandelion.function import Function
from dandelion.memory import ArenaMap

from .calls import Compiler
from .confined import DEFAULT_PROCESSES, MAX_PROCESSES, ConfinedEngine
from .device import Device
from .host_runtime import HostRuntime
from .host_template import HostTemplate
from .launch_sizes import misfits
from .layout import Slot
from .plan_cache import PlanCache
from .program import Program, ProgramCache, Signature, make_program, plan_call
from .sequential import SequentialEngine
from .source import sources
from .source_check import checked_source
from .weights import SMALL_BYTES, WeightsLimit, constant_slots

MAX_WORKERS = 48  # clients that one MPS server takes
HURRIED_BYTES = 1 << 30
"""Pool of an engine that replaces a lost one, until a call needs more."""
_DEMANDS = 1024
_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


class GpuDriver(Driver):
    """A backend of GPU functions. A subclass says how to probe and make a device.

    Settings: ``pool_bytes`` (``512M``), the size of each engine's buffer pool, by default what the
    device offers; ``exact_stages`` (``true``), to measure each stage of a call at some cost;
    ``workers``, how many further engines share each device, 0 for none. With workers the sequential
    engine takes one half of the device's memory and the workers the other half, in equal parts.
    ``spare``, whether a process waits to take the place of a sequential engine that a fault ended.
    ``role``, set by the node: ``sequential`` or ``worker``; without a role an engine takes all.
    """

    formats: ClassVar[frozenset[str]] = frozenset({"blueprint"})
    hosting: ClassVar[Hosting] = Hosting.PROCESS
    settings: ClassVar[tuple[str, ...]] = ("pool_bytes", "exact_stages", "workers", "spare", "role")
    default_workers: ClassVar[int] = 0
    default_spare: ClassVar[bool] = False

    def __init__(self) -> None:
        self._programs = ProgramCache()
        self._plans = PlanCache()
        self._demands: dict[tuple[str, Signature], Demand] = {}
        self._arena: ArenaMap | None = None
        self._options: dict[str, str] = {}
        self._warm: dict[str, Device] = {}
        self._lost_bytes = 0
        self._template: HostTemplate | None = None

    def configure(self, options: Mapping[str, str]) -> None:
        for name in options:
            if name not in self.settings:
                close = nearest(name, self.settings)
                hint = f"did you mean '{close}'?" if close else f"known: {', '.join(self.settings)}"
                raise InvalidInput(f"{self.name}.{name}", "unknown setting", hint)
        self._options.update(options)
        self._size("pool_bytes")
        self._flag("exact_stages")
        self._flag("spare")
        self._flag("unconfined")
        self._workers()
        self.processes()

    def attach(self, arena: ArenaMap) -> None:
        self._arena = arena
        runtime = self.host_runtime()
        if runtime is not None and landlock_abi() and not self._flag("unconfined"):
            with contextlib.suppress(OSError):  # starting the engine tries again, and tells
                self._template = HostTemplate(self.name, self._options, runtime)

    def drop_template(self) -> None:
        """End what was started ahead, while loading tells whether it is needed."""
        template, self._template = self._template, None
        if template is not None:
            template.close()

    def check(self, function: Function) -> None:
        program = make_program(function)
        for code in sources(program.config, function.files):
            checked_source(code)
        problems = misfits(program.config, function.files)
        if problems:
            raise InvalidBlueprint(tuple(problems))

    def references(self, main: Bytes) -> tuple[str, ...]:
        config, problems = read_config(main)
        if problems:
            raise InvalidBlueprint(problems)
        return config.paths

    def demand(self, function: Function, inputs: InstanceSets) -> Demand:
        program = self._programs.get(function)
        key = (program.identity, program.signature(inputs))
        found = self._demands.get(key)
        if found is None:
            items = program.items(inputs)
            held = self._held(program, items)
            plan = plan_call(self._plans, program, items, held)
            found = Demand(
                program.output_bytes(plan), plan.used_bytes, plan.blocks, plan.block_threads
            )
            if len(self._demands) >= _DEMANDS:
                self._demands.clear()
            self._demands[key] = found
        return found

    def warm(self, resource: str) -> None:
        if self.runs_on_host(resource) and not self._flag("unconfined"):
            return  # its processes are their own
        device = self.device(resource)
        device.open()
        self._warm[resource] = device
        if self._arena is not None:
            device.register(self._arena.address, self._arena.size_bytes)

    def hurry(self, device_bytes: int) -> None:
        self._lost_bytes = device_bytes

    def _held(self, program: Program, items: Mapping[str, Item]) -> Mapping[str, Slot] | None:
        """Tell where constants would lie if the device kept them; it says no if it cannot."""
        if self.weights() == WeightsLimit() or not program.constants:
            return None
        slots, size = constant_slots(program, items)
        return slots if size > SMALL_BYTES else None

    def engine(self, resource: str) -> Engine:
        if self.runs_on_host(resource) and not self._flag("unconfined"):
            template, self._template = self._template, None
            engine: Engine = ConfinedEngine(self, resource, self._options, template)
        else:
            engine = self.sequential(resource)
        if self._options.get("role", "") == "sequential":
            engine.workers = self._workers()
            engine.spare = self._flag("spare", self.default_spare)
        return engine

    def sequential(self, resource: str) -> SequentialEngine:
        """Start the engine that runs kernels itself, in this process."""
        self.drop_template()
        workers, role = self._workers(), self._options.get("role", "")
        shares = {"worker": 0.5 / max(workers, 1), "sequential": 0.5 if workers else 1.0}
        warm = self._warm.pop(resource) if resource in self._warm else None
        pool_bytes, weights = self._size("pool_bytes"), self.weights()
        if self._lost_bytes and not pool_bytes:
            pool_bytes, weights = self._lost_bytes, weights.beside(self._lost_bytes)
        return SequentialEngine(
            warm or self.device(resource),
            pool_bytes,
            self._arena,
            self._flag("exact_stages"),
            shares.get(role, 1.0),
            weights,
            HURRIED_BYTES if self._lost_bytes else 0,
        )

    def runs_on_host(self, resource: str) -> bool:
        """Tell whether kernels run on the host's processors there; see `host_runtime`."""
        return False

    def host_runtime(self) -> HostRuntime | None:
        """Give what confined processes of such a device need, where there are such devices."""
        return None

    def pool_bytes(self) -> int:
        """Size of the pool as it was set; 0 leaves it to the device."""
        return self._size("pool_bytes")

    def processes(self) -> int:
        """How many functions have a confined process at a time, where kernels run on the host."""
        text = self._options.get("processes", str(DEFAULT_PROCESSES))
        if not (text.isdecimal() and 1 <= int(text) <= MAX_PROCESSES):
            where = f"{self.name}.processes"
            raise InvalidInput(where, f"'{text}'", f"write 1 to {MAX_PROCESSES}")
        return int(text)

    def weights(self) -> WeightsLimit:
        """How much device memory constants may take; nothing, unless a backend says otherwise."""
        return WeightsLimit()

    def compiler(self) -> Compiler | None:
        """Give the compiler of sources that works without a device, if there is one."""
        return None

    @abc.abstractmethod
    def device(self, resource: str) -> Device:
        """Make the device of a resource, not open yet; nothing heavy is loaded."""

    def _size(self, name: str, default: str = "0") -> int:
        text = self._options.get(name, default).strip().lower().removesuffix("b").removesuffix("i")
        unit = text[-1:] if text[-1:] in ("k", "m", "g", "t") else ""
        try:
            return int(float(text.removesuffix(unit)) * _UNITS[unit])
        except (ValueError, OverflowError):
            where = f"{self.name}.{name}"
            raise InvalidInput(where, f"'{text}' is no size", "write 512M or 2G") from None

    def _workers(self) -> int:
        text = self._options.get("workers", str(self.default_workers))
        if not (text.isdecimal() and int(text) <= MAX_WORKERS):
            raise InvalidInput(f"{self.name}.workers", f"'{text}'", f"write 0 to {MAX_WORKERS}")
        return int(text)

    def _flag(self, name: str, default: bool = False) -> bool:
        text = self._options.get(name, str(default)).lower()
        if text not in ("true", "false", "1", "0", "yes", "no"):
            raise InvalidInput(f"{self.name}.{name}", f"'{text}' is neither true nor false")
        return text in ("true", "1", "yes")
