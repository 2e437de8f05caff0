"""A kernel host: the process that runs kernels.

``python -m dandelion.backends.gpu.kernel_host`` is the template that hosts are forked from, see
`.host_template`. A host serves an ordinary engine to its broker (`.confined`), in a file of memory
that belongs to the two, and has nothing else. It gives up its rights in this order:

1. the template has loaded the libraries, and opened the device where it can be forked then (PoCL 3,
   whose compiler is warm by that); there is one thread;
2. a folder in memory becomes its own, where that is allowed; the host's network, IPC, user and
   capabilities are left; limits are set; Landlock leaves the libraries readable and the folder
   writable. Threads that start after this have no more;
3. the device is opened, or its threads are started (`Ready`), and the linker replaced. The first
   host of a template, and one whose compiler is not warm, compiles and runs a kernel of our own. Of
   what this takes with a cold compiler, six parts in seven are saved for a user's kernel;
4. the system call filter is installed for all threads, and it says `Confined`.

Only then does the broker send a function. What comes after may run any code that a user wrote.
"""

from __future__ import annotations

import contextlib
import os
import resource as limits
import signal
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from dandelion.confinement import libc, lockdown, seccomp
from dandelion.confinement.syscalls import native
from dandelion.data import Item, ItemSet, SetSpec
from dandelion.driver import Call, InstanceSets, load_driver
from dandelion.engine_process.channel import Ended
from dandelion.engine_process.messages import Failed, Ready, request_channel
from dandelion.engine_process.serving import EngineProcess
from dandelion.errors import BackendUnavailable, DandelionError, EngineDied, InternalError
from dandelion.function import CodeObject, Function, FunctionSpec, digest_of
from dandelion.memory import ArenaMap, HeapDomain

from .driver import GpuDriver
from .host_folder import HostFolders, give_to_nobody
from .host_messages import Confined, HostSettings, TemplateSettings
from .host_policy import policy
from .host_runtime import Ahead, HostRuntime
from .host_template import serve
from .sequential import SequentialEngine
from .source import CodeFormat, LoadedCode, with_header
from .system_limits import limit_of

