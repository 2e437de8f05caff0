"""Argument parsers that raise errors and accept options at any position.

argparse exits the process on an error and suggests no nearest word. It accepts
``invoke --deadline 5 NAME a=1`` but not ``invoke NAME --deadline 5 a=1``, since it matches as many
positional arguments as possible at their first position.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from dandelion.cli.output import WrongUsage
from dandelion.errors import nearest

_OTHER_WORDS = {
    **dict.fromkeys(("list", "functions", "compositions", "show"), "ls"),
    **dict.fromkeys(("remove", "delete", "unregister"), "rm"),
    **dict.fromkeys(("call", "exec"), "invoke"),
    **dict.fromkeys(("start", "server", "up"), "serve"),
    **dict.fromkeys(("inspect", "info"), "describe"),
    **dict.fromkeys(("status", "stats"), "top"),
}
"""Verbs of other programs, and what they are here."""


class Parser(argparse.ArgumentParser):
    """Raises `WrongUsage` where argparse prints its usage and exits; takes whole options only.

    Attributes:
        instead: for the error about an unexpected argument: what to do instead.
    """

    instead = ""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)

    def _print_message(self, message: str, file: Any = None) -> None:
        """Write a message. Unlike argparse, also fail if that is not possible."""
        (file or sys.stderr).write(message)

    def error(self, message: str) -> NoReturn:
        """Raise `WrongUsage` with a hint at ``--help``."""
        where = self.prog.partition(" ")[2] or "command line"
        raise WrongUsage(where, message, f"see {self.prog} --help")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            word = str(value)
            other = _OTHER_WORDS.get(word, word)
            close = did_you_mean(other if other in action.choices else word, action.choices)
            known = ", ".join(map(str, action.choices))
            unknown = f"there is no '{value}'" if close else f"'{value}' is not one of {known}"
            message = f"{unknown}{close}"
            raise argparse.ArgumentError(action, message)

    def refuse_unknown(self, arguments: Sequence[str]) -> None:
        """Raise `WrongUsage` if there are unknown arguments."""
        if not arguments:
            return
        first = arguments[0]
        if not first.startswith("-"):
            self.error(f"unexpected argument '{first}'{self.instead}")
        close = did_you_mean(first.partition("=")[0], self._option_string_actions)
        self.error(f"no such option '{first}'{close}")


class VerbParser(Parser):
    """The parser of one verb. Its options may be between its other arguments."""

    _inner = False

    def parse_known_args(  # type: ignore[override]  # argparse's overloads differ in defaults only
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Parse all arguments of the verb; unknown ones are an error."""
        if self._inner:  # called by `parse_known_intermixed_args`
            return super().parse_known_args(args, namespace)
        if self._subparsers is not None:
            parsed, unknown = super().parse_known_args(args, namespace)
        else:
            self._inner = True
            try:
                parsed, unknown = self.parse_known_intermixed_args(args, namespace)
            finally:
                self._inner = False
        self.refuse_unknown(unknown)
        return parsed, []


class MainParser(Parser):
    """The parser of the program. The verb is the first argument."""

    def parse_known_args(  # type: ignore[override]  # argparse's overloads differ in defaults only
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Parse the command line."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown and unknown[0] in ("--json", "--debug", "--url"):
            self.error(f"write '{unknown[0]}' after the command, as in 'dandelion ls {unknown[0]}'")
        self.refuse_unknown(unknown)
        return parsed, []


def did_you_mean(word: str, known: Iterable[Any]) -> str:
    """Suggest the nearest known word, as the end of a sentence."""
    words = [str(k) for k in known]
    begun = [k for k in words if len(word) > 1 and k.startswith(word)]
    close = begun[0] if begun else nearest(word, words)
    return f"; did you mean '{close}'?" if close else ""
