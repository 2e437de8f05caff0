"""Readable messages for the syntax errors of a text.

The text is read again, token by token, with lark's interactive parser. Between two statements the
state of the parser is saved as a checkpoint. At a token that does not fit, one problem is recorded
and reading continues:

- a ``;`` that is missing at the end of a line is inserted;
- ``function NAME`` or ``composition NAME`` inside a body closes the body;
- otherwise the rest of the statement is skipped and the checkpoint restored. A ``{`` in the skipped
  part opens a body under a head that could not be read.

So one mistake usually results in one message. Words that are not tokens are reported separately and
replaced; a token that does not fit right after one gets no message of its own.
"""

from __future__ import annotations

import re

from lark import Token
from lark.exceptions import UnexpectedCharacters, UnexpectedToken
from lark.parsers.lalr_interactive_parser import InteractiveParser

from dandelion.dataflow.excerpt import excerpt
from dandelion.dataflow.graph import SourcePosition
from dandelion.dataflow.syntax_advice import SyntaxMistake, advice
from dandelion.dataflow.syntax_words import (
    END,
    KEYWORDS,
    MEANT,
    expected_words,
    nearest_word,
    parser,
    printable,
)
from dandelion.errors import Problem

LIMIT = 20  # problems reported of one text
_BAD = re.compile(
    r"->|:|\d*\.\d+\w*|//[^\n]*|\"[^\"\n]*\"|'[^'\n]*'|\w+|[^\s\w(){},;=#:]+|.", re.DOTALL
)
_TYPE = re.compile(r":\s*[A-Za-z_]\w*(?:\[[^\]()]*\])?")
_IN_LINE = re.compile(r"[^\n]")
_IN_HEAD = re.compile(r"\b(?:function|composition)\s+\w+\s*\([^(){};]*(?:\)\s*=>\s*\([^(){};]*)?\Z")
_NO_TYPES = (
    "a declaration has names of sets only; their types are declared where code is registered"
)
_OPEN_BODY = (
    ("COMPOSITION", "composition"),
    ("WORD", "_"),
    ("LPAR", "("),
    ("RPAR", ")"),
    ("_ARROW", "=>"),
    ("LPAR", "("),
    ("RPAR", ")"),
    ("LBRACE", "{"),
)


def diagnose(
    text: str, file: str, start: str, place: SourcePosition | None = None
) -> list[Problem]:
    """List the syntax errors of `text`.

    Args:
        text: a text that `parser` refuses.
        file: its name for messages.
        start: ``module`` or ``signature``.
        place: position to report instead of the one in the text, if that is part of another source.

    Returns:
        At least one problem, each with a position and an excerpt; at most `LIMIT`.
    """
    reading = _Reading(text, file, place)
    tokens = reading.scan()
    reading.read(tokens, start)
    return sorted(reading.problems, key=lambda p: (p.line, p.column))[:LIMIT]


