"""What an executor has when it is idle."""

import gc

from dandelion.executors.staging import INLINE_COPY_BYTES
from tests.executors.harness import Bench

LARGE = bytes(INLINE_COPY_BYTES + 1)


def assert_empty(bench: Bench) -> None:
    """Assert that neither the executor nor the arena keeps data of calls."""
    executor = bench.executor
    assert [*executor._waiting, *executor._out, *executor._plans] == []
    assert not executor._preparing
    bench.loop.outputs.clear()
    gc.collect()
    assert bench.arena.stats().contexts == 0
