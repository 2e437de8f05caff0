"""Signatures of callbacks: HMAC-SHA256 over time and body.

The header ``Dandelion-Signature`` is ``t=SECONDS,v1=HEX``; what is signed is ``SECONDS.BODY``. A
receiver computes the same and refuses times that are too far from its own, so that a recorded
callback cannot be sent again later. Within the window the ``id`` and ``attempt`` tell repetitions.
"""

from __future__ import annotations

import hashlib
import hmac
import re

HEADER = "Dandelion-Signature"
WINDOW_S = 300.0
_FORM = re.compile(r"t=(\d{1,12}),v1=([0-9a-f]{64})")


def sign(secret: bytes, body: bytes, now_s: float) -> str:
    """Give the value of the header for a body that is sent now."""
    time = str(int(now_s))
    return f"t={time},v1={_digest(secret, time, body)}"


def verify(
    secret: bytes, header: str, body: bytes, now_s: float, window_s: float = WINDOW_S
) -> bool:
    """Tell whether a callback comes from the node and is new.

    Args:
        secret: as the operator gave it to the node.
        header: value of ``Dandelion-Signature``.
        body: of the request, as it was received.
        now_s: the time, in seconds since the epoch.
        window_s: how far apart the clocks may be.
    """
    match = _FORM.fullmatch(header)
    if match is None or abs(now_s - int(match[1])) > window_s:
        return False
    return hmac.compare_digest(_digest(secret, match[1], body), match[2])


def _digest(secret: bytes, time: str, body: bytes) -> str:
    return hmac.new(secret, time.encode() + b"." + body, hashlib.sha256).hexdigest()
