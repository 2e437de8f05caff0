"""An archive on the loopback interface: stores entries and rejection notices in memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from dandelion.compositions.render_logs.loopback import Answer, Request, serve


@dataclass(slots=True)
class Archive:
    """The server's content and behaviour.

    Attributes:
        entries: by picture id.
        rejected: notices by picture id.
        refuses: ids whose entries cannot be stored.
        requests: method and path of each request, in order.
    """

    entries: dict[int, bytes] = field(default_factory=dict)
    rejected: dict[int, bytes] = field(default_factory=dict)
    refuses: frozenset[int] = frozenset()
    requests: list[tuple[str, str]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, request: Request) -> Answer:
        """Answer one request."""
        with self._lock:
            self.requests.append((request.method, request.target))
            _, folder, last = request.target.split("/")
            id_ = int(last)
            if (request.method, folder) == ("POST", "rejected"):
                self.rejected[id_] = request.body
                return Answer(204)
            if folder != "entries":
                return Answer(404, b"no such folder\n")
            if request.method == "PUT":
                return self._put(id_, request.body)
            found = self.entries.get(id_)
            if found is None:
                return Answer(404, b"no such entry\n")
            return Answer(200, found, "application/zlib")

    def _put(self, id_: int, entry: bytes) -> Answer:
        if id_ in self.refuses:
            return Answer(507, b"no room\n")
        is_new = id_ not in self.entries
        self.entries[id_] = entry
        return Answer(201 if is_new else 204)


@contextmanager
def serve_archive(archive: Archive, port: int = 0) -> Iterator[str]:
    """Serve an archive; yields its URL."""
    with serve(archive.answer, port) as url:
        yield url
