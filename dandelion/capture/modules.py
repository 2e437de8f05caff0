"""Modules that a captured function imports: those of the node, and those of the user's project.

A module of the user's project is one whose source lies outside of the folders where packages are
installed. Its whole source is taken, with that of its packages and of the modules of the project
that it imports. Decorators of this library are removed, since a sandbox does not have it.
"""

from __future__ import annotations

import ast
import importlib.util
import site
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from pathlib import Path

from dandelion.capture.sources import Definition, SourceFile, refuse, source_file
from dandelion.errors import InvalidInput

FILES_LIMIT = 64
BYTES_LIMIT = 1024 * 1024
_SCHEMES = ("stdlib", "platstdlib", "purelib", "platlib")


@dataclass(slots=True)
class Roles:
    """What the decorators of this library are, by their objects.

    Attributes:
        decorators: a function below one of these is taken without it.
        descriptions: a function below one of these is left out.
    """

    decorators: tuple[object, ...] = ()
    descriptions: tuple[object, ...] = ()

    def of(self, decorator: ast.expr, namespace: dict[str, object]) -> str:
        """Return ``drop``, ``leave out`` or ``keep`` for an expression after ``@``."""
        found = resolve(decorator, namespace)
        if any(found is one for one in self.decorators):
            return "drop"
        return "leave out" if any(found is one for one in self.descriptions) else "keep"


def resolve(expression: ast.expr, namespace: dict[str, object]) -> object:
    """Find the object that a dotted name means, also if it is called; None for all else."""
    if isinstance(expression, ast.Call):
        return resolve(expression.func, namespace)
    if isinstance(expression, ast.Name):
        return namespace.get(expression.id)
    if isinstance(expression, ast.Attribute):
        owner = resolve(expression.value, namespace)
        return getattr(owner, expression.attr, None) if owner is not None else None
    return None


@dataclass(slots=True)
class CapturedModules:
    """Collects modules.

    Attributes:
        roles: the decorators of this library.
        included: names of modules whose source is taken wherever they lie.
        files: sources by the name of the file in the code object, see `files_name`.
        uses: installed modules that are imported.
    """

    roles: Roles
    included: frozenset[str] = frozenset()
    files: dict[str, str] = field(default_factory=dict)
    uses: set[str] = field(default_factory=set)
    _seen: set[str] = field(default_factory=set)

    def add(self, name: str, where: tuple[str, int, int], optional: bool = False) -> None:
        """Add a module that is imported at a place of the program.

        Raises:
            InvalidFunction: it has no source, or there are too many or too large modules.
        """
        if name in self._seen:
            return
        self._seen.add(name)
        if self.is_installed(name):
            if not optional or _spec(name) is not None:
                self.uses.add(name)
            return
        spec = _spec(name)
        if spec is None:
            if optional:
                return
            hint = "install it, or correct the name"
            refuse("not-captured", f"module '{name}' is not found", *where, hint)
        package, _, _ = name.rpartition(".")
        if package:
            self.add(package, where)
        self._take(name, spec, where)

    def _take(self, name: str, spec: ModuleSpec, where: tuple[str, int, int]) -> None:
        is_package = spec.submodule_search_locations is not None
        kind = "package" if is_package else "module"
        if spec.origin is None:  # a folder without __init__.py
            self.files[f"{kind}:{name}"] = ""
            return
        file = source_file(spec.origin)
        if file is None:
            content = Path(spec.origin).read_bytes() if Path(spec.origin).is_file() else None
            if content is None or content.strip():
                refuse("not-captured", f"module '{name}' has no source that can be read", *where)
            self.files[f"{kind}:{name}"] = ""
            return
        self.files[f"{kind}:{name}"] = self._text(name, file)
        if len(self.files) > FILES_LIMIT or sum(map(len, self.files.values())) > BYTES_LIMIT:
            message = f"the imported modules of the project are too many or too large at '{name}'"
            hint = f"at most {FILES_LIMIT} modules and {BYTES_LIMIT} bytes are taken; import less"
            refuse("not-captured", message, *where, hint)
        for module, line, column, optional in imported(file.tree, name, is_package):
            self.add(module, (file.name, line, column), optional)

    def _text(self, name: str, file: SourceFile) -> str:
        """Return a module's source without decorators of this library."""
        namespace = vars(sys.modules[name]) if name in sys.modules else {}
        lines = list(file.lines)
        for node in file.tree.body:
            if not isinstance(node, Definition):
                continue
            for decorator in node.decorator_list:
                role = self.roles.of(decorator, namespace)
                if role == "leave out":
                    _blank(lines, node.decorator_list[0].lineno, node.end_lineno)
                elif role == "drop":
                    _blank(lines, decorator.lineno, decorator.end_lineno)
        return "".join(lines)

    def is_installed(self, name: str) -> bool:
        """Tell whether a module is one that nodes have, and not a module of the user's project."""
        top = name.partition(".")[0]
        if name in self.included or top in self.included:
            return False
        if top in sys.stdlib_module_names or top in ("dandelion", "__main__"):
            return True
        spec = _spec(top)
        origin = _origin(spec)
        if origin is None:
            return spec is None
        if not origin.endswith(".py"):
            return spec is not None and spec.submodule_search_locations is None
        path = Path(origin)
        return "site-packages" in path.parts or any(path.is_relative_to(f) for f in _installed())


