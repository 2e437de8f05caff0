"""Asynchronous invocations on a node: carries out the actions of `KeptLives`, on the node's loop.

Inputs are in memory until the store has them; an invocation that waits for its place has none and
reads them again.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any

import msgspec

from dandelion.asynchronous.actions import (
    Accepted,
    Action,
    Begin,
    Call,
    Changed,
    Erase,
    Refused,
    Save,
    Stop,
)
from dandelion.asynchronous.failures import NotEnded
from dandelion.asynchronous.kept import KeptLimits
from dandelion.asynchronous.life import KeptLives
from dandelion.asynchronous.records import (
    CallbackRecord,
    KeptRecord,
    KeptRequest,
    KeptView,
    check_key,
)
from dandelion.asynchronous.store import KeptStore, Part
from dandelion.asynchronous.stored_sets import size_of
from dandelion.data import ItemSet, Sets
from dandelion.deadline import checked_deadline
from dandelion.errors import (
    Cancelled,
    DandelionError,
    from_record,
)
from dandelion.node.awaiting import awaited_plan
from dandelion.node.callback_sender import CallbackRules, CallbackSender
from dandelion.node.inputs import positional
from dandelion.node.invoker import Invoker
from dandelion.node.kept_problems import StoreProblems
from dandelion.node.kept_reader import KeptReader
from dandelion.node.kept_runner import KeptRunner
from dandelion.node.kept_views import KeptViews
from dandelion.node.kept_writer import KeptWriter, PendingStep
from dandelion.node.runtime import Runtime
from dandelion.priority import checked_priority
from dandelion.settings import Settings

TICK_S = 0.25
"""How often time passes for kept invocations, and progress is told to watchers."""

log = logging.getLogger("dandelion.node")


@dataclass(frozen=True, slots=True)
class KeptOutcome:
    """The result of an asynchronous invocation; see `dandelion.frontend.service.ServedResult`."""

    id: str
    sets: Sets


class KeptService:
    """All asynchronous invocations of a node. For the loop's thread.

    Args:
        settings: of the node.
        store: that keeps them; it is closed by this.
        invoker: begins attempts.
        runtime: cancels attempts.
        pool: whose threads write to the store, see `KeptWriter`.
        reading: whose threads read from it.
        rules: of callbacks.

    Attributes:
        lives: of all of them.
        views: what callers see of them.
        reader: of inputs and results.
    """

    def __init__(
        self,
        settings: Settings,
        store: KeptStore,
        invoker: Invoker,
        runtime: Runtime,
        pool: Executor,
        reading: Executor,
        rules: CallbackRules,
    ) -> None:
        self._settings = settings
        self._store = store
        self._invoker = invoker
        self._pool = pool
        self.reader = KeptReader(store, reading)
        self._rules = rules
        self._sender: CallbackSender | None = None
        self.lives = KeptLives(
            KeptLimits(
                running=min(settings.async_running, max(1, settings.max_waiting // 2)),
                number=settings.async_keep_number,
                total_bytes=settings.async_keep_bytes,
                keep_s=settings.async_keep_s,
                attempts=settings.async_attempts,
            )
        )
        self._problems = StoreProblems()
        self._writer = KeptWriter(store, pool, self._stored, self._carry_out)
        self._runner = KeptRunner(
            self.lives,
            invoker,
            runtime,
            lambda record: self.reader.read(record.id, Part.INPUTS),
            settings.async_deadline_s,
            lambda id_, end: self.views.application(id_, end),
            self._carry_out,
        )
        self.views = KeptViews(
            self.lives, settings.async_watchers, self._runner.progress, self._tick_later
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_acting = False
        self._inputs: dict[str, Mapping[str, ItemSet | None]] = {}
        self._accepting: dict[str, list[asyncio.Future[None]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._carriers: dict[type[Action], Callable[[Any], None]] = {
            Save: self._save,
            Erase: lambda action: self._writer.add(PendingStep(action)),
            Accepted: self._accepted,
            Refused: self._refused,
            Begin: self._begin,
            Stop: lambda action: self._runner.stop(action.id),
            Changed: self.views.changed,
            Call: self._call,
        }

    # --- life -------------------------------------------------------------------------------------

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin, and go on with what the store has; on the loop."""
        self._loop = loop
        records = self._store.load()
        if records:
            self.lives.recovered(records, time.time())
            self._carry_out()

    def adopt(self, records: Sequence[KeptRecord], from_another: bool) -> None:
        """Go on with invocations, which the store has by now; on the loop.

        Args:
            records: of them.
            from_another: another node accepted them. Those of tenants that this node cannot have
                fail.
        """
        self._loop = asyncio.get_running_loop()
        self._runner.adopted_s = time.monotonic()
        refused: dict[str, DandelionError] = {}
        for record in records if from_another else ():
            try:
                if not record.state.has_ended:
                    self._invoker.check_tenant(record.tenant)
            except DandelionError as error:
                refused[record.id] = error.with_traceback(None)
        self.lives.recovered(records, time.time(), refused)
        self._carry_out()

    def abandon(self, ids: Iterable[str], error: DandelionError) -> None:
        """Another node has taken these: end attempts, and forget them; on the loop."""
        self.lives.abandoned(ids, error, time.time())
        self._carry_out()

    def closing(self, idle: Future[None]) -> None:
        """Take attempts back, and resolve a future when the store has everything; on the loop."""
        self._store.closing()
        self.lives.closing()
        self._carry_out()
        self._runner.close()
        for task in self._tasks:
            task.cancel()
        self.views.close()
        for futures in self._accepting.values():
            for future in futures:
                if not future.done():
                    future.set_exception(Cancelled("the node is shutting down"))
        if self._timer is not None:
            self._timer.cancel()
        if self._sender is not None:
            self._task(self._sender.close())
        self._writer.when_idle(idle)

    def close(self) -> None:
        """Close the store; after `closing`, from any thread."""
        self._pool.shutdown()
        self._store.close()

    # --- callers ----------------------------------------------------------------------------------

    async def submit(
        self, request: KeptRequest, sets: Mapping[str, ItemSet | None], tenant: str
    ) -> KeptView:
        """Accept an invocation: it is in the store when this returns.

        Raises:
            Unknown, InvalidInput: it does not fit.
            KeyReused: the idempotency key belongs to another request.
            Overloaded, KeptFull, DiskFull, CatalogUnavailable: it cannot be kept now.
            Cancelled: the node does not run.
        """
        request = self._checked(request, tenant)
        plan = await awaited_plan(self._invoker.library(tenant), request.name, request.version)
        positional(plan, sets)
        size = size_of(sets)
        digest = await self.reader.digest(request, sets) if request.key else ""
        callback = CallbackRecord(request.callback) if request.callback else None
        record = KeptRecord(
            id=secrets.token_hex(16),
            tenant=tenant,
            request=request,
            digest=digest,
            created_s=time.time(),
            input_bytes=size,
            callback=callback,
        )
        id_ = self.lives.submit(record, record.created_s)
        if id_ == record.id:
            self._inputs[id_] = sets
        kept = self.lives.books.all[id_]
        waits = None
        if kept.shown is None:
            waits = asyncio.get_running_loop().create_future()
            self._accepting.setdefault(id_, []).append(waits)
        self._carry_out()
        if waits is not None:
            await waits
        return self.views.view(self.views.found(id_, tenant))

    def _checked(self, request: KeptRequest, tenant: str) -> KeptRequest:
        """Give a request with numbers of the types that are stored, if it may be accepted."""
        if not self._invoker.running:
            raise Cancelled("the node is not running")
        if request.deadline_s is not None:
            seconds = checked_deadline(request.deadline_s)
            request = msgspec.structs.replace(request, deadline_s=seconds)
        checked_priority("priority", request.priority)
        if request.key:
            check_key("header.idempotency-key", request.key)
        if request.callback:
            self._rules.check(request.callback, tenant)
        return request

    async def result(self, id_: str, tenant: str) -> KeptOutcome:
        """Give the result.

        Raises:
            Unknown: the tenant has no such invocation.
            NotEnded: it has none yet.
            DandelionError: why it failed.
            CatalogCorrupt, CatalogUnavailable: the store cannot give it.
        """
        kept = self.views.found(id_, tenant)
        if not kept.state.has_ended:
            raise NotEnded(id_, kept.state.value)
        assert kept.shown is not None, "it was found"
        if kept.shown.error is not None:
            error = from_record(kept.shown.error)
            error.invocation = id_
            raise error
        try:
            sets = await self.reader.read(id_, Part.RESULT)
        except DandelionError:
            self.views.found(id_, tenant)  # raises if it was deleted meanwhile
            raise
        return KeptOutcome(id_, Sets(sets))

    def cancel(self, id_: str, tenant: str) -> KeptView:
        """End an invocation, or forget it if it has ended.

        Raises:
            Unknown: the tenant has no such invocation.
        """
        kept = self.views.found(id_, tenant)
        view = self.views.view(kept)
        self.lives.cancel(id_, time.time())
        self._carry_out()
        return view

    # --- actions ----------------------------------------------------------------------------------

    def _carry_out(self) -> None:
        """Carry out actions, also those that follow from them."""
        if self._is_acting:
            return
        self._is_acting = True
        try:
            while actions := self.lives.take():
                for action in actions:
                    self._carriers[type(action)](action)
        finally:
            self._is_acting = False
        self._tick_later()

    def _save(self, action: Save) -> None:
        sets = None
        id_ = action.record.id
        if action.part is Part.INPUTS:
            sets = self._inputs[id_]
        elif action.part is Part.RESULT:
            sets = self._runner.take_outputs(id_)
        self._writer.add(PendingStep(action, sets))

    def _stored(self, action: Save | Erase, error: DandelionError | None) -> None:
        """The writer has carried out an action."""
        if isinstance(action, Erase):
            if error is not None:
                self.lives.erase_failed(action.id)
            return
        id_ = action.record.id
        if error is None:
            self.lives.stored(id_, time.time())
        else:
            self._problems.add(id_, error)
            self.lives.store_failed(id_, error, time.time())

    def _accepted(self, action: Accepted) -> None:
        if not self.lives.books.all[action.id].has_place:
            self._inputs.pop(action.id, None)  # they are read when there is a place
        for future in self._accepting.pop(action.id, ()):
            if not future.done():
                future.set_result(None)

    def _refused(self, action: Refused) -> None:
        self._inputs.pop(action.id, None)
        for future in self._accepting.pop(action.id, ()):
            if not future.done():
                future.set_exception(action.error)

    def _begin(self, action: Begin) -> None:
        self._runner.begin(action.record, self._inputs.pop(action.record.id, None))

    def _call(self, action: Call) -> None:
        if self._sender is None:
            self._sender = CallbackSender(self._rules)
        self._task(self._send(self._sender, action.record))

    async def _send(self, sender: CallbackSender, record: KeptRecord) -> None:
        problem = await sender.send(record)
        self.lives.called(record.id, problem, time.time())
        self._carry_out()

    # --- the rest ---------------------------------------------------------------------------------

    def _task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("a kept invocation failed", exc_info=error)

    def _tick_later(self) -> None:
        if self._timer is not None or self.lives.is_closing:
            return
        if self.lives.waits_for_time() or self.views.watching:
            assert self._loop is not None, "it was started"
            self._timer = self._loop.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if self.views.watching:
            for id_ in self._runner.ids:
                self.views.tell_progress(id_)
        self.lives.tick(time.time())
        self._carry_out()
