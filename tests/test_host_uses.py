"""What is remembered of how functions used their kernel hosts; no host is started."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from dandelion.backends.gpu import host_trials
from dandelion.backends.gpu.host_process import HostProcess
from dandelion.backends.gpu.host_trials import CALLS, HostTrials
from dandelion.backends.gpu.known_answers import KnownAnswer
from dandelion.backends.gpu.program import ProgramCache

from tests.test_open_arguments import adding

PROGRAM = ProgramCache().get(adding())


def counted() -> tuple[HostTrials, Callable[[str], None], list[str]]:
    """Give trials without processes, what notes a brief call, and functions that would start."""
    started: list[str] = []

    def start() -> HostProcess:
        started.append("a host")
        raise OSError

    def ignore(*_: object) -> None:
        """End nothing: there is no host."""

    trials = HostTrials(start, ignore, ignore, ignore, start_ns=-(10**12))
    host: Any = SimpleNamespace(child=SimpleNamespace(pid=1))
    known = {}

    def ran(identity: str) -> None:
        if identity not in known:
            known[identity] = KnownAnswer(PROGRAM, (), 0, frozenset())
        trials.ran(identity, known[identity], host, 1000)

    return trials, ran, started


def test_the_use_of_the_least_recently_called_function_is_forgotten() -> None:
    trials, ran, _ = counted()
    ran("steady")
    trials._uses["steady"].has_threads = False
    for number in range(2 * host_trials._FUNCTIONS):
        ran(f"brief{number}")
        ran("steady")
    assert not trials._uses["steady"].has_threads
    assert len(trials._uses) == host_trials._FUNCTIONS


@pytest.mark.parametrize("gone", ["", "due"])
def test_no_host_is_started_for_a_function_that_is_gone(gone: str) -> None:
    trials, ran, started = counted()
    for _ in range(CALLS + 1):
        ran("due")
    trials.dropped(gone)
    trials.step(has_room=True)
    assert started == ([] if gone else ["a host"])
