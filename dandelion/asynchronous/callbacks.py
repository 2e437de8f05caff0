"""Callbacks: which URLs may be called, when they are tried again, and what is sent.

The operator lists prefixes of URLs; without a list there are no callbacks. An entry is a whole
beginning such as ``https://hooks.example.org/dandelion/``, compared part by part: scheme, host,
port, and whole segments of the path. A host may begin with ``*.``.
"""

from __future__ import annotations

import posixpath
import re
import urllib.parse
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from dandelion.asynchronous.records import CallbackRecord, CallbackState, KeptRecord
from dandelion.errors import InvalidInput

ATTEMPTS = 8
FIRST_PAUSE_S = 1.0
PAUSE_FACTOR = 4.0
LONGEST_PAUSE_S = 600.0
URL_LIMIT = 2048  # characters
_PORTS = {"http": 80, "https": 443}
_HOST = re.compile(r"(\*\.)?[a-z0-9_.-]+|[0-9a-f:.]+").fullmatch
_WHERE = "header.dandelion-callback"


@dataclass(frozen=True, slots=True)
class CallbackPrefix:
    """One entry of the operator's list."""

    scheme: str
    host: str
    port: int
    path: str

    @classmethod
    def read(cls, text: str) -> CallbackPrefix:
        """Read an entry of the setting `callback_allow`.

        Raises:
            InvalidInput: it is not the beginning of a URL.
        """
        scheme, host, port, path = _parts("callback_allow", text)
        if host.count("*") > host.startswith("*."):
            hint = "write https://*.example.org/"
            raise InvalidInput("callback_allow", f"'{text}': '*' is not at the beginning", hint)
        return cls(scheme, host, port, path)

    def admits(self, scheme: str, host: str, port: int, path: str) -> bool:
        """Tell whether a URL begins with this."""
        if (scheme, port) != (self.scheme, self.port):
            return False
        if self.host.startswith("*."):
            if not host.endswith(self.host[1:]) or len(host) < len(self.host):
                return False
        elif host != self.host:
            return False
        return path == self.path or path.startswith(self.path.rstrip("/") + "/")


def check_callback(url: str, allowed: Iterable[CallbackPrefix], *, has_secret: bool) -> None:
    """Refuse a URL that may not be called.

    Raises:
        InvalidInput: it is malformed, not on the operator's list, or the tenant has no secret.
    """
    parts = _parts(_WHERE, url)
    if not any(prefix.admits(*parts) for prefix in allowed):
        hint = "ask the operator to add it to the setting 'callback_allow'"
        raise InvalidInput(_WHERE, f"'{url[:80]}' may not be called", hint)
    if not has_secret:
        hint = "ask the operator to add one to the file 'callback_secrets'"
        raise InvalidInput(_WHERE, "the tenant has no secret to sign callbacks with", hint)


def receiver_of(url: str) -> str:
    """Name the receiver of a URL that was checked: its host and port."""
    _, host, port, _ = _parts(_WHERE, url)
    return f"{host}:{port}"


def _parts(where: str, url: str) -> tuple[str, str, int, str]:
    """Divide a URL: scheme, host, port, path."""
    hint = "write https://HOST/PATH"
    if len(url) > URL_LIMIT or not url.isascii() or any(c <= " " or c == "\\" for c in url):
        raise InvalidInput(where, f"'{url[:80]}' is not a valid URL", hint)
    try:
        parts = urllib.parse.urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme, 0)
    except ValueError as error:
        raise InvalidInput(where, f"'{url[:80]}': {error}", hint) from None
    host = parts.hostname or ""
    if parts.scheme not in _PORTS or "@" in parts.netloc or parts.fragment or not _HOST(host):
        raise InvalidInput(where, f"'{url[:80]}' is not a URL that can be called", hint)
    path = urllib.parse.unquote(parts.path) or "/"
    if "%" in path or posixpath.normpath(path).rstrip("/") != path.rstrip("/"):
        raise InvalidInput(where, f"'{url[:80]}': its path is not in its plain form", hint)
    return parts.scheme, host.rstrip("."), port, path


def first_due(callback: CallbackRecord, now_s: float) -> CallbackRecord:
    """Give a callback that is due at once."""
    return msgspec.structs.replace(callback, due_s=now_s)


def after_attempt(callback: CallbackRecord, problem: str, now_s: float) -> CallbackRecord:
    """Give a callback after it was sent once more."""
    attempts = callback.attempts + 1
    state, due_s = CallbackState.DELIVERED, 0.0
    if problem:
        state = CallbackState.GIVEN_UP
        if attempts < ATTEMPTS:
            state = CallbackState.WAITING
            pause_s = FIRST_PAUSE_S * PAUSE_FACTOR ** (attempts - 1)
            due_s = now_s + min(LONGEST_PAUSE_S, pause_s)
    return CallbackRecord(callback.url, state, attempts, due_s, problem[:200])


class _Body(msgspec.Struct, omit_defaults=True):
    id: str
    state: str
    name: str
    ended: str
    result: str = ""
    error: str = ""


def callback_body(record: KeptRecord) -> bytes:
    """Write the body of a callback."""
    ended = datetime.fromtimestamp(record.ended_s, UTC).isoformat(timespec="milliseconds")
    succeeded = record.error is None
    return msgspec.json.encode(
        _Body(
            record.id,
            record.state.value,
            record.request.name,
            ended,
            f"/v1/invocations/{record.id}/result" if succeeded else "",
            "" if record.error is None else record.error.type,
        )
    )
