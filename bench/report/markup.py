"""HTML that cannot be forgotten to be escaped: text is escaped unless it is `Markup` already."""

from __future__ import annotations

import html
from collections.abc import Iterable

from ..sheets import Column
from ..units import printable


class Markup(str):
    """Text that is HTML."""

    __slots__ = ()


def element(tag: str, *children: str, **attributes: str | bool) -> Markup:
    """Make an element.

    Args:
        tag: its name; a name of ours, not of an outcome.
        children: text, which is made printable and escaped, or `Markup`, which is not.
        attributes: ``class_`` is ``class``, other underscores are hyphens; True gives an attribute
            without a value, False or an empty text none.
    """
    inner = "".join(escaped(child) for child in children)
    return Markup(f"<{tag}{_attributes(attributes)}>{inner}</{tag}>")


def joined(parts: Iterable[str]) -> Markup:
    """Put parts after each other, escaping what is not markup."""
    return Markup("".join(escaped(part) for part in parts))


def escaped(text: str) -> Markup:
    """Give text as markup."""
    return text if isinstance(text, Markup) else Markup(html.escape(printable(text)))


def table(columns: Iterable[Column], rows: Iterable[Iterable[str]], **attributes: str) -> Markup:
    """Make a table with a row of headings; the first cell of each row is its heading."""
    columns = list(columns)
    head = joined(_cell("th", c, c.title, scope="col") for c in columns)
    body = joined(element("tr", _row(columns, list(row))) for row in rows)
    parts = element("thead", element("tr", head)), element("tbody", body)
    scrolled = element("table", *parts, **attributes)
    return element("div", scrolled, class_="scroll", tabindex="0")


def _row(columns: list[Column], cells: list[str]) -> Markup:
    first = _cell("th", columns[0], cells[0], scope="row")
    rest = zip(columns[1:], cells[1:], strict=True)
    return joined([first, *(_cell("td", column, cell) for column, cell in rest)])


def _cell(tag: str, column: Column, content: str, scope: str = "") -> Markup:
    kind = "figure" if column.figures else "note" if column.title == "note" else ""
    return element(tag, content, class_=kind, scope=scope)


def _attributes(attributes: dict[str, str | bool]) -> str:
    text = ""
    for name, value in attributes.items():
        name = name.rstrip("_").replace("_", "-")
        if value is True:
            text += f" {name}"
        elif value:
            text += f' {name}="{escaped(str(value))}"'
    return text