class _Reading:
    """One pass over a text; see the module for the rules of recovery."""

    def __init__(self, text: str, file: str, place: SourcePosition | None) -> None:
        self.problems: list[Problem] = []
        self._text = text
        self._lines = text.split("\n")
        self._file = file
        self._place = place
        self._bad: set[int] = set()  # offsets of words that were replaced
        self._reported: set[int] = set()
        self._in_body = False
        self._composition = ""
        self._since: list[Token] = []  # tokens after the checkpoint
        self._checkpoint: InteractiveParser
        self._state: InteractiveParser

    # --- words ------------------------------------------------------------------------------

    def scan(self) -> list[Token]:
        """Split the text into tokens; report and replace words that are not tokens."""
        text = self._text
        while len(self.problems) < LIMIT:
            try:
                return list(parser().lex(text))
            except UnexpectedCharacters as error:
                offset = error.pos_in_stream or 0
                if type_ := self._declared_type(offset):
                    self._add(
                        _NO_TYPES, error.line, error.column, len(type_), expected="a name alone"
                    )
                    blank = _IN_LINE.sub(" ", type_)  # lines keep their numbers
                    text = text[:offset] + blank + text[offset + len(type_) :]
                    continue
                match = _BAD.match(self._text, offset)
                bad = match.group() if match else self._text[offset]
                if not (bad == "->" and self._place):
                    self._report_word(bad, error.line, error.column)
                text = text[:offset] + self._instead(bad, offset) + text[offset + len(bad) :]
        return []

    def _declared_type(self, offset: int) -> str:
        """Return a type that is written behind a set of a declaration; usually there is none."""
        found = _TYPE.match(self._text, offset)
        return found.group() if found and _IN_HEAD.search(self._text[:offset]) else ""

    def _instead(self, bad: str, offset: int) -> str:
        """Return the replacement of a bad word, of the same length."""
        if bad in MEANT:
            return MEANT[bad]
        self._bad.add(offset)
        return ("_" if bad.isidentifier() or bad.isalnum() else " ") * len(bad)

    def _report_word(self, bad: str, line: int, column: int) -> None:
        meant = "#" if bad.startswith("//") else MEANT.get(bad, "")
        rule = "names of ASCII letters, digits and '_', or a sign"
        if bad.isdigit():
            rule = "a number of at most 18 digits, without zeros in front"
        elif "." in bad and bad[-1].isalnum():
            rule = "a number of seconds, such as 0.5"
        message = f"cannot read '{printable(bad)}'"
        if bad[0] in "\"'":
            message += ": a composition contains no data; pass data as a set"
        expected = "" if meant else rule
        self._add(message, line, column, len(bad), expected=expected, nearest=meant)

    # --- structure --------------------------------------------------------------------------

    def read(self, tokens: list[Token], start: str) -> None:
        """Feed all tokens to the parser; report and recover at those that do not fit."""
        self._keep(parser().parse_interactive("", start=start))
        tokens = [*tokens, self._end(tokens)]
        index = 0
        while index < len(tokens) and len(self.problems) < LIMIT:
            token = tokens[index]
            if self._feed(token):
                index += 1
            elif start == "module":
                index = self._recover(tokens, index)
            else:
                self._report(token)
                return

    def _end(self, tokens: list[Token]) -> Token:
        if not tokens:
            return Token(END, "", 0, 1, 1)
        last = tokens[-1]
        return Token(END, "", len(self._text), last.end_line, last.end_column)

    def _keep(self, state: InteractiveParser) -> None:
        self._state = state
        self._checkpoint = _copy(state)
        self._since = []

    def _restore(self) -> None:
        self._keep(self._checkpoint)

    def _feed(self, token: Token) -> bool:
        try:
            self._state.feed_token(token)
        except UnexpectedToken:
            return False
        self._since.append(token)
        if token.type == "LBRACE":
            self._in_body = True
            self._composition = str(self._since[1])
        if token.type == "RBRACE":
            self._in_body = False
        if token.type in {"LBRACE", "RBRACE", "SEMICOLON"}:
            self._keep(self._state)
        return True

    def _accepted(self) -> set[str]:
        """Terminals that the parser accepts where it stopped."""
        state = _copy(self._checkpoint)
        for token in self._since:
            state.feed_token(token)
        return set(state.accepts())  # type: ignore[no-untyped-call]  # lark leaves it untyped

    def _recover(self, tokens: list[Token], index: int) -> int:
        """Report ``tokens[index]``, restore a state to continue in; return the next index."""
        token = tokens[index]
        if self._unclosed(token):
            keyword = self._since[0]
            self._restore()
            self._report(keyword, {"RBRACE"})
            self._feed(Token("RBRACE", "}"))
            return index - 1
        accepted = self._accepted()
        self._report(token, accepted)
        starts_line = index > 0 and (token.line or 0) > (tokens[index - 1].line or 0)
        if "SEMICOLON" in accepted and starts_line:
            self._rewind()
            self._feed(Token("SEMICOLON", ";"))
            return index
        return self._skip(tokens, index)

    def _unclosed(self, token: Token) -> bool:
        one_keyword = len(self._since) == 1 and self._since[0].type in KEYWORDS
        return self._in_body and one_keyword and token.type == "WORD"

    def _rewind(self) -> None:
        """Undo the parser's steps for a refused token."""
        since = self._since
        self._restore()
        for token in since:
            self._feed(token)

    def _skip(self, tokens: list[Token], index: int) -> int:
        started = bool(self._since)
        self._restore()
        for at in range(index, len(tokens) - 1):
            kind = tokens[at].type
            if kind == "SEMICOLON":
                return at + 1
            if kind == "RBRACE":
                return at if self._in_body else at + 1
            if kind == "LBRACE" and not self._in_body:
                self._open_body()
                return at + 1
            if kind in KEYWORDS and not self._in_body and (at > index or started):
                return at
        return len(tokens)

    def _open_body(self) -> None:
        for kind, text in _OPEN_BODY:
            self._feed(Token(kind, text))
        self._composition = ""

    # --- messages ---------------------------------------------------------------------------

    def _report(self, token: Token, accepted: set[str] | None = None) -> None:
        offset = token.start_pos or 0
        before = (self._since[-1].start_pos or 0) if self._since else offset
        if offset in self._reported or any(before <= bad <= offset for bad in self._bad):
            return
        self._reported.add(offset)
        accepted = self._accepted() if accepted is None else accepted
        found = "the end of the text" if token.type == END else f"'{token}'"
        tip = advice(SyntaxMistake(token, accepted, self._since))
        self._add(
            f"cannot read {self._context()}{tip and f': {tip}'}",
            token.line or 1,
            token.column or 1,
            len(token),
            expected=expected_words(accepted),
            found=found,
            nearest=nearest_word(str(token), accepted),
        )

    def _context(self) -> str:
        words = [str(token) for token in self._since]
        if self._in_body:
            body = f"composition '{self._composition}'" if self._composition else "the composition"
            return f"the application of '{words[0]}'" if words else body
        if not words or self._since[0].type not in KEYWORDS:
            return "the text" if self._place is None else "the signature"
        kind = "declaration of" if self._since[0].type == "FUNCTION" else "head of composition"
        return f"the {kind} '{words[1]}'" if len(words) > 1 else f"what follows '{words[0]}'"

    def _add(
        self,
        message: str,
        line: int,
        column: int,
        length: int,
        *,
        expected: str,
        found: str = "",
        nearest: str = "",
    ) -> None:
        place = self._place or SourcePosition(line, column, self._file)
        shown = excerpt(self._lines[line - 1], line, column, length)
        self.problems.append(
            Problem(
                "syntax",
                message,
                str(place),
                place.line,
                place.column,
                expected,
                found,
                nearest,
                shown,
            )
        )


def _copy(state: InteractiveParser) -> InteractiveParser:
    # Partial trees are shared, not copied: they are not used after a problem.
    copied: InteractiveParser = state.copy(deepcopy_values=False)  # type: ignore[no-untyped-call]  # as above
    return copied
