"""Compute functions `notify_archive`, `lookup_entries`, `store_entries`: requests to the archive.

They run in sandboxes. The archive has the entry of picture KEY at ``ARCHIVE/entries/KEY`` (GET,
PUT) and accepts notices at ``ARCHIVE/rejected/KEY`` (POST). A request has name and key of its
picture.
"""

from typing import Any

from dandelion.data import Item


def notify(rejected: Any, archive: Any) -> dict[str, list[Item]]:
    """Notify the archive (URL, static) of rejected pictures, with the reasons."""
    notices = [request("POST", "rejected", archive, item, item.bytes()) for item in rejected]
    return {"requests": notices}


def lookup(pictures: Any, archive: Any) -> dict[str, list[Item]]:
    """Request the entry of each picture; versions of one picture share an entry."""
    one_of = {item.key: item for item in pictures}
    return {"requests": [request("GET", "entries", archive, item) for item in one_of.values()]}


def store(entries: Any, archive: Any) -> dict[str, list[Item]]:
    """Replace entries."""
    orders = [request("PUT", "entries", archive, item, item.bytes()) for item in entries]
    return {"requests": orders}


def request(method: str, folder: str, archive: Any, item: Any, body: bytes = b"") -> Item:
    """Write one request."""
    head = f"{method} {archive.text()}/{folder}/{item.key} HTTP/1.1\n\n".encode()
    return Item(item.name, item.key, head + body)
