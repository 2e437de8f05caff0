"""What a caller gets for an asynchronous invocation, embedded or over HTTP."""

from __future__ import annotations

import abc
import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator

from dandelion.asynchronous.failures import NotEnded
from dandelion.asynchronous.records import KeptEvent, KeptState, KeptView, Watched
from dandelion.data import Sets
from dandelion.errors import DandelionError, InvalidInput
from dandelion.progress import ShowProgress
from dandelion.progress import progress as progress_bar

POLL_S = 20.0
"""How long one request of `result` and `events` waits; some proxies give up after 30 seconds."""


class KeptAccess(abc.ABC):
    """How a handle reaches the node."""

    @abc.abstractmethod
    def watch(self, id_: str, after: str, wait_s: float, *, end: bool) -> Watched:
        """Tell about an invocation; see `dandelion.node.kept_views.KeptViews.watch`."""

    @abc.abstractmethod
    def result(self, id_: str, wait_s: float) -> Sets:
        """Give the result; wait for it so many seconds."""

    @abc.abstractmethod
    def cancel(self, id_: str) -> KeptView:
        """End it, or forget it if it has ended."""

    def pause_s(self, error: DandelionError) -> float | None:
        """Return how long to wait before the same is asked again; None: the error is raised."""
        return None


class AsyncKeptAccess(abc.ABC):
    """How a handle reaches the node from an event loop; see `KeptAccess`."""

    @abc.abstractmethod
    async def watch(self, id_: str, after: str, wait_s: float, *, end: bool) -> Watched:
        """Tell about an invocation."""

    @abc.abstractmethod
    async def result(self, id_: str, wait_s: float) -> Sets:
        """Give the result; wait for it so many seconds."""

    @abc.abstractmethod
    async def cancel(self, id_: str) -> KeptView:
        """End it, or forget it if it has ended."""

    def pause_s(self, error: DandelionError) -> float | None:
        """Return how long to wait before the same is asked again; None: the error is raised."""
        return None


class InvocationHandle:
    """One asynchronous invocation. Safe to use from any thread.

    All methods raise `Unknown` once the node has forgotten it. Over HTTP, `result` and `events`
    wait for a node that gives no answer for a while, such as one that is restarted, see
    `dandelion.frontend.outage`; the other methods raise `Unreachable` at once.

    Attributes:
        id: what the node calls it; also the id of its trace.
    """

    def __init__(self, id_: str, access: KeptAccess) -> None:
        self.id = id_
        self._access = access

    def __repr__(self) -> str:
        return f"InvocationHandle({self.id!r})"

    def _repr_html_(self) -> str:
        return self.view()._repr_html_()

    def view(self) -> KeptView:
        """Return its state, times, progress and error."""
        return self._access.watch(self.id, "", 0.0, end=True).view

    def state(self) -> KeptState:
        """Return its state."""
        return self.view().state

    def result(self, timeout_s: float | None = None, *, progress: bool = False) -> Sets:
        """Wait for the output sets.

        Args:
            timeout_s: how long, in seconds; by default without limit.
            progress: on a terminal or in a notebook, show how many calls have ended.

        Raises:
            NotEnded: the time is over.
            InvalidInput: the time is not a number.
            DandelionError: why it failed, of the same class as of a synchronous invocation.
        """
        wait = _Wait(timeout_s, time.monotonic)
        if progress:
            self._show_progress(wait)
        while True:
            try:
                return self._access.result(self.id, wait.next_s())
            except NotEnded:
                if wait.is_over():
                    raise
            except DandelionError as error:
                time.sleep(wait.pause_s(self._access.pause_s(error), error))

    def _watch(self, after: str, wait: _Wait) -> Watched:
        while True:
            try:
                return self._access.watch(self.id, after, wait.next_s(), end=False)
            except DandelionError as error:
                time.sleep(wait.pause_s(self._access.pause_s(error), error))

    def _show_progress(self, wait: _Wait) -> None:
        """Show how many calls have ended, until its end or that of the time."""
        after = ""
        with progress_bar("calls") as show:
            while not wait.is_over():
                watched = self._watch(after, wait)
                show_counts(watched, show)
                if watched.view.state.has_ended:
                    return
                after = watched.events[-1].id if watched.events else after

    def cancel(self) -> KeptView:
        """End it, or forget it if it has ended; return what it was before."""
        return self._access.cancel(self.id)

    def events(self, after: str = "") -> Iterator[KeptEvent]:
        """Yield what happens, until its end; the last event has the final state.

        Args:
            after: id of the last event that is known; by default all that the node has.
        """
        wait = _Wait(None, time.monotonic)
        while True:
            watched = self._watch(after, wait)
            yield from watched.events
            if watched.events:
                after = watched.events[-1].id
            if watched.view.state.has_ended:
                return


