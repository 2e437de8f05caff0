"""Where a voter stores its votes and the commands of the log.

Beside a durable catalogue there is the file ``cluster.log``: records of `replication`, each with
its length and a checksum, appended and flushed. A record that was not written whole, since the node
was killed, is cut off; it was not acknowledged. ``cluster.applied`` has the number of commands that
the catalogue has carried out. A command may be carried out twice after a kill; the last one has no
effect then, since registering is idempotent and what is removed is not there.

A catalogue in memory has no file: the node asks the others after a start.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path

import msgspec

from dandelion.cluster.ballots import (
    NOTHING,
    Command,
    Saved,
    SavedCommand,
    decode_saved,
    encode_ballot,
)
from dandelion.errors import CatalogCorrupt, Conflict

_HEAD = struct.Struct("<II")
_RECORD_LIMIT_BYTES = 64 << 20


class LogFile:
    """The stored part of a replica. One thread at a time.

    Args:
        folder: of the catalogue; None keeps nothing.
        has_records: whether the catalogue has records now.

    Attributes:
        saved: what was stored before.
        applied: how many commands the catalogue has carried out.

    Raises:
        CatalogCorrupt: the file is damaged.
        Conflict: the catalogue has records and was never in a cluster.
    """

    def __init__(self, folder: Path | None, has_records: bool) -> None:
        self.saved: list[Saved] = []
        self.applied = 0
        self._fd = -1
        self._end = 0
        if folder is None:
            return
        path = folder / "cluster.log"
        self._applied_path = folder / "cluster.applied"
        if not path.exists() and has_records:
            raise Conflict(
                "catalogue",
                str(folder),
                "it has records from before it was in a cluster; "
                "start with an empty folder, and register them again",
            )
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._end = self._read(path, path.read_bytes())
            os.ftruncate(fd, self._end)
            _flush_folder(folder)
            if self._applied_path.exists():
                self.applied = int(self._applied_path.read_text() or "0")
        except (ValueError, msgspec.MsgspecError) as error:
            os.close(fd)
            raise CatalogCorrupt(str(path), str(error)) from None
        self._fd = fd

    def _read(self, path: Path, data: bytes) -> int:
        at = 0
        while at + _HEAD.size <= len(data):
            size, checksum = _HEAD.unpack_from(data, at)
            record = data[at + _HEAD.size : at + _HEAD.size + size]
            if not size or size > _RECORD_LIMIT_BYTES or len(record) < size:
                break
            if zlib.crc32(record) != checksum:
                if at + _HEAD.size + size < len(data):
                    raise ValueError(f"the record at byte {at} is damaged")
                break
            self.saved.append(decode_saved(record))
            at += _HEAD.size + size
        return at

    @property
    def is_durable(self) -> bool:
        """Whether anything is stored."""
        return self._fd >= 0

    @property
    def commands(self) -> list[Command]:
        """The stored commands that have an effect, in order."""
        found: dict[str, Command] = {}
        for one in self.saved:
            if isinstance(one, SavedCommand) and one.command.kind != NOTHING:
                found.setdefault(one.command.id, one.command)
        return list(found.values())

    def append(self, records: Iterable[Saved]) -> None:
        """Store records; when it returns, they are on the disk. May block.

        Raises:
            OSError: they are not stored; what was written of them is overwritten by the next ones.
        """
        if self._fd < 0:
            return
        data = b""
        for one in records:
            record = encode_ballot(one)
            data += _HEAD.pack(len(record), zlib.crc32(record)) + record
        written = 0
        while written < len(data):  # a full disk may take a part
            written += os.pwrite(self._fd, data[written:], self._end + written)
        os.fdatasync(self._fd)
        self._end += written

    def carried_out(self, count: int) -> None:
        """So many commands are in the catalogue now."""
        self.applied = count
        if self._fd >= 0:
            new = self._applied_path.with_suffix(".new")
            with new.open("w") as file:
                file.write(str(count))
                file.flush()
                os.fsync(file.fileno())  # or the name may come to the disk before the number
            new.replace(self._applied_path)

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _flush_folder(folder: Path) -> None:
    """Have the names of new files be on the disk."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
