"""Messages between engine, zygote and sandbox, and the format of items.

A **parcel** is a record with the bytes of its items behind it::

    0        16                 64 * n
    | prefix | record (msgpack) | item | item | ...        each item starts at a multiple of 64

The prefix has the lengths of record and item area. A small parcel is one message of a
SOCK_SEQPACKET pair. A large one is in a memory file: the engine's goes with the message and is
sealed, the sandbox's is the file that it got at its fork; the message is then the prefix alone.
Static sets of a function may lie in a file of their own (`.constants`); its descriptor comes last.
Offsets follow from sizes and are not sent, so they cannot be forged.

Parcels to a sandbox are trusted. Parcels from one are untrusted; they are read and checked by
`dandelion.backends.process.outcome`.
"""

from __future__ import annotations

import array
import errno
import fcntl
import os
import socket
import struct
from collections.abc import Iterable, Sequence
from typing import Annotated, TypeAlias

import msgspec

from dandelion.call_values import CallValues
from dandelion.data import Bytes, ItemSet, Origin, SetSpec

PREFIX = struct.Struct("<QQ")
ALIGNMENT_BYTES = 64
INLINE_BYTES = 64 * 1024
"""Largest parcel that is sent as a message."""

_PADDING = bytes(ALIGNMENT_BYTES)
_VECTOR_LIMIT = 1024  # IOV_MAX
_ADD_SEALS = 1033
_SEALS = 0x1 | 0x2 | 0x4 | 0x8  # seal, shrink, grow, write: linux/fcntl.h
_CLOSE_ON_EXEC = int(socket.MSG_CMSG_CLOEXEC)  # as a flag of `enum`, joining it runs Python code

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Key: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
ProcessId: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]


class ItemHeader(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """An item without its bytes; `dtype` and `shape` are those of an array."""

    name: str
    key: Key
    size_bytes: Count
    dtype: str | None = None
    shape: tuple[Count, ...] | None = None


ItemHeaders: TypeAlias = tuple[list[ItemHeader] | None, ...]
"""Items of each set, by position; None for an absent set."""


class ProgramFile(msgspec.Struct, array_like=True, frozen=True):
    """A further source of a function, see `dandelion.backends.process.sources`."""

    kind: str
    name: str
    filename: str


class PythonProgram(msgspec.Struct, array_like=True, frozen=True):
    """A function as its sandboxes need it; the same for all its calls.

    Attributes:
        filename: name of the source in tracebacks.
        entry: name of the function to call.
        code: compiled module, marshalled by the same interpreter; with files a tuple of their code,
            the module's first.
        inputs, outputs: the declared sets.
        files: further sources.
        values: how arguments and results are converted; None if they are sets.
    """

    filename: str
    entry: str
    code: bytes
    inputs: tuple[SetSpec, ...]
    outputs: tuple[SetSpec, ...]
    files: tuple[ProgramFile, ...] = ()
    values: CallValues | None = None


class SandboxCall(msgspec.Struct, array_like=True, frozen=True):
    """One call, and the limits of its process.

    Attributes:
        sets: headers of all items.
        constant: positions of the sets whose items are in the file of constants.
    """

    program: PythonProgram
    sets: ItemHeaders
    memory_bytes: int
    cpu_s: int
    file_bytes: int
    origin: Origin | None = None
    constant: tuple[int, ...] = ()


class EncodedCall(msgspec.Struct, array_like=True, frozen=True):
    """A `SandboxCall` whose program is encoded already."""

    program: msgspec.Raw
    sets: ItemHeaders
    memory_bytes: int
    cpu_s: int
    file_bytes: int
    origin: Origin | None = None
    constant: tuple[int, ...] = ()


class Frame(msgspec.Struct, array_like=True, frozen=True):
    """One line of the user's code in a traceback; `file` is the number of its source."""

    line: Count
    function: str
    file: Count = 0


class Returned(msgspec.Struct, array_like=True, frozen=True, tag="done"):
    """The function returned; its items follow."""

    sets: ItemHeaders


class DidRaise(msgspec.Struct, array_like=True, frozen=True, tag="raised"):
    """The function raised. `frames` are those of its own code, outermost first."""

    exception: str
    frames: list[Frame]


class DidExit(msgspec.Struct, array_like=True, frozen=True, tag="exited"):
    """The function called ``sys.exit``."""

    code: Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]


class MemoryExhausted(msgspec.Struct, array_like=True, frozen=True, tag="memory"):
    """The function ran out of memory."""


class InvalidReturn(msgspec.Struct, array_like=True, frozen=True, tag="output"):
    """The function returned a value that is not valid as its outputs."""

    message: str


Failure: TypeAlias = DidRaise | DidExit | MemoryExhausted | InvalidReturn
Reply: TypeAlias = Returned | Failure


class ZygoteSettings(msgspec.Struct, frozen=True):
    """The start message of a zygote. Sandboxes can see it.

    Attributes:
        niceness: of the zygote and its sandboxes, see ``nice(2)``.
        environment: folder with the packages that its functions brought along; empty for none.
    """

    life_fd: int
    imports: tuple[str, ...]
    ahead: int
    niceness: int = 0
    environment: str = ""


class ZygoteReady(msgspec.Struct, frozen=True, tag="ready"):
    """A zygote has loaded its modules and is locked down.

    Attributes:
        facts: what is enforced, as readable text.
        mapped_bytes: address space of the interpreter with its modules.
    """

    facts: dict[str, str]
    mapped_bytes: int


