"""Advice on the slips that are made most: what a person would say who looks over the shoulder."""

from __future__ import annotations

from collections.abc import Sequence

from lark import Token

from dandelion.dataflow.syntax_words import printable


def advice(token: Token, accepted: set[str], since: Sequence[Token]) -> str:
    """Say what to do about a token that does not fit, or nothing.

    Args:
        token: the token.
        accepted: terminals that could stand in its place.
        since: the tokens of the statement so far.
    """
    if "ALL" in accepted and "WORD" not in accepted:
        return _sharding(token)
    if accepted == {"EQUAL"}:
        return _equals(since)
    if accepted == {"NUMBER"}:
        return "say how many iterations there may be, as in 'repeat 10 feeding (input = output)'"
    if accepted == {"UNTIL", "FEEDING"}:
        return "say which input is fed with which output, as in 'feeding (input = output)'"
    if "SEMICOLON" in accepted and since and (token.line or 0) > (since[-1].line or 0):
        return "a statement ends with ';'"
    return ""


def _sharding(token: Token) -> str:
    if not token.isidentifier():
        return "a binding is 'input = SHARDING set'"
    name = printable(token)
    return f"say how its instances share the items; with 'all {name}' each gets the whole set"


def _equals(since: Sequence[Token]) -> str:
    """A lone name where ``left = right`` is needed."""
    kinds = [token.type for token in since]
    name = printable(since[-1])
    if "NUMBER" in kinds and "FEEDING" in kinds[kinds.index("NUMBER") :]:
        return f"say which output feeds it, as in '{name} = output'"
    if "_ARROW" in kinds:
        return f"say which output of the function it is, as in '{name} = output'"
    return f"say which set it is bound to, as in '{name} = all set'"
