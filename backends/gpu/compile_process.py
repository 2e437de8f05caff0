"""Compile sources in a process of their own: ``python -m dandelion.backends.gpu.compile_process``.

A compiler is a large program that reads text of untrusted users, so it runs neither in
the node nor for longer, or with more memory, than is set here. The process reads one `Job` from its
input, loads the compiler, gives up its rights, compiles, writes one `Answer`, and leaves. It keeps
nothing: the node puts the binaries into the cache, so a compiler that was led astray answers for
its own sources only. It needs no device, and dies with its parent.

What it keeps of the file system is found out, not configured: the folders of the libraries that
loading the compiler brought, with the toolkit around each, and the folders of headers that the
compiler is told of. A folder in memory is its place for temporary files.

It may die of a source, or not end in time: both are that source's fault (`InvalidFunction`). A
compiler that is missing or fails by itself is not the function's fault: there are no binaries, and
the first call compiles, as on a node whose engines came up later.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

import msgspec

from dandelion.confinement import libc, lockdown, seccomp
from dandelion.confinement.syscalls import native
from dandelion.driver import load_driver
from dandelion.errors import (
    BackendUnavailable,
    DandelionError,
    DeviceFault,
    ErrorRecord,
    InternalError,
    InvalidFunction,
    Problem,
    from_record,
)
from dandelion.function import Digest
from dandelion.search_path import environment

from .checker import GpuChecker
from .host_folder import HostFolders, give_to_nobody
from .host_policy import policy
from .source import LoadedCode, header
from .source_compiler import SourceCompiler
from .system_limits import explained

LIMIT_S = 30.0
MEMORY_BYTES = 4 << 30
_ANSWER_BYTES = 256 << 20
_PROCESSES = threading.BoundedSemaphore(2)
FOLDER_BYTES, FOLDER_FILES = 1 << 30, 16384
_DESCRIPTORS = 256


class Source(msgspec.Struct, frozen=True, array_like=True):
    """A source, as `LoadedCode`; its text is whole."""

    name: str
    format: str
    data: bytes
    digest: str


class Job(msgspec.Struct, frozen=True, array_like=True):
    """What to compile.

    Attributes:
        parent: id of the process that requests it.
        folder: for temporary files of this process alone.
        backend: whose compiler.
        arch: for which architecture.
        limit_s: bound on the processor's time, in seconds.
    """

    parent: int
    folder: str
    backend: str
    arch: str
    sources: tuple[Source, ...]
    limit_s: float


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """The binaries of the sources, in their order, as far as it came; and why not further."""

    binaries: tuple[bytes, ...]
    error: ErrorRecord | None = None


# --- the node's side ----------------------------------------------------------------------------


def compile_apart(
    backend: str, arch: str, sources: Iterable[LoadedCode], limit_s: float = LIMIT_S
) -> tuple[bytes, ...]:
    """Compile sources in a process of their own.

    Args:
        backend: whose compiler.
        arch: for which architecture.
        sources: all go to one process.
        limit_s: how long the process may take.

    Returns:
        Their binaries in order; fewer, or none, where the compiler is missing, fails by itself, or
        is killed from outside.

    Raises:
        InvalidFunction: one does not compile, or takes too long, or the compiler dies of it.
        InternalError: the process failed.
    """
    wanted = tuple(Source(c.name, c.format, c.data, c.digest) for c in sources)
    try:
        with _PROCESSES, contextlib.closing(HostFolders()) as folders:
            folder = str(folders.make())
            answer = _answer_to(Job(os.getpid(), folder, backend, arch, wanted, limit_s))
    except OSError:  # no further process, or no memory for it
        return ()
    if answer.error is not None:
        error = from_record(answer.error)
        if not isinstance(error, BackendUnavailable | DeviceFault):
            raise error
    return answer.binaries


def _answer_to(job: Job) -> Answer:
    descriptor = os.memfd_create("compiled")
    with open(descriptor, "rb") as output:
        code = _ran(job, descriptor)
        if code == -signal.SIGKILL:  # its limits end it in other ways; is there no memory left?
            return Answer(())
        if code:
            raise _death(job, code)
        output.seek(0)
        try:
            return msgspec.msgpack.decode(output.read(_ANSWER_BYTES), type=Answer)
        except msgspec.DecodeError as error:
            raise InternalError(f"the compile process gave no answer: {error}") from None


def _ran(job: Job, output: int) -> int:
    """Run the process to its end, and end whatever it started; gives its exit code."""
    with open(os.memfd_create("sources"), "w+b") as order:
        order.write(msgspec.msgpack.encode(job))
        order.seek(0)
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "dandelion.backends.gpu.compile_process"],
            stdin=order,
            stdout=output,
            env=environment(),
            start_new_session=True,
        )
    late = True
    try:
        late = not _ended(child.pid, job.limit_s)
    finally:  # it is not reaped yet, so no other group has its number
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    return -signal.SIGXCPU if late else child.returncode


def _ended(process: int, limit_s: float) -> bool:
    """Wait for the end of a child, without reaping it. False if it takes longer."""
    descriptor = os.pidfd_open(process)
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(limit_s * 1e3))
    finally:
        os.close(descriptor)


def _death(job: Job, code: int) -> DandelionError:
    if code > 0:
        return InternalError(f"the compile process ended with code {code}")
    names = ", ".join(source.name for source in job.sources)
    if code == -signal.SIGXCPU:
        message = f"compiling took more than {job.limit_s:g} s"
        return InvalidFunction((Problem("compile", message, names),))
    message = f"the compiler died by signal {-code}; it has {MEMORY_BYTES >> 30} GiB of memory"
    return InvalidFunction((Problem("compile", message, names),))


# --- the process --------------------------------------------------------------------------------


def answer(job: Job, compiler: SourceCompiler | BackendUnavailable) -> Answer:
    """Compile the sources of a job, up to the first that cannot be."""
    done: list[bytes] = []
    try:
        if isinstance(compiler, BackendUnavailable):
            raise compiler
        for source in job.sources:
            code = LoadedCode(source.name, source.format, source.data, Digest(source.digest))
            done.append(compiler.compile(code, job.arch))
    except MemoryError:
        message = f"compiling took more than {MEMORY_BYTES >> 30} GiB"
        problem = Problem("compile", message, job.sources[len(done)].name)
        return Answer(tuple(done), InvalidFunction((problem,)).record())
    except DandelionError as error:
        return Answer(tuple(done), error.record())
    except OSError as error:
        return Answer(tuple(done), BackendUnavailable(job.backend, explained(error)).record())
    except Exception as error:
        bug = InternalError(f"compiling: {type(error).__name__}: {error}")
        return Answer(tuple(done), bug.record())
    return Answer(tuple(done))


def prepared(job: Job) -> tuple[SourceCompiler | BackendUnavailable, set[str]]:
    """Load the compiler of a job; gives what must stay readable for it to work."""
    before = _libraries()
    try:
        driver = load_driver(job.backend)
        checker = driver.checker()
        compiler = checker.compiler() if isinstance(checker, GpuChecker) else None
        if compiler is None:
            raise BackendUnavailable(job.backend, "a compiler")
        found = set(compiler.load())
    except BackendUnavailable as error:
        return error, set()
    found |= {_toolkit(path.parent) for path in _libraries() - before}
    return compiler, found | {"/etc/ld.so.cache", "/dev/null", "/dev/urandom"}


def _libraries() -> set[Path]:
    """List the libraries that this process has loaded."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    paths = {Path("/" + line.partition("/")[2]) for line in lines if "/" in line}
    return {path for path in paths if ".so" in path.name}


