"""Names of the catalogue, and the store that keeps it."""

from __future__ import annotations

from dataclasses import dataclass

from dandelion.errors.error import Blame, DandelionError
from dandelion.errors.suggestions import suggestion


@dataclass(eq=False)
class CatalogError(DandelionError):
    """A name or a version is missing in the catalogue, or already in use."""

    status = 404
    blame = Blame.CALLER


@dataclass(eq=False)
class Unknown(CatalogError):
    """No record of that name (or version) is registered. `hint` says what to look at."""

    kind: str
    name: str
    version: int | None = None
    nearest: str | None = None
    hint: str = ""

    def __str__(self) -> str:
        version = "" if self.version is None else f" version {self.version}"
        hint = f"; {self.hint}" if self.hint else ""
        return f"no {self.kind} '{self.name}'{version}{suggestion(self.nearest)}{hint}"


@dataclass(eq=False)
class Conflict(CatalogError):
    """The change conflicts with registered records: a name of another kind, a record in use."""

    kind: str
    name: str
    message: str
    status = 409

    def __str__(self) -> str:
        return f"{self.kind} '{self.name}': {self.message}"


@dataclass(eq=False)
class CatalogCorrupt(DandelionError):
    """The durable catalogue cannot be read: a file is damaged or from a newer version."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


@dataclass(eq=False)
class CatalogLost(CatalogCorrupt):
    """The file of records is missing or empty, although there are blobs."""

    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.path}: {self.message}; {self.remedy}"


@dataclass(eq=False)
class CatalogUnavailable(DandelionError):
    """The durable catalogue cannot be used now: locked, read-only, not permitted, a failing disk.

    Its files are not known to be damaged, and no acknowledged registration is lost.
    """

    path: str
    message: str
    remedy: str = ""
    status = 503

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" + (f"; {self.remedy}" if self.remedy else "")
