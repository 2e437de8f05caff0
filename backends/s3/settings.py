"""The operator's options of S3-compatible stores."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec

from dandelion.errors import InvalidInput

from ..stores.settings import StoreSettings, StoresSettings, check_folder_prefix, read_stores

MIB = 1024 * 1024


class S3StoreSettings(StoreSettings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One bucket, or a part of it.

    Attributes:
        bucket: its name.
        endpoint: URL of the service, such as ``https://s3.eu-central-1.amazonaws.com``.
        region: for signatures.
        anonymous: requests are not signed.
        key_id_file, key_id_env: where the access key's id is.
        secret_file, secret_env: where its secret is.
        session_token_file, session_token_env: where the token of temporary credentials is.
        ca_file: certificates in PEM that are trusted besides the system's.
        virtual_host: the bucket is a part of the host name, not of the path.
        part_bytes: contents that are larger are written in parts of this size.
    """

    bucket: str = ""
    endpoint: str = ""
    region: str = "us-east-1"
    anonymous: bool = False
    key_id_file: str = ""
    key_id_env: str = ""
    secret_file: str = ""
    secret_env: str = ""
    session_token_file: str = ""
    session_token_env: str = ""
    ca_file: str = ""
    virtual_host: bool = False
    part_bytes: int = 8 * MIB


class S3Settings(
    StoresSettings[S3StoreSettings], frozen=True, forbid_unknown_fields=True, kw_only=True
):
    """Settings of the backend ``s3``."""


def read_settings(options: Mapping[str, str]) -> StoresSettings[S3StoreSettings]:
    """Read settings as an operator writes them.

    Raises:
        InvalidInput: an option is unknown, has a bad value or is missing.
    """
    settings = read_stores("s3", options, S3Settings, S3StoreSettings)
    checked = {name: _checked(name, given) for name, given in settings.stores.items()}
    return msgspec.structs.replace(settings, stores=checked)


def _checked(name: str, given: S3StoreSettings) -> S3StoreSettings:
    where = f"options.s3.store.{name}"
    if not given.bucket:
        raise InvalidInput(f"{where}.bucket", "it is missing", "name a bucket")
    parts = urlsplit(given.endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        example = "https://s3.eu-central-1.amazonaws.com"
        raise InvalidInput(f"{where}.endpoint", "it is not a URL", f"give one such as {example}")
    if parts.username is not None or parts.password is not None or parts.query:
        message = "it has a user, a password or a query"
        raise InvalidInput(f"{where}.endpoint", message, "credentials are read from secret_file")
    if not 5 * MIB <= given.part_bytes <= 1024 * MIB:
        raise InvalidInput(f"{where}.part_bytes", f"{given.part_bytes} is not 5 MiB to 1 GiB")
    check_folder_prefix(f"{where}.prefix", given.prefix)
    named = (given.key_id_file or given.key_id_env, given.secret_file or given.secret_env)
    if given.anonymous and any(named):
        raise InvalidInput(f"{where}.anonymous", "it is 'yes', but credentials are named too")
    if not given.anonymous and not all(named):
        hint = "name key_id_file and secret_file (or ..._env), or set anonymous=yes"
        raise InvalidInput(where, "it has no credentials", hint)
    return given
