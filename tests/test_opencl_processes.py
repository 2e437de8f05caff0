"""Hostile kernels on CPUs: sockets, processes, memory."""

from __future__ import annotations

import os
import platform
import socket
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from dandelion.backends.gpu import host_folder
from dandelion.backends.gpu.host_policy import policy

from dandelion.confinement import seccomp
from dandelion.confinement.lockdown import landlock_abi
from dandelion.confinement.syscalls import native
from dandelion.driver import load_driver
from dandelion.errors import BackendUnavailable, Faulted, InvalidFunction, TimedOut
from tests.opencl_walls import ENOSYS, ENOTTY, EPERM, SECRET, given_place
from tests.processes import children_of, lives, open_files

from .kernel_attacks import (
    ATTACK,
    CONFINED,
    EXIT_IF_ZERO,
    SOURCE,
    UNCONFINED,
    At,
    Attacker,
    Result,
    Script,
    attacker,
    function,
    packed,
    text,
)

place = pytest.fixture()(given_place)

pytestmark = [
    pytest.mark.skipif(platform.machine() != "x86_64", reason="attacks are x86-64 code"),
    pytest.mark.skipif(landlock_abi() < 2, reason="this kernel has no Landlock"),
]


AS_ROOT = pytest.mark.skipif(
    os.geteuid() != 0, reason="the process keeps its own user out, too: only root can look into it"
)


@pytest.fixture(scope="module")
def confined() -> Iterator[Attacker]:
    try:
        with attacker(CONFINED) as made:
            yield made
    except BackendUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def unconfined() -> Iterator[Attacker]:
    with attacker(UNCONFINED) as made:
        yield made


@pytest.fixture
def bystander() -> Iterator[int]:
    """A process of the user that hosts run as, where there is such a user."""
    user = 65534 if os.geteuid() == 0 else None
    groups = [] if user else None
    command = ["/bin/sh", "-c", "echo up; read line"]  # the same program from then on
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, user=user, extra_groups=groups
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()


FAMILIES = {"unix": 1, "inet": 2, "inet6": 10, "netlink": 16, "packet": 17, "vsock": 40}


@pytest.mark.parametrize("family", FAMILIES)
def test_no_socket_of_any_family(confined: Attacker, family: str) -> None:
    for kind in (1, 2, 3):
        assert confined.attack([("socket", FAMILIES[family], kind, 0)])[0] == [EPERM]


def connecting(port: int) -> tuple[Script, bytes]:
    address = (
        struct.pack("<H", 2) + struct.pack(">H", port) + socket.inet_aton("127.0.0.1") + bytes(8)
    )
    return [("socket", 2, 1, 0), ("connect", Result(0), At(0), 16)], address


def test_the_nodes_port_cannot_be_reached(confined: Attacker, unconfined: Attacker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)
        script, address = connecting(server.getsockname()[1])
        assert confined.attack(script, address)[0] == [EPERM, EPERM]
        assert unconfined.attack(script, address)[0][1] == 0
        server.accept()[0].close()  # of the second; there is no other
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()


def test_its_channel_carries_no_addresses_and_no_descriptors(confined: Attacker) -> None:
    script: Script = [("sendto", fd, At(0), 0, 0, At(0), 16) for fd in range(16)]
    script += [("sendmsg", fd, At(0), 0) for fd in range(16)]
    assert set(confined.attack(script, bytes(64))[0]) == {EPERM}


def test_no_process_can_be_started(confined: Attacker, unconfined: Attacker) -> None:
    fork: Script = [("fork",), (EXIT_IF_ZERO,)]
    memory, (program,) = text("/bin/true")
    before = children_of(confined.pid())
    assert confined.attack(fork)[0][0] == EPERM
    assert confined.attack([("execve", program, 0, 0)], memory)[0] == [EPERM]
    assert confined.attack([("clone", 17), (EXIT_IF_ZERO,)])[0][0] == EPERM
    assert confined.attack([("clone", 0x50F00), (EXIT_IF_ZERO,)])[0][0] == EPERM  # a thread
    assert confined.attack([("clone3", At(0), 88), (EXIT_IF_ZERO,)], bytes(88))[0][0] == ENOSYS
    assert children_of(confined.pid()) == before == set()
    assert unconfined.attack(fork, wanted=function("Fork"))[0][0] > 0


