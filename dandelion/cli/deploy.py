"""``dandelion deploy FILE``: show what would change, register it, and undo that.

What was deployed to each node is noted in ``.dandelion-deployed.json`` beside the file, so that
``--undo`` can remove these versions again. It refuses if someone registered newer ones meanwhile.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from dandelion.cli.connection import connect
from dandelion.cli.loading import load_program
from dandelion.cli.output import Output, WrongUsage
from dandelion.cli.parser import Arguments
from dandelion.cli.sources import read_sources
from dandelion.documents import PlannedChange, RegistrationDocument
from dandelion.errors import Conflict, InvalidInput
from dandelion.frontend.client import Client

STATE = ".dandelion-deployed.json"


class _Deployed(msgspec.Struct):
    """What the last deployment to a node registered: kind, name, version."""

    things: list[tuple[str, str, int]] = []


def run(arguments: Arguments, out: Output) -> int:
    """Deploy. The exit code is 1 if it was declined."""
    (path,) = arguments.paths
    state = (path if path.is_dir() else path.parent) / STATE
    deployed = _read(state)
    with connect(arguments) as client:
        if arguments.undo:
            return _undo(client, state, deployed, out)
        document = _document(path)
        changes = client.compare(document)
        changed = [change for change in changes if change.change != "same"]
        if not out.as_json:
            _show(changes, out)
        if not changed or arguments.dry_run:
            if out.as_json:
                out.document({"changes": changes, "registered": []})
            return 0
        if any(change.breaking for change in changed) and not (arguments.yes or _agrees()):
            out.failure("nothing was registered; deploy with --yes to change it all the same")
            return 1
        registered = client.register(document, progress=True)
    names = {(change.kind, change.name) for change in changed}
    things = [(r.kind, r.name, r.version) for r in registered if (r.kind, r.name) in names]
    _write(state, deployed | {client.url: _Deployed(things)})
    if out.as_json:
        out.document({"changes": changes, "registered": registered})
    else:
        out.line(f"deployed to {client.url}; 'dandelion deploy {path} --undo' takes it back")
    return 0


def _document(path: Path) -> RegistrationDocument:
    return load_program(path)[0] if path.suffix == ".py" else read_sources([path])


def _show(changes: list[PlannedChange], out: Output) -> None:
    rows = [
        (c.kind, c.name, str(c.version), c.change, "; ".join(c.breaking) or "-") for c in changes
    ]
    out.table(("kind", "name", "version", "change", "breaks callers"), rows)


def _agrees() -> bool:
    if not sys.stdin.isatty():
        return False
    return input("This change breaks callers. Deploy it? [y/N] ").strip().lower() in ("y", "yes")


def _read(state: Path) -> dict[str, _Deployed]:
    try:
        return msgspec.json.decode(state.read_bytes(), type=dict[str, _Deployed])
    except FileNotFoundError:
        return {}
    except msgspec.DecodeError as error:
        hint = "remove it; '--undo' is then possible after the next deployment"
        raise InvalidInput(str(state), f"it is damaged: {error}", hint) from None


def _write(state: Path, found: dict[str, _Deployed]) -> None:
    state.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")


def _undo(client: Client, state: Path, found: dict[str, _Deployed], out: Output) -> int:
    deployed = found.pop(client.url, None)
    if deployed is None or not deployed.things:
        message = f"nothing is left that was deployed to {client.url}"
        hint = "it takes back the last 'dandelion deploy' of this file once; check FILE and --url"
        raise WrongUsage("--undo", message, hint)
    present = {(entry.kind, entry.name): entry.version for entry in client.list()}
    for kind, name, version in deployed.things:
        newest = present.get((kind, name), 0)
        if newest > version:
            message = (
                f"version {newest} was registered after version {version} of this deployment; "
                f"remove it first: dandelion rm {name} --version {newest}"
            )
            raise Conflict(kind, name, message)
    order = {"composition": 0, "function": 1, "library": 2}  # what uses others goes first
    for kind, name, version in sorted(deployed.things, key=lambda one: order[one[0]]):
        if present.get((kind, name)) == version:
            client.remove(name, version)
            out.line(f"removed {kind} {name}, version {version}")
        else:
            out.line(f"{kind} {name}, version {version}, is not there any more")
    _write(state, found)
    return 0
