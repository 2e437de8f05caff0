"""Static checks of a Python function's registration: options, imports and size.

The source itself is examined in a sandbox, see `dandelion.backends.process.examine`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder

from dandelion.call_values import read_call_values
from dandelion.errors import Problem, nearest
from dandelion.function import Function

from . import modules
from .sources import FILES_LIMIT, file_names, filename, size_bytes

SOURCE_LIMIT_BYTES = 1024 * 1024
_OPTIONS = ("entry", "imports", "uses", "values")


def stated_problems(function: Function) -> list[Problem]:
    """Find what is wrong with options, imports and size. Nothing is imported."""
    return [*_options(function), *_values(function), *_imports(function), *_size(function)]


def _options(function: Function) -> Iterator[Problem]:
    for name in function.code.options:
        if name not in _OPTIONS:
            yield Problem(
                "unknown-option",
                f"unknown option '{name}'",
                f"{function.spec.name}.options",
                expected=", ".join(_OPTIONS),
                nearest=nearest(name, _OPTIONS) or "",
            )


def _values(function: Function) -> Iterator[Problem]:
    text = function.code.options.get("values")
    if text is None:
        return
    where = f"{function.spec.name}.options.values"
    try:
        values = read_call_values(text)
    except ValueError as error:
        yield Problem("bad-values", f"it cannot be read: {error}", where)
        return
    for name in values.inputs:
        if name not in function.spec.input_names:
            near = nearest(name, function.spec.input_names) or ""
            yield Problem("bad-values", f"'{name}' is not an input set", where, nearest=near)
    if values.outputs and len(values.outputs) != len(function.spec.outputs):
        found = f"{len(values.outputs)} kinds for {len(function.spec.outputs)} output sets"
        yield Problem("bad-values", found, where)


def _imports(function: Function) -> Iterator[Problem]:
    options = function.code.options
    named = f"{options.get('imports', '')},{options.get('uses', '')}"
    for name in modules.declared(named):
        if not _importable(name, _search_path(function)):
            yield Problem(
                "unknown-import",
                _not_here(function, name),
                f"{function.spec.name}.options.imports",
                nearest=nearest(name, sys.stdlib_module_names) or "",
            )


def _not_here(function: Function, name: str) -> str:
    if function.code.packages:
        return f"neither its packages nor this node have a module '{name}'"
    return f"this node has no module '{name}'; declare its package: packages=['...']"


def _search_path(function: Function) -> list[str]:
    environment = function.environment
    return [*([environment.folder] if environment is not None else []), *sys.path]


def _importable(name: str, path: list[str] | None) -> bool:
    """Look a module up on a path as an import would, without importing its packages."""
    package = name.removesuffix(".*")
    parts = package.split(".")
    if not all(part.isidentifier() for part in parts):
        return False
    if name in sys.modules or name in sys.builtin_module_names:
        return True
    for end in range(1, len(parts) + 1):
        spec = PathFinder.find_spec(".".join(parts[:end]), path)
        if spec is None:
            return end == 1 and parts[0] in sys.stdlib_module_names and parts == [name]
        path = list(spec.submodule_search_locations or ())
    return package == name or bool(path)


def _size(function: Function) -> Iterator[Problem]:
    if too_long(function):
        yield Problem(
            "too-long",
            "the source is too long",
            filename(function),
            expected=f"at most {SOURCE_LIMIT_BYTES} bytes",
            found=f"{size_bytes(function)}",
        )
    if len(file_names(function)) > FILES_LIMIT:
        yield Problem(
            "too-many-files",
            "the function has too many modules",
            filename(function),
            expected=f"at most {FILES_LIMIT}",
            found=f"{len(file_names(function))}",
        )


def too_long(function: Function) -> bool:
    """Tell whether the sources are larger than what is examined."""
    return size_bytes(function) > SOURCE_LIMIT_BYTES or len(file_names(function)) > FILES_LIMIT
