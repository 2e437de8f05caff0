"""uvicorn is pinned to the releases whose `Server` is known to work with our protocols.

`dandelion.frontend.server.Server` overrides methods of uvicorn's, and the protocols keep the books
that it waits for when it stops. The parsing of requests uses nothing of uvicorn.

To raise the upper bound: install the release, run ``tests/node`` and ``tests/faults``, and raise
the bound in ``pyproject.toml``.
"""

from __future__ import annotations

import inspect
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
import uvicorn
from packaging.requirements import Requirement
from packaging.version import Version
from uvicorn.server import ServerState

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
OVERRIDDEN = {
    "capture_signals": ["self"],
    "startup": ["self", "sockets"],
    "on_tick": ["self", "counter"],
    "shutdown": ["self", "sockets"],
}


def test_uvicorn_is_in_the_tested_range() -> None:
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    (uvicorn,) = [r for r in map(Requirement, project["dependencies"]) if r.name == "uvicorn"]
    assert Version(version("uvicorn")) in uvicorn.specifier
    assert "<" in {bound.operator for bound in uvicorn.specifier}


@pytest.mark.parametrize("method", OVERRIDDEN)
def test_uvicorn_has_the_methods_that_are_overridden(method: str) -> None:
    found = inspect.signature(getattr(uvicorn.Server, method))
    assert list(found.parameters) == OVERRIDDEN[method]


def test_the_books_that_protocols_keep_are_those_that_uvicorn_waits_for() -> None:
    state = ServerState()
    assert (state.total_requests, state.connections, state.tasks) == (0, set(), set())
    waiting = inspect.getsource(uvicorn.Server._wait_tasks_to_complete)
    assert "server_state.connections" in waiting
    assert "server_state.tasks" in waiting
