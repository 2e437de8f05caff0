"""The static check of sizes that refer to each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dandelion.blueprint.records import Add, ByBatch, CeilDiv, Elements, Mul, Size, Sizeof
from dandelion.errors import Problem

_BATCH = ""  # no buffer has this name


def cycle_problems(buffers: Mapping[str, Size], batch: Size) -> Iterator[Problem]:
    """Report a cycle of sizes that refer to each other: of buffers, and the factor of `ByBatch`."""
    sizes = {**buffers, _BATCH: batch}
    state: dict[str, int] = {}
    for start in sizes:
        path: list[str] = []
        stack = [(start, False)]
        while stack:
            name, done = stack.pop()
            if done:
                state[path.pop()] = 2
                continue
            if name not in sizes or state.get(name) == 2:
                continue
            if state.get(name) == 1:
                names = [*path[path.index(name) :], name]
                cycle = " -> ".join(found or "the batch" for found in names)
                where = "blueprint.batch" if name == _BATCH else f"blueprint.buffers.{name}"
                yield Problem("circular-size", f"the sizes depend on each other: {cycle}", where)
                return
            state[name] = 1
            path.append(name)
            stack.append((name, True))
            stack += [(n, False) for n in sorted(_named(sizes[name]))]


def _named(size: Size) -> set[str]:
    """Buffers whose sizes a size refers to, and the batch."""
    match size:
        case ByBatch():
            return {_BATCH}
        case Sizeof(buffer) | Elements(buffer):
            return {buffer}
        case Add(parts) | Mul(parts):
            return {n for part in parts for n in _named(part)}
        case CeilDiv(dividend, divisor):
            return _named(dividend) | _named(divisor)
    return set()