FOLDER_BYTES = 256 << 20
"""How much the compiler may keep at a time, where the folder lies in memory."""
FOLDER_FILES = 16384
FILE_BYTES = 64 << 20
DATA_BYTES = 2 << 30
"""Memory for the compiler and for what kernels allocate, beyond the pool and the constants."""
_DESCRIPTORS = 64
_LEAST_LANDLOCK = 2  # a file can be renamed into another folder


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a template has for its hosts.

    Attributes:
        driver, runtime: of the device, which is not open.
        readable: files and folders that must stay readable.
        ahead: the device that is open, if that is possible.
    """

    driver: GpuDriver
    runtime: HostRuntime
    readable: tuple[str, ...]
    ahead: Ahead | None

    def resource(self, settings: HostSettings) -> str:
        """Give the name of the device of a host.

        Raises:
            BackendUnavailable: there is no such device.
        """
        if self.ahead is None:
            return settings.resource
        if settings.resource not in self.ahead.resources:
            raise BackendUnavailable(settings.backend, f"no device '{settings.resource}'")
        return self.ahead.device if settings.threads else self.ahead.without_threads


def main(arguments: list[str]) -> int:
    """Be a template, or, in a process that it forked, a kernel host."""
    settings = msgspec.json.decode(arguments[0], type=TemplateSettings)
    libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if os.getppid() != settings.parent:
        return 1
    loaded: Loaded | DandelionError
    try:
        loaded = load(settings)
    except DandelionError as error:
        loaded = error  # each host reports it
    except (OSError, MemoryError) as error:
        loaded = _cause(settings.backend, error)
    serve(settings.control_fd, lambda *given: be_host(loaded, *given))
    return 0


def load(settings: TemplateSettings) -> Loaded:
    """Load what all hosts need.

    Raises:
        BackendUnavailable: the libraries are missing, cannot be forked, or compile nothing.
    """
    driver = load_driver(settings.backend)
    assert isinstance(driver, GpuDriver)
    driver.configure(settings.options)
    runtime = driver.factory().host_runtime()
    assert runtime is not None
    driver.planner().demand(*rehearsal())  # what reading and planning import
    code = _rehearsed_code()  # reads `dandelion.h`, which hosts cannot
    readable = runtime.load()
    _check_threads(settings.backend)
    with contextlib.closing(HostFolders()) as folders:
        os.chdir(folders.make())
        ahead = runtime.ahead()
        if ahead is not None:
            try:
                driver.factory().open_ahead(ahead.device, code)
            except DandelionError as error:
                raise _no_kernel_runs(settings.backend, error) from error
            _check_threads(settings.backend)
        os.chdir("/")
    return Loaded(driver, runtime, readable, ahead)


def _check_threads(backend: str) -> None:
    if len(os.listdir("/proc/self/task")) > 1:
        raise BackendUnavailable(backend, "its library starts threads when it is loaded")


def be_host(
    loaded: Loaded | DandelionError, settings: HostSettings, socket_fd: int, memory_fd: int
) -> int:
    """Be a kernel host, to the end of the process."""
    libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)
    with socket.socket(fileno=socket_fd) as peer:
        broker = request_channel(peer)
        try:
            if isinstance(loaded, DandelionError):
                raise loaded
            driver, runtime = loaded.driver, loaded.runtime
            resource = loaded.resource(settings)
            if not settings.threads:
                os.environ.update(runtime.without_threads())
            facts = give_up_rights(loaded, settings)
            runtime.forked(settings.threads)
            name = f"{settings.backend}:{settings.resource or '0'}"  # as the node calls it
            engine = driver.factory().sequential(resource, settings.memory_bytes, name)
            broker.send(Ready(driver.name, engine.name, (), "", engine.capacity))
            facts |= runtime.opened()
            if settings.rehearse or loaded.ahead is None or not settings.threads:
                rehearse(engine)
            lock(settings, engine, socket_fd)
            facts["seccomp"] = "allow-list; no sockets, programs, processes, threads or signals"
            memory = ArenaMap(memory_fd, settings.memory_bytes)
            broker.send(Confined(facts))
        except DandelionError as error:
            broker.send(Failed(-1, error.record()))
            return 1
        except (Ended, OSError, MemoryError) as error:
            broker.send(Failed(-1, _cause(settings.backend, error).record()))
            return 1
        EngineProcess(broker, memory).serve(engine)
    return 0


def _cause(backend: str, error: Ended | OSError | MemoryError) -> DandelionError:
    """Give the error of a host that cannot start: a limit of the system, or our bug."""
    limit = None if isinstance(error, Ended) else limit_of(error)
    if limit is not None:
        return BackendUnavailable(backend, *limit)
    return InternalError(f"a kernel host: {error}")


def give_up_rights(loaded: Loaded, settings: HostSettings) -> dict[str, str]:
    """Give up everything but system calls; gives what is enforced.

    Raises:
        BackendUnavailable: something that is required cannot be had here.
        EngineDied: the template is gone.
    """
    folder = Path(settings.folder)
    facts = {"memory": "a file of its own for each function; the arena is not mapped"}
    in_memory = lockdown.mount_memory(str(folder), FOLDER_BYTES, FOLDER_FILES)
    where = f"in memory, {FOLDER_BYTES >> 20} MiB" if in_memory else "on disk, without a bound"
    os.chdir(folder)
    loaded.runtime.furnish(folder)
    was_root = os.geteuid() == 0
    if was_root:
        give_to_nobody(folder)
        closed = lockdown.reveal((*loaded.readable, str(folder)), mounts=in_memory)
        if closed:
            raise _closed_to_others(settings.backend, closed, loaded.readable)
        os.chdir(folder)  # it has been mounted again if it was in a closed folder
    facts["namespaces"] = lockdown.leave_namespaces(user=not was_root)
    facts["user"] = lockdown.drop_identity()
    if os.geteuid() == 0 and is_really_root():
        raise BackendUnavailable(
            settings.backend,
            "the process of kernels cannot leave the user root",
            "run the node as another user, or allow CAP_SETUID",
        )
    libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)  # changing the user has taken it back
    if os.getppid() != settings.parent:
        raise EngineDied(settings.backend, "the template of kernel hosts ended")
    libc.prctl(libc.PR_SET_DUMPABLE, 0)
    lockdown.limit_resources()
    lockdown.limit(limits.RLIMIT_FSIZE, FILE_BYTES)
    lockdown.limit(limits.RLIMIT_NOFILE, _DESCRIPTORS)
    abi = lockdown.restrict_files(loaded.readable, [folder])
    if abi < _LEAST_LANDLOCK:
        raise BackendUnavailable(
            settings.backend,
            f"Landlock {_LEAST_LANDLOCK} (this kernel has {abi or 'none'})",
            f"use Linux 5.19 or newer with Landlock, or set {settings.backend}.unconfined=true",
        )
    facts["landlock"] = f"ABI {abi}; readable: the compiler's files; writable: a folder {where}"
    return facts


def _closed_to_others(backend: str, closed: str, readable: tuple[str, ...]) -> BackendUnavailable:
    """Give the error of a folder that the user of hosts cannot enter."""
    if any(Path(path).is_relative_to(closed) for path in readable):
        what, remedy = "the compiler is installed", "install Dandelion elsewhere"
    else:
        what, remedy = "temporary files are kept", "set TMPDIR to another folder"
    return BackendUnavailable(
        backend,
        f"others than root cannot enter {closed}, where {what}",
        f"{remedy}, or let others enter: chmod o+x {closed}",
    )


def is_really_root() -> bool:
    """Tell whether root here is root of the machine, and not of a user namespace."""
    return Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]


def lock(settings: HostSettings, engine: SequentialEngine, socket_fd: int) -> None:
    """Bound memory and threads to what there is and what compiling may take, and filter calls.

    Raises:
        BackendUnavailable: this kernel has no filters.
    """
    bound = engine.capacity.device_bytes + settings.memory_bytes + DATA_BYTES
    lockdown.limit(limits.RLIMIT_DATA, bound)
    lockdown.limit_processes()
    try:
        seccomp.install(native(settings.backend), policy(socket_fd))
    except OSError as error:
        raise BackendUnavailable(
            settings.backend,
            f"no system call filters: {error.strerror}",
            f"use Linux 4.14 or newer, or set {settings.backend}.unconfined=true",
        ) from None


# --- rehearsal ----------------------------------------------------------------------------------

_SOURCE = b"""#include "dandelion.h"
KERNEL void rehearse(GLOBAL f32 *a)
{
    a[GLOBAL_ID(0)] = 2.0f * a[GLOBAL_ID(0)];
}
"""
_BLUEPRINT = """{
  "modules": {"rehearse": "rehearse.c"}, "kernels": {"rehearse": "rehearse"},
  "blueprint": {"inputs": ["a"], "buffers": {}, "outputs": ["a"],
    "control_flow": [{"ExecKernel": ["rehearse", [{"Ptr": "a"}], {}]}]}
}"""


def rehearse(engine: SequentialEngine) -> None:
    """Make a call, which warms the compiler up.

    Raises:
        BackendUnavailable: a kernel of our own does not run.
    """
    function, inputs = rehearsal()
    end_ns = time.monotonic_ns() + 60 * 10**9
    try:
        engine.run(Call(0, function, inputs, HeapDomain(1 << 20), end_ns))
    except DandelionError as error:
        raise _no_kernel_runs(engine.name.partition(":")[0], error) from error
    engine.clean_up()
    engine.forget(function)


def _no_kernel_runs(backend: str, error: DandelionError) -> BackendUnavailable:
    return BackendUnavailable(backend, f"no kernel runs: {error}")


def _rehearsed_code() -> LoadedCode:
    whole = with_header(_SOURCE.decode(), "rehearse.c").encode()
    return LoadedCode("rehearse.c", CodeFormat.PORTABLE, whole, digest_of(whole))


def rehearsal() -> tuple[Function, InstanceSets]:
    """Give a function of our own, and inputs for it."""
    main = _BLUEPRINT.encode()
    code = CodeObject("blueprint", digest_of(main), {"rehearse.c": digest_of(_SOURCE)})
    spec = FunctionSpec("rehearse", (SetSpec("a"),), (SetSpec("a"),), code=(code,))
    function = Function(spec, code, main, {"rehearse.c": _SOURCE})
    return function, (ItemSet("a", (Item("a", 0, bytes(4096)),)),)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
