"""Compute function `decode_photo`: a PNG file becomes planes of colours. It runs in a sandbox.

It reads 8-bit RGB without interlacing. Decompression stops at the size in the header.

Source: PNG specification, third edition (W3C, 2025), sections 5 (chunks) and 9 (filtering).
"""

import struct
import zlib
from typing import Any

SIGNATURE = b"\x89PNG\r\n\x1a\n"
SIDE = 32
CHANNELS = 3


def decode_photo(page: Any) -> dict[str, dict[str, bytes]]:
    """Decode the only item of `page`; the image keeps its name.

    Returns:
        set `image`: float32[1, 3, 32, 32], values 0..1.
    """
    file = page.only()
    pixels = decoded(file.bytes())
    planes = (pixels[channel::CHANNELS] for channel in range(CHANNELS))
    values = [value / 255 for plane in planes for value in plane]
    return {"image": {file.name: struct.pack(f"<{len(values)}f", *values)}}


def decoded(png: bytes) -> bytes:
    """Return the pixels of a file, row by row from the top."""
    if png[:8] != SIGNATURE:
        raise ValueError(f"not a PNG file: it starts with {png[:8]!r}")
    size, compressed, at = None, b"", 8
    while at + 12 <= len(png):
        length = int.from_bytes(png[at : at + 4], "big")
        kind, body = png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        if len(png) < at + 12 + length:
            break
        if zlib.crc32(kind + body) != int.from_bytes(
            png[at + 8 + length : at + 12 + length], "big"
        ):
            raise ValueError(f"chunk {kind!r} is damaged")
        at += 12 + length
        if kind == b"IHDR":
            size = struct.unpack(">2I5B", body)
            if size != (SIDE, SIDE, 8, 2, 0, 0, 0):
                raise ValueError(f"the network takes {SIDE} x {SIDE} pixels of 8-bit RGB")
        elif kind == b"IDAT":
            compressed += body
        elif kind == b"IEND" and size:
            return unfiltered(inflated(compressed))
    raise ValueError("the PNG file ends before IEND")


def inflated(data: bytes) -> bytes:
    """Inflate to exactly the size of the image."""
    size = SIDE * (1 + SIDE * CHANNELS)
    inflater = zlib.decompressobj()
    rows = inflater.decompress(data, size + 1)  # one byte more, to detect longer data
    if len(rows) != size or not inflater.eof:
        raise ValueError("the image data does not have the size in the header")
    return rows


def unfiltered(rows: bytes) -> bytes:
    """Undo the row filters; a row is a byte that names the filter and the pixels."""
    width = SIDE * CHANNELS
    result, above = bytearray(), bytes(width)
    for start in range(0, len(rows), width + 1):
        kind, row = rows[start], bytearray(rows[start + 1 : start + 1 + width])
        if kind > 4:
            raise ValueError(f"row filter {kind} does not exist")
        for x in range(width):
            left, corner = (row[x - CHANNELS], above[x - CHANNELS]) if x >= CHANNELS else (0, 0)
            row[x] = row[x] + predicted(kind, left, above[x], corner) & 255
        result += row
        above = bytes(row)
    return bytes(result)


def predicted(kind: int, left: int, up: int, corner: int) -> int:
    """Return the value that filter `kind` predicts for a byte from its neighbours."""
    if kind == 4:
        guess = left + up - corner
        nearest = min((abs(guess - value), order) for order, value in enumerate((left, up, corner)))
        return (left, up, corner)[nearest[1]]
    return (0, left, up, (left + up) // 2)[kind]
