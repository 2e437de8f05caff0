"""The whole catalogue as bytes, for a node that lacks commands which are not kept any more."""

from __future__ import annotations

import msgspec

from dandelion.catalog import Catalog, CatalogState, used_blobs
from dandelion.errors import NodeLost
from dandelion.function import Digest, digest_of

PART_BYTES = 4 << 20


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """A catalogue at one place of the log.

    Attributes:
        state: its records.
        blobs: digests and sizes in bytes of all blobs that they refer to.
    """

    state: CatalogState
    blobs: dict[Digest, int]


_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[Snapshot] = msgspec.msgpack.Decoder(Snapshot)


def encode_snapshot(catalog: Catalog) -> bytes:
    """Write the records of a catalogue; it must not change meanwhile."""
    state = catalog.state()
    sizes = {digest: catalog.blob_bytes(digest) for digest in used_blobs(state.records())}
    return _ENCODER.encode(Snapshot(state, sizes))


def decode_snapshot(data: bytes) -> Snapshot:
    """Read it.

    Raises:
        NodeLost: it cannot be read: the other node has another version.
    """
    try:
        found = _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NodeLost("cluster", f"a snapshot of the catalogue cannot be read: {error}") from None
    if not used_blobs(found.state.records()) <= found.blobs.keys():
        raise NodeLost("cluster", "a snapshot of the catalogue does not name all of its blobs")
    return found


def parts_of(data: bytes) -> dict[Digest, bytes]:
    """Divide a snapshot into parts, by their digests, in order."""
    parts = [data[i : i + PART_BYTES] for i in range(0, len(data), PART_BYTES)]
    return {digest_of(part): part for part in parts}
