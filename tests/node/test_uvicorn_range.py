"""uvicorn is pinned to the releases that `Protocol` and `Cycle` were tested with.

Both are subclasses of classes that uvicorn does not document. The extension for whole replies, the
first step without a task, the limit of heads and the time-outs of connections need methods and
attributes of these classes, and no public interface of uvicorn offers them. A release that renames
one of them would leave ours uncalled. Releases before 0.53 decide later whether a connection is
kept alive, so a whole reply would not close it.

To raise the upper bound: install the release, run ``tests/node`` and ``tests/faults``, and raise
the bound in ``pyproject.toml``.
"""

from __future__ import annotations

import inspect
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
OVERRIDDEN = {
    "connection_made": ["self", "transport"],
    "connection_lost": ["self", "exc"],
    "pause_writing": ["self"],
    "resume_writing": ["self"],
    "data_received": ["self", "data"],
    "on_message_begin": ["self"],
    "on_headers_complete": ["self"],
    "on_body": ["self", "body"],
    "on_message_complete": ["self"],
    "on_response_complete": ["self"],
    "_start_asgi_task": ["self", "cycle", "app"],
}
PROTOCOL_ATTRIBUTES = {
    "config", "cycle", "flow", "headers", "loop", "parser", "pipeline", "scope", "server_state",
    "tasks", "transport",
}  # fmt: skip
CYCLE_ATTRIBUTES = {
    "disconnected", "flow", "keep_alive", "message_event", "more_body", "on_response",
    "response_complete", "response_started", "scope", "transport", "waiting_for_100_continue",
}  # fmt: skip


def test_uvicorn_is_in_the_tested_range() -> None:
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    (uvicorn,) = [r for r in map(Requirement, project["dependencies"]) if r.name == "uvicorn"]
    assert Version(version("uvicorn")) in uvicorn.specifier
    assert Version("0.52.4") not in uvicorn.specifier
    assert "<" in {bound.operator for bound in uvicorn.specifier}


@pytest.mark.parametrize("method", OVERRIDDEN)
def test_uvicorn_has_the_methods_that_are_overridden(method: str) -> None:
    found = inspect.signature(getattr(HttpToolsProtocol, method))
    assert list(found.parameters) == OVERRIDDEN[method]


def test_uvicorn_sets_the_attributes_that_are_used() -> None:
    assert set(HttpToolsProtocol.__init__.__code__.co_names) >= PROTOCOL_ATTRIBUTES
    assert set(RequestResponseCycle.__init__.__code__.co_names) >= CYCLE_ATTRIBUTES
