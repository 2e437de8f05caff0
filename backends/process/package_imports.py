"""What a zygote gives up before it loads packages of functions.

A zygote without packages loads modules that the operator installed, and is locked afterwards. A
package was chosen by a function's author. It is loaded as code of users is, except that importing
needs files. So before the first of its modules is loaded, the zygote has

- no network, the user nobody if it was root, no capability but to read files, no new privileges;
- Landlock: the folders of the interpreter, of installed packages and of this environment, and
  the system's libraries, for reading only; a private folder in memory for temporary files; no
  execution, no signals to processes outside (where the kernel has these scopes);
- a system call filter without programs, connections, mounts, keys, BPF, tracing and others' memory.

`SANDBOX_KEEPS` also has what the zygote itself needs later: to fork and lock sandboxes. The node
limits time, memory and processes, see `dandelion.backends.process.import_limits`.

This module is loaded before numpy, which an environment may have in a version of its own, so it
imports nothing that needs it.
"""

from __future__ import annotations

import fcntl
import importlib
import os
import site
import sys
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from types import ModuleType

from dandelion.confinement import libc, lockdown, seccomp
from dandelion.confinement.seccomp import FilterProgram, SyscallPolicy, only_if
from dandelion.confinement.syscalls import native

_LOCAL = 1  # AF_UNIX
_TEMPORARY = "/dev/shm"
_TEMPORARY_BYTES, _TEMPORARY_FILES = 16 << 20, 1024
_LOWEST = 16  # of the descriptors that stay open
_SYSTEM = (
    *("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/share/zoneinfo"),
    *("/etc/ld.so.cache", "/etc/localtime", "/etc/mime.types", "/dev/null", "/dev/urandom"),
)
_OWN = ("dandelion.backends", "dandelion.backends.process")

SANDBOX_KEEPS = """
    read write readv writev pread64 pwrite64 preadv pwritev preadv2 pwritev2 lseek close dup dup2
    dup3 open openat openat2 stat lstat fstat newfstatat statx access faccessat faccessat2 readlink
    readlinkat getdents getdents64 getcwd mkdir mkdirat rmdir unlink unlinkat rename renameat
    renameat2 link linkat chmod fchmod fchmodat utimensat ftruncate
    memfd_create pipe pipe2 fcntl ioctl brk mmap mprotect munmap mremap madvise mlock munlock
    futex membarrier rseq set_robust_list set_tid_address arch_prctl prctl seccomp capset capget
    close_range landlock_create_ruleset landlock_add_rule landlock_restrict_self
    rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending sigaltstack restart_syscall
    clock_gettime clock_getres clock_nanosleep nanosleep gettimeofday time times getrusage
    getitimer setitimer sched_yield sched_getaffinity sched_setaffinity sched_setscheduler
    sched_getscheduler getcpu getpriority setpriority poll ppoll select pselect6
    getpid getppid gettid getuid geteuid getgid getegid getgroups getresuid getresgid getrandom
    uname sysinfo umask
    clone clone3 fork vfork wait4 waitid kill tgkill pidfd_open pidfd_send_signal
    getrlimit setrlimit prlimit64 exit exit_group
    sendmsg recvmsg sendto recvfrom shutdown
"""


@dataclass(frozen=True, slots=True)
class Restricted:
    """What `restrict` did, and what stays open for the zygote.

    Attributes:
        namespaces: names of the left namespaces.
        tasks: descriptor of the folder with the threads of this process.
        files: descriptor of the folder with its open descriptors.
        maps, statm: descriptors of its files of these names.
    """

    namespaces: str
    tasks: int
    files: int
    maps: int
    statm: int