class AsyncInvocationHandle:
    """The asynchronous form of `InvocationHandle`, for one event loop.

    Attributes:
        id: what the node calls it; also the id of its trace.
    """

    def __init__(self, id_: str, access: AsyncKeptAccess) -> None:
        self.id = id_
        self._access = access

    def __repr__(self) -> str:
        return f"AsyncInvocationHandle({self.id!r})"

    async def view(self) -> KeptView:
        """Return its state, times, progress and error."""
        return (await self._access.watch(self.id, "", 0.0, end=True)).view

    async def state(self) -> KeptState:
        """Return its state."""
        return (await self.view()).state

    async def result(self, timeout_s: float | None = None, *, progress: bool = False) -> Sets:
        """Wait for the output sets, as `InvocationHandle.result`. Cancelling changes nothing."""
        wait = _Wait(timeout_s, asyncio.get_running_loop().time)
        if progress:
            await self._show_progress(wait)
        while True:
            try:
                return await self._access.result(self.id, wait.next_s())
            except NotEnded:
                if wait.is_over():
                    raise
            except DandelionError as error:
                await asyncio.sleep(wait.pause_s(self._access.pause_s(error), error))

    async def _watch(self, after: str, wait: _Wait) -> Watched:
        while True:
            try:
                return await self._access.watch(self.id, after, wait.next_s(), end=False)
            except DandelionError as error:
                await asyncio.sleep(wait.pause_s(self._access.pause_s(error), error))

    async def _show_progress(self, wait: _Wait) -> None:
        """Show how many calls have ended, until its end or that of the time."""
        after = ""
        with progress_bar("calls") as show:
            while not wait.is_over():
                watched = await self._watch(after, wait)
                show_counts(watched, show)
                if watched.view.state.has_ended:
                    return
                after = watched.events[-1].id if watched.events else after

    async def cancel(self) -> KeptView:
        """End it, or forget it if it has ended; return what it was before."""
        return await self._access.cancel(self.id)

    async def events(self, after: str = "") -> AsyncIterator[KeptEvent]:
        """Yield what happens, until its end, as `InvocationHandle.events`."""
        wait = _Wait(None, asyncio.get_running_loop().time)
        while True:
            watched = await self._watch(after, wait)
            for event in watched.events:
                yield event
            if watched.events:
                after = watched.events[-1].id
            if watched.view.state.has_ended:
                return


def show_counts(watched: Watched, show: ShowProgress) -> None:
    """Show the calls of an invocation that have ended, and those that are known by now."""
    for event in watched.events:
        found = event.progress
        if found is not None:
            known = found.instances_ended + found.instances_in_flight
            show(found.instances_ended, known, event.state.value)


class _Wait:
    """The time that a result may take."""

    def __init__(self, timeout_s: float | None, clock: Callable[[], float]) -> None:
        if timeout_s is not None and math.isnan(timeout_s):  # it would never be over
            raise InvalidInput("timeout_s", "nan is not a number of seconds")
        self._clock = clock
        self._end_s = None if timeout_s is None else clock() + timeout_s

    def next_s(self) -> float:
        if self._end_s is None:
            return POLL_S
        return min(POLL_S, max(0.0, self._end_s - self._clock()))

    def pause_s(self, pause_s: float | None, error: DandelionError) -> float:
        """Return how long to pause after an error; raise it if that is not to be, or in vain."""
        if pause_s is None or self.is_over():
            raise error
        return min(pause_s, self.next_s())

    def is_over(self) -> bool:
        return self._end_s is not None and self._clock() >= self._end_s
