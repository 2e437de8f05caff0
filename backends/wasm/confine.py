"""An engine process gives up its rights, before it gets the first module.

In this order:

1. a module of our own runs, so that everything is loaded that calls need;
2. while there is one thread: standard streams, namespaces, user, capabilities, limits, Landlock;
3. the threads start: they have no more rights than the one that starts them;
4. the system call filter, for all threads.

What a kernel or container does not allow in step 2 is omitted and reported. The filter is required:
with it alone the process can open no file, socket or process.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import time
from collections.abc import Callable

from dandelion.confinement import libc, lockdown, seccomp
from dandelion.confinement.syscalls import native
from dandelion.data import Item, ItemSet, SetSpec
from dandelion.driver import Call
from dandelion.errors import BackendUnavailable, DandelionError, FunctionError
from dandelion.function import CodeObject, Function, FunctionSpec, Limits, digest_of
from dandelion.memory import HeapDomain

from .engine import WasmEngine
from .policy import policy

DATA_BYTES = 16 << 30
"""Memory of the process: the largest instance, its inputs and outputs, and the loaded functions."""
_DESCRIPTORS = 16


def confine(engine: WasmEngine, channel: int, start_threads: Callable[[], None]) -> dict[str, str]:
    """Give up the rights of this process; see `EngineFactory.confine`."""
    rehearse(engine)
    facts = {"memory": "no arena; data of calls comes through a socket"}
    parent = os.getppid()
    _silence()
    was_root = os.geteuid() == 0
    facts["namespaces"] = lockdown.leave_namespaces(user=not was_root)
    facts["user"] = lockdown.drop_identity()
    libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)  # changing the user has taken it back
    if os.getppid() != parent:
        raise BackendUnavailable(engine.name, "its node is gone")
    libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
    libc.prctl(libc.PR_SET_DUMPABLE, 0)
    _limit()
    abi = lockdown.restrict_files()
    facts["landlock"] = f"ABI {abi}; no files" if abi else "none; files only by the filter"
    engine.start_interrupt()
    start_threads()
    lockdown.limit_processes()
    try:
        seccomp.install(native(engine.name), policy(channel))
    except OSError as error:
        missing = f"no system call filters: {error.strerror}"
        raise BackendUnavailable(engine.name, missing, "use Linux 4.14 or newer") from None
    facts["seccomp"] = "allow-list; no files, sockets, programs, processes, threads or signals"
    return facts


def _silence() -> None:
    """Make standard input, output and error of this process ``/dev/null``."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    os.close(null)


def _limit() -> None:
    lockdown.limit_resources()
    lockdown.limit(resource.RLIMIT_DATA, DATA_BYTES)
    lockdown.limit(resource.RLIMIT_FSIZE, 0)
    lockdown.limit(resource.RLIMIT_NOFILE, _DESCRIPTORS)


# --- rehearsal ----------------------------------------------------------------------------------

_TEXT = """(module
    (memory (export "memory") 1)
    (global (export "__dandelion_system_data") i32 (i32.const 1024))
    (func (export "run")
        (local $in i32) (local $out i32)
        (local.set $in (i32.load (i32.const 1052)))
        (if (i32.eqz (i32.load offset=12 (local.get $in))) (then unreachable))
        (if (i32.eq (i32.load offset=12 (local.get $in)) (i32.const 1))
            (then (loop $for_ever (br $for_ever))))
        (i32.store (i32.const 1056) (local.get $in))
        (i32.store offset=8 (i32.load (i32.const 1048)) (i32.const 0))
        (i32.store offset=20 (i32.load (i32.const 1048))
            (i32.load offset=20 (i32.load (i32.const 1040))))
        (i32.store (i32.const 1024) (i32.const 0))))
"""
"""Traps for no data, runs for ever for one byte, and passes on what is longer."""
_LIMIT_S = 0.02


def rehearse(engine: WasmEngine) -> None:
    """Run a module of our own in all ways, then end the engine's thread.

    Raises:
        BackendUnavailable: it does not run.
    """
    function = _rehearsal(engine)
    try:
        for data in (bytes(64), bytes(70_000), b"", b"x", bytes(64)):
            inputs = (ItemSet("a", (Item("a", 0, data),)),)
            now_ns = time.monotonic_ns()
            deadline_ns = now_ns + int(_LIMIT_S * 1e9 if data == b"x" else 60e9)
            call = Call(1, function, inputs, HeapDomain(1 << 20), deadline_ns)
            try:
                engine.run(call)
            except FunctionError as error:
                if len(data) > 1:
                    raise
                error.record()
            engine.clean_up()
    except DandelionError as error:
        raise BackendUnavailable(engine.name, f"no module runs: {error}") from error
    engine.forget(function)
    engine.end_interrupt()
    gc.collect()
    if len(os.listdir("/proc/self/task")) > 1:
        raise BackendUnavailable(engine.name, "its library starts threads when it is loaded")


def _rehearsal(engine: WasmEngine) -> Function:
    import wasmtime

    main = bytes(wasmtime.wat2wasm(_TEXT))
    limits = Limits(memory_bytes=1 << 20, output_bytes=1 << 20)
    code = CodeObject("wasm", digest_of(main))
    spec = FunctionSpec("rehearse", (SetSpec("a"),), (SetSpec("b"),), code=(code,), limits=limits)
    return Function(spec, code, main, binary=engine.compiled(main))
