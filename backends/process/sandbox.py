"""The life of a sandbox: a forked child that runs one call of a user's function, or none.

::

    forked --warm up, lock--> waiting --call--> running --reply--> used --> gone
                                 \\--engine or zygote gone: killed by the kernel

A waiting sandbox has five descriptors: an empty standard input, its log twice, its channel, its
output file. Before it waits, it **warms up**: it runs a call over its channel, so that the pages
that most calls write to are already copied and cost the real call no page fault. It does not if a
call waits for it already: copying pages takes most of its time, and a warm-up copies more of them
than most calls. For the same reason, whatever can be made before the fork is made there.

After `seccomp.Filter.install` the sandbox is untrusted, and the engine checks its reply as
untrusted data. It gives up everything that it shares with the zygote before it can receive a call.

Measured, on two cores of a Xeon in a virtual machine: the copy of a page takes 2.1 us and freeing
it 0.5 us, so the 400 pages of a short call take half of its 2 ms; the tables of 280 mappings and
5,300 pages take 0.4 ms in the zygote and 0.25 ms at the exit. Tried and dropped: copying all of
these pages in one system call, which takes 1.8 us each; large pages for the heap, which are divided
at the first write and save 3 %; the C library's allocator instead of Python's, which spreads
objects over a fifth more pages.
"""

from __future__ import annotations

import fcntl
import io
import linecache
import logging
import marshal
import mmap
import os
import random
import resource
import select
import signal
import socket
import sys
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NoReturn

import msgspec

from dandelion.call_values import OutputMismatch
from dandelion.confinement import libc, lockdown, seccomp
from dandelion.data import Bytes, Item, ItemSet, SetSpec
from dandelion.set_values import InvalidReturnValue

from . import modules, wire
from .policy import CHANNEL_FD
from .running import MODULE, run_program

OUTPUT_FD = 4
_CLOSED_FDS = 4096
_NO_CONSTANTS = memoryview(b"")
_TEXT_LIMIT = 4000
_FRAME_LIMIT = 20
_call_decoder = msgspec.msgpack.Decoder(wire.SandboxCall)
_encoder = msgspec.msgpack.Encoder()
_EXHAUSTED, _ = wire.parcel(_encoder.encode(wire.MemoryExhausted()), ())


