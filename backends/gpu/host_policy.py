"""The system calls of processes that compile kernels, and of those that run them, too.

They open files, since a compiler does: which ones is Landlock's to say. They make code. A process
that runs kernels starts no threads: those that it needs are there when the filter is installed. It
talks on one socket. A process that only compiles has no socket, and may start threads.
"""

from __future__ import annotations

import errno
import fcntl

from dandelion.confinement.seccomp import FilterProgram, SyscallPolicy, if_bits, only_if

_SIGABRT = 6
_CLONE_THREAD = 0x10000
_F_DUPFD_CLOEXEC = 1030
_PR_SET_NAME = 15
_PR_SET_VMA = 0x53564D41  # names of mappings, by libc

_ALLOWED = """
    read write readv writev pread64 pwrite64 preadv pwritev lseek close
    open openat stat lstat fstat newfstatat statx access faccessat faccessat2 readlink readlinkat
    getdents getdents64 getcwd mkdir mkdirat unlink unlinkat rmdir rename renameat renameat2
    ftruncate fsync fdatasync umask
    brk mmap mprotect munmap mremap madvise futex
    rt_sigaction rt_sigprocmask rt_sigreturn sigaltstack restart_syscall
    clock_gettime clock_getres clock_nanosleep nanosleep gettimeofday time times getrusage
    sched_yield sched_getaffinity getcpu poll ppoll select pselect6
    getpid getppid gettid getuid geteuid getgid getegid getrandom uname sysinfo exit exit_group rseq
"""
_QUIET = {errno.ENOTTY: "ioctl", errno.ENOSYS: "clone3 membarrier"}


def policy(channel: int | None) -> SyscallPolicy:
    """Give the policy of a process.

    Args:
        channel: descriptor of its socket, if it runs kernels; None if it compiles only.
    """

    def conditional(pid: int, denied: int) -> list[tuple[str, FilterProgram]]:
        duties = (fcntl.F_GETFD, fcntl.F_SETFD, fcntl.F_GETFL, _F_DUPFD_CLOEXEC)
        rules = [
            ("fcntl", only_if({1: duties}, denied)),
            ("prctl", only_if({0: (_PR_SET_NAME, _PR_SET_VMA)}, denied)),
            ("prlimit64", only_if({0: (0,), 2: (0,)}, denied)),  # ask, of itself
            ("tgkill", only_if({0: (pid,), 2: (_SIGABRT,)}, denied)),
        ]
        if channel is not None:  # no address: what is connected goes where it goes
            own = only_if({0: (channel,), 4: (0,)}, denied)
            rules += [("sendto", own), ("recvfrom", own)]
        else:
            rules.append(("clone", if_bits(0, _CLONE_THREAD, denied)))
        return rules

    threads = "" if channel is not None else "set_robust_list set_tid_address"
    return SyscallPolicy(f"{_ALLOWED} {threads}", _QUIET, conditional)
