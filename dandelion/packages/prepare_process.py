"""The process that prepares packages: ``python -m dandelion.packages.prepare_process``.

Archives, metadata and pages of an index are written by unknown authors, so they are read neither in
the node nor for longer, or with more memory and disk, than the job says. The process reads one
`PrepareJob` from its input, gives up its rights, resolves and unpacks, writes one `PrepareAnswer`,
and ends. It runs no code of packages, and cannot start programs. Of the file system it keeps the
interpreter's libraries and the wheel folder to read, and its own folder to write to; of the
network nothing, unless there is an index.
"""

from __future__ import annotations

import importlib
import os
import resource
import sys
import sysconfig
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec

from dandelion.confinement import libc, lockdown, seccomp
from dandelion.confinement.syscalls import native
from dandelion.errors import BackendUnavailable, Problem
from dandelion.packages import policy, resolving, unpacking, wheel_sources
from dandelion.packages.records import NO_SPACE, PrepareAnswer, PrepareJob
from dandelion.packages.requirements import environment_key, provided
from dandelion.packages.wheel_sources import IndexUnavailable, TooMuchDisk, WheelSource

_DESCRIPTORS = 256
_LATE_IMPORTS = (
    *("encodings.idna", "encodings.cp437", "encodings.ascii", "stringprep", "zlib"),
    *("http.client", "importlib.metadata", "ssl"),
)
_OF_THE_NETWORK = (
    *("/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/host.conf", "/etc/gai.conf"),
    *("/etc/ssl", "/etc/pki", "/etc/ca-certificates", "/usr/share/ca-certificates"),
    *("/usr/lib/ssl", "/usr/share/ssl", "/usr/lib", "/usr/lib64", "/lib", "/lib64"),
)


class _Spending:
    """Counts what is written, against the limits of the job."""

    def __init__(self, job: PrepareJob) -> None:
        self._bytes_left = job.limits.disk_bytes
        self._files_left = job.limits.files

    def spend(self, size_bytes: int, files: int = 0) -> None:
        self._bytes_left -= size_bytes
        self._files_left -= files
        if self._bytes_left < 0 or self._files_left < 0:
            raise TooMuchDisk


def prepare(job: PrepareJob, wheel_folder: int | None) -> PrepareAnswer:
    """Do a job; the current folder is that of the job, if it has one.

    Args:
        job: what to do.
        wheel_folder: descriptor of the folder with wheels, if there is one.
    """
    spending = _Spending(job)
    sources: list[WheelSource] = []
    if wheel_folder is not None:
        sources.append(wheel_sources.WheelFolder(wheel_folder))
    if job.source.index:
        sources.append(wheel_sources.WheelIndex(job.source.index, spending.spend))
    try:
        with ExitStack() as opened:
            return _prepare(job, sources, spending, opened)
    except resolving.CannotResolve as error:
        return PrepareAnswer(problems=error.problems)
    except IndexUnavailable as error:
        return PrepareAnswer(unavailable=str(error))
    except TooMuchDisk:
        limit = f"at most {job.limits.disk_bytes >> 20} MiB in {job.limits.files} files"
        problem = Problem("too-much-disk", "the packages are too large", expected=limit)
        return PrepareAnswer(problems=(problem,))
    except PermissionError as error:
        return PrepareAnswer(unavailable=f"{error.filename}: the user nobody may not read it")
    except OSError as error:
        if error.errno in NO_SPACE:
            return PrepareAnswer(disk_error=error.errno)
        return PrepareAnswer(unavailable=f"{error.filename or 'a file'}: {error.strerror}")
    except MemoryError:
        message = f"resolving takes more than {job.limits.memory_bytes >> 20} MiB of memory"
        return PrepareAnswer(problems=(Problem("too-much-memory", message),))


def _prepare(
    job: PrepareJob, sources: list[WheelSource], spending: _Spending, opened: ExitStack
) -> PrepareAnswer:
    chosen = resolving.resolve(job.requirements, sources, provided(), job.wheels)
    files = {}
    wheels = {}
    for wheel, source in chosen:
        digest = wheel.digest
        if not digest or job.folder:
            file = files[wheel.name] = opened.enter_context(source.opened(wheel))
            digest = wheel_sources.digest_of_file(file)
        if digest != (wheel.digest or digest) or digest != job.wheels.get(wheel.name, digest):
            message = f"{wheel.name} does not have the recorded digest"
            problem = Problem("wheel-changed", message, expected=job.wheels.get(wheel.name, ""))
            return PrepareAnswer(problems=(problem,))
        wheels[wheel.name] = digest
    if job.folder and wheels and environment_key(wheels) not in job.known:
        for name, file in files.items():
            try:
                unpacking.unpack(file, Path(), spending.spend)
            except unpacking.BadWheel as error:
                return PrepareAnswer(problems=(resolving.bad_wheel(name, error),))
        unpacking.compile_all(Path(), spending.spend)
    return PrepareAnswer(wheels)


def _confine(job: PrepareJob) -> None:
    """Give up what the job does not need; steps that a machine does not support are omitted."""
    network = bool(job.source.index)
    was_root = os.geteuid() == 0
    if job.folder:
        os.chdir(job.folder)
        if was_root:
            with suppress(OSError):
                os.chown(".", lockdown.NOBODY, lockdown.NOBODY)
    readable = [sysconfig.get_path("stdlib"), "/etc/ld.so.cache", "/dev/null", "/dev/urandom"]
    readable += [path for path in sys.path if path.endswith("-packages")]
    readable += [job.source.folder] if job.source.folder else []
    readable += _OF_THE_NETWORK if network else ()
    # First, since the user nobody may not pass through the folders above these, and then keeps the
    # right to read what is allowed here.
    writable = [job.folder] if job.folder else []
    abi = lockdown.restrict_files(readable, writable, network=network)
    if not network:
        lockdown.leave_namespaces(user=not was_root)
    lockdown.drop_identity(reads=bool(abi))
    libc.prctl(libc.PR_SET_PDEATHSIG, 9)  # changing the user has taken it back
    if os.getppid() != job.parent:
        raise ProcessLookupError("the process that asked for this has ended")
    libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
    libc.prctl(libc.PR_SET_DUMPABLE, 0)
    lockdown.limit_resources()
    limits = job.limits
    for what, value in (
        (resource.RLIMIT_AS, limits.memory_bytes),
        (resource.RLIMIT_FSIZE, limits.disk_bytes),
        (resource.RLIMIT_NOFILE, _DESCRIPTORS),
    ):
        lockdown.limit(what, value)
    lockdown.limit(resource.RLIMIT_CPU, limits.cpu_s, limits.cpu_s + 1)  # SIGXCPU says why
    with suppress(OSError, BackendUnavailable):
        seccomp.install(native("packages"), policy.policy(network))


def _load_everything() -> None:
    """Load what is imported on first use, while files can be read."""
    for name in _LATE_IMPORTS:
        importlib.import_module(name)


def main() -> int:
    """Do the job on standard input; the answer goes to standard output."""
    libc.prctl(libc.PR_SET_PDEATHSIG, 9)
    job = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=PrepareJob)
    if os.getppid() != job.parent:
        return 1
    with os.fdopen(os.dup(1), "wb") as output, open(os.devnull, "r+b") as nowhere:
        for descriptor in (0, 1, 2):
            os.dup2(nowhere.fileno(), descriptor)
        _load_everything()
        provided()
        place = job.source.folder
        wheel_folder = os.open(place, os.O_RDONLY | os.O_DIRECTORY) if place else None
        _confine(job)
        output.write(msgspec.msgpack.encode(prepare(job, wheel_folder)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