class _StandardOutput(io.FileIO):
    """Standard output. What does not fit into the pipe is dropped, without waiting.

    Writing is the method of `io.FileIO`: each Python function that a sandbox runs for the first
    time makes the kernel copy pages, which takes longer than the function. So lines have no mark,
    and everything else that is written is followed by `wire.STDOUT_MARK`.
    """

    def isatty(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False


class _StandardError(_StandardOutput):
    """Standard error: what is written is between marks."""

    def write(self, data: Any) -> int:  # Any: memoryview does not accept typeshed's Buffer
        _write_or_drop(b"%b%b%b" % (wire.STDERR_MARK, data, wire.STDOUT_MARK))
        return memoryview(data).nbytes


def _write_or_drop(data: bytes) -> None:
    try:
        os.write(2, data)
    except BlockingIOError:
        return


_LEVEL_MARKS = (
    (logging.CRITICAL, b"\0c"),
    (logging.ERROR, b"\0r"),
    (logging.WARNING, b"\0w"),
    (logging.INFO, b"\0i"),
)


_emit = logging.StreamHandler.emit


def _emit_marked(handler: logging.StreamHandler[Any], record: logging.LogRecord) -> None:
    """Write a record of `logging` with its level, if it goes to one of the two streams."""
    if not isinstance(getattr(handler.stream, "buffer", None), _StandardOutput):
        _emit(handler, record)
        return
    try:
        text = handler.format(record) + handler.terminator
        mark = b"\0d"
        for level, candidate in _LEVEL_MARKS:
            if record.levelno >= level:
                mark = candidate
                break
        _write_or_drop(mark + text.encode("utf-8", "backslashreplace") + wire.STDOUT_MARK)
    except RecursionError:
        raise
    except Exception:  # as the method that this replaces
        handler.handleError(record)


def _text_stream(stream: io.FileIO) -> io.TextIOWrapper:
    binary: Any = stream  # typeshed asks for a buffered stream
    return io.TextIOWrapper(binary, "utf-8", "backslashreplace", write_through=True)


def prepare_interpreter() -> None:
    """Prepare the zygote's interpreter, so that library code does not look for files."""
    linecache.updatecache = lambda *_: []  # warnings and tracebacks would read sources
    os.cpu_count = lambda: 1
    modules.close()
    sys.stdout = _text_stream(_StandardOutput(1, "wb", closefd=False))
    sys.stderr = _text_stream(_StandardError(2, "wb", closefd=False))
    logging.StreamHandler.emit = _emit_marked  # type: ignore[method-assign,assignment]
    sys.argv[:] = [""]
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # else it looks like the function's exception
    random.seed(0)  # a retried function returns the same outputs
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed(0)
    timezone = os.environ.get("TZ")
    os.environ.clear()
    if timezone:
        os.environ["TZ"] = timezone  # without it the C library looks for /etc/localtime


@dataclass(slots=True)
class ForkContext:
    """What a sandbox gets from its zygote, and shares with it until it is locked.

    Attributes:
        parent: process id of the zygote; the sandbox is killed when it ends.
        control: the zygote's connection to the node, at the channel's later descriptor.
        filter: the system call filter of this process.
        mapped_bytes: address space that the interpreter already uses.
        started: shared memory, a byte for each sandbox; 1 once it has sent `Forked`.
        place: index of its byte.
        urgent: after its reply it exits instead of waiting to be killed.
        awaited: a call waits for it, so it does not warm up.
    """

    parent: int
    control: socket.socket
    filter: seccomp.Filter
    mapped_bytes: int
    started: mmap.mmap
    place: int = 0
    urgent: bool = False
    awaited: bool = False


def run_child(context: ForkContext) -> NoReturn:
    """Run a sandbox, from the fork to the end of the process."""
    code = 70
    try:
        libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == context.parent:
            _start(context)
            _serve(context.control, context.mapped_bytes)  # now the channel
            if not context.urgent:  # exiting takes a core, which a call may need
                select.poll().poll()
            code = 0
    finally:
        os._exit(code)


def _start(context: ForkContext) -> None:
    """Open its own descriptors, warm up, lock the process, and notify the node."""
    os.closerange(OUTPUT_FD, _CLOSED_FDS)
    output = os.memfd_create("dandelion-output", os.MFD_CLOEXEC)
    assert output == OUTPUT_FD, "the lowest free descriptor"
    log, printed = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    theirs, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if not context.awaited:
        warm_up(theirs, ours)
    lockdown.limit_processes()
    lockdown.yield_to_others(False)
    pid = os.getpid()
    rights = [theirs.detach(), os.pidfd_open(pid), output, log]
    listener = context.filter.install()
    if listener is not None:
        rights.append(listener)
    wire.send(context.control, [_encoder.encode(wire.Forked(pid))], rights)
    context.started[context.place] = 1  # not earlier: it may be killed before it has sent
    context.started.close()
    channel = ours.detach()
    os.close(CHANNEL_FD)  # the control socket: from here on the zygote is out of reach
    place = fcntl.fcntl(channel, fcntl.F_DUPFD_CLOEXEC, CHANNEL_FD)
    assert place == CHANNEL_FD
    for file in (*rights, channel, printed):
        if file != output:
            os.close(file)
    lockdown.limit_descriptors()  # last, since the kernel also counts descriptors in messages


def _serve(channel: socket.socket, mapped_bytes: int) -> None:
    message, files = wire.receive(channel, wire.PREFIX.size + wire.INLINE_BYTES, 2)
    if not message:
        return
    view: Bytes = memoryview(message)
    if len(message) == wire.PREFIX.size:
        size = _parcel_size(message)
        # Private: older kernels refuse shared read-only mappings of a sealed file.
        flags = mmap.MAP_PRIVATE | mmap.MAP_POPULATE
        view = memoryview(mmap.mmap(files.pop(0), size, flags, mmap.PROT_READ))
        mapped_bytes += size
    constants = libc.mapped(files[0]) if files else _NO_CONSTANTS
    for file in files:  # it is shared with other calls, and so would be what it knows of itself
        os.close(file)
    try:
        answer = _answer(memoryview(view), mapped_bytes + constants.nbytes, constants)
    except MemoryError:
        answer = _EXHAUSTED
    wire.send(channel, answer)


def _parcel_size(message: bytes) -> int:
    record_bytes, data_bytes = wire.PREFIX.unpack_from(message)
    return wire.aligned(wire.PREFIX.size + record_bytes) + int(data_bytes)


def _answer(
    view: memoryview, mapped_bytes: int, constants: memoryview = _NO_CONSTANTS
) -> wire.Buffers:
    """Run the call in `view`; return the message to send. Large replies are in the output file.

    Raises:
        MemoryError: the call has used up its memory.
    """
    reply: wire.Reply
    sets: list[ItemSet | None] = []
    try:
        record_bytes, _ = wire.PREFIX.unpack_from(view)
        start = wire.PREFIX.size
        call = _call_decoder.decode(view[start : start + record_bytes])
        lockdown.limit_call(call.memory_bytes + mapped_bytes, call.cpu_s, call.file_bytes)
        inputs = _inputs(call, view, wire.aligned(start + record_bytes), constants)
        sets = run_program(call.program, inputs, call.origin)
        reply = wire.Returned(wire.entries(sets))
    except MemoryError:
        raise
    except InvalidReturnValue as error:
        reply = wire.InvalidReturn(str(error)[:_TEXT_LIMIT])
    except OutputMismatch as error:
        reply = wire.InvalidReturn(str(error)[:_TEXT_LIMIT])
    except SystemExit as error:
        reply = wire.DidExit(_exit_code(error))
    except BaseException as error:  # the user's code may raise anything
        reply = _raised(error, call.program)
    parts, size = wire.parcel(_encoder.encode(reply), sets)
    if size <= wire.INLINE_BYTES:
        return parts
    try:
        wire.write(OUTPUT_FD, parts)
    except OSError as error:
        reply = wire.InvalidReturn(f"the {size} bytes cannot be written: {error.strerror}")
        return wire.parcel(_encoder.encode(reply), ())[0]
    return parts[:1]


def _inputs(
    call: wire.SandboxCall, view: memoryview, offset: int, constants: memoryview
) -> dict[str, ItemSet | None]:
    inputs: dict[str, ItemSet | None] = {}
    places = {False: offset, True: 0}  # in the parcel, in the constants
    for position, (spec, listed) in enumerate(zip(call.program.inputs, call.sets, strict=True)):
        if listed is None:
            inputs[spec.name] = None
            continue
        constant = position in call.constant
        source = constants if constant else view
        items = []
        for entry in listed:
            offset = places[constant]
            data = source[offset : offset + entry.size_bytes].toreadonly()
            items.append(Item(entry.name, entry.key, data, entry.dtype, entry.shape))
            places[constant] = offset + wire.aligned(entry.size_bytes)
        inputs[spec.name] = ItemSet(spec.name, tuple(items), spec.dtype, spec.shape)
    return inputs


def _exit_code(error: SystemExit) -> int:
    """Return the exit code, by the rules of ``sys.exit``; a text is printed."""
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    print(error.code, file=sys.stderr)
    return 1


def text_of(error: BaseException) -> str:
    """Return the text of an exception of the user's code."""
    try:
        return str.__str__(str(error))  # it may be an instance of the user's subclass of str
    except BaseException:  # the user's code may raise anything
        return "(no text: str() of the exception failed)"


def shown(error: BaseException, text: str) -> str:
    """Return class and text of an exception, cut to what a message can have."""
    kind = type(error).__name__
    line = f"{kind}: {text}" if text else kind
    return line.encode("utf-8", "replace").decode()[:_TEXT_LIMIT]


def _raised(error: BaseException, program: wire.PythonProgram) -> wire.DidRaise:
    text = text_of(error)
    frames = _frames(error.__traceback__, program)
    if len(frames) > _FRAME_LIMIT:
        frames = frames[: _FRAME_LIMIT // 2] + frames[-_FRAME_LIMIT // 2 :]
    advice = modules.advice(error, text)
    return wire.DidRaise(shown(error, f"{text}; {advice}" if advice else text), frames)


def _frames(traceback: TracebackType | None, program: wire.PythonProgram) -> list[wire.Frame]:
    frames = []
    files = {program.filename: 0}
    files |= {file.filename: at for at, file in enumerate(program.files, start=1)}
    while traceback is not None:
        code = traceback.tb_frame.f_code
        file = files.get(code.co_filename)
        if file is not None:
            frames.append(wire.Frame(traceback.tb_lineno, code.co_name, file))
        traceback = traceback.tb_next
    return frames


def warm_up(theirs: socket.socket, ours: socket.socket) -> None:
    """Run a call as `_serve` does, over the two ends of a channel."""
    wire.send(theirs, _WARM_UP_PARCEL)
    message, _ = wire.receive(ours, wire.PREFIX.size + wire.INLINE_BYTES, 1)
    wire.send(ours, _answer(memoryview(message), 0))
    wire.receive(theirs, wire.PREFIX.size + wire.INLINE_BYTES, 1)
    del sys.modules[MODULE]


def warm_up_streams(count: int) -> None:
    """Write to the standard streams and to `logging` as functions do, into a pipe of its own."""
    kept = os.dup(1), os.dup(2)
    source, sink = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    root = logging.getLogger()
    handlers = root.handlers[:]
    try:
        for _ in range(count):
            root.handlers.clear()
            print("warm-up")
            print("warm-up", file=sys.stderr)
            logging.warning("warm-up")
            os.read(source, 4096)
    except Exception:  # an import changed print or logging; calls are slower then, and work
        pass
    finally:
        root.handlers[:] = handlers
        for number, file in enumerate(kept, 1):
            os.dup2(file, number)
            os.close(file)
        os.close(source)
        os.close(sink)


def _warm_up_parcel() -> wire.Buffers:
    code = marshal.dumps(compile(_WARM_UP_SOURCE, "<warm-up>", "exec"))
    specs = (SetSpec("x"),), (SetSpec("a"), SetSpec("b"), SetSpec("c"))
    program = wire.PythonProgram("<warm-up>", "f", code, *specs)
    sets = (ItemSet("x", (Item("x", 0, bytes(16)), Item("z", 1, b"warm-up"))),)
    call = wire.SandboxCall(program, wire.entries(sets), *(resource.RLIM_INFINITY,) * 3)
    parts, _ = wire.parcel(_encoder.encode(call), sets)
    return parts


_WARM_UP_SOURCE = """
def f(x):
    return {"a": x, "b": x[1].text(), "c": [b"one", x[0].numpy("float64")]}
"""
_WARM_UP_PARCEL = _warm_up_parcel()
