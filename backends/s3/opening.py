"""Makes clients of S3-compatible stores.

The library reads ``AWS_...`` variables for options that are not given, so all that decide about
address and credentials are given here.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from obstore.store import S3Store

from dandelion.errors import BackendUnavailable

from ..stores.credentials import Secret, read_secret
from ..stores.settings import StoresSettings
from .errors import NOWHERE
from .settings import S3StoreSettings


def opened_store(
    name: str,
    given: S3StoreSettings,
    settings: StoresSettings[S3StoreSettings],
    limit: timedelta = timedelta(days=1),
) -> S3Store:
    """Make the client of a store.

    Args:
        name: of the store, for messages.
        given: its settings.
        settings: of the backend.
        limit: how long a request may take; by default the deadline of the call ends it earlier.

    Raises:
        BackendUnavailable: credentials or certificates cannot be read.
        InvalidInput: they are named twice.
    """
    where = f"store.{name}"
    key_id = read_secret(f"{where}.key_id", "s3", given.key_id_file, given.key_id_env)
    secret = read_secret(f"{where}.secret", "s3", given.secret_file, given.secret_env)
    token = read_secret(
        f"{where}.session_token", "s3", given.session_token_file, given.session_token_env
    )
    client: dict[str, Any] = {
        "allow_http": given.endpoint.startswith("http:"),
        "allow_invalid_certificates": False,
        "connect_timeout": timedelta(seconds=settings.connect_s),
        "read_timeout": timedelta(seconds=settings.idle_s),
        "timeout": limit,
        "proxy_url": f"http://{NOWHERE}",
        "proxy_excludes": urlsplit(given.endpoint).hostname,
    }
    if given.ca_file:
        client["root_certificate"] = _read_certificates(where, given.ca_file)
    return S3Store(
        given.bucket,
        endpoint=given.endpoint,
        aws_endpoint_url_s3=given.endpoint,
        region=given.region,
        virtual_hosted_style_request=given.virtual_host,
        skip_signature=given.anonymous,
        request_payer=False,
        s3_express=False,
        credential_provider=_provider(key_id, secret, token),
        client_options=client,  # type: ignore[arg-type]  # a typed dictionary
        retry_config={
            "max_retries": settings.retries,
            "backoff": {
                "init_backoff": timedelta(milliseconds=50),
                "max_backoff": timedelta(seconds=1),
                "base": 2,
            },
            "retry_timeout": timedelta(seconds=60),
        },
    )


def _provider(key_id: Secret | None, secret: Secret | None, token: Secret | None) -> Any:
    if key_id is None or secret is None:
        return None

    def provide() -> dict[str, str | None]:
        return {
            "access_key_id": key_id.reveal(),
            "secret_access_key": secret.reveal(),
            "token": token.reveal() if token is not None else None,
            "expires_at": None,
        }

    return provide


def _read_certificates(where: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise BackendUnavailable("s3", f"{where}.ca_file cannot be read: {reason}") from None
