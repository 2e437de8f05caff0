"""The file of tokens: TOML, as that of the settings.

::

    [[tokens]]
    name = "ci"
    sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
    tenant = "acme"
    rights = ["invoke", "read"]
    expires = 2027-01-01T00:00:00+00:00     # optional
    rate = 100.0                            # optional, requests per second
    burst = 200                             # optional

A file without tokens says so, ``tokens = []``: an empty one may have been cut off. The file has no
secrets, but a user that may write to it can grant rights. So one that others may write to is
refused, and a change replaces the file at once by one with mode 0600.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from dandelion.errors import InvalidInput
from dandelion.errors.misfits import misfit_text
from dandelion.regular_files import open_regular
from dandelion.tokens.records import TokenRecord, check_records

_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tokens: tuple[TokenRecord, ...]


def read_tokens(path: Path) -> tuple[TokenRecord, ...]:
    """Read a file of tokens.

    Raises:
        InvalidInput: it cannot be read, is not a regular file, others may write to it, or it is
            malformed.
    """
    where = str(path)
    try:
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_mode & _OTHERS:
                hint = f"run chmod 600 {path}"
                raise InvalidInput(where, "other users may write to the file", hint)
            table = tomllib.load(file)
    except OSError as error:
        hint = "make it with `dandelion token new`"
        raise InvalidInput(where, f"cannot read the tokens: {error.strerror}", hint) from None
    except (ValueError, RecursionError) as error:  # also for numbers of 5000 digits
        raise InvalidInput(where, f"not TOML: {error}") from None
    if not table:
        raise InvalidInput(
            where, "the file is empty", "for a file without tokens, write `tokens = []`"
        )
    try:
        records = msgspec.convert(table, _Document).tokens
    except msgspec.ValidationError as error:
        raise InvalidInput(where, misfit_text(error)) from None
    try:
        check_records(records)
    except InvalidInput as error:
        raise InvalidInput(f"{where}: {error.where}", error.message, error.hint) from None
    return records


def write_tokens(path: Path, records: Sequence[TokenRecord]) -> None:
    """Replace the file at once. Comments in it are lost; its owner stays, and links to it.

    Raises:
        InvalidInput: the records cannot be used together.
        OSError: the file cannot be written; the old one is as it was.
    """
    check_records(records)
    path = _target(path)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # of mode 0600
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            _keep_owner(path, descriptor)
            file.write("\n".join(map(_text, records)) or "tokens = []\n")
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink()
        raise


def _keep_owner(path: Path, descriptor: int) -> None:
    """Give a new file the owner of the old one: the node's user must be able to read it."""
    with contextlib.suppress(FileNotFoundError, PermissionError):
        old = path.stat()
        if old.st_uid != os.geteuid():
            os.fchown(descriptor, old.st_uid, old.st_gid)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other processes from changing the file; they wait.

    Raises:
        OSError: the folder of the file cannot be opened.
    """
    folder = os.open(_target(path).parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _target(path: Path) -> Path:
    """Follow links, also to a file that does not exist yet."""
    with contextlib.suppress(FileNotFoundError):
        path.stat()  # raises OSError for a link to itself
    return path.resolve()


def _text(record: TokenRecord) -> str:
    rights = ", ".join(json.dumps(right.value) for right in record.rights)
    lines = [
        "[[tokens]]",
        f"name = {json.dumps(record.name)}",
        f"sha256 = {json.dumps(record.sha256)}",
        f"tenant = {json.dumps(record.tenant)}",
        f"rights = [{rights}]",
    ]
    if record.expires is not None:
        lines.append(f"expires = {record.expires.isoformat()}")
    if record.rate is not None:
        lines.append(f"rate = {float(record.rate)!r}")
    if record.burst is not None:
        lines.append(f"burst = {record.burst}")
    return "\n".join(lines) + "\n"
