"""Which commands of a log store the catalogue of this node has: the file ``cluster.place``.

It is written after a command is carried out. So after a kill the last command may be carried out
twice, which has no effect, or the last snapshot taken over twice.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from dandelion.cluster.stored_log import Head
from dandelion.errors import CatalogCorrupt, CatalogUnavailable, Conflict

_BEGIN_ANEW = "start this node with an empty catalogue"
_PUT_BACK = (
    "if an older copy of the store was put back, put the newest one back, "
    f"or {_BEGIN_ANEW}: it gets that of the store"
)


class Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A place in the log of a cluster.

    Attributes:
        cluster: its name; empty before a command is carried out.
        place: how many commands are carried out.
        last: digest of the last one of them; empty if an earlier version has written this.
    """

    cluster: str = ""
    place: int = 0
    last: str = ""


class StoredPlace:
    """The place, kept beside a durable catalogue.

    Args:
        folder: of the catalogue; None keeps nothing.
        has_records: whether the catalogue has records now.

    Raises:
        Conflict: the catalogue has records that are not from a log store.
        CatalogCorrupt: the file cannot be read.
    """

    def __init__(self, folder: Path | None, has_records: bool) -> None:
        self._folder = folder
        self.now = Place()
        if folder is None:
            return
        path = folder / "cluster.place"
        if not path.exists():
            if has_records or (folder / "cluster.log").exists():
                reason = "it has records that are not from the log store of this cluster"
                hint = "start with an empty folder, and register them again"
                raise Conflict("catalogue", str(folder), f"{reason}; {hint}")
            return
        try:
            self.now = msgspec.json.decode(path.read_bytes(), type=Place)
        except msgspec.MsgspecError as error:
            raise CatalogCorrupt(str(path), str(error)) from None

    def check(self, store: str, head: Head) -> None:
        """Check that a log is that of which this node has a part.

        Args:
            store: name of its store, for messages.
            head: of the log.

        Raises:
            Conflict: it is another one.
            CatalogCorrupt: it lacks changes that this node has carried out. Those before its base
                are not compared; a node that has only these takes over the snapshot.
        """
        if self.now.cluster not in ("", head.cluster):
            reason = f"it has the log of cluster {head.cluster}, and this node is of another one"
            hint = f"name the store of that one in cluster_store, or {_BEGIN_ANEW}"
            raise Conflict("store", store, f"{reason}: {self.now.cluster}; {hint}")
        if self.now.place > head.length:
            reason = f"it has {head.length} changes, but this node has carried out {self.now.place}"
            raise CatalogCorrupt(store, f"{reason}; {_PUT_BACK}")
        last = head.last_of(self.now.place)
        if self.now.last and last and self.now.last != last:
            reason = f"its change {self.now.place} is not the one that this node has carried out"
            raise CatalogCorrupt(store, f"{reason}; {_PUT_BACK}")

    def check_empty(self, store: str) -> None:
        """Check that this node may begin a log in a store that has none.

        Raises:
            CatalogUnavailable: it has a part of one, which must be elsewhere.
        """
        if self.now.cluster:
            reason = (
                f"it is empty, but this node has carried out {self.now.place} changes "
                f"of cluster {self.now.cluster}"
            )
            hint = f"check that it is mounted, and the setting cluster_store, or {_BEGIN_ANEW}"
            raise CatalogUnavailable(store, reason, hint)

    def move(self, head: Head, place: int) -> None:
        """Store a new place in the log that a head defines; when it returns, it is on the disk."""
        self.now = Place(head.cluster, place, head.last_of(place))
        if self._folder is None:
            return
        new = self._folder / "cluster.place.new"
        with new.open("wb") as file:
            file.write(msgspec.json.encode(self.now))
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._folder / "cluster.place")
        fd = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
