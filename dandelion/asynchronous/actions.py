"""The actions that `life.KeptLives` requests. The node carries the actions out in order."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from dandelion.asynchronous.records import KeptRecord
from dandelion.asynchronous.store import Part
from dandelion.errors import DandelionError


class Save(msgspec.Struct, frozen=True):
    """Store a record, perhaps with data; answered by `stored` or `store_failed`.

    Steps of the store are carried out in the order of their actions.
    """

    record: KeptRecord
    part: Part | None = None


class Erase(msgspec.Struct, frozen=True):
    """Delete from the store; answered by `erased` or `erase_failed`. It is not shown any more."""

    id: str


class Accepted(msgspec.Struct, frozen=True):
    """An invocation is as durable as the store: its caller may know the id."""

    id: str


class Refused(msgspec.Struct, frozen=True):
    """An invocation could not be stored, and does not exist."""

    id: str
    error: DandelionError


class Begin(msgspec.Struct, frozen=True):
    """Run it; answered by `began`, then `finished` or `failed`; or by `postponed`."""

    record: KeptRecord


class Stop(msgspec.Struct, frozen=True):
    """Cancel it; answered by `failed`, or by `finished` if it was faster."""

    id: str


class Changed(msgspec.Struct, frozen=True):
    """Its state as it is shown is another one."""

    id: str


class Call(msgspec.Struct, frozen=True):
    """Send its callback; answered by `called`."""

    record: KeptRecord


Action: TypeAlias = Save | Erase | Accepted | Refused | Begin | Stop | Changed | Call