def _toolkit(folder: Path) -> str:
    """Give the tree that a library's folder belongs to, or the folder if that is the system's."""
    if not folder.name.startswith("lib") or folder.parent in _SYSTEM:
        return str(folder)
    return str(folder.parent)


_SYSTEM = tuple(Path(p) for p in ("/", "/usr", "/usr/lib", "/usr/lib64", "/usr/local", "/opt"))


def _confine(job: Job, readable: Collection[str], furnish: Callable[[Path], object]) -> None:
    """Give up what a compiler does not need; parts that a machine does not have are left out.

    Args:
        job: has the folder that the compiler may write to.
        readable: files and folders that stay readable.
        furnish: puts what the compiler looks for into the folder.

    Raises:
        BackendUnavailable: without the rights of root, the compiler cannot be read.
    """
    folder = Path(job.folder)
    in_memory = lockdown.mount_memory(job.folder, FOLDER_BYTES, FOLDER_FILES)
    os.environ["TMPDIR"] = job.folder
    os.chdir(folder)
    furnish(folder)
    was_root = os.geteuid() == 0
    if was_root:
        with contextlib.suppress(OSError):
            give_to_nobody(folder)
        closed = lockdown.reveal((*readable, job.folder), mounts=in_memory)
        if closed:
            raise BackendUnavailable(job.backend, f"others than root cannot enter {closed}")
        os.chdir(folder)  # it has been mounted again if it was in a closed folder
    lockdown.leave_namespaces(user=not was_root)
    lockdown.drop_identity()
    libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)  # changing the user has taken it back
    if os.getppid() != job.parent:
        raise ProcessLookupError("the process that asked for this has ended")
    libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
    libc.prctl(libc.PR_SET_DUMPABLE, 0)
    lockdown.limit_resources()
    for limit, value in (
        (resource.RLIMIT_DATA, MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, _ANSWER_BYTES),
        (resource.RLIMIT_NOFILE, _DESCRIPTORS),
    ):
        lockdown.limit(limit, value)
    seconds = int(job.limit_s) + 1
    lockdown.limit(resource.RLIMIT_CPU, seconds, seconds + 1)  # SIGXCPU, unlike SIGKILL, says why
    lockdown.restrict_files(readable, [folder])
    with contextlib.suppress(OSError, BackendUnavailable):
        seccomp.install(native(job.backend), policy(None))


def main() -> int:
    """Do the job on standard input; the answer goes to standard output."""
    libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)
    job = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Job)
    if os.getppid() != job.parent:
        return 1
    with os.fdopen(os.dup(1), "wb") as output, open(os.devnull, "r+b") as nowhere:
        for descriptor in (0, 1, 2):  # what a compiler prints is no answer
            os.dup2(nowhere.fileno(), descriptor)
        compiler, readable = prepared(job)
        header()  # it is read from a file when it is first asked for
        try:
            if isinstance(compiler, SourceCompiler):
                _confine(job, readable, compiler.furnish)
        except BackendUnavailable as error:
            compiler = error
        except OSError as error:
            compiler = BackendUnavailable(job.backend, explained(error))
        output.write(msgspec.msgpack.encode(answer(job, compiler)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
