"""The expected results: pixels, from both formats by decoders independent of the functions.

PNG files are inflated by zlib; QOI files are made here from pixels, so their content is known.
"""

from __future__ import annotations

import struct
import zlib

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]


def draw(rng: np.random.Generator, width: int, height: int, channels: int) -> Pixels:
    """Draw an image [height, width, channels] uint8 with smooth, flat, noisy and repeated parts."""
    y, x = np.mgrid[0:height, 0:width]
    image = np.empty((height, width, channels), np.uint8)
    for channel in range(channels):
        image[..., channel] = (x * (channel + 1) + y * 2) // 3 & 255
    image[: height // 4] = rng.integers(0, 256, channels)
    noisy = image[height // 2 : height // 2 + height // 8]
    noisy[...] = rng.integers(0, 256, noisy.shape)
    tiles = image[height // 4 : height // 4 + height // 8]
    tiles[...] = np.resize(rng.integers(0, 256, (1, 5, channels)), (1, width, channels))
    return image


def to_qoi(image: Pixels) -> bytes:
    """Encode [height, width, channels] uint8, using every kind of chunk."""
    height, width, channels = image.shape
    out = bytearray(b"qoif" + struct.pack(">IIBB", width, height, channels, 0))
    seen: list[tuple[int, ...]] = [(0, 0, 0, 0)] * 64
    before: tuple[int, ...] = (0, 0, 0, 255)
    repeat = 0
    for values in image.reshape(-1, channels).tolist():
        pixel = (*values, 255)[:4] if channels == 3 else tuple(values)
        if pixel == before and repeat < 62:
            repeat += 1
            continue
        if repeat:
            out.append(0xC0 | repeat - 1)
            repeat = 0
        if pixel == before:
            repeat = 1
            continue
        out += _chunk(pixel, before, seen)
        before = pixel
    if repeat:
        out.append(0xC0 | repeat - 1)
    return bytes(out) + bytes(7) + b"\1"


def _chunk(pixel: tuple[int, ...], before: tuple[int, ...], seen: list[tuple[int, ...]]) -> bytes:
    r, g, b, a = pixel
    place = (r * 3 + g * 5 + b * 7 + a * 11) % 64
    if seen[place] == pixel:
        return bytes((place,))
    seen[place] = pixel
    if a != before[3]:
        return bytes((0xFF, r, g, b, a))
    dr, dg, db = ((v - w + 128 & 255) - 128 for v, w in zip(pixel[:3], before[:3], strict=True))
    if min(dr, dg, db) >= -2 and max(dr, dg, db) <= 1:
        return bytes((0x40 | dr + 2 << 4 | dg + 2 << 2 | db + 2,))
    if -32 <= dg <= 31 and -8 <= dr - dg <= 7 and -8 <= db - dg <= 7:
        return bytes((0x80 | dg + 32, dr - dg + 8 << 4 | db - dg + 8))
    return bytes((0xFE, r, g, b))


def from_qoi(data: bytes) -> Pixels:
    """Decode a QOI image that `to_qoi` made, run by run, to [height, width, channels] uint8."""
    width, height, channels = struct.unpack_from(">IIB", data, 4)
    pixels = np.empty((width * height, 4), np.uint8)
    seen = np.zeros((64, 4), np.uint8)
    pixel = np.array([0, 0, 0, 255], np.uint8)
    at, done = 14, 0
    while done < len(pixels):
        tag = data[at]
        at += 1
        times = 1
        if tag >= 0xFE:
            size = 3 + (tag == 0xFF)
            pixel[:size] = np.frombuffer(data, np.uint8, size, at)
            at += size
        elif tag >> 6 == 0:
            pixel[:] = seen[tag]
        elif tag >> 6 == 1:
            pixel[:3] += np.array([tag >> 4 & 3, tag >> 2 & 3, tag & 3], np.uint8) - np.uint8(2)
        elif tag >> 6 == 2:
            second = data[at]
            at += 1
            steps = np.array([second >> 4, 8, second & 15], np.int16) - 8 + (tag & 63) - 32
            pixel[:3] = (pixel[:3] + steps) & 255
        else:
            times = (tag & 63) + 1
        seen[np.dot(pixel.astype(int), (3, 5, 7, 11)) % 64] = pixel
        pixels[done : done + times] = pixel
        done += times
    return pixels.reshape(height, width, 4)[..., :channels]


def from_png(data: bytes) -> Pixels:
    """Decode an 8-bit RGB or RGBA image to [height, width, channels] uint8, checking its sums."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks: dict[bytes, bytes] = {}
    at = 8
    while at < len(data):
        (size,) = struct.unpack_from(">I", data, at)
        name, content = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        (checksum,) = struct.unpack_from(">I", data, at + 8 + size)
        assert checksum == zlib.crc32(name + content)
        chunks[name] = chunks.get(name, b"") + content
        at += 12 + size
    width, height, _, kind = struct.unpack_from(">IIBB", chunks[b"IHDR"])
    channels = {2: 3, 6: 4}[kind]
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, -1)
    image = np.zeros((height + 1, width + 1, channels), np.uint8)  # with a border of zeros
    for y, row in enumerate(rows, start=1):
        _unfilter(int(row[0]), row[1:].reshape(width, channels), image, y)
    return image[1:, 1:]


def _unfilter(kind: int, row: Pixels, image: Pixels, y: int) -> None:
    if kind in (0, 2):
        image[y, 1:] = row + (image[y - 1, 1:] if kind == 2 else 0)
        return
    if kind == 1:
        image[y, 1:] = np.cumsum(row, axis=0, dtype=np.uint8)
        return
    assert kind == 4
    for x in range(1, len(row) + 1):
        left, up, corner = (image[p].astype(int) for p in ((y, x - 1), (y - 1, x), (y - 1, x - 1)))
        guess = left + up - corner
        nearest = np.abs(np.stack((guess - left, guess - up, guess - corner))).argmin(axis=0)
        image[y, x] = row[x - 1] + np.choose(nearest, (left, up, corner)).astype(np.uint8)
