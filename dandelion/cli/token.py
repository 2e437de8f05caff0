"""``dandelion token``: make, list and remove bearer tokens in the file of a node.

A token is printed once, when it is made. The file has its hash only. A node that uses the file
reads it within about a second.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from dandelion.cli.output import Output, WrongUsage
from dandelion.cli.parser import Arguments
from dandelion.errors import Conflict, InvalidInput, Unknown, nearest
from dandelion.tokens import Right, TokenRecord
from dandelion.tokens.file import locked, read_tokens, write_tokens
from dandelion.tokens.records import check_records, digest_of, new_token, right_names

_LONGEST_DAYS = 36500


def run(arguments: Arguments, out: Output) -> int:
    """Carry out one of the three verbs."""
    if not arguments.tokens:
        hint = "give --tokens FILE, or set DANDELION_TOKENS"
        raise WrongUsage("token", "no file of tokens is named", hint)
    path = Path(arguments.tokens)
    if arguments.token_verb == "new":
        _new(path, arguments, out)
    elif arguments.token_verb == "list":
        _list(path, out)
    else:
        _remove(path, arguments.name, out)
    return 0


def _new(path: Path, arguments: Arguments, out: Output) -> None:
    token = new_token()
    record = TokenRecord(
        name=arguments.name,
        sha256=digest_of(token),
        tenant=arguments.tenant,
        rights=_rights(arguments.rights),
        expires=_expiry(arguments.expires_days),
        rate=arguments.rate,
        burst=arguments.burst,
    )
    record.check()
    with locked(path):
        records = read_tokens(path) if path.exists() else ()
        if any(record.name == arguments.name for record in records):
            message = "a token has this name; remove it first, or choose another name"
            raise Conflict("token", arguments.name, message)
        check_records([*records, record])
        write_tokens(path, [*records, record])
    if out.as_json:
        out.document({"name": record.name, "token": token})
    else:
        out.raw(token.encode() + b"\n")


def _list(path: Path, out: Output) -> None:
    records = read_tokens(path)
    if out.as_json:
        out.document({"tokens": [_shown(record) for record in records]})
        return
    rows = [
        (
            r.name,
            r.tenant,
            ",".join(right.value for right in r.rights),
            "never" if r.expires is None else r.expires.isoformat(),
            "" if r.rate is None else f"{r.rate:g}/s",
        )
        for r in records
    ]
    out.table(("name", "tenant", "rights", "expires", "rate"), rows)


def _remove(path: Path, name: str, out: Output) -> None:
    with locked(path):
        records = read_tokens(path)
        kept = [record for record in records if record.name != name]
        if len(kept) == len(records):
            raise Unknown("token", name, None, nearest(name, (r.name for r in records)))
        write_tokens(path, kept)
    if out.as_json:
        out.document({"removed": name})
    else:
        out.line(f"removed {name}")


def _shown(record: TokenRecord) -> dict[str, object]:
    shown: dict[str, object] = msgspec.to_builtins(record)
    del shown["sha256"]
    return shown


def _rights(text: str) -> tuple[Right, ...]:
    names = [part.strip() for part in text.split(",") if part.strip()]
    for name in names:
        if name not in right_names():
            close = nearest(name, right_names())
            hint = f"did you mean '{close}'?" if close else f"use {', '.join(right_names())}"
            raise InvalidInput("--rights", f"'{name}' is not a right", hint)
    return tuple(Right(name) for name in dict.fromkeys(names))


def _expiry(days: float | None) -> datetime | None:
    if days is None:
        return None
    if not 0 < days <= _LONGEST_DAYS:
        hint = f"give a number up to {_LONGEST_DAYS}, or leave it out: the token never expires"
        raise InvalidInput("--expires-days", f"{days:g} is not a number of days to come", hint)
    return datetime.now(UTC).replace(microsecond=0) + timedelta(days=days)
