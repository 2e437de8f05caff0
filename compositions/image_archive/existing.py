"""Compute function `existing_entry`: drop answers without an entry. It runs in a sandbox."""

from typing import Any


def existing(headers: Any, body: Any) -> dict[str, Any]:
    """Return the body of an answer if it is an entry.

    Args:
        headers: of one answer.
        body: of the same.

    Returns:
        set `archived`: the entry (200), or nothing (404).
    """
    reply = headers.only()
    _, _, status = reply.text().partition("\n")[0].partition(" ")
    if status[:3] not in ("200", "404"):
        raise ValueError(f"the archive answered {status!r} for picture {reply.key}")
    return {"archived": body if status[:3] == "200" else None}
