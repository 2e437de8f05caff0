"""Whether the batches of a function fit the choices of its blueprint; checked at registration.

Calls that are joined have the rows of all of them. A blueprint that chooses by a size of these
inputs has a last case, and a batch beyond it would fail as a whole, each time calls wait together.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping

from dandelion.arrays import declared_dtype
from dandelion.blueprint import Absolute, Action, Choose, GpuConfig, Size
from dandelion.blueprint.numbers import BATCH, named_in
from dandelion.blueprint.records import MAX_BYTES, ExecutionBlueprint, inner_lists
from dandelion.data import SetSpec
from dandelion.errors import DandelionError, Problem
from dandelion.function import FunctionSpec

from .sizes import Sizes


class _Unknown(Exception):
    """A size depends on more than the rows of a batch."""


def batch_problems(spec: FunctionSpec, config: GpuConfig) -> Iterator[Problem]:
    """Yield the choices of a blueprint that batches may exceed.

    Sizes that depend on other inputs, too, are checked when a call is planned.
    """
    batching = spec.batching
    if batching is None:
        return
    joined = {s.name: s for s in spec.inputs if s.name in batching.inputs}
    for where, choice in _choices("blueprint.control_flow", config.blueprint.control_flow):
        for index, size in enumerate(choice.sizes):
            if not _depends(size, joined, config.blueprint):
                continue
            at, last = f"{where}.sizes[{index}]", choice.cases[-1].up_to
            if batching.rows is None:
                message = f"a batch may have any number of rows, the last case ends at {last}"
                expected = "'rows' in batching: the most that fit the last case"
                yield Problem("batching", message, at, expected=expected)
                continue
            found = _value(size, at, joined, config, batching.rows)
            if found is not None and found > last:
                message = f"for a batch of {batching.rows} rows it comes to {found}"
                expected = f"at most {last}, the end of the last case; lower 'rows' in batching"
                yield Problem("batching", message, at, expected=expected)


def _choices(where: str, actions: tuple[Action, ...]) -> Iterator[tuple[str, Choose]]:
    """Yield the choices that every call makes: not those within another one's case."""
    for index, action in enumerate(actions):
        if isinstance(action, Choose):
            yield f"{where}[{index}]", action
            continue
        for place, inner in inner_lists(action):
            yield from _choices(f"{where}[{index}]{place}", inner)


def _depends(size: Size, names: Container[str], body: ExecutionBlueprint) -> bool:
    """Tell whether a size depends on the size of one of these inputs."""
    found = named_in(size)
    left = list(found)
    while left:
        name = left.pop()
        if name in names:
            return True
        further = body.batch if name == BATCH else body.buffers.get(name, Absolute(0))
        new = named_in(further) - found
        found |= new
        left += new
    return False


def _value(
    size: Size, where: str, joined: Mapping[str, SetSpec], config: GpuConfig, rows: int
) -> int | None:
    """Evaluate a size for so many rows; None if it is not known from these."""

    def read(name: str, index: int) -> int:
        raise _Unknown

    sizes = {name: _bytes(spec, rows) for name, spec in joined.items()}
    known = {name: size_bytes for name, size_bytes in sizes.items() if size_bytes is not None}
    try:
        return Sizes(config, known, read).number(where, size, -MAX_BYTES, MAX_BYTES)
    except (_Unknown, KeyError, DandelionError):
        return None


def _bytes(spec: SetSpec, rows: int) -> int | None:
    """Size of an item of so many rows; None if its declaration does not show it."""
    if spec.dtype is None or not spec.shape or -1 in spec.shape[1:]:
        return None
    return rows * math.prod(spec.shape[1:]) * declared_dtype(spec.dtype).itemsize