def restrict(environment: str) -> Restricted:
    """Give up rights, and put the environment on the search path: behind the standard library.

    What is installed on the node comes after it, so an environment may have other versions.
    """
    for name in _OWN:
        importlib.import_module(name)
    tempfile = importlib.import_module("tempfile")  # not in sandboxes without packages
    tasks, files, maps, statm = map(_opened, ("task", "fd", "maps", "statm"))
    vars(tempfile)["tempdir"] = _TEMPORARY  # else it is looked for by writing files
    writable = [_TEMPORARY] if _mounted() else []
    namespaces = lockdown.leave_namespaces()
    abi = lockdown.restrict_files([*_readable(), environment, *_SYSTEM], writable)
    lockdown.drop_identity(reads=bool(abi))
    libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
    lockdown.limit_resources()
    seccomp.install(native(), _POLICY)
    standard = _standard_library()
    installed = [path for path in sys.path if path not in standard]
    sys.path[:] = [*(p for p in sys.path if p in standard), environment, *installed]
    return Restricted(namespaces, tasks, files, maps, statm)


def _mounted() -> bool:
    """Make a private folder in memory, since some packages write files when they are loaded."""
    return lockdown.mount_memory(_TEMPORARY, _TEMPORARY_BYTES, _TEMPORARY_FILES)


def check(restricted: Restricted, own: Collection[int]) -> str:
    """Say what the imports left behind that calls must not share; empty if nothing.

    Args:
        restricted: of this process.
        own: descriptors of the zygote. Those that the imports opened are closed.
    """
    kept = {0, 1, 2, *own, restricted.tasks, restricted.files, restricted.maps, restricted.statm}
    for descriptor in set(map(int, os.listdir(restricted.files))) - kept:
        with suppress(OSError):  # the one that listing them took
            os.close(descriptor)
    if len(os.listdir(restricted.tasks)) > 1:
        return "starts threads"
    with suppress(ChildProcessError):
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return "leaves processes behind"
    lines = _content(restricted.maps).splitlines()
    if any(line.split()[1].startswith("rw-s") for line in lines):
        return "keeps memory that calls would share"
    return ""


def mapped_bytes(restricted: Restricted) -> int:
    """Return the address space of this process, and close what `restrict` opened."""
    pages = int(_content(restricted.statm).split()[0])
    for descriptor in (restricted.tasks, restricted.files, restricted.maps, restricted.statm):
        os.close(descriptor)
    return pages * os.sysconf("SC_PAGESIZE")


def _content(descriptor: int) -> str:
    os.lseek(descriptor, 0, os.SEEK_SET)
    parts = []
    while part := os.read(descriptor, 1 << 16):
        parts.append(part)
    return b"".join(parts).decode("utf-8", "replace")


def _opened(name: str) -> int:
    """Open a file or folder of this process, above the descriptors that sandboxes have."""
    opened = os.open(f"/proc/self/{name}", os.O_RDONLY | os.O_CLOEXEC)
    high = fcntl.fcntl(opened, fcntl.F_DUPFD_CLOEXEC, _LOWEST)
    os.close(opened)
    return high


def _paths() -> dict[str, str]:
    found: dict[str, str] = importlib.import_module("sysconfig").get_paths()
    return found


def _standard_library() -> set[str]:
    paths = _paths()
    folders = {paths["stdlib"], paths["platstdlib"]}
    found = {os.path.abspath(f) for f in folders} | {os.path.realpath(f) for f in folders}
    inner = {os.path.join(folder, "lib-dynload") for folder in found}
    return found | inner | {path for path in sys.path if path.endswith(".zip")}


def _readable() -> set[str]:
    """Return the folders of the interpreter, of installed packages and of the engine."""
    import dandelion

    paths = _paths()
    found = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    found |= {*site.getsitepackages(), *(p for p in sys.path if p.endswith("-packages"))}
    found |= {os.path.join(prefix, "lib") for prefix in (sys.base_prefix, sys.base_exec_prefix)}
    found |= {os.path.dirname(module.__file__ or "") for module in (dandelion, *_loaded())}
    return {os.path.realpath(path) for path in found if path}


def _loaded() -> list[ModuleType]:
    return [sys.modules[name] for name in _OWN]


def _conditional(pid: int, denied: int) -> list[tuple[str, FilterProgram]]:
    return [("socketpair", only_if({0: (_LOCAL,)}, denied))]


_POLICY = SyscallPolicy(SANDBOX_KEEPS, {}, _conditional)
