"""Blobs of other nodes: fetched when they are needed, checked against their digest, and kept.

A node that gets a call for a function that it does not have receives the digests and sizes of its
blobs from the caller (`announced`). `blob` is called in threads that load functions, and waits for
the node's loop, which asks the nodes that have announced the blob, one after the other.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future, InvalidStateError
from concurrent.futures import TimeoutError as Late
from functools import partial
from typing import Any, Protocol, TypeVar

from dandelion.data import Bytes
from dandelion.errors import CatalogUnavailable, NodeLost, Unknown
from dandelion.function import Digest, digest_of

_T = TypeVar("_T")
KEPT_BYTES = 256 << 20
KNOWN_LIMIT = 100_000
LIMIT_S = 30.0
"""How long one node may take for a blob."""


class BlobPeer(Protocol):
    """A node that may have blobs. On the loop only."""

    def get_blob(self, digest: Digest, done: Callable[[Bytes | None], None]) -> None:
        """Fetch a blob; `done` is called on the loop, with None if the node cannot give it."""


class BlobSource:
    """Blobs that other nodes have. `blob` is for any thread but the loop's, the rest for the loop.

    Args:
        post: has something done on the loop.

    Attributes:
        stored: reads a blob from a log store, if there is one; it is asked first.
    """

    def __init__(self, post: Callable[[Callable[[], None]], None]) -> None:
        self._post = post
        self._sizes: OrderedDict[Digest, int] = OrderedDict()
        self._peers: dict[Digest, list[BlobPeer]] = {}
        self._kept: OrderedDict[Digest, Bytes] = OrderedDict()
        self._kept_bytes = 0
        self._waiting: set[Future[Any]] = set()
        self._closed = False
        self.stored: Callable[[Digest], Bytes | None] | None = None
        self._lock = threading.Lock()

    def close(self) -> None:
        """Give up what is waited for. From any thread."""
        with self._lock:
            self._closed = True
            waiting = list(self._waiting)
        for one in waiting:
            one.cancel()

    def announced(self, blobs: Mapping[Digest, int], peer: BlobPeer) -> None:
        """Another node has blobs of these sizes."""
        for digest, size in blobs.items():
            self._sizes[digest] = size
            self._sizes.move_to_end(digest)
            peers = self._peers.setdefault(digest, [])
            if peer not in peers:
                peers.append(peer)
        while len(self._sizes) > KNOWN_LIMIT:
            digest, _ = self._sizes.popitem(last=False)
            self._peers.pop(digest, None)

    def lost(self, peer: BlobPeer) -> None:
        """A node is gone."""
        for digest in [d for d, peers in self._peers.items() if peer in peers]:
            self._peers[digest].remove(peer)

    def size(self, digest: Digest) -> int:
        """Return the size of a blob as it was announced; 0 if it was not."""
        return self._sizes.get(digest, 0)

    def blob(self, digest: Digest) -> Bytes:
        """Fetch a blob; not on the loop.

        Raises:
            Unknown: no node announced it.
            NodeLost: no node gave it.
        """
        with self._lock:
            kept = self._kept.get(digest)
            if kept is not None:
                self._kept.move_to_end(digest)
                return kept
        stored = self._from_store(digest)
        if stored is not None:
            self._keep(digest, stored)
            return stored
        if digest not in self._sizes:
            raise Unknown("blob", digest)
        peers: Future[list[BlobPeer]] = Future()
        self._post(partial(self._tell_peers, digest, peers))
        requested = self._result(peers)
        for peer in reversed(requested or []):
            found: Future[Bytes | None] = Future()
            self._post(partial(_ask, peer, digest, found))
            data = self._result(found)
            if data is not None and digest_of(data) == digest:
                copy = bytes(data)  # the arena is for data in flight
                self._keep(digest, copy)
                return copy
        raise NodeLost("cluster", f"no node that is up gave the blob {digest[:12]}")

    def _from_store(self, digest: Digest) -> Bytes | None:
        try:
            return None if self.stored is None else self.stored(digest)
        except CatalogUnavailable:
            return None

    def _tell_peers(self, digest: Digest, peers: Future[list[BlobPeer]]) -> None:
        with contextlib.suppress(InvalidStateError):  # it is closed
            peers.set_result(list(self._peers.get(digest, ())))

    def _result(self, waited: Future[_T]) -> _T | None:
        """Wait for an answer of the loop; None if it does not come in time, or this is closed."""
        with self._lock:
            if self._closed:
                return None
            self._waiting.add(waited)
        try:
            return waited.result(LIMIT_S)
        except (Late, CancelledError):
            return None
        finally:
            with self._lock:
                self._waiting.discard(waited)

    def _keep(self, digest: Digest, data: Bytes) -> None:
        size = data.nbytes if isinstance(data, memoryview) else len(data)
        with self._lock:
            if size > KEPT_BYTES or digest in self._kept:
                return
            self._kept[digest] = data
            self._kept_bytes += size
            while self._kept_bytes > KEPT_BYTES:
                _, old = self._kept.popitem(last=False)
                self._kept_bytes -= old.nbytes if isinstance(old, memoryview) else len(old)


def _ask(peer: BlobPeer, digest: Digest, found: Future[Bytes | None]) -> None:
    def done(data: Bytes | None) -> None:
        with contextlib.suppress(InvalidStateError):  # it is too late
            found.set_result(data)

    peer.get_blob(digest, done)
