"""The network between nodes of one machine that experiments cut."""

from __future__ import annotations

import contextlib
import socket
import threading

import pytest
from dandelion.bench.wires import Wires


def test_what_is_cut_off_gets_nothing_until_it_is_repaired() -> None:
    with contextlib.ExitStack() as opened:
        wires = opened.enter_context(Wires(3))
        servers = []
        for listens in wires.listens:
            host, _, port = listens.rpartition(":")
            servers.append(opened.enter_context(socket.create_server((host, int(port)))))

        def connect(sender: int, target: int) -> tuple[socket.socket, socket.socket]:
            host, _, port = wires.addresses[target].rpartition(":")
            there = opened.enter_context(socket.create_connection((host, int(port)), 5))
            there.sendall(f"join {wires.addresses[sender]} {wires.addresses[target]}".encode())
            here = opened.enter_context(servers[target].accept()[0])
            for one in (here, there):
                one.settimeout(5)
            assert here.recv(1000).startswith(b"join")
            return there, here

        cut, whole = connect(2, 0), connect(1, 0)
        into = connect(0, 2)
        wires.cut(2)
        for out, back in (cut, into):
            out.sendall(b"question")
            back.sendall(b"answer")
        for one, other in (whole, whole[::-1]):
            one.sendall(b"all is well")
            assert other.recv(100) == b"all is well"
        for one in (*cut, *into):
            one.setblocking(False)
            with pytest.raises(BlockingIOError):
                one.recv(1)
            one.settimeout(5)
        wires.repair()
        for out, back in (cut, into):
            assert back.recv(100) == b"question"
            assert out.recv(100) == b"answer"
        whole[0].close()
        assert whole[1].recv(1) == b""
    assert "wires" not in [thread.name for thread in threading.enumerate()]
