"""The messages of a zygote as the node reads them.

A zygote that has loaded packages of functions is not trusted: their code was in its process. A
message of it could name any process as a sandbox, which the node would kill after the call. So the
node checks that a sandbox is a child of its zygote.
"""

from __future__ import annotations

import os
import select
import stat
from pathlib import Path

import msgspec

from . import wire

EXIT_S = 0.2
"""After this time the end of a zygote can be seen, if it is why a socket or a child is lost."""

_from_zygote = msgspec.msgpack.Decoder(wire.FromZygote)


class ForgedMessage(Exception):
    """Code of packages has sent what no zygote sends."""


def read_message(data: bytes, files: list[int], untrusted: int | None) -> wire.FromZygote:
    """Read a message.

    Args:
        data: its bytes.
        files: its descriptors; they are closed if this raises.
        untrusted: process id of the zygote, if it has loaded packages of functions.

    Raises:
        ForgedMessage: it is not one of a zygote, or it names another process.
        EOFError: the zygote has ended, and so have its sandboxes.
        OSError: it could not be checked.
    """
    try:
        message: wire.FromZygote = _from_zygote.decode(data)
        is_forked = isinstance(message, wire.Forked)
        if (len(files) not in (4, 5)) if is_forked else files:
            raise ForgedMessage("the number of descriptors")
        if isinstance(message, wire.Forked) and untrusted is not None:
            _check_sandbox(message.pid, files, untrusted)
    except BaseException as error:
        for file in files:
            os.close(file)
        if isinstance(error, ForgedMessage | msgspec.DecodeError):
            raise ForgedMessage(str(error)) from None
        raise
    return message


def _check_sandbox(pid: int, files: list[int], zygote: int) -> None:
    """Check that descriptors are those of a child of a zygote.

    Raises:
        ForgedMessage: they are not.
        EOFError: the zygote has ended; what it forked has another parent then.
        OSError: this process has no descriptor left.
    """
    channel, pidfd, output, *_ = files
    named = _pid_of(pidfd)
    if named == -1:
        return  # it has ended; there is nothing to kill
    if named != pid:
        raise ForgedMessage("another process")
    if _parent_of(pid) not in (zygote, None):
        if has_ended(zygote, EXIT_S):
            raise EOFError
        raise ForgedMessage("another process")
    if not stat.S_ISSOCK(os.fstat(channel).st_mode) or not stat.S_ISREG(os.fstat(output).st_mode):
        raise ForgedMessage("other descriptors")


def _pid_of(pidfd: int) -> int | None:
    """Return the process of a pidfd, -1 if it is reaped; None if this is another descriptor."""
    for line in Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines():
        if line.startswith("Pid:"):
            return int(line.removeprefix("Pid:"))
    return None


def _parent_of(pid: int) -> int | None:
    """Return the parent of a process; None if it is gone."""
    try:
        return int(process_fields(pid)[1])
    except OSError:
        return None


def process_fields(pid: int) -> list[bytes]:
    """Return the kernel's fields of a process, from its state on.

    The name before it may be any bytes: each process chooses its own.

    Raises:
        OSError: it is gone.
    """
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()


def has_ended(process: int, timeout_s: float) -> bool:
    """Wait for the end of a child, without reaping it."""
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:  # another thread has reaped it
        return True
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(timeout_s * 1e3))
    finally:
        os.close(descriptor)
