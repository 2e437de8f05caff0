"""Receiving responses: limits are counted first, and a body gets a context of its own."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TypeAlias

import aiohttp

from dandelion.data import Bytes
from dandelion.errors import TooLarge
from dandelion.memory import MemoryDomain

from .request import HttpRequest, head_item

HEAP_BYTES = 1024
"""Bodies up to this size stay on the heap, where they cost less than a context."""

_COPY_BYTES = 4 * 1024 * 1024
_PIECE_BYTES = 1024 * 1024
"""Of a body of unknown length, so much is on the heap before it goes to a context."""
_REMEDY = "raise 'output_bytes' in the limits of the function"

Answer: TypeAlias = tuple[bytes, Bytes]
"""The headers item and the body of a response."""


@dataclass(slots=True)
class OutputRoom:
    """The remaining bytes for the responses of one call."""

    limit_bytes: int
    taken_bytes: int = 0

    def take(self, item: str, size_bytes: int) -> None:
        self.taken_bytes += size_bytes
        if self.taken_bytes > self.limit_bytes:
            raise TooLarge(
                f"response of item '{item}'", self.taken_bytes, self.limit_bytes, _REMEDY
            )


def version_of(response: aiohttp.ClientResponse) -> tuple[int, int]:
    """Return the version of HTTP of a response."""
    version = response.version or aiohttp.HttpVersion11
    return version.major, version.minor


async def receive(
    request: HttpRequest,
    response: aiohttp.ClientResponse,
    item: str,
    room: OutputRoom,
    domain: MemoryDomain,
) -> Answer:
    """Receive a response.

    Raises:
        TooLarge, ContextFull: there is no room for it.
        aiohttp.ClientError: it broke off.
    """
    head = head_item(version_of(response), response.status, response.raw_headers)
    room.take(item, len(head))
    bodiless = request.method.upper() == "HEAD" or response.status in (204, 304)
    if bodiless or response.content_length == 0:
        return head, b""
    if response.content_length is None:
        return head, await _receive_unsized(response, item, room, domain)
    room.take(item, response.content_length)
    if response.content_length <= HEAP_BYTES:
        return head, await response.read()
    return head, await _receive_sized(response, response.content_length, domain)


async def joined(head: bytes, body: Bytes, domain: MemoryDomain) -> Bytes:
    """Return a head, an empty line and a body as one item.

    Raises:
        ContextFull: there is no room for it.
    """
    size = len(head) + 1 + len(body)
    if size <= HEAP_BYTES:
        return b"\n".join((head, bytes(body)))
    context = domain.acquire(size)
    context.write(0, head + b"\n")
    for start in range(0, len(body), _COPY_BYTES):
        context.write(len(head) + 1 + start, body[start : start + _COPY_BYTES])
        await asyncio.sleep(0)
    return context.read(0, size)


async def _receive_sized(
    response: aiohttp.ClientResponse, size_bytes: int, domain: MemoryDomain
) -> Bytes:
    context = domain.acquire(size_bytes)
    offset = 0
    async for piece in response.content.iter_any():
        context.write(offset, piece)
        offset += len(piece)
    if offset != size_bytes:
        raise aiohttp.ClientPayloadError(f"{offset} of {size_bytes} bytes")
    return context.read(0, size_bytes)


async def _receive_unsized(
    response: aiohttp.ClientResponse, item: str, room: OutputRoom, domain: MemoryDomain
) -> Bytes:
    full: list[Bytes] = []
    last = bytearray()  # not a list, which is many times larger for chunks of two bytes
    async for piece in response.content.iter_any():
        room.take(item, len(piece))
        last += piece
        if len(last) >= _PIECE_BYTES:
            full.append(_placed(last, domain))
            last = bytearray()
    if not full and len(last) <= HEAP_BYTES:
        return bytes(last)
    size = sum(map(len, full)) + len(last)
    context, offset = domain.acquire(size), 0
    for part in full:
        context.write(offset, part)
        offset += len(part)
        await asyncio.sleep(0)  # a large body takes a tenth of a second
    context.write(offset, memoryview(last))
    return context.read(0, size)


def _placed(data: bytearray, domain: MemoryDomain) -> Bytes:
    """Move data from the heap, where no quota counts it, to a context."""
    context = domain.acquire_to_fill(len(data))
    context.write(0, memoryview(data))
    return context.read(0, len(data))
