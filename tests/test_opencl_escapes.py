"""Operations denied to kernels that run on the host, tested by kernels that try them.

Each attack runs in a real kernel host, with inline assembly that registration refuses: what holds
must be the wall, not that check. A control group runs the same attacks in a host without the wall,
and sees them succeed.
"""

from __future__ import annotations

import os
import platform
import socket
import stat
import struct
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from dandelion.backends.gpu import host_folder
from dandelion.backends.gpu.host_policy import policy

from dandelion.confinement import seccomp
from dandelion.confinement.lockdown import landlock_abi
from dandelion.confinement.syscalls import native
from dandelion.driver import load_driver
from dandelion.errors import BackendUnavailable, Faulted, InvalidFunction, TimedOut
from tests.processes import children_of, lives

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

pytestmark = [
    pytest.mark.skipif(platform.machine() != "x86_64", reason="attacks are x86-64 code"),
    pytest.mark.skipif(landlock_abi() < 2, reason="this kernel has no Landlock"),
]

EPERM, EACCES, ENOENT, ENOSYS, ENOTTY, EFBIG = -1, -13, -2, -38, -25, -27
O_RDONLY, O_WRONLY, O_RDWR, O_CREAT, O_TMPFILE, O_DIRECTORY = 0, 1, 2, 0o100, 0o20200000, 0o200000
O_PATH = 0o10000000
HERE = -100  # AT_FDCWD
SECRET = b"the_secret_of_another_tenant"
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
def place() -> Iterator[Path]:
    """A folder with all permissions for every user, so that permissions do not protect it."""
    with TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o777)
        secret = folder / "secret"
        secret.write_bytes(SECRET)
        secret.chmod(0o666)
        yield folder


