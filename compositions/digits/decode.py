"""Compute function `decode`: a PNG file becomes an 8 x 8 image. It runs in a sandbox.

A strict decoder for the network's input: 8-bit greyscale, not interlaced, any of the five row
filters. Checksums are verified, and decompression stops at the size in the header, so a small
hostile file cannot grow.

Source: PNG specification, third edition (W3C, 2025), sections 5 (chunks) and 9 (filtering).
"""

import struct
import zlib
from collections.abc import Iterator
from typing import Any

SIGNATURE = b"\x89PNG\r\n\x1a\n"
SIDE = 8
SIDE_LIMIT = 256


def decode(page: Any) -> dict[str, dict[str, bytes]]:
    """Decode the only item of `page`; the image keeps its name.

    Returns:
        set `image`: float32[8, 8], row-major, grey values 0..1.
    """
    file = page.only()
    width, height, grey = grey_pixels(file.bytes())
    if (width, height) != (SIDE, SIDE):
        raise ValueError(f"{file.name}: {width} x {height} pixels, the network takes 8 x 8")
    values = struct.pack(f"<{len(grey)}f", *(value / 255 for value in grey))
    return {"image": {file.name: values}}


def grey_pixels(png: bytes) -> tuple[int, int, bytes]:
    """Decode a greyscale PNG file: (width, height, bytes of all rows from the top)."""
    size, compressed = (0, 0), []
    for kind, body in chunks(png):
        if size == (0, 0) and kind != b"IHDR":
            raise ValueError("a PNG file starts with IHDR")
        if kind == b"IHDR":
            size = read_header(body)
        elif kind == b"IDAT":
            compressed.append(body)
        elif kind == b"IEND":
            break
        elif not kind[0] & 32:  # a capital first letter: a decoder must know the chunk
            raise ValueError(f"chunk {kind!r} is not allowed in a greyscale image")
    else:
        raise ValueError("the PNG file ends before IEND")
    width, height = size
    rows = decompress(b"".join(compressed), height * (1 + width))
    return width, height, unfilter(rows, width)


def chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield (kind, body) of each chunk; refuse damaged and truncated ones."""
    if png[:8] != SIGNATURE:
        raise ValueError(f"not a PNG file: it starts with {png[:8]!r}")
    at = 8
    while at < len(png):
        length = int.from_bytes(png[at : at + 4], "big")
        body, end = png[at + 8 : at + 8 + length], at + 12 + length
        if end > len(png):
            raise ValueError("the PNG file ends within a chunk")
        checksum = int.from_bytes(png[end - 4 : end], "big")
        if zlib.crc32(png[at + 4 : end - 4]) != checksum:
            raise ValueError(f"chunk {png[at + 4 : at + 8]!r} is damaged")
        yield png[at + 4 : at + 8], body
        at = end


def read_header(body: bytes) -> tuple[int, int]:
    """Read width and height; refuse every other kind of image."""
    if len(body) != 13:
        raise ValueError(f"IHDR has {len(body)} bytes, not 13")
    width, height, depth, colour, compression, filtering, interlace = struct.unpack(">2I5B", body)
    if (depth, colour, compression, filtering, interlace) != (8, 0, 0, 0, 0):
        raise ValueError("only 8-bit greyscale images without interlacing can be read")
    if not (0 < width <= SIDE_LIMIT and 0 < height <= SIDE_LIMIT):
        raise ValueError(f"{width} x {height} pixels are outside 1..{SIDE_LIMIT}")
    return width, height


def decompress(data: bytes, size: int) -> bytes:
    """Inflate to exactly `size` bytes."""
    inflater = zlib.decompressobj()
    rows = inflater.decompress(data, size + 1)  # one byte more, to detect longer data
    if len(rows) != size or not inflater.eof:
        raise ValueError("the image data does not have the size in the header")
    return rows


def unfilter(rows: bytes, width: int) -> bytes:
    """Undo the row filters; a row is a byte that names the filter and `width` bytes."""
    result = bytearray()
    above = bytes(width)
    for start in range(0, len(rows), width + 1):
        kind, row = rows[start], bytearray(rows[start + 1 : start + 1 + width])
        if kind > 4:
            raise ValueError(f"row filter {kind} does not exist")
        for x in range(width):
            left, corner = (row[x - 1], above[x - 1]) if x else (0, 0)
            row[x] = row[x] + predict(kind, left, above[x], corner) & 255
        result += row
        above = bytes(row)
    return bytes(result)


def predict(kind: int, left: int, up: int, corner: int) -> int:
    """Return the value that filter `kind` predicts for a pixel from its three neighbours."""
    if kind == 4:
        guess = left + up - corner
        nearest = min((abs(guess - value), order) for order, value in enumerate((left, up, corner)))
        return (left, up, corner)[nearest[1]]
    return (0, left, up, (left + up) // 2)[kind]
