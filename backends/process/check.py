"""Static checks of a Python function's registration: options, imports and size.

The source itself is examined in a sandbox, see `dandelion.backends.process.examine`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder

from dandelion.errors import Problem, nearest
from dandelion.function import Function

from . import modules
from .outcome import filename

SOURCE_LIMIT_BYTES = 1024 * 1024
_OPTIONS = ("entry", "imports")


def stated_problems(function: Function) -> list[Problem]:
    """Find what is wrong with options, imports and size. Nothing is imported."""
    return [*_options(function), *_imports(function), *_size(function)]


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


def _imports(function: Function) -> Iterator[Problem]:
    for name in modules.declared(function.code.options.get("imports", "")):
        if not _importable(name):
            yield Problem(
                "unknown-import",
                f"this node has no module '{name}'",
                f"{function.spec.name}.options.imports",
                nearest=nearest(name, sys.stdlib_module_names) or "",
            )


def _importable(name: str) -> bool:
    """Look a module up as an import would, without importing its packages."""
    package = name.removesuffix(".*")
    parts = package.split(".")
    if not all(part.isidentifier() for part in parts):
        return False
    if name in sys.modules or name in sys.builtin_module_names:
        return True
    path: list[str] | None = None
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
            found=f"{len(function.main)}",
        )


def too_long(function: Function) -> bool:
    """Tell whether a source is larger than what is examined."""
    return len(function.main) > SOURCE_LIMIT_BYTES
