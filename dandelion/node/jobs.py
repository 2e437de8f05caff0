"""What the scheduler requests outside of engines: loading functions, and kept results.

Reading, hashing and copying take as long as there is data. Small amounts are dealt with on the
loop; everything else in a thread, which posts when it is done.

Loading a function may have to prepare its packages again, and only some preparations are under way
at once. A load that finds no place is tried again later, if calls still wait for it, and holds no
thread until then.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Executor as Pool
from functools import partial

from dandelion.driver import InstanceSets
from dandelion.errors import DandelionError, Overloaded
from dandelion.executors import to_dandelion_error
from dandelion.node.cache import ResultCache, content_key
from dandelion.node.functions import FunctionStore
from dandelion.scheduler import CallState, Flow

INLINE_BYTES = 64 * 1024
"""How much the loop itself hashes for a call."""
_AGAIN_S = 0.25


class Jobs:
    """Carries out `Fetch` and `Look`.

    Args:
        store: loads functions.
        cache: of results.
        pool: threads for what takes time.
        post: has something done on the loop.
    """

    def __init__(
        self,
        store: FunctionStore,
        cache: ResultCache,
        pool: Pool,
        post: Callable[[Callable[[], None]], None],
    ) -> None:
        self._store = store
        self._cache = cache
        self._pool = pool
        self._post = post

    def fetch(self, flow: Flow, fetched: Callable[[Flow, DandelionError | None], None]) -> None:
        """Load a function; `fetched` is called on the loop."""

        def load() -> None:
            error: DandelionError | None = None
            try:
                flow.functions.update(self._store.load(flow))
            except Overloaded as full:
                self._post(partial(load_later, full))
                return
            except BaseException as failure:
                error = to_dandelion_error(failure, flow.name)
            self._post(partial(fetched, flow, error))

        def load_later(full: Overloaded) -> None:
            asyncio.get_running_loop().call_later(_AGAIN_S, load_again, full)

        def load_again(full: Overloaded) -> None:
            if not flow.blocked:  # its calls have ended meanwhile
                fetched(flow, full)
                return
            with contextlib.suppress(RuntimeError):  # the node closes
                self._pool.submit(load)

        self._pool.submit(load)

    def look(
        self, call: CallState, looked: Callable[[CallState, InstanceSets | None], None]
    ) -> None:
        """Look for a kept result; `looked` is called on the loop, after this has returned.

        There is none for inputs that cannot be read: the engine says what is wrong with them.
        """

        def answer() -> None:
            looked(call, self._cache.get(call.content) if call.content else None)

        def look() -> None:
            with contextlib.suppress(Exception):
                call.content = _content(call)
            self._post(answer)

        if sum([s.size_bytes for s in call.run.inputs if s is not None]) > INLINE_BYTES:
            self._pool.submit(look)
        else:
            look()

    def keep(self, call: CallState, outputs: InstanceSets) -> None:
        """Keep the result of a call that was looked for."""
        self._cache.put(call.content, call.flow.name, outputs)


def _content(call: CallState) -> bytes:
    return content_key(call.flow.name, call.run.function, call.run.inputs, call.run.origin)
