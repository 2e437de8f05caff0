"""What is kept of a token, and how a token is made."""

from __future__ import annotations

import enum
import hashlib
import re
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated

import msgspec

from dandelion.errors import InvalidInput
from dandelion.namespaces import DEFAULT_TENANT, check_tenant

PREFIX = "dandelion_"
"""With it, programs that search texts for secrets recognize a token."""
RANDOM_BYTES = 32
LIMITED_TOKENS = 4096
"""How many tokens of a file may have a rate limit."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,62}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


class Right(enum.Enum):
    """What a token allows; each route needs one right.

    `REGISTER` also allows removing. `OPERATE` shows the engines and the metrics of all tenants.
    """

    INVOKE = "invoke"
    REGISTER = "register"
    READ = "read"
    OPERATE = "operate"


LOWEST_RATE, HIGHEST_RATE = 1e-9, 10**9
"""Times between requests are exact enough for these; with smaller rates they would be infinite."""


class TokenRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One token, without the token itself.

    Attributes:
        name: identifies the token in logs.
        sha256: of the token, 64 hexadecimal digits in lower case.
        tenant: of requests with it.
        rights: what it allows.
        expires: from then on it is refused; it has a time zone.
        rate: requests per second; None is no limit.
        burst: requests that may come at once; by default as many as in one second.
    """

    name: str
    sha256: str
    tenant: str = DEFAULT_TENANT
    rights: tuple[Right, ...]
    expires: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    rate: Annotated[float, msgspec.Meta(gt=0)] | None = None
    burst: Annotated[int, msgspec.Meta(ge=1)] | None = None

    def check(self) -> None:
        """Refuse a record that cannot be used.

        Raises:
            InvalidInput: a field is malformed; `where` names it.
        """
        if _NAME.fullmatch(self.name) is None:
            hint = "use 1 to 63 letters, digits, '_', '.', '@' and '-'"
            raise InvalidInput("name", f"{self.name[:64]!r} is not a valid name of a token", hint)
        if _DIGEST.fullmatch(self.sha256) is None:
            hint = "make the token with 'dandelion token new'"
            raise InvalidInput("sha256", "it is not 64 hexadecimal digits in lower case", hint)
        check_tenant(self.tenant)
        if not self.rights:
            raise InvalidInput("rights", "the list is empty", f"use {', '.join(right_names())}")
        if self.expires is not None:
            _check_expiry(self.expires)
        if self.rate is None and self.burst is not None:
            raise InvalidInput("burst", "it is given without a rate", "add the rate")
        if self.rate is not None and not LOWEST_RATE <= self.rate <= HIGHEST_RATE:
            message = f"{self.rate} is not a number from {LOWEST_RATE} to {HIGHEST_RATE}"
            raise InvalidInput("rate", message, "without a rate there is no limit")
        if self.burst is not None and self.burst > HIGHEST_RATE:
            raise InvalidInput("burst", f"{self.burst} is more than {HIGHEST_RATE}")


def _check_expiry(expires: datetime) -> None:
    """Refuse a time that has no form in UTC, in which it is sent to frontend processes."""
    try:
        expires.astimezone(UTC)
    except OverflowError:
        message = f"{expires.isoformat()} is not in the years 1 to 9999 in UTC"
        raise InvalidInput("expires", message, "without it the token does not expire") from None


def right_names() -> list[str]:
    """Return the names of all rights."""
    return [right.value for right in Right]


def check_records(records: Sequence[TokenRecord]) -> None:
    """Refuse records that cannot be used together.

    Raises:
        InvalidInput: a record is malformed, two have the same name or token, or too many have a
            rate limit.
    """
    names: set[str] = set()
    digests: set[str] = set()
    for number, record in enumerate(records):
        where = f"tokens[{number}]"
        try:
            record.check()
        except InvalidInput as error:
            raise InvalidInput(f"{where}.{error.where}", error.message, error.hint) from None
        if record.name in names:
            hint = "give each token a name of its own"
            raise InvalidInput(f"{where}.name", f"'{record.name}' is given twice", hint)
        if record.sha256 in digests:
            hint = "make a new one with 'dandelion token new'"
            raise InvalidInput(f"{where}.sha256", "another token has the same", hint)
        names.add(record.name)
        digests.add(record.sha256)
    limited = sum(record.rate is not None for record in records)
    if limited > LIMITED_TOKENS:
        message = f"{limited} tokens have a rate; {LIMITED_TOKENS} are allowed"
        raise InvalidInput("tokens", message)


def new_token() -> str:
    """Make a token of 256 random bits, in characters that a header may contain."""
    return PREFIX + secrets.token_urlsafe(RANDOM_BYTES)


def digest_of(token: str) -> str:
    """Return what a file keeps of a token."""
    return hashlib.sha256(token.encode()).hexdigest()
