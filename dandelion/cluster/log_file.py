"""Where a voter stores its votes and the commands of the log.

Beside a durable catalogue there are these files:

``cluster.log``: records of `replication` in *frames*. A frame is what is stored at once: a head
    with its length and number, and the records, both with checksums. It is flushed before the next
    one is written. So if the last one is not whole, since the node was killed or the power was lost
    meanwhile, nothing follows from it, and it is cut off. Anything else is damage: the node does
    not start, since it could vote against what it has voted.
``cluster.applied``: how many commands of the log the catalogue has carried out, in two slots that
    are written in turn. A command may be carried out twice after a kill; the last one has no effect
    then, since registering is idempotent and what is removed is not there.
``cluster.snapshot``: a state of the catalogue of another node, while it replaces that of this one.

When the log has become long it is replaced by what is still needed of it (`rewrite`): a new file is
written, flushed, and renamed.

A catalogue in memory has no files: the node asks the others after a start.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path

import msgspec

from dandelion.cluster.ballots import (
    NO_BALLOT,
    Command,
    Saved,
    SavedBase,
    SavedCommand,
    SavedVote,
    decode_saved,
    encode_saved,
)
from dandelion.errors import CatalogCorrupt, Conflict

MARK = b"DnL2"
_HEAD = struct.Struct("<4sIQII")  # mark, size, number, checksum of the content, of the head
_SLOT = struct.Struct("<QI")
_BLOCK_BYTES = 512
"""What a disk writes at once."""
_ANEW = "restore the folder from a copy, or start with an empty one: the other nodes have the log"
COMPACT_BYTES = 32 << 20
"""A file is not rewritten before it has this size."""


class LogFile:
    """The stored part of a replica.

    `append` and `rewrite` are called by one thread at a time, and so are `carried_out`,
    `keep_snapshot` and `drop_snapshot`.

    Args:
        folder: of the catalogue; None keeps nothing.
        has_records: whether the catalogue has records now.

    Attributes:
        saved: what was stored before.
        applied: how many commands of the log the catalogue has carried out.
        snapshot: a state that the catalogue has to take over, and its place in the log.

    Raises:
        CatalogCorrupt: a file is damaged, or they do not fit together.
        Conflict: the catalogue has records and was never in a cluster.
    """

    def __init__(self, folder: Path | None, has_records: bool) -> None:
        self.saved: list[Saved] = []
        self.applied = 0
        self.snapshot: tuple[int, bytes] | None = None
        self._fd = self._applied_fd = -1
        self._end = self._least = self._number = 0
        if folder is None:
            return
        self._folder = folder
        self._path = path = folder / "cluster.log"
        if not path.exists() and has_records:
            raise Conflict(
                "catalogue",
                str(folder),
                "it has records from before it was in a cluster; "
                "start with an empty folder, and register them again",
            )
        try:
            self._open(path, has_records)
        except (ValueError, msgspec.MsgspecError) as error:
            self.close()
            raise CatalogCorrupt(str(path), str(error)) from None
        except BaseException:
            self.close()
            raise

    def _open(self, path: Path, has_records: bool) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        for left in ("cluster.log.new", "cluster.snapshot.new"):
            (self._folder / left).unlink(missing_ok=True)
        self._fd = os.open(path, flags, 0o600)
        self._end = self._least = self._read(path.read_bytes())
        os.ftruncate(self._fd, self._end)
        self._applied_fd = os.open(self._folder / "cluster.applied", flags, 0o600)
        self.applied = self._read_applied(os.pread(self._applied_fd, 4096, 0))
        self.snapshot = self._read_snapshot()
        _flush_folder(self._folder)
        self._check(has_records)

    def _read(self, data: bytes) -> int:
        """Read the frames; return where the last whole one ends."""
        at = 0
        while (record := _frame_at(data, at)) is not None:
            number, content = record
            if self._number and number != self._number + 1:
                raise ValueError(f"a part is missing before byte {at}; {_ANEW}")
            self._number = number
            self.saved += decode_saved(content)
            at += _HEAD.size + len(content)
        if not _is_torn(data, at):
            raise ValueError(f"it is damaged at byte {at}; {_ANEW}")
        later = data.find(MARK, at + 1)
        while later >= 0:
            record = _frame_at(data, later)
            if record is not None and record[0] > self._number + 1:
                raise ValueError(f"it is damaged at byte {at}, and votes are behind that; {_ANEW}")
            later = data.find(MARK, later + 1)
        return at

    @staticmethod
    def _read_applied(data: bytes) -> int:
        found = []
        for at in range(0, len(data), _SLOT.size):
            slot = data[at : at + _SLOT.size].ljust(_SLOT.size, b"\0")
            place, check = _SLOT.unpack(slot)
            if check == zlib.crc32(slot[:8]) or not any(slot):
                found.append(place)
        if data and not found:
            raise ValueError("cluster.applied is damaged")
        return max(found, default=0)

    def _read_snapshot(self) -> tuple[int, bytes] | None:
        path = self._folder / "cluster.snapshot"
        if not path.exists():
            return None
        found = _frame_at(path.read_bytes(), 0)
        if found is None:
            raise ValueError("cluster.snapshot is damaged")
        if found[0] <= self.applied:
            path.unlink()  # the node was killed when it was done with it
            return None
        return found

    def _check(self, has_records: bool) -> None:
        """Check that the files fit together."""
        base, length = 0, 0
        for one in self.saved:
            if isinstance(one, SavedBase):
                base = length = one.place
            elif isinstance(one, SavedCommand):
                length = one.place + 1
        if self.snapshot is not None:
            if self.snapshot[0] > length:
                place = self.snapshot[0]
                self.saved = [SavedBase(place), SavedVote(place, NO_BALLOT, NO_BALLOT, None)]
                self.rewrite(self.saved)  # before there are votes about that place
        elif has_records and not length:
            raise ValueError(f"it is empty, but the catalogue has records; {_ANEW}")
        elif not base <= self.applied <= length:
            raise ValueError(
                f"cluster.applied says that {self.applied} changes are in the catalogue, "
                f"but the log has those from {base} to {length}"
            )

    @property
    def is_durable(self) -> bool:
        """Whether anything is stored."""
        return self._fd >= 0

    @property
    def is_long(self) -> bool:
        """Whether it should be rewritten."""
        return self._end > max(COMPACT_BYTES, 2 * self._least)

    @property
    def size_bytes(self) -> int:
        """Size of the log."""
        return self._end

    @property
    def pending(self) -> list[tuple[int, Command]]:
        """The stored commands that the catalogue has not carried out, with their places."""
        first = self.applied if self.snapshot is None else self.snapshot[0]
        found = {s.place: s.command for s in self.saved if isinstance(s, SavedCommand)}
        return [(place, command) for place, command in sorted(found.items()) if place >= first]

    def append(self, records: Iterable[Saved]) -> None:
        """Store records; when it returns, they are on the disk. May block.

        Raises:
            OSError: they are not stored; the file is as it was.
        """
        if self._fd < 0:
            return
        data = _frame(self._number + 1, encode_saved(records))
        try:
            _write(self._fd, data, self._end)
            os.fdatasync(self._fd)
        except OSError:
            with contextlib.suppress(OSError):  # else the next frame overwrites it
                os.ftruncate(self._fd, self._end)
            raise
        self._end += len(data)
        self._number += 1

    def rewrite(self, records: Iterable[Saved]) -> None:
        """Store records in the place of all that was stored before. May block.

        Raises:
            OSError: they are not stored; the file is as it was.
        """
        if self._fd < 0:
            return
        data = _frame(self._number + 1, encode_saved(records))
        new = self._path.with_suffix(".log.new")
        fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            _write(fd, data, 0)
            os.fsync(fd)
            new.replace(self._path)
        except BaseException:
            os.close(fd)
            raise
        os.close(self._fd)
        self._fd, self._end, self._least = fd, len(data), len(data)
        self._number += 1
        _flush_folder(self._folder)

    def carried_out(self, place: int) -> None:
        """The catalogue has the commands before a place now; when it returns, that is stored."""
        self.applied = place
        if self._applied_fd >= 0:
            number = place.to_bytes(8, "little")
            slot = _SLOT.pack(place, zlib.crc32(number))
            os.pwrite(self._applied_fd, slot, place % 2 * _SLOT.size)
            os.fdatasync(self._applied_fd)

    def keep_snapshot(self, place: int, content: bytes) -> None:
        """Store a state that the catalogue is to take over, before it does. May block.

        Raises:
            OSError: it is not stored.
        """
        if self._fd < 0:
            return
        new = self._folder / "cluster.snapshot.new"
        fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            _write(fd, _frame(place, content), 0)
            os.fsync(fd)
        finally:
            os.close(fd)
        new.replace(self._folder / "cluster.snapshot")
        _flush_folder(self._folder)

    def drop_snapshot(self) -> None:
        """The catalogue has taken over the state, and `carried_out` has said so."""
        if self._fd >= 0:
            (self._folder / "cluster.snapshot").unlink(missing_ok=True)

    def close(self) -> None:
        """Close the files."""
        for fd in (self._fd, self._applied_fd):
            if fd >= 0:
                os.close(fd)
        self._fd = self._applied_fd = -1


def _frame(number: int, content: bytes) -> bytes:
    head = _HEAD.pack(MARK, len(content), number, zlib.crc32(content), 0)[:-4]
    return head + zlib.crc32(head).to_bytes(4, "little") + content


def _head_at(data: bytes, at: int) -> tuple[int, int, int] | None:
    """Read a head: size, number and checksum; None if there is none."""
    if at + _HEAD.size > len(data):
        return None
    mark, size, number, check, own = _HEAD.unpack_from(data, at)
    whole = mark == MARK and own == zlib.crc32(data[at : at + _HEAD.size - 4])
    return (size, number, check) if whole else None


def _frame_at(data: bytes, at: int) -> tuple[int, bytes] | None:
    """Read a frame: its number and its content; None if there is no whole one."""
    head = _head_at(data, at)
    if head is None:
        return None
    size, number, check = head
    content = data[at + _HEAD.size : at + _HEAD.size + size]
    return (number, content) if len(content) == size and zlib.crc32(content) == check else None


def _is_torn(data: bytes, at: int) -> bool:
    """Tell whether what is no frame may be one that was being written.

    Then the end is missing, or blocks of it have no content yet.
    """
    head = _head_at(data, at)
    end = at + _HEAD.size + (0 if head is None else head[0])
    return end > len(data) or _has_empty_block(data, at, end)


def _has_empty_block(data: bytes, start: int, end: int) -> bool:
    while start < end:
        stop = min(end, start - start % _BLOCK_BYTES + _BLOCK_BYTES)
        if data.count(0, start, stop) == stop - start:
            return True
        start = stop
    return False


def _write(fd: int, data: bytes, offset: int) -> None:
    view, written = memoryview(data), 0
    while written < len(data):  # a full disk may take a part
        written += os.pwrite(fd, view[written:], offset + written)


def _flush_folder(folder: Path) -> None:
    """Have the names of new files be on the disk."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
