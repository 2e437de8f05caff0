"""A log store in a folder that all nodes have, such as one on NFS.

Objects are files, written under another name, flushed and renamed. The head is the file
``head.NUMBER`` with the highest number. A new one is made with the next number by a link, which
fails if there is such a file: so only one node can replace a head. A lock keeps others from
deleting old heads meanwhile. The node that replaces a head also deletes what killed nodes left.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from dandelion.cluster.log_store import LogStore, Outdated, StoredHead
from dandelion.data import Bytes
from dandelion.errors import CatalogUnavailable, InvalidInput

_HEAD = re.compile(r"head\.([1-9][0-9]{0,17})")
_KEPT_HEADS = 8
_ATTEMPTS = 8
"""So many heads that are listed, but cannot be opened, are read before that is an error."""

LOCK_S = 5.0
"""A node holds the lock for some milliseconds, so after so long it is an error."""
_PAUSE_S = 0.01
"""Between two attempts to take it, or to read a head."""
_ABANDONED_S = 3600.0
"""A file that was not written to for so long is of a node that was killed."""


class FolderStore(LogStore):
    """A log in a folder, which must exist.

    Args:
        path: of the folder.

    Raises:
        InvalidInput: no absolute path is given.
    """

    def __init__(self, path: str) -> None:
        self.name = f"folder:{path}"
        self._folder = Path(path).expanduser()
        self._closed = threading.Event()
        if not self._folder.is_absolute():
            hint = "write folder:/PATH of a folder that all nodes have"
            raise InvalidInput("cluster_store", f"'{path[:200]}' is not an absolute path", hint)

    def head(self) -> StoredHead | None:
        number = 0
        with self._reported():
            for _ in range(_ATTEMPTS):
                number = self._newest()
                if not number:
                    return None
                try:
                    content = (self._folder / f"head.{number}").read_bytes()
                except FileNotFoundError:  # it was replaced since, or the list of files is old
                    self._closed.wait(_PAUSE_S)
                    continue
                return StoredHead(content, str(number))
        reason = f"its file head.{number} is listed, but it cannot be opened"
        raise CatalogUnavailable(self.name, reason, "delete it if it is a link to no file")

    def swap(self, content: bytes, tag: str) -> str:
        with self._reported(), self._locked():
            number = self._newest()
            if number != int(tag or "0"):
                raise Outdated
            new = self._written(content)
            try:
                os.link(new, self._folder / f"head.{number + 1}")
                now_s = new.stat().st_mtime
            except FileExistsError:
                raise Outdated from None
            finally:
                new.unlink()
            self._flush(self._folder)
            self._sweep(number + 1, now_s)
            return str(number + 1)

    def _sweep(self, newest: int, now_s: float) -> None:
        """Delete old heads, and files that a node was writing when it was killed.

        What cannot be deleted is left: the head has been replaced already.

        Args:
            newest: number of the head.
            now_s: time of the folder's file system, whose clock may differ from the node's.
        """
        for old in self._heads():
            if old <= newest - _KEPT_HEADS:
                with contextlib.suppress(OSError):
                    (self._folder / f"head.{old}").unlink()
        for new in self._folder.glob("new.*"):
            with contextlib.suppress(OSError):
                if new.stat().st_mtime < now_s - _ABANDONED_S:
                    new.unlink()

    def put(self, name: str, data: Bytes) -> None:
        path = self._folder / name
        with self._reported():
            if not path.parent.exists():
                path.parent.mkdir(exist_ok=True)
                self._flush(self._folder)
            self._written(data).replace(path)
            self._flush(path.parent)

    def get(self, name: str) -> Bytes | None:
        with self._reported():
            try:
                return (self._folder / name).read_bytes()
            except FileNotFoundError:
                self._check()
                return None

    def has(self, name: str) -> bool:
        with self._reported():
            found = (self._folder / name).exists()
            if not found:
                self._check()
            return found

    def delete(self, name: str) -> None:
        with self._reported():
            (self._folder / name).unlink(missing_ok=True)

    def close(self) -> None:
        self._closed.set()

    def _check(self) -> None:
        """Tell a folder that is not mounted from a file that is not there."""
        self._folder.stat()

    def _heads(self) -> list[int]:
        found = [_HEAD.fullmatch(name) for name in os.listdir(self._folder)]
        return [int(match[1]) for match in found if match is not None]

    def _newest(self) -> int:
        return max(self._heads(), default=0)

    def _written(self, data: Bytes) -> Path:
        new = self._folder / f"new.{secrets.token_hex(8)}"
        try:
            with new.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            new.unlink(missing_ok=True)
            raise
        return new

    @staticmethod
    def _flush(folder: Path) -> None:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        fd = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._lock(fd)
            yield
        finally:
            os.close(fd)

    def _lock(self, fd: int) -> None:
        end_s = time.monotonic() + LOCK_S
        while True:
            with contextlib.suppress(BlockingIOError):
                return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if time.monotonic() > end_s:
                reason = f"another process has held its lock for {LOCK_S:g} s"
                hint = "find it with 'lslocks' on the machines of the nodes, and end it if it hangs"
                raise CatalogUnavailable(self.name, reason, hint)
            if self._closed.wait(_PAUSE_S):
                raise CatalogUnavailable(self.name, "this node is stopping", "ask another node")

    @contextlib.contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = error.strerror or type(error).__name__
            file = Path(os.fsdecode(error.filename or self._folder))
            if file.is_relative_to(self._folder) and file != self._folder:
                reason = f"{file.relative_to(self._folder)}: {reason}"
            hint = "check that the folder is there and that the node may write to it"
            raise CatalogUnavailable(self.name, reason, hint) from None
