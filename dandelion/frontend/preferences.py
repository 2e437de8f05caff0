"""The header ``Prefer``: whether a client wants an asynchronous answer.

Preferences that are not known, and values that are malformed, are ignored, as the RFC demands.

Source: RFC 7240, 2 (syntax), 4.1 (``respond-async``), 4.3 (``wait``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

HEADER_LIMIT = 1024
_WAIT = re.compile(r'"?(\d{1,9})"?')


@dataclass(frozen=True, slots=True)
class Preferences:
    """What a client prefers.

    Attributes:
        respond_async: answer before the work is done.
        wait_s: but only if it takes longer than so many seconds; None if nothing is said.
    """

    respond_async: bool = False
    wait_s: int | None = None

    def applied(self) -> bytes:
        """Give the value of ``Preference-Applied``."""
        wait = "" if self.wait_s is None else f", wait={self.wait_s}"
        return f"respond-async{wait}".encode()


def read_preferences(header: bytes) -> Preferences:
    """Read a header; of a preference that is repeated, the first one counts."""
    found: dict[str, str] = {}
    for part in header[:HEADER_LIMIT].decode("latin-1").split(","):
        name, _, value = part.partition(";")[0].partition("=")
        found.setdefault(name.strip().lower(), value.strip())
    wait = _WAIT.fullmatch(found.get("wait", ""))
    return Preferences("respond-async" in found, int(wait[1]) if wait is not None else None)
