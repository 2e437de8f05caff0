"""Writing the result of an invocation in the form that its client accepts."""

from __future__ import annotations

from functools import partial

from dandelion.data import Bytes, Sets
from dandelion.frontend.asgi import Header, Response
from dandelion.frontend.conversion.converter import Converter
from dandelion.frontend.conversion.costs import costs_json_response, many_items
from dandelion.frontend.negotiation import Codec
from dandelion.frontend.problem import NotAcceptable
from dandelion.frontend.set_encoding import encode_json, encode_msgpack

_MEDIA_TYPES = {codec: codec.value.encode() for codec in Codec}


class ResultWriter:
    """Writes results, large ones elsewhere than on the event loop.

    Args:
        converter: writes large documents.
    """

    def __init__(self, converter: Converter) -> None:
        self._converter = converter

    def short(self, id_: str, sets: Sets, codecs: tuple[Codec, ...]) -> Response | None:
        """Write output sets as `write` does; None if that would take long."""
        codec = _writer(codecs, sets)
        if costs_json_response(sets) if codec is Codec.JSON else many_items(sets):
            return None
        return _response(id_, sets, codec)

    async def write(self, id_: str, sets: Sets, codecs: tuple[Codec, ...]) -> Response:
        """Write the output sets of an invocation.

        Args:
            id_: of the invocation.
            sets: its outputs.
            codecs: that the client accepts, best first.

        Raises:
            NotAcceptable: none of them can express the result.
        """
        response = self.short(id_, sets, codecs)
        if response is not None:
            return response
        return await self._long_response(id_, sets, _writer(codecs, sets))

    async def _long_response(self, id_: str, sets: Sets, codec: Codec) -> Response:
        """Write a large response: JSON in the converter, other formats in a thread."""
        if codec is not Codec.JSON:
            return await self._converter.elsewhere(partial(_response, id_, sets, codec))
        chunk = await self._converter.json_response(id_, sets)
        return Response([chunk], _MEDIA_TYPES[codec], 200, _headers(id_))


def _writer(codecs: tuple[Codec, ...], sets: Sets) -> Codec:
    """Select the codec of a response: the first that can express it."""
    codec = codecs[0]
    if codec is not Codec.RAW:
        return codec
    count = sum([len(s.items) for s in sets.values() if s is not None])
    if count == 1:
        return codec
    if len(codecs) > 1:
        return codecs[1]
    message = f"the result has {count} items; raw bytes need exactly one"
    raise NotAcceptable(Codec.RAW.value, message)


def _response(id_: str, sets: Sets, codec: Codec) -> Response:
    headers = _headers(id_)
    return Response(_encode(codec, id_, sets, headers), _MEDIA_TYPES[codec], 200, headers)


def _headers(id_: str) -> list[Header]:
    return [(b"dandelion-invocation", id_.encode())]


def _encode(codec: Codec, id_: str, sets: Sets, headers: list[Header]) -> list[Bytes]:
    if codec is Codec.JSON:
        return encode_json(id_, sets)
    if codec is Codec.MSGPACK:
        return encode_msgpack(id_, sets)
    (item,) = [item for s in sets.values() if s is not None for item in s.items]
    if item.dtype is not None:
        headers.append((b"dandelion-dtype", item.dtype.encode()))
        if item.shape is not None:
            headers.append((b"dandelion-shape", ",".join(map(str, item.shape)).encode()))
    return [item.data]
