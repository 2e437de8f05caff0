"""Programs that end without closing their node: they do end, and leave nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dandelion.testing import wait_until
from tests.processes import lives

ROOT = Path(__file__).parents[2]
PROGRAM = """
import atexit
from dandelion.node import Node, Settings

node = Node(Settings(backends=("null", "native", "process"), arena_bytes=1 << 20))
atexit.register(lambda: print("it is", node._parts.state.value))  # what comes first is called last
node.start()
node.wait_ready()
print(*__import__("tests.processes").processes.children())
{end}
"""


@pytest.mark.parametrize(
    ("end", "code", "said"), [("", 0, ""), ("1 / 0", 1, "ZeroDivisionError"), ("exit(3)", 3, "")]
)
def test_a_program_that_does_not_close_its_node_ends(end: str, code: int, said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM.format(end=end)],
        capture_output=True, text=True, timeout=60, cwd=ROOT, check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])},
    )  # fmt: skip
    assert done.returncode == code
    assert done.stderr.rpartition("\n")[0].rpartition("\n")[2].startswith(said)
    assert bool(done.stderr) == bool(said)
    below, state = done.stdout.splitlines()
    assert state == "it is closed"
    pids = list(map(int, below.split()))
    assert pids
    wait_until(lambda: not any(map(lives, pids)))
