"""Unpacks wheels into a folder. Used in the process that prepares packages.

Modules and data beside them are taken; scripts, headers and data for other folders are left out,
since a sandbox could not use them. Names of members are checked before anything is written, and
what is written is counted, since a member may be larger than its header says.

Source: "Binary distribution format" of packaging.python.org; ``zipfile`` and ``zip(5)``.
"""

from __future__ import annotations

import filecmp
import os
import py_compile
import stat
import struct
import time
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO

_CHUNK_BYTES = 1 << 20
_ENCRYPTED = 0x1
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_KEPT = ("purelib", "platlib")
_TESTS = frozenset({"tests", "test"})
_DEPTH = 64  # of folders
_NAME_BYTES, _PATH_BYTES = 240, 1024
COMPILE_S = 20.0


class BadWheel(Exception):
    """A wheel is not what the specification has; the text says why."""


def unpack(wheel: IO[bytes], folder: Path, spend: Callable[[int, int], None]) -> None:
    """Unpack the modules of a wheel.

    Args:
        wheel: an open file.
        folder: that other wheels were unpacked to, too.
        spend: is told bytes, and files and folders, before they are written; raises if that is too
            much.

    Raises:
        BadWheel: it is damaged, or it has a file that was there before, with other content.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            written: set[Path] = set()
            for member, target in list(_members(archive)):
                spend(0, 1)
                if not _write(archive, member, folder / target, spend):
                    other = "twice in this wheel" if target in written else "also in another wheel"
                    raise BadWheel(f"'{member.filename}' is {other}, with other content")
                written.add(target)
    except (
        *(zipfile.BadZipFile, zlib.error, EOFError),
        # zipfile reports damage with these, too
        *(NotImplementedError, RuntimeError, ValueError, OverflowError, struct.error),
    ) as error:
        raise BadWheel(str(error)) from None


def _members(archive: zipfile.ZipFile) -> Iterator[tuple[zipfile.ZipInfo, Path]]:
    """Yield the files of a wheel that are kept, and where they go."""
    for member in archive.infolist():
        if member.is_dir():
            continue
        mode = member.external_attr >> 16
        if mode and stat.S_IFMT(mode) not in (0, stat.S_IFREG):
            raise BadWheel(f"'{member.filename}' is not a regular file")
        if member.flag_bits & _ENCRYPTED or member.compress_type not in _METHODS:
            raise BadWheel(f"'{member.filename}' is encrypted or compressed in another way")
        target = _target(member.filename)
        if target is not None:
            yield member, target


def _target(name: str) -> Path | None:
    """Return where a member goes, relative to the folder; None if it is left out."""
    path = PurePosixPath(name)
    parts = path.parts
    if not parts or path.is_absolute() or ".." in parts or "\\" in name or not name.isprintable():
        raise BadWheel(f"the name {name!r} leads out of the folder")
    if len(parts) > _DEPTH or len(os.fsencode(name)) > _PATH_BYTES:
        raise BadWheel(f"the name '{name[:80]}...' is too long")
    if any(len(os.fsencode(part)) > _NAME_BYTES for part in parts):
        raise BadWheel(f"a part of the name '{name[:80]}...' is too long")
    if parts[0].endswith(".data"):
        return Path(*parts[2:]) if len(parts) > 2 and parts[1] in _KEPT else None
    return Path(*parts)


def _write(
    archive: zipfile.ZipFile,
    member: zipfile.ZipInfo,
    target: Path,
    spend: Callable[[int, int], None],
) -> bool:
    """Write a file. False if it exists with other content."""
    exists = target.exists()
    path = target.with_name(f"{target.name}.again") if exists else target
    try:
        missing = [one for one in path.parents if not one.is_dir()]
        spend(0, len(missing))
        path.parent.mkdir(parents=True, exist_ok=True)
        with archive.open(member) as source, path.open("xb") as file:
            while chunk := source.read(_CHUNK_BYTES):
                spend(len(chunk), 0)
                file.write(chunk)
    except (FileExistsError, NotADirectoryError, IsADirectoryError):
        raise BadWheel(f"'{member.filename}' is a file and a folder") from None
    if not exists:
        return True
    same = target.is_file() and filecmp.cmp(path, target, shallow=False)
    path.unlink()
    return same


def compile_all(folder: Path, spend: Callable[[int, int], None]) -> None:
    """Compile all modules, so that interpreters need not do it whenever they load them.

    Code that does not compile is left as it is: packages have such files as templates. So are their
    tests, and what is left after `COMPILE_S` seconds of CPU time.
    """
    warnings.simplefilter("ignore")
    end = time.process_time() + COMPILE_S
    for path in sorted(folder.rglob("*.py")):
        shown = os.fspath(path.relative_to(folder))
        if time.process_time() > end:
            return
        if _TESTS.intersection(path.parts):
            continue
        try:
            made = py_compile.compile(
                os.fspath(path),
                dfile=shown,
                doraise=True,
                invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
            )
        except (py_compile.PyCompileError, ValueError, RecursionError, OSError):
            continue
        if made is not None:
            spend(Path(made).stat().st_size, 1)
