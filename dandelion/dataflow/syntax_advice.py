"""Advice on the slips that are made most: what a person would say who looks over the shoulder."""

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
class Slip:
    """A token that does not fit.

    Attributes:
        token: the token.
        accepted: terminals that could stand in its place.
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
        """It stands in a declaration, or before the body of a composition."""
        return bool(self.since) and self.since[0].type in KEYWORDS

    @property
    def before(self) -> str:
        """The word or sign before it, for messages."""
        return printable(self.since[-1]) if self.since else ""


def advice(slip: Slip) -> str:
    """Say what to do about a token that does not fit, or nothing."""
    return next((said for rule in _RULES if (said := rule(slip))), "")


def _sharding(slip: Slip) -> str:
    if "ALL" not in slip.accepted or "WORD" in slip.accepted:
        return ""
    if not slip.is_word:
        return "a binding is 'input = all set', or another sharding than 'all'"
    name = printable(slip.token)
    return f"say how its instances share the items; with 'all {name}' each gets the whole set"


def _equals(slip: Slip) -> str:
    """A lone name where ``left = right`` is needed."""
    if slip.accepted != {"EQUAL"}:
        return ""
    kinds = [token.type for token in slip.since]
    name = slip.before
    if "NUMBER" in kinds and "FEEDING" in kinds[kinds.index("NUMBER") :]:
        return f"say which output feeds '{name}', as in '{name} = output'"
    if "_ARROW" in kinds:
        return f"say which output of the function '{name}' is, as in '{name} = output'"
    if slip.is_word and name in SHARDINGS:
        return f"the input set of the function comes first, as in 'input = {name} {slip.token}'"
    return f"say which set '{name}' is bound to, as in '{name} = all set'"


def _loop(slip: Slip) -> str:
    if slip.accepted == {"NUMBER"}:
        return "say how many iterations there may be, as in 'repeat 10 feeding (input = output)'"
    return FEEDING if slip.accepted == {"UNTIL", "FEEDING"} else ""


def _end(slip: Slip) -> str:
    if slip.token.type == END and "RBRACE" in slip.accepted:
        return "its '}' is missing"
    if "SEMICOLON" not in slip.accepted or not slip.since:
        return ""
    line = slip.since[-1].line or 0
    starts_line = (slip.token.line or 0) > line or slip.token.type == END
    return f"a ';' is missing after '{slip.before}' in line {line}" if starts_line else ""


def _brackets(slip: Slip) -> str:
    if slip.accepted != {"LPAR"} or not slip.since:
        return ""
    if slip.is_word and (slip.in_head or slip.since[-1].type == "_ARROW"):
        return f"sets stand in brackets, as in '({printable(slip.token)})'"
    return "" if slip.in_head else FORM


def _outputs(slip: Slip) -> str:
    if slip.accepted != {"_ARROW"} or slip.in_head:
        return ""
    return "say what becomes of its outputs, as in '=> (set = output)', or drop them with '=> ()'"


_RULES: tuple[Callable[[Slip], str], ...] = (_sharding, _equals, _loop, _end, _brackets, _outputs)
