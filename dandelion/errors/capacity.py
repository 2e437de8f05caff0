"""A limited resource is full. Nothing was lost."""

from __future__ import annotations

from dataclasses import dataclass

from dandelion.errors.error import Blame, DandelionError


@dataclass(eq=False)
class CapacityError(DandelionError):
    """A limited resource is full. Nothing was lost; the same request may succeed later."""

    status = 507
    blame = Blame.CAPACITY


@dataclass(eq=False)
class ContextFull(CapacityError):
    """A memory domain or a context has too little free memory.

    `needed_bytes` is 0 if unknown. `remedy` names what gives it more memory.
    """

    domain: str
    needed_bytes: int
    free_bytes: int
    remedy: str = ""

    def __str__(self) -> str:
        what = "too little memory is free"
        if self.needed_bytes:
            what = f"{self.needed_bytes} bytes needed, {self.free_bytes} free"
        remedy = self.remedy or "use smaller inputs, or try again when other calls have ended"
        return f"{self.domain}: {what}; {remedy}"


@dataclass(eq=False)
class DiskFull(CapacityError):
    """The disk of the durable catalogue is full. `reason` is the system's: space, a quota.

    `needed_bytes` is 0 if unknown.
    """

    path: str
    reason: str
    needed_bytes: int
    free_bytes: int

    def __str__(self) -> str:
        needed = f"{self.needed_bytes} bytes needed, " if self.needed_bytes else ""
        return (
            f"{self.path}: {self.reason}; {needed}{self.free_bytes} bytes free; "
            "free some space and try again"
        )


@dataclass(eq=False)
class EnvironmentsFull(CapacityError):
    """The environments of registered functions leave no room for another one."""

    needed_bytes: int
    used_bytes: int
    limit_bytes: int

    def __str__(self) -> str:
        return (
            f"packages: {self.needed_bytes} bytes needed, {self.used_bytes} of {self.limit_bytes} "
            "are used by registered functions; remove functions, or raise packages_bytes"
        )


@dataclass(eq=False)
class DeviceFull(CapacityError):
    """A GPU function needs more device memory than the engine's buffer pool has.

    `needed_bytes` is 0 if unknown.
    """

    device: str
    needed_bytes: int
    pool_bytes: int

    def __str__(self) -> str:
        needed = f"{self.needed_bytes} bytes" if self.needed_bytes > 0 else "more memory"
        return (
            f"{self.device}: the call needs {needed}, its engine has {self.pool_bytes} bytes for "
            "buffers; use smaller inputs, or lower the backend's options 'workers' or 'weights'"
        )


@dataclass(eq=False)
class Overloaded(CapacityError):
    """A limit of invocations or waiting calls is reached.

    `what` is counted, and `owner` has the limit: the node, a tenant or a function.
    """

    waiting: int
    limit: int
    what: str = "invocations"
    owner: str = "this node"
    status = 429

    def __str__(self) -> str:
        count = f"{self.owner} has {self.waiting} {self.what}"
        return f"{count}, the limit is {self.limit}; try again later"


@dataclass(eq=False)
class QuotaExceeded(DandelionError):
    """A call needs more of a resource than its tenant or the node may use for it at all.

    The same call will fail again. `what` is the resource, `owner` has the limit, and `remedy` says
    what to change.
    """

    owner: str
    what: str
    needed_bytes: int
    quota_bytes: int
    remedy: str = "use smaller inputs, or ask the operator for a larger quota"
    status = 413
    blame = Blame.CALLER

    def __str__(self) -> str:
        return (
            f"{self.owner}: {self.needed_bytes} bytes of {self.what} are needed, the limit is "
            f"{self.quota_bytes}; {self.remedy}"
        )
