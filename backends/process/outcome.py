"""Reading the result of a sandbox: outputs, or an error with the side at fault.

Everything here comes from untrusted code. Any byte of the reply may be forged, and its file may
change or shrink while it is read. So lengths are checked against limits before anything is read,
every count is checked, and the file is read, never mapped: a shrunk mapping would kill the node.
"""

from __future__ import annotations

import math
import os
import signal

import msgspec

from dandelion.arrays import Shape, checked_type
from dandelion.call_logs import (
    CALL_LINES,
    LOGGING,
    STDERR,
    STDOUT,
    PrintedLine,
    bounded,
    printed_lines,
)
from dandelion.data import Bytes, Item, ItemSet
from dandelion.driver import Call, InstanceSets
from dandelion.errors import (
    BadOutput,
    DandelionError,
    Exited,
    Faulted,
    InvalidInput,
    OutOfMemory,
    Raised,
)
from dandelion.function import Function, Limits

from . import wire
from .handle import Sandbox
from .sources import line_of

HEAP_BYTES = 4096
"""Outputs up to this size are bytes on the heap; larger ones are in a context of the domain."""

LOG_BYTES = 16 * 1024
OWN_SIGNALS = frozenset(
    {
        *(signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP),
        *(signal.SIGABRT, signal.SIGPIPE, signal.SIGXCPU, signal.SIGXFSZ),
        *(signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF),
    }
)
"""Signals that a function can cause in its own sandbox. All others come from outside."""
_MESSAGE_LIMIT = 4000
_FRAME_LIMIT = 100
_LINE_LIMIT = 200
_RECORD_BYTES = 64 * 1024
_ENTRY_BYTES = 450  # a name of 255 bytes, a key, a size, a type of up to 32 dimensions
_NEXT_ERROR = wire.STDOUT_MARK + wire.STDERR_MARK  # more of standard error follows
_reply_decoder: msgspec.msgpack.Decoder[wire.Reply] = msgspec.msgpack.Decoder(wire.Reply)


def file_limit_bytes(limits: Limits) -> int:
    """Largest output file that honest code can need: records, items, and their alignment."""
    return _record_limit_bytes(limits) + _data_limit_bytes(limits) + wire.PREFIX.size


def _record_limit_bytes(limits: Limits) -> int:
    return _RECORD_BYTES + limits.output_items * _ENTRY_BYTES


def _data_limit_bytes(limits: Limits) -> int:
    return limits.output_bytes + (limits.output_items + 1) * wire.ALIGNMENT_BYTES


class SandboxReply:
    """A received reply. Its lengths are checked, its bytes are not.

    Args:
        message: the message from the channel; valid until the next one is received.
        output: the sandbox's file, which holds a large reply.
        function: the called function.

    Raises:
        BadOutput: it is not a parcel, or longer than the function's limits allow.
    """

    def __init__(self, message: memoryview, output: int, function: Function) -> None:
        self._message = message
        self._output = output
        self._spec = function.spec
        self._name = function.spec.name
        limits = function.spec.limits
        if len(message) < wire.PREFIX.size:
            raise BadOutput(self._name, f"a reply of {len(message)} bytes")
        self._record_bytes, self._data_bytes = wire.PREFIX.unpack_from(message)
        if self._record_bytes > _record_limit_bytes(limits):
            raise BadOutput(
                self._name, f"more than {limits.output_items} items, its limit 'output_items'"
            )
        if self._data_bytes > _data_limit_bytes(limits):
            raise BadOutput(
                self._name, f"more than {limits.output_bytes} bytes, its limit 'output_bytes'"
            )
        self._data_start = wire.aligned(wire.PREFIX.size + self._record_bytes)
        self._inline = len(message) > wire.PREFIX.size
        if self._inline and len(message) != self._data_start + self._data_bytes:
            raise BadOutput(self._name, f"a reply of {len(message)} bytes with another stated size")

    def reply(self) -> wire.Reply:
        """Decode the record.

        Raises:
            BadOutput: it does not follow the protocol.
        """
        record: Bytes
        if self._inline:
            record = self._message[wire.PREFIX.size : wire.PREFIX.size + self._record_bytes]
        else:
            record = memoryview(bytearray(self._record_bytes))
            self._read(record, wire.PREFIX.size)
        try:
            return _reply_decoder.decode(record)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadOutput(self._name, f"its reply is not a valid record: {error}") from None

    def outputs(self, listed: wire.ItemHeaders, call: Call) -> InstanceSets:
        """Copy the items, once.

        Raises:
            BadOutput: the list does not match the data, or exceeds a limit.
            ContextFull: the call's domain has no room.
        """
        self._check(listed)
        data = self._data(call)
        sets: list[ItemSet | None] = []
        offset = 0
        for declared, entries in zip(self._spec.outputs, listed, strict=True):
            items = []
            for entry in entries or ():
                end = offset + entry.size_bytes
                dtype, shape = self._type(entry)
                items.append(Item(entry.name, entry.key, data[offset:end], dtype, shape))
                offset += wire.aligned(entry.size_bytes)
            sets.append(
                ItemSet(declared.name, tuple(items), declared.dtype, declared.shape)
                if items
                else None
            )
        return tuple(sets)

    def _type(self, entry: wire.ItemHeader) -> tuple[str | None, Shape | None]:
        if entry.dtype is None and entry.shape is None:
            return None, None
        where = f"item '{entry.name}'"
        try:
            return checked_type(where, entry.dtype, entry.shape, entry.size_bytes)
        except InvalidInput as error:
            raise BadOutput(self._name, str(error)[:_MESSAGE_LIMIT]) from None

    def _check(self, listed: wire.ItemHeaders) -> None:
        if len(listed) != len(self._spec.outputs):
            raise BadOutput(self._name, f"{len(listed)} sets instead of {len(self._spec.outputs)}")
        limits = self._spec.limits
        count = sum(len(entries or ()) for entries in listed)
        if count > limits.output_items:
            limit = f"its limit 'output_items', {limits.output_items}"
            raise BadOutput(self._name, f"{count} items are more than {limit}")
        sizes = [entry.size_bytes for entries in listed for entry in entries or ()]
        if sum(sizes) > limits.output_bytes:
            limit = f"its limit 'output_bytes', {limits.output_bytes}"
            raise BadOutput(self._name, f"{sum(sizes)} bytes are more than {limit}")
        if sum(map(wire.aligned, sizes)) != self._data_bytes:
            raise BadOutput(self._name, f"its items do not add up to {self._data_bytes} bytes")

    def _data(self, call: Call) -> Bytes:
        size = self._data_bytes
        if self._inline:
            data = self._message[self._data_start :]
            if size <= HEAP_BYTES:
                return bytes(data)
            return call.domain.acquire(size).write(0, data)
        if not size:
            return b""
        context = call.domain.acquire(size)
        self._read(context.view, self._data_start)
        return context.view.toreadonly()

    def _read(self, target: memoryview, offset: int) -> None:
        done = 0
        while done < len(target):
            count = os.preadv(self._output, [target[done:]], offset + done)
            if not count:
                raise BadOutput(self._name, "its output file is shorter than its stated size")
            done += count


