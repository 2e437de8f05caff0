"""A collector of spans on this machine: decodes what it is sent, and misbehaves on order."""

from __future__ import annotations

import contextlib
import gzip
import http.server
import threading
from collections.abc import Callable, Iterator
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from dandelion.testing import wait_until

EXPORT_LIMIT_S = 80.0
"""How long an export may take. The process that exports has the lowest priority."""


class Collector:
    """Keeps spans, resources and headers of all requests.

    Attributes:
        url: of the collector.
        answer: gives the response of a request; replace it for another one.
    """

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.resources: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.answer: Callable[[http.server.BaseHTTPRequestHandler], None] = accept
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    data = gzip.decompress(data)
                outer.keep(dict(self.headers.items()), self.path, data)
                with contextlib.suppress(OSError):  # the exporter has left
                    outer.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def keep(self, headers: dict[str, str], path: str, data: bytes) -> None:
        assert path == "/v1/traces"
        message = ExportTraceServiceRequest.FromString(data)
        for resource in message.resource_spans:
            self.resources.append(attributes_of(resource.resource))
            for scope in resource.scope_spans:
                self.spans.extend(scope.spans)
        self.headers.append({name.lower(): value for name, value in headers.items()})

    def wait(self, spans: int) -> list[Any]:
        """Wait until so many spans have come."""
        wait_until(lambda: len(self.spans) >= spans, EXPORT_LIMIT_S)
        return self.spans

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def accept(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "0")
    handler.end_headers()


def attributes_of(owner: Any) -> dict[str, Any]:
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in owner.attributes}


@contextlib.contextmanager
def collector() -> Iterator[Collector]:
    made = Collector()
    try:
        yield made
    finally:
        made.close()
