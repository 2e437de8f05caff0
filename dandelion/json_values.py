"""JSON values: what can be written so that the same value is read again; keys that are text."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from dandelion.arrays import are_finite, kind_of


def json_bytes(value: Any) -> bytes:
    """Write a value as JSON; numpy's numbers and arrays become numbers and lists.

    Raises:
        TypeError, ValueError: JSON cannot express the value so that it can be read again: it has
            bytes, keys that are not text, infinity or not-a-number. Fields of classes may have
            bytes and other keys: the class says how they are read.
        RecursionError: it is nested too deeply.
    """
    _check_json(value)
    return msgspec.json.encode(value, enc_hook=_plain_numbers)


def _check_json(value: Any) -> None:
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None:  # most values
        return
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"JSON has no number {value}")
    if isinstance(value, bytes | bytearray | memoryview):
        raise TypeError("JSON has no bytes; give them as an item, or as text")
    if isinstance(value, Mapping):
        for key, part in value.items():
            if not isinstance(key, str):
                raise TypeError(f"keys of JSON objects are text, not {key!r:.40}")
            _check_json(part)
    elif isinstance(value, list | tuple):
        for part in value:
            _check_json(part)
    elif not isinstance(value, float | np.generic | np.ndarray):  # an object or a set
        _check_json(msgspec.to_builtins(value, str_keys=True, enc_hook=_plain_numbers))


def _plain_numbers(value: object) -> object:
    if isinstance(value, np.generic | np.ndarray) and (kind := kind_of(value.dtype)) in "biuf":
        if kind == "f" and not are_finite(value).all():
            raise ValueError("JSON has no numbers for infinity and not-a-number")
        return value.tolist()
    raise TypeError(f"a value of type {type(value).__name__} is not a JSON value")


def text_key(text: str) -> int:
    """Return the key that stands for a text: the CRC-32 of its UTF-8 bytes.

    Keys are numbers of 32 bits wherever items are stored, sent and joined. The number depends on
    the text alone, so sets that different functions make can be joined. Two texts may have the same
    number: the probability is about n * n / 2**33 for n texts, 1 in 8600 for a thousand. Within one
    value that `item_set` takes this is an error; across sets it is not noticed. The text itself is
    not kept: put it into the item's name or data.
    """
    return zlib.crc32(text.encode())
