"""Packages that attack while they are loaded, which is the first of their code to run."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from dandelion.backends.process import import_limits

import dandelion as dd
from dandelion.documents import CodeDocument, FunctionDocument
from dandelion.errors import InvalidFunction, Raised
from dandelion.node import Settings
from dandelion.testing import wait_until
from tests.packages.test_node import SETTINGS
from tests.packages.wheels import wheel
from tests.processes import children, lives

ATTACKS = {
    "read_passwords": "open('/etc/shadow').read()",
    "read_secret": "open(SECRET).read()",
    "list_root": "os.listdir('/')",
    "read_environment": "open('/proc/1/environ', 'rb').read()",
    "read_parent": "open(f'/proc/{os.getppid()}/maps').read()",
    "write_itself": "open(__file__, 'a').write('x')",
    "write_beside": "open(os.path.dirname(__file__) + '/more.py', 'w')",
    "write_tmp": "open('/tmp/dandelion-attack', 'w')",
    "connect": "socket.create_connection(('127.0.0.1', PORT), 1)",
    "listen": "socket.socket().bind(('127.0.0.1', 0))",
    "local_socket": "socket.socket(socket.AF_UNIX).connect('/run/dbus/system_bus_socket')",
    "run": "os.execv('/bin/true', ['true'])",
    "spawn": "os.posix_spawn('/bin/true', ['true'], {})",
    "become_root": "os.setresuid(0, 0, 0)",
    "trace_parent": "check(libc.ptrace(16, os.getppid(), 0, 0))",
    "mount": "check(libc.mount(b'none', b'/dev/shm', b'tmpfs', 0, b''))",
    "keys": "check(libc.syscall(250, 0, -3, 0, 0))",
}
"""Each is an expression that must raise."""

ATTACK = """
import ctypes, fcntl, os, socket
SECRET, PORT = {secret!r}, {port}
libc = ctypes.CDLL(None, use_errno=True)
def check(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), 'refused')
succeeded = []
for name, attack in {attacks!r}.items():
    try:
        eval(attack)
    except OSError:
        continue
    succeeded.append(name)
left = fcntl.fcntl(os.open('/dev/null', os.O_RDONLY), fcntl.F_DUPFD, 4500)
"""

LEFT = """
import os, time
if os.fork() == 0:
    if os.fork():
        os._exit(0)
    for descriptor in range(3, 200):
        try:
            os.close(descriptor)
        except OSError:
            pass
    while True:
        time.sleep(60)
os.wait()
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("wheels")


@pytest.fixture(scope="module")
def node(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dd.Node]:
    before = children()
    with dd.Node(with_packages(wheels, tmp_path_factory.mktemp("cache"))) as node:
        yield node
    assert children() <= before


def with_packages(wheels: Path, cache: Path) -> Settings:
    return msgspec.structs.replace(SETTINGS, packages_folder=str(wheels), packages_cache=str(cache))


def function(name: str, body: str) -> FunctionDocument:
    options = {"entry": "f", "imports": name}
    code = CodeDocument("python", f"def f():\n    {body}\n", options=options, packages=(name,))
    return FunctionDocument(name, (), ("y",), code=(code,))


def test_loading_a_package_gives_it_no_rights(node: dd.Node, wheels: Path, tmp_path: Path) -> None:
    (tmp_path / "secrets.toml").write_text("x")
    with socket.create_server(("127.0.0.1", 0)) as server:
        values = {"secret": str(tmp_path / "secrets.toml"), "port": server.getsockname()[1]}
        wheel(wheels, "evil", "1.0", {"evil.py": ATTACK.format(attacks=ATTACKS, **values)})
        node.register(function("evil", "import evil; return ' '.join(evil.succeeded)"))
        assert node.invoke("evil").y.text() == ""
    node.register(function("evil", "import evil, os; os.read(evil.left, 1)"))
    with pytest.raises(Raised, match="Bad file descriptor"):  # it was closed before any call
        node.invoke("evil")


def test_memory_that_calls_would_share_is_refused(node: dd.Node, wheels: Path) -> None:
    text = "import mmap\nSHARED = mmap.mmap(-1, 4096)\n"
    wheel(wheels, "shares", "1.0", {"shares.py": text})
    with pytest.raises(InvalidFunction, match="keeps memory that calls would share"):
        node.register(function("shares", "return ''"))


def test_a_package_cannot_replace_what_the_engine_loads(node: dd.Node, wheels: Path) -> None:
    evil = "raise SystemExit('taken over')"
    names = ("json", "dandelion", "msgspec", "os", "colorsys", "statistics")
    files: dict[str, str | bytes] = {f"{name}.py": evil for name in names}
    wheel(wheels, "shadow", "1.0", {**files, "shadow.py": "import json, msgspec"})
    node.register(function("shadow", "import shadow, json; return json.dumps(1)"))
    assert node.invoke("shadow").y.text() == "1"


def test_processes_that_a_package_starts_end_with_its_imports(
    wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = []
    kill = import_limits._kill

    def note(member: import_limits._Member, session: int) -> None:
        killed.append(member.pid)
        kill(member, session)

    monkeypatch.setattr(import_limits, "_kill", note)
    wheel(wheels, "leaves", "1.0", {"leaves.py": LEFT})
    with dd.Node(with_packages(wheels, tmp_path)) as node:
        node.register(function("leaves", "return 'x'"))
        assert node.invoke("leaves").y.text() == "x"
        wait_until(lambda: len(set(killed)) >= 2)  # at registration, and at the call
        wait_until(lambda: not any(map(lives, killed)))
        assert node.invoke("leaves").y.text() == "x"


def test_imports_that_exceed_a_limit_are_refused(
    node: dd.Node, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = import_limits.ImportLimits(memory_bytes=192 << 20)
    monkeypatch.setattr(import_limits, "LIMITS", limits)
    text = "import time; x = b'x' * (256 << 20); time.sleep(60)"
    wheel(wheels, "greedy", "1.0", {"greedy.py": text})
    with pytest.raises(InvalidFunction, match="its imports use more than 192 MiB of memory"):
        node.register(function("greedy", "return ''"))
    wheel(wheels, "greedy", "1.1", {"greedy.py": "VALUE = 'fine'"})  # the next one works
    node.register(function("greedy", "import greedy; return greedy.VALUE"))
    assert node.invoke("greedy").y.text() == "fine"


def test_a_package_whose_process_was_not_reaped_is_refused(node: dd.Node, wheels: Path) -> None:
    text = "import os\nif os.fork() == 0:\n    os._exit(0)\n"
    wheel(wheels, "child", "1.0", {"child.py": text})
    with pytest.raises(InvalidFunction, match="leaves processes behind"):
        node.register(function("child", "return ''"))


def _of_sessions(sessions: set[str]) -> list[str]:
    """List the processes of sessions that have not ended."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, *others = (process / "stat").read_text().rpartition(")")[2].split()
            if state != "Z" and others[2] in sessions:
                found.append(process.name)
    return found
