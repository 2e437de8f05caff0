"""An engine in a process: calls go there and back without a thread of their own.

A call that needs no waiting is sent by the thread that pumps, and its answer is taken by whoever
looks for it: its caller, who waits for nothing else, or the event loop (`replies.py`). On that way
only the engine's process and the caller wake up. Everything that takes time is an order to the
host's thread: starting and replacing the process, functions that are not loaded, large copies,
calls whose process died or does not answer.

`_out` has the calls that are out, first the one that runs. Whoever takes one from there, under the
lock, finishes it. While the host's thread has to do with calls (`_slow`), all calls go through it.

Where calls are short, one more is sent while another runs: the process then goes from one to the
next without waiting for anybody.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from dandelion.driver import Driver, Engine, InstanceSets
from dandelion.errors import DandelionError, EngineDied
from dandelion.node.failures import typed
from dandelion.node.hosts import (
    EngineHost,
    HostFacts,
    Result,
    State,
    Work,
    result_of,
    run_call,
)
from dandelion.node.remote import GRACE_S, Answer, RemoteEngine, Sent
from dandelion.node.replies import Replies
from dandelion.node.thread_host import ThreadHost

DEPTH = 2
"""How many calls are out at once where calls are short."""
SHORT_NS = 5_000_000
"""Calls that take longer on average wait at the node, where any engine may take them."""
_WEIGHT = 0.2  # of the last call in that average
_GRACE_NS = int(GRACE_S * 1e9)


class ProcessHost(ThreadHost):
    """Runs an engine in a process.

    Args:
        remote: not started yet.
        describe: completes `HostFacts` from the engine that is up.
        replies: looks for answers.
    """

    def __init__(
        self,
        facts: HostFacts,
        formats: frozenset[str],
        changed: Callable[[EngineHost], None],
        remote: RemoteEngine,
        describe: Callable[[Engine, HostFacts], None],
        replies: Replies,
    ) -> None:
        self._remote = remote
        self._replies = replies
        self._out: deque[Work] = deque()
        self._slow: deque[Work | None] = deque()
        self._mean_ns = 0.0
        self._last = ""  # identity of the function that was sent last
        self._taking = threading.Lock()
        super().__init__(facts, formats, changed, self._started_engine, describe, remote.abandon)
        replies.watch(self)

    def _started_engine(self) -> Engine:
        self._remote.start()
        return self._remote

    def fileno(self) -> int:
        """Give what becomes readable when an answer comes; -1 if there is no process."""
        return self._remote.fileno()

    @property
    def driver(self) -> Driver:
        return self._remote.driver

    @property
    def free(self) -> int:
        if self.state is not State.READY:
            return 0
        return (DEPTH if 0 < self._mean_ns < SHORT_NS else 1) - self.busy

    def knows(self, function: str) -> int:
        return 2 if function == self._last else int(self._remote.knows(function))

    def _submit(self, work: Work) -> None:
        self._last = work.call.function.identity
        if self._slow:
            self._submit_slowly(work)
            return
        work.started_ns = time.monotonic_ns()
        if self._out:
            work.queued_ns = work.queued_ns or work.started_ns
        self._out.append(work)  # first: its answer may come before this thread goes on
        try:
            sent = self._remote.begin(work.call)
        except BaseException:
            if self._taken_back(work):
                raise
            return
        if sent is Sent.ALL:
            self._replies.expect(self)
        elif sent is Sent.PART:
            self._care()
        elif self._taken_back(work):
            self._submit_slowly(work)

    def _taken_back(self, work: Work) -> bool:
        """Take off a call that was not sent. False if it was ended meanwhile, with its engine."""
        try:
            self._out.remove(work)
        except ValueError:
            return False
        return True

    def _submit_slowly(self, work: Work) -> None:
        self._slow.append(work)
        super()._submit(work)

    def _care(self) -> None:
        """Have the host's thread see to the calls that are out."""
        self._slow.append(None)
        self._inbox.put(self._finish_out)

    def receive(self) -> bool:
        """Take the answers that are here. True if there is nothing to look for any more."""
        if not self._taking.acquire(blocking=False):
            return False
        ended: list[tuple[Work, Result]] = []
        try:
            looking = self._take(ended)
        finally:
            self._taking.release()
        for work, result in ended:
            self._finish(work, *result)
        return not looking

    def _take(self, ended: list[tuple[Work, Result]]) -> bool:
        """Take what is here. True if there is more to look for."""
        while (work := self._first()) is not None:
            outputs: InstanceSets | None = None
            failure: DandelionError | None = None
            try:
                answer = self._remote.take(work.call)
            except Exception as error:
                failure = typed(error, self.facts.name)
            else:
                if answer is Answer.NOT_YET:
                    return True
                if isinstance(answer, Answer):
                    self._care()
                    return False
                outputs = answer
            self._begin_next(work)
            ended.append((work, (outputs, failure)))
        return False

    def _first(self) -> Work | None:
        try:
            return self._out[0]
        except IndexError:  # also where its sender takes it back just now
            return None

    def _begin_next(self, ended: Work) -> bool:
        """Take the first call off; the one behind it begins. False if its sender was faster."""
        if not self._taken_back(ended):
            return False
        now_ns = time.monotonic_ns()
        self._mean_ns += _WEIGHT * (now_ns - ended.started_ns - self._mean_ns)
        following = self._first()
        if following is not None:
            following.started_ns = now_ns
        return True

    def check(self, now_ns: int) -> None:
        """Give up the calls that are out, if the first should have been answered long ago."""
        work = self._first()
        if work is None or self._slow:
            return
        if now_ns > work.call.deadline_ns + _GRACE_NS:
            self._care()

    def _finish_out(self, engine: Engine) -> None:
        """See the calls that are out to their end, however long that takes."""
        ended: list[tuple[Work, Result]] = []
        with self._taking:
            while (work := self._first()) is not None:
                if not self._remote.lost and not self._remote.sent(work.call):
                    break  # it is being sent; its sender goes on with it
                if not self._begin_next(work):
                    continue
                work.begun = self._remote.reached(work.call)
                ended.append((work, result_of(engine, self._remote.finish, work.call)))
        self._slow.popleft()
        if ended:
            self._end(engine, ended)

    def _run(self, work: Work, engine: Engine) -> None:
        if work not in self._slow:
            return  # it was handed back
        self._slow.appendleft(None)
        self._finish_out(engine)
        if work not in self._slow:
            return
        refused = self._refused(work)
        work.call.start_deadline(work.started_ns)  # it may have waited for this thread
        result = (None, refused) if refused is not None else run_call(engine, work)
        if isinstance(result[1], EngineDied) and self._remote.posted != work.call.id:
            work.begun = False
        self._slow.popleft()
        if refused is not None:
            self._finish(work, *result)
        else:
            self._mean_ns += _WEIGHT * (time.monotonic_ns() - work.started_ns - self._mean_ns)
            self._end(engine, [(work, result)])

    def _end(self, engine: Engine, ended: list[tuple[Work, Result]]) -> None:
        if engine.lost and not self._closing:
            self.state = State.STARTING  # nothing comes after what is handed back
            ended += [(work, self._handed_back(work)) for work in tuple(self._slow) if work]
        super()._end(engine, ended)

    def _handed_back(self, work: Work) -> Result:
        """Take off a call that waits for this thread: it is not to wait for the next process."""
        self._slow.remove(work)
        work.begun = False
        work.started_ns = time.monotonic_ns()
        return None, EngineDied(self.facts.name, "it ended before the call began")

    def doubt(self) -> None:
        if self.state is State.READY and not self.busy:
            self.state = State.STARTING
            self._inbox.put(self._renew)

    def _renew(self, engine: Engine) -> None:
        """Replace a process that may be broken, and that keeps others from starting if it is."""
        self._works = self._closing or self._recovered(engine)

    def _shut(self, engine: Engine) -> None:
        self._slow.append(None)
        self._finish_out(engine)
        super()._shut(engine)

    def close(self) -> None:
        super().close()
        self._replies.unwatch(self)
