"""Sets and items for tests of codecs."""

from __future__ import annotations

import numpy as np

from dandelion.data import ItemSet, SetSpec

SPECS = {"a": SetSpec("a"), "x": SetSpec("x", "float32", (-1, 2)), "n": SetSpec("n", "int32")}


def items(value: ItemSet | None) -> list[tuple[str, int, bytes]]:
    assert value is not None
    return [(item.name, item.key, bytes(item.data)) for item in value]


F12 = np.array([[1, 2]], "float32").tobytes()
