"""Printing compositions: canonical text, and JSON.

``parse(print_module(m)) == m`` and ``from_json(to_json(m)) == m`` for every module that the
language can express. Without `repeat`, `attempts` and `catch` the text also fits the grammar of the
original system: no comments, no commas at the end of lists, no blanks inside the brackets of
declarations.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import msgspec

from dandelion.dataflow.graph import (
    Application,
    AttemptsClause,
    Binding,
    CatchClause,
    Composition,
    CompositionModule,
    Declaration,
    Join,
    RepeatClause,
    Return,
)
from dandelion.errors import InvalidComposition, Problem
from dandelion.errors.misfits import misfit

WIDTH = 100  # columns
INDENT = "    "


def print_module(module: CompositionModule) -> str:
    """Write a module as canonical text: declarations first, then compositions."""
    declarations = "".join(f"{_declaration(d)}\n" for d in module.declarations)
    parts = [declarations] if declarations else []
    parts += [print_composition(composition) for composition in module.compositions]
    return "\n".join(parts)


def print_composition(composition: Composition) -> str:
    """Write one composition as canonical text, without declarations."""
    inputs, outputs = ", ".join(composition.inputs), ", ".join(composition.outputs)
    head = f"composition {composition.name}({inputs}) => ({outputs}) {{\n"
    return head + "".join(_application(a) for a in composition.applications) + "}\n"


def print_binding(binding: Binding) -> str:
    """Write ``parameter = optional each source``."""
    optional = "optional " if binding.optional else ""
    return f"{binding.parameter} = {optional}{binding.sharding.value} {binding.source}"


def print_join(join: Join) -> str:
    """Write ``a inner b left c``, without the ``by``."""
    words = [join.order[0]] if join.order else []
    for strategy, parameter in zip(join.strategies, join.order[1:], strict=False):
        words += [strategy.value, parameter]
    return " ".join(words)


def print_repeat(repeat: RepeatClause) -> str:
    """Write ``repeat 10 until open feeding (x = y)``."""
    return f"{_repeat_head(repeat)} feeding ({', '.join(_feeds(repeat))})"


def print_attempts(attempts: AttemptsClause) -> str:
    """Write ``attempts 3 on (TimedOut) backoff 0.5``."""
    backoff = f" backoff {print_seconds(attempts.backoff_s)}" if attempts.backoff_s else ""
    return f"attempts {attempts.times}{_kinds(attempts.kinds)}{backoff}"


def print_seconds(seconds: float) -> str:
    """Write a number of seconds without an exponent: ``0.5``, ``10``."""
    return f"{Decimal(repr(seconds)):f}".removesuffix(".0")


def print_catch(catch: CatchClause) -> str:
    """Write ``catch failures on (Raised, TimedOut)``."""
    return f"catch {catch.target}{_kinds(catch.kinds)}"


def to_json(module: CompositionModule, *, indent: int = 2) -> str:
    """Write a module as JSON, without positions in the source.

    Args:
        module: the module.
        indent: blanks per level; 0 writes one line.
    """
    bare = _without_places(msgspec.to_builtins(module))
    text = msgspec.json.encode(bare)
    return msgspec.json.format(text, indent=indent).decode()


def from_json(text: str | bytes) -> CompositionModule:
    """Read the JSON of `to_json`.

    Raises:
        InvalidComposition: it is not JSON, or not of that form; the problem's `where` is the path.
    """
    try:
        return msgspec.json.decode(text, type=CompositionModule)
    except (msgspec.DecodeError, UnicodeError) as error:
        path, message = misfit(error)
        problem = Problem("document", message, path or "document")
        raise InvalidComposition((problem,)) from None


def _declaration(declaration: Declaration) -> str:
    inputs, outputs = ", ".join(declaration.inputs), ", ".join(declaration.outputs)
    return f"function {declaration.name}({inputs}) => ({outputs});"


def _application(application: Application) -> str:
    bindings = [print_binding(b) for b in application.bindings]
    returns = [_return(r) for r in application.returns]
    clauses = [f"by {print_join(application.join)}"] if application.join else []
    if application.repeat is not None:
        clauses.append(print_repeat(application.repeat))
    failures = _failure_clauses(application)
    clauses += failures
    head = f"{application.function}({', '.join(bindings)})"
    tail = " ".join([f"=> ({', '.join(returns)})", *clauses])
    line = f"{INDENT}{head} {tail};\n"
    if len(line) <= WIDTH + 1:
        return line
    first, second = f"{INDENT}{head} => ({', '.join(returns)})", f"{INDENT * 2}{' '.join(clauses)};"
    if clauses and max(len(first), len(second)) <= WIDTH:
        return f"{first}\n{second}\n"
    head = f"{application.function}({_broken(bindings)})"
    tail = " ".join([f"=> ({_broken(returns)})", *clauses])
    if _is_wide(tail):
        clauses = clauses[: len(clauses) - len(failures)]
        tail = " ".join([f"=> ({_broken(returns)})", *clauses])
        if application.repeat is not None and _is_wide(tail):
            feeds = _broken(_feeds(application.repeat))
            last = f"{_repeat_head(application.repeat)} feeding ({feeds})"
            tail = " ".join([f"=> ({_broken(returns)})", *clauses[:-1], last])
        tail = f"\n{INDENT * 2}".join([tail, *failures])
    return f"{INDENT}{head} {tail};\n"


def _is_wide(text: str) -> bool:
    return max(map(len, f"{text};".split("\n"))) > WIDTH


def _failure_clauses(application: Application) -> list[str]:
    found = []
    if application.attempts is not None:
        found.append(print_attempts(application.attempts))
    if application.catch is not None:
        found.append(print_catch(application.catch))
    return found


def _kinds(kinds: tuple[str, ...]) -> str:
    return f" on ({', '.join(kinds)})" if kinds else ""


def _broken(parts: list[str]) -> str:
    """Write a list with a line for each part."""
    inner = f"\n{INDENT}{INDENT}"
    return f"{inner}{f',{inner}'.join(parts)}\n{INDENT}" if parts else ""


def _repeat_head(repeat: RepeatClause) -> str:
    return f"repeat {repeat.times}" + (f" until {repeat.until}" if repeat.until else "")


def _feeds(repeat: RepeatClause) -> list[str]:
    return [f"{feed.parameter} = {feed.output}" for feed in repeat.feedback]


def _return(returned: Return) -> str:
    return f"{returned.target} = {returned.output}"


def _without_places(value: Any) -> Any:
    """Drop all fields called ``place`` from the builtins of a record."""
    if isinstance(value, dict):
        return {k: _without_places(v) for k, v in value.items() if k != "place"}
    return [_without_places(v) for v in value] if isinstance(value, (list, tuple)) else value
