"""Names of a module that a piece of its source refers to.

The piece is compiled, with annotations as text, and the names are read from the code objects: so
local variables, parameters, comprehensions and nested functions are told apart as Python does it.
Annotations of functions are not evaluated in a sandbox and do not count. Those of classes do, since
dataclasses and msgspec's structs use them.
"""

from __future__ import annotations
import __future__

import ast
import dis
from collections.abc import Iterator
from types import CodeType

_LOADS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_STORES = frozenset({"STORE_NAME", "STORE_GLOBAL"})


def names_used(text: str, tree: ast.AST) -> set[str]:
    """Return the names of the module, or built-in ones, that a piece of source needs.

    Args:
        text: the piece, as it will be compiled.
        tree: its syntax, for annotations of classes.

    Raises:
        SyntaxError: it does not compile on its own.
    """
    flags = __future__.annotations.compiler_flag
    code = compile(text, "<captured>", "exec", flags, dont_inherit=True)
    return set(_of_code(code)) | set(_of_classes(tree))


def _of_code(code: CodeType) -> Iterator[str]:
    stored: set[str] = set()
    for instruction in dis.get_instructions(code):
        if instruction.opname in _LOADS and instruction.argval not in stored:
            yield str(instruction.argval)
        elif instruction.opname in _STORES:
            stored.add(str(instruction.argval))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _of_code(constant)


def _of_classes(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef):
            continue
        for statement in node.body:
            if isinstance(statement, ast.AnnAssign):
                yield from _of_annotation(statement.annotation)


def _of_annotation(annotation: ast.expr) -> Iterator[str]:
    for node in ast.walk(annotation):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            try:
                yield from _of_annotation(ast.parse(node.value, mode="eval").body)
            except SyntaxError:
                continue


def first_use(tree: ast.AST, name: str) -> tuple[int, int]:
    """Return line and column of the first use of a name; zeros if it is not found."""
    found = [
        (node.lineno, node.col_offset + 1)
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and node.id == name
    ]
    return min(found, default=(0, 0))
