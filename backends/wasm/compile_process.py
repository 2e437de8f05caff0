"""The process that compiles modules: ``python -m dandelion.backends.wasm.compile_process``.

A megabyte of WebAssembly can keep the compiler busy for many seconds and take gigabytes, so each
module is compiled within limits. This process loads the compiler, gives up its rights, and forks a
child for each module, one at a time, so nothing of one module reaches the next. A child has limits
on memory and CPU time, and is killed when its time is up. The node's side is `.compilers`.

This limits what a module costs. It does not protect against a bug in the compiler: its machine code
runs in the node.

A request is a message of one byte with two files: the module, and the file for the answer. The
reply is a `CompileExit`. The process is killed when the node ends, see
`dandelion.backends.process.lifetime`.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import socket
import sys
from typing import TYPE_CHECKING, NoReturn

import msgspec

from dandelion.confinement import libc, lockdown

from ..process import lifetime
from .compiler import new_engine

if TYPE_CHECKING:
    import wasmtime

MEMORY_BYTES = 1024 * 1024 * 1024
CPU_S = 20
WALL_S = 60.0
ANSWER_BYTES = 128 * 1024 * 1024
NICENESS = 5
MODULE, REASON = b"M", b"R"
"""First byte of an answer: the machine code follows, or the reason of the failure."""

READY = b"ready"
TOO_MUCH = 70
"""Exit code of a child that ran out of memory or could not write its answer."""

_REASON_LIMIT = 500


class CompileExit(msgspec.Struct, frozen=True, array_like=True):
    """How a child ended: its exit code, or minus a signal's number; `late`: its time was up."""

    code: int
    late: bool


def main(control: socket.socket) -> None:
    """Compile requested modules until the node is gone."""
    engine = _prepare()
    control.send(READY)
    while True:
        message, files, _, _ = socket.recv_fds(control, 1, 2)
        if not message:
            return
        source, answer = files
        ended = _compile_apart(engine, source, answer)
        os.close(source)
        os.close(answer)
        control.send(msgspec.msgpack.encode(ended))


def _prepare() -> wasmtime.Engine:
    engine = new_engine()
    os.nice(NICENESS)
    lockdown.leave_namespaces()
    lockdown.drop_identity()
    lockdown.restrict_files()
    libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
    libc.prctl(libc.PR_SET_DUMPABLE, 0)
    lockdown.limit_resources()
    return engine


def _compile_apart(engine: wasmtime.Engine, source: int, answer: int) -> CompileExit:
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        _compile(engine, source, answer, parent)
    pidfd = os.pidfd_open(child)
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    late = not poll.poll(WALL_S * 1000)
    os.close(pidfd)
    if late:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return CompileExit(os.waitstatus_to_exitcode(status), late)


def _compile(engine: wasmtime.Engine, source: int, answer: int, parent: int) -> NoReturn:
    import wasmtime

    code = TOO_MUCH
    try:
        libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:
            _limit()
            data = os.pread(source, os.fstat(source).st_size, 0)
            try:
                parts = [MODULE, bytes(wasmtime.Module(engine, data).serialize())]
            except wasmtime.WasmtimeError as error:
                lines = str(error).strip().splitlines()
                parts = [REASON, "; ".join(lines)[:_REASON_LIMIT].encode()]
            with open(answer, "wb", closefd=False) as file:
                file.writelines(parts)
            code = 0
    finally:
        os._exit(code)


def _limit() -> None:
    lockdown.limit_processes()
    for what, value in (
        (resource.RLIMIT_DATA, MEMORY_BYTES),
        (resource.RLIMIT_CPU, CPU_S),
        (resource.RLIMIT_FSIZE, ANSWER_BYTES),
    ):
        hard = resource.getrlimit(what)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(what, (value, value))


if __name__ == "__main__":
    lifetime.bind_own_lifetime(int(sys.argv[2]))
    main(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fileno=int(sys.argv[1])))
