"""An engine in a process: calls go there and back without a thread of their own.

A call that needs no waiting is sent by the thread that pumps, and its answer is taken by whoever
looks for it: its caller, who waits for nothing else, or the event loop (`replies.py`). On that way
only the engine's process and the caller wake up. Everything that takes time is an order to the
host's thread: starting and replacing the process, functions that are not loaded, large copies,
calls whose process died or does not answer.

`_out` is the call that is out. Whoever takes it from there, under the lock, finishes it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from dandelion.driver import Engine, InstanceSets
from dandelion.errors import DandelionError
from dandelion.node.failures import typed
from dandelion.node.hosts import EngineHost, HostFacts, Work, result_of
from dandelion.node.remote import GRACE_S, Answer, RemoteEngine, Sent
from dandelion.node.replies import Replies
from dandelion.node.thread_host import ThreadHost

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
        self._out: Work | None = None
        self._taking = threading.Lock()
        super().__init__(facts, formats, changed, self._started_engine, describe, remote.abandon)
        replies.watch(self)

    def _started_engine(self) -> Engine:
        self._remote.start()
        return self._remote

    def fileno(self) -> int:
        """Give what becomes readable when an answer comes; -1 if there is no process."""
        return self._remote.fileno()

    def _submit(self, work: Work) -> None:
        work.started_ns = time.monotonic_ns()
        sent = self._remote.begin(work.call)
        if sent is Sent.NOTHING:
            super()._submit(work)
            return
        self._out = work
        if sent is Sent.ALL:
            self._replies.expect(self)
        else:
            self._inbox.put(self._finish_out)

    def receive(self) -> bool:
        """Take the answer if it is here. True if there is nothing to look for any more."""
        if not self._taking.acquire(blocking=False):
            return False
        outputs: InstanceSets | None = None
        failure: DandelionError | None = None
        try:
            work = self._out
            if work is None:
                return True
            try:
                answer = self._remote.take(work.call)
            except Exception as error:
                failure = typed(error, self.facts.name)
            else:
                if answer is Answer.NOT_YET:
                    return False
                if isinstance(answer, Answer):
                    self._inbox.put(self._finish_out)
                    return True
                outputs = answer
            self._out = None
        finally:
            self._taking.release()
        self._finish(work, outputs, failure)
        return True

    def check(self, now_ns: int) -> None:
        """Give up the call that is out, if it should have been answered long ago."""
        work = self._out
        if work is not None and now_ns > work.call.deadline_ns + _GRACE_NS:
            self._inbox.put(self._finish_out)

    def _finish_out(self, engine: Engine) -> None:
        """See the call that is out to its end, however long that takes."""
        with self._taking:
            work, self._out = self._out, None
        if work is not None:
            self._end(work, engine, result_of(engine, self._remote.finish, work.call))

    def _shut(self, engine: Engine) -> None:
        self._finish_out(engine)
        super()._shut(engine)

    def close(self) -> None:
        super().close()
        self._replies.unwatch(self)
