"""What one HTTP/2 connection may cost: its windows, its streams, and frames that carry nothing.

A client can keep a server busy with frames that cost it almost nothing: PING and SETTINGS, which
are answered, PRIORITY, empty DATA, WINDOW_UPDATE, and streams that it opens and resets at once
(CVE-2023-44487) or makes the server reset (CVE-2025-8671). Each such frame takes from a
`FrameBudget`, which is refilled with time. Requests and sent data refill it too, since they come
with such frames. A client that exhausts it has its connection closed with ENHANCE_YOUR_CALM.

DATA takes from the budget if it is small or **late**: for a stream that is closed, which no window
limits, since h2 discards it and lets the client send more. When the node ends a stream whose body
is incomplete, the client may have sent what the windows allow, so that much is free.
"""

from __future__ import annotations

STREAMS = 100
"""Requests of a connection at the same time."""
STREAM_WINDOW_BYTES = 128 * 1024
CONNECTION_WINDOW_BYTES = 256 * 1024
"""How much of request bodies a connection may send before the application reads it."""
FRAME_BYTES = 16 * 1024
"""Largest frame, in both directions: the default of SETTINGS_MAX_FRAME_SIZE."""
HEADERS_LIMIT_BYTES = 32 * 1024
"""Decoded size of the headers of a request; decoding is slower than in HTTP/1.1."""
TABLE_BYTES = 4096
"""Largest table of the header compression, also if the client allows more."""
PAUSE_BYTES = 64 * 1024
"""While more than this waits to be sent, responses wait."""
BUFFER_BYTES = 256 * 1024
"""While more than this waits to be sent, nothing is read. It is larger than `PAUSE_BYTES`, since
reading goes on when responses do."""
LINGER_BYTES = 1024 * 1024
"""How much input of a closing connection is discarded before it is reset."""
SMALL_DATA_BYTES = 256
"""A smaller DATA frame counts as one that carries nothing."""
PADDING_BYTES = 256
"""Longest padding of a DATA frame, with its length. Each padded frame counts as if it had this."""

FRAMES_BURST = 1000
FRAMES_RATE = 200
"""Frames that carry nothing: at once, and for each second."""
REQUEST_FRAMES = 8
SENT_FRAMES = 4
"""Further ones for each request, and for each DATA frame that was sent."""
RESETS_BURST = 200
RESETS_RATE = 50
"""Streams that end before their response is complete since the client resets them or breaks a rule:
at once, for each second."""


class FrameBudget:
    """A number that is refilled with time, up to a limit.

    Args:
        burst: the limit.
        rate: refilled for each second.
        now: the time, in seconds.
    """

    __slots__ = ("_burst", "_left", "_rate", "_since")

    def __init__(self, burst: float, rate: float, now: float) -> None:
        self._burst = burst
        self._rate = rate
        self._left = burst
        self._since = now

    def take(self, now: float, amount: float = 1.0) -> bool:
        """Take an amount; return False if there is not so much."""
        self._left = min(self._burst, self._left + (now - self._since) * self._rate)
        self._since = now
        self._left -= amount
        return self._left >= 0

    def add(self, amount: float) -> None:
        """Refill by an amount."""
        self._left = min(self._burst, self._left + amount)


class FrameScanner:
    """Finds the frames in what a client sends, before they are parsed.

    Attributes:
        too_large: whether the head of a frame announced more than `FRAME_BYTES`. h2 notices that
            only when it has the whole frame, of up to 16 MiB.

    Source: RFC 9113, 4.1 (frame format), 6 (types), 6.1 (padding), 3.4 (preface).
    """

    __slots__ = ("_head", "_skip", "too_large")

    PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    HEAD_BYTES = 9
    _DATA, _SETTINGS = 0, 4
    _PADDED = 8
    _SETTING_BYTES = 6

    def __init__(self) -> None:
        self._head = b""
        self._skip = len(self.PREFACE)
        self.too_large = False

    def cost(self, data: bytes) -> int:
        """Return how many frames begin in the data; large DATA is free, each setting counts."""
        at = 0
        cost = 0
        while at < len(data):
            if self._skip:
                step = min(self._skip, len(data) - at)
                self._skip -= step
                at += step
                continue
            piece = data[at : at + self.HEAD_BYTES - len(self._head)]
            at += len(piece)
            self._head += piece
            if len(self._head) < self.HEAD_BYTES:
                break
            size = int.from_bytes(self._head[:3], "big")
            kind, flags = self._head[3:5]
            self._head, self._skip = b"", size
            self.too_large |= size > FRAME_BYTES
            if kind == self._SETTINGS:
                cost += 1 + size // self._SETTING_BYTES
            elif kind != self._DATA or size < self._data_bytes(flags):
                cost += 1
        return cost

    def _data_bytes(self, flags: int) -> int:
        return SMALL_DATA_BYTES + (PADDING_BYTES if flags & self._PADDED else 0)
