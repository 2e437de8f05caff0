"""Source files as a running program has them: files, cells of notebooks, lines of a console.

`linecache` knows the text of all of them. A cell, and each input of a console that keeps its text,
is a file of its own; what they define is in one namespace.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import PurePath
from types import CodeType
from typing import Any, NoReturn

from dandelion.errors import InvalidFunction, Problem

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_CELL = re.compile(r"<ipython-input|<python-input|ipykernel|<cell")
_LABEL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_. -]{0,99}\Z")


@dataclass(slots=True, eq=False)
class SourceFile:
    """A file with source text.

    Attributes:
        name: as in code objects.
        lines: its text, with line ends.
        tree: its syntax.
    """

    name: str
    lines: list[str]
    tree: ast.Module
    _bindings: dict[str, list[ast.stmt]] | None = field(default=None)

    @property
    def label(self) -> str:
        """Its name for tracebacks; empty for cells, whose names differ from run to run."""
        name = PurePath(self.name).name
        return "" if is_cell(self.name) or not _LABEL.match(name) else name

    def bindings(self, name: str) -> list[ast.stmt]:
        """Return the statements of the module, not of its functions, that bind a name."""
        if self._bindings is None:
            self._bindings = {}
            for statement in _statements(self.tree.body):
                for bound in _bound(statement):
                    self._bindings.setdefault(bound, []).append(statement)
        return self._bindings.get(name, [])

    def definition(self, code: CodeType) -> Definition | None:
        """Find the definition that a function's code was compiled from."""
        for node in ast.walk(self.tree):
            if isinstance(node, Definition) and node.name == code.co_name:
                first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                if code.co_firstlineno in (first, node.lineno):
                    return node
        return None


def is_cell(name: str) -> bool:
    """Tell whether a file is a cell of a notebook, or an input of a console."""
    return _CELL.search(name) is not None


def source_file(name: str, module_globals: dict[str, Any] | None = None) -> SourceFile | None:
    """Read a file; None if there is no text, or it cannot be parsed."""
    lines = linecache.getlines(name, module_globals)
    if not lines:
        return None
    try:
        return SourceFile(name, lines, ast.parse("".join(lines)))
    except (SyntaxError, ValueError, RecursionError):
        return None


def cells() -> list[str]:
    """Return the names of all cells, in the order in which they were entered."""
    return [name for name in linecache.cache if is_cell(name)]


def refuse(code: str, message: str, where: str, line: int, column: int, hint: str = "") -> NoReturn:
    """Raise one problem with the line that it is about.

    Raises:
        InvalidFunction: always.
    """
    text = linecache.getline(where, line).rstrip("\n")
    excerpt = f"{text}\n{' ' * (column - 1)}^" if text else ""
    at = f"{where}:{line}:{column}"
    raise InvalidFunction((Problem(code, message, at, line, column, hint=hint, excerpt=excerpt),))


def code_of(function: Callable[..., Any]) -> CodeType | None:
    """Return the code of a function, below its decorators."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code if isinstance(code, CodeType) else None


def place_of(function: Callable[..., Any]) -> tuple[str, int]:
    """Return the file and the line of a function's ``def``, as well as they are known."""
    code = code_of(function)
    if code is None:
        return getattr(sys.modules.get(function.__module__), "__file__", None) or "?", 0
    file = source_file(code.co_filename, inspect.unwrap(function).__globals__)
    found = file.definition(code) if file is not None else None
    return code.co_filename, found.lineno if found is not None else code.co_firstlineno


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module, in order, without those of functions and classes."""
    for statement in body:
        yield statement
        if isinstance(statement, Definition):
            continue
        for name in ("body", "orelse", "finalbody"):
            yield from _statements(getattr(statement, name, []))
        for handler in getattr(statement, "handlers", []):
            yield from _statements(handler.body)
        for case in getattr(statement, "cases", []):
            yield from _statements(case.body)


def _bound(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, Definition):
        yield statement.name
    elif isinstance(statement, ast.Import):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in statement.names)
    elif isinstance(statement, ast.ImportFrom):
        yield from (alias.asname or alias.name for alias in statement.names)
    else:
        for node in _own_expressions(statement):
            for part in ast.walk(node):
                if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                    yield part.id


def _own_expressions(statement: ast.stmt) -> Iterator[ast.AST]:
    """Yield the expressions of a statement, without the statements inside of it."""
    for child in ast.iter_child_nodes(statement):
        if not isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield child
