"""Advice on the most frequent syntax mistakes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lark import Token

from dandelion.dataflow.graph import Sharding
from dandelion.dataflow.syntax_words import END, KEYWORDS, printable

FORM = "an application is 'Function(input = all set) => (set = output);'"
FEEDING = "say which input is fed with which output, as in 'feeding (input = output)'"
CLAUSES = ("BY", "REPEAT", "ATTEMPTS", "CATCH")
"""First words of the clauses of an application, in their order."""
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
    if mistake.accepted == {"NUMBER"} and mistake.before == "attempts":
        return "say how often an instance may be run, as in 'attempts 3'"
    if mistake.accepted == {"NUMBER"}:
        return "say how many iterations there may be, as in 'repeat 10 feeding (input = output)'"
    return FEEDING if mistake.accepted == {"UNTIL", "FEEDING"} else ""


def _failures(mistake: SyntaxMistake) -> str:
    """Advise on what follows `attempts` and `catch`."""
    if mistake.accepted == {"NUMBER", "DECIMAL"}:
        return "say how many seconds to wait before the second attempt, as in 'backoff 0.5'"
    if mistake.accepted == {"LPAR"} and mistake.since and mistake.since[-1].type == "ON":
        kind = printable(mistake.token) if mistake.is_word else "RequestFailed"
        return f"write kinds of errors in brackets, as in 'on ({kind})'"
    if mistake.since and mistake.since[-1].type == "CATCH" and "WORD" in mistake.accepted:
        return "name the errors set, as in 'catch errors'"
    return ""


def _order(mistake: SyntaxMistake) -> str:
    """Advise on a clause that is there twice, or after one that it comes before."""
    kind, before = mistake.token.type, [token.type for token in mistake.since]
    if "SEMICOLON" not in mistake.accepted or "_ARROW" not in before:
        return ""
    if kind == "ON" and "BACKOFF" in before:
        return "write 'on' before 'backoff', as in 'attempts 3 on (RequestFailed) backoff 0.5'"
    if kind not in CLAUSES:
        return ""
    if kind in before[before.index("_ARROW") :]:
        return f"an application has one clause '{mistake.token}'"
    return "clauses have the order 'by', 'repeat', 'attempts', 'catch'"


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
    _failures,
    _order,
    _end,
    _brackets,
    _outputs,
)
