"""Advice on the most frequent syntax mistakes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lark import Token

from dandelion.dataflow.graph import Sharding
from dandelion.dataflow.syntax_words import END, KEYWORDS, printable

FORM = "an application is 'Function(input = all set) => (set = output);'"
FEEDING = "say which input is fed with which output, as in 'feeding (input = output)'"
SHARDINGS = frozenset(sharding.value for sharding in Sharding)


@dataclass(frozen=True, slots=True)
class SyntaxMistake:
    """A token that does not fit.

    Attributes:
        token: the token.
        accepted: terminals that would fit in its place.
        since: the tokens of the statement so far.
    """

    token: Token
    accepted: set[str]
    since: Sequence[Token]

    @property
    def is_word(self) -> bool:
        """The token could be a name."""
        return self.token.isidentifier()

    @property
    def in_head(self) -> bool:
        """It is in a declaration, or before the body of a composition."""
        return bool(self.since) and self.since[0].type in KEYWORDS

    @property
    def before(self) -> str:
        """The word or sign before it, for messages."""
        return printable(self.since[-1]) if self.since else ""


def advice(mistake: SyntaxMistake) -> str:
    """Return advice on a token that does not fit, or an empty text."""
    return next((text for rule in _RULES if (text := rule(mistake))), "")


def _sharding(mistake: SyntaxMistake) -> str:
    if "ALL" not in mistake.accepted or "WORD" in mistake.accepted:
        return ""
    if not mistake.is_word:
        return "a binding is 'input = all set', or another sharding than 'all'"
    name = printable(mistake.token)
    return f"say how its instances share the items; with 'all {name}' each gets the whole set"


def _equals(mistake: SyntaxMistake) -> str:
    """Advise on a single name where ``left = right`` is needed."""
    if mistake.accepted != {"EQUAL"}:
        return ""
    kinds = [token.type for token in mistake.since]
    name = mistake.before
    if "NUMBER" in kinds and "FEEDING" in kinds[kinds.index("NUMBER") :]:
        return f"say which output feeds '{name}', as in '{name} = output'"
    if "_ARROW" in kinds:
        return f"say which output of the function '{name}' is, as in '{name} = output'"
    if mistake.is_word and name in SHARDINGS:
        return f"the input set of the function comes first, as in 'input = {name} {mistake.token}'"
    return f"say which set '{name}' is bound to, as in '{name} = all set'"


def _loop(mistake: SyntaxMistake) -> str:
    if mistake.accepted == {"NUMBER"}:
        return "say how many iterations there may be, as in 'repeat 10 feeding (input = output)'"
    return FEEDING if mistake.accepted == {"UNTIL", "FEEDING"} else ""


def _end(mistake: SyntaxMistake) -> str:
    if mistake.token.type == END and "RBRACE" in mistake.accepted:
        return "its '}' is missing"
    if "SEMICOLON" not in mistake.accepted or not mistake.since:
        return ""
    line = mistake.since[-1].line or 0
    starts_line = (mistake.token.line or 0) > line or mistake.token.type == END
    return f"a ';' is missing after '{mistake.before}' in line {line}" if starts_line else ""


def _brackets(mistake: SyntaxMistake) -> str:
    if mistake.accepted != {"LPAR"} or not mistake.since:
        return ""
    if mistake.is_word and (mistake.in_head or mistake.since[-1].type == "_ARROW"):
        return f"write sets in brackets, as in '({printable(mistake.token)})'"
    return "" if mistake.in_head else FORM


def _outputs(mistake: SyntaxMistake) -> str:
    if mistake.accepted != {"_ARROW"} or mistake.in_head:
        return ""
    return "name its outputs, as in '=> (set = output)', or drop them with '=> ()'"


_RULES: tuple[Callable[[SyntaxMistake], str], ...] = (
    _sharding,
    _equals,
    _loop,
    _end,
    _brackets,
    _outputs,
)
