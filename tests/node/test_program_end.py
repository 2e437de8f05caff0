"""Programs that end without closing their node: they do end, and leave nothing."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import atexit
from dandelion.node import Node, Settings

node = Node(Settings(backends=("null", "native", "process"), arena_bytes=1 << 20))
atexit.register(lambda: print("it is", node._parts.state.value))  # what comes first is called last
node.start()
node.wait_ready()
below = [t.read_text() for t in __import__("pathlib").Path("/proc/self/task").glob("*/children")]
print(*" ".join(below).split())
{end}
"""


def there(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


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
    pids = below.split()
    assert pids
    end_s = time.monotonic() + 10
    while any(map(there, pids)) and time.monotonic() < end_s:
        time.sleep(0.01)
    assert not any(map(there, pids))
