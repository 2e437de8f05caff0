"""The expected results, from the pictures alone: a model of the archive, in numpy.

It stores versions where the server stores entries, so it shares no format with the checked code.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dandelion.data import Item

OUTCOMES = ("rejected", "unchanged", "stored", "failed")


@dataclass(slots=True)
class Model:
    """An archive of versions, oldest first, by picture id."""

    versions: dict[int, tuple[bytes, ...]] = field(default_factory=dict)

    def run(self, pictures: Iterable[Item]) -> npt.NDArray[np.int64]:
        """Archive pictures.

        Returns:
            [pictures, 4] int64, ordered by id: id, index in `OUTCOMES`, versions and bytes of the
            entry; 0 versions and bytes if the picture was rejected.
        """
        rows = [self._one(item) for item in sorted(pictures, key=lambda item: item.key)]
        return np.array(rows, np.int64).reshape(-1, 4)

    def _one(self, item: Item) -> tuple[int, int, int, int]:
        if not 32 <= pixels(item.bytes()).mean() <= 223:
            return (item.key, OUTCOMES.index("rejected"), 0, 0)
        known = self.versions.get(item.key, ())
        is_new = not known or known[-1] != item.bytes()
        versions = (*known, item.bytes()) if is_new else known
        self.versions[item.key] = versions
        outcome = OUTCOMES.index("stored" if is_new else "unchanged")
        return (item.key, outcome, len(versions), len(entry(versions)))


def pixels(picture: bytes) -> npt.NDArray[np.uint8]:
    """Read the pixels of a picture that `bundle.pgm` wrote."""
    return np.frombuffer(picture.split(b"\n", 3)[3], np.uint8)


def entry(versions: Iterable[bytes]) -> bytes:
    """Write the archive's entry of a picture, as the format is described."""
    stream = b""
    for version in versions:
        stream += len(version).to_bytes(4, "big")
        stream += version
    return zlib.compress(stream, level=9)
