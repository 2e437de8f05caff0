"""Giving up rights in steps; each is permanent and inherited by threads and forks.

A step that a kernel or a container does not allow is skipped and reported; the caller decides which
steps it requires. Most rights are per thread, not per process: a process confines itself while it
has one thread, and starts others afterwards.

Source: ``landlock(7)``, ``credentials(7)``, ``capabilities(7)``, ``mount_namespaces(7)``,
``linux/landlock.h``.
"""

from __future__ import annotations

import ctypes
import math
import os
import resource
import stat
import struct
import time
from collections.abc import Iterable
from pathlib import Path

from dandelion.confinement import libc

NOBODY = 65534

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on all architectures
_VERSION_FLAG = 1
_PATH_BENEATH = 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIRECTORY = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE_DIRECTORY, _REMOVE_FILE = 1 << 4, 1 << 5
_MAKE_DIRECTORY, _MAKE_FILE = 1 << 7, 1 << 8
_RENAME_ELSEWHERE, _TRUNCATE = 1 << 13, 1 << 14
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
_READING = _READ_FILE | _READ_DIRECTORY
_WRITING = (
    _READING
    | _WRITE_FILE
    | _REMOVE_DIRECTORY
    | _REMOVE_FILE
    | _MAKE_DIRECTORY
    | _MAKE_FILE
    | _RENAME_ELSEWHERE
    | _TRUNCATE
)
_CAPSET = {"x86_64": 126, "aarch64": 91}
_CAPABILITY_VERSION_3 = 0x20080522
_CPU_GRACE_S = 2
_PR_SET_KEEPCAPS = 8
_CAP_DAC_READ_SEARCH = 1 << 2

_NEW_USER, _NEW_UTS, _NEW_IPC, _NEW_NET = 0x10000000, 0x04000000, 0x08000000, 0x40000000
_NEW_MOUNTS = 0x00020000
_NO_SUID, _NO_DEVICES, _BIND, _RECURSIVE, _PRIVATE = 1 << 1, 1 << 2, 1 << 12, 1 << 14, 1 << 18


def landlock_abi() -> int:
    """Return the version of Landlock's interface; 0 if the kernel has none or it is off."""
    try:
        return libc.syscall(_CREATE_RULESET, None, 0, _VERSION_FLAG)
    except OSError:
        return 0


def restrict_files(
    readable: Iterable[str | Path] = (),
    writable: Iterable[str | Path] = (),
    *,
    scoped: bool = True,
    network: bool = False,
) -> int:
    """Give up the file system except for some paths, TCP, and the execution of files.

    Args:
        readable: files, and folders with their content, that may be read and listed. Missing ones
            are skipped.
        writable: folders in which regular files and folders may be created, read, written, renamed
            (between folders since version 2), and removed.
        scoped: also give up abstract sockets and signals to other processes, if supported.
        network: keep TCP.

    Returns:
        Version of the interface that enforces it; 0 if there is none.
    """
    abi = landlock_abi()
    if not abi:
        return 0
    files = (1 << _file_rights(abi)) - 1
    denied = 0b11 if abi >= 4 and not network else 0
    scopes = 0b11 if abi >= 6 and scoped else 0
    attributes = ctypes.create_string_buffer(struct.pack("<QQQ", files, denied, scopes), 24)
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    ruleset = libc.syscall(_CREATE_RULESET, attributes, size, 0)
    try:
        for path in readable:
            _allow(ruleset, path, _READING)
        for path in writable:
            _allow(ruleset, path, _WRITING & files)
        libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
        libc.syscall(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)
    return abi


def _file_rights(abi: int) -> int:
    if abi >= 5:
        return 16  # and device controls
    return {1: 13, 2: 14}.get(abi, 15)


def _allow(ruleset: int, path: str | Path, rights: int) -> None:
    try:
        below = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return
    try:
        if not stat.S_ISDIR(os.fstat(below).st_mode):
            rights &= _OF_FILES
        rule = ctypes.create_string_buffer(struct.pack("<Qi", rights, below), 12)
        libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0)
    finally:
        os.close(below)


def mount_memory(folder: str, size_bytes: int, files: int) -> bool:
    """Mount a file system in memory over a folder, visible only to this process and descendants.

    It is removed with the last of them, and cannot grow beyond its size. The process leaves the
    host's mount namespace; without privileges, in a user namespace with the same user.

    Args:
        folder: an absolute path; its content is hidden.
        size_bytes, files: largest size and number of files.

    Returns:
        Whether it was allowed. If not, the folder is unchanged.
    """
    user, group = os.geteuid(), os.getegid()
    owner = (NOBODY, NOBODY) if user == 0 else (user, group)
    try:
        if user == 0:
            libc.unshare(_NEW_MOUNTS)
        else:
            libc.unshare(_NEW_USER | _NEW_MOUNTS)
            Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
        libc.mount("/", "none", _RECURSIVE | _PRIVATE)
        options = f"size={size_bytes},nr_inodes={files},mode=0700,uid={owner[0]},gid={owner[1]}"
        libc.mount(folder, "tmpfs", _NO_SUID | _NO_DEVICES, options)
    except OSError:
        return False
    return True


