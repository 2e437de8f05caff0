"""Register, invoke, fail, remove, again and again: afterwards everything is as it was.

``DANDELION_CYCLES=1000`` asks for more rounds than every run tries.
"""

import gc
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pytest
from dandelion.compositions.matmul import bundle as matmul

from dandelion.data import Item
from dandelion.documents import FunctionDocument, RegistrationDocument, python_function
from dandelion.errors import DandelionError, Raised
from dandelion.function import FunctionSpec
from dandelion.node import Node, Settings
from tests.processes import command_of

CYCLES = int(os.environ.get("DANDELION_CYCLES", "20"))
WARM_UP = 300 if CYCLES > 300 else 15  # plans, traces and loaded functions are kept up to a bound
SLACK_BYTES = min(75_000 * CYCLES, 4_000_000)
"""Allocators keep some pages, and below the bounds a cycle keeps about 10 KB.

A leak of 75 KB a cycle shows in every run, and of as little as 4 KiB in 1000 cycles.
"""
GPU_EVERY = 4
"""One cycle of so many has a GPU function too; each of its processes compiles for half a second.

So what such a function leaks shows if it is so many times as much.
"""


def divide(a, b):  # type: ignore[no-untyped-def]  # runs in a sandbox, from its source
    return str(int(a.text()) // int(b.text()))


@dataclass(frozen=True)
class Held:
    """What is held: memory in bytes of the node and its children, and numbers of things."""

    resident_bytes: int
    children_bytes: int
    descriptors: int
    arena_bytes: int
    contexts: int
    blobs: int
    children: int


def children(process: int) -> Iterator[int]:
    """All processes below a process."""
    for thread in Path(f"/proc/{process}/task").iterdir():
        try:
            found = (thread / "children").read_text().split()
        except OSError:
            continue
        for child in map(int, found):
            yield child
            yield from children(child)


def private_bytes(process: int) -> int:
    """Memory that a process has written to and does not share; the arena is counted apart.

    Pages that were only read come and go with neighbours that map the same files.
    """
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(1024 * int(x.split()[1]) for x in lines if x.startswith("Private_Dirty"))


def held(node: Node, folder: Path) -> Held:
    gc.collect()
    below = list(children(os.getpid()))
    engines = [p for p in below if b"engine_process" in (command_of(p) or b"")]
    arena = node.info().arena
    return Held(
        private_bytes(os.getpid()),
        sum(map(private_bytes, engines)),
        len(list(Path("/proc/self/fd").iterdir())),
        arena.used_bytes,
        arena.contexts,
        sum(1 for p in (folder / "blobs").rglob("*") if p.is_file()),
        len(engines),
    )


def renamed(document: FunctionDocument, name: str) -> FunctionDocument:
    return msgspec.structs.replace(document, name=name)


def cycle(node: Node, number: int) -> None:
    """Register functions, call each well and badly, remove them."""
    divider = python_function(divide, outputs=["quotient"], name=f"divide{number}", entry="divide")
    functions = [divider]
    if number % GPU_EVERY == 0:
        functions.append(renamed(matmul.document().functions[0], f"multiply{number}"))
    node.register(RegistrationDocument(functions=tuple(functions)))
    assert node.invoke(divider.name, a=b"7", b=b"2").quotient.text() == "3"
    with pytest.raises(Raised, match="ZeroDivisionError"):
        node.invoke(divider.name, a=b"7", b=b"0")
    for multiplier in functions[1:]:
        inputs = matmul.example_inputs(number)
        product = node.invoke(multiplier.name, **inputs)
        assert matmul.agrees(matmul.results(product), matmul.expected(inputs))
        with pytest.raises(DandelionError):
            node.invoke(multiplier.name, cfg=np.zeros(0, np.int64), A=[Item("x", 0, b"12345")])
    for document in functions:
        node.remove(FunctionSpec, document.name)


@pytest.mark.timeout(600)
def test_a_thousand_cycles_leave_nothing(tmp_path: Path) -> None:
    settings = Settings(catalog=f"sqlite:{tmp_path}", engines={"process": 1})
    with Node(settings) as node:
        assert node.wait_ready()
        for number in range(WARM_UP):
            cycle(node, number)
        before = held(node, tmp_path)
        for number in range(WARM_UP, WARM_UP + CYCLES):
            cycle(node, number)
        after = held(node, tmp_path)
        assert node.catalog.records() == []
    print(before, after, sep="\n")
    assert (after.arena_bytes, after.contexts) == (before.arena_bytes, before.contexts) == (0, 0)
    assert (after.blobs, after.children) == (before.blobs, before.children)
    assert after.descriptors <= before.descriptors
    assert after.resident_bytes - before.resident_bytes < SLACK_BYTES
    assert after.children_bytes - before.children_bytes < SLACK_BYTES
