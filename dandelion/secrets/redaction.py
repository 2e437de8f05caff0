"""Takes secrets out of errors and of what a function printed.

The value is replaced by ``[secret]``, also in its usual other spellings: escaped as Python and JSON
write it, once or twice, in Base64, in hexadecimal, and encoded for URLs. A function that has a
secret can always spell it in another way, so this protects against accidents, not against the
function.

The spellings of a value are made once for all texts of a call that has failed or has printed
something. Each text is searched once for each spelling.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import re
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from dandelion.errors import DandelionError
from dandelion.function import Function

MARK = "[secret]"
SHORTEST_BYTES = 4
"""Shorter values are not replaced: they occur in most texts."""
_URL_SAFE = str.maketrans("+/", "-_")
_PERCENT = re.compile("%[0-9A-F]{2}")


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


def redacted_texts(texts: Sequence[str], function: Function) -> list[str]:
    """Take the secrets of a function out of texts."""
    spellings = _spellings(function) if function.spec.secrets else []
    return [_replaced(text, spellings) for text in texts]


def _spellings(function: Function) -> list[str]:
    values = [
        bytes(item.data)
        for name in function.spec.secrets
        for item in function.static.get(name) or ()
    ]
    found = {s for value in values if len(value) >= SHORTEST_BYTES for s in _spelled(value)}
    return sorted((s for s in found if len(s) >= SHORTEST_BYTES), key=len, reverse=True)


def _spelled(value: bytes) -> Iterator[str]:
    for data in {value, value.strip()}:
        text = data.decode("utf-8", "backslashreplace")
        yield from text.split("\n")
        yield from _escaped(data, text)
        yield data.hex()
        yield data.hex().upper()
        yield from _base64(data)
        yield from _for_urls(data)


def _escaped(data: bytes, text: str) -> set[str]:
    """Return a text as Python and JSON write it, and as they write what they have written."""
    once = {text, *_escapes(text), *_in_quotes(repr, data)}
    for wide in ("utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"):
        once.update(_in_quotes(repr, text.encode(wide, "surrogatepass")))
    return once | {twice for one in once if "\\" in one or '"' in one for twice in _escapes(one)}


def _escapes(text: str) -> set[str]:
    ways = (repr, ascii, json.dumps, partial(json.dumps, ensure_ascii=False))
    return {one for write in ways for one in _in_quotes(write, text)}


def _in_quotes(write: Callable[[Any], str], value: Any) -> Iterator[str]:
    """Yield what a way of writing makes of a value alone, and in a text that has both quotes."""
    quotes = b"\"'" if isinstance(value, bytes) else "\"'"
    for before in (value[:0], quotes):
        start = len(write(before)) - 1  # without the closing quote
        yield write(before + value)[start:-1]


def _base64(data: bytes) -> Iterator[str]:
    """Yield what Base64 of a text has, wherever in the text the value is.

    Three bytes are four characters. So the characters depend on the number of bytes before the
    value, modulo three. Those that have bits of what is before or behind the value are left out;
    the last one is searched too, for a value at the end.
    """
    for before in range(3):
        text = base64.b64encode(bytes(before) + data).decode().rstrip("=")
        start, end = -(-before * 8 // 6), (before + len(data)) * 8 // 6
        for one in (text[start:], text[start:end]):
            yield one
            yield one.translate(_URL_SAFE)


def _for_urls(data: bytes) -> Iterator[str]:
    quoted = {urllib.parse.quote(data, safe) for safe in ("", "/", "!'()*")}
    for one in quoted | {urllib.parse.quote_plus(data)}:
        yield one
        yield _PERCENT.sub(lambda found: found[0].lower(), one)


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
