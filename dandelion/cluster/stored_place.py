"""Which commands of a log store the catalogue of this node has: the file ``cluster.place``.

It is written after a command is carried out. So after a kill the last command may be carried out
twice, which has no effect, or the last snapshot taken over twice.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from dandelion.errors import CatalogCorrupt, Conflict


class Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A place in the log of a cluster; the name is empty before the first contact."""

    cluster: str = ""
    place: int = 0


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

    def check(self, cluster: str) -> None:
        """Check that the log is that of which this node has a part.

        Raises:
            Conflict: it is another one.
        """
        if self.now.cluster not in ("", cluster):
            reason = f"the store has the log of cluster {cluster}, this node is of another one"
            raise Conflict("catalogue", str(self._folder), f"{reason}: {self.now.cluster}")

    def move(self, cluster: str, place: int) -> None:
        """Store a new place; when it returns, that is on the disk."""
        self.now = Place(cluster, place)
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
