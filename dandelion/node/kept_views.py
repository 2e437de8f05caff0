"""What callers see of asynchronous invocations: views, histories, lists, and waiting for news.

Watchers are futures in the log of an invocation: no thread waits.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Iterator

import msgspec

from dandelion.asynchronous.actions import Changed
from dandelion.asynchronous.kept import Kept
from dandelion.asynchronous.life import KeptLives
from dandelion.asynchronous.records import KeptPage, KeptState, KeptView, Progress, Watched
from dandelion.dispatcher.watched import ApplicationEnd
from dandelion.errors import ErrorRecord, InvalidInput, Overloaded, Unknown
from dandelion.node.kept_log import KeptLog

PAGE_LIMIT = 1000
WAIT_LIMIT_S = 60.0
_TEXT = 200  # characters
_PROBLEMS = 3


class KeptViews:
    """Shows the invocations of a `KeptLives`. For the loop's thread.

    Args:
        lives: are shown.
        watchers: how many requests of a tenant may wait at once.
        progress: of an attempt that runs.
        waits: called when a watcher begins to wait.

    Attributes:
        watching: how many requests of each tenant wait.
    """

    def __init__(
        self,
        lives: KeptLives,
        watchers: int,
        progress: Callable[[str], Progress | None],
        waits: Callable[[], None],
    ) -> None:
        self._lives = lives
        self._watchers = watchers
        self._progress = progress
        self._waits = waits
        self._logs: dict[str, KeptLog] = {}
        self.watching: Counter[str] = Counter()

    async def watch(
        self, id_: str, tenant: str, *, after: str = "", wait_s: float = 0.0, end: bool = False
    ) -> Watched:
        """Tell about an invocation, at once or when there is something new.

        Args:
            id_: of the invocation.
            tenant: of the caller.
            after: id of the last event that is known.
            wait_s: how long to wait for an event after that one, in seconds.
            end: wait for the end, and give no events.

        Raises:
            Unknown: the tenant has no such invocation, or it was forgotten meanwhile.
            Overloaded: too many requests of the tenant wait.
        """
        if wait_s > 0 and self.watching[tenant] >= self._watchers:
            what = "requests that wait for asynchronous invocations"
            raise Overloaded(self.watching[tenant], self._watchers, what, f"tenant '{tenant}'")
        clock = asyncio.get_running_loop().time
        until = clock() + min(wait_s, WAIT_LIMIT_S)
        while True:
            kept = self.found(id_, tenant)
            kept_log = self._log_of(kept)
            events = () if end else kept_log.since(after)
            left_s = until - clock()
            if events or kept.state.has_ended or left_s <= 0 or self._lives.is_closing:
                return Watched(self.view(kept), events)
            await self._next(kept_log, tenant, left_s)

    async def _next(self, kept_log: KeptLog, tenant: str, limit_s: float) -> None:
        future = asyncio.get_running_loop().create_future()
        kept_log.waiters.add(future)
        self.watching[tenant] += 1
        self._waits()
        try:
            await asyncio.wait([future], timeout=limit_s)  # needs no task, unlike asyncio.timeout
        finally:
            kept_log.waiters.discard(future)
            self.watching[tenant] -= 1
            if not self.watching[tenant]:
                del self.watching[tenant]

    def list(self, tenant: str, state: KeptState | None, after: str, limit: int) -> KeptPage:
        """List invocations of a tenant, newest first.

        Args:
            tenant: whose.
            state: only those in this state.
            after: where the last page ended.
            limit: how many at most.

        Raises:
            InvalidInput: `after` is not that of a page.
        """
        place = _place_of(after) if after else None
        found: list[KeptView] = []
        for kept in self._behind(tenant, place):
            if state is not None and kept.state is not state:
                continue
            if len(found) == min(limit, PAGE_LIMIT):
                last = found[-1]
                return KeptPage(tuple(found), f"{last.created_s!r}_{last.id}")
            found.append(_short(self.view(kept)))
        return KeptPage(tuple(found))

    def _behind(self, tenant: str, place: tuple[float, str] | None) -> Iterator[Kept]:
        """Give the invocations of a tenant that come after the end of a page."""
        every = self._lives.books.newest_first(tenant)
        if place is None:
            return every
        if self._lives.find(place[1], tenant) is None:
            return (kept for kept in every if (kept.record.created_s, kept.record.id) < place)
        # It is still there. Times need not be in order: the clock may have been set back.
        behind = itertools.dropwhile(lambda kept: kept.record.id != place[1], every)
        return itertools.islice(behind, 1, None)

    def found(self, id_: str, tenant: str) -> Kept:
        """Find an invocation that a tenant may see.

        Raises:
            Unknown: there is none.
        """
        kept = self._lives.find(id_, tenant)
        if kept is None:
            raise Unknown("invocation", id_[:64])
        return kept

    def view(self, kept: Kept) -> KeptView:
        """Show an invocation to its tenant."""
        record = kept.shown
        assert record is not None, "it was accepted"
        request, ended = record.request, record.state.has_ended
        return KeptView(
            id=record.id,
            name=request.name,
            version=request.version,
            state=kept.state,
            attempts=record.attempts,
            created_s=record.created_s,
            started_s=record.started_s,
            ended_s=record.ended_s,
            expires_s=record.ended_s + self._lives.limits.keep_s if ended else 0.0,
            result_bytes=record.result_bytes,
            error=record.error,
            progress=self._progress(record.id),
            callback=record.callback,
        )

    def _log_of(self, kept: Kept) -> KeptLog:
        kept_log = self._logs.get(kept.record.id)
        if kept_log is None:
            kept_log = self._logs[kept.record.id] = KeptLog()
            assert kept.shown is not None, "it was accepted"
            kept_log.state(kept.state, kept.shown.error)
        return kept_log

    def changed(self, action: Changed) -> None:
        """The state of an invocation is another one, or it is forgotten."""
        kept = self._lives.books.all.get(action.id)
        if kept is None:
            kept_log = self._logs.pop(action.id, None)
            if kept_log is not None:
                kept_log.wake()
        else:
            assert kept.shown is not None, "it was accepted"
            self._log_of(kept).state(kept.state, kept.shown.error)

    def application(self, id_: str, end: ApplicationEnd) -> None:
        """An application of an invocation has ended."""
        kept_log = self._logs.get(id_)
        progress = self._progress(id_)
        if kept_log is not None and progress is not None:
            kept_log.application(KeptState.RUNNING, end.application, end.outputs, progress)

    def tell_progress(self, id_: str) -> None:
        """Tell watchers of an attempt how far it is."""
        kept_log, progress = self._logs.get(id_), self._progress(id_)
        if kept_log is not None and kept_log.waiters and progress is not None:
            kept_log.progress(KeptState.RUNNING, progress)

    def close(self) -> None:
        """Let all watchers look again; they find that the node is closing."""
        for kept_log in self._logs.values():
            kept_log.wake()


def _place_of(after: str) -> tuple[float, str]:
    time_s, _, id_ = after.partition("_")
    try:
        return float(time_s), id_
    except ValueError:
        raise InvalidInput("query.after", f"{after[:80]!r} is not the end of a page") from None


def _short(view: KeptView) -> KeptView:
    """Shorten for a list what may be long in an error: printed output, tracebacks, problems."""
    return view if view.error is None else msgspec.structs.replace(view, error=_clip(view.error))


def _clip(record: ErrorRecord) -> ErrorRecord:
    fields = {}
    for name, value in record.fields.items():
        if isinstance(value, str):
            value = value[:_TEXT]
        elif isinstance(value, list):
            value = value[:_PROBLEMS]
        fields[name] = value
    cause = None if record.cause is None else _clip(record.cause)
    return ErrorRecord(record.type, record.message[:_TEXT], fields, cause)
