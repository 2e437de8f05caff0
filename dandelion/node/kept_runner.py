"""Attempts of asynchronous invocations.

Each is an ordinary invocation, under the id of the kept one. So traces and logs have that id, and
it is the same in all attempts. Outputs are here from the end
of an attempt until the store is given them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial

from dandelion.asynchronous.life import KeptLives
from dandelion.asynchronous.records import KeptRecord, Progress
from dandelion.asynchronous.stored_sets import size_of
from dandelion.data import ItemSet
from dandelion.dispatcher.watched import ApplicationEnd, WatchedWalk
from dandelion.errors import Cancelled, CapacityError, DandelionError, InternalError, Unknown
from dandelion.executors import to_dandelion_error
from dandelion.node.invocation import Invocation
from dandelion.node.invoker import Invoker
from dandelion.node.runtime import Runtime

BEHIND_S = 10.0
"""How long after a takeover a name that is unknown may still come with the catalogue's changes."""

NamedSets = Mapping[str, ItemSet | None]


class KeptRunner:
    """Runs attempts and reports their ends to `KeptLives`. For the loop's thread.

    Args:
        lives: gets the reports.
        invoker: makes invocations.
        runtime: runs them.
        inputs: reads the inputs of a record from the store.
        default_deadline_s: of attempts.
        application: called with the id when an application ends.
        carry_out: called after each report.

    Attributes:
        adopted_s: when this node last took over invocations of another one, by the monotonic clock.
    """

    def __init__(
        self,
        lives: KeptLives,
        invoker: Invoker,
        runtime: Runtime,
        inputs: Callable[[KeptRecord], Awaitable[NamedSets]],
        default_deadline_s: float,
        application: Callable[[str, ApplicationEnd], None],
        carry_out: Callable[[], None],
    ) -> None:
        self._lives = lives
        self._invoker = invoker
        self._runtime = runtime
        self._inputs = inputs
        self._default_deadline_s = default_deadline_s
        self._application = application
        self._carry_out = carry_out
        self._running: dict[str, tuple[Invocation, WatchedWalk]] = {}
        self._reading: dict[str, asyncio.Task[None]] = {}
        self._outputs: dict[str, NamedSets] = {}
        self.adopted_s: float | None = None

    def begin(self, record: KeptRecord, sets: NamedSets | None) -> None:
        """Begin an attempt; without sets they are read from the store first."""
        if sets is not None:
            self._start(record, sets)
            return
        task = asyncio.get_running_loop().create_task(self._read_and_start(record))
        self._reading[record.id] = task

    def stop(self, id_: str) -> None:
        """Cancel an attempt."""
        error = Cancelled("by its caller")
        running = self._running.get(id_)
        if running is not None:
            self._runtime.cancel(running[0], error)
            return
        task = self._reading.pop(id_, None)
        if task is not None:
            task.cancel()
            self._lives.failed(id_, error, time.time())

    def take_outputs(self, id_: str) -> NamedSets:
        """Give the outputs of an attempt that has ended, once."""
        return self._outputs.pop(id_)

    def close(self) -> None:
        """Begin nothing more."""
        for task in self._reading.values():
            task.cancel()

    @property
    def ids(self) -> Iterator[str]:
        """What runs now."""
        return iter(list(self._running))

    def progress(self, id_: str) -> Progress | None:
        """Tell how far an attempt is; None if it does not run."""
        running = self._running.get(id_)
        if running is None:
            return None
        walk = running[1]
        count = len(walk.plan.applications)
        return Progress(count, walk.applications_ended, walk.instances_ended, walk.in_flight)

    async def _read_and_start(self, record: KeptRecord) -> None:
        try:
            sets = await self._inputs(record)
        except DandelionError as error:
            self._lives.failed(record.id, error, time.time())
        else:
            self._start(record, sets)
        finally:
            self._reading.pop(record.id, None)
        self._carry_out()

    def _start(self, record: KeptRecord, sets: NamedSets) -> None:
        if not self._invoker.running:
            return  # the node begins to close; `KeptLives.closing` takes the attempt back
        id_ = record.id
        deadline_s = record.request.deadline_s or self._default_deadline_s
        try:
            invocation, walk = self._invoker.made_kept(
                record, sets, deadline_s, partial(self._application, id_), partial(self._end, id_)
            )
            self._running[id_] = invocation, walk
            self._runtime.submit(invocation)
        except CapacityError as error:
            self._running.pop(id_, None)
            if time.time() - record.created_s < deadline_s:
                self._lives.postponed(id_, time.time())
            else:
                self._lives.failed(id_, error.with_traceback(None), time.time())
        except DandelionError as error:
            self._running.pop(id_, None)
            if isinstance(error, Unknown) and self._may_be_behind():
                self._lives.postponed(id_, time.time())
                return
            self._lives.failed(id_, error.with_traceback(None), time.time())
        except Exception as error:  # a bug; the invocation must end
            self._running.pop(id_, None)
            self._lives.failed(id_, to_dandelion_error(error, record.request.name), time.time())

    def _may_be_behind(self) -> bool:
        return self.adopted_s is not None and time.monotonic() - self.adopted_s < BEHIND_S

    def _end(self, id_: str, invocation: Invocation) -> None:
        """An attempt has ended; perhaps before `_start` returns."""
        self._running.pop(id_, None)
        error, outputs = invocation.error, invocation.outputs
        invocation.error = invocation.outputs = None
        if error is None and outputs is None:
            error = InternalError("an invocation ended without a result")
        if error is not None:
            self._lives.failed(id_, error.with_traceback(None), time.time())
        else:
            assert outputs is not None
            sets = invocation.walk.plan.named(outputs)
            if self._lives.finished(id_, size_of(sets), time.time()):
                self._outputs[id_] = sets
        self._carry_out()
