"""The life of a sandbox: a forked child that runs one call of a user's function, or none.

::

    born --rehearse, lock--> waiting --call--> running --reply--> used --> gone
                                 \\--engine or zygote gone: killed by the kernel

It has five descriptors when it waits: nothing to read, its log twice, its channel, its output file.
Before, it **rehearses**: it runs a call over its channel, so that the pages which every call writes
to are its own by then and cost the real call no page fault. What can be made before the fork is
made there, for the same reason. From `seccomp.Filter.install` on it is not trusted any more,
whatever runs here: the engine reads its reply as it would read a stranger's. What it shares with
the zygote, it has given up before it can receive a call.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import linecache
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
from types import CodeType, ModuleType, TracebackType
from typing import Any, NoReturn

import msgspec

from dandelion.confinement import libc, lockdown, seccomp
from dandelion.data import Bytes, Item, ItemSet, Origin, SetSpec, item_set
from dandelion.errors import InvalidInput, nearest

from . import modules, wire
from .policy import CHANNEL_FD

OUTPUT_FD = 4
MODULE = "function"
"""Name of the module that a user's code is."""

_CLOSED_FDS = 4096
_TEXT_LIMIT = 4000
_FRAME_LIMIT = 20
_call_decoder = msgspec.msgpack.Decoder(wire.CallRecord)
_encoder = msgspec.msgpack.Encoder()
_EXHAUSTED, _ = wire.parcel(_encoder.encode(wire.DidExhaust()), ())


class _Misreturned(Exception):
    """What the function returned cannot be its outputs."""


class _Log(io.BufferedIOBase):
    """Standard output and error: what the pipe cannot take is dropped, nobody waits for it."""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:  # Any: typeshed's Buffer is no argument of memoryview
        with contextlib.suppress(BlockingIOError):
            os.write(2, data)
        return memoryview(data).nbytes


def _text_log() -> io.TextIOWrapper:
    log: Any = _Log()  # typeshed also wants a file's `name`
    return io.TextIOWrapper(log, "utf-8", "backslashreplace", write_through=True)


def settle() -> None:
    """Prepare the zygote's interpreter, so that library code has no reason to look for files."""
    linecache.updatecache = lambda *_: []  # warnings and tracebacks would read sources
    os.cpu_count = lambda: 1
    modules.close()
    sys.stdout = sys.stderr = _text_log()
    sys.argv[:] = [""]
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # else it would look like the function's exception
    random.seed(0)  # a function that is run again gives the same outputs
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed(0)
    timezone = os.environ.get("TZ")
    os.environ.clear()
    if timezone:
        os.environ["TZ"] = timezone  # without it the C library looks for /etc/localtime


@dataclass(slots=True)
class Birth:
    """What a sandbox gets from its zygote, and shares with it until it is locked.

    Attributes:
        parent: process id of the zygote; the sandbox dies with it.
        control: the zygote's connection to the node, at the place where the channel will be.
        filter: the filter to lock this process with.
        mapped_bytes: address space that the interpreter has already.
        births: shared memory, a byte for each sandbox; 1 tells that it has said that it waits.
        place: where its byte is.
        stays: after its reply it waits for its end, which takes a core that others need now.
    """

    parent: int
    control: socket.socket
    filter: seccomp.Filter
    mapped_bytes: int
    births: mmap.mmap
    place: int = 0
    stays: bool = True


def live(birth: Birth) -> NoReturn:
    """Be a sandbox, from the fork to the end of the process."""
    code = 70
    try:
        libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == birth.parent:
            _be_born(birth)
            _serve(birth.control, birth.mapped_bytes)  # which is the channel by now
            if birth.stays:
                select.poll().poll()
            code = 0
    finally:
        os._exit(code)


def _be_born(birth: Birth) -> None:
    """Open what is its own, rehearse, be locked, and tell the node."""
    os.closerange(OUTPUT_FD, _CLOSED_FDS)
    output = os.memfd_create("dandelion-output", os.MFD_CLOEXEC)
    assert output == OUTPUT_FD, "the lowest that is free"
    log, printed = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    theirs, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    rehearse(theirs, ours)
    lockdown.limit_processes()
    lockdown.yield_to_others(False)
    pid = os.getpid()
    rights = [theirs.detach(), os.pidfd_open(pid), output, log]
    listener = birth.filter.install()
    if listener is not None:
        rights.append(listener)
    birth.births[birth.place] = 1
    wire.send(birth.control, [_encoder.encode(wire.Born(pid))], rights)
    birth.births.close()
    channel = ours.detach()
    os.close(CHANNEL_FD)  # the control socket: the zygote cannot be reached from here on
    place = fcntl.fcntl(channel, fcntl.F_DUPFD_CLOEXEC, CHANNEL_FD)
    assert place == CHANNEL_FD
    for file in (*rights, channel, printed):
        if file != output:
            os.close(file)
    lockdown.limit_descriptors()  # before, the kernel counts those that travel


def _serve(channel: socket.socket, mapped_bytes: int) -> None:
    message, files = wire.receive(channel, wire.PREFIX.size + wire.INLINE_BYTES, 1)
    if not message:
        return
    view: Bytes = memoryview(message)
    if files:
        size = _parcel_size(message)
        # Private, since older kernels refuse shared read-only mappings of a sealed file.
        flags = mmap.MAP_PRIVATE | mmap.MAP_POPULATE
        view = memoryview(mmap.mmap(files[0], size, flags, mmap.PROT_READ))
        mapped_bytes += size
    try:
        answer = _answer(memoryview(view), mapped_bytes)
    except MemoryError:
        answer = _EXHAUSTED
    wire.send(channel, answer)


