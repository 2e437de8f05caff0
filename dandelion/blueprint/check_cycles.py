"""The static check of sizes that refer to each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dandelion.blueprint.records import Add, CeilDiv, Elements, Mul, Size, Sizeof
from dandelion.errors import Problem


def cycle_problems(buffers: Mapping[str, Size]) -> Iterator[Problem]:
    """Report a cycle of buffer sizes that refer to each other."""
    state: dict[str, int] = {}
    for start in buffers:
        path: list[str] = []
        stack = [(start, False)]
        while stack:
            name, done = stack.pop()
            if done:
                state[path.pop()] = 2
                continue
            if name not in buffers or state.get(name) == 2:
                continue
            if state.get(name) == 1:
                cycle = " -> ".join([*path[path.index(name) :], name])
                where = f"blueprint.buffers.{name}"
                yield Problem("circular-size", f"the sizes depend on each other: {cycle}", where)
                return
            state[name] = 1
            path.append(name)
            stack.append((name, True))
            stack += [(n, False) for n in sorted(_named(buffers[name]))]


def _named(size: Size) -> set[str]:
    """Buffers whose sizes a size refers to."""
    match size:
        case Sizeof(buffer) | Elements(buffer):
            return {buffer}
        case Add(parts) | Mul(parts):
            return {n for part in parts for n in _named(part)}
        case CeilDiv(dividend, divisor):
            return _named(dividend) | _named(divisor)
    return set()
