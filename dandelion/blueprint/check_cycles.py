"""The static check of sizes that refer to each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dandelion.blueprint.numbers import BATCH, named_in
from dandelion.blueprint.records import Size
from dandelion.errors import Problem


def cycle_problems(buffers: Mapping[str, Size], batch: Size) -> Iterator[Problem]:
    """Report a cycle of sizes that refer to each other: of buffers, and the factor of `ByBatch`."""
    sizes = {**buffers, BATCH: batch}
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
                where = "blueprint.batch" if name == BATCH else f"blueprint.buffers.{name}"
                yield Problem("circular-size", f"the sizes depend on each other: {cycle}", where)
                return
            state[name] = 1
            path.append(name)
            stack.append((name, True))
            stack += [(n, False) for n in sorted(named_in(sizes[name]))]