class Forked(msgspec.Struct, frozen=True, tag="forked"):
    """A sandbox is locked and waits for a call. Sent by the sandbox itself.

    With the message come its socket, its pidfd, its output file, its log, and, if the kernel
    supports it, the listener that reports denied system calls.
    """

    pid: ProcessId


class ForkFailed(msgspec.Struct, frozen=True, tag="fork-failed"):
    """A sandbox ended before it was ready, or just after it has sent `Forked`."""

    pid: ProcessId


class ZygoteFailed(msgspec.Struct, frozen=True, tag="failed"):
    """A zygote cannot continue. `user` is true if a declared import is the reason."""

    message: str
    user: bool


FromZygote: TypeAlias = ZygoteReady | Forked | ForkFailed | ZygoteFailed


class SandboxExit(msgspec.Struct, frozen=True):
    """How a sandbox ended: an exit code, or minus the number of the signal that killed it."""

    code: int
    cpu_s: float


Buffers: TypeAlias = list[Bytes]

# In its log a sandbox marks which stream the bytes that follow belong to: MARK and one byte. Code
# that writes marks itself can only change the labels of its own lines.
MARK = b"\0"
STDOUT_MARK = b"\0o"
STDERR_MARK = b"\0e"
LEVELS = {
    b"d"[0]: "debug",
    b"i"[0]: "info",
    b"w"[0]: "warning",
    b"r"[0]: "error",
    b"c"[0]: "critical",
}
"""The bytes of marks for records of `logging`, with their levels."""


def aligned(size_bytes: int) -> int:
    """Round up to a multiple of the alignment."""
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def entries(sets: Iterable[ItemSet | None]) -> ItemHeaders:
    """List the items of sets without their bytes."""
    return tuple(
        None
        if s is None
        else [ItemHeader(i.name, i.key, i.size_bytes, i.dtype, i.shape) for i in s.items]
        for s in sets
    )


def parcel(record: bytes, sets: Iterable[ItemSet | None]) -> tuple[Buffers, int]:
    """Lay out a parcel.

    Returns:
        Its parts in order, and its size in bytes.
    """
    start = PREFIX.size + len(record)
    end = data_start = aligned(start)
    parts: Buffers = [b"", record, _PADDING[: data_start - start]]
    for part in item_parts(sets):
        parts.append(part)
        end += len(part)
    parts[0] = PREFIX.pack(len(record), end - data_start)
    return parts, end


def item_parts(sets: Iterable[ItemSet | None]) -> Buffers:
    """Lay out the items of sets, each from a multiple of the alignment on."""
    parts: Buffers = []
    for item_set in sets:
        for item in item_set.items if item_set is not None else ():
            size = item.size_bytes
            if size:
                parts += (_flat(item.data), _PADDING[: -size % ALIGNMENT_BYTES])
    return parts


def _flat(data: Bytes) -> Bytes:
    if isinstance(data, memoryview) and (data.itemsize != 1 or data.ndim != 1):
        return data.cast("B")
    return data


def write(file: int, parts: Sequence[Bytes]) -> None:
    """Write buffers one after the other from the start of a file.

    Raises:
        OSError: out of memory, or the file would exceed its limit.
    """
    offset = 0
    for first in range(0, len(parts), _VECTOR_LIMIT):
        vector = parts[first : first + _VECTOR_LIMIT]
        offset += _write_all(file, vector, offset)


def _write_all(file: int, vector: Sequence[Bytes], offset: int) -> int:
    total = sum(map(len, vector))
    written = os.pwritev(file, vector, offset)
    if written == total:
        return total
    skipped = 0  # one call writes at most 2 GiB: continue one buffer at a time
    for part in vector:
        done = min(max(written - skipped, 0), len(part))
        while done < len(part):
            done += os.pwrite(file, memoryview(part)[done:], offset + skipped + done)
        skipped += len(part)
    return total


def sealed_file(name: str, parts: Sequence[Bytes]) -> int:
    """Write buffers to a new memory file, which cannot be changed afterwards.

    Raises:
        OSError: out of memory, or no further file can be open.
    """
    file = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        write(file, parts)
        fcntl.fcntl(file, _ADD_SEALS, _SEALS)
    except BaseException:
        os.close(file)
        raise
    return file


def send(channel: socket.socket, parts: Sequence[Bytes], files: Sequence[int] = ()) -> None:
    """Send buffers as one message, with descriptors.

    Raises:
        OSError: the other side is gone.
    """
    if len(parts) > _VECTOR_LIMIT:
        parts = [b"".join(parts)]
    if files:
        rights = array.array("i", files)
        channel.sendmsg(parts, [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    else:
        channel.sendmsg(parts)


def receive(
    channel: socket.socket, size_bytes: int, file_count: int, flags: int = 0
) -> tuple[bytes, list[int]]:
    """Receive a message and its descriptors; no bytes if the other side is gone.

    Raises:
        BlockingIOError: `flags` forbid waiting, and there is no message.
        OSError: the connection is broken, or this process has no room for the descriptors.
    """
    space = socket.CMSG_SPACE(4 * file_count)
    data, ancillary, found, _ = channel.recvmsg(size_bytes, space, flags | _CLOSE_ON_EXEC)
    files = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            files.frombytes(content[: len(content) - len(content) % files.itemsize])
    if found & socket.MSG_CTRUNC and len(files) < file_count:  # fewer than there was space for
        for file in files:
            os.close(file)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    return data, list(files)
