"""An HTTP server on the loopback interface that calls a function, for demos and tests."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True, slots=True)
class Request:
    """A client's request.

    Attributes:
        method: such as ``GET``.
        target: path and query, as received.
        headers: by name in lower case; of repeated ones the last.
        body: the complete body.
    """

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """The server's response."""

    status: int = 200
    body: bytes = b""
    content_type: str = "text/plain; charset=utf-8"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256  # all clients may connect at once

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore closed connections, which occur when the deadline of a call passes."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def serve(answer: Callable[[Request], Answer | None], port: int = 0) -> Iterator[str]:
    """Serve over HTTP; each connection has a thread that calls `answer`.

    Args:
        answer: returns the answer, or None to close the connection without one.
        port: 0 chooses a free one.

    Yields:
        ``http://127.0.0.1:PORT``
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # connections stay open between requests
        timeout = 30
        wbufsize = -1  # sends head and body together

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            given = answer(Request(self.command, self.path, headers, body))
            if given is None:
                self.close_connection = True
                return
            self.send_response(given.status)
            self.send_header("Content-Type", given.content_type)
            self.send_header("Content-Length", str(len(given.body)))
            self.end_headers()
            self.wfile.write(given.body)

        do_GET = do_POST = do_PUT = _answer  # noqa: N815  # names required by http.server

        def log_message(self, *_: object) -> None:
            """Keep the terminal for the demonstration."""

    with _Server(("127.0.0.1", port), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), name="loopback")
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
