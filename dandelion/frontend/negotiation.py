"""Which codec reads a request, and which one writes its reply.

`Content-Type` chooses the reader. `Accept` chooses the writer; without it, or where it takes
anything, the reply comes in the language of the request: JSON to JSON and multipart, MessagePack to
MessagePack, raw bytes to raw bytes if the result is a single item (else JSON).
"""

from __future__ import annotations

import enum
from functools import lru_cache

from dandelion.frontend.asgi import clipped
from dandelion.frontend.problem import NotAcceptable, UnsupportedMedia


class Codec(enum.Enum):
    """A way to write sets as bytes; the value is its media type."""

    JSON = "application/json"
    MSGPACK = "application/msgpack"
    RAW = "application/octet-stream"
    MULTIPART = "multipart/form-data"


_READERS = {
    "application/json": Codec.JSON,
    "text/json": Codec.JSON,
    "application/msgpack": Codec.MSGPACK,
    "application/x-msgpack": Codec.MSGPACK,
    "application/vnd.msgpack": Codec.MSGPACK,
    "application/octet-stream": Codec.RAW,
    "multipart/form-data": Codec.MULTIPART,
}
_WRITERS = {m: c for m, c in _READERS.items() if c is not Codec.MULTIPART}


@lru_cache(maxsize=256)
def reader(content_type: bytes) -> Codec:
    """Choose the codec of a request body. No Content-Type means raw bytes (RFC 9110, 8.3).

    Raises:
        UnsupportedMedia: there is no codec for it.
    """
    text = content_type.decode("latin-1")
    media_type = text.partition(";")[0].strip().lower()
    if not media_type:
        return Codec.RAW
    codec = _READERS.get(media_type)
    if codec is None:
        raise UnsupportedMedia(clipped(media_type), tuple(c.value for c in Codec))
    return codec


@lru_cache(maxsize=256)
def writers(accept: bytes, request: Codec) -> tuple[Codec, ...]:
    """List the codecs that a client accepts for its reply, best first.

    Args:
        accept: the header, empty if there is none.
        request: how the request was written, for a client that takes anything.

    Raises:
        NotAcceptable: none of ours is among them.
    """
    found: list[tuple[float, Codec]] = []
    refused: set[Codec] = set()
    for media_type, quality in _ranges(accept.decode("latin-1")):
        codecs = _matching(media_type, request)
        if quality <= 0:
            refused.update(codecs if len(codecs) == 1 else ())
            continue
        found += [(quality, codec) for codec in codecs]
    found.sort(key=lambda pair: -pair[0])
    result = tuple(dict.fromkeys(c for _, c in found if c not in refused))
    if not result:
        ours = ", ".join(dict.fromkeys(c.value for c in _WRITERS.values()))
        raise NotAcceptable(clipped(accept.decode("latin-1")), f"replies are {ours}")
    return result


def _matching(media_type: str, request: Codec) -> tuple[Codec, ...]:
    own = (request, Codec.JSON) if request is not Codec.MULTIPART else (Codec.JSON,)
    if media_type == "*/*":
        return own
    if media_type == "application/*":
        return own
    codec = _WRITERS.get(media_type)
    return () if codec is None else (codec,)


def _ranges(accept: str) -> list[tuple[str, float]]:
    ranges = []
    for part in (accept or "*/*").split(",")[:64]:
        media_type, *parameters = (piece.strip().lower() for piece in part.split(";"))
        quality = 1.0
        for parameter in parameters:
            if parameter.startswith("q="):
                quality = _quality(parameter[2:])
        ranges.append((media_type, quality))
    return ranges


def _quality(text: str) -> float:
    try:
        quality = float(text)
    except ValueError:
        return 0.0
    return quality if 0.0 <= quality <= 1.0 else 0.0
