"""Programs that carry out one order, in a process of their own, and end.

They read the order from standard input and write what they found to standard output, both as
MessagePack. What they were asked for may not work here; then they say what is missing instead.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Protocol, TypeVar

import msgspec

from dandelion.errors import BackendUnavailable, DandelionError
from dandelion.search_path import environment

from .servers import module


class Order(Protocol):
    """What is to be done; a record."""

    @property
    def backend(self) -> str:
        """Of whom something is to be found out."""


class Answer(Protocol):
    """What was found; a record."""

    @property
    def missing(self) -> str:
        """Why there is nothing; empty if there is something."""


T = TypeVar("T", bound=Order)
A = TypeVar("A", bound=Answer)


def ask(program: str, order: Order, kind: type[A], limit_s: float) -> A:
    """Run a program and give its answer.

    Args:
        program: its module.
        order: what it is told.
        kind: of its answer.
        limit_s: how long it may take.

    Raises:
        BackendUnavailable: the backend does not work here, or the program ended without an answer.
        subprocess.TimeoutExpired: it was killed at the limit.
    """
    done = subprocess.run(
        module(program), input=msgspec.msgpack.encode(order),
        capture_output=True, env=environment(), timeout=limit_s, check=False,
    )  # fmt: skip
    if done.returncode:
        wrote = done.stderr.decode(errors="replace").strip().splitlines()
        raise BackendUnavailable(order.backend, wrote[-1] if wrote else "the program ended")
    found = msgspec.msgpack.decode(done.stdout, type=kind)
    if found.missing:
        raise BackendUnavailable(order.backend, found.missing)
    return found


def answer(kind: type[T], measure: Callable[[T], A], without: Callable[[str], A]) -> int:
    """Be such a program.

    Args:
        kind: of its order.
        measure: carries it out.
        without: makes the answer from what is missing.

    Returns:
        The exit code.
    """
    order = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=kind)
    try:
        found = measure(order)
    except DandelionError as error:
        found = without(str(error))
    sys.stdout.buffer.write(msgspec.msgpack.encode(found))
    return 0
