"""Parses, checks and compiles Python sources, inside a sandbox.

A parser is a large program that reads text from unknown authors: some short texts keep CPython's
compiler busy for seconds and take gigabytes. So `examine` runs as the function of a sandbox, with a
sandbox's limits, and never in the node. It runs none of the code. It walks the syntax tree without
recursion, since expressions may be nested deeply.

Its answer is untrusted. A source that takes over the sandbox can forge the answer for all sources
that are examined with it; these come from the same registration. Code is returned only for a source
that was examined alone. Forging it gains nothing: it is loaded only in that function's sandboxes.
"""

from __future__ import annotations
import __future__

import _imp
import ast
import marshal
import resource
import sys
import warnings
from collections.abc import Iterable, Iterator
from typing import TypeGuard

import msgspec

from dandelion.data import ItemSet
from dandelion.errors import Problem, nearest

from . import modules
from .wire import ProgramFile

CODE_LIMIT_BYTES = 16 * 1024 * 1024
MEMORY_LIMIT_BYTES = 512 * 1024 * 1024
_PROBLEM_LIMIT = 100
_TEXT_LIMIT = 500
_LINE_LIMIT = 160
_UNNAMED = "\ud800"
"""The file name of a source, as given to CPython. CPython opens the named file to show a line of
it, which a sandbox must not do; this name cannot be encoded, so CPython does not try."""

_OWN_FRAMES = 50
"""Stack frames here that CPython would not have if it compiled the source as its main program."""

_Definition = ast.FunctionDef | ast.AsyncFunctionDef


class Question(msgspec.Struct, array_like=True, frozen=True):
    """What a source is checked against.

    Attributes:
        filename: name of the source in problems and tracebacks.
        entry: name of the function to call.
        inputs: names of the input sets.
        imports: declared modules.
        files: further sources, which follow the main one.
        captured: annotations are not evaluated, since names in them may not have been captured.
    """

    filename: str
    entry: str
    inputs: tuple[str, ...]
    imports: tuple[str, ...]
    files: tuple[ProgramFile, ...] = ()
    captured: bool = False


_questions = msgspec.msgpack.Decoder(list[Question])
_encoder = msgspec.msgpack.Encoder()


def examine(questions: ItemSet, sources: ItemSet) -> dict[str, bytes]:
    """Examine sources, one for each question.

    Returns:
        ``problems``: a record, the list of problems of each source. ``code``: the marshalled code
        of a single source, if it compiles.

    Raises:
        MemoryError: a source needs more than the sandbox has.
    """
    warnings.simplefilter("ignore")  # the compiler may warn of each of a million tokens
    sys.setrecursionlimit(sys.getrecursionlimit() + _OWN_FRAMES)
    requested = _questions.decode(questions.bytes())
    texts = iter(sources)
    found = [
        _examined_all(question, [next(texts).bytes() for _ in range(1 + len(question.files))])
        for question in requested
    ]
    shown = [[_clipped(p) for p in problems[:_PROBLEM_LIMIT]] for problems, _ in found]
    code = found[0][1] if len(found) == 1 else b""
    return {"problems": _encoder.encode(shown), "code": code}


def _examined_all(question: Question, sources: list[bytes]) -> tuple[list[Problem], bytes]:
    """Examine the main source and the files of a function; their code is a tuple."""
    if not question.files:
        return _examined(question, sources[0])
    names = [question.filename, *(file.filename for file in question.files)]
    problems: list[Problem] = []
    codes = []
    for at, (name, source) in enumerate(zip(names, sources, strict=True)):
        asked = msgspec.structs.replace(question, filename=name)
        found, code = _examined(asked, source, is_main=at == 0)
        problems += found
        codes.append(code)
    if problems or sum(map(len, codes)) > CODE_LIMIT_BYTES:
        return problems or [_too_much(question.filename, sum(map(len, codes)))], b""
    return [], marshal.dumps(tuple(map(marshal.loads, codes)))


def _examined(
    question: Question, source: bytes, is_main: bool = True
) -> tuple[list[Problem], bytes]:
    name = question.filename
    flags = __future__.annotations.compiler_flag if question.captured else 0
    try:
        compiled = compile(source, _UNNAMED, "exec", flags, dont_inherit=True)
        _imp._fix_co_filename(compiled, name)  # type: ignore[attr-defined]  # as importlib does
        code = marshal.dumps(compiled)
    except SyntaxError as error:
        return [_syntax_problem(name, error)], b""
    except MemoryError as error:
        return [Problem("no-code", _exhausted(error), name)], b""
    except ValueError as error:  # null bytes, before Python 3.11.4
        return [Problem("syntax", str(error), name)], b""
    except Exception as error:  # the compiler's exceptions are not documented
        reason = str(error) or type(error).__name__
        return [Problem("no-code", f"the source cannot be compiled: {reason}", name)], b""
    if len(code) > CODE_LIMIT_BYTES:
        return [_too_much(name, len(code))], b""
    try:
        tree = ast.parse(source, _UNNAMED)
    except RecursionError:  # a tree of objects may be less deep than the nesting that compiles
        return [], code
    entry = _entry(question, tree) if is_main else ()
    return [*entry, *_undeclared(question, tree)], code