def _parcel_size(message: bytes) -> int:
    record_bytes, data_bytes = wire.PREFIX.unpack_from(message)
    return wire.aligned(wire.PREFIX.size + record_bytes) + int(data_bytes)


def _answer(view: memoryview, mapped_bytes: int) -> wire.Buffers:
    """Run the call in `view`; give the message to send. What is large is in the output file.

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
        inputs = _inputs(call, view, wire.aligned(start + record_bytes))
        sets = _run(call.program, inputs, call.origin)
        reply = wire.Done(wire.entries(sets))
    except MemoryError:
        raise
    except _Misreturned as error:
        reply = wire.DidMisreturn(str(error)[:_TEXT_LIMIT])
    except SystemExit as error:
        reply = wire.DidExit(_exit_code(error))
    except BaseException as error:  # the user's code may raise anything
        reply = _raised(error, call.program.filename)
    parts, size = wire.parcel(_encoder.encode(reply), sets)
    if size <= wire.INLINE_BYTES:
        return parts
    try:
        wire.write(OUTPUT_FD, parts)
    except OSError as error:
        reply = wire.DidMisreturn(f"its {size} bytes cannot be written: {error.strerror}")
        return wire.parcel(_encoder.encode(reply), ())[0]
    return parts[:1]


def _inputs(call: wire.CallRecord, view: memoryview, offset: int) -> dict[str, ItemSet | None]:
    inputs: dict[str, ItemSet | None] = {}
    for spec, listed in zip(call.program.inputs, call.sets, strict=True):
        if listed is None:
            inputs[spec.name] = None
            continue
        items = []
        for entry in listed:
            data = view[offset : offset + entry.size_bytes].toreadonly()
            items.append(Item(entry.name, entry.key, data, entry.dtype, entry.shape))
            offset += wire.aligned(entry.size_bytes)
        inputs[spec.name] = ItemSet(spec.name, tuple(items), spec.dtype, spec.shape)
    return inputs


def _run(
    program: wire.Program, inputs: dict[str, ItemSet | None], origin: Origin | None
) -> list[ItemSet | None]:
    module = ModuleType(MODULE)
    module.__file__ = program.filename
    sys.modules[MODULE] = module  # dataclasses and others look their module up
    code = marshal.loads(program.code)  # noqa: S302 (made by the node, and confined)
    assert isinstance(code, CodeType)
    exec(code, module.__dict__)
    function = getattr(module, program.entry, None)
    if not callable(function):
        raise NameError(f"the code does not define a function '{program.entry}'")
    return _outputs(program.outputs, function(**inputs), origin)


def _outputs(
    specs: tuple[SetSpec, ...], result: Any, origin: Origin | None
) -> list[ItemSet | None]:
    names = [spec.name for spec in specs]
    if not isinstance(result, dict):
        if len(specs) != 1 and (specs or result is not None):
            wanted = ", ".join(names) or "none"
            raise _Misreturned(
                f"a {type(result).__name__} was returned; return a dict from the names of the "
                f"output sets ({wanted}) to their values"
            )
        result = dict.fromkeys(names, result)
    for name in result:
        if name not in names:
            close = nearest(str(name), names)
            hint = f"; did you mean '{close}'?" if close else ""
            raise _Misreturned(f"there is no output set {name!r}{hint}")
    try:
        return [item_set(spec.name, result.get(spec.name), spec, origin) for spec in specs]
    except InvalidInput as error:
        raise _Misreturned(str(error)) from None


def _exit_code(error: SystemExit) -> int:
    """The process's exit code, by the rules of ``sys.exit``; a text is printed."""
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    print(error.code, file=sys.stderr)
    return 1


def _raised(error: BaseException, filename: str) -> wire.DidRaise:
    kind = type(error).__name__
    try:
        text = str(error)
    except Exception:
        text = "(its text cannot be had)"
    frames = _frames(error.__traceback__, filename)
    if len(frames) > _FRAME_LIMIT:
        frames = frames[: _FRAME_LIMIT // 2] + frames[-_FRAME_LIMIT // 2 :]
    advice = modules.advice(error)
    text = f"{text}; {advice}" if advice else text
    shown = f"{kind}: {text}" if text else kind
    return wire.DidRaise(shown.encode("utf-8", "replace").decode()[:_TEXT_LIMIT], frames)


def _frames(traceback: TracebackType | None, filename: str) -> list[wire.Frame]:
    frames = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if code.co_filename == filename:
            frames.append(wire.Frame(traceback.tb_lineno, code.co_name))
        traceback = traceback.tb_next
    return frames


def rehearse(theirs: socket.socket, ours: socket.socket) -> None:
    """Run a call as `_serve` does, over the two ends of a channel."""
    wire.send(theirs, _REHEARSAL)
    message, _ = wire.receive(ours, wire.PREFIX.size + wire.INLINE_BYTES, 1)
    wire.send(ours, _answer(memoryview(message), 0))
    wire.receive(theirs, wire.PREFIX.size + wire.INLINE_BYTES, 1)
    del sys.modules[MODULE]


def _rehearsal() -> wire.Buffers:
    code = marshal.dumps(compile(_REHEARSED, "<rehearsal>", "exec"))
    specs = (SetSpec("x"),), (SetSpec("a"), SetSpec("b"), SetSpec("c"))
    program = wire.Program("<rehearsal>", "f", code, *specs)
    sets = (ItemSet("x", (Item("x", 0, bytes(16)), Item("z", 1, b"rehearsal"))),)
    call = wire.CallRecord(program, wire.entries(sets), *(resource.RLIM_INFINITY,) * 3)
    parts, _ = wire.parcel(_encoder.encode(call), sets)
    return parts


_REHEARSED = """
def f(x):
    return {"a": x, "b": x[1].text(), "c": [b"one", x[0].numpy("float64")]}
"""
_REHEARSAL = _rehearsal()
