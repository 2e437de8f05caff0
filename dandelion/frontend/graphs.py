"""Drawings of compositions, for the graph route and the command line."""

from __future__ import annotations

from dandelion.dataflow.draw import to_json, to_mermaid, to_svg
from dandelion.dataflow.graph import Composition, CompositionModule
from dandelion.dataflow.language import parse
from dandelion.dataflow.printer import print_module
from dandelion.errors import InvalidInput, Unknown, nearest
from dandelion.frontend.asgi import clipped, did_you_mean

MEDIA_TYPES = {
    "svg": b"image/svg+xml",
    "mermaid": b"text/vnd.mermaid; charset=utf-8",
    "json": b"application/json",
    "text": b"text/plain; charset=utf-8",
}


def check_format(format_: str) -> None:
    """Refuse an unknown format.

    Raises:
        InvalidInput: with the nearest one.
    """
    if format_ not in MEDIA_TYPES:
        formats = ", ".join(MEDIA_TYPES)
        hint = did_you_mean(format_, MEDIA_TYPES) or f"formats are {formats}"
        raise InvalidInput("format", f"unknown format '{clipped(format_)}'", hint)


def draw_text(text: str, name: str | None, format_: str) -> str:
    """Draw one composition of a text in the composition language.

    Args:
        text: the text.
        name: which composition; None if the text has only one.
        format_: ``svg``, ``mermaid``, ``json`` or ``text``.

    Raises:
        InvalidInput: the format is unknown, or the text has several compositions.
        InvalidComposition: the text does not fit the grammar.
        Unknown: the text has no composition of that name.
    """
    check_format(format_)
    return draw(parse(text), name, format_)


def draw(module: CompositionModule, name: str | None, format_: str) -> str:
    """Draw one composition of a module, in a format of `MEDIA_TYPES`.

    Raises:
        InvalidInput: no name is given, and the module has several compositions.
        Unknown: the module has no composition of that name.
    """
    composition = _one_of(module, name)
    if format_ == "svg":
        return to_svg(composition)
    if format_ == "mermaid":
        return to_mermaid(composition)
    if format_ == "json":
        return to_json(composition)
    return print_module(_with_needed(module, composition))


def _with_needed(module: CompositionModule, composition: Composition) -> CompositionModule:
    """Leave out what a composition does not apply, in the order of the module."""
    by_name = {one.name: one for one in module.compositions}
    names, left = {composition.name}, [composition]
    while left:
        applied = {application.function for application in left.pop().applications}
        left += [by_name[name] for name in applied - names if name in by_name]
        names |= applied
    return CompositionModule(
        tuple([one for one in module.declarations if one.name in names]),
        tuple([one for one in module.compositions if one.name in names]),
    )


def _one_of(module: CompositionModule, name: str | None) -> Composition:
    names = [composition.name for composition in module.compositions]
    if name is None and len(names) > 1:
        hint = f"name one (--name on the command line): {', '.join(names)}"
        raise InvalidInput("name", f"the text has {len(names)} compositions", hint)
    for composition in module.compositions:
        if name in (None, composition.name):
            return composition
    raise Unknown("composition", name or "", None, nearest(name or "", names))
