"""QOI images to PNG images, in Python: the same rules as `compress.c`, so the same bytes."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable

from dandelion.data import Item, ItemSet

WINDOW, MATCH_LEAST, MATCH_MOST = 32768, 3, 258


def compress(qoi: ItemSet) -> dict[str, ItemSet]:
    """Compress every image; names and keys stay."""
    items = tuple(Item(item.name, item.key, to_png(bytes(item.data))) for item in qoi)
    return {"png": ItemSet("png", items)}


def to_png(data: bytes) -> bytes:
    """Turn one QOI image into a PNG image."""
    width, height, channels, pixels = decode(data)
    filtered = filtered_rows(pixels, width * channels, channels)
    kind = 6 if channels == 4 else 2
    body = b"\x78\x01" + deflate(filtered) + struct.pack(">I", zlib.adler32(filtered))
    return b"".join(
        (
            b"\x89PNG\r\n\x1a\n",
            chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)),
            chunk(b"IDAT", body),
            chunk(b"IEND", b""),
        )
    )


def chunk(name: bytes, content: bytes) -> bytes:
    """Frame a chunk of a PNG file."""
    checksum = zlib.crc32(name + content)
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", checksum)


def decode(data: bytes) -> tuple[int, int, int, bytes]:
    """Decode a QOI image to width, height, channels and pixels.

    Raises:
        ValueError: it is not a QOI image, or it is truncated.
    """
    if len(data) < 14 or data[:4] != b"qoif":
        raise ValueError("not a QOI image")
    width, height, channels = struct.unpack_from(">IIB", data, 4)
    if not width or not height or channels not in (3, 4):
        raise ValueError("not a QOI image")
    if max(width, height) > 32768:
        raise ValueError("the image is too large")
    try:
        return width, height, channels, _pixels(data, width * height, channels)
    except IndexError:
        raise ValueError("the image ends too early") from None


def _pixels(data: bytes, count: int, channels: int) -> bytes:
    seen = [(0, 0, 0, 0)] * 64
    r, g, b, a = 0, 0, 0, 255
    at = 14
    out = bytearray()
    while len(out) < count * channels:
        tag = data[at]
        at += 1
        times = 1
        if tag == 0xFE:
            r, g, b = data[at], data[at + 1], data[at + 2]
            at += 3
        elif tag == 0xFF:
            r, g, b, a = data[at], data[at + 1], data[at + 2], data[at + 3]
            at += 4
        elif tag < 0x40:
            r, g, b, a = seen[tag]
        elif tag < 0x80:
            r = r + (tag >> 4 & 3) - 2 & 255
            g = g + (tag >> 2 & 3) - 2 & 255
            b = b + (tag & 3) - 2 & 255
        elif tag < 0xC0:
            green = (tag & 63) - 32
            r = r + green + (data[at] >> 4) - 8 & 255
            g = g + green & 255
            b = b + green + (data[at] & 15) - 8 & 255
            at += 1
        else:
            times = (tag & 63) + 1
        seen[(r * 3 + g * 5 + b * 7 + a * 11) % 64] = (r, g, b, a)
        out += bytes((r, g, b, a)[:channels]) * times
    return bytes(out[: count * channels])


def filtered_rows(pixels: bytes, row_size: int, step: int) -> bytes:
    """Filter every row with the filter that makes its bytes smallest: None, Sub, Up or Paeth."""
    out = bytearray()
    above = bytes(row_size)
    for start in range(0, len(pixels), row_size):
        row = pixels[start : start + row_size]
        left = bytes(step) + row[:-step]
        corner = bytes(step) + above[:-step]
        tried = (
            (0, row),
            (1, _difference(row, left)),
            (2, _difference(row, above)),
            (4, _difference(row, map(_paeth, left, above, corner))),
        )
        kind, best = min(tried, key=lambda one: _size(one[1]))
        out.append(kind)
        out += best
        above = row
    return bytes(out)


def _difference(row: bytes, guess: Iterable[int]) -> bytes:
    return bytes(value - guessed & 255 for value, guessed in zip(row, guess, strict=False))


def _size(row: bytes) -> int:
    return sum(value if value < 128 else 256 - value for value in row)


def _paeth(left: int, above: int, corner: int) -> int:
    guess = left + above - corner
    by_left, by_above, by_corner = abs(guess - left), abs(guess - above), abs(guess - corner)
    if by_left <= by_above and by_left <= by_corner:
        return left
    return above if by_above <= by_corner else corner


class _Bits:
    def __init__(self) -> None:
        self.out = bytearray()
        self._held = 0
        self._count = 0

    def put(self, value: int, count: int) -> None:
        self._held |= value << self._count
        self._count += count
        while self._count >= 8:
            self.out.append(self._held & 255)
            self._held >>= 8
            self._count -= 8

    def put_code(self, code: int, count: int) -> None:
        turned = 0
        for _ in range(count):
            turned = turned << 1 | code & 1
            code >>= 1
        self.put(turned, count)

    def put_symbol(self, symbol: int) -> None:
        if symbol < 144:
            self.put_code(0x30 + symbol, 8)
        elif symbol < 256:
            self.put_code(0x190 + symbol - 144, 9)
        elif symbol < 280:
            self.put_code(symbol - 256, 7)
        else:
            self.put_code(0xC0 + symbol - 280, 8)

    def put_match(self, length: int, distance: int) -> None:
        value = length - MATCH_LEAST
        extra = _extra_bits(value, 4)
        if length == MATCH_MOST:
            self.put_symbol(285)
        else:
            self.put_symbol(257 + 4 * extra + (value >> extra))
            self.put(value & (1 << extra) - 1, extra)
        value = distance - 1
        extra = _extra_bits(value, 2)
        self.put_code(2 * extra + (value >> extra), 5)
        self.put(value & (1 << extra) - 1, extra)


def _extra_bits(value: int, each: int) -> int:
    return max(0, value.bit_length() - (2 * each - 1).bit_length())


def deflate(data: bytes) -> bytes:
    """Compress into one block of fixed codes."""
    last: dict[int, int] = {}
    bits = _Bits()
    bits.put(1, 1)
    bits.put(1, 2)
    at, size = 0, len(data)
    while at < size:
        length = 0
        start = last.get(_hash(data, at), -1) if at + MATCH_LEAST <= size else -1
        if start >= 0 and at - start <= WINDOW:
            most = min(size - at, MATCH_MOST)
            while length < most and data[start + length] == data[at + length]:
                length += 1
        if length < MATCH_LEAST:
            length = 1
            bits.put_symbol(data[at])
        else:
            bits.put_match(length, at - start)
        for place in range(at, min(at + length, size - MATCH_LEAST + 1)):
            last[_hash(data, place)] = place
        at += length
    bits.put_symbol(256)
    bits.put(0, 7)
    return bytes(bits.out)


def _hash(data: bytes, at: int) -> int:
    word = data[at] | data[at + 1] << 8 | data[at + 2] << 16
    return (word * 2654435761 & 0xFFFFFFFF) >> 17
