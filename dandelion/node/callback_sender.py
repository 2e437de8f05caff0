"""Sends callbacks of asynchronous invocations: one signed POST for each attempt.

The URL is on the operator's list, its address is checked after resolution, redirects are not
followed, nothing of the response but its status is read, and the environment (proxies, credentials)
is ignored. ``docs/asynchronous.md`` describes what a receiver gets.

A receiver has a part of the places only. If one that does not answer could take all of them, the
callbacks to other receivers would wait for its time-outs.
"""

from __future__ import annotations

import asyncio
import os
import time
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

import msgspec

from dandelion.addresses import AddressPolicy, Refused
from dandelion.asynchronous.callbacks import (
    CallbackPrefix,
    callback_body,
    check_callback,
    receiver_of,
)
from dandelion.asynchronous.records import KeptRecord
from dandelion.asynchronous.signing import HEADER, sign
from dandelion.errors import InvalidInput
from dandelion.settings import Settings
from dandelion.tenant_places import TenantPlaces

if TYPE_CHECKING:
    import aiohttp

LIMIT_S = 10.0
CONCURRENCY = 64
RECEIVER_CONCURRENCY = 16
SECRET_LENGTH = 16  # characters at least


@dataclass(frozen=True, slots=True)
class CallbackRules:
    """What the operator allows.

    Attributes:
        prefixes: of URLs.
        policy: addresses.
        secrets: by tenant.
    """

    prefixes: tuple[CallbackPrefix, ...]
    policy: AddressPolicy
    secrets: Mapping[str, bytes] = field(repr=False)

    @classmethod
    def of(cls, settings: Settings) -> CallbackRules:
        """Read the settings.

        Raises:
            InvalidInput: one is malformed, or the file of secrets cannot be read.
        """
        prefixes = tuple(CallbackPrefix.read(text) for text in settings.callback_allow)
        try:
            policy = AddressPolicy(settings.callback_networks, setting="'callback_networks'")
            policy.admits("192.0.2.1")  # reads the networks
        except ValueError as error:
            hint = "write 10.0.0.0/8"
            raise InvalidInput("callback_networks", str(error), hint) from None
        return cls(prefixes, policy, _secrets(settings.callback_secrets))

    def check(self, url: str, tenant: str) -> None:
        """Refuse a URL that may not be called; raises as `check_callback`."""
        check_callback(url, self.prefixes, has_secret=tenant in self.secrets)


class _SecretFile(msgspec.Struct, forbid_unknown_fields=True):
    secrets: dict[str, str]


def _secrets(path: str) -> dict[str, bytes]:
    if not path:
        return {}
    where = "callback_secrets"
    try:
        table = tomllib.loads(Path(path).expanduser().read_text("utf-8"))
        given = msgspec.convert(table, _SecretFile).secrets
    except OSError as error:
        raise InvalidInput(where, f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        hint = 'write a table [secrets] with lines TENANT = "SECRET"'
        raise InvalidInput(where, f"{path}: {error}", hint) from None
    for tenant, secret in given.items():
        if len(secret) < SECRET_LENGTH:
            hint = f"use {SECRET_LENGTH} characters or more"
            raise InvalidInput(where, f"{path}: the secret of '{tenant}' is too short", hint)
    return {tenant: secret.encode() for tenant, secret in given.items()}


def _problem_of(error: Exception) -> str:
    """Say why there was no answer. Messages of the library may have bytes of the response."""
    import aiohttp

    if isinstance(error, aiohttp.ClientSSLError):
        reason = getattr(error, "certificate_error", None) or error.__cause__ or error
        return f"no secure connection: {reason}"
    if isinstance(error, aiohttp.ClientConnectorError):
        number = error.errno or 0
        return f"no connection: {os.strerror(number) if number > 0 else error.strerror}"
    if isinstance(error, aiohttp.InvalidURL):
        return "the URL cannot be used"
    if isinstance(error, aiohttp.ClientResponseError | ValueError):
        return "the answer is not valid HTTP"
    return "the connection was closed without an answer"


class CallbackSender:
    """Sends callbacks, on the loop.

    Args:
        rules: of the operator.
    """

    def __init__(self, rules: CallbackRules) -> None:
        self._rules = rules
        self._places = TenantPlaces(CONCURRENCY)
        self._receivers = WeakValueDictionary[str, TenantPlaces]()  # while they are in use
        self._session: aiohttp.ClientSession | None = None

    async def send(self, record: KeptRecord) -> str:
        """Send the callback of an invocation once; return why it failed, or an empty text."""
        assert record.callback is not None
        url = record.callback.url
        import aiohttp  # takes long, and most nodes never call

        try:
            self._rules.check(url, record.tenant)  # the operator may have changed the list
            self._rules.policy.check_literal(urlsplit(url).hostname or "")
            places = self._places_of(receiver_of(url))
            async with (  # while it waits for its receiver, it has no other place
                places.taken(record.tenant),
                self._places.taken(record.tenant),
                asyncio.timeout(LIMIT_S),
            ):
                return await self._post(url, record)
        except TimeoutError:
            return f"no answer within {LIMIT_S:g} s"
        except (Refused, InvalidInput) as error:
            return str(error)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return _problem_of(error)

    def _places_of(self, receiver: str) -> TenantPlaces:
        places = self._receivers.get(receiver)
        if places is None:
            places = self._receivers[receiver] = TenantPlaces(RECEIVER_CONCURRENCY)
        return places

    async def _post(self, url: str, record: KeptRecord) -> str:
        from yarl import URL

        assert record.callback is not None
        body = callback_body(record)
        secret = self._rules.secrets[record.tenant]
        headers = {
            "Content-Type": "application/json",
            HEADER: sign(secret, body, time.time()),
            "Dandelion-Invocation": record.id,
            "Dandelion-Attempt": str(record.callback.attempts + 1),
        }
        async with self._opened().post(
            URL(url, encoded=True), data=body, headers=headers, allow_redirects=False
        ) as response:
            return "" if 200 <= response.status < 300 else f"status {response.status}"

    def _opened(self) -> aiohttp.ClientSession:
        import aiohttp

        from dandelion.checked_resolver import CheckedResolver, SystemResolver
        from dandelion.node.callback_answer import ShortAnswer

        if self._session is None:
            resolver = CheckedResolver(self._rules.policy, SystemResolver(CONCURRENCY))
            connector = aiohttp.TCPConnector(resolver=resolver, limit=CONCURRENCY, force_close=True)
            made = partial(ShortAnswer, asyncio.get_running_loop())
            connector._factory = made  # type: ignore[assignment]  # makes a subclass
            self._session = aiohttp.ClientSession(
                connector=connector,
                timeout=aiohttp.ClientTimeout(total=LIMIT_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
                auto_decompress=False,
            )
        return self._session

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
