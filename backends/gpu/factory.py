"""Starting the engines of GPU backends: everything but the device itself."""

from __future__ import annotations

import abc
import contextlib

from dandelion.confinement.lockdown import landlock_abi
from dandelion.driver import Engine, EngineFactory
from dandelion.errors import DandelionError
from dandelion.memory import ArenaMap

from .confined import ConfinedEngine
from .device import Device
from .host_runtime import HostRuntime
from .host_template import HostTemplate
from .options import GpuOptions
from .sequential import SequentialEngine
from .source import LoadedCode

FAILOVER_POOL_BYTES = 1 << 30
"""Pool of an engine that replaces a lost one, until a call needs more."""


class GpuFactory(EngineFactory):
    """Starts engines of one backend. A subclass says how to probe and make a device."""

    def __init__(self, options: GpuOptions) -> None:
        self._options = options
        self._arena: ArenaMap | None = None
        self._warm: dict[str, Device] = {}
        self._lost_bytes = 0
        self._memory_bytes = 0
        self._template: HostTemplate | None = None

    def attach(self, arena: ArenaMap) -> None:
        """Take the arena; a template of kernel hosts starts meanwhile, where there are any."""
        self._arena = arena
        runtime = self.host_runtime()
        if runtime is not None and landlock_abi() and not self._options.flag("unconfined"):
            with contextlib.suppress(OSError):  # starting the engine tries again, with an error
                options = self._options
                self._template = HostTemplate(options.backend, options.given, runtime)

    def drop_template(self) -> None:
        """End a template that was started and is not needed."""
        template, self._template = self._template, None
        if template is not None:
            template.close()

    def warm(self, resource: str) -> None:
        if self._is_confined(resource):
            return  # its processes are their own
        device = self.device(resource)
        device.open()
        self._warm[resource] = device
        if self._arena is not None:
            device.register(self._arena.address, self._arena.size_bytes)

    def prepare_failover(self, device_bytes: int) -> None:
        self._lost_bytes = device_bytes

    def engine(self, resource: str) -> Engine:
        options = self._options
        runtime = self.host_runtime() if self._is_confined(resource) else None
        if runtime is not None:
            template, self._template = self._template, None
            engine: Engine = ConfinedEngine(options, runtime, resource, template)
        else:
            engine = self.sequential(resource)
        if options.text("role") == "sequential":
            engine.workers = options.workers(self._memory_bytes)
            engine.elastic = options.elastic()
            engine.standby = options.flag("standby")
        return engine

    def sequential(self, resource: str, kept_bytes: int = 0, name: str = "") -> SequentialEngine:
        """Start the engine that runs kernels itself, in this process.

        Args:
            kept_bytes: see `SequentialEngine`.
            name: of the device, for errors; by default the one that it has by its resource.
        """
        self.drop_template()
        options = self._options
        device = self._warm.pop(resource) if resource in self._warm else self.device(resource)
        device.open()
        device.name = name or device.name
        try:
            self._memory_bytes = device.properties().memory_bytes
        except DandelionError:
            device.close()
            raise
        pool_bytes, weights = options.size("pool_bytes"), options.weights()
        shares = options.shares_device(self._memory_bytes) and device.abilities.shared_memory
        if self._lost_bytes and not pool_bytes:
            pool_bytes = self._lost_bytes
            if not shares:
                weights = weights.beside(pool_bytes)
        return SequentialEngine(
            device,
            pool_bytes,
            self._arena,
            options.flag("exact_stages"),
            options.memory_share(self._memory_bytes),
            weights,
            FAILOVER_POOL_BYTES if self._lost_bytes else 0,
            kept_bytes=kept_bytes,
            shares_constants=shares,
        )

    def open_ahead(self, resource: str, code: LoadedCode) -> None:
        """Open a device for `sequential`, in this process or in one that is forked from it.

        Args:
            code: is compiled, which makes what is compiled later faster.

        Raises:
            BackendUnavailable, InvalidFunction: the device cannot be used.
        """
        device = self.device(resource)
        device.open()
        device.unload(device.load(code))
        self._warm[resource] = device

    def runs_on_host(self, resource: str) -> bool:
        """Tell whether kernels run on the host's processors there; see `host_runtime`."""
        return False

    def host_runtime(self) -> HostRuntime | None:
        """Give what confined processes of such a device need, where there are such devices."""
        return None

    @abc.abstractmethod
    def device(self, resource: str) -> Device:
        """Make the device of a resource, not open yet; nothing heavy is loaded."""

    def _is_confined(self, resource: str) -> bool:
        return self.runs_on_host(resource) and not self._options.flag("unconfined")
