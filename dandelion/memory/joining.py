"""Joins pieces of data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dandelion.data import Bytes

_UNLOCKED_BYTES = 256 * 1024  # copying it takes longer than reacquiring the interpreter's lock


def joined(pieces: Sequence[Bytes]) -> Bytes:
    """Join bytes in new memory; large pieces are copied without the interpreter's lock."""
    size = sum(map(len, pieces))
    if size < _UNLOCKED_BYTES:
        return b"".join(pieces)
    whole = np.empty(size, np.uint8)
    end = 0
    for piece in pieces:
        start, end = end, end + len(piece)
        np.copyto(whole[start:end], np.frombuffer(piece, np.uint8))
    return whole.data.toreadonly()
