"""Loads a user's Python file in a process of its own, and gives what it describes.

A file may be edited and loaded again and again, may print, and may end its process. So it is loaded
by ``python -m dandelion.cli.loading FILE FD PARENT``, which writes a `Loaded` to the descriptor, a
file in memory, and exits. Only this process writes it, not one that the file forks. It is killed
when PARENT ends, which is the id of the process that started it. What the file prints goes to the
standard error of the command, whose standard output may be JSON.

The process is the first one of a session, so Ctrl-C in a terminal does not reach it. When it has
ended, the others of its process group are killed: those that the file started and left behind. A
process that the file put into another group is not.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from dandelion.cli.sources import ProgramFailed, is_program, read_sources, users_traceback
from dandelion.confinement import libc
from dandelion.documents import RegistrationDocument, collect
from dandelion.errors import DandelionError, ErrorRecord, from_record
from dandelion.frontend.records import encode_document, read_document
from dandelion.interrupts import blocked_interrupts, ignore_interrupts
from dandelion.search_path import environment

_STANDARD_ERROR = 2


class Loaded(msgspec.Struct, frozen=True):
    """The result of loading a file.

    Attributes:
        document: a `RegistrationDocument` in MessagePack; empty if it failed.
        files: the file and the modules of the user that it imports, or failed to import; in bytes,
            since a path need not be valid Unicode.
        error: why it failed.
    """

    document: bytes = b""
    files: tuple[bytes, ...] = ()
    error: ErrorRecord | None = None


class Loading:
    """The process that loads a file. It ends with the thread that makes this object.

    Args:
        path: of the file.

    Raises:
        OSError: no process can be started.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()  # the process id is not used after it was reaped
        self._answer = os.fdopen(os.memfd_create("dandelion-loaded"), "rb")
        answer = self._answer.fileno()
        command = [sys.executable, "-m", "dandelion.cli.loading", str(path)]
        command += [str(answer), str(os.getpid())]
        try:
            with blocked_interrupts():  # it is in this session at first
                self._process = subprocess.Popen(
                    command,
                    pass_fds=[answer],
                    env=environment(),
                    start_new_session=True,
                    stdout=_STANDARD_ERROR,
                )
        except BaseException:
            self._answer.close()
            raise

    def end(self) -> None:
        """Kill the process and those of its group: `result`, in another thread, then raises."""
        with self._lock:
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):  # a signal ended it before it had one
                    os.killpg(self._process.pid, signal.SIGKILL)

    def result(self) -> tuple[RegistrationDocument, tuple[str, ...]]:
        """Wait for the end of the process; see `load_program`. To be called once."""
        with self._answer:
            code = self._wait()
            self._answer.seek(0)
            data = self._answer.read()
        path = str(self._path)
        if not data:
            message = f"it ended its process with code {code}"
            raise ProgramFailed(
                path, f"{message}; expected a file that only defines things", (path,)
            )
        try:
            loaded = msgspec.msgpack.decode(data, type=Loaded)
        except msgspec.DecodeError as error:
            message = f"its process ended with code {code} and left an answer that is not valid"
            raise ProgramFailed(path, f"{message}: {error}", (path,)) from None
        files = tuple(map(os.fsdecode, loaded.files))
        if loaded.error is not None:
            cause = from_record(loaded.error)
            message = cause.message if isinstance(cause, ProgramFailed) else str(cause)
            raise ProgramFailed(path, message, files)
        return read_document(loaded.document, "application/msgpack"), files

    def _wait(self) -> int:
        """Wait for the end of the process, kill what it left, and return its exit code."""
        with contextlib.suppress(ChildProcessError):  # SIGCHLD is ignored, so it was reaped at once
            os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
            self.end()  # not reaped yet, its id is that of its group
        with self._lock:
            return self._process.wait()


def load_program(path: Path) -> tuple[RegistrationDocument, tuple[str, ...]]:
    """Load a file in another process.

    Returns:
        What it describes, and the files that this was made of.

    Raises:
        ProgramFailed: it cannot be loaded; it has the files too.
        InvalidInput: it describes nothing.
    """
    loading = Loading(path)
    try:
        return loading.result()
    finally:
        loading.end()


def load_sources(paths: Iterable[Path]) -> RegistrationDocument:
    """Read all paths as `read_sources` does, those of Python files in a process for each.

    Raises:
        ProgramFailed: a Python file cannot be loaded.
        WrongUsage: a path does not exist.
        InvalidInput: a path or its content cannot be registered.
    """
    return collect([load_program(p)[0] if is_program(p) else read_sources([p]) for p in paths])


def main() -> int:
    """Load the file that the arguments name."""
    path, descriptor, parent = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return 1
    ignore_interrupts()
    os.set_inheritable(descriptor, False)
    started = os.getpid()
    loaded = _load(path)
    if os.getpid() != started:  # the file has forked
        os._exit(0)
    with os.fdopen(descriptor, "wb") as answer:
        answer.write(msgspec.msgpack.encode(loaded))
    return 0


def _load(path: Path) -> Loaded:
    try:
        document = read_sources([path])
    except DandelionError as error:
        return Loaded(files=_user_files(path, error), error=error.record())
    except OSError as error:  # of reading; what the user's program raises is a `ProgramFailed`
        record = ProgramFailed(str(path), f"{error.filename}: {error.strerror}").record()
        return Loaded(error=record)
    except BaseException as error:  # such as SystemExit
        record = ProgramFailed(str(path), users_traceback(error)).record()
        return Loaded(files=_user_files(path, error), error=record)
    return Loaded(encode_document(document), _user_files(path))


def _user_files(path: Path, error: BaseException | None = None) -> tuple[bytes, ...]:
    """List the files of the folder of a program that were imported, or whose import failed."""
    folder = path.resolve().parent
    found = {str(path.resolve())}
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    for file in (*files, *_failed_files(error, folder)):
        if file and Path(file).resolve().is_relative_to(folder) and ".venv" not in file:
            found.add(str(Path(file).resolve()))
    return tuple(sorted(map(os.fsencode, found)))


def _failed_files(error: BaseException | None, folder: Path) -> Iterator[str]:
    """Yield the files of modules that raised, and where a module that is missing may be added."""
    seen: set[int] = set()  # a program may make an error its own cause
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        names = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
        if isinstance(error, SyntaxError) and isinstance(error.filename, str):
            names.append(error.filename)
        yield from filter(os.path.isabs, names)  # others are no files, such as "<string>"
        if isinstance(error, ImportError) and error.name:
            parts = error.name.split(".")
            if all(map(str.isidentifier, parts)):
                module = folder.joinpath(*parts)
                if isinstance(error, ModuleNotFoundError):
                    yield from (f"{module}.py", f"{module}/__init__.py")
                elif module.is_dir():  # a package, which may get the module that it lacks
                    yield str(module)
        error = error.__cause__ or error.__context__


if __name__ == "__main__":
    sys.exit(main())
