"""The contract of stores of asynchronous invocations, and the store in memory.

A store has records, and for each the inputs while it is not ended, the result once it succeeded.
`KeptStore.write` carries out steps in order, all or none of them; when it returns they are as
durable as the store is. A step `Put` whose record has ended deletes the inputs. Large data may be
written before its step (`KeptStore.prepare`), so that it does not delay the steps of others.

A durable catalogue brings its store: its module ``dandelion.registry.SCHEME`` has a function
``open_invocations(path) -> KeptStore``. All other catalogues have the store in memory.
"""

from __future__ import annotations

import abc
import enum
import importlib
from collections.abc import Callable, Sequence
from typing import ClassVar, TypeAlias

import msgspec

from dandelion.asynchronous.records import KeptRecord
from dandelion.data import Bytes
from dandelion.errors import Unknown
from dandelion.memory.joining import joined


class Part(enum.Enum):
    """Data of an invocation."""

    INPUTS = "inputs"
    RESULT = "result"


class Put(msgspec.Struct, frozen=True):
    """Add or replace a record, perhaps with data of it.

    Attributes:
        record: as it is from then on.
        part: which data comes with it.
        chunks: the data in pieces; see `stored_sets`.
        is_prepared: it comes from `KeptStore.prepare`, which has changed the chunks.
    """

    record: KeptRecord
    part: Part | None = None
    chunks: Sequence[Bytes] = ()
    is_prepared: bool = False

    @property
    def size_bytes(self) -> int:
        """Size of the data."""
        return sum(map(len, self.chunks))


class Drop(msgspec.Struct, frozen=True):
    """Delete a record and its data; it need not be there."""

    id: str


StoreStep: TypeAlias = Put | Drop


class KeptStore(abc.ABC):
    """A store. Two writes do not come at once; everything else may, from any thread."""

    is_durable: ClassVar[bool]

    @abc.abstractmethod
    def load(self) -> list[KeptRecord]:
        """Read all records, as it is opened.

        Raises:
            KeptCorrupt: a record is damaged.
        """

    @abc.abstractmethod
    def write(self, steps: Sequence[StoreStep]) -> None:
        """Carry out steps in order, all or none.

        Raises:
            DiskFull, CatalogUnavailable, CatalogCorrupt: nothing was changed.
        """

    def prepare(self, step: Put) -> Put:
        """Write large data before its step; raises as `write`.

        Returns:
            The step that is to be written then, or given to `discard`.
        """
        return step

    def discard(self, step: Put) -> None:
        """Forget what `prepare` wrote; its step will not be written."""

    @abc.abstractmethod
    def read(self, id_: str, part: Part) -> Bytes:
        """Read data of an invocation.

        Raises:
            Unknown: it is not there.
            CatalogCorrupt, CatalogUnavailable: it cannot be read.
        """

    def closing(self) -> None:
        """Writes from now on wait only for what is certain to come."""

    @abc.abstractmethod
    def close(self) -> None:
        """Close it; may be called twice."""


class MemoryKeptStore(KeptStore):
    """Keeps everything on the heap, until the process ends."""

    is_durable = False

    def __init__(self) -> None:
        self._records: dict[str, KeptRecord] = {}
        self._data: dict[tuple[str, Part], Bytes] = {}

    def load(self) -> list[KeptRecord]:
        return list(self._records.values())

    def write(self, steps: Sequence[StoreStep]) -> None:
        for step in steps:
            if isinstance(step, Drop):
                self._records.pop(step.id, None)
                for part in Part:
                    self._data.pop((step.id, part), None)
                continue
            record = step.record
            self._records[record.id] = record
            if step.part is not None:
                data = step.chunks[0] if step.is_prepared else joined(step.chunks)
                self._data[record.id, step.part] = data
            if record.state.has_ended:
                self._data.pop((record.id, Part.INPUTS), None)

    def prepare(self, step: Put) -> Put:
        return msgspec.structs.replace(step, chunks=(joined(step.chunks),), is_prepared=True)

    def read(self, id_: str, part: Part) -> Bytes:
        data = self._data.get((id_, part))
        if data is None:
            raise Unknown(f"{part.value} of invocation", id_)
        return data

    def close(self) -> None:
        pass


def open_kept_store(catalog: str) -> KeptStore:
    """Open the store that belongs to a catalogue, which is open already.

    Args:
        catalog: as in `Settings.catalog`.

    Raises:
        KeptCorrupt, CatalogUnavailable, DiskFull: it cannot be opened.
    """
    scheme, _, path = catalog.partition(":")
    if scheme == "memory":
        return MemoryKeptStore()
    module = importlib.import_module(f"dandelion.registry.{scheme}")
    opener: Callable[[str], KeptStore] | None = getattr(module, "open_invocations", None)
    return MemoryKeptStore() if opener is None else opener(path)