@pytest.mark.parametrize("call", ["kill", "tkill", "pidfd_open"])
def test_no_process_can_be_signalled(confined: Attacker, bystander: int, call: str) -> None:
    others = (bystander, confined.template, os.getpid(), os.getppid())
    for target in (*others, confined.pid(), 1, -1, 0):
        assert confined.attack([(call, target, 9)])[0] == [EPERM]
    assert confined.attack([("tgkill", bystander, bystander, 6)])[0] == [EPERM]
    assert lives(bystander)


def test_without_the_wall_processes_are_signalled(unconfined: Attacker, bystander: int) -> None:
    assert unconfined.attack([("kill", bystander, 9)])[0] == [0]
    os.waitid(os.P_PID, bystander, os.WEXITED | os.WNOWAIT)
    assert not lives(bystander)


def test_signals_by_descriptor_are_denied(confined: Attacker, bystander: int) -> None:
    script: Script = [("fcntl", fd, 8, bystander) for fd in range(8)]  # F_SETOWN
    script += [("fcntl", fd, 10, 9) for fd in range(8)]  # F_SETSIG
    script += [("ioctl", fd, 0x8901, At(0)) for fd in range(8)]  # FIOSETOWN
    results, _ = confined.attack(script, struct.pack("<i", bystander) + bytes(12))
    assert set(results) == {EPERM, ENOTTY}
    assert lives(bystander)


def peeking(call: str, pid: int, address: int) -> tuple[Script, bytes]:
    """Read eight bytes of a process; local and remote vectors lie in the memory."""
    return (
        [
            ("mmap", 0, 4096, 3, 0x22, -1, 0),
            (call, pid, At(0), 1, At(16), 1, 0),
        ],
        struct.pack("<QQQQ", address, 8, address, 8),
    )


def test_memory_of_others_cannot_be_read_or_written(confined: Attacker, bystander: int) -> None:
    for pid in (bystander, confined.template, os.getpid(), confined.pid()):
        for call in ("process_vm_readv", "process_vm_writev"):
            script, memory = peeking(call, pid, 0x400000)
            assert confined.attack(script, memory)[0][1] == EPERM
        attach: Script = [("ptrace", 16, pid), ("ptrace", 0x4206, pid)]
        assert confined.attack(attach)[0] == [EPERM, EPERM]


def test_without_the_wall_ptrace_attaches(unconfined: Attacker, bystander: int) -> None:
    tracer = function("Tracer")
    assert unconfined.attack([("ptrace", 0x4206, bystander)], wanted=tracer)[0] == [0]
    unconfined.engine.forget(tracer)  # a traced process cannot be ended by others
    unconfined.engine._reap(20)


def test_limits_of_others_stay(confined: Attacker, bystander: int) -> None:
    script: Script = [
        ("prlimit64", bystander, 7, At(0), 0), ("prlimit64", 0, 7, At(0), 0),
        ("prlimit64", bystander, 7, 0, At(0)), ("prlimit64", 0, 7, 0, At(16)),
    ]  # fmt: skip
    assert confined.attack(script, bytes(32))[0] == [EPERM, EPERM, EPERM, 0]


@pytest.mark.parametrize("option", [1, 4, 8, 22, 23, 24, 36, 38, 47, 59])
def test_properties_of_the_process_stay(confined: Attacker, option: int) -> None:
    assert confined.attack([("prctl", option, 1, 0, 0, 0)])[0] == [EPERM]


@AS_ROOT
def test_it_has_no_descriptors_but_its_own(confined: Attacker) -> None:
    with open("/etc/hostname" if os.path.exists("/etc/hostname") else "/etc/passwd") as kept:
        os.set_inheritable(kept.fileno(), True)
        fresh = function("Descriptors")
        confined.attack([("getpid",)], wanted=fresh)
        found = sorted(
            what.partition(":")[0].partition(" ")[0] for what in open_files(confined.pid(fresh))
        )
    assert sorted(set(found)) == ["/dev/null", "/memfd", "socket"]
    assert found.count("socket") == 1


