"""Constants of a module as text that gives an equal value, the same text in every run.

Only values without identity and state have such a text: numbers, text, containers of these, and
some values of the standard library and of numpy. A subclass of a known type is another type.
"""

from __future__ import annotations

import datetime
import decimal
import fractions
import importlib
import logging
import math
import pathlib
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from dandelion import arrays
from dandelion.errors.misfits import named_type

LIMIT_CHARACTERS = 64 * 1024
_DEPTH = 20


class NotExact(Exception):
    """A value has no exact text; the message says why."""


def constant_text(value: object, is_installed: Callable[[str], bool]) -> str:
    """Write a value as an expression.

    Args:
        value: of a name of a module.
        is_installed: returns whether a module is one that nodes have, and not the user's own.

    Raises:
        NotExact: no text gives an equal value, or the text is too long.
    """
    text = _text(value, is_installed, 0)
    if len(text) > LIMIT_CHARACTERS:
        raise NotExact(f"its text has {len(text)} characters, more than {LIMIT_CHARACTERS}")
    return text


def _text(value: object, is_installed: Callable[[str], bool], depth: int) -> str:
    if depth > _DEPTH:
        raise NotExact("it is nested too deeply")
    kind = type(value)
    if kind in (type(None), bool, int, str, bytes) or value is Ellipsis:
        return repr(value)
    if kind is float:
        assert isinstance(value, float)
        return repr(value) if math.isfinite(value) else f"float({str(value)!r})"
    if kind is complex:
        assert isinstance(value, complex)
        return (
            f"complex({_text(value.real, is_installed, 0)}, {_text(value.imag, is_installed, 0)})"
        )
    if isinstance(value, tuple | list | set | frozenset | dict):
        return _container(value, is_installed, depth)
    special = _SPECIAL.get(kind)
    if special is not None:
        return special(value)
    if isinstance(value, np.dtype):
        return f"__import__('numpy').dtype({arrays.name_of(value) or value.str!r})"
    if isinstance(value, np.ndarray | np.generic):
        return _array(np.asarray(value), isinstance(value, np.generic))
    return _named(value, is_installed)


def _container(value: Any, is_installed: Callable[[str], bool], depth: int) -> str:
    kind = type(value)
    if kind not in (tuple, list, set, frozenset, dict):
        raise NotExact(f"it is a {kind.__name__}, a class of its own")
    if kind is dict:
        pairs = (
            f"{_text(k, is_installed, depth + 1)}: {_text(v, is_installed, depth + 1)}"
            for k, v in value.items()
        )
        return "{" + ", ".join(pairs) + "}"
    parts = [_text(part, is_installed, depth + 1) for part in value]
    if kind is list:
        return f"[{', '.join(parts)}]"
    if kind is tuple:
        return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
    inner = ", ".join(sorted(parts))  # their order depends on the hashes of this process
    return f"{kind.__name__}(({inner}{',' if parts else ''}))"


def _array(array: Any, is_scalar: bool) -> str:
    name = arrays.name_of(array.dtype)
    if name is None:
        raise NotExact(f"it is an array of {array.dtype}")
    if array.nbytes > LIMIT_CHARACTERS // 4:
        raise NotExact(f"it is an array of {array.nbytes} bytes")
    data = bytes(arrays.bytes_of(array))
    made = f"__import__('numpy').frombuffer({data!r}, {name!r}).reshape({array.shape!r})"
    return f"{made}[()]" if is_scalar else f"{made}.copy()"


def _named(value: object, is_installed: Callable[[str], bool]) -> str:
    """Write a class or function of an installed module by its name."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if isinstance(module, str) and isinstance(name, str) and name.isidentifier():
        if module == "builtins":
            return name
        found = getattr(importlib.import_module(module), name, None) if module else None
        if found is value and is_installed(module):
            return f"__import__('importlib').import_module({module!r}).{name}"
    raise NotExact(f"{named_type(value)} has no exact text")


def _pattern(value: Any) -> str:
    return f"__import__('re').compile({value.pattern!r}, {int(value.flags) & ~int(re.UNICODE)})"


def _repr_in(module: str) -> Callable[[Any], str]:
    return lambda value: f"__import__({module!r}).{repr(value).removeprefix(f'{module}.')}"


def _moment(value: Any) -> str:
    if value.tzinfo is not None:
        raise NotExact("it has a time zone")
    return _repr_in("datetime")(value)


_SPECIAL: dict[type, Callable[[Any], str]] = {
    re.Pattern: _pattern,
    range: repr,
    slice: repr,
    decimal.Decimal: _repr_in("decimal"),
    fractions.Fraction: _repr_in("fractions"),
    datetime.date: _repr_in("datetime"),
    datetime.timedelta: _repr_in("datetime"),
    datetime.datetime: _moment,
    datetime.time: _moment,
    pathlib.PurePosixPath: lambda value: f"__import__('pathlib').PurePosixPath({str(value)!r})",
    pathlib.PosixPath: lambda value: f"__import__('pathlib').Path({str(value)!r})",
    logging.Logger: lambda value: f"__import__('logging').getLogger({value.name!r})",
}
