"""A program with a node forks: the child has no node, and the parent's goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from dandelion.documents import python_function
from dandelion.errors import Cancelled
from dandelion.node import Node, Settings
from tests.processes import children, lives

LIMIT_S = 20.0
ROOT = Path(__file__).resolve().parent.parent.parent


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
        assert all(map(lives, processes)), "no process of the parent was ended"


_PROGRAM = """
import os, sys
from dandelion.documents import python_function
from dandelion.node import Node, Settings
from tests.processes import children, lives
function = python_function("def echo(d): return {'o': d}", name="echo", inputs=["d"], outputs=["o"])
with Node(Settings(backends=("process",), engines={"process": 1})) as node:
    node.register(function)
    node.invoke("echo", d=b"1")
    processes = children()
    child = os.fork()
    if not child:
        sys.exit(7)  # all that Python does at the end of a program
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert all(map(lives, processes)), "a process of the parent was ended"
    assert node.invoke("echo", d=b"2", deadline_s=10).o.bytes() == b"2"
"""


def test_the_end_of_a_child_ends_nothing_of_its_parent() -> None:
    subprocess.run([sys.executable, "-c", _PROGRAM], check=True, timeout=60, cwd=ROOT)
