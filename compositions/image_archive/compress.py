"""Compute function `compress_versions`: add a picture to its versions. It runs in a sandbox.

An entry of the archive is a zlib stream of all versions, oldest first, each preceded by its length
(4 bytes, big-endian). Versions of a picture are similar, so together they compress well.
"""

import json
import struct
import zlib
from typing import Any

from dandelion.data import Item

ENTRY_LIMIT = 1 << 26  # bytes, decompressed


def compress(picture: Any, archived: Any) -> dict[str, Any]:
    """Add new versions of a picture to the archive's entry.

    Args:
        picture: all new versions of one picture, in their order; they have the same key.
        archived: its entry, or None.

    Returns:
        set `entry`: the new entry, empty if nothing changed. Set `outcome`: one JSON text,
        ``{"versions": n, "bytes": size of the entry, "changed": bool}``.
    """
    last = picture.items[-1]
    former = archived.bytes() if archived else b""
    versions = unpack(former, last.key) if archived else []
    known = len(versions)
    for item in picture:
        if not versions or versions[-1] != item.bytes():
            versions.append(item.bytes())
    is_changed = len(versions) > known
    entry = pack(versions) if is_changed else former
    outcome = {"versions": len(versions), "bytes": len(entry), "changed": is_changed}
    return {
        "entry": [Item(last.name, last.key, entry)] if is_changed else None,
        "outcome": [Item(last.name, last.key, json.dumps(outcome).encode())],
    }


def pack(versions: list[bytes]) -> bytes:
    """Write an entry."""
    return zlib.compress(b"".join(struct.pack(">I", len(v)) + v for v in versions), 9)


def unpack(entry: bytes, key: int) -> list[bytes]:
    """Read an entry; decompress no more than `ENTRY_LIMIT`."""
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(entry, ENTRY_LIMIT)
    except zlib.error as error:
        raise ValueError(f"the archive's entry of picture {key} is damaged: {error}") from None
    if not inflater.eof:
        raise ValueError(f"the archive's entry of picture {key} is cut off, or too large")
    versions, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        versions.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    if at != len(data):
        raise ValueError(f"the archive's entry of picture {key} ends within a version")
    return versions
