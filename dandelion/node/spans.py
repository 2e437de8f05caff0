"""Handing the records of invocations to the process that exports spans, see `span_export`.

The loop appends a record to a queue; a thread takes what has come together in `GATHER_S`, encodes
it, sends it and waits for the answer. The queue is bounded in spans: while the collector is slow or
down it fills, and further spans are dropped and counted. Nothing of this is waited for by an
invocation.

The process is started with the first record. If it dies, or does not answer for `ANSWER_S`, its
batch counts as dropped, and it is started again after a pause that doubles each time.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
from collections import deque
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec

import dandelion
from dandelion.errors import BackendUnavailable, InvalidInput
from dandelion.search_path import environment, one_blas_thread
from dandelion.settings import Settings
from dandelion.span_export.messages import (
    MESSAGE_LIMIT_BYTES,
    Batch,
    ExportResult,
    InvocationRecord,
    Setup,
)
from dandelion.trace_context import InvocationSpan
from dandelion.traces import Trace

QUEUE_SPANS = 32_768
"""Spans that wait for their turn; further ones are dropped."""
BATCH_SPANS = 2048
GATHER_S = 0.2
EXPORT_S = 10.0
"""How long the process tries to send one request of `REQUEST_SPANS`, retries included."""
ANSWER_S = 60.0
"""Longer than it takes for a batch, also if its last request fails."""
CLOSE_S = 5.0
"""How long closing waits for the spans that are left."""
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
_QUIET_S = 60.0
_KILL_AGAIN_S = 0.1  # it may just be starting
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+)[ \t]*[:=][ \t]*([\x21-\x7e](?:[ -~]*[!-~])?)?")
_INSTALL = "pip install 'dandelion-engine[otlp]'"

log = logging.getLogger("dandelion.traces")
_sent = msgspec.msgpack.Decoder(ExportResult)


@dataclass(frozen=True, slots=True)
class SpanCounts:
    """What became of spans.

    Attributes:
        exported: the collector took them.
        dropped: for lack of room, or since the collector did not take them.
    """

    exported: int = 0
    dropped: int = 0


class SpanSender:
    """Sends records of invocations to the exporting process.

    Args:
        setup: for the process.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._queue: deque[tuple[int, InvocationSpan, Trace]] = deque()  # first: how many spans
        # Each count has one writer, so that they need no lock.
        self._added = 0
        self._refused = 0
        self._taken = 0
        self._lost = 0
        self._exported = 0
        self._woken = False
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._pause_s = 0.0
        self._failing = False
        self._quiet_until_s = 0.0
        self._thread = threading.Thread(target=self._run, name="dandelion-spans", daemon=True)
        self._begun = False

    def add(self, span: InvocationSpan, trace: Trace) -> None:
        """Have an invocation exported that ended. On the node's loop."""
        size = 1 + len(trace.calls)
        if trace.left_out:
            self._refused += trace.left_out
        if self._added - self._taken + size > QUEUE_SPANS:
            self._refused += size
            return
        self._added += size
        self._queue.append((size, span, trace))
        if not self._woken:
            self._woken = True
            if not self._begun:
                self._begun = True
                self._thread.start()
            self._wake.set()

    def counts(self) -> SpanCounts:
        """Tell what became of spans so far."""
        return SpanCounts(self._exported, self._refused + self._lost)

    def close(self) -> None:
        """Send what is left, for `CLOSE_S` at most, and end the process. May be called twice."""
        self._closing.set()
        self._wake.set()
        if self._begun:
            self._thread.join(CLOSE_S)
            while self._thread.is_alive():
                with self._lock:
                    if self._process is not None:
                        self._process.kill()  # so what the thread waits for ends
                self._thread.join(_KILL_AGAIN_S)
        left = self._added - self._taken
        self._taken += left
        self._lost += left

    # --- in the thread --------------------------------------------------------------------------

    def _run(self) -> None:
        closing = self._closing
        while not closing.is_set():
            self._wake.wait()
            closing.wait(GATHER_S)
            self._wake.clear()
            self._woken = False  # first: what is added from here on wakes this again
            # What comes meanwhile is gathered again, since small batches cost more.
            last = self._added
            while self._queue and (self._taken < last or closing.is_set()):
                if closing.is_set() and self._pause_s:
                    break
                self._send_some()
                closing.wait(self._pause_s)
        self._leave()

    def _send_some(self) -> None:
        records: list[InvocationRecord] = []
        count = 0
        while self._queue and (not records or count + self._queue[0][0] <= BATCH_SPANS):
            size, span, trace = self._queue.popleft()
            records.append(InvocationRecord(span, trace))
            count += size
        try:
            sent = self._exchange(records)
        except (OSError, EOFError, msgspec.MsgspecError) as error:
            self._leave()
            self._pause_s = min(max(_FIRST_PAUSE_S, 2 * self._pause_s), _LONGEST_PAUSE_S)
            sent = ExportResult(
                0, f"the exporting process failed: {str(error) or type(error).__name__}"
            )
        else:
            self._pause_s = 0.0
        self._note(sent.reason)
        exported = min(sent.spans, count)
        self._exported += exported
        self._lost += count - exported
        self._taken += count

    def _exchange(self, records: list[InvocationRecord]) -> ExportResult:
        connection = self._connection or self._start()
        shift_ns = time.time_ns() - time.monotonic_ns()
        connection.send_bytes(msgspec.msgpack.encode(Batch(shift_ns, records)))
        if not connection.poll(ANSWER_S):
            raise TimeoutError(f"it did not answer within {ANSWER_S:g} s")
        return _sent.decode(connection.recv_bytes(MESSAGE_LIMIT_BYTES))

    def _start(self) -> Connection:
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-P", "-m", "dandelion.span_export", str(theirs.fileno())]
            command.append(str(os.getpid()))
            with self._lock:
                self._process = subprocess.Popen(
                    command,
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    env=environment(one_blas_thread()),
                )
        self._connection = connection = Connection(ours.detach())
        connection.send_bytes(msgspec.msgpack.encode(self._setup))
        return connection

    def _note(self, reason: str) -> None:
        """Log why spans are lost, once until they are taken again, and once a minute at most."""
        now_s = time.monotonic()
        if reason and not self._failing and now_s >= self._quiet_until_s:
            self._failing = True
            self._quiet_until_s = now_s + _QUIET_S
            log.warning("spans cannot be sent to %s and are dropped: %s", self._setup.url, reason)
        elif self._failing and not reason:
            self._failing = False
            log.info("spans are sent to %s again", self._setup.url)

    def _leave(self) -> None:
        """Close the connection, and wait until the process has ended."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        process = self._process
        if process is not None:
            process.kill()  # it has answered, or will not
            process.wait()
            with self._lock:
                self._process = None


def span_sender(settings: Settings) -> SpanSender | None:
    """Make the sender that settings ask for; None if spans are not exported.

    Raises:
        InvalidInput: the URL or the file of headers cannot be used.
        BackendUnavailable: OpenTelemetry is not installed.
    """
    if not settings.otlp_endpoint:
        return None
    url = _url(settings.otlp_endpoint)
    headers = read_headers(Path(settings.otlp_headers)) if settings.otlp_headers else {}
    try:
        found = importlib.util.find_spec("opentelemetry.exporter.otlp.proto.http")
    except ModuleNotFoundError:  # of a package above it
        found = None
    if found is None:
        raise BackendUnavailable("otlp", "OpenTelemetry's exporter is not installed", _INSTALL)
    return SpanSender(Setup(url, headers, dandelion.__version__, EXPORT_S))


def _url(text: str) -> str:
    where = "otlp_endpoint"
    try:
        parts = urllib.parse.urlsplit(text)
        _ = parts.port
    except ValueError as error:
        raise InvalidInput(where, f"not a URL: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidInput(where, f"'{text}' is not a URL", "such as http://127.0.0.1:4318")
    if parts.username is not None or parts.password is not None:
        hint = "put an Authorization header into the file that otlp_headers names"
        raise InvalidInput(where, "a URL with a user name or password would be shown in logs", hint)
    if parts.path in ("", "/"):
        parts = parts._replace(path="/v1/traces")
    return parts.geturl()


def read_headers(file: Path) -> dict[str, str]:
    """Read a file of headers: ``NAME: VALUE`` lines; empty lines and comments (#) are skipped.

    Raises:
        InvalidInput: it cannot be read, or a line is malformed; values are not repeated.
    """
    try:
        lines = file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput("otlp_headers", f"'{file}' cannot be read: {error}") from None
    headers = {}
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line.startswith("#"):
            continue
        found = _HEADER.fullmatch(line)
        if found is None:
            where = f"otlp_headers: {file}: line {number}"
            raise InvalidInput(where, "not a header", "write NAME: VALUE")
        headers[found[1].lower()] = found[2] or ""
    return headers
