"""The program of an engine process whose node leaves while its engine opens."""

from __future__ import annotations

import socket

import pytest
from dandelion.backends.null import NullEngine, NullFactory

from dandelion.engine_process.channel import Ended
from dandelion.engine_process.messages import Open, reply_channel, request_channel
from dandelion.engine_process.serving import EngineProcess


def test_an_engine_that_the_node_does_not_want_any_more_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        node = reply_channel(ours)
        node.send(Open(False, 0), 20.0)
        closed = []

        def engine(_: NullFactory, __: str) -> NullEngine:
            node.close()  # the node does not wait for it
            return NullEngine()

        monkeypatch.setattr(NullFactory, "engine", engine)
        monkeypatch.setattr(NullEngine, "close", lambda self: closed.append(self.name))
        process = EngineProcess(request_channel(theirs), None)
        with pytest.raises((Ended, OSError)):
            process.open(["null"], "", {})
    assert closed == ["null"]
