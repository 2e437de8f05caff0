"""Signals to a whole group of processes, as of a terminal or a service manager."""

from __future__ import annotations

import signal
from contextlib import closing

import pytest

from dandelion.engine_process.messages import Ready
from dandelion.executors import Processes
from dandelion.memory import SharedDomain

LIMIT_S = 60.0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_engine_process_ends_with_its_node_and_not_by_a_signal(number: signal.Signals) -> None:
    with closing(SharedDomain(1 << 20)) as arena:
        processes = Processes(("null",), "", {}, {}, arena.map, 0)
        assert isinstance(processes.started(0, "null"), Ready)
        process, processes.current = processes.current, None
        assert process is not None
        process.child.send_signal(number)
        assert processes.end(process, LIMIT_S) == 0
        processes.close()
