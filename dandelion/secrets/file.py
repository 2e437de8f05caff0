"""The file of secrets: TOML, a table for each tenant.

::

    [default]
    api_key = "k-123"
    signing_key = { file = "/run/secrets/signing_key" }
    password = { env = "DATABASE_PASSWORD" }

    [acme]
    api_key = "k-456"

A value in a file is taken as it is, without one line break at its end. A file that other users may
read or change is refused.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from dandelion.errors import InvalidInput
from dandelion.regular_files import open_regular

Secrets: TypeAlias = Mapping[str, Mapping[str, bytes]]
"""Values by tenant and name."""

SECRET_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
VALUE_LIMIT_BYTES = 64 * 1024
FILE_LIMIT_BYTES = 16 * VALUE_LIMIT_BYTES
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def read_secrets(path: Path) -> Secrets:
    """Read a file of secrets, and the files and variables that it names.

    Raises:
        InvalidInput: it cannot be read, other users may read it, or it is malformed. The message
            has no value of a secret.
    """
    try:
        table = tomllib.loads(_private_bytes(path, str(path)).decode())
    except (ValueError, RecursionError):
        raise InvalidInput(str(path), "the file of secrets is not TOML") from None
    found: dict[str, dict[str, bytes]] = {}
    for tenant, values in table.items():
        where = f"{path}: {tenant}"
        if not isinstance(values, dict):
            raise InvalidInput(where, "it is not a table", "write secrets below [TENANT]")
        found[tenant] = {name: _value(f"{where}.{name}", name, v) for name, v in values.items()}
    return found


def _value(where: str, name: str, given: object) -> bytes:
    if SECRET_NAME.fullmatch(name) is None:
        hint = "use letters, digits and '_', and do not begin with a digit"
        raise InvalidInput(where, "the name is not an identifier", hint)
    match given:
        case str():
            value = given.encode()
        case {"file": str() as source, **rest} if not rest:
            value = _private_bytes(Path(source), where)
            value = value.removesuffix(b"\n").removesuffix(b"\r")
        case {"env": str() as source, **rest} if not rest:
            text = os.environ.get(source)
            if text is None:
                hint = "set it before the node is started"
                raise InvalidInput(where, f"the environment has no variable {source}", hint)
            value = os.fsencode(text)
        case _:
            hint = 'give a text, { file = "..." } or { env = "..." }'
            raise InvalidInput(where, "it is not a value of a secret", hint)
    if not value:
        raise InvalidInput(where, "the secret is empty", "give a value, or remove the entry")
    if len(value) > VALUE_LIMIT_BYTES:
        raise InvalidInput(where, f"it has more than {VALUE_LIMIT_BYTES} bytes")
    return value


def _private_bytes(path: Path, where: str) -> bytes:
    """Read a file that no other user may read or change."""
    try:
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_mode & _OTHERS:
                message = f"other users may read or change {path}"
                raise InvalidInput(where, message, f"run chmod 600 {path}")
            data = file.read(FILE_LIMIT_BYTES + 1)
    except OSError as error:
        raise InvalidInput(where, f"cannot read {path}: {error.strerror}") from None
    if len(data) > FILE_LIMIT_BYTES:
        hint = 'give long values as { file = "..." }'
        raise InvalidInput(where, f"{path} has more than {FILE_LIMIT_BYTES} bytes", hint)
    return data
