"""Compute function `render`: all answers become one page. It runs in a sandbox."""

import html
from typing import Any


def render(reader: Any, topic: Any, replies: Any, pages: Any) -> dict[str, dict[str, str]]:
    """Make an HTML page with a section for each server, in the order of the keys.

    Args:
        reader: name of the token's owner.
        topic: of the logs.
        replies: headers of all answers, or None.
        pages: their bodies, or None; names and keys are those of `replies`.

    Returns:
        set `html`: one page. All received text is escaped; bytes of logs that are not UTF-8 are
        shown as replacement characters.
    """
    bodies = {(page.key, page.name): page for page in pages or ()}
    answers = sorted(replies or (), key=lambda reply: (reply.key, reply.name))
    sections = [section(reply, bodies[reply.key, reply.name]) for reply in answers]
    answered = sum(is_success(reply) for reply in answers)
    title = f"{html.escape(topic.text())} for {html.escape(reader.text())}"
    lines = [
        "<!doctype html>",
        '<html lang="en">',
        '<meta charset="utf-8">',
        f"<title>{title}</title>",
        f"<h1>{title}</h1>",
        f"<p>{answered} of {len(answers)} servers answered.</p>",
        *sections,
        "</html>",
    ]
    return {"html": {"logs.html": "\n".join(lines) + "\n"}}


def section(reply: Any, page: Any) -> str:
    """Show the log of one server, or its status if it failed."""
    name = html.escape(reply.name)
    if not is_success(reply):
        return f'<section class="failed">\n<h2>{name}</h2>\n<p>{status(reply)}</p>\n</section>'
    log = html.escape(page.bytes().decode("utf-8", "replace"))
    return f"<section>\n<h2>{name}</h2>\n<pre>\n{log}</pre>\n</section>"


def is_success(reply: Any) -> bool:
    """Tell whether an answer has a status of the 200s."""
    return status(reply).startswith("2")


def status(reply: Any) -> str:
    """Read code and reason from the first line of the headers, escaped."""
    line = reply.bytes().split(b"\n", 1)[0].decode("utf-8", "replace")
    return html.escape(line.partition(" ")[2])