@AS_ROOT
def test_no_arena_is_mapped(confined: Attacker) -> None:
    confined.attack([("getpid",)])
    maps = Path(f"/proc/{confined.pid()}/maps").read_text()
    assert "dandelion-arena" not in maps
    shared = [line for line in maps.splitlines() if line.split()[1] in ("rw-s", "rwxs", "-w-s")]
    assert {line.split()[5] for line in shared} == {"/memfd:dandelion-kernels"}


def test_the_shared_file_cannot_be_resized(confined: Attacker) -> None:
    script: Script = [("ftruncate", fd, 0) for fd in range(16)]
    script += [("ftruncate", fd, 1 << 20) for fd in range(16)]
    script += [("fcntl", fd, 1033, 8) for fd in range(16)]  # F_ADD_SEALS, against writing
    results, _ = confined.attack(script)
    assert all(result < 0 for result in results)
    assert EPERM in results[:16]
    assert confined.attack([("getpid",)])[0] == [confined.pid()]


def test_two_functions_have_two_processes(confined: Attacker) -> None:
    first, second = function("First"), function("Second")
    pids = [confined.attack([("getpid",)], wanted=f)[0][0] for f in (first, second, first)]
    assert pids[0] == pids[2] != pids[1]


def test_nothing_of_a_call_is_left_in_the_shared_file(confined: Attacker) -> None:
    confined.attack([("getpid",)], SECRET * 100)
    memory = confined.engine._hosts[ATTACK.identity].memory
    assert SECRET not in bytes(memory.map.view[: 1 << 20])


def test_what_it_writes_beside_its_call_is_given_back(confined: Attacker) -> None:
    """A host may fill the shared file; this affects one call only."""
    host = confined.engine._hosts.get(ATTACK.identity)
    if host is None:
        confined.attack([("getpid",)])
        host = confined.engine._hosts[ATTACK.identity]
    view = host.memory.map.view
    view[len(view) - (32 << 20) :] = b"\xa5" * (32 << 20)
    confined.attack([("getpid",)])
    assert os.fstat(host.memory.map.fd).st_blocks * 512 < 1 << 20


TRICKS = {
    "include": '#include "{path}"',
    "include-macro": '#define F "{path}"\n#include F',
    "include-next": '#include_next "{path}"',
    "import": '#import "{path}"',
    "dependency": '#pragma GCC dependency "{path}"\n#error show it',
    "pch": "#pragma clang __debug crash",
    "module": "#pragma clang module import {path}",
}


def assembling(directive: str, path: Path) -> str:
    """Write a kernel that returns the content included by a directive of the assembler."""
    before, _, after = SOURCE.partition("    ulong count = bytes / 64;")
    lines = f'jmp 2f; 1: {directive} \\"{path}\\"; .zero 64; 2: leaq 1b(%%rip), %0'
    copy = "for (int i = 0; i < 28; i++) memory[i] = found[i];"
    return (
        f'{before} char *found; __asm__("{lines}" : "=r"(found)); {copy} ulong count = 0; {after}'
    )


@pytest.mark.parametrize("name", TRICKS)
def test_the_compiler_shows_no_file(confined: Attacker, place: Path, name: str) -> None:
    lines = TRICKS[name].format(path=place / "secret")
    with pytest.raises((InvalidFunction, Faulted)) as caught:
        confined.attack([("getpid",)], wanted=function(f"T{len(name)}", f"{lines}\n{SOURCE}"))
    assert SECRET.decode() not in str(caught.value)
    assert "secret_of_another" not in str(caught.value)


def test_the_assembler_reads_no_file(confined: Attacker, place: Path) -> None:
    """PoCL continues after the assembler's error, without the file's content."""
    source = assembling(".incbin", place / "secret")
    try:
        came = confined.attack([("getpid",)], bytes(64), function("Incbin", source))[1]
    except (InvalidFunction, Faulted) as error:
        came = str(error).encode()
    assert b"secret_of_another" not in came


