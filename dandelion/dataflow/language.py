"""The composition language: text to records. The other way is `dandelion.dataflow.printer`.

`grammar.lark` is the grammar; lark makes its LALR tables once, on first use. A valid text becomes a
`CompositionModule`. A text with syntax errors goes to `dandelion.dataflow.syntax`, which reads it
again, more slowly, to make readable messages. Names are resolved later, by
`dandelion.dataflow.validate`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from dandelion.dataflow.graph import CompositionModule, Declaration, SourcePosition
from dandelion.errors import TooLarge

TEXT_LIMIT_BYTES = 128 * 1024
"""Limit of a text: some thousands of applications, a second or two of parsing."""


def check_length(where: str, text: str) -> None:
    """Refuse a text that would take long to read.

    Raises:
        TooLarge: it is longer than `TEXT_LIMIT_BYTES`.
    """
    if len(text) > TEXT_LIMIT_BYTES or len(text.encode()) > TEXT_LIMIT_BYTES:
        raise TooLarge(where, len(text), TEXT_LIMIT_BYTES)


def parse(text: str, file: str = "") -> CompositionModule:
    """Read a text of the composition language.

    Args:
        text: declarations and compositions in any order.
        file: name of the text for places and messages.

    Returns:
        The records, with places; names are not resolved yet.

    Raises:
        InvalidComposition: the text does not fit the grammar. It lists all errors that can be told
            apart, each with file, line, column and the expected tokens.
    """
    module = _reader()(text, file, "module")
    assert isinstance(module, CompositionModule)
    return module


def parse_signature(text: str, place: SourcePosition) -> Declaration:
    """Read ``Name(input, ...) -> (output, ...)``, as the Python DSL writes it.

    Args:
        text: the signature; ``=>`` is accepted as well.
        place: position of the text in the user's program.

    Raises:
        InvalidComposition: the text does not have that form. Line and column are those of `place`,
            the excerpt shows the signature itself.
    """
    name, inputs, outputs = _reader()(text.replace("->", "=>"), "", "signature", place, text)
    return Declaration(str(name), inputs, outputs, place)


@functools.cache
def _reader() -> Callable[..., Any]:
    from dandelion.dataflow.reader import read  # lark is loaded with the first text

    return read
