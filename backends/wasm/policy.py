"""The system calls of a process that runs WebAssembly functions.

It opens nothing, since everything that wasmtime and Python need is loaded before. It makes machine
code executable, and starts no threads. It talks on one socket, and writes to its standard error,
which is ``/dev/null``.
"""

from __future__ import annotations

import errno

from dandelion.confinement.seccomp import FilterProgram, SyscallPolicy, only_if

_SIGABRT = 6
_PR_SET_VMA = 0x53564D41  # names of mappings, by libc
_STDERR = 2

_ALLOWED = """
    brk mmap mprotect munmap mremap madvise futex
    rt_sigaction rt_sigprocmask rt_sigreturn sigaltstack restart_syscall
    clock_gettime clock_getres clock_nanosleep nanosleep gettimeofday time times getrusage
    sched_yield sched_getaffinity getcpu poll ppoll membarrier
    getpid getppid gettid getuid geteuid getgid getegid getrandom exit exit_group rseq
"""
_QUIET = {
    errno.ENOENT: "open openat stat lstat newfstatat statx access faccessat faccessat2 readlink",
    errno.ENOTTY: "ioctl",
    errno.ENOSYS: "clone3",
}


def policy(channel: int) -> SyscallPolicy:
    """Give the policy of a process.

    Args:
        channel: descriptor of its socket.
    """

    def conditional(pid: int, denied: int) -> list[tuple[str, FilterProgram]]:
        own = only_if({0: (channel,), 4: (0,)}, denied)  # what is connected needs no address
        return [
            ("sendto", own),
            ("recvfrom", own),
            ("write", only_if({0: (_STDERR,)}, denied)),
            ("prctl", only_if({0: (_PR_SET_VMA,)}, denied)),
            ("prlimit64", only_if({0: (0,), 2: (0,)}, denied)),  # ask, of itself
            ("tgkill", only_if({0: (pid,), 2: (_SIGABRT,)}, denied)),
        ]

    return SyscallPolicy(_ALLOWED, _QUIET, conditional)
