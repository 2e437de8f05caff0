"""Blobs of commands that are not carried out yet.

A voter has the blobs of a command before it votes for it, and a command that was chosen must find
them here after a start, also if all other nodes were started again, too. So beside a durable
catalogue they are files in ``cluster.blobs``, flushed before the vote. They are dropped when the
catalogue has carried out the command, or another one at its place.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from dandelion.data import Bytes
from dandelion.errors import Unknown
from dandelion.function import Digest, digest_of

LIMIT_BYTES = 1 << 30
"""Of blobs of commands at the same place, of which one at most is chosen; those of the oldest are
dropped beyond that, and fetched again if they are needed."""


class StagedBlobs(Mapping[Digest, Bytes]):
    """Blobs by digest. Safe from any thread.

    Args:
        folder: of the catalogue; without one, they are in memory.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = None if folder is None else folder / "cluster.blobs"
        self._memory: dict[Digest, bytes] = {}
        self._sizes: dict[Digest, int] = {}
        self._users: dict[tuple[int, str], set[Digest]] = {}  # by place and id of a command
        self._lock = threading.Lock()
        if self._folder is not None:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            for path in self._folder.iterdir():
                if path.suffix:  # it was not written whole
                    path.unlink()
                else:
                    self._sizes[Digest(path.name)] = path.stat().st_size

    def use(self, place: int, id_: str, digests: Iterable[Digest]) -> None:
        """Keep blobs for a command at a place."""
        with self._lock:
            self._users.setdefault((place, id_), set()).update(digests)

    def add(self, digest: Digest, data: Bytes) -> None:
        """Store a blob; when it returns, it is on the disk. `use` it before.

        Raises:
            OSError: it cannot be stored.
        """
        if digest in self._sizes:
            return
        if self._folder is None:
            self._memory[digest] = bytes(data)
        else:
            new = self._folder / f"{digest}.{threading.get_ident()}"
            with new.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            new.replace(self._folder / digest)
            fd = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        with self._lock:
            self._sizes[digest] = memoryview(data).nbytes

    def carried_out(self, place: int) -> None:
        """Commands before a place need their blobs no more."""
        with self._lock:
            for key in [key for key in self._users if key[0] < place]:
                del self._users[key]
        self.sweep()

    def make_room(self, place: int, keep: Iterable[str]) -> None:
        """Drop blobs of commands at a place, the oldest first, while there are too many.

        Args:
            place: of the next command.
            keep: ids of commands that are voted for there.
        """
        kept = set(keep)
        with self._lock:
            others = [key for key in self._users if key[0] == place and key[1] not in kept]
        for key in others:
            if sum(self._sizes.values()) <= LIMIT_BYTES:
                return
            with self._lock:
                self._users.pop(key, None)
            self.sweep()

    def sweep(self) -> None:
        """Delete what no command needs."""
        with self._lock:
            used = set[Digest]().union(*self._users.values())
            for digest in self._sizes.keys() - used:
                del self._sizes[digest]
                self._memory.pop(digest, None)
                if self._folder is not None:
                    with contextlib.suppress(OSError):  # it is deleted after the next start
                        (self._folder / digest).unlink()

    def __getitem__(self, digest: Digest) -> Bytes:
        """Read a blob.

        Raises:
            Unknown: it is not here, or damaged.
        """
        found: Bytes | None = self._memory.get(digest)
        if found is None and self._folder is not None and digest in self._sizes:
            with contextlib.suppress(OSError):
                found = (self._folder / digest).read_bytes()
        if found is None or digest_of(found) != digest:
            self._sizes.pop(digest, None)
            raise Unknown("blob", digest)
        return found

    def __contains__(self, digest: object) -> bool:
        return digest in self._sizes

    def __iter__(self) -> Iterator[Digest]:
        return iter(list(self._sizes))

    def __len__(self) -> int:
        return len(self._sizes)
