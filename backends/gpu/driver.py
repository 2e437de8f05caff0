"""What the drivers of all GPU backends share."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import ClassVar

from dandelion.driver import DeviceSharing, Driver, Hosting

from .checker import GpuChecker
from .factory import GpuFactory
from .options import GpuOptions
from .planner import GpuPlanner


class GpuDriver(Driver):
    """A backend of GPU functions.

    Attributes:
        settings: all settings with their defaults; see `GpuOptions`.
        options: the settings in use.
        workspace_bytes: most that an operation of the devices' library needs; 0 without library.
    """

    formats: ClassVar[frozenset[str]] = frozenset({"blueprint"})
    hosting: ClassVar[Hosting] = Hosting.PROCESS
    uses_blas: ClassVar[bool] = False
    settings: ClassVar[Mapping[str, str]] = GpuOptions.SHARED
    workspace_bytes: ClassVar[int] = 0

    def __init__(self) -> None:
        self.options = GpuOptions(self.name, self.settings)
        self._checker = GpuChecker()
        self._planner = GpuPlanner(self.options, self.workspace_bytes)
        self._sharing = DeviceSharing()

    def configure(self, options: Mapping[str, str]) -> None:
        self.options.update(options)

    def checker(self) -> GpuChecker:
        return self._checker

    def planner(self) -> GpuPlanner:
        return self._planner

    @abc.abstractmethod
    def factory(self) -> GpuFactory: ...

    def sharing(self) -> DeviceSharing:
        return self._sharing
