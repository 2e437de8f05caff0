"""The order of kernels and library operations: each after what it reads is written.

The code generator orders its kernels among themselves and knows nothing of operations.
"""

from __future__ import annotations

from collections.abc import Sequence

from dandelion.export.kernels import KernelLaunch, OperationLaunch

Launched = KernelLaunch | OperationLaunch


def in_order(
    kernels: Sequence[KernelLaunch],
    operations: Sequence[OperationLaunch],
    written: Sequence[set[str]],
) -> list[Launched]:
    """Put operations between kernels.

    Args:
        kernels: in an order that is right for kernels that no operation is between.
        operations: in the order of the model; each writes its first buffer and reads the others.
        written: the buffers that each kernel writes.
    """
    launches: list[Launched] = [*kernels, *operations]
    writes = [*written, *({operation.buffers[0]} for operation in operations)]
    writers: dict[str, list[int]] = {}
    for at, names in enumerate(writes):
        for name in names:
            writers.setdefault(name, []).append(at)
    made: list[Launched] = []
    done: set[int] = set()
    for start in range(len(launches)):
        stack = [start]
        while stack:
            at = stack[-1]
            needed = [
                writer
                for name in launches[at].buffers
                for writer in writers.get(name, ())
                if writer not in done and (writer < at if name in writes[at] else writer != at)
            ]
            if needed:
                assert len(stack) <= len(launches), "launches wait for each other"
                stack.append(needed[0])
                continue
            stack.pop()
            if at not in done:
                done.add(at)
                made.append(launches[at])
    return made
