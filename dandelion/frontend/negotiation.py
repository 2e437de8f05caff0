"""Which codec reads a request, and which codec writes its response.

`Content-Type` selects the reader. `Accept` selects the writer. Without `Accept`, or if only a
wildcard matches, the response has the format of the request: JSON for JSON and multipart,
MessagePack for MessagePack, raw bytes for raw bytes if the result is a single item (else JSON).
Another one is taken by a wildcard if the client excludes these.

Source: RFC 9110, 8.3 (Content-Type) and 12.5.1 (Accept).
"""

from __future__ import annotations

import enum
from functools import lru_cache
from typing import TypeAlias

import mimeparse

from dandelion.frontend.asgi import clipped
from dandelion.frontend.problem import NotAcceptable, UnsupportedMedia

HEADER_LIMIT = 2048
"""Longest header that is parsed, in bytes: mimeparse takes quadratic time for some headers."""
RANGES_LIMIT = 64
"""Most entries of `Accept` that are used."""


_EXACT = 110
"""Least fitness, in mimeparse, of a range without a wildcard."""
_Range: TypeAlias = tuple[str, str, dict[str, str]]
"""Type, subtype and parameters of one entry of `Accept`."""


class Codec(enum.Enum):
    """A way to write sets as bytes; the value is its media type."""

    JSON = "application/json"
    MSGPACK = "application/msgpack"
    RAW = "application/octet-stream"
    MULTIPART = "multipart/form-data"


_MEDIA_TYPES = {
    Codec.JSON: ("application/json", "text/json"),
    Codec.MSGPACK: ("application/msgpack", "application/x-msgpack", "application/vnd.msgpack"),
    Codec.RAW: ("application/octet-stream",),
    Codec.MULTIPART: ("multipart/form-data",),
}
_READERS = {name: codec for codec, names in _MEDIA_TYPES.items() for name in names}
_WRITERS = (Codec.JSON, Codec.MSGPACK, Codec.RAW)


def media_type(content_type: str) -> str:
    """Give the media type of a Content-Type in lower case; empty if the header is malformed."""
    try:
        kind, subtype, _ = mimeparse.parse_mime_type(content_type[:HEADER_LIMIT].lower())
    except mimeparse.MimeTypeParseException:
        return ""
    return f"{kind}/{subtype}"


@lru_cache(maxsize=256)
def reader(content_type: bytes) -> Codec:
    """Select the codec of a request body. No Content-Type means raw bytes (RFC 9110, 8.3).

    Raises:
        UnsupportedMedia: no codec reads this media type.
    """
    text = content_type.decode("latin-1").strip()
    if not text:
        return Codec.RAW
    codec = _READERS.get(media_type(text))
    if codec is None:
        raise UnsupportedMedia(clipped(text), tuple(c.value for c in Codec))
    return codec


@lru_cache(maxsize=256)
def writers(accept: bytes, request: Codec) -> tuple[Codec, ...]:
    """List the codecs that a client accepts for its response, best first.

    Args:
        accept: the header, empty if there is none.
        request: the codec of the request; it is preferred where a wildcard matches.

    Raises:
        NotAcceptable: the client accepts none of our codecs.
    """
    text = accept.decode("latin-1")
    ranges = _ranges(text)
    own = (Codec.JSON,) if request is Codec.MULTIPART else (request, Codec.JSON)
    codecs = tuple(dict.fromkeys((*own, *_WRITERS)))
    found = _accepted(codecs, ranges, own) or _accepted(codecs, ranges, codecs)
    if not found:
        ours = ", ".join(codec.value for codec in _WRITERS)
        raise NotAcceptable(clipped(text), f"responses are {ours}")
    return tuple(codec for _, _, codec in sorted(found, key=lambda entry: entry[:2]))


def _accepted(
    codecs: tuple[Codec, ...], ranges: list[_Range], by_wildcard: tuple[Codec, ...]
) -> list[tuple[float, int, Codec]]:
    """List what is accepted, with what it is sorted by; some may be accepted by a wildcard."""
    found = []
    for codec in codecs:
        quality, position = _match(codec, ranges, wildcards=codec in by_wildcard)
        if quality > 0:
            found.append((-quality, position, codec))
    return found


def _match(codec: Codec, ranges: list[_Range], *, wildcards: bool) -> tuple[float, int]:
    """Give quality and position of the most specific range that matches a codec."""
    best = (-1, 0, 0.0)
    for position, one in enumerate(ranges):
        for name in _MEDIA_TYPES[codec]:
            quality, fitness = mimeparse.quality_and_fitness_parsed(name, [one])
            least = 0 if wildcards and name == codec.value else _EXACT
            if fitness >= least and fitness > best[0]:
                best = (fitness, position, quality)
    return best[2], best[1]


def _ranges(accept: str) -> list[_Range]:
    """Parse `Accept`; entries that are malformed are ignored."""
    ranges = []
    for text in (accept[:HEADER_LIMIT] or "*/*").lower().split(",")[:RANGES_LIMIT]:
        try:
            kind, subtype, parameters = mimeparse.parse_mime_type(text)
            if 0 <= float(parameters.setdefault("q", "1")) <= 1:
                ranges.append((kind, subtype, parameters))
        except ValueError:  # of mimeparse too
            continue
    return ranges
