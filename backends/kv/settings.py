"""The operator's options of key-value stores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlsplit

import msgspec

from dandelion.errors import InvalidInput

from ..stores.settings import StoreSettings, StoresSettings, read_stores

MIB = 1024 * 1024
_PORT = 6379


class KvStoreSettings(StoreSettings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One database, or a part of it.

    Attributes:
        address: ``redis://HOST:PORT/NUMBER``, ``rediss://HOST:PORT/NUMBER`` (TLS), or
            ``unix:PATH``; the number of the database is 0 without one.
        database: its number, where the address is a path.
        user: of the access list; without one the server's default user.
        password_file, password_env: where the password is.
        ca_file: certificates in PEM that are trusted instead of the system's.
        value_bytes: largest value.
    """

    address: str = ""
    database: int = 0
    user: str = ""
    password_file: str = ""
    password_env: str = ""
    ca_file: str = ""
    value_bytes: Annotated[int, msgspec.Meta(ge=1, le=512 * MIB)] = 64 * MIB


class KvSettings(
    StoresSettings[KvStoreSettings], frozen=True, forbid_unknown_fields=True, kw_only=True
):
    """Settings of the backend ``kv``."""


@dataclass(frozen=True, slots=True)
class KvAddress:
    """Where a server is: a path, or host and port."""

    path: str = ""
    host: str = ""
    port: int = _PORT
    tls: bool = False
    database: int = 0


def read_settings(options: Mapping[str, str]) -> StoresSettings[KvStoreSettings]:
    """Read settings as an operator writes them.

    Raises:
        InvalidInput: an option is unknown, has a bad value or is missing.
    """
    settings = read_stores("kv", options, KvSettings, KvStoreSettings)
    for name, given in settings.stores.items():
        read_address(f"options.kv.store.{name}", given)
    return settings


def read_address(where: str, given: KvStoreSettings) -> KvAddress:
    """Read the address of a store.

    Raises:
        InvalidInput: it does not have one of the forms above.
    """
    where = f"{where}.address"
    hint = "give redis://HOST:PORT/NUMBER, rediss://HOST:PORT/NUMBER or unix:PATH"
    if given.address.startswith("unix:/"):
        return KvAddress(path=given.address.removeprefix("unix:"), database=given.database)
    parts = urlsplit(given.address)
    if parts.username is not None or parts.password is not None:
        message = "it has a user or a password"
        raise InvalidInput(where, message, "give the options user and password_file")
    try:
        port = parts.port or _PORT
    except ValueError:
        raise InvalidInput(where, "its port is not valid", hint) from None
    number = parts.path.removeprefix("/") or str(given.database)
    if parts.scheme not in ("redis", "rediss") or not parts.hostname or not number.isdigit():
        raise InvalidInput(where, "it is not an address", hint)
    return KvAddress(
        host=parts.hostname, port=port, tls=parts.scheme == "rediss", database=int(number)
    )
