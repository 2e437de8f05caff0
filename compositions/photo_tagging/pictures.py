"""Pictures that stand for photos: drawn, so that the tree needs no files of them."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import numpy.typing as npt

TAGS = ("circle", "square", "triangle", "stripes", "checkers", "plain")
SIDE = 32
SIGNATURE = b"\x89PNG\r\n\x1a\n"

Pictures = npt.NDArray[np.uint8]


def draw(count: int, seed: int) -> tuple[Pictures, npt.NDArray[np.int64]]:
    """Draw pictures.

    Returns:
        Pixels [count, 32, 32, 3], and the index in `TAGS` of each.
    """
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, len(TAGS), count)
    pictures = np.stack([_picture(TAGS[label], rng) for label in labels])
    return pictures, labels


def _picture(tag: str, rng: np.random.Generator) -> Pictures:
    """One form in one colour on another colour, with noise."""
    y, x = np.mgrid[:SIDE, :SIDE]
    centre = rng.uniform(11, 21, 2)
    size = rng.uniform(5, 10)
    down, right = y - centre[0], x - centre[1]
    period = int(rng.integers(3, 6))
    match tag:
        case "circle":
            form = down**2 + right**2 < size**2
        case "square":
            form = np.maximum(abs(down), abs(right)) < size * 0.85
        case "triangle":
            form = (down > -size) & (down < size) & (abs(right) < (down + size) / 2)
        case "stripes":
            form = ((x + y * int(rng.integers(-1, 2))) // period) % 2 == 0
        case "checkers":
            form = (x // period + y // period) % 2 == 0
        case _:
            form = np.zeros((SIDE, SIDE), bool)
    back = rng.uniform(0, 1, 3)
    front = (back + rng.uniform(0.35, 0.65, 3)) % 1.0
    image = np.where(form[:, :, None], front, back) + rng.normal(0, 0.04, (SIDE, SIDE, 3))
    pixels: Pictures = np.clip(image * 255, 0, 255).astype(np.uint8)
    return pixels


def network_input(pictures: Pictures) -> npt.NDArray[np.float32]:
    """Pixels [n, 32, 32, 3] as the network takes them: [n, 3, 32, 32] in 0..1."""
    planes = pictures.transpose(0, 3, 1, 2).astype(np.float32)
    return np.ascontiguousarray(planes / np.float32(255))


def encode(pixels: Pictures) -> bytes:
    """Encode a picture as PNG, each row with filter 1 (the difference to the pixel before)."""
    height, width, _ = pixels.shape
    rows = np.ones((height, 1 + 3 * width), np.uint8)
    before = np.pad(pixels, ((0, 0), (1, 0), (0, 0)))[:, :-1]
    rows[:, 1:] = (pixels - before).reshape(height, -1)
    header = struct.pack(">2I5B", width, height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b""))
    return SIGNATURE + b"".join(_chunk(kind, body) for kind, body in parts)


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
