"""The names of sets as an executable sees them, where they are not the declared ones.

Executables of the original may have been registered with names that are not identifiers, even with
empty ones, and may look at these names. The options ``input_names`` and ``output_names`` of a code
object are JSON lists with one name for each declared set, in order.
"""

from __future__ import annotations

import msgspec

from dandelion.data import NAME_LIMIT_BYTES
from dandelion.errors import Problem
from dandelion.function import Function

NAMES_OPTIONS = ("input_names", "output_names")
_names = msgspec.json.Decoder(list[str])


def input_names(function: Function) -> tuple[str, ...]:
    """Return the names of the input sets for the executable."""
    option = function.code.options.get("input_names")
    return function.spec.input_names if option is None else tuple(_names.decode(option))


def output_names(function: Function) -> tuple[str, ...]:
    """Return the names of the output sets for the executable."""
    option = function.code.options.get("output_names")
    return function.spec.output_names if option is None else tuple(_names.decode(option))


def names_problem(function: Function, option: str) -> Problem | None:
    """Check one of the two options; None if it is valid, or another option."""
    if option not in NAMES_OPTIONS:
        return None
    spec = function.spec
    declared = spec.inputs if option == "input_names" else spec.outputs
    try:
        names = _names.decode(function.code.options[option])
        sizes = [len(name.encode()) for name in names]
    except (msgspec.DecodeError, UnicodeError):
        names, sizes = [], [-1]
    if len(names) == len(declared) and all(size <= NAME_LIMIT_BYTES for size in sizes):
        return None
    return Problem(
        "bad-option",
        "it is not a JSON list with a name for each set",
        f"code.options.{option}",
        expected=f"{len(declared)} names of at most {NAME_LIMIT_BYTES} bytes of UTF-8",
    )
