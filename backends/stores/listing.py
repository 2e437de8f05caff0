"""The results of a listing.

Each entry is one item in `objects` and one in `details`, with the path as name and the key of the
request. The item in `objects` is a request for the entry, so a listing can be read by the function
that reads, without anything in between. If there is more than the limit, the item in `rest` is the
request that continues, behind the last of them. Entries whose path no request can have are left
out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from dandelion.data import NAME_LIMIT_BYTES, Item

from .failures import ItemFailed
from .request import CONTROL, StoreRequest

_DIGEST_SIZE = 16


@dataclass(frozen=True, slots=True)
class Found:
    """One entry.

    Attributes:
        path: without the prefix of the store.
        modified: in UTC.
        tag: that changes with its content; None if there is none.
    """

    path: str
    size_bytes: int
    modified: datetime
    tag: str | None = None


def listed(
    item: Item, request: StoreRequest, found: Sequence[Found], limit: int
) -> list[tuple[int, Item]]:
    """Make the results of one request.

    Args:
        item: of the request.
        request: of the listing.
        found: entries in the order of the store; more than `limit` if there are more.
        limit: how many are returned.

    Raises:
        ItemFailed: there are more, but no request can have the path of any entry so far.
    """
    produced: list[tuple[int, Item]] = []
    possible = [entry for entry in found[:limit] if _can_be_asked_for(entry.path)]
    for entry in possible:
        name = item_name(entry.path)
        line = f"{request.store} {entry.path}".encode()
        produced.append((0, Item(name, item.key, line)))
        produced.append((1, Item(name, item.key, _details(entry))))
    if len(found) > limit:
        if not possible:
            reason = f"{limit} paths in a row have control characters, or spaces at their ends"
            raise ItemFailed(f"{reason}; list with a larger limit, or a prefix without them")
        again = [f"{request.store} {request.path}", f"after: {possible[-1].path}"]
        if "limit" in request.options:
            again.append(f"limit: {limit}")
        produced.append((2, Item(item.name, item.key, "\n".join(again).encode())))
    return produced


def _can_be_asked_for(path: str) -> bool:
    """Tell whether a request can have the path; one with a line break would become an option."""
    return path == path.strip(" ") and CONTROL.search(path) is None


def item_name(path: str) -> str:
    """Return a name for the item of a path: the path, or its start and a digest if it is long."""
    data = path.encode()
    if len(data) <= NAME_LIMIT_BYTES:
        return path
    digest = "~" + hashlib.sha256(data).hexdigest()[:_DIGEST_SIZE]
    return data[: NAME_LIMIT_BYTES - len(digest)].decode(errors="ignore") + digest


def _details(entry: Found) -> bytes:
    modified = entry.modified.replace(tzinfo=None).isoformat(timespec="seconds")
    lines = [f"size:{entry.size_bytes}", f"modified:{modified}Z"]
    if entry.tag is not None:
        lines.append(f"etag:{entry.tag}")
    return ("\n".join(lines) + "\n").encode()
