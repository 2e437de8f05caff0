"""A file server on the loopback interface for the length of a demonstration or test."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256  # all files may be requested at once


@contextmanager
def serve_files(files: Mapping[str, bytes]) -> Iterator[str]:
    """Serve `files`, by name, over HTTP from memory.

    Yields:
        The URL of the folder, ``http://127.0.0.1:PORT``; a file has the URL ``URL/NAME``.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # connections stay open between files
        timeout = 30
        # Send head and body together; separately, the body waits for a delayed acknowledgement.
        wbufsize = -1

        def do_GET(self) -> None:
            body = files.get(self.path.removeprefix("/"))
            self.send_response(404 if body is None else 200)
            self.send_header("Content-Type", "image/png" if body else "text/plain")
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *_: object) -> None:
            """Keep the terminal for the demonstration."""

    with _Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), name="file server")
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
