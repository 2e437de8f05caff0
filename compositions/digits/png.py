"""Write greyscale PNG files, so that the tree need not contain 200 files of held-out digits."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import numpy.typing as npt

SIGNATURE = b"\x89PNG\r\n\x1a\n"


def encode(pixels: npt.NDArray[np.uint8]) -> bytes:
    """Encode an 8-bit greyscale image, each row with filter 0 (none).

    Args:
        pixels: [height, width], 0 is black.
    """
    height, width = pixels.shape
    rows = np.zeros((height, width + 1), np.uint8)  # the first byte of a row names its filter
    rows[:, 1:] = pixels
    header = struct.pack(">2I5B", width, height, 8, 0, 0, 0, 0)
    return (
        SIGNATURE
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows.tobytes(), 9))
        + chunk(b"IEND", b"")
    )


def chunk(kind: bytes, body: bytes) -> bytes:
    """Frame one chunk: length, kind, body, checksum of kind and body."""
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