def _too_much(name: str, size: int) -> Problem:
    message, limit = "the compiled code is too large", f"at most {CODE_LIMIT_BYTES} bytes"
    return Problem("too-much-code", message, name, expected=limit, found=str(size))


def _exhausted(error: MemoryError) -> str:
    """Describe which of its two limits the compiler reached: the parser's stack, or memory."""
    used_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if str(error) or used_bytes < MEMORY_LIMIT_BYTES // 2:
        return "the source cannot be compiled: it is nested too deeply"
    return f"compiling the source takes more than {MEMORY_LIMIT_BYTES >> 20} MiB"


def _clipped(problem: Problem) -> Problem:
    """Bound the texts, and make them valid Unicode."""
    texts = {
        name: text[:_TEXT_LIMIT].encode("utf-8", "replace").decode()
        for name, text in msgspec.structs.asdict(problem).items()
        if isinstance(text, str)
    }
    return msgspec.structs.replace(problem, **texts)


def _syntax_problem(name: str, error: SyntaxError) -> Problem:
    line, column = error.lineno or 0, error.offset or 0
    text = (error.text or "").rstrip("\n")
    start = max(0, column - _LINE_LIMIT // 2) if len(text) > _LINE_LIMIT else 0
    shown = text[start : start + _LINE_LIMIT]
    caret = " " * max(0, min(column - 1 - start, _LINE_LIMIT)) + "^"
    return Problem(
        "syntax",
        error.msg,
        f"{name}:{line}:{column}",
        line,
        column,
        excerpt=f"{shown}\n{caret}" if shown else "",
    )


def _at(question: Question, node: ast.stmt | ast.expr | ast.arg) -> tuple[str, int, int]:
    line, column = node.lineno, node.col_offset + 1
    return f"{question.filename}:{line}:{column}", line, column


def _entry(question: Question, tree: ast.Module) -> Iterator[Problem]:
    entry = question.entry
    defined = {n.name: n for n in tree.body if isinstance(n, _Definition | ast.ClassDef)}
    found = defined.get(entry)
    if found is None:
        if entry not in _bound_names(tree):
            yield Problem(
                "no-entry",
                f"the code does not define a function '{entry}'",
                question.filename,
                nearest=nearest(entry, defined) or "",
            )
        return
    where = _at(question, found)
    if isinstance(found, ast.AsyncFunctionDef):
        yield Problem("async-entry", "the function must not be async", *where)
    elif isinstance(found, ast.FunctionDef) and not found.decorator_list:
        yield from _parameters(question, found, where)


def _bound_names(tree: ast.Module) -> set[str]:
    """Names that the module may bind other than by ``def``; these are not checked further."""
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
    question: Question, found: ast.FunctionDef, where: tuple[str, int, int]
) -> Iterator[Problem]:
    arguments = found.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    inputs = question.inputs
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
                else f"parameter '{argument.arg}' is not an input set",
                *_at(question, argument),
                expected=", ".join(inputs) or "no parameters",
                nearest=nearest(argument.arg, inputs) or "",
            )


def _required(arguments: ast.arguments) -> list[ast.arg]:
    positional = [*arguments.posonlyargs, *arguments.args]
    required = positional[: len(positional) - len(arguments.defaults)]
    keyword = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return required + [argument for argument, default in keyword if default is None]


def _undeclared(question: Question, tree: ast.Module) -> Iterator[Problem]:
    """Find imports that must fail in the sandbox. An import inside ``try`` may fail on purpose."""
    own = {file.name for file in question.files if file.kind != "part"}
    for node in _statements(tree):
        named: list[tuple[str, list[str]]] = []
        if isinstance(node, ast.Import):
            named = [(alias.name, []) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            named = [(node.module, [alias.name for alias in node.names])]
        for module, members in named:
            if module in own:
                continue
            for name in modules.missing(module, members, question.imports):
                yield Problem(
                    "undeclared-import",
                    f"module '{name}' is not declared, so the sandbox does not have it",
                    *_at(question, node),
                    expected=f"imports=['{name}'] with the function",
                )


def _statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield all statements in order, except those inside ``try``; expressions contain none."""
    ahead: list[ast.AST] = [tree]
    while ahead:
        node = ahead.pop()
        if isinstance(node, ast.Try | ast.TryStar):
            continue
        if isinstance(node, ast.stmt):
            yield node
        ahead += reversed(node.orelse if _is_type_checking(node) else list(_blocks(node)))


def _is_type_checking(node: ast.AST) -> TypeGuard[ast.If]:
    """Tell whether the body of a statement is for type checkers, and never executed."""
    if not isinstance(node, ast.If):
        return False
    test = node.test
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", "")
    return name == "TYPE_CHECKING"


def _blocks(node: ast.AST) -> Iterable[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.match_case):
            yield child
