"""The folder of prepared environments.

::

    FOLDER/KEY/site/               modules, read-only
    FOLDER/KEY/environment.json    what belongs there: its wheels, its number of files and bytes
    FOLDER/KEY.lock                locked (shared) by each node that uses it; removed with it
    FOLDER/.lock                   locked while a name is given or taken away
    FOLDER/.preparing-*            being made, and then locked by its node; or being removed

An environment is made in a folder of its own and renamed when it is complete, so a folder with a
key as its name is whole. The first use after a start also counts its files and bytes, since a disk
may lose what was written before a power failure. Several nodes of one user may share the folder: a
lock ends with its node, so what a killed node left is removed by the next one.

When a new environment does not fit below the limit, those that no function of a running node uses
are removed, the longest unused first.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from dandelion.errors import (
    BackendUnavailable,
    DandelionError,
    DiskFull,
    EnvironmentsFull,
    InternalError,
    InvalidFunction,
    InvalidInput,
    Overloaded,
)
from dandelion.function import CodeObject, Digest
from dandelion.packages.environment_folder import (
    LOCK,
    RECORD,
    SITE,
    EnvironmentRecord,
    age,
    check_owner,
    is_whole,
    locked,
    read_record,
    remove,
    sealed,
)
from dandelion.packages.preparing import run_job
from dandelion.packages.records import NO_SPACE, PackageSource, PrepareJob, PrepareLimits
from dandelion.packages.requirements import (
    are_provided,
    check_wheels,
    environment_key,
    read_requirements,
)

_PREPARING = ".preparing-"


class Environments:
    """Prepares environments and keeps them. Safe from any thread.

    Args:
        folder: for them; made when it is needed.
        source: where wheels come from.
        limits: of one preparation; `disk_bytes` is the limit of all environments together.
        used: lists the code of all registered functions.
    """

    def __init__(
        self,
        folder: Path,
        source: PackageSource,
        limits: PrepareLimits,
        used: Callable[[], Iterable[CodeObject]],
    ) -> None:
        self._folder = folder
        self._source = source
        self._limits = limits
        self._used = used
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._held: dict[str, int] = {}  # keys, and the descriptors of their locks
        self._pinned: dict[str, int] = {}  # keys of registrations under way, counted
        self._returning: set[str] = set()  # keys of environments that are being made again

    def resolve(
        self, packages: Iterable[str], wheels: Mapping[str, Digest], where: str
    ) -> tuple[tuple[str, ...], dict[str, Digest]]:
        """Choose wheels without preparing anything.

        Returns:
            The requirements in canonical form, and the wheels.

        Raises:
            InvalidFunction, BackendUnavailable: see `prepare`.
        """
        requirements = self._checked(packages, wheels, where)
        with _placed(where), _reported(self._folder):
            return requirements, run_job(self._job(requirements, wheels), self._stopped).wheels

    @contextlib.contextmanager
    def prepare(
        self, packages: Iterable[str], wheels: Mapping[str, Digest], where: str
    ) -> Iterator[tuple[tuple[str, ...], dict[str, Digest]]]:
        """Prepare the environment of requirements; it stays at least as long as the context.

        Args:
            packages: requirements.
            wheels: if there are any, only these are taken.
            where: the place for problems.

        Yields:
            The requirements in canonical form, and the wheels that were chosen.

        Raises:
            InvalidFunction: a requirement is not valid, or they cannot be fulfilled.
            BackendUnavailable: there is neither a folder nor an index, or it cannot be reached.
            DiskFull, EnvironmentsFull: there is no room.
        """
        requirements = self._checked(packages, wheels, where)
        with _placed(where), _reported(self._folder):
            chosen, key = self._prepare(requirements, wheels)
        try:
            yield requirements, chosen
        finally:
            self._unpin(key)

    def site(self, code: CodeObject) -> str:
        """Return the folder with the packages of a function; empty if it needs none.

        It was prepared when the function was registered. If it is gone or damaged since, or the
        node runs another Python now, it is made again from the recorded wheels.

        Raises:
            InvalidFunction, BackendUnavailable, DiskFull, EnvironmentsFull: that is not possible.
            Overloaded: too many are being made, or this one is.
        """
        if not code.wheels:
            return ""
        key = environment_key(code.wheels)
        with _reported(self._folder):
            with self._lock:
                if self._hold(key):
                    return self.place(code)
                if key in self._returning:
                    raise Overloaded(1, 1, "preparations of these packages")
                self._returning.add(key)
            try:
                _, pinned = self._prepare(code.packages, code.wheels)
                self._unpin(pinned)
            finally:
                with self._lock:
                    self._returning.remove(key)
        return self.place(code)

    def place(self, code: CodeObject) -> str:
        """Return the folder that `site` returns, whether it is there or not."""
        if not code.wheels:
            return ""
        return str(self._folder / environment_key(code.wheels) / SITE)

    def release_unused(self) -> None:
        """Let other nodes remove what no function of this node uses any more."""
        with self._lock:
            for key in self._held.keys() - self._keys_in_use() if self._held else ():
                os.close(self._held.pop(key))

    def stop(self) -> None:
        """End all preparations; they raise `Cancelled`, now and later."""
        self._stopped.set()

    def close(self) -> None:
        """Let other nodes remove everything. May be called twice."""
        with self._lock:
            for descriptor in self._held.values():
                os.close(descriptor)
            self._held.clear()

    # --- preparing ----------------------------------------------------------------------------

    def _checked(
        self, packages: Iterable[str], wheels: Mapping[str, Digest], where: str
    ) -> tuple[str, ...]:
        requirements = read_requirements(packages, where)
        check_wheels(wheels, f"{where}: wheels")
        return requirements

    def _job(
        self,
        requirements: tuple[str, ...],
        wheels: Mapping[str, Digest],
        folder: str = "",
        known: tuple[str, ...] = (),
    ) -> PrepareJob:
        source = self._source
        if not source.folder and not source.index and not are_provided(requirements):
            message = "this node has no source of packages"
            remedy = (
                "set packages_folder to a folder with wheels (--wheels DIR; `dandelion wheels "
                "FILE` makes one), or packages_index to the URL of an index"
            )
            raise BackendUnavailable("packages", message, remedy)
        if source.folder and not Path(source.folder).is_dir():
            raise InvalidInput("packages_folder", f"there is no folder {source.folder}")
        return PrepareJob(
            os.getpid(), requirements, dict(wheels), source, self._limits, folder, known
        )

    def _prepare(
        self, requirements: tuple[str, ...], wheels: Mapping[str, Digest]
    ) -> tuple[dict[str, Digest], str]:
        """Prepare an environment, and pin it."""
        job = self._job(requirements, wheels)  # refuses before anything is written
        if are_provided(requirements) and not run_job(job, self._stopped).wheels:
            with self._lock:
                return {}, self._pin({})
        for known in (self._known(), ()):  # one that is known may be damaged, or just removed
            chosen = self._prepared(requirements, wheels, known)
            if chosen is not None:
                return chosen, environment_key(chosen)
        raise InternalError(f"an environment in {self._folder} is not what was prepared")

    def _prepared(
        self,
        requirements: tuple[str, ...],
        wheels: Mapping[str, Digest],
        known: tuple[str, ...],
    ) -> dict[str, Digest] | None:
        with self._preparing() as folder:
            site = folder / SITE
            site.mkdir()
            chosen = run_job(
                self._job(requirements, wheels, str(site), known), self._stopped
            ).wheels
            key = environment_key(chosen)
            with contextlib.ExitStack() as alone:
                if chosen and key not in known:
                    record = sealed(site, chosen)
                    alone.enter_context(self._alone())
                    self._install(folder, key, record)
                with self._lock:
                    if chosen and not self._hold(key):
                        return None
                    self._pin(chosen)
        return chosen

    def _pin(self, wheels: Mapping[str, Digest]) -> str:
        """Keep an environment until `_unpin`; return its key."""
        key = environment_key(wheels)
        self._pinned[key] = self._pinned.get(key, 0) + 1
        return key

    def _install(self, folder: Path, key: str, record: EnvironmentRecord) -> None:
        """Give a prepared folder its name, unless another node was faster. Under `_alone`.

        So nodes do this one after the other, and all together keep the limit.

        Raises:
            EnvironmentsFull: it does not fit beside those that are in use.
        """
        target = self._folder / key
        if not is_whole(target):
            self._make_room(record)
            (folder / RECORD).write_bytes(msgspec.json.encode(record))
            remove(target)
            folder.rename(target)

    @contextlib.contextmanager
    def _preparing(self) -> Iterator[Path]:
        """Make a folder that other nodes leave alone; it is removed unless it was renamed."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o755)
        check_owner(self._folder)
        with self._alone():  # or others may sweep it before it is locked
            self._sweep()
            folder = Path(tempfile.mkdtemp(prefix=_PREPARING, dir=self._folder))
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            folder.chmod(0o755)
            yield folder
        finally:
            remove(folder)
            os.close(lock)

    # --- what is there ------------------------------------------------------------------------

    def _known(self) -> tuple[str, ...]:
        return tuple(path.parent.name for path in self._folder.glob(f"*/{RECORD}"))

    def _hold(self, key: str) -> bool:
        """Lock an environment for use, if it is there and whole. Under the lock.

        One that this node has locked may have been deleted since, wholly or in part.
        """
        folder = self._folder / key
        if key in self._held:
            if is_whole(folder):
                return True
            os.close(self._held.pop(key))
        if not folder.is_dir():
            return False
        lock = self._locked(key, fcntl.LOCK_SH)
        if not is_whole(folder):
            os.close(lock)
            return False
        with contextlib.suppress(OSError):
            os.utime(folder)
        self._held[key] = lock
        return True

    def _locked(self, key: str, how: int) -> int:
        """Open and lock the lock of an environment, or of the folder (no key)."""
        return locked(self._folder / f"{key}{LOCK}", how)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other nodes from changing the folder."""
        lock = self._locked("", fcntl.LOCK_EX)
        try:
            yield
        finally:
            os.close(lock)

    def _unpin(self, key: str) -> None:
        with self._lock:
            self._pinned[key] -= 1
            if not self._pinned[key]:
                del self._pinned[key]

    def _keys_in_use(self) -> set[str]:
        keys = {environment_key(code.wheels) for code in self._used() if code.wheels}
        return keys | self._pinned.keys()

    # --- room ---------------------------------------------------------------------------------

    def _make_room(self, record: EnvironmentRecord) -> None:
        """Remove unused environments until another one fits below the limit. Under `_alone`.

        Raises:
            EnvironmentsFull: it does not fit beside those that are in use.
        """
        self.release_unused()
        sizes = {key: read_record(self._folder / key) for key in self._known()}
        used_bytes = sum(one.size_bytes for one in sizes.values() if one is not None)
        limit_bytes = self._limits.disk_bytes
        for key in sorted(sizes, key=lambda key: age(self._folder / key)):
            if used_bytes + record.size_bytes <= limit_bytes:
                return
            removed = sizes[key]
            if self._remove_unused(key):
                used_bytes -= removed.size_bytes if removed is not None else 0
        if used_bytes + record.size_bytes > limit_bytes:
            raise EnvironmentsFull(record.size_bytes, used_bytes, limit_bytes)

    def _remove_unused(self, key: str) -> bool:
        """Remove an environment if no node has locked it. Under `_alone`."""
        try:
            lock = self._locked(key, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        try:
            folder = self._folder / key
            leaving = self._folder / f"{_PREPARING}{key}"  # swept if this node is killed now
            with contextlib.suppress(OSError):
                folder.rename(leaving)
            remove(leaving)
            remove(folder)
            (self._folder / f"{key}{LOCK}").unlink(missing_ok=True)
        finally:
            os.close(lock)
        return True

    def _sweep(self) -> None:
        """Remove what killed nodes left, and locks without environments. Under `_alone`."""
        for folder in self._folder.glob(f"{_PREPARING}*"):
            with contextlib.suppress(OSError):
                lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    remove(folder)
                finally:
                    os.close(lock)
        for path in self._folder.glob(f"?*{LOCK}"):
            if not path.with_suffix("").exists():
                self._remove_unused(path.stem)


@contextlib.contextmanager
def _placed(where: str) -> Iterator[None]:
    """Give the problems of a preparation the place of the requirements."""
    try:
        yield
    except InvalidFunction as error:
        raise InvalidFunction(
            tuple(msgspec.structs.replace(p, where=p.where or where) for p in error.problems)
        ) from None


@contextlib.contextmanager
def _reported(folder: Path) -> Iterator[None]:
    """Give errors of the file system that of the folder of environments."""
    try:
        yield
    except DandelionError:  # some are an OSError, too
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in NO_SPACE:
            existing = next(path for path in (folder, *folder.parents) if path.exists())
            free_bytes = shutil.disk_usage(existing).free
            raise DiskFull(str(folder), reason, 0, free_bytes) from None
        remedy = "let the node's user write to it, or set packages_cache to another folder"
        raise BackendUnavailable("packages", f"{folder}: {reason}", remedy) from None
