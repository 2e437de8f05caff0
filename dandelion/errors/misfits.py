"""What msgspec says of data of another type, in words for people who know no Python."""

from __future__ import annotations

import re

_TYPES = {
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "str": "a text",
    "bytes": "bytes",
    "array": "a list",
    "object": "an object",
    "null": "null",
    "None": "null",
}
_FOUND = _TYPES | {"bool": "a boolean"}
_PARTS = {"str": "characters", "bytes": "bytes", "array": "elements", "object": "fields"}
_NUMBERS = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than"}
_EXPECTED = re.compile(r"Expected `([^`]+)`( of length)?(?: (>=|<=|>|<) ([\d.]+))?(?:, got (.+))?")
_FIELD = re.compile(r"Object (missing required|contains unknown) field `([^`]+)`")


def misfit(error: Exception) -> tuple[str, str]:
    """Split a message of `msgspec.ValidationError`.

    Returns:
        The path to what does not fit, such as ``functions[0].name``, empty for the whole; and why.
    """
    message, _, path = str(error).partition(" - at `$")
    return path.rstrip("`").lstrip("."), _plain(message)


def misfit_text(error: Exception) -> str:
    """Give a message of `msgspec.ValidationError` as one text."""
    path, message = misfit(error)
    return f"{path}: {message}" if path.strip("[].") else message


def named_type(value: object) -> str:
    """Give the type of a value with its article: ``an int``, ``a str``."""
    name = type(value).__name__
    starts = ("a", "e", "i", "o", "ndarray")  # not 'u': a uint8, a UUID
    return f"an {name}" if name.lower().startswith(starts) else f"a {name}"


def _plain(message: str) -> str:
    field = _FIELD.fullmatch(message)
    if field is not None:
        missing = field[1].startswith("missing")
        return f"the field '{field[2]}' is missing" if missing else f"unknown field '{field[2]}'"
    expected = _EXPECTED.fullmatch(message)
    if expected is None:
        return message
    kinds, counted, comparison, bound, found = expected.groups()
    words = " or ".join(_TYPES.get(kind, f"`{kind}`") for kind in kinds.split(" | "))
    text = f"expected {words}"
    if counted:
        text += f" of {_NUMBERS[comparison]} {bound} {_PARTS.get(kinds, 'parts')}"
    elif comparison:
        text += f", {_NUMBERS[comparison]} {bound}"
    return f"{text}, found {_FOUND.get(found.strip('`'), found)}" if found else text
