"""``dandelion deploy FILE``: show what would change, register it, and undo that.

What was deployed of each file to each node is noted in ``.dandelion-deployed.json`` beside it, so
that ``--undo`` can remove these versions again, all or nothing. It refuses if someone registered
newer ones meanwhile.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from dandelion.catalog import Removal
from dandelion.cli.connection import connect, token_of
from dandelion.cli.loading import load_sources
from dandelion.cli.output import Output, WrongUsage
from dandelion.cli.parser import Arguments
from dandelion.cli.register import naming_files
from dandelion.documents import PlannedChange
from dandelion.errors import Conflict, InvalidInput
from dandelion.frontend.client import Client
from dandelion.function import digest_of

STATE = ".dandelion-deployed.json"
_TOKEN_DIGITS = 12


class _Deployed(msgspec.Struct):
    """What the last deployment of a file to a node registered.

    Attributes:
        file: its name, with invalid Unicode escaped; it is beside the file with this record, or is
            that folder (empty).
        url: of the node.
        token: the beginning of the digest of the token, which stands for its tenant; empty without.
        things: kind, name and version of each.
    """

    file: str
    url: str
    token: str
    things: tuple[Removal, ...] = ()

    def replaces(self, other: _Deployed) -> bool:
        """Tell whether both are of the same file, node and token."""
        return (self.file, self.url, self.token) == (other.file, other.url, other.token)


def run(arguments: Arguments, out: Output) -> int:
    """Deploy. The exit code is 1 if it was declined."""
    (path,) = arguments.paths
    state = (path if path.is_dir() else path.parent) / STATE
    with connect(arguments) as client:
        token = token_of(arguments)
        digest = "" if token is None else digest_of(token.encode())[:_TOKEN_DIGITS]
        name = "" if path.is_dir() else path.name.encode("utf-8", "backslashreplace").decode()
        this = _Deployed(name, client.url, digest)
        deployed = _read(state)  # also before a deployment: it is refused if that is damaged
        if arguments.undo:
            last = next((one for one in deployed if one.replaces(this)), None)
            _undo(client, last, out)
            _note(state, lambda one: one != last)
            return 0
        document = load_sources([path])
        with naming_files([path], document):
            changes = client.compare(document)
        changed = [change for change in changes if change.change != "same"]
        if not out.as_json:
            _show(changes, out)
        if not changed or arguments.dry_run:
            if out.as_json:
                out.document({"changes": changes, "registered": []})
            elif not changed:
                out.line(f"nothing to deploy: {client.url} has all of it already")
            return 0
        breaking = any(change.breaking for change in changed)
        if breaking and not (arguments.yes or (not out.as_json and _agrees())):
            out.failure("nothing was registered; deploy with --yes to change it all the same")
            return 1
        registered = client.register(document, progress=True)
    names = {(change.kind, change.name) for change in changed}
    this.things = tuple(
        Removal(r.kind, r.name, r.version) for r in registered if (r.kind, r.name) in names
    )
    undo = f"; 'dandelion deploy {shlex.quote(str(path))} --undo' takes it back"
    try:
        _note(state, lambda one: not one.replaces(this), this)
    except OSError as error:  # such as a folder that is read-only
        undo = ""
        out.failure(f"{state}: {error.strerror}; so '--undo' cannot take this deployment back")
    if out.as_json:
        out.document({"changes": changes, "registered": registered})
    else:
        out.line(f"deployed to {client.url}{undo}")
    return 0


def _show(changes: list[PlannedChange], out: Output) -> None:
    rows = [
        (c.kind, c.name, str(c.version), c.change, "; ".join(c.breaking) or "-") for c in changes
    ]
    out.table(("kind", "name", "version", "change", "breaks callers"), rows)


def _agrees() -> bool:
    """Ask at the terminal; standard output may be a file."""
    if sys.stdin is None or not sys.stdin.isatty():
        return False
    question = "This change breaks callers. Deploy it? [y/N] "
    print(question, end="", file=sys.stderr, flush=True)
    answer = sys.stdin.buffer.readline()
    if not answer.endswith(b"\n"):  # the input ended
        print(file=sys.stderr)
    return answer.strip().lower() in (b"y", b"yes")


def _read(state: Path) -> list[_Deployed]:
    try:
        return msgspec.json.decode(state.read_bytes(), type=list[_Deployed])
    except FileNotFoundError:
        return []
    except msgspec.DecodeError as error:
        hint = "remove it; '--undo' is then possible after the next deployment"
        raise InvalidInput(str(state), f"it is damaged: {error}", hint) from None


def _note(state: Path, stays: Callable[[_Deployed], bool], *more: _Deployed) -> None:
    """Note deployments beside those that stay; without things there is none to take back."""
    folder = os.open(state.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)  # another deployment may end now
        found = [one for one in (*filter(stays, _read(state)), *more) if one.things]
        written = state.with_name(f"{state.name}.new")
        written.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")
        written.replace(state)
    finally:
        os.close(folder)


def _undo(client: Client, last: _Deployed | None, out: Output) -> None:
    if last is None:
        message = f"nothing is left that was deployed to {client.url}"
        hint = "it takes back the last 'dandelion deploy' of this file once"
        hint += "; check FILE, --url and the token"
        raise WrongUsage("--undo", message, hint)
    present = {(entry.kind, entry.name): entry.version for entry in client.list()}
    for one in last.things:
        newest = present.get((one.kind, one.name), 0)
        if one.version is not None and newest > one.version:
            message = (
                f"version {newest} was registered after version {one.version} of this deployment; "
                f"remove it first: dandelion rm {one.name} --version {newest}"
            )
            raise Conflict(one.kind, one.name, message)
    left = [one for one in last.things if present.get((one.kind, one.name)) == one.version]
    if left:
        client.remove_together(left)
    for one in last.things:
        thing = f"{one.kind} {one.name}, version {one.version}"
        out.line(f"removed {thing}" if one in left else f"{thing}, is not there any more")
