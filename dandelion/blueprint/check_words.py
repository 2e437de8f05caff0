"""The static check of words: the buffers that say whether a loop goes on or an output is there."""

from __future__ import annotations

from collections.abc import Iterator

from dandelion.blueprint.numbers import constant
from dandelion.blueprint.records import WORD_BYTES, ExecutionBlueprint
from dandelion.errors import Problem


def word_problems(where: str, name: str, body: ExecutionBlueprint) -> Iterator[Problem]:
    """Yield what is wrong with the buffer of a word, beside its name.

    Args:
        where: its place in the blueprint.
        name: of the buffer.
        body: the blueprint.
    """
    if name in body.weights:
        message = f"'{name}' is constant, so its word never changes"
        yield Problem("constant-word", message, where, expected="a buffer or an input")
    size = constant(body.buffers[name]) if name in body.buffers else None
    if size is not None and 0 < size < WORD_BYTES:
        expected = f"at least {WORD_BYTES} bytes"
        message = f"'{name}' has no room for a word"
        yield Problem("out-of-range", message, where, expected=expected, found=str(size))
