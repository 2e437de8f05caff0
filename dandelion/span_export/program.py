"""Receives batches, and sends them to the collector one after the other."""

from __future__ import annotations

import itertools
import logging
import os
import resource
import signal
import sys
from multiprocessing.connection import Connection

import msgspec
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace.export import SpanExportResult

from dandelion.confinement import libc
from dandelion.span_export.messages import MESSAGE_LIMIT_BYTES, Batch, ExportResult, Setup
from dandelion.span_export.spans import SpanMaker

REQUEST_SPANS = 512
_MEMORY_BYTES = 1 << 30  # a collector may send a response without end
_LOWEST_PRIORITY = 19
_PR_SET_PDEATHSIG = 1
_REASON_LIMIT = 300

_setup = msgspec.msgpack.Decoder(Setup)
_batch = msgspec.msgpack.Decoder(Batch)


class _LastMessage(logging.Handler):
    """Keeps what OpenTelemetry's exporter logged last: the only place where it gives reasons."""

    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith("opentelemetry"):
            self.text = record.getMessage()


def main() -> int:
    """Serve; the arguments are a descriptor of the connection and the node's process id.

    Returns when the node at the other end closes the connection.
    """
    connection, parent = Connection(int(sys.argv[1])), int(sys.argv[2])
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return 1
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the node decides
    os.nice(_LOWEST_PRIORITY)
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES, _MEMORY_BYTES))
    last_message = _LastMessage()
    logging.getLogger().addHandler(last_message)
    try:
        setup = _setup.decode(connection.recv_bytes(MESSAGE_LIMIT_BYTES))
        exporter = OTLPSpanExporter(setup.url, headers=setup.headers, timeout=setup.export_s)
        maker = SpanMaker(setup.version)
        while True:
            batch = _batch.decode(connection.recv_bytes(MESSAGE_LIMIT_BYTES))
            sent = _export(exporter, maker, batch, last_message)
            del batch
            connection.send_bytes(msgspec.msgpack.encode(sent))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return 0


def _export(
    exporter: OTLPSpanExporter, maker: SpanMaker, batch: Batch, last_message: _LastMessage
) -> ExportResult:
    spans = (span for record in batch.records for span in maker.spans(record, batch.shift_ns))
    count = 0
    while part := list(itertools.islice(spans, REQUEST_SPANS)):
        last_message.text = ""
        try:
            result = exporter.export(part)
        except Exception as error:  # an answer that its HTTP client cannot read
            result, last_message.text = SpanExportResult.FAILURE, f"{type(error).__name__}: {error}"
        if result is SpanExportResult.SUCCESS:
            count += len(part)
        else:
            return ExportResult(
                count, last_message.text[:_REASON_LIMIT] or "the exporter gave no reason"
            )
    return ExportResult(count)