def _origin(spec: ModuleSpec | None) -> str | None:
    if spec is None:
        return None
    if spec.origin is not None:
        return spec.origin
    locations = list(spec.submodule_search_locations or ())
    return f"{locations[0]}/__init__.py" if locations else None


def _installed() -> list[str]:
    paths = [sysconfig.get_paths()[scheme] for scheme in _SCHEMES]
    return [*paths, *site.getsitepackages(), site.getusersitepackages()]


def _spec(name: str) -> ModuleSpec | None:
    loaded = sys.modules.get(name)
    if loaded is not None and loaded.__spec__ is not None:
        return loaded.__spec__
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None


def is_module(name: str) -> bool:
    """Tell whether a dotted name is a module that can be imported here."""
    return _spec(name) is not None


def _blank(lines: list[str], first: int, last: int | None) -> None:
    for at in range(first - 1, last or first):
        lines[at] = "\n"


def absolute(node: ast.ImportFrom, module: str, is_package: bool) -> str:
    """Return the name after ``from``, for a statement in a module.

    Raises:
        InvalidInput: a relative import leaves the package.
    """
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    drop = node.level - (1 if is_package else 0)
    if drop >= len(parts) and drop > 0:
        message = f"a relative import of '{module}' leaves its package"
        raise InvalidInput("import", message, "import the module by its full name")
    base = parts[: len(parts) - drop] if drop else parts
    return ".".join([*base, *([node.module] if node.module else [])])


def imported(tree: ast.AST, module: str, is_package: bool) -> Iterator[tuple[str, int, int, bool]]:
    """Yield the modules that the statements of a tree import.

    Yields:
        Name, line, column, and whether the import may fail, since it is within ``try``.
    """
    for node, optional in _walk(tree, False):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno, node.col_offset + 1, optional
        elif isinstance(node, ast.ImportFrom):
            base = absolute(node, module, is_package)
            if base == "__future__":
                continue
            yield base, node.lineno, node.col_offset + 1, optional
            for alias in node.names:
                member = f"{base}.{alias.name}"
                if alias.name != "*" and is_module(member):
                    yield member, node.lineno, node.col_offset + 1, optional


def _walk(node: ast.AST, optional: bool) -> Iterator[tuple[ast.AST, bool]]:
    """Walk over statements; what is under ``if TYPE_CHECKING`` is never executed."""
    yield node, optional
    children: list[ast.AST] = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.If) and _is_type_checking(node.test):
        children = list(node.orelse)
    within = optional or isinstance(node, ast.Try | ast.TryStar)
    for child in children:
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield from _walk(child, within)


def _is_type_checking(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", "")
    return name == "TYPE_CHECKING"