def error_of(reply: wire.Failure, function: Function, written: bytes) -> DandelionError:
    """Turn a reply without outputs into an error of the user's function."""
    spec = function.spec
    if isinstance(reply, wire.DidRaise):
        shown = traceback_text(reply.frames, function)
        return Raised(spec.name, reply.exception[:_MESSAGE_LIMIT], shown, printed(written))
    if isinstance(reply, wire.DidExit):
        return Exited(spec.name, reply.code, printed(written))
    if isinstance(reply, wire.MemoryExhausted):
        return OutOfMemory(spec.name, spec.limits.memory_bytes)
    return BadOutput(spec.name, reply.message[:_MESSAGE_LIMIT])


def error_of_end(ended: wire.SandboxExit, function: Function, written: bytes) -> DandelionError:
    """Turn the end of a process that sent no reply into an error of the user's function."""
    name = function.spec.name
    if ended.code >= 0:
        return Exited(name, ended.code, printed(written))
    return Faulted(name, signal_name(-ended.code), printed(written))


def signal_name(number: int) -> str:
    """Return the name of a signal, or its number if it has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def traceback_text(frames: list[wire.Frame], function: Function) -> str:
    """Format the user's frames as Python does, with lines from the registered source."""
    if not frames:
        return ""
    text = ["Traceback (most recent call last):"]
    for frame in frames[:_FRAME_LIMIT]:
        shown = frame.function[:_LINE_LIMIT]
        name, line = line_of(function, frame.file, frame.line)
        text.append(f'  File "{name}", line {frame.line}, in {shown}')
        if line:
            text.append(f"    {line[:_LINE_LIMIT]}")
    return "\n".join(text) + "\n"


def read_log(sandbox: Sandbox) -> bytes:
    """Read what a sandbox wrote to its log until now, one byte more than `LOG_BYTES` at most."""
    kept = b""
    while len(kept) <= LOG_BYTES:
        wanted = LOG_BYTES + 1 - len(kept)
        try:
            part = os.read(sandbox.log, wanted)
        except BlockingIOError:
            break
        kept += part
        if len(part) < wanted:  # a read takes all that the pipe has
            break
    return kept


def printed(written: bytes) -> str:
    """Return what a sandbox wrote as text, up to `LOG_BYTES`, without marks."""
    first, *marked = written[:LOG_BYTES].split(wire.MARK)
    text = b"".join([first, *(part[1:] for part in marked)]).decode("utf-8", "replace")
    return f"{text}\n[the rest was dropped]" if len(written) > LOG_BYTES else text


def lines_of(written: bytes) -> tuple[PrintedLine, ...]:
    """Return what a sandbox wrote as lines with their streams."""
    first, *marked = written[:LOG_BYTES].replace(_NEXT_ERROR, b"").split(wire.MARK, LOG_BYTES)
    lines = printed_lines(first.decode("utf-8", "replace"), STDOUT)
    for part in marked:
        if len(part) < 2:
            continue
        text = part[1:].decode("utf-8", "replace")
        level = wire.LEVELS.get(part[0], "")
        if level:
            lines += printed_lines(text, LOGGING, level)
        else:
            lines += printed_lines(text, STDERR if part[:1] == b"e" else STDOUT)
        if len(lines) > CALL_LINES:
            break
    if len(written) > LOG_BYTES:
        lines.append(PrintedLine(STDERR, "[the rest was dropped]"))
    return bounded(lines)


def whole_seconds(seconds: float) -> int:
    """Round a CPU limit up to whole seconds, the kernel's unit."""
    return max(1, math.ceil(seconds))