def test_without_the_wall_both_do(unconfined: Attacker, place: Path) -> None:
    source = assembling(".incbin", place / "secret")
    assert SECRET in unconfined.attack([("getpid",)], bytes(64), function("Incbin", source))[1]
    lines = TRICKS["include"].format(path=place / "secret")
    with pytest.raises((InvalidFunction, Faulted), match="secret_of_another"):
        unconfined.attack([("getpid",)], wanted=function("Include", f"{lines}\n{SOURCE}"))


STRAY = """
#undef __asm__
__kernel void attack(__global long *script, __global char *memory, __global long *results,
                     ulong bytes)
{
    %s
}
"""


FAULTS = {
    "null": "*(volatile __global long *)8 = 1;",
    "far": "*(volatile __global long *)0x7fffffff0000 = 1;",
    "jump": '__asm__ volatile("jmp *%0" : : "r"(script));',
    "loop": "volatile int go = 1; while (go) {}",
    "stack": "volatile char deep[1 << 26]; for (long i = 0; i < 1 << 26; i += 4096) deep[i] = 1;",
    "all-memory": "for (long i = 0; i < 1L << 33; i++) ((volatile __global long *)results)[i] = 7;",
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_costs_its_own_call(confined: Attacker, name: str) -> None:
    confined.attack([("getpid",)])
    other = confined.pid()
    bad = function(f"Bad{name[0]}", STRAY % FAULTS[name])
    left_ns = 3 * 10**9 if name == "loop" else 60 * 10**9
    with pytest.raises((Faulted, TimedOut)):
        confined.run(confined.call(bad, packed([("getpid",)]), b"x", left_ns))
    confined.engine.clean_up()
    assert bad.identity not in confined.engine.hosts()
    assert confined.attack([("getpid",)])[0] == [other]


@pytest.mark.parametrize("name", ["far", "stack"])
def test_the_error_of_a_bad_address_names_both_causes(confined: Attacker, name: str) -> None:
    bad = function(f"Cause{name}", STRAY % FAULTS[name])
    with pytest.raises(Faulted, match=r"outside of its buffers, .* private arrays"):
        confined.run(confined.call(bad, packed([("getpid",)]), b"x"))


def test_nothing_is_left_of_an_engine() -> None:
    with attacker(CONFINED, processes=1) as who:
        folder = who.engine._folders._folder
        pids = [who.attack([("getpid",)], wanted=function(n))[0][0] for n in ("A", "B")]
        assert folder.exists()
        assert len(who.engine.hosts()) == 1
    assert not folder.exists()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_folders_of_a_killed_broker_are_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    living = host_folder.HostFolders()
    left = tmp_path / "dandelion-kernels-left"
    (left / "1" / "cache").mkdir(parents=True)
    (left / "1" / "link").symlink_to(tmp_path / "precious")
    (tmp_path / "precious").mkdir()
    (tmp_path / "dandelion-kernels-link").symlink_to(tmp_path / "precious")
    host_folder.sweep()
    assert not left.exists()
    assert living.make().exists()
    assert (tmp_path / "precious").exists()
    living.close()


def test_without_landlock_the_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dandelion.confinement.lockdown.landlock_abi", lambda: 0)
    driver = load_driver("opencl")
    try:
        driver.factory().probe()
    except BackendUnavailable as error:
        pytest.skip(str(error))
    with pytest.raises(BackendUnavailable, match="Landlock") as caught:
        driver.factory().engine("cpu")
    assert "unconfined" in caught.value.remedy


def test_without_filters_the_device_is_refused() -> None:
    broken = CONFINED[-1].replace(
        "sys.exit",
        "h.seccomp.install = lambda *a: (_ for _ in ()).throw(OSError(22, 'no filters')); sys.exit",
    )
    with attacker((*CONFINED[:-1], broken)) as who:
        with pytest.raises(BackendUnavailable, match="filters") as caught:
            who.attack([("getpid",)])
        assert "unconfined" in caught.value.remedy


def test_the_filter_kills_foreign_calls_and_has_room() -> None:
    here = native()
    code = seccomp.program(here, policy(3), 77, seccomp.FAIL)
    assert len(code) // 8 < 4096
