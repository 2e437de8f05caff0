"""Compute function `report_pictures`: the result of every picture. It runs in a sandbox."""

import json
from typing import Any


def report(rejected: Any, outcomes: Any, replies: Any) -> dict[str, dict[str, str]]:
    """Combine the results of the branches; each may be None.

    Args:
        rejected: the reasons of rejected pictures.
        outcomes: the outcomes of the others.
        replies: headers of the answers to stored entries.

    Returns:
        set `report`: one JSON text, ``{"pictures": [{"id": key, "name": ..., "outcome": "rejected",
        "unchanged", "stored" or "failed", "versions": n, "bytes": n, "detail": ...}, ...]}``,
        ordered by key. `versions` and `bytes` are those of the entry that the archive would have.
    """
    status = {reply.key: status_of(reply) for reply in replies or ()}
    rows = [row(i, "rejected", "{why}, mean {mean}".format(**read(i))) for i in rejected or ()]
    for item in outcomes or ():
        found = read(item)
        answer = status.get(item.key, "")
        outcome = ("stored" if answer.startswith("2") else "failed") if answer else "unchanged"
        rows.append(row(item, outcome, answer, found["versions"], found["bytes"]))
    rows.sort(key=lambda entry: entry["id"])
    return {"report": {"report.json": json.dumps({"pictures": rows})}}


def row(item: Any, outcome: str, detail: str, versions: int = 0, size: int = 0) -> dict[str, Any]:
    """Make the row of one picture."""
    return {
        "id": item.key,
        "name": item.name,
        "outcome": outcome,
        "versions": versions,
        "bytes": size,
        "detail": detail,
    }


def read(item: Any) -> dict[str, Any]:
    """Read the JSON of an item."""
    found: dict[str, Any] = json.loads(item.bytes())
    return found


def status_of(reply: Any) -> str:
    """Read code and reason from the first line of the headers."""
    line: bytes = reply.bytes().split(b"\n", 1)[0]
    return line.decode("utf-8", "replace").partition(" ")[2]
