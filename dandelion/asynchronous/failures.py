"""Errors of asynchronous invocations."""

from __future__ import annotations

from dataclasses import dataclass

from dandelion.errors import Blame, CapacityError, CatalogCorrupt, DandelionError


@dataclass(eq=False)
class NotEnded(DandelionError):
    """The invocation has no result yet."""

    id: str
    state: str
    status = 409
    blame = Blame.CALLER

    def __str__(self) -> str:
        ways = "with ?wait_s=, timeout_s= or --wait"
        return f"invocation {self.id} is {self.state}; ask again, or wait longer {ways}"


@dataclass(eq=False)
class KeyReused(DandelionError):
    """The idempotency key belongs to an invocation of another request."""

    key: str
    id: str
    status = 422
    blame = Blame.CALLER

    def __str__(self) -> str:
        return (
            f"header.idempotency-key: '{self.key}' belongs to invocation {self.id}, whose request "
            "was different; use a new key for each request"
        )


@dataclass(eq=False)
class KeptFull(CapacityError):
    """The inputs and results that a tenant keeps need more bytes than it may keep."""

    owner: str
    needed_bytes: int
    free_bytes: int

    def __str__(self) -> str:
        return (
            f"{self.owner}: {self.needed_bytes} bytes are needed to keep an invocation, "
            f"{self.free_bytes} are free; delete invocations that ended, or wait for the others"
        )


@dataclass(eq=False)
class CopiesFull(CapacityError):
    """Too few voters of the cluster have room for a copy of the invocation.

    The three figures are 0 if they are not known.
    """

    node: str
    needed_bytes: int = 0
    free_bytes: int = 0
    free_number: int = 0

    def __str__(self) -> str:
        figures = ""
        if self.needed_bytes or self.free_bytes or self.free_number:
            figures = (
                f" ({self.needed_bytes} bytes are needed, {max(0, self.free_bytes)} bytes and "
                f"{max(0, self.free_number)} invocations are free)"
            )
        return (
            f"node {self.node} has no room for a copy of this invocation{figures}, so less than "
            "half of the voters would have it; try again when others have ended or are deleted, "
            "or raise cluster_copies_bytes and cluster_copies_number there"
        )


@dataclass(eq=False)
class InterruptedTooOften(DandelionError):
    """The node ended each time it ran this invocation, so it is not run again."""

    attempts: int
    status = 500

    def __str__(self) -> str:
        return (
            f"the node ended abnormally during each of {self.attempts} attempts; the last one ran "
            "alone, so this invocation may be the cause; see the logs of the node"
        )


@dataclass(eq=False)
class KeptCorrupt(CatalogCorrupt):
    """The store of asynchronous invocations is damaged, or from a newer version."""

    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" + (f"; {self.remedy}" if self.remedy else "")
