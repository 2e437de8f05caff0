"""Sets as callers give them."""

from __future__ import annotations

from typing import Any

from dandelion.data import ItemSet, SetSpec
from dandelion.set_values import item_set


def given_set(value: Any, spec: SetSpec | None = None) -> ItemSet:
    made = item_set("s", value, spec)
    assert made is not None
    return made
