"""Compute function `tokenise_text`: a text becomes numbers of word pieces. It runs in a sandbox.

Source: Schuster and Nakajima, Japanese and Korean voice search, ICASSP 2012, and the greedy longest
match of BERT's tokeniser (Devlin et al. 2019, section 3). Pieces within a word begin with ``##``.
"""

import re
import struct
from collections.abc import Iterator
from typing import Any

LENGTH = 24
PADDING, UNKNOWN, BEGIN = 0, 1, 2
SPECIAL = ("[PAD]", "[UNK]", "[CLS]")
WORD = re.compile(r"[^\W_]+|[^\w\s]|_")
LONGEST_WORD = 40


def tokenise_text(text: Any, vocabulary: Any) -> dict[str, dict[str, bytes]]:
    """Tokenise one text.

    Args:
        text: one item, UTF-8.
        vocabulary: one item, a piece in each line; the line is its number.

    Returns:
        set `ids`: int64[1, 24]: `BEGIN`, pieces, `PADDING`. What is longer is cut off.
    """
    (item,), (lines,) = text, vocabulary
    pieces = bytes(lines.data).decode().splitlines()
    numbers = {piece: number for number, piece in enumerate(pieces)}
    ids = tokenised(bytes(item.data).decode(), numbers)
    return {"ids": {item.name: struct.pack(f"<{LENGTH}q", *ids)}}


def tokenised(text: str, numbers: dict[str, int]) -> list[int]:
    """Give the numbers of a text, as many as there is room for."""
    found = [BEGIN]
    for word in WORD.findall(text.lower()):
        found += word_pieces(word, numbers)
        if len(found) >= LENGTH:
            break
    return (found + [PADDING] * LENGTH)[:LENGTH]


def word_pieces(word: str, numbers: dict[str, int]) -> list[int]:
    """Cut a word into the longest pieces from its start; one number if that is not possible."""
    if len(word) > LONGEST_WORD:
        return [UNKNOWN]
    found = list(_pieces(word, numbers))
    return [UNKNOWN] if UNKNOWN in found else found


def _pieces(word: str, numbers: dict[str, int]) -> Iterator[int]:
    start = 0
    while start < len(word):
        head = "##" if start else ""
        for end in range(len(word), start, -1):
            number = numbers.get(head + word[start:end])
            if number is not None:
                break
        else:
            yield UNKNOWN
            return
        yield number
        start = end
