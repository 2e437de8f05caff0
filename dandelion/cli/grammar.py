"""Argument parsers that raise what is wrong as an error, and that take options anywhere.

argparse by itself ends the process, names no nearest word, and takes ``invoke --deadline 5 NAME
a=1`` but not ``invoke NAME --deadline 5 a=1``: it matches all positional arguments that it can at
the first place where there are some.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from dandelion.cli.output import WrongUsage
from dandelion.errors import nearest


class Parser(argparse.ArgumentParser):
    """Raises `WrongUsage` where argparse would print its usage and exit."""

    def error(self, message: str) -> NoReturn:
        """Raise what is wrong, and say where the usage is explained."""
        where = self.prog.partition(" ")[2] or "command line"
        raise WrongUsage(where, message, f"see {self.prog} --help")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = ", ".join(map(str, action.choices))
            said = f"'{value}' is none of {known}{did_you_mean(str(value), action.choices)}"
            raise argparse.ArgumentError(action, said)

    def refuse_unknown(self, arguments: Sequence[str]) -> None:
        """Raise that these arguments are not understood, if there are any."""
        if not arguments:
            return
        first = arguments[0]
        if not first.startswith("-"):
            self.error(f"'{first}' is one argument too many")
        close = did_you_mean(first.partition("=")[0], self._option_string_actions)
        self.error(f"there is no option '{first}'{close}")


class VerbParser(Parser):
    """A parser of one verb: its options may lie between its other arguments."""

    _inner = False

    def parse_known_args(  # type: ignore[override]  # argparse's overloads differ in defaults only
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Parse the arguments of the verb; there are no unknown ones that are left to others."""
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
    """The parser of the program: names the verb first."""

    def parse_known_args(  # type: ignore[override]  # argparse's overloads differ in defaults only
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Parse everything."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown and unknown[0] in ("--json", "--debug", "--url"):
            self.error(f"'{unknown[0]}' comes after the verb, as in 'dandelion ls {unknown[0]}'")
        self.refuse_unknown(unknown)
        return parsed, []


def did_you_mean(word: str, known: Iterable[Any]) -> str:
    """Name the known word that was most likely meant, as the end of a sentence."""
    words = [str(k) for k in known]
    begun = [k for k in words if len(word) > 1 and k.startswith(word)]
    close = begun[0] if begun else nearest(word, words)
    return f"; did you mean '{close}'?" if close else ""
