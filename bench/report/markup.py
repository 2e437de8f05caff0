"""HTML: text is escaped unless it is `Markup` already."""

from __future__ import annotations

import html
from collections.abc import Iterable

from .tables import Column
from .units import printable


class Markup(str):
    """Text that is HTML."""

    __slots__ = ()


def element(tag: str, *children: str, **attributes: str | bool) -> Markup:
    """Make an element.

    Args:
        tag: its name; a name of ours, not of a result.
        children: text, which is made printable and escaped, or `Markup`, which is not.
        attributes: ``class_`` is ``class``, other underscores are hyphens; True gives an attribute
            without a value, False or an empty text none.
    """
    parts = [tag]
    for name, value in attributes.items():
        name = name.rstrip("_").replace("_", "-")
        if value is True:
            parts.append(name)
        elif value:
            parts.append(f'{name}="{escaped(str(value))}"')
    return Markup(f"<{' '.join(parts)}>{joined(children)}</{tag}>")


def joined(parts: Iterable[str]) -> Markup:
    """Concatenate parts, escaping what is not markup."""
    return Markup("".join(escaped(part) for part in parts))


def escaped(text: str) -> Markup:
    """Give text as markup."""
    return text if isinstance(text, Markup) else Markup(html.escape(printable(text)))


def table(columns: Iterable[Column], rows: Iterable[Iterable[str]], **attributes: str) -> Markup:
    """Make a table with a row of headings; the first cell of each row is its heading."""
    columns = list(columns)
    head = joined(_cell("th", c, c.title, "col") for c in columns)
    body = joined(
        element("tr", *(
            _cell("td" if i else "th", column, cell, "" if i else "row")
            for i, (column, cell) in enumerate(zip(columns, row, strict=True))
        ))
        for row in rows
    )  # fmt: skip
    parts = element("thead", element("tr", head)), element("tbody", body)
    return element("div", element("table", *parts, **attributes), class_="scroll", tabindex="0")


def _cell(tag: str, column: Column, content: str, scope: str) -> Markup:
    kind = "figure" if column.figures else "note" if column.title == "note" else ""
    return element(tag, content, class_=kind, scope=scope)
