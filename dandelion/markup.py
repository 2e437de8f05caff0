"""HTML for notebooks: tables and values as elements, with all text escaped by the serialiser.

The result is one ``<div>`` without scripts, classes or identifiers, so that it cannot change the
page around it. It takes the page's text colour and has no background of its own; lines and bars are
half transparent. So it can be read in light and dark pages, whichever way a notebook chooses.

Source: "HTML reprs" of IPython's rich display; ``xml.etree.ElementTree``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TypeAlias
from xml.etree import ElementTree

Element: TypeAlias = ElementTree.Element
Cell: TypeAlias = "Element | str | int | float | None"

ROWS_LIMIT = 50
TEXT_LIMIT = 400
DIM = "opacity:.65"
LINE = "1px solid rgba(128,128,128,.35)"
_CELL = f"text-align:left;vertical-align:top;padding:.15em .8em .15em 0;border-bottom:{LINE}"
_INVALID = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e"
                      "\u2066-\u2069\ud800-\udfff\ufffe\uffff]")  # fmt: skip
"""Characters that XML does not have, and those that change the direction of the text around."""


def element(tag: str, *content: Cell, style: str = "", **attributes: str | float) -> Element:
    """Make an element; texts in it and in its attributes are data.

    Args:
        tag: its name.
        content: texts and elements; None is nothing.
        style: of it.
        attributes: others; ``_`` in a name stands for ``-``.
    """
    made = ElementTree.Element(tag)
    for name, value in attributes.items():
        made.set(name.rstrip("_").replace("_", "-"), plain(f"{value}"))
    if style:
        made.set("style", style)
    for part in content:
        add(made, part)
    return made


def add(parent: Element, part: Cell) -> None:
    """Add a text or an element behind what is there."""
    if part is None:
        return
    if isinstance(part, ElementTree.Element):
        parent.append(part)
        return
    text = plain(f"{part}")
    if len(parent):
        parent[-1].tail = (parent[-1].tail or "") + text
    else:
        parent.text = (parent.text or "") + text


def plain(text: str) -> str:
    """Replace characters that could change how the page is read."""
    return _INVALID.sub("\ufffd", text)


def clipped(text: str, limit: int = TEXT_LIMIT) -> str:
    """Shorten a text."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def code(text: str) -> Element:
    """Show a text in the font of programs, with its line breaks."""
    return element("code", text, style="white-space:pre-wrap;word-break:break-word")


def dim(text: str) -> Element:
    """Show a text that is less important."""
    return element("span", text, style=DIM)


def table(
    heads: Sequence[str], rows: Iterable[Sequence[Cell]], total: int | None = None
) -> Element:
    """Show a table.

    Args:
        heads: of the columns.
        rows: of which `ROWS_LIMIT` are shown.
        total: how many there are, if `rows` has not all.
    """
    head = element("tr", *(element("th", text, style=_CELL) for text in heads))
    shown: list[Element] = []
    number = 0
    for row in rows:
        number += 1
        if len(shown) < ROWS_LIMIT:
            shown.append(element("tr", *(element("td", cell, style=_CELL) for cell in row)))
    left = (total if total is not None else number) - len(shown)
    body = element("tbody", *shown)
    if left > 0:
        note = element("td", dim(f"{left} more"), style=_CELL, colspan=len(heads))
        body.append(element("tr", note))
    style = "border-collapse:collapse;font-size:.95em;margin:.3em 0"
    return element("table", element("thead", head), body, style=style)


def heading(kind: str, name: str, *further: str) -> Element:
    """Show what something is, its name, and further words."""
    return element(
        "div", dim(f"{kind} "), element("b", name), *(dim(f"  {text}") for text in further if text)
    )


def page(*parts: Cell) -> str:
    """Write parts as the HTML of one output."""
    style = "font-family:system-ui,sans-serif;font-size:13px;line-height:1.4;overflow-x:auto"
    whole = element("div", *parts, style=style)
    return ElementTree.tostring(whole, encoding="unicode", method="html")
