"""What was measured on devices of a kind, kept beside compiled code."""

from __future__ import annotations

import hashlib

from .compiling import CodeCache


class Measurements:
    """Keeps answers, so that no later engine measures them again, in other processes neither.

    Args:
        kind: what identifies the devices for which they hold.
        cache: where they are kept; None to keep nothing.
    """

    def __init__(self, kind: str = "", cache: CodeCache | None = None) -> None:
        self._kind = kind
        self._cache = cache

    def get(self, key: str) -> bytes | None:
        """Give an answer; None if there is none.

        Args:
            key: text of all that it depends on, beside the device.
        """
        return None if self._cache is None else self._cache.get(self._name(key))

    def put(self, key: str, data: bytes) -> None:
        """Keep an answer, if that is possible."""
        if self._cache is not None:
            self._cache.put(self._name(key), data)

    def _name(self, key: str) -> str:
        return hashlib.sha256(f"{self._kind}\0{key}".encode()).hexdigest() + ".measured"
