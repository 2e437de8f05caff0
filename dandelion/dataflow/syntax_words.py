"""The parser of the language, and readable names of its terminals."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lark import Lark, Token, Transformer

from dandelion.errors import nearest

END = "$END"
KEYWORDS = frozenset({"FUNCTION", "COMPOSITION"})  # a declaration or composition begins
# Frequent mistakes that do not look like the word that was meant.
MEANT = {
    "->": "=>",
    ":": "=",
    "outer": "full",
    "loop": "repeat",
    "while": "until",
    "feed": "feeding",
    "with": "feeding",
    "attempt": "attempts",
    "retry": "attempts",
    "retries": "attempts",
    "tries": "attempts",
    "pause": "backoff",
    "wait": "backoff",
    "except": "catch",
    "rescue": "catch",
    "errors": "catch",
    "for": "on",
    "of": "on",
}


@functools.cache
def parser(builder: Transformer[Token, Any] | None = None) -> Lark:
    """Return the parser of the language; its tables are made on first use.

    Args:
        builder: is called for each rule; without one the parser makes a tree.
    """
    grammar = (Path(__file__).parent / "grammar.lark").read_text(encoding="utf-8")
    return Lark(
        grammar, parser="lalr", lexer="basic", start=["module", "signature"], transformer=builder
    )


@functools.cache
def spellings() -> dict[str, str]:
    """Return the text of each terminal that has only one spelling."""
    return {t.name: t.pattern.value for t in parser().terminals if t.pattern.type == "str"}


def expected_words(accepted: Iterable[str]) -> str:
    """Format accepted terminals: ``a name``, ``';' or 'by'``; where names fit, so do keywords."""
    spelled = spellings()
    words = set(accepted)
    if "WORD" in words:
        words = {w for w in words if not spelled.get(w, "").isalpha()}
    signs = [w for w in spelled if not spelled[w].isalpha()]
    if "DECIMAL" in words:
        words.discard("NUMBER")  # the same to a reader
    order = ["WORD", "NUMBER", "DECIMAL", *signs, *(w for w in spelled if w not in signs), END]
    said = {"WORD": "a name", "NUMBER": "a number", "DECIMAL": "a number of seconds"}
    said[END] = "the end of the text"
    parts = [said.get(w) or f"'{spelled[w]}'" for w in sorted(words, key=order.index)]
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} or {parts[-1]}"


def nearest_word(found: str, accepted: set[str]) -> str:
    """Return the accepted keyword or sign that was most likely meant, or an empty text."""
    if "WORD" in accepted:
        return ""
    spelled = spellings()
    known = {spelled[w].lower(): spelled[w] for w in accepted if w in spelled}
    meant = MEANT.get(found, "")
    if meant in known:
        return known[meant]
    return known.get(nearest(found.lower(), known) or "", "")


def printable(text: str) -> str:
    """Return a word of the text, shortened and without control characters."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text[:40])