@pytest.fixture
def bystander() -> Iterator[int]:
    """A process of the user that hosts run as, where there is such a user."""
    user = 65534 if os.geteuid() == 0 else None
    groups = [] if user else None
    command = ["/bin/sh", "-c", "echo up; exec sleep 600"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, user=user, extra_groups=groups
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()


# --- files --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FileAttack:
    """An operation on files.

    Attributes:
        script: makes the calls; it gets addresses of the paths of the secret, of a new file, and of
            the folder, and the address of free memory.
        did: checks from outside, and in the memory, whether it was done.
    """

    script: Callable[[At, At, At, At], Script]
    did: Callable[[Path, bytes], bool]


def _read(path: At, free: At) -> Script:
    return [("open", path, O_RDONLY), ("read", Result(0), free, 64)]


FILES = {
    "read": FileAttack(lambda s, n, f, m: _read(s, m), lambda p, m: SECRET in m),
    "read-openat": FileAttack(
        lambda s, n, f, m: [("openat", HERE, s, O_RDONLY), ("read", Result(0), m, 64)],
        lambda p, m: SECRET in m,
    ),
    "read-through-folder": FileAttack(
        lambda s, n, f, m: [
            ("open", f, O_PATH | O_DIRECTORY),
            ("openat", Result(0), At(m.offset - 7), O_RDONLY),
            ("read", Result(1), m, 64),
        ],
        lambda p, m: SECRET in m,
    ),
    "map": FileAttack(
        lambda s, n, f, m: [
            ("open", s, O_RDONLY),
            ("mmap", 0, 4096, 1, 2, Result(0), 0),
            ("pwrite64", 1, Result(1), 28, 0),
        ],
        lambda p, m: False,
    ),
    "write": FileAttack(
        lambda s, n, f, m: [("open", s, O_WRONLY), ("write", Result(0), f, 4)],
        lambda p, m: (p / "secret").read_bytes() != SECRET,
    ),
    "truncate-open": FileAttack(
        lambda s, n, f, m: [("open", s, O_WRONLY | 0o1000)],
        lambda p, m: (p / "secret").stat().st_size == 0,
    ),
    "truncate": FileAttack(
        lambda s, n, f, m: [("truncate", s, 0)], lambda p, m: (p / "secret").stat().st_size == 0
    ),
    "create": FileAttack(
        lambda s, n, f, m: [("open", n, O_CREAT | O_WRONLY, 0o600)],
        lambda p, m: (p / "new").exists(),
    ),
    "creat": FileAttack(
        lambda s, n, f, m: [("creat", n, 0o600)], lambda p, m: (p / "new").exists()
    ),
    "unnamed": FileAttack(
        lambda s, n, f, m: [
            ("open", f, O_TMPFILE | O_RDWR, 0o600),
            ("write", Result(0), s, 4),
            ("pread64", Result(0), m, 4, 0),
        ],
        lambda p, m: m[:4] == b"/tmp",
    ),
    "mkdir": FileAttack(
        lambda s, n, f, m: [("mkdir", n, 0o700)], lambda p, m: (p / "new").is_dir()
    ),
    "symlink": FileAttack(
        lambda s, n, f, m: [("symlink", s, n)], lambda p, m: (p / "new").is_symlink()
    ),
    "link": FileAttack(lambda s, n, f, m: [("link", s, n)], lambda p, m: (p / "new").exists()),
    "mknod": FileAttack(
        lambda s, n, f, m: [("mknod", n, stat.S_IFIFO | 0o600, 0)],
        lambda p, m: (p / "new").exists(),
    ),
    "rename": FileAttack(lambda s, n, f, m: [("rename", s, n)], lambda p, m: (p / "new").exists()),
    "unlink": FileAttack(
        lambda s, n, f, m: [("unlink", s)], lambda p, m: not (p / "secret").exists()
    ),
    "rmdir": FileAttack(
        lambda s, n, f, m: [("unlink", s), ("rmdir", f)], lambda p, m: not p.exists()
    ),
    "chmod": FileAttack(
        lambda s, n, f, m: [("chmod", s, 0)],
        lambda p, m: stat.S_IMODE((p / "secret").stat().st_mode) == 0,
    ),
    "chown": FileAttack(
        lambda s, n, f, m: [("chown", s, 1, 1)], lambda p, m: (p / "secret").stat().st_uid == 1
    ),
    "times": FileAttack(
        lambda s, n, f, m: [("utimes", s, m)], lambda p, m: (p / "secret").stat().st_mtime == 0
    ),
    "attribute": FileAttack(
        lambda s, n, f, m: [("setxattr", s, At(m.offset + 8), m, 1, 0)], lambda p, m: False
    ),
    "list": FileAttack(
        lambda s, n, f, m: [("open", f, O_RDONLY | O_DIRECTORY), ("getdents64", Result(0), m, 512)],
        lambda p, m: b"secret" in m,
    ),
}


def attack_files(who: Attacker, what: FileAttack, place: Path) -> tuple[list[int], bytes]:
    texts, (secret, new, folder) = text(place / "secret", place / "new", place)
    free = At(len(texts) + 7)
    memory = texts + b"secret\0" + bytes(512)
    assert len(texts) + 7 == free.offset
    results, left = who.attack(what.script(secret, new, folder, free), memory)
    return results, left[free.offset :]


@pytest.mark.parametrize("name", FILES)
def test_files_cannot_be_touched(confined: Attacker, place: Path, name: str) -> None:
    results, memory = attack_files(confined, FILES[name], place)
    assert results[0] in (EACCES, EPERM) or results[1] in (EACCES, EPERM), results
    assert not FILES[name].did(place, memory)
    assert (place / "secret").read_bytes() == SECRET
    assert os.listdir(place) == ["secret"]


@pytest.mark.parametrize("name", [n for n in FILES if n not in ("map", "attribute")])
def test_without_the_wall_files_are_touched(unconfined: Attacker, place: Path, name: str) -> None:
    if name == "chown" and os.geteuid():
        pytest.skip("giving files away needs the rights of root")
    results, memory = attack_files(unconfined, FILES[name], place)
    assert FILES[name].did(place, memory), results
    place.mkdir(exist_ok=True)  # what is left is removed with it


PRIVATE = (
    "/etc/passwd", "/etc/shadow", "/proc/self/mem", "/proc/self/maps", "/proc/self/environ",
    "/proc/self/fd/0", "/proc/1/environ", "/proc/1/mem", "/proc/{node}/mem", "/proc/{node}/environ",
    "/proc/{node}/fd/0", "/proc/{node}/cmdline", "/proc/{template}/mem",
    "/proc/{template}/environ", "/proc/{template}/fd/0", "/proc/kcore", "/dev/null", "/dev/zero",
    "/dev/mem", "/dev/kmsg", "/dev/shm", "/sys/kernel/security", "/", "/proc", "/tmp", "/root",
)  # fmt: skip


@pytest.mark.parametrize("name", PRIVATE)
def test_nothing_of_the_machine_can_be_opened(confined: Attacker, name: str) -> None:
    path = name.format(node=os.getpid(), template=confined.template)
    memory, (at,) = text(path)
    expected = EACCES if os.path.exists(path) else ENOENT
    assert confined.attack([("open", at, O_RDONLY)], memory)[0] in ([EACCES], [expected])


@pytest.mark.parametrize("name", ["/etc/passwd", "/proc/self/mem", "/proc/{node}/environ", "/"])
def test_without_the_wall_it_can_be_opened(unconfined: Attacker, name: str) -> None:
    memory, (at,) = text(name.format(node=os.getpid()))
    assert unconfined.attack([("open", at, O_RDONLY)], memory)[0][0] >= 0


def test_a_link_in_its_own_folder_leads_nowhere(confined: Attacker, place: Path) -> None:
    memory, (target, name, up) = text(place / "secret", "link", "../../../../../../../etc/passwd")
    script: Script = [
        ("symlink", target, name), ("open", name, O_RDONLY), ("open", up, O_RDONLY),
        ("open", name, O_CREAT | O_WRONLY, 0o600), ("unlink", name),
    ]  # fmt: skip
    results, _ = confined.attack(script, memory)
    assert results[:3] == [EPERM, EPERM if results[1] == EPERM else ENOENT, EACCES]
    assert results[3] >= 0
    assert (place / "secret").read_bytes() == SECRET


def test_the_folder_of_another_host_cannot_be_entered(confined: Attacker) -> None:
    other = function("Other")
    confined.attack([("getpid",)])
    confined.attack([("getpid",)], wanted=other)
    assert confined.pid(other) != confined.pid(), "two functions share a process"
    folders = [str(host.folder) for host in confined.engine._hosts.values()]
    assert len(set(folders)) == len(folders)
    memory, (theirs, new) = text(*(f"{folders[-1]}{end}" for end in ("", "/cache/planted")))
    script: Script = [
        ("open", theirs, O_RDONLY | O_DIRECTORY),
        ("open", new, O_CREAT | O_WRONLY, 0o600),
    ]
    results, _ = confined.attack(script, memory)
    assert results[0] == EACCES
    assert results[1] in (EACCES, ENOENT)  # only the host sees the mount


def test_its_folder_has_a_bound(confined: Attacker) -> None:
    memory, (name,) = text("large")
    script: Script = [
        ("open", name, O_CREAT | O_RDWR, 0o600), ("ftruncate", Result(0), 1 << 40),
        ("unlink", name),
    ]  # fmt: skip
    assert confined.attack(script, memory)[0][1] == EFBIG


# --- everything else by number ------------------------------------------------------------------

DENIED = """
    execve execveat fork vfork clone kill tkill tgkill rt_sigqueueinfo rt_tgsigqueueinfo
    pidfd_send_signal pidfd_open pidfd_getfd ptrace process_vm_readv process_vm_writev kcmp
    process_madvise wait4 waitid socket socketpair connect bind listen accept accept4
    sendmsg recvmsg sendmmsg recvmmsg setsockopt getsockopt shutdown getsockname getpeername
    memfd_create memfd_secret userfaultfd io_uring_setup io_uring_enter io_uring_register
    io_setup bpf perf_event_open keyctl add_key request_key shmget shmat shmctl shmdt msgget
    msgsnd msgrcv semget semop mq_open mq_unlink setuid setgid setreuid setresuid setresgid
    setgroups setfsuid capset capget unshare setns seccomp landlock_create_ruleset
    landlock_restrict_self personality mount umount2 pivot_root chroot chdir fchdir
    open_tree move_mount fsopen fsmount mount_setattr swapon reboot kexec_load init_module
    finit_module delete_module acct quotactl sethostname setdomainname settimeofday
    clock_settime adjtimex clock_adjtime syslog open_by_handle_at name_to_handle_at
    fanotify_init inotify_init inotify_init1 epoll_create1 eventfd2 pipe pipe2 signalfd4
    timerfd_create timer_create setitimer alarm dup dup2 dup3 close_range splice tee
    vmsplice sendfile copy_file_range fallocate sched_setscheduler sched_setattr
    sched_setaffinity setpriority ioprio_set mlock mlockall mbind set_mempolicy
    migrate_pages move_pages pkey_mprotect remap_file_pages modify_ldt iopl ioperm
    arch_prctl prctl set_thread_area setrlimit setsid setpgid ustat statfs fstatfs truncate
    link symlink mknod chmod fchmod chown fchown utime utimensat flock setxattr getxattr
    listxattr removexattr vhangup lookup_dcookie process_mrelease openat2
"""


@pytest.mark.parametrize("name", DENIED.split())
def test_other_calls_are_denied(confined: Attacker, name: str) -> None:
    if name not in native().numbers:
        pytest.skip(f"this architecture has no {name}")
    assert confined.attack([(name,)])[0] == [EPERM]


@pytest.mark.parametrize("name", ["socket", "pipe", "dup", "unshare", "personality", "wait4"])
def test_without_the_wall_they_are_not(unconfined: Attacker, name: str) -> None:
    assert unconfined.attack([(name,)])[0] != [EPERM]


def test_it_runs_as_nobody_without_capabilities(confined: Attacker) -> None:
    results, _ = confined.attack([("getuid",), ("geteuid",), ("getgid",), ("getegid",)])
    status = Path(f"/proc/{confined.pid()}/status").read_text()
    facts = dict(line.split(":\t") for line in status.splitlines() if ":\t" in line)
    assert (facts["Seccomp"], facts["NoNewPrivs"]) == ("2", "1")
    assert {facts[f"Cap{kind}"] for kind in ("Inh", "Prm", "Eff", "Amb")} == {"0" * 16}
    assert facts["Groups"].strip() == "" or os.geteuid()
    if os.geteuid() == 0:
        assert results == [65534] * 4


def test_all_its_threads_are_confined(confined: Attacker) -> None:
    confined.attack([("getpid",)])
    threads = list(Path(f"/proc/{confined.pid()}/task").iterdir())
    assert len(threads) > 1
    for thread in threads:
        status = (thread / "status").read_text()
        assert "Seccomp:\t2" in status
        assert "NoNewPrivs:\t1" in status
        assert "CapEff:\t0000000000000000" in status


def test_foreign_system_calls_kill(confined: Attacker) -> None:
    kernel = SOURCE.replace('syscall"', 'int $0x80"')
    with pytest.raises(Faulted, match="SIGSYS"):
        confined.attack([(20,)], wanted=function("Old", kernel))
    with pytest.raises(Faulted, match="SIGSYS"):
        confined.attack([(0x40000000 + 39,)])
    assert confined.attack([("getpid",)])[0] == [confined.pid()]


# --- network ------------------------------------------------------------------------------------

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


# --- processes and signals ----------------------------------------------------------------------


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


# --- memory of others ---------------------------------------------------------------------------


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
            os.readlink(entry).partition(":")[0].partition(" ")[0]
            for entry in Path(f"/proc/{confined.pid(fresh)}/fd").iterdir()
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


# --- the compiler -------------------------------------------------------------------------------

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


# --- faults -------------------------------------------------------------------------------------

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


# --- what is left -------------------------------------------------------------------------------


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


# --- where it cannot be confined ----------------------------------------------------------------


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
