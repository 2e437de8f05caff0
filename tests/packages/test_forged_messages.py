"""Packages that write to the socket on which their sandbox announces itself to the engine.

A file of its own: the descriptors of this process are counted, so no other node of this process
may start sandboxes meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from dandelion.backends.process.zygote_messages import ForgedMessage, read_message

import dandelion as dd
from dandelion.errors import InvalidFunction
from dandelion.testing import wait_until
from tests.packages.test_hostile_packages import function, with_packages
from tests.packages.wheels import wheel

FORGED = """
import array, os, socket, msgspec
control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fileno=os.dup(3))
def send(message, *files):
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', files))
    control.sendmsg([msgspec.msgpack.encode(message)], [rights] if files else [])
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
ready = {{'type': 'ready', 'facts': {{}}, 'mapped_bytes': 1}}
forked = {{'type': 'forked', 'pid': {pid}}}
files = theirs.fileno(), os.pidfd_open({pid}), os.memfd_create('x'), os.pipe()[0]
{sends}
"""

FORGERIES = {
    "a process that is no sandbox": "send(ready); send(forked, *files)",
    "a descriptor of no process": "send(ready); send(forked, files[0], files[2], *files[2:])",
    "too few descriptors": "send(ready); send(forked, *files[:2])",
    "descriptors of no sandbox": "send(ready, *files)",
    "readiness again and again": "send(ready); send(ready)",
    "no message": "send(ready); send({'type': 'other'})",
    "no process": "send(ready); send({'type': 'fork-failed', 'pid': -1})",
}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("wheels")


@pytest.fixture(scope="module")
def node(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dd.Node]:
    """Yield a node that has no function, so it keeps no sandbox ready for one."""
    with dd.Node(with_packages(wheels, tmp_path_factory.mktemp("cache"))) as node:
        wheel(wheels, "starts", "1.0", {"starts.py": "raise ImportError"})
        with pytest.raises(InvalidFunction):  # starts what checks functions, which stays
            node.register(function("starts", "return ''"))
        yield node


@pytest.mark.parametrize("name", FORGERIES)
def test_a_package_cannot_name_a_process_that_the_node_then_kills(
    node: dd.Node, wheels: Path, name: str
) -> None:
    before = _steady()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as victim:
        text = FORGED.format(pid=victim.pid, sends=FORGERIES[name])
        wheel(wheels, "forges", "1.0", {"forges.py": text})
        with pytest.raises(InvalidFunction, match="take part in the engine's messages"):
            node.register(function("forges", "return ''"))
        assert victim.poll() is None
    wait_until(lambda: _received() <= before)


def test_what_a_zygote_forked_before_it_was_killed_is_not_forged() -> None:
    """It may still run when its message is read, with another parent."""
    here = os.getpid()
    data = msgspec.msgpack.encode({"type": "forked", "pid": here})
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as zygote:
        for kind in (ForgedMessage, EOFError):
            files = [os.pidfd_open(here), *(os.open(os.devnull, os.O_RDONLY) for _ in range(3))]
            with pytest.raises(kind):
                read_message(data, [files[1], files[0], *files[2:]], zygote.pid)
            zygote.kill()


def _steady() -> int:
    """Count descriptors as `_received`, once the count has not changed for ten looks.

    What the registration before had is closed by then.
    """
    looks = [-1]

    def is_steady() -> bool:
        looks.append(_received())
        return len(set(looks[-10:])) == 1

    wait_until(is_steady)
    return looks[-1]


def _received() -> int:
    """Count the open descriptors of this process of the kinds that a sandbox sends.

    Those of sandboxes that are ready do not count, since one may become ready at any time. Each has
    sent one of each kind, and nothing else here has a descriptor of seccomp.
    """
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    sandboxes = found.count("anon_inode:seccomp notify")
    kinds = ("socket", "pipe", "/memfd", "anon_inode")
    return sum(name.partition(":")[0] in kinds for name in found) - (len(kinds) + 1) * sandboxes
