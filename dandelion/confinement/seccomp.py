"""System call filters, and their effect on denied calls.

A filter is an allow-list, a `SyscallPolicy`. A call that it does not allow ends in one of
four ways:

quiet     it fails with an error number, as if files, terminals and processors did not exist.
          Libraries probe for these and handle the error.
failed    it fails with EPERM: for programs that can continue without it.
notified  it fails, and the kernel notifies the starter of the process through a listener, so that
          an error can name the call.
killed    calls of a foreign interface; and all denied calls where the filter says so.

The program is classic BPF over ``struct seccomp_data``: number at byte 0, architecture at 4,
arguments from 16, 8 bytes each, low word first on both supported architectures. It finds a call by
binary search: when a filter is installed, the kernel runs it once for every system call that there
is, which takes longer than all else if the program compares one number after the other.

Source: ``seccomp(2)``, ``seccomp_unotify(2)``, ``linux/seccomp.h``, ``linux/filter.h``.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dandelion.confinement import libc
from dandelion.confinement.syscalls import Architecture

KILL = 0x80000000
_ERRNO = 0x00050000
FAIL = _ERRNO | errno.EPERM
NOTIFY = 0x7FC00000
_ALLOW = 0x7FFF0000

_LOAD, _EQUAL, _GREATER, _HAS_BITS, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x06
_JUMP, _AT_LEAST = 0x05, 0x35
_FARTHEST = 255  # instructions that a condition can skip

_SET_FILTER, _GET_ACTION_AVAILABLE = 1, 2
_ALL_THREADS, _NEW_LISTENER = 1 << 0, 1 << 3
_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_NOTIFICATION = struct.Struct("<QIIiIQ6Q")
_RESPONSE = struct.Struct("<QqiI")
_PID = struct.Struct("<I")
_ANY_PID = 0x5AFEB0C5  # neither a valid process id nor another operand

FilterProgram = list[tuple[int, int, int, int]]
"""Instructions: code, jump if true, jump if false, operand."""


@dataclass(frozen=True, slots=True)
class SyscallPolicy:
    """The allow-list of a filter. Names of calls that an architecture lacks are ignored.

    Attributes:
        allowed: calls that are allowed with any arguments, as words of a text.
        quiet: calls that fail with an error number, by that number, as words of a text.
        conditional: makes the list of calls that are allowed for some arguments, each with a
            program. Its arguments are the process id, and the effect on denied calls.
    """

    allowed: str
    quiet: Mapping[int, str]
    conditional: Callable[[int, int], list[tuple[str, FilterProgram]]]


def program(
    architecture: Architecture, policy: SyscallPolicy, pid: int, denied: int = NOTIFY
) -> bytes:
    """Make the filter program of the process with id `pid`.

    Args:
        architecture: numbers of the calls.
        policy: the allow-list.
        pid: the process itself, for conditions.
        denied: effect on calls that are not listed: `NOTIFY`, `FAIL` or `KILL`.
    """
    numbers = architecture.numbers
    code: FilterProgram = [
        (_LOAD, 0, 0, 4),
        (_EQUAL, 1, 0, architecture.audit),
        (_RETURN, 0, 0, KILL),
        (_LOAD, 0, 0, 0),
        (_GREATER, 0, 1, architecture.highest),
        (_RETURN, 0, 0, KILL),
    ]
    rules: list[tuple[str, FilterProgram]] = [
        (name, [(_RETURN, 0, 0, _ALLOW)]) for name in policy.allowed.split()
    ]
    rules += policy.conditional(pid, denied)
    for error, names in policy.quiet.items():
        rules += [(name, [(_RETURN, 0, 0, _ERRNO | error)]) for name in names.split()]
    bodies: dict[int, FilterProgram] = {}
    for name, body in rules:
        if name in numbers:  # the newer architecture lacks some of the older calls
            bodies.setdefault(numbers[name], body)
    code += _search(_ranges(bodies, [(_RETURN, 0, 0, denied)]))
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in code)


def _ranges(
    bodies: Mapping[int, FilterProgram], otherwise: FilterProgram
) -> list[tuple[int, FilterProgram]]:
    """Divide all numbers into ranges with the same program, each with its first number."""
    found = [(0, otherwise)]
    for number in sorted({n for at in bodies for n in (at, at + 1)}):
        body = bodies.get(number, otherwise)
        if number == found[-1][0]:
            found[-1] = (number, body)
        elif body != found[-1][1]:
            found.append((number, body))
    return found


def _search(ranges: list[tuple[int, FilterProgram]]) -> FilterProgram:
    """Find the range of the loaded number."""
    if len(ranges) == 1:
        return ranges[0][1]
    middle = len(ranges) // 2
    lower = _search(ranges[:middle])
    first = ranges[middle][0]
    if len(lower) <= _FARTHEST:
        code = [(_AT_LEAST, len(lower), 0, first)]
    else:
        code = [(_AT_LEAST, 0, 1, first), (_JUMP, 0, 0, len(lower))]
    return [*code, *lower, *_search(ranges[middle:])]


def unless_bits(index: int, bits: int, denied: int) -> FilterProgram:
    """Allow if the lower 32 bits of an argument have none of these bits."""
    return [
        (_LOAD, 0, 0, _argument(index)),
        (_HAS_BITS, 1, 0, bits),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, denied),
    ]


def if_bits(index: int, bits: int, denied: int) -> FilterProgram:
    """Allow if the lower 32 bits of an argument have one of these bits."""
    return [
        (_LOAD, 0, 0, _argument(index)),
        (_HAS_BITS, 0, 1, bits),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, denied),
    ]


def only_if(wanted: Mapping[int, tuple[int, ...]], denied: int) -> FilterProgram:
    """Allow if each of these arguments is one of these 32-bit values."""
    code: FilterProgram = []
    for index, values in wanted.items():
        code.append((_LOAD, 0, 0, _argument(index)))
        code += [(_EQUAL, len(values) - at, 0, value) for at, value in enumerate(values)]
        code.append((_RETURN, 0, 0, denied))
    code.append((_RETURN, 0, 0, _ALLOW))
    return code


def _argument(index: int) -> int:
    return 16 + 8 * index


def notification_available(architecture: Architecture) -> bool:
    """Tell whether this kernel can notify a listener of denied calls.

    Raises:
        OSError: with ENOSYS or EINVAL, the kernel has no filters at all.
    """
    action = ctypes.create_string_buffer(struct.pack("<I", NOTIFY), 4)
    try:
        libc.syscall(architecture.numbers["seccomp"], _GET_ACTION_AVAILABLE, 0, action)
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            return False
        raise
    return True


def install(architecture: Architecture, policy: SyscallPolicy, denied: int = FAIL) -> None:
    """Filter the calls of all threads of this process, permanently.

    Raises:
        OSError: no filter could be installed, or not for all threads.
    """
    code = program(architecture, policy, os.getpid(), denied)
    kept = ctypes.create_string_buffer(code, len(code))
    head = struct.pack("@HP", len(code) // 8, ctypes.addressof(kept))
    number = architecture.numbers["seccomp"]
    thread = libc.syscall(number, _SET_FILTER, _ALL_THREADS, ctypes.create_string_buffer(head))
    if thread:
        raise OSError(errno.EBUSY, f"thread {thread} has another filter")


class Filter:
    """A filter of this machine, made once for all sandboxes that a zygote will fork.

    A sandbox only writes its process id into it: see `libc.prepared`.
    """

    def __init__(self, architecture: Architecture, policy: SyscallPolicy) -> None:
        number = architecture.numbers["seccomp"]
        code = program(architecture, policy, _ANY_PID)
        self._notify = _Prepared(number, code, _NEW_LISTENER)
        code = program(architecture, policy, _ANY_PID, denied=KILL)
        self._kill = _Prepared(number, code, 0)

    def install(self) -> int | None:
        """Filter this process's calls, permanently.

        Returns:
            Descriptor of the listener; None if the kernel has none, then denied calls kill.

        Raises:
            OSError: no filter could be installed.
        """
        try:
            return self._notify.install()
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EBUSY):
                raise
        self._kill.install()
        return None


class _Prepared:
    """A program in memory with a gap for a process id, and the call that installs it."""

    def __init__(self, number: int, code: bytes, flags: int) -> None:
        self._gap = code.index(_PID.pack(_ANY_PID))
        assert code.count(_PID.pack(_ANY_PID)) == 1
        self._code = ctypes.create_string_buffer(code, len(code))
        head = struct.pack("@HP", len(code) // 8, ctypes.addressof(self._code))
        self._set = libc.prepared(number, _SET_FILTER, flags, ctypes.create_string_buffer(head))

    def install(self) -> int:
        _PID.pack_into(self._code, self._gap, os.getpid())
        return self._set()


@dataclass(frozen=True, slots=True)
class Denied:
    """A denied call of a sandbox, which waits for a response.

    Attributes:
        cookie: the kernel's number of this event.
        number: number of the system call.
    """

    cookie: int
    number: int


def receive(listener: int) -> Denied | None:
    """Take the next denied call, after `listener` polled readable; None if its process is gone."""
    buffer = bytearray(_NOTIFICATION.size)
    try:
        fcntl.ioctl(listener, _RECEIVE, buffer)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EINTR):
            return None
        raise
    fields = _NOTIFICATION.unpack(buffer)
    return Denied(fields[0], fields[3])


def refuse(listener: int, denied: Denied) -> None:
    """Make a denied call fail with EPERM. Its process may be gone already."""
    response = bytearray(_RESPONSE.pack(denied.cookie, 0, -errno.EPERM, 0))
    try:
        fcntl.ioctl(listener, _SEND, response)
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise


_WORDS = {
    "open a file": "open openat openat2 creat open_by_handle_at name_to_handle_at",
    "change files": """
        unlink unlinkat rename renameat renameat2 mkdir mkdirat rmdir link linkat symlink symlinkat
        chmod fchmod fchmodat chown fchown lchown fchownat truncate mknod mknodat utime utimes
        utimensat futimesat fallocate copy_file_range
    """,
    "look into directories": "getdents getdents64 chdir fchdir chroot statfs fstatfs",
    "use the network": """
        socket socketpair connect bind listen accept accept4 getsockname getpeername getsockopt
        setsockopt shutdown sendto sendmsg recvfrom recvmsg sendmmsg recvmmsg
    """,
    "start a program": "execve execveat",
    "start a process or thread": "fork vfork clone clone3",
    "send a signal": "kill tkill tgkill rt_sigqueueinfo rt_tgsigqueueinfo pidfd_send_signal",
    "look into another process": """
        ptrace process_vm_readv process_vm_writev pidfd_open pidfd_getfd kcmp process_madvise
    """,
    "make executable memory": "mmap mprotect pkey_mprotect",
    "share memory": "shmget shmat memfd_create memfd_secret userfaultfd mq_open msgget semget",
    "queue I/O": "io_uring_setup io_uring_enter io_uring_register io_setup io_submit",
    "change its privileges": """
        prctl arch_prctl setuid setgid setreuid setregid setresuid setresgid setgroups capset
        unshare setns seccomp personality
    """,
    "change limits of others": "prlimit64",
    "open a pipe": "pipe pipe2 eventfd eventfd2 epoll_create epoll_create1 inotify_init1 signalfd4",
}
_PHRASES = {name: phrase for phrase, names in _WORDS.items() for name in names.split()}


def describe(architecture: Architecture, number: int) -> str:
    """Describe the effect of a denied call, with its name."""
    name = architecture.name(number)
    return f"{_PHRASES.get(name, 'make the system call')} ({name})"
