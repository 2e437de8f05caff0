"""The log of the catalogue as it lies in a log store.

The head has the names of the last commands, from the *base* on, and a snapshot of the catalogue
with all commands before a later place. A node that has the commands before the base at least
carries out those that it lacks; another one takes over the snapshot first.

Commands and parts of snapshots are named by their digests, so they cannot be mixed up, and damage
is noticed. They are deleted when no head names them; a node that still reads the head before finds
that something is missing, and reads the head again.
"""

from __future__ import annotations

import contextlib
import re
import secrets
from typing import Annotated

import msgspec

from dandelion.cluster.ballots import Command
from dandelion.cluster.log_store import LogStore, Outdated
from dandelion.cluster.snapshots import Snapshot, decode_snapshot, parts_of
from dandelion.data import Bytes
from dandelion.errors import CatalogCorrupt, CatalogUnavailable, NodeLost
from dandelion.function import Digest, digest_of

VERSION = 1
_Place = Annotated[int, msgspec.Meta(ge=0)]


class Head(msgspec.Struct, frozen=True, array_like=True):
    """What the log is.

    Attributes:
        version: of this form.
        cluster: a random name, given once.
        base: place of the first of `commands`.
        commands: ids and digests.
        snapshot_place: how many commands are in the snapshot; 0 without one.
        snapshot: digests of its parts.
    """

    version: int
    cluster: str
    base: _Place = 0
    commands: tuple[tuple[str, Digest], ...] = ()
    snapshot_place: _Place = 0
    snapshot: tuple[Digest, ...] = ()

    @property
    def length(self) -> int:
        """Number of all commands."""
        return self.base + len(self.commands)

    def last_of(self, count: int) -> str:
        """Return the digest of the last one of the first `count` commands; empty if not named."""
        if not self.base < count <= self.length:
            return ""
        return self.commands[count - 1 - self.base][1]


class Empty(Exception):
    """There is no head: the log has not begun."""


class Missing(Exception):
    """What a head names is not there: the head was replaced."""


_COMMAND: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
_HEAD: msgspec.msgpack.Decoder[Head] = msgspec.msgpack.Decoder(Head)


def _is_digest(text: str) -> bool:
    return re.fullmatch("[0-9a-f]{64}", text) is not None


class StoredLog:
    """The log in a store. In one thread; see `LogStore` for errors.

    Attributes:
        head: as it was read last, or written.
    """

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self.head: Head | None = None
        self._tag = ""
        self._content = b""

    def read(self) -> Head:
        """Read the head.

        Raises:
            Empty: there is none.
            CatalogCorrupt: it cannot be read, or is of a newer version.
        """
        found = self._store.head()
        if found is None:
            self.head, self._tag = None, ""
            raise Empty
        if self.head is None or found.content != self._content:  # tags recur if it was put back
            self.head, self._content = self._decoded(found.content), found.content
        self._tag = found.tag
        return self.head

    def begin(self) -> Head:
        """Write the first head of a new cluster where there is none; return the head.

        Raises:
            CatalogCorrupt: as `read`, if another node was faster.
            CatalogUnavailable: the store lost the head at once.
        """
        with contextlib.suppress(Outdated):
            self.replace(Head(VERSION, secrets.token_hex(8)))
        try:
            return self.read()
        except Empty:
            reason = "the head that was just written is not there"
            raise CatalogUnavailable(self._store.name, reason, "check the store") from None

    def _decoded(self, content: bytes) -> Head:
        try:
            head = _HEAD.decode(content)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise CatalogCorrupt(self._store.name, f"its head cannot be read: {error}") from None
        if head.version != VERSION:
            reason = f"its log has version {head.version}, and this node reads version {VERSION}"
            raise CatalogCorrupt(self._store.name, reason)
        if not all(map(_is_digest, [*head.snapshot, *(digest for _, digest in head.commands)])):
            raise CatalogCorrupt(self._store.name, "its head names what is no digest")
        return head

    def replace(self, head: Head) -> None:
        """Replace the head that was read last.

        Raises:
            Outdated: there is another one.
        """
        content = msgspec.msgpack.encode(head)
        self._tag = self._store.swap(content, self._tag)
        self.head, self._content = head, content

    def put_command(self, command: Command) -> Digest:
        """Store a command; return its digest."""
        data = msgspec.msgpack.encode(command)
        digest = digest_of(data)
        self._store.put(f"commands/{digest}", data)
        return digest

    def command(self, digest: Digest) -> Command:
        """Read a command.

        Raises:
            Missing: there is none.
            CatalogCorrupt: it is damaged.
        """
        data = self._object("commands", digest)
        try:
            return _COMMAND.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise CatalogCorrupt(f"{self._store.name}/commands/{digest}", str(error)) from None

    def put_snapshot(self, data: bytes) -> tuple[Digest, ...]:
        """Store a snapshot; return the digests of its parts."""
        parts = parts_of(data)
        for digest, part in parts.items():
            if not self._store.has(f"snapshots/{digest}"):
                self._store.put(f"snapshots/{digest}", part)
        return tuple(parts)

    def snapshot(self, parts: tuple[Digest, ...]) -> Snapshot:
        """Read a snapshot; raises as `command`."""
        data = b"".join([bytes(self._object("snapshots", digest)) for digest in parts])
        try:
            return decode_snapshot(data)
        except NodeLost as error:
            raise CatalogCorrupt(self._store.name, str(error)) from None

    def put_blob(self, digest: Digest, data: Bytes) -> None:
        """Store a blob, if it is not there."""
        if not self._store.has(f"blobs/{digest}"):
            self._store.put(f"blobs/{digest}", data)

    def blob(self, digest: Digest) -> Bytes | None:
        """Read a blob, from any thread; None if it is not there or damaged."""
        data = self._store.get(f"blobs/{digest}")
        return data if data is not None and digest_of(data) == digest else None

    def _object(self, folder: str, digest: Digest) -> Bytes:
        data = self._store.get(f"{folder}/{digest}")
        if data is None:
            raise Missing(f"{folder}/{digest}")
        if digest_of(data) != digest:
            raise CatalogCorrupt(f"{self._store.name}/{folder}/{digest}", "it is damaged")
        return data

    def delete_unnamed(self, old: Head, new: Head) -> None:
        """Delete what only the old head names. What cannot be deleted is left."""
        kept = {digest for _, digest in new.commands} | set(new.snapshot)
        names = [f"commands/{d}" for _, d in old.commands if d not in kept]
        names += [f"snapshots/{d}" for d in old.snapshot if d not in kept]
        try:
            for name in names:
                self._store.delete(name)
        except CatalogUnavailable:
            return
