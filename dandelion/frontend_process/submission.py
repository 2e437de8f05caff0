"""Submitting an invocation on the node's loop without a coroutine of one's own.

To be replaced by `Node.submit`, which has the same signature without its first argument.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol

from dandelion.data import ItemSet
from dandelion.errors import Cancelled, DandelionError, InternalError
from dandelion.frontend.cycle import finish
from dandelion.node import Node


class Submitted(Protocol):
    """An invocation that was submitted.

    Attributes:
        id: of the invocation.
        outputs: its output sets, when it has ended well.
        output_names: their names.
        error: why there are none.
    """

    id: str
    outputs: tuple[ItemSet | None, ...] | None
    output_names: tuple[str, ...]
    error: DandelionError | None

    def cancel(self, error: DandelionError) -> None:
        """End it with this error."""


class _Submission:
    """Implements `Submitted` with `Node.invoke_sets_async`."""

    def __init__(self, ended: Callable[[Submitted], None]) -> None:
        self.id = ""
        self.outputs: tuple[ItemSet | None, ...] | None = None
        self.output_names: tuple[str, ...] = ()
        self.error: DandelionError | None = None
        self._ended = ended
        self._task: asyncio.Task[None] | None = None
        self._reason: DandelionError | None = None

    async def run(self, invoking: Coroutine[Any, Any, Any]) -> None:
        try:
            outcome = await invoking
        except DandelionError as error:
            self.id = error.invocation
            self.error = error.with_traceback(None)
        except asyncio.CancelledError:
            self.error = self._reason or Cancelled("the node stops")
        except Exception as error:
            self.error = InternalError(f"{type(error).__name__}: {error}")
        else:
            self.id = outcome.id
            self.output_names = tuple(outcome.sets)
            self.outputs = tuple(outcome.sets.values())
            del outcome
        self._ended(self)

    def begin(self, running: Coroutine[Any, Any, None]) -> None:
        try:
            awaited = running.send(None)
        except StopIteration:
            return
        self._task = asyncio.get_running_loop().create_task(finish(running, awaited))

    def cancel(self, error: DandelionError) -> None:
        self._reason = error
        if self._task is not None:
            self._task.cancel()


def submit(
    node: Node,
    name: str,
    sets: Mapping[str, ItemSet | None],
    *,
    version: int | None = None,
    deadline_s: float | None = None,
    ended: Callable[[Submitted], None],
) -> Submitted:
    """Begin an invocation; for the node's loop.

    Args:
        node: invokes.
        name, version, sets, deadline_s: as those of `Node.invoke_sets`.
        ended: called once on the loop, perhaps before this returns.
    """
    submission = _Submission(ended)
    invoking = node.invoke_sets_async(name, sets, version=version, deadline_s=deadline_s)
    submission.begin(submission.run(invoking))
    return submission
