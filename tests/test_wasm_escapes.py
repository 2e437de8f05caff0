"""Operations denied to a process that runs WebAssembly, tested as if a module had escaped.

The process makes the system calls itself, after its confinement, so this tests the protection
behind wasmtime. A control group makes the same calls in a process without it, where they succeed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from dandelion.backends.wasm.driver import enforcement

from dandelion.documents import CodeDocument, Content, FunctionDocument
from dandelion.node import Node, Settings
from tests.wasm_modules import ECHO

from .processes import children, command_of, open_files
from .wasm_attacks import Attacker, SystemCall, Word, attacker

pytest.importorskip("wasmtime")

HERE, READ, WRITE, CREATE, FOLDER, PATH = -100, 0, 1, 0o100, 0o200000, 0o10000000
DENIED = {-1, -2, -13, -38}
"""EPERM, ENOENT, EACCES, ENOSYS."""
NODE = os.getpid()
THIS = str(Path(__file__))
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="the control group needs root")


def call(name: str, *words: Word) -> SystemCall:
    return name, words


FILES = {
    "open": [call("open", "/etc/passwd", READ)],
    "openat": [call("openat", HERE, "/etc/passwd", READ)],
    "open a path": [call("openat", HERE, "/", PATH | FOLDER)],
    "openat2": [call("openat2", HERE, "/etc/passwd", "", 24)],
    "create": [call("open", f"/tmp/wasm-{NODE}", CREATE | WRITE, 0o600)],
    "its own memory as a file": [call("open", "/proc/self/mem", READ)],
    "its own mappings": [call("open", "/proc/self/maps", READ)],
    "the node's memory": [call("open", f"/proc/{NODE}/mem", READ)],
    "the node's descriptors": [call("open", f"/proc/{NODE}/fd", FOLDER)],
    "the node's environment": [call("open", f"/proc/{NODE}/environ", READ)],
    "the source of this": [call("open", THIS, READ)],
    "stat": [call("stat", "/etc/passwd", " ")],
    "readlink": [call("readlink", "/proc/self/exe", " ", 4000)],
    "statfs": [call("statfs", "/", " ")],
    "getcwd": [call("getcwd", " ", 4000)],
    "chdir": [call("chdir", "/")],
    "mkdir": [call("mkdir", f"/tmp/wasm-folder-{NODE}", 0o700)],
    "symlink": [call("symlink", "/etc", f"/tmp/wasm-link-{NODE}")],
    "mknod": [call("mknod", f"/tmp/wasm-fifo-{NODE}", 0o010600, 0)],
    "memfd_create": [call("memfd_create", "x", 0)],
    "inotify": [call("inotify_init1", 0)],
}
NETWORK = {
    "TCP": [call("socket", socket.AF_INET, socket.SOCK_STREAM, 0)],
    "UDP": [call("socket", socket.AF_INET, socket.SOCK_DGRAM, 0)],
    "IPv6": [call("socket", socket.AF_INET6, socket.SOCK_STREAM, 0)],
    "Unix": [call("socket", socket.AF_UNIX, socket.SOCK_STREAM, 0)],
    "netlink": [call("socket", socket.AF_NETLINK, socket.SOCK_RAW, 0)],
    "socketpair": [call("socketpair", socket.AF_UNIX, socket.SOCK_STREAM, 0, " ")],
    "pipe": [call("pipe2", " ", 0)],
    "eventfd": [call("eventfd2", 0, 0)],
    "epoll": [call("epoll_create1", 0)],
}
PROCESSES = {
    "fork": [call("fork")],
    "vfork by clone": [call("clone", int(signal.SIGCHLD), 0, 0, 0, 0)],
    "execve": [call("execve", "/bin/true", 0, 0)],
    "execveat": [call("execveat", HERE, "/bin/true", 0, 0, 0)],
    "a program in memory": [
        call("open", "/bin/true", READ),
        call("memfd_create", "x", 0),
        call("sendfile", "$1", "$0", 0, 1 << 24),
        call("execveat", "$1", "", 0, 0, 0x1000),
    ],
    "a signal to the node": [call("kill", NODE, 0)],
    "a signal to a thread of the node": [call("tgkill", NODE, NODE, 0)],
    "a signal to all": [call("kill", 0, 0)],
    "a signal to itself": [call("getpid"), call("kill", "$0", 0)],
    "pidfd_open": [call("pidfd_open", NODE, 0)],
    "ptrace": [call("ptrace", 0, 0, 0, 0)],
    "the priority of the node": [call("setpriority", 0, NODE, 0)],
    "the processors of the node": [call("sched_setaffinity", NODE, 8, "\x01")],
    "the limits of the node": [call("prlimit64", NODE, 7, 0, " ")],
    "the scheduler of itself": [call("sched_setscheduler", 0, 3, "")],
    "a new group": [call("setpgid", 0, 0)],
}
KERNEL = {
    "keys": [call("keyctl", 0, -3, 0)],
    "a key": [call("add_key", "user", "x", "y", 1, -3)],
    "a user namespace": [call("unshare", 0x10000000)],
    "a network namespace": [call("unshare", 0x40000000)],
    "io_uring": [call("io_uring_setup", 1, "")],
    "userfaultfd": [call("userfaultfd", 1)],
    "asynchronous I/O": [call("io_setup", 1, "")],
    "shared memory": [call("shmget", 0, 4096, 0o1600)],
    "semaphores": [call("semget", 0, 1, 0o1600)],
    "message queues": [call("msgget", 0, 0o1600)],
    "timers with signals": [call("timer_create", 1, 0, " ")],
    "personality": [call("personality", 0xFFFFFFFF)],
    "dumps of itself": [call("prctl", 4, 1, 0, 0, 0)],
    "a filter of its own": [call("prctl", 38, 1, 0, 0, 0)],
    "limits": [call("setrlimit", 7, "\x10" + 7 * "\0" + "\x10")],
    "its mask": [call("umask", 0)],
    "a file system": [call("fsopen", "tmpfs", 0)],
    "chroot": [call("chroot", "/")],
    "the host name": [call("unshare", 0x04000000), call("sethostname", "x", 1)],
    "root": [call("setresuid", 0, 0, 0)],
    "groups": [call("setgroups", 0, 0)],
}
STANDARD = {
    "standard output": [call("write", 1, "x", 0)],
    "a copy of a descriptor": [call("dup", 2)],
    "flags of a descriptor": [call("fcntl", 2, 3, 0)],
    "a position": [call("lseek", 0, 0, 0)],
}
ATTACKS = FILES | NETWORK | PROCESSES | KERNEL | STANDARD


def node_with_echo() -> Node:
    node = Node(Settings(backends=("wasm",), engines={"wasm": 1}, arena_bytes=16 << 20))
    code = (CodeDocument("wasm", Content(data=bytes(ECHO.main))),)
    node.start()
    node.register(FunctionDocument("Echo", ("x",), ("y",), code=code))
    return node


@pytest.fixture(scope="module")
def confined() -> Iterator[Attacker]:
    with attacker(confined=True) as made:
        yield made


@pytest.fixture(scope="module")
def unconfined() -> Iterator[Attacker]:
    with attacker(confined=False) as made:
        yield made
    for path in Path("/tmp").glob(f"wasm-*{NODE}"):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_denied(confined: Attacker, name: str) -> None:
    *_, result = confined.run(*ATTACKS[name])
    assert result in DENIED


@AS_ROOT
@pytest.mark.parametrize("name", ATTACKS)
def test_the_same_succeeds_without_confinement(unconfined: Attacker, name: str) -> None:
    *_, result = unconfined.run(*ATTACKS[name])
    assert result >= 0


@AS_ROOT
def test_an_engine_process_has_nothing_of_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_NODE", "1")
    before = children()
    with contextlib.closing(node_with_echo()) as node:
        assert not engine_processes(before), "no call has come yet"
        assert node.invoke("Echo", x=b"data").y.only().bytes() == b"data"
        (process,) = engine_processes(before)
        files = open_files(int(process.name))
        assert files[:3] == ["/dev/null"] * 3
        assert [what.partition(":")[0] for what in files[3:]] == ["socket"]
        assert b"SECRET" not in (process / "environ").read_bytes()
        assert "memfd" not in (process / "maps").read_text()
        for thread in (process / "task").iterdir():
            facts = dict(
                line.split(":\t", 1) for line in (thread / "status").read_text().splitlines()
            )
            assert facts["Uid"].split() == ["65534"] * 4
            assert int(facts["CapEff"], 16) == int(facts["CapPrm"], 16) == 0
            assert (facts["NoNewPrivs"], facts["Seccomp"]) == ("1", "2")


def engine_processes(before: set[int]) -> list[Path]:
    found = [
        pid
        for pid in children() - before
        if b"dandelion.engine_process" in (command_of(pid) or b"")
    ]
    return [Path(f"/proc/{pid}") for pid in found]


def test_a_node_without_such_functions_starts_no_such_process() -> None:
    before = children()
    settings = Settings(backends=("wasm", "null"), arena_bytes=16 << 20)
    with Node(settings) as node:
        assert node.wait_ready()
        node.register(FunctionDocument("F", ("x",), ("y",), code=(CodeDocument("null"),)))
        assert node.invoke("F", x=b"data").y.only().bytes() == b"data"
        assert children() <= before
        assert {engine.state for engine in node.engines() if engine.backend == "wasm"} == {
            "dormant"
        }


def test_doctor_names_what_is_enforced() -> None:
    facts = enforcement()
    assert {"memory", "user", "seccomp", "landlock"} <= facts.keys()
