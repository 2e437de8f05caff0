"""The sources of a Python function: its main text, and those that its code object has as files.

A function that was captured from a program may need more than one text. Files are recognised by
their names; others are ignored:

=================== =====================================================================
``module:NAME``     a module that the function may import; it is executed when it is imported
``package:NAME``    the same for a package
``part:LABEL``      executed in the function's module before the main text, in the order of names
=================== =====================================================================

All of it is text of unknown authors. It is compiled in sandboxes, see `.examine`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from dandelion.call_values import CallValues, read_call_values
from dandelion.data import Bytes
from dandelion.function import Function

from . import modules
from .wire import ProgramFile

FILES_LIMIT = 64
_NAME = re.compile(r"(?P<kind>module|package|part):(?P<name>[A-Za-z0-9_][A-Za-z0-9_. -]{0,199})\Z")


def file_names(function: Function) -> list[str]:
    """Return the names of the files that are sources, in the order of execution and compilation."""
    files = function.code.files
    return sorted(name for name in files if _NAME.match(name)) if files else []


def program_files(function: Function) -> tuple[ProgramFile, ...]:
    """Describe the files of a function to its sandboxes."""
    found = []
    for name in file_names(function):
        match = _NAME.match(name)
        assert match is not None
        shown = f"<function {function.spec.name}: {match['name']}>"
        found.append(ProgramFile(match["kind"], match["name"], shown))
    return tuple(found)


def texts(function: Function) -> list[Bytes]:
    """Return all sources, the main text first."""
    return [function.main, *(function.files[name] for name in file_names(function))]


def size_bytes(function: Function) -> int:
    """Return the size of all sources."""
    return sum(map(len, texts(function)))


def call_values(function: Function) -> CallValues | None:
    """Read how the function is called; None if nothing is said, or if it is not valid."""
    text = function.code.options.get("values")
    if text is None:
        return None
    try:
        return read_call_values(text)
    except ValueError:  # registration has refused it
        return None


def imports(options: Mapping[str, str]) -> tuple[str, ...]:
    """Return the modules that a sandbox needs in addition to those that every sandbox has.

    The option ``imports`` is what a user declared, and is taken as it is. ``uses`` was derived from
    a source; modules that every sandbox has need no interpreter of their own.
    """
    declared = modules.declared(options.get("imports", ""))
    uses = options.get("uses", "")
    if not uses:
        return declared
    derived = (name for name in modules.declared(uses) if not modules.always_has(name))
    return tuple(sorted({*declared, *derived}))


def filename(function: Function) -> str:
    """Return the name of a function's main source in tracebacks and problems."""
    values = call_values(function)
    label = f": {values.file}" if values is not None and values.file else ""
    return f"<function {function.spec.name}{label}>"


def line_of(function: Function, file: int, line: int) -> tuple[str, str]:
    """Return the file name of a source and one of its lines; no text if there is none."""
    names = [filename(function), *(f.filename for f in program_files(function))]
    found: Sequence[Bytes] = texts(function)
    if not 0 <= file < len(names):
        file = 0
    lines = bytes(found[file]).decode("utf-8", "replace").splitlines()
    return names[file], lines[line - 1].strip() if 0 < line <= len(lines) else ""
