"""Takes secrets out of errors and of what a function printed.

The value is replaced by ``[secret]``, also in its usual other spellings: escaped as Python and JSON
write it, in Base64, in hexadecimal, and encoded for URLs. A function that has a secret can always
spell it in another way, so this protects against accidents, not against the function.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import urllib.parse
from collections.abc import Iterable
from typing import Any

from dandelion.errors import DandelionError
from dandelion.function import Function

MARK = "[secret]"
SHORTEST_BYTES = 4
"""Shorter values are not replaced: they occur in most texts."""


def redact(error: DandelionError, function: Function) -> None:
    """Take the secrets of a function out of its error and the causes of that."""
    if not function.spec.secrets:
        return
    spellings = _spellings(function)
    current: BaseException | None = error
    while isinstance(current, DandelionError):
        for field in dataclasses.fields(current):
            value = getattr(current, field.name)
            setattr(current, field.name, _without(value, spellings))
        current = current.__cause__


def redacted_text(text: str, function: Function) -> str:
    """Take the secrets of a function out of a text."""
    return _replaced(text, _spellings(function)) if function.spec.secrets else text


def _spellings(function: Function) -> list[str]:
    values = [
        bytes(item.data)
        for name in function.spec.secrets
        for item in function.static.get(name) or ()
    ]
    found = {s for value in values if len(value) >= SHORTEST_BYTES for s in _spelled(value)}
    return sorted((s for s in found if len(s) >= SHORTEST_BYTES), key=len, reverse=True)


def _spelled(value: bytes) -> Iterable[str]:
    for data in {value, value.strip()}:
        text = data.decode("utf-8", "backslashreplace")
        yield text
        yield from text.split("\n")
        yield repr(data)[2:-1]
        yield repr(text)[1:-1]
        yield json.dumps(text)[1:-1]
        for wide in ("utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"):
            yield repr(text.encode(wide, "surrogatepass"))[2:-1]
        yield data.hex()
        yield data.hex().upper()
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            yield encode(data).decode().rstrip("=")
        yield urllib.parse.quote(data)
        yield urllib.parse.quote_plus(data)


def _without(value: Any, spellings: list[str]) -> Any:
    """Replace the texts in a field of an error."""
    if isinstance(value, str):
        return _replaced(value, spellings)
    if isinstance(value, tuple | list):
        return type(value)(_without(one, spellings) for one in value)
    return value


def _replaced(text: str, spellings: list[str]) -> str:
    for spelling in spellings:
        text = text.replace(spelling, MARK)
    return text
