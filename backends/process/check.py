"""What can be known of a Python function without running it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder

from dandelion.errors import InvalidFunction, Problem, nearest
from dandelion.function import Function

from . import modules
from .outcome import filename

SOURCE_LIMIT_BYTES = 1024 * 1024
_OPTIONS = ("entry", "imports")
_Definition = ast.FunctionDef | ast.AsyncFunctionDef


def check(function: Function) -> None:
    """Refuse code that could never run: it is parsed, not executed, and nothing is imported.

    Raises:
        InvalidFunction: with all problems, each at ``file:line:column`` where it has a place.
    """
    problems = [*_options(function), *_imports(function)]
    tree = _parse(function, problems)
    if tree is not None:
        problems += _entry(function, tree)
        problems += _undeclared(function, tree)
    if problems:
        raise InvalidFunction(tuple(problems))


def _options(function: Function) -> Iterator[Problem]:
    for name in function.code.options:
        if name not in _OPTIONS:
            yield Problem(
                "unknown-option",
                f"there is no option '{name}'",
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
    """Look a module up as an import would, without importing the packages it lies in."""
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


def _parse(function: Function, problems: list[Problem]) -> ast.Module | None:
    name = filename(function)
    source = bytes(function.main)
    if len(source) > SOURCE_LIMIT_BYTES:
        problems.append(
            Problem(
                "too-long",
                "the source is too long",
                name,
                expected=f"at most {SOURCE_LIMIT_BYTES} bytes",
                found=f"{len(source)}",
            )
        )
        return None
    try:
        tree = ast.parse(source, name)
        compile(source, name, "exec", dont_inherit=True)  # finds what the parser lets pass
    except SyntaxError as error:
        problems.append(_syntax_problem(name, error))
    except (ValueError, RecursionError, MemoryError) as error:
        problems.append(Problem("no-code", f"this cannot be compiled: {error}", name))
    else:
        return tree
    return None


def _syntax_problem(name: str, error: SyntaxError) -> Problem:
    line, column = error.lineno or 0, error.offset or 0
    text = (error.text or "").rstrip("\n")
    caret = " " * max(0, column - 1) + "^"
    return Problem(
        "syntax",
        error.msg,
        f"{name}:{line}:{column}",
        line,
        column,
        excerpt=f"{text}\n{caret}" if text else "",
    )


def _at(function: Function, node: ast.stmt | ast.expr | ast.arg) -> tuple[str, int, int]:
    line, column = node.lineno, node.col_offset + 1
    return f"{filename(function)}:{line}:{column}", line, column


def _entry(function: Function, tree: ast.Module) -> Iterator[Problem]:
    entry = function.code.options.get("entry", function.spec.name)
    defined = {n.name: n for n in tree.body if isinstance(n, _Definition | ast.ClassDef)}
    found = defined.get(entry)
    if found is None:
        if entry not in _bound_names(tree):
            yield Problem(
                "no-entry",
                f"the code does not define a function '{entry}'",
                filename(function),
                nearest=nearest(entry, defined) or "",
            )
        return
    where = _at(function, found)
    if isinstance(found, ast.AsyncFunctionDef):
        yield Problem("async-entry", "the function must not be async", *where)
    elif isinstance(found, ast.FunctionDef) and not found.decorator_list:
        yield from _parameters(function, found, where)


def _bound_names(tree: ast.Module) -> set[str]:
    """Names that the module may bind other than by ``def``; then nothing more can be told."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.alias):
            names.add(node.asname or node.name)
        elif isinstance(node, _Definition):
            names.add(node.name)
    return names


def _parameters(
    function: Function, found: ast.FunctionDef, where: tuple[str, int, int]
) -> Iterator[Problem]:
    arguments = found.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    inputs = function.spec.input_names
    for name in inputs:
        if name not in names and arguments.kwarg is None:
            yield Problem(
                "no-parameter",
                f"function '{found.name}' has no parameter for the input set '{name}'",
                *where,
                nearest=nearest(name, names) or "",
            )
    for argument in _required(arguments):
        if argument.arg not in inputs or argument in arguments.posonlyargs:
            yield Problem(
                "no-input-set",
                f"parameter '{argument.arg}' is positional only"
                if argument in arguments.posonlyargs
                else f"parameter '{argument.arg}' is no input set",
                *_at(function, argument),
                expected=", ".join(inputs) or "no parameters",
                nearest=nearest(argument.arg, inputs) or "",
            )


def _required(arguments: ast.arguments) -> list[ast.arg]:
    positional = [*arguments.posonlyargs, *arguments.args]
    required = positional[: len(positional) - len(arguments.defaults)]
    keyword = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return required + [argument for argument, default in keyword if default is None]


def _undeclared(function: Function, tree: ast.Module) -> Iterator[Problem]:
    """Find imports that must fail in the sandbox. One inside ``try`` may be meant to."""
    imports = modules.declared(function.code.options.get("imports", ""))
    for node in _statements(tree):
        named: list[tuple[str, list[str]]] = []
        if isinstance(node, ast.Import):
            named = [(alias.name, []) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            named = [(node.module, [alias.name for alias in node.names])]
        for module, members in named:
            for name in modules.missing(module, members, imports):
                yield Problem(
                    "undeclared-import",
                    f"module '{name}' is not declared, so the sandbox does not have it",
                    *_at(function, node),
                    expected=f"imports=['{name}'] with the function",
                )


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Try):
            continue
        if isinstance(child, ast.stmt):
            yield child
        yield from _statements(child)
