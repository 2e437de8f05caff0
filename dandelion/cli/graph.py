"""``dandelion graph``: draw a composition of a file or of a node."""

from __future__ import annotations

from pathlib import Path

from dandelion.cli.connection import connect
from dandelion.cli.loading import load_program
from dandelion.cli.output import Output, WrongUsage
from dandelion.cli.parser import Arguments
from dandelion.cli.sources import text_of
from dandelion.dataflow.graph import CompositionModule
from dandelion.dataflow.language import parse
from dandelion.errors import InvalidInput
from dandelion.frontend.graphs import draw

SUFFIXES = {
    ".svg": "svg",
    ".mmd": "mermaid",
    ".md": "mermaid",
    ".json": "json",
    ".txt": "text",
    ".dandelion": "text",
}


def run(arguments: Arguments, out: Output) -> int:
    """Draw to standard output or a file."""
    target = arguments.output
    format_ = _format(target, "json" if out.as_json else arguments.format)
    drawn = _drawn(arguments, format_)
    if target is None:
        out.raw(drawn.encode() + (b"" if drawn.endswith("\n") else b"\n"))
        return 0
    if target.suffix.lower() == ".md":
        drawn = f"```mermaid\n{drawn.rstrip()}\n```\n"
    target.write_text(drawn, "utf-8")
    return 0


def _format(target: Path | None, requested: str | None) -> str:
    """Select the format from ``--format`` and the suffix of the file, which must agree.

    Raises:
        WrongUsage: nothing is written in the format of that suffix, or it is not the one asked for.
    """
    suffix = target.suffix.lower() if target is not None else ""
    if not suffix:
        return requested or "text"
    meant = SUFFIXES.get(suffix)
    if meant is None:
        supported = f"the suffixes are {', '.join(SUFFIXES)}"
        if suffix in (".png", ".pdf", ".jpg", ".jpeg"):
            supported += "; an SVG can be converted, for example by rsvg-convert"
        raise WrongUsage(f"-o {target}", f"a graph cannot be written as {suffix}", supported)
    if requested not in (None, meant):
        raise WrongUsage(
            f"-o {target}", f"{suffix} means {meant}, not {requested}", "change one of them"
        )
    return meant


def _module(path: Path, name: str | None) -> CompositionModule:
    """Read the file of a composition; texts of a Python file come from its decorators.

    Raises:
        ProgramFailed: the Python file cannot be loaded.
        InvalidInput: it has no composition, or is not valid UTF-8.
        InvalidComposition: the text does not fit the grammar.
    """
    if path.suffix != ".py":
        return parse(text_of(path), str(path))
    document, _ = load_program(path)
    modules = [parse(text, str(path)) for text in document.compositions]
    if not modules:
        hint = "put @dandelion.composition above one"
        raise InvalidInput(str(path), "the file has no composition", hint)
    for module in modules:
        if name in [one.name for one in module.compositions]:
            return module
    declarations = {one.name: one for module in modules for one in module.declarations}
    compositions = {one.name: one for module in modules for one in module.compositions}
    return CompositionModule(tuple(declarations.values()), tuple(compositions.values()))


def _drawn(arguments: Arguments, format_: str) -> str:
    path = Path(arguments.source)
    if path.is_file():
        return draw(_module(path, arguments.name), arguments.name, format_)
    if path.suffix in (".dandelion", ".py"):
        raise WrongUsage(str(path), "no such file")
    if arguments.name is not None:
        raise WrongUsage(
            "--name", f"it selects from a file, and '{path}' is not a file", "leave it out"
        )
    with connect(arguments) as client:
        return client.graph(arguments.source, format_, arguments.version_)
