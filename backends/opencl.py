"""The OpenCL backend: blueprints on any OpenCL device, by default PoCL on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from dandelion.driver import Driver, Resource
from dandelion.errors import (
    BackendUnavailable,
)

from .gpu import pocl
from .gpu.compiling_checker import CompilingChecker
from .gpu.confined import DEFAULT_PROCESSES, ConfinedEngine
from .gpu.device import Device
from .gpu.driver import GpuDriver
from .gpu.factory import GpuFactory
from .gpu.host_runtime import HostRuntime
from .gpu.opencl_device import OpenClDevice
from .gpu.options import GpuOptions
from .gpu.pocl_compiler import PoclCompiler
from .gpu.pocl_runtime import PoclRuntime


def driver() -> Driver:
    """Give this backend's driver."""
    return OpenClDriver()


def enforcement() -> dict[str, str]:
    """Tell what confines kernels that run on the host here; starts one of their processes.

    Returns:
        Words by subject; empty where kernels run on a device of their own.

    Raises:
        BackendUnavailable: they cannot be confined here.
    """
    made = OpenClDriver().factory()
    resource = made.probe()[0].name
    if not made.runs_on_host(resource):
        return {}
    engine = made.engine(resource)
    assert isinstance(engine, ConfinedEngine), "nothing was set"
    try:
        return engine.facts
    finally:
        engine.close()


class OpenClDriver(GpuDriver):
    """OpenCL devices. Further settings: ``threads``, how many threads PoCL uses; ``processes``, how
    many functions have a process at a time where kernels run on the host; ``unconfined``, to run
    them in the engine's process instead, which is for code that one trusts; ``cache``, the folder
    that keeps which sources compile on the host, ``off`` for none, by default a folder of the
    user's cache."""

    name: ClassVar[str] = "opencl"
    settings: ClassVar[Mapping[str, str]] = {
        **GpuDriver.settings,
        "threads": "0",
        "processes": str(DEFAULT_PROCESSES),
        "unconfined": "false",
        "cache": "",
    }

    def __init__(self) -> None:
        super().__init__()
        self._checker = CompilingChecker(self.options, OpenClDevice, PoclCompiler())
        self._factory = OpenClFactory(self.options)

    def factory(self) -> OpenClFactory:
        return self._factory


class OpenClFactory(GpuFactory):
    """Starts engines on OpenCL devices."""

    def __init__(self, options: GpuOptions) -> None:
        super().__init__(options)
        self._on_host: dict[str, bool] = {}

    def probe(self) -> list[Resource]:
        try:
            return self._probe()
        except BackendUnavailable:
            self.drop_template()
            raise

    def _probe(self) -> list[Resource]:
        pocl.prepare_environment(self._options.size("threads"))
        cl = pocl.binding()
        return [
            Resource(
                name,
                f"{device.name.strip()} ({device.platform.name.strip()})",
                0 if device.host_unified_memory else device.global_mem_size,
                {"version": device.version, "driver": device.driver_version},
            )
            for name, device in pocl.opencl_devices(cl).items()
        ]

    def runs_on_host(self, resource: str) -> bool:
        if resource not in self._on_host:
            pocl.prepare_environment(self._options.size("threads"))
            cl = pocl.binding()
            for name, device in pocl.opencl_devices(cl).items():
                self._on_host[name] = bool(device.type & cl.device_type.CPU)
            self._on_host.setdefault("", next(iter(self._on_host.values())))
        return self._on_host.get(resource, True)

    def host_runtime(self) -> HostRuntime:
        return PoclRuntime(self._options.size("threads"))

    def device(self, resource: str) -> Device:
        return OpenClDevice(resource, threads=self._options.size("threads"))
