"""The access log: a line of JSON for each request.

A request costs the loop one tuple in a queue. A thread takes what has come together in `GATHER_S`,
writes the lines in one piece, and sleeps until there is more. The queue is bounded: if the disk or
the reader of standard error is slow, further lines are dropped and counted.

Texts of clients are clipped, and everything but printable ASCII is escaped. So a line is one line
of a file and of a terminal, whatever a client sends. Queries are not logged: they may have secrets.

Every frontend process appends to the same file. A piece is one system call, so lines of different
processes are not mixed.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections import deque
from typing import NamedTuple

from dandelion.errors import InvalidInput

QUEUE_LINES = 16_384
BATCH_LINES = 1024
GATHER_S = 0.1
CLOSE_S = 5.0
PATH_LIMIT = 1024
AGENT_LIMIT = 256
CLIENT_LEFT = 499
"""The status in the log if the client disconnected before its response."""
STANDARD_ERROR = "-"
_TEXTS = 1024
"""So many combinations of request, caller and agent are kept as text."""
_CLIPPED = "..."

log = logging.getLogger("dandelion.frontend")


class RequestRecord(NamedTuple):
    """One request that ended.

    Attributes:
        ended_ns, duration_ns: on `time.monotonic_ns`.
        method, path: of the request, without the query.
        status: of the response.
        received_bytes, sent_bytes: of the bodies.
        tenant, token: of the caller; empty if unknown.
        client: address and port.
        invocation: its id, if there was one.
        traceparent: of its span.
        agent: the header User-Agent.
        grpc_status: the name of the status of a gRPC call.
    """

    ended_ns: int
    duration_ns: int
    method: str
    path: str
    status: int
    received_bytes: int
    sent_bytes: int
    tenant: str
    token: str
    client: tuple[str, int] | None
    invocation: str
    traceparent: str
    agent: bytes
    grpc_status: str = ""


class _Texts(NamedTuple):
    """The parts of lines that many requests have in common, as JSON.

    Attributes:
        request: fields with method and path.
        caller: fields with logger, tenant, token and peer.
        agent: the field with the User-Agent.
    """

    request: str
    caller: str
    agent: str


class AccessLog:
    """Writes lines. `add` is for the loop's thread.

    Args:
        path: of the file, or `STANDARD_ERROR`.

    Attributes:
        dropped: how many lines were lost.

    Raises:
        InvalidInput: the file cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = _opened(path)
        self._queue: deque[RequestRecord] = deque()
        self._refused = 0  # each of the two has one writer
        self._lost = 0
        self._told = 0
        self._woken = False
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._reopens = False
        self._failing = False
        self._torn = False  # the file ends within a line
        self._second = (0, "")
        self._texts: dict[tuple[object, ...], _Texts] = {}
        self._thread: threading.Thread | None = None

    @property
    def dropped(self) -> int:
        """How many lines were lost."""
        return self._refused + self._lost

    def newly_dropped(self) -> int:
        """How many lines were lost since the last call of this."""
        dropped = self.dropped
        new, self._told = dropped - self._told, dropped
        return new

    def add(self, access: RequestRecord) -> None:
        """Have a line written."""
        if len(self._queue) >= QUEUE_LINES:
            self._refused += 1
            return
        self._queue.append(access)
        if not self._woken:
            self._begin()

    def _begin(self) -> None:
        self._woken = True
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="dandelion-access", daemon=True)
            self._thread.start()
        self._wake.set()

    def reopen(self) -> None:
        """Open the file by its name again, since it was renamed; lines from now on go there."""
        self._reopens = True
        self._begin()

    def close(self) -> None:
        """Write what is left, for `CLOSE_S` at most, and close the file. Not on the loop."""
        self._closing.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(CLOSE_S)
            if self._thread.is_alive():
                return  # it waits for the disk, and would write to a closed file
        if self._file > 2:
            os.close(self._file)
            self._file = -1

    # --- in the thread --------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._closing.wait(GATHER_S)
            self._wake.clear()
            self._woken = False  # first: what is added from here on wakes this again
            if self._reopens:
                self._reopen()
            # What comes meanwhile is gathered again: a few lines at a time would cost a change of
            # threads each, and caches that are cold.
            left = len(self._queue)
            while left:
                left -= self._write_some(left)
            if self._closing.is_set() and not self._queue:
                return

    def _reopen(self) -> None:
        self._reopens = False
        try:
            file = _opened(self._path)
        except InvalidInput as error:
            log.error("the access log stays in its old file: %s", error)
            return
        if self._file > 2:
            os.close(self._file)
        self._file = file

    def _write_some(self, limit: int) -> int:
        """Write some lines; return how many were taken from the queue."""
        count = min(limit, BATCH_LINES)
        shift_ns = time.time_ns() - time.monotonic_ns()
        lines = [self._line(self._queue.popleft(), shift_ns) for _ in range(count)]
        left = b"".join([b"\n", *lines] if self._torn else lines)
        try:
            while left:
                size = os.write(self._file, left)
                self._torn = left[size - 1 : size] != b"\n"
                left = left[size:]
        except OSError as error:
            self._lost += min(left.count(b"\n"), count)
            if not self._failing:
                self._failing = True
                log.error("lines of the access log are lost: %s", error)
            return count
        self._failing = False
        return count

    def _line(self, access: RequestRecord, shift_ns: int) -> bytes:
        (ended_ns, duration_ns, method, path, status, received_bytes, sent_bytes, tenant, token,
         client, invocation, traceparent, agent, grpc_status) = access  # fmt: skip
        second, rest = divmod(ended_ns + shift_ns, 1_000_000_000)
        if self._second[0] != second:
            self._second = second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        common = (method, path, tenant, token, client, agent)
        texts = self._texts.get(common) or self._made_texts(access, common)
        # Ids are made by the node, so they are written as they are.
        id_ = f',"invocation":"{invocation}"' if invocation else ""
        trace_id = f',"trace_id":"{traceparent[3:35]}"' if traceparent else ""
        code = _field("grpc_status", grpc_status) if grpc_status else ""
        line = (
            f'{{"time":"{self._second[1]}.{rest // 1_000_000:03d}Z"{texts.request}'
            f',"status":{status},"bytes_in":{received_bytes},"bytes_out":{sent_bytes}'
            f',"duration_s":{duration_ns / 1e9:.6f}{texts.caller}{id_}{trace_id}'
            f"{texts.agent}{code}}}\n"
        )
        return line.encode()

    def _made_texts(self, access: RequestRecord, common: tuple[object, ...]) -> _Texts:
        """Make the parts that later lines may have, too, and keep them for a while."""
        client = access.client
        logger = "dandelion.access" if self._path == STANDARD_ERROR else ""
        peer = f"{client[0]}:{client[1]}" if client else ""
        agent = access.agent.decode("latin-1")
        path = _quoted(_clipped(access.path, PATH_LIMIT))
        made = _Texts(
            f',"method":{_quoted(access.method)},"path":{path}',
            _field("logger", logger)
            + _field("tenant", access.tenant)
            + _field("token", access.token)
            + _field("peer", peer),
            _field("user_agent", _clipped(agent, AGENT_LIMIT)),
        )
        if len(self._texts) >= _TEXTS:
            self._texts.clear()
        self._texts[common] = made
        return made


def _clipped(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[:limit] + _CLIPPED


def _field(name: str, text: str) -> str:
    """Write a field; an empty one is left out."""
    return f',"{name}":{_quoted(text)}' if text else ""


def _quoted(text: str) -> str:
    """Write a text as JSON in printable ASCII."""
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    return json.dumps(text).replace("\x7f", "\\u007f")


def _opened(path: str) -> int:
    if path == STANDARD_ERROR:
        return sys.__stderr__.fileno() if sys.__stderr__ is not None else 2
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o640)
    except (OSError, ValueError) as error:
        hint = "name a file in a folder that the node may write to"
        raise InvalidInput("access_log", f"'{path}' cannot be opened: {error}", hint) from None


def access_log_of(path: str) -> AccessLog | None:
    """Make the access log of a setting; None if there is none.

    Raises:
        InvalidInput: the file cannot be opened.
    """
    return AccessLog(path) if path else None
