"""Reading texts of the composition language with lark, which makes its tables on first use.

Only `dandelion.dataflow.language` uses this module, and not before the first text: loading lark
takes longer than most other parts of a node.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any, TypeAlias

from lark import Lark, Token, Transformer
from lark.exceptions import UnexpectedInput

from dandelion.dataflow.graph import (
    Application,
    AttemptsClause,
    Binding,
    CatchClause,
    Composition,
    CompositionModule,
    Declaration,
    Feed,
    Join,
    RepeatClause,
    Return,
    Sharding,
    SourcePosition,
    Strategy,
)
from dandelion.dataflow.syntax import diagnose
from dandelion.dataflow.syntax_words import parser
from dandelion.errors import InvalidComposition

Children: TypeAlias = list[Any]
"""Arguments of a rule: tokens and results of inner rules. Only the grammar defines their types."""


class _Now(threading.local):
    """The file that this thread reads."""

    file = ""


_now = _Now()


@contextlib.contextmanager
def _reading(file: str) -> Iterator[None]:
    before, _now.file = _now.file, file
    try:
        yield
    finally:
        _now.file = before


@functools.cache
def _reader() -> Lark:
    return parser(_Builder())


def read(
    text: str, file: str, start: str, place: SourcePosition | None = None, shown: str = ""
) -> Any:
    """Read a text, and give what the builder makes of its first rule.

    Args:
        text: what is read.
        file: its name, for places and messages.
        start: name of the first rule.
        place: of the text in another one, for messages.
        shown: what messages quote in place of the text, if that is not the same.

    Raises:
        InvalidComposition: the text does not fit the grammar.
    """
    try:
        with _reading(file):
            return _reader().parse(text, start=start)
    except UnexpectedInput:
        raise InvalidComposition(tuple(diagnose(shown or text, file, start, place))) from None


class _Builder(Transformer[Token, Any]):
    """Builds records rule by rule, innermost first, while the text is read.

    So there is no tree of the whole text. For a long text it would have a million objects; freeing
    them, or a garbage collection, would stop all threads of the program.
    """

    def _place(self, token: Token) -> SourcePosition:
        return SourcePosition(token.line or 0, token.column or 0, _now.file)

    def module(self, parts: Children) -> CompositionModule:
        declarations = tuple(p for p in parts if isinstance(p, Declaration))
        compositions = tuple(p for p in parts if isinstance(p, Composition))
        return CompositionModule(declarations, compositions)

    def declaration(self, parts: Children) -> Declaration:
        name, inputs, outputs = parts[1]
        return Declaration(str(name), inputs, outputs, self._place(name))

    def composition(self, parts: Children) -> Composition:
        name, inputs, outputs = parts[1]
        applications = tuple(parts[2:])
        return Composition(str(name), inputs, outputs, applications, self._place(name))

    def signature(self, parts: Children) -> tuple[Token, tuple[str, ...], tuple[str, ...]]:
        name, inputs, outputs = parts
        return name, inputs, outputs

    def names(self, parts: Children) -> tuple[str, ...]:
        return tuple(str(part) for part in parts)

    def application(self, parts: Children) -> Application:
        name, bindings, returns, *clauses = parts
        join = next((c for c in clauses if isinstance(c, Join)), None)
        repeat = next((c for c in clauses if isinstance(c, RepeatClause)), None)
        attempts = next((c for c in clauses if isinstance(c, AttemptsClause)), None)
        catch = next((c for c in clauses if isinstance(c, CatchClause)), None)
        place = self._place(name)
        return Application(str(name), bindings, returns, join, repeat, attempts, catch, place)

    def bindings(self, parts: Children) -> tuple[Binding, ...]:
        return tuple(parts)

    def binding(self, parts: Children) -> Binding:
        parameter, sharding, source = parts[0], parts[-2], parts[-1]
        optional = len(parts) == 4
        return Binding(str(parameter), str(source), sharding, optional, self._place(parameter))

    def sharding(self, parts: Children) -> Sharding:
        return Sharding(str(parts[0]))

    def returns(self, parts: Children) -> tuple[Return, ...]:
        return tuple(parts)

    def result(self, parts: Children) -> Return:
        target, output = parts
        return Return(str(target), str(output), self._place(target))

    def by(self, parts: Children) -> Join:
        order = tuple(str(part) for part in parts[1::2])
        return Join(order, tuple(parts[2::2]), self._place(parts[0]))

    def join(self, parts: Children) -> Strategy:
        return Strategy(str(parts[0]))

    def repeat(self, parts: Children) -> RepeatClause:
        keyword, times, *until, feeds = parts
        place = self._place(keyword)
        return RepeatClause(int(times), str(until[0]) if until else None, feeds, place)

    def attempts(self, parts: Children) -> AttemptsClause:
        keyword, times, *rest = parts
        kinds = next((part for part in rest if isinstance(part, tuple)), ())
        backoff_s = next((part for part in rest if isinstance(part, float)), 0.0)
        return AttemptsClause(int(times), kinds, backoff_s, self._place(keyword))

    def backoff(self, parts: Children) -> float:
        return float(parts[-1])

    def catch(self, parts: Children) -> CatchClause:
        _, target, *kinds = parts
        return CatchClause(str(target), kinds[0] if kinds else (), self._place(target))

    def kinds(self, parts: Children) -> tuple[str, ...]:
        return tuple(str(part) for part in parts)

    def until(self, parts: Children) -> Token:
        name: Token = parts[-1]
        return name

    def feeds(self, parts: Children) -> tuple[Feed, ...]:
        return tuple(parts)

    def feed(self, parts: Children) -> Feed:
        parameter, output = parts
        return Feed(str(parameter), str(output), self._place(parameter))
