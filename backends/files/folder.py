"""Files below one folder, by paths that a user wrote.

A path is never given to the system as a whole. It is divided into its parts, and each is opened
relative to the descriptor of the one before it, with ``O_NOFOLLOW``. The parts are names: none is
empty, ``.`` or ``..``, and none has a slash or a NUL. So the system cannot leave the folder while
it looks one up: there is no way up, a link is refused instead of followed, and since every step
starts at a descriptor, a folder that is replaced by a link meanwhile changes nothing. This is what
``openat2(RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS)`` does, and works on every system.

Only regular files are opened. The type is looked at before, so that no device or FIFO is opened by
accident, and again through the descriptor, which is what counts.

A file is written under another name in the same folder, and renamed when it is complete. Readers
see the file before or after, never a part. Names that begin with `TEMPORARY` are reserved for that.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Callable, Iterator

from dandelion.data import Bytes

from ..stores.bodies import HEAP_BYTES, OutputBudget
from ..stores.failures import ItemFailed, ItemRefused
from ..stores.request import ByteRange

TEMPORARY = ".dandelion-"
PIECE_BYTES = 1024 * 1024
_PATH_LIMIT_BYTES = 1024
_PART_LIMIT_BYTES = 255
_DEPTH_LIMIT = 32
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_FOLDER = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECTORY
_NEW = os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_CREAT | os.O_EXCL
_FILE_MODE = 0o644
_FOLDER_MODE = 0o755

Check = Callable[[], None]
"""Raises if the work is not wanted any more; called between pieces."""


def parts_of(path: str, is_folder: bool) -> list[str]:
    """Divide a path into names.

    Args:
        path: as a user wrote it.
        is_folder: it may be empty, or end with a slash.

    Raises:
        ItemRefused: it is not a relative path of plain names.
    """
    if path.startswith("/"):
        raise ItemRefused(f"path '{path[:80]}' is absolute; paths are relative to the store")
    if is_folder:
        path = path.removesuffix("/")
        if not path:
            return []
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        raise ItemRefused("the path is not valid Unicode") from None
    if size > _PATH_LIMIT_BYTES:
        raise ItemRefused(f"the path has {size} bytes, more than {_PATH_LIMIT_BYTES}")
    parts = path.split("/")
    if len(parts) > _DEPTH_LIMIT:
        raise ItemRefused(f"the path has {len(parts)} parts, more than {_DEPTH_LIMIT}")
    for part in parts:
        if part in ("", ".", "..") or "\0" in part:
            raise ItemRefused(f"path {path[:80]!r} has a part that is empty, '.', '..' or NUL")
        if len(part.encode()) > _PART_LIMIT_BYTES:
            raise ItemRefused(f"a part of the path has more than {_PART_LIMIT_BYTES} bytes")
        if part.startswith(TEMPORARY):
            raise ItemRefused(f"names that begin with '{TEMPORARY}' are reserved")
    return parts


@contextlib.contextmanager
def opened_folder(root: int, parts: list[str], create: bool = False) -> Iterator[int]:
    """Open a folder below another one, part by part.

    Args:
        root: descriptor to start from; it stays open.
        parts: names, see `parts_of`.
        create: make folders that are missing.

    Yields:
        A descriptor, closed afterwards.

    Raises:
        ItemFailed: a part is something else.
        OSError: a part is missing, or cannot be opened.
    """
    current = os.dup(root)
    try:
        for part in parts:
            if create:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, _FOLDER_MODE, dir_fd=current)
            following = _step_into(current, part)
            os.close(current)
            current = following
        yield current
    finally:
        os.close(current)


def _step_into(folder: int, name: str) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=folder)
    except OSError:
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        if not stat.S_ISDIR(mode):
            raise ItemFailed(f"a part of the path is {kind_of(mode)}, not a folder") from None
        raise


def read_file(
    root: int,
    parts: list[str],
    wanted: ByteRange | None,
    most_bytes: int,
    item: str,
    budget: OutputBudget,
    check: Check,
) -> Bytes | None:
    """Read a file, or a part of it; None if there is none.

    Raises:
        ItemRefused, ItemFailed: it is not a regular file, is too large, or shrinks meanwhile.
        OSError: it cannot be read.
    """
    try:
        with opened_folder(root, parts[:-1]) as folder:
            file = _open_regular(folder, parts[-1])
    except FileNotFoundError:
        return None
    try:
        size = os.fstat(file).st_size
        start, end = (0, size) if wanted is None else wanted.within(size)
        if end - start > most_bytes:
            message = f"the file has {end - start} bytes, more than {most_bytes}"
            raise ItemFailed(f"{message}, the limit of the store; read it by ranges")
        budget.take(item, end - start)
        return _read_into(file, start, end - start, budget, check)
    finally:
        os.close(file)


def write_file(
    root: int, parts: list[str], content: Bytes, keep_free_bytes: int, sync: bool, check: Check
) -> None:
    """Write a file as a whole, with the folders above it.

    Raises:
        ItemFailed: the disk is too full, or something else than a file has the name.
        OSError: it cannot be written.
    """
    with opened_folder(root, parts[:-1], create=True) as folder:
        disk = os.fstatvfs(folder)
        if disk.f_bavail * disk.f_frsize - len(content) < keep_free_bytes:
            raise ItemFailed("the disk of the store is too full", transient=True)
        _refuse_special(folder, parts[-1])
        temporary = f"{TEMPORARY}{secrets.token_hex(12)}"
        file = os.open(temporary, _NEW, _FILE_MODE, dir_fd=folder)
        try:
            try:
                _write_all(file, content, check)
                if sync:
                    os.fsync(file)
            finally:
                os.close(file)
            os.rename(temporary, parts[-1], src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=folder)
            raise
        if sync:
            os.fsync(folder)


def _open_regular(folder: int, name: str) -> int:
    before = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if not stat.S_ISREG(before.st_mode):
        raise ItemFailed(f"it is {kind_of(before.st_mode)}, not a file")
    file = os.open(name, _READ, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise ItemFailed("it is not a file")
    return file


def _refuse_special(folder: int, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        if not stat.S_ISREG(mode):
            raise ItemFailed(f"{kind_of(mode)} has this name")


def kind_of(mode: int) -> str:
    """Describe what has a name."""
    if stat.S_ISLNK(mode):
        return "a symbolic link"
    if stat.S_ISDIR(mode):
        return "a folder"
    if stat.S_ISREG(mode):
        return "a file"
    return "a FIFO, a socket or a device"


def _read_into(file: int, start: int, size_bytes: int, budget: OutputBudget, check: Check) -> Bytes:
    if size_bytes <= HEAP_BYTES:
        data = os.pread(file, size_bytes, start) if size_bytes else b""
        if len(data) != size_bytes:
            raise _shrunk()
        return data
    context = budget.context(size_bytes)
    offset = 0
    while offset < size_bytes:
        check()
        count = os.preadv(file, [context.view[offset : offset + PIECE_BYTES]], start + offset)
        if not count:
            raise _shrunk()
        offset += count
    return context.read(0, size_bytes)


def _shrunk() -> ItemFailed:
    return ItemFailed("the file became shorter while it was read", transient=True)


def _write_all(file: int, content: Bytes, check: Check) -> None:
    view = memoryview(content)
    while len(view):
        check()
        view = view[os.write(file, view[:PIECE_BYTES]) :]