def reveal(paths: Iterable[str], *, mounts: bool) -> str:
    """Give an unprivileged user access to files that only root can reach.

    The first folder above them that others may not enter is covered by a file system in memory
    that has these files only.

    Args:
        paths: of files and folders.
        mounts: `mount_memory` succeeded, so mounts of this process are its own. Otherwise nothing
            is covered.

    Returns:
        A folder that others still cannot enter; empty if all paths can be reached now.
    """
    hidden: dict[Path, list[Path]] = {}
    for path in map(Path, paths):
        closed = _closed(path)
        if closed is not None and path.exists():
            hidden.setdefault(closed, []).append(path)
    for closed, below in hidden.items():
        if not mounts:
            return str(closed)
        held = {path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in below}
        try:
            libc.mount(str(closed), "tmpfs", _NO_SUID | _NO_DEVICES, "size=1m,mode=0755")
            for path, descriptor in held.items():
                path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
                if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                    path.mkdir(exist_ok=True)
                else:
                    path.touch()
                source = f"/proc/self/fd/{descriptor}"
                libc.mount(str(path), "none", _BIND | _RECURSIVE, source=source)
        except OSError:
            return str(closed)
        finally:
            for descriptor in held.values():
                os.close(descriptor)
    return ""


def _closed(path: Path) -> Path | None:
    """Return the first folder above a path that others may not enter; None if they can reach it."""
    for parent in reversed(path.absolute().parents):
        try:
            if not parent.stat().st_mode & stat.S_IXOTH:
                return parent
        except (FileNotFoundError, NotADirectoryError):
            return None
    return None


def leave_namespaces(*, user: bool = True) -> str:
    """Leave the host's network, IPC and host name; without privileges, in a user namespace.

    Args:
        user: whether a user namespace may be used; then the user cannot be changed any more.

    Returns:
        Names of the left namespaces, ``none`` if it is not allowed.
    """
    ways = [(_NEW_NET | _NEW_IPC | _NEW_UTS, "net, ipc, uts")]
    if user:
        ways.append((_NEW_USER | _NEW_NET | _NEW_IPC | _NEW_UTS, "user, net, ipc, uts"))
    for flags, names in ways:
        try:
            libc.unshare(flags)
        except OSError:
            continue
        return names
    return "none"


def drop_identity(*, reads: bool = False) -> str:
    """Become the user nobody, if this is root; then give up all capabilities.

    Args:
        reads: former root keeps the right to read files of other users. Only after `restrict_files`
            has said which files; a second call gives it up.

    Returns:
        The new user, as readable text.
    """
    kept = 0
    if os.geteuid() == 0:
        if reads:
            libc.prctl(_PR_SET_KEEPCAPS, 1)
            kept = _CAP_DAC_READ_SEARCH
        try:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
        except OSError:
            pass  # a container without the capability: still root, but without capabilities
    _set_capabilities(kept)
    user = os.geteuid()
    rights = "no capabilities" if not kept else "reading only"
    return f"{user}{' (nobody)' if user == NOBODY else ''}, {rights}"


def _set_capabilities(kept: int) -> None:
    header = ctypes.create_string_buffer(struct.pack("<II", _CAPABILITY_VERSION_3, 0), 8)
    data = ctypes.create_string_buffer(struct.pack("<6I", kept, kept, 0, 0, 0, 0), 24)
    libc.syscall(_CAPSET[_machine()], header, data)


def _machine() -> str:
    machine = os.uname().machine
    return "aarch64" if machine == "arm64" else machine


def limit_resources() -> None:
    """Set the limits of a zygote and its sandboxes: no core dumps, no queues."""
    for what in (resource.RLIMIT_CORE, resource.RLIMIT_MEMLOCK, resource.RLIMIT_MSGQUEUE):
        resource.setrlimit(what, (0, 0))


def limit_processes() -> None:
    """Forbid further processes."""
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))


def limit_descriptors() -> None:
    """Limit open files to what a sandbox needs."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))


def allow_descriptors() -> None:
    """Allow as many open files as the host does.

    Descriptors that wait in a socket count against this limit, for all processes of a user.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def yield_to_others(batch: bool) -> None:
    """Do not preempt other processes on waking up; with False, do so again.

    Forking sandboxes for later calls must not interrupt a running call.
    """
    policy = os.SCHED_BATCH if batch else os.SCHED_OTHER
    os.sched_setscheduler(0, policy, os.sched_param(0))


def limit(what: int, soft: int, hard: int | None = None) -> None:
    """Set a resource limit, lowered to what is allowed; without `hard` both are `soft`."""
    hard = soft if hard is None else hard
    _, most = resource.getrlimit(what)
    hard = hard if most == resource.RLIM_INFINITY else min(hard, most)
    resource.setrlimit(what, (min(soft, hard), hard))


def limit_call(memory_bytes: int, cpu_s: int, file_bytes: int) -> None:
    """Set the limits of one call.

    Args:
        memory_bytes: address space, with what the interpreter has mapped already.
        cpu_s: CPU seconds from now on, without earlier use of this process. The engine ends a call
            in time. The kernel's limit is a fallback, and well above it, since the kernel counts
            ticks, with errors of a tenth and more: first SIGXCPU, which names the cause, and
            SIGKILL a second later.
        file_bytes: size of the output file.
    """
    # The sum comes first, so that a warm-up without limits touches the same memory.
    warn_s = math.ceil(time.process_time()) + cpu_s + cpu_s // 2 + _CPU_GRACE_S
    kill_s = warn_s + 1
    if cpu_s == resource.RLIM_INFINITY:
        warn_s = kill_s = cpu_s
    for what, soft, hard in (
        (resource.RLIMIT_AS, memory_bytes, memory_bytes),
        (resource.RLIMIT_CPU, warn_s, kill_s),
        (resource.RLIMIT_FSIZE, file_bytes, file_bytes),
    ):
        try:
            resource.setrlimit(what, (soft, hard))
        except ValueError:  # the host's own limit is lower and stays
            continue
