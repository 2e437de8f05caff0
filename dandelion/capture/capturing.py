"""The state of capturing one function: what is kept, and what is still needed.

See `dandelion.capture.capture`. Each name is looked up once: as the statement that binds it, if
there is one, and as its present value.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType, FunctionType, GenericAlias, ModuleType, UnionType
from typing import Any, NewType, TypeVar

from dandelion.capture.constants import NotExact, constant_text
from dandelion.capture.modules import CapturedModules, absolute, imported, is_module
from dandelion.capture.names import first_use, names_used
from dandelion.capture.pieces import Pieces
from dandelion.capture.sources import Definition, SourceFile, cells, is_cell, refuse, source_file

PIECES_LIMIT = 1000
_ALIASES = (type, GenericAlias, UnionType, NewType, TypeVar)
_HINT = "pass it as an argument, fix it with static={...} or files={...}, or make it in the body"


@dataclass(slots=True)
class Capturing:
    """The state of capturing one function."""

    function: Callable[..., Any]
    code: CodeType
    namespace: dict[str, Any]
    own: SourceFile
    modules: CapturedModules
    pieces: dict[str, Pieces] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    entry: ast.AST | None = None

    # --- definitions --------------------------------------------------------------------------

    def keep_entry(self) -> None:
        found = self.own.definition(self.code)
        if found is None:
            message = (
                f"the source of '{self.code.co_name}' is not at the line that Python remembers"
            )
            hint = "the file has changed since it was loaded; load it again"
            refuse("not-captured", message, self.own.name, self.code.co_firstlineno, 1, hint)
        if isinstance(found, ast.AsyncFunctionDef):
            where = self.own.name, found.lineno, found.col_offset + 1
            refuse("async-entry", f"function '{found.name}' must not be async", *where)
        for name in self.code.co_freevars:
            where = self.own.name, *first_use(found, name)
            message = f"'{self.code.co_name}' uses '{name}', a variable of the function around it"
            refuse("not-captured", message, *where, "make it a parameter, or a name of the module")
        self.done.add(found.name)
        self.entry = found
        self.keep_definition(self.own, found)

    def keep_definition(self, file: SourceFile, node: Definition) -> None:
        roles = self.modules.roles
        kept = [d for d in node.decorator_list if roles.of(d, self.namespace) == "keep"]
        first = min([node.lineno, *(d.lineno for d in kept)])
        lines = [line.rstrip("\n") for line in file.lines[first - 1 : node.end_lineno]]
        for decorator in node.decorator_list:
            if decorator not in kept and decorator.lineno >= first:
                for at in range(decorator.lineno, (decorator.end_lineno or 0) + 1):
                    lines[at - first] = ""
        text = "\n".join(lines)
        if node.col_offset:  # within a function, or under ``if``
            text, first = "if True:\n" + text, first - 1
        self.keep(file, first, text, node)

    def keep(self, file: SourceFile | None, line: int, text: str, tree: ast.AST | None) -> None:
        """Keep a text at a line, and what it uses."""
        name = file.name if file is not None else ""
        pieces = self.pieces.setdefault(name, Pieces(file))
        texts = pieces.at.setdefault(max(line, 1), [])
        if text in texts:
            return
        texts.append(text)
        if len(self.done) > PIECES_LIMIT:
            message = f"'{self.code.co_name}' uses more than {PIECES_LIMIT} names of its module"
            refuse("not-captured", message, self.own.name, self.code.co_firstlineno, 1)
        if tree is None or file is None:
            return
        used = sorted(names_used(text, tree))
        self.declare(file, tree)
        for name in used:
            self.need(name, file, tree)

    def declare(self, file: SourceFile, tree: ast.AST) -> None:
        """Note the modules that a definition imports or reaches as attributes of modules."""
        here, is_package = self.module_name()
        for module, line, column, optional in imported(tree, here, is_package):
            self.modules.add(module, (file.name, line, column), optional)
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute):
                self.declare_attribute(node)

    def declare_attribute(self, node: ast.Attribute) -> object:
        """Note ``numpy.random`` for an expression ``np.random.x``."""
        if isinstance(node.value, ast.Attribute):
            owner = self.declare_attribute(node.value)
        else:
            owner = self.namespace.get(node.value.id) if isinstance(node.value, ast.Name) else None
        if not isinstance(owner, ModuleType):
            return None
        found = getattr(owner, node.attr, None)
        if isinstance(found, ModuleType) and found.__name__ == f"{owner.__name__}.{node.attr}":
            if self.modules.is_installed(found.__name__):
                self.modules.uses.add(found.__name__)
            return found
        return None

    # --- names --------------------------------------------------------------------------------

    def need(self, name: str, file: SourceFile, tree: ast.AST) -> None:
        """Keep what a name of the module means."""
        if name in self.done or (name.startswith("__") and name.endswith("__")):
            return
        self.done.add(name)
        where = file.name, *first_use(tree, name)
        if name not in self.namespace:
            if not hasattr(builtins, name):
                message = f"'{name}' is not defined in the module of '{self.code.co_name}'"
                refuse("not-captured", message, *where, "define or import it before registration")
            return
        value = self.namespace[name]
        found = self.binding(name)
        if isinstance(value, ModuleType):
            self.keep_module(name, value, found, where)
            return
        if found is None:
            if not self.keep_from_star(name, value):
                self.keep_constant(name, value, None, 1, where)
            return
        home, statement = found
        if isinstance(statement, Definition):
            roles = self.modules.roles
            if any(roles.of(d, self.namespace) == "leave out" for d in statement.decorator_list):
                message = f"'{name}' is a composition, which a function cannot apply"
                refuse("not-captured", message, *where, "apply both in a composition")
            self.keep_definition(home, statement)
        elif isinstance(statement, ast.ImportFrom):
            self.keep_from(name, home, statement)
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            self.keep_assigned(name, value, home, statement, where)
        else:
            self.keep_constant(name, value, home, statement.lineno, where)

    def binding(self, name: str) -> tuple[SourceFile, ast.stmt] | None:
        """Find the last statement that binds a name, in the function's file or another cell."""
        found = self.own.bindings(name)
        if found:
            return self.own, found[-1]
        for cell in reversed(cells() if is_cell(self.own.name) else []):
            file = source_file(cell)
            if file is not None and (found := file.bindings(name)):
                return file, found[-1]
        return self.elsewhere(self.namespace[name])

    def elsewhere(self, value: object) -> tuple[SourceFile, ast.stmt] | None:
        """Find a function that was put into this module by executing another file in it."""
        plain = inspect.unwrap(value) if callable(value) else None
        if not isinstance(plain, FunctionType) or plain.__globals__ is not self.namespace:
            return None
        file = source_file(plain.__code__.co_filename)
        found = file.definition(plain.__code__) if file is not None else None
        return None if file is None or found is None else (file, found)

    def keep_module(
        self,
        name: str,
        value: ModuleType,
        found: tuple[SourceFile, ast.stmt] | None,
        where: tuple[str, int, int],
    ) -> None:
        home = found[0] if found is not None else None
        kept = False
        for statement in home.bindings(name) if home is not None else ():
            if isinstance(statement, ast.Import):
                for alias in statement.names:
                    if (alias.asname or alias.name.partition(".")[0]) == name:
                        self.modules.add(alias.name, where)
                        asname = f" as {alias.asname}" if alias.asname else ""
                        text = f"import {alias.name}{asname}"
                        self.keep(home, statement.lineno, text, None)
                        kept = True
            elif isinstance(statement, ast.ImportFrom) and home is not None:
                self.keep_from(name, home, statement)
                kept = True
        if not kept:
            self.modules.add(value.__name__, where)
            self.keep(None, 1, f"import {value.__name__} as {name}", None)

    def keep_from(self, name: str, home: SourceFile, statement: ast.ImportFrom) -> None:
        here, is_package = self.module_name()
        base = absolute(statement, here, is_package)
        where = home.name, statement.lineno, statement.col_offset + 1
        for alias in statement.names:
            if (alias.asname or alias.name) != name:
                continue
            member = f"{base}.{alias.name}"
            self.modules.add(base, where)
            if is_module(member) and isinstance(self.namespace.get(name), ModuleType):
                self.modules.add(member, where)
            asname = f" as {alias.asname}" if alias.asname else ""
            text = f"from {base} import {alias.name}{asname}"
            self.keep(home, statement.lineno, text, None)

    def keep_from_star(self, name: str, value: object) -> bool:
        """Keep a name that came with ``from module import *``."""
        for statement in self.own.bindings("*"):
            assert isinstance(statement, ast.ImportFrom)
            base = absolute(statement, *self.module_name())
            module = sys.modules.get(base)
            if module is not None and getattr(module, name, _nothing) is value:
                self.modules.add(base, (self.own.name, statement.lineno, 1))
                self.keep(self.own, statement.lineno, f"from {base} import {name}", None)
                return True
        return False

    def module_name(self) -> tuple[str, bool]:
        """Return the name of the function's module, and whether it is a package."""
        package = self.namespace.get("__package__") or ""
        name = self.namespace.get("__name__") or ""
        if name == "__main__" and package:
            name = f"{package}.__main__"
        return name, "__path__" in self.namespace

    def keep_assigned(
        self,
        name: str,
        value: object,
        home: SourceFile,
        statement: ast.Assign | ast.AnnAssign,
        where: tuple[str, int, int],
    ) -> None:
        """Keep an assignment as it is written if it gives the value, else write the value."""
        targets = [statement.target] if isinstance(statement, ast.AnnAssign) else statement.targets
        single = len(targets) == 1 and isinstance(targets[0], ast.Name)
        written = statement.value
        if single and written is not None and self.is_as_written(written, value):
            text = ast.get_source_segment("".join(home.lines), statement) or ""
            self.keep(home, statement.lineno, text, statement)
            return
        wrapped = inspect.unwrap(value) if callable(value) else None
        if isinstance(wrapped, FunctionType) and self.namespace.get(wrapped.__name__) is not value:
            original = wrapped.__name__  # as in ``f = dd.function(g)``, or ``f = g``
            if inspect.unwrap(self.namespace.get(original) or _nothing) is wrapped:
                self.need(original, home, statement)
                self.keep(home, statement.lineno, f"{name} = {original}", None)
                return
        self.keep_constant(name, value, home, statement.lineno, where)

    def is_as_written(self, written: ast.expr, value: object) -> bool:
        if isinstance(written, ast.Name):
            return self.namespace.get(written.id) is value
        if isinstance(written, ast.Lambda):
            code = getattr(value, "__code__", None)
            return code is not None and code.co_firstlineno == written.lineno
        if isinstance(value, _ALIASES):
            return isinstance(value, type) is isinstance(written, ast.Call) or not isinstance(
                value, type
            )
        try:
            literal = ast.literal_eval(written)
            return type(literal) is type(value) and _same(literal, value)
        except (ValueError, TypeError, SyntaxError, RecursionError):
            return False

    def keep_constant(
        self,
        name: str,
        value: object,
        home: SourceFile | None,
        line: int,
        where: tuple[str, int, int],
    ) -> None:
        try:
            text = constant_text(value, self.modules.is_installed)
        except NotExact as reason:
            message = f"'{name}' is a {_kind(value)}, which cannot be captured: {reason}"
            refuse("not-captured", message, *where, _HINT)
        self.keep(home, line, f"{name} = {text}", None)


def _nothing() -> None:
    """Stand for a name that is not there."""


def _same(one: object, other: object) -> bool:
    """Compare literals with their types, so that 1, 1.0 and True differ."""
    return one == other and repr(one) == repr(other)


def _kind(value: object) -> str:
    return (
        type(value).__qualname__ if not isinstance(value, type) else f"class {value.__qualname__}"
    )
