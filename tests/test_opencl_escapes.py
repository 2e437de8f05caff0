"""Operations denied to kernels that run on the host, tested by kernels that try them.

Each attack runs in a real kernel host, with inline assembly that registration refuses: what holds
must be the wall, not that check. A control group runs the same attacks in a host without the wall,
and sees them succeed.
"""

from __future__ import annotations

import os
import platform
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dandelion.confinement.lockdown import landlock_abi
from dandelion.confinement.syscalls import native
from dandelion.errors import BackendUnavailable, Faulted
from tests.opencl_walls import EACCES, EFBIG, ENOENT, EPERM, SECRET, given_place

from .kernel_attacks import (
    CONFINED,
    SOURCE,
    UNCONFINED,
    At,
    Attacker,
    Result,
    Script,
    attacker,
    function,
    text,
)

place = pytest.fixture()(given_place)

pytestmark = [
    pytest.mark.skipif(platform.machine() != "x86_64", reason="attacks are x86-64 code"),
    pytest.mark.skipif(landlock_abi() < 2, reason="this kernel has no Landlock"),
]


O_RDONLY, O_WRONLY, O_RDWR, O_CREAT, O_TMPFILE, O_DIRECTORY = 0, 1, 2, 0o100, 0o20200000, 0o200000


O_PATH = 0o10000000
HERE = -100  # AT_FDCWD


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
