"""The system calls of the process that prepares packages: files, and with an index the network."""

from __future__ import annotations

import errno
import fcntl

from dandelion.confinement.seccomp import FilterProgram, SyscallPolicy, if_bits, only_if

_CLONE_THREAD = 0x10000
_F_DUPFD_CLOEXEC = 1030
_IOCTLS = (0x5421, 0x5450, 0x5451)  # do not block; close at an execution, or do not
_FAMILIES = (1, 2, 10, 16)  # local (name services), IPv4, IPv6, netlink (the C library's resolver)

_FILES = """
    read write readv writev pread64 pwrite64 lseek close
    open openat stat lstat fstat newfstatat statx access faccessat faccessat2 readlink readlinkat
    getdents getdents64 getcwd mkdir mkdirat unlink unlinkat rmdir rename renameat renameat2
    ftruncate fsync fdatasync umask chmod fchmod fchmodat utimensat
    brk mmap mprotect munmap mremap madvise futex set_robust_list set_tid_address
    rt_sigaction rt_sigprocmask rt_sigreturn sigaltstack restart_syscall
    clock_gettime clock_getres clock_nanosleep nanosleep gettimeofday time times getrusage
    sched_yield sched_getaffinity getcpu poll ppoll select pselect6
    getpid getppid gettid getuid geteuid getgid getegid getrandom uname sysinfo exit exit_group rseq
"""
_NETWORK = """
    connect bind getsockname getpeername getsockopt setsockopt shutdown
    sendto sendmsg sendmmsg recvfrom recvmsg epoll_create1 epoll_ctl epoll_wait epoll_pwait
"""


def policy(network: bool) -> SyscallPolicy:
    """Give the policy; `network` if there is an index."""

    def conditional(pid: int, denied: int) -> list[tuple[str, FilterProgram]]:
        requested = (fcntl.F_GETFD, fcntl.F_SETFD, fcntl.F_GETFL, fcntl.F_SETFL, _F_DUPFD_CLOEXEC)
        rules = [
            ("fcntl", only_if({1: requested}, denied)),
            ("prlimit64", only_if({0: (0,), 2: (0,)}, denied)),  # ask, of itself
            ("clone", if_bits(0, _CLONE_THREAD, denied)),
        ]
        if network:
            rules.append(("socket", only_if({0: _FAMILIES}, denied)))
            rules.append(("ioctl", only_if({1: _IOCTLS}, denied)))
        return rules

    quiet = {errno.ENOSYS: "clone3 membarrier"}
    if not network:
        quiet[errno.ENOTTY] = "ioctl"
    return SyscallPolicy(f"{_FILES} {_NETWORK if network else ''}", quiet, conditional)
