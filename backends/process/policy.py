"""The system calls that a sandbox may make: those that computing needs, and its one socket."""

from __future__ import annotations

import errno
import fcntl
import mmap

from dandelion.confinement.seccomp import FilterProgram, SyscallPolicy, only_if, unless_bits

CHANNEL_FD = 3
"""The one socket of a sandbox."""

_SIGABRT = 6
_F_DUPFD_CLOEXEC = 1030


def _conditional(pid: int, denied: int) -> list[tuple[str, FilterProgram]]:
    """Allow no executable memory, messages on the channel, queries of itself, abort of itself."""
    no_code = unless_bits(2, mmap.PROT_EXEC, denied)
    channel = only_if({0: (CHANNEL_FD,)}, denied)
    return [
        ("mmap", no_code),
        ("mprotect", no_code),
        *((name, channel) for name in ("sendmsg", "sendto", "recvmsg", "recvfrom")),
        ("prlimit64", only_if({0: (0,)}, denied)),
        ("fcntl", only_if({1: (_F_DUPFD_CLOEXEC, fcntl.F_GETFD, fcntl.F_GETFL)}, denied)),
        ("tgkill", only_if({0: (pid,), 2: (_SIGABRT,)}, denied)),
    ]


POLICY = SyscallPolicy(
    allowed="""
        read write readv writev pread64 pwrite64 preadv pwritev preadv2 pwritev2 lseek close
        ftruncate fstat brk munmap mremap madvise futex
        rt_sigaction rt_sigprocmask rt_sigreturn sigaltstack restart_syscall
        clock_gettime clock_getres clock_nanosleep nanosleep gettimeofday time times getrusage
        getitimer setitimer sched_yield getcpu poll ppoll select pselect6
        getpid getppid gettid getuid geteuid getgid getegid getrandom exit exit_group
    """,
    quiet={
        errno.EACCES: """
            stat lstat newfstatat statx access faccessat faccessat2 readlink readlinkat getcwd
        """,
        errno.EPERM: "uname sysinfo sched_getaffinity sched_setaffinity getgroups",
        errno.ENOTTY: "ioctl",
        errno.ENOSYS: "membarrier rseq set_robust_list",
    },
    conditional=_conditional,
)
