"""A program with a node forks: the child has no node, and the parent's goes on."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable

import pytest

from dandelion.documents import python_function
from dandelion.errors import Cancelled
from dandelion.node import Node, Settings
from tests.processes import children

LIMIT_S = 20.0


def in_child(what: Callable[[], None]) -> int:
    """Run something in a forked process; gives its exit code, or -9 if it does not end."""
    child = os.fork()
    if not child:
        code = 1
        try:
            what()
            code = 0
        except SystemExit as error:
            code = int(error.code or 0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -signal.SIGKILL


def echo(node: Node) -> bytes:
    found = node.invoke("echo", d=b"1", deadline_s=10)["o"]
    assert found is not None
    return found.bytes()


def test_a_child_has_no_node_and_the_parent_keeps_its_own() -> None:
    function = python_function(
        "def echo(d): return {'o': d}", name="echo", inputs=["d"], outputs=["o"]
    )
    settings = Settings(backends=("null", "process"), engines={"process": 1})
    with Node(settings) as node:
        node.register(function)
        assert echo(node) == b"1"
        processes = children()

        def invoke() -> None:
            with pytest.raises(Cancelled, match="not running"):
                echo(node)

        def leave() -> None:
            node.close()
            sys.exit(7)

        assert in_child(invoke) == 0
        assert in_child(leave) == 7
        assert echo(node) == b"1"
        assert processes <= children(), "no process of the parent was ended"
