"""Engines, devices, other nodes, and our own bugs."""

from __future__ import annotations

from dataclasses import dataclass

from dandelion.errors.error import DandelionError


@dataclass(eq=False)
class BackendUnavailable(DandelionError):
    """A backend cannot work on this machine: what is missing, and how to get it."""

    backend: str
    missing: str
    remedy: str = ""
    status = 501

    def __str__(self) -> str:
        remedy = f" ({self.remedy})" if self.remedy else ""
        return f"backend '{self.backend}' is not available: {self.missing}{remedy}"


@dataclass(eq=False)
class NoEngine(DandelionError):
    """No running engine can run any of the function's code objects."""

    function: str
    formats: tuple[str, ...]
    available: tuple[str, ...]
    status = 501

    def __str__(self) -> str:
        return (
            f"function '{self.function}' has code for {', '.join(self.formats) or 'nothing'}; "
            f"this node runs {', '.join(self.available) or 'nothing'}; "
            "'dandelion ls backends' shows what other backends need"
        )


@dataclass(eq=False)
class EngineDied(DandelionError):
    """An engine's process ended during a call. It is replaced; pure calls may be run again."""

    engine: str
    message: str
    status = 503

    def __str__(self) -> str:
        return f"engine {self.engine} died: {self.message}"


@dataclass(eq=False)
class SandboxLost(EngineDied):
    """A sandbox was killed from outside, or could not be made. The function cannot cause this.

    A pure call is run again once. If that fails the same way, the platform is still at fault.
    """

    def __str__(self) -> str:
        return f"engine {self.engine} lost a sandbox: {self.message}"


@dataclass(eq=False)
class PackagesLost(SandboxLost):
    """The packages of a function are not in the node's cache any more.

    They are prepared again, and a pure call is run again once.
    """

    def __str__(self) -> str:
        return f"engine {self.engine} lost packages: {self.message}"


@dataclass(eq=False)
class NodeLost(EngineDied):
    """Another node of the cluster is gone, or did not take a call. The function is not the cause.

    A pure call is run again elsewhere.
    """

    def __str__(self) -> str:
        return f"node {self.engine}: {self.message}"


@dataclass(eq=False)
class DeviceFault(DandelionError):
    """A device reported an error that is not known to be caused by a kernel."""

    device: str
    operation: str
    message: str
    status = 503

    def __str__(self) -> str:
        return f"{self.device}: {self.operation} failed: {self.message}"


@dataclass(eq=False)
class InternalError(DandelionError):
    """A bug of this project. `detail` is a traceback for the bug report."""

    message: str
    detail: str = ""

    def __str__(self) -> str:
        return f"internal error (a bug of Dandelion, please report it): {self.message}"
