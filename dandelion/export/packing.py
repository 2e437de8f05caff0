"""Constants of a model packed into few static sets, one for each element type.

A device keeps each resident constant in memory of its own, in multiples of 2 MiB, and copies those
of less than 64 KiB with each call. A model has hundreds, so they are put one after the other, and
kernels get the set and an offset. Equal constants are stored once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dandelion.arrays import Array
from dandelion.export.torch_graph import Constant

ALIGNMENT_BYTES = 64
"""Every constant begins at a multiple of this, as vector loads need at least 16."""


@dataclass(frozen=True, slots=True)
class Packed:
    """Where the constants of one part of a function are.

    Attributes:
        sets: the elements of each set, by its name.
        places: the set of each constant, and its first element there.
    """

    sets: Mapping[str, Array]
    places: Mapping[str, tuple[str, int]]

    @property
    def size_bytes(self) -> int:
        """Bytes of all sets."""
        return sum(data.nbytes for data in self.sets.values())


def packed(parts: Sequence[Mapping[str, Constant]], taken: Collection[str]) -> list[Packed]:
    """Pack constants.

    Args:
        parts: the constants of each part of a function, by name. A name may mean different
            constants in two parts.
        taken: names that no set may have.

    Returns:
        Where the constants of each part are. All parts have the same sets.
    """
    arrays: dict[str, list[Array]] = {}
    lengths: dict[str, int] = {}
    known: dict[tuple[str, bytes], tuple[str, int]] = {}
    places: list[dict[str, tuple[str, int]]] = []
    for constants in parts:
        places.append({})
        for name, constant in constants.items():
            data = _stored(constant)
            dtype = data.dtype.name
            key = (dtype, hashlib.sha256(data.tobytes()).digest())
            if key not in known:
                group = _free(f"weights_{dtype}", taken)
                length = lengths.get(group, 0)
                padding = -data.size % (ALIGNMENT_BYTES // data.itemsize)
                arrays.setdefault(group, []).append(np.pad(data, (0, padding)))
                lengths[group] = length + data.size + padding
                known[key] = (group, length)
            places[-1][name] = known[key]
    sets = {group: np.concatenate(stored) for group, stored in arrays.items()}
    return [Packed(sets, of_part) for of_part in places]


def _stored(constant: Constant) -> Array:
    flat = constant.data.reshape(-1)
    return flat.astype(np.uint8) if constant.type.dtype == "bool" else flat


def _free(name: str, taken: Collection[str]) -> str:
    while name in taken:
        name += "_"
    return name
