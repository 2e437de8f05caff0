"""``dandelion ls``: the newest versions of registered names; backends and engines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from dandelion.cli.connection import connect
from dandelion.cli.grammar import did_you_mean
from dandelion.cli.output import Output, WrongUsage
from dandelion.cli.parser import KINDS, Arguments
from dandelion.frontend.records import EngineEntry, Entry
from dandelion.sizes import size_text

SINGULAR = {kind: kind.removesuffix("s") for kind in KINDS} | {"libraries": "library"}


def run(arguments: Arguments, out: Output) -> int:
    """List everything that is registered, or one kind."""
    kind = kind_of(arguments.kind) if arguments.kind else ""
    with connect(arguments) as client:
        if kind in _SHOW_ENGINES:
            _SHOW_ENGINES[kind](client.engines(), out)
            return 0
        entries = client.list()
    if kind:
        entries = [e for e in entries if e.kind == SINGULAR[kind]]
    show(entries, out)
    if not entries and not out.as_json:
        out.line(f"no {kind}" if kind else "nothing is registered")
    return 0


def kind_of(word: str) -> str:
    """Read the name of a kind, in the singular or plural.

    Raises:
        WrongUsage: the kind is unknown.
    """
    for kind in KINDS:
        if word.lower() in (kind, SINGULAR[kind]):
            return kind
    close = did_you_mean(word.lower(), KINDS)
    raise WrongUsage("ls", f"'{word}' is not one of {', '.join(KINDS)}{close}")


def show(entries: list[Entry], out: Output) -> None:
    """Print entries as a table or JSON."""
    if out.as_json:
        out.document(entries)
        return
    rows = [(e.kind, e.name, str(e.version), _sets(e), _details(e)) for e in entries]
    out.table(("kind", "name", "version", "sets", "details"), rows)


def _sets(entry: Entry) -> str:
    if entry.kind == "library":
        return ""
    return f"({', '.join(entry.inputs)}) -> ({', '.join(entry.outputs)})"


def _details(entry: Entry) -> str:
    if entry.kind == "library":
        return size_text(entry.size_bytes)
    if entry.kind == "composition":
        return f"uses {', '.join(entry.uses)}" if entry.uses else ""
    fixed = f"; fixed: {', '.join(entry.static)}" if entry.static else ""
    return ", ".join(entry.formats) + fixed


def _show_engines(engines: list[EngineEntry], out: Output) -> None:
    if out.as_json:
        out.document(engines)
        return
    rows = [
        (e.name or e.backend, e.state, str(e.calls), str(e.failures), e.reason or e.description)
        for e in engines
    ]
    out.table(("engine", "state", "calls", "failures", "details"), rows)


def _show_backends(engines: list[EngineEntry], out: Output) -> None:
    """Count the engines of each backend by their state."""
    states: dict[str, Counter[str]] = {}
    reasons: dict[str, str] = {}
    for engine in engines:
        states.setdefault(engine.backend, Counter())[engine.state] += 1
        reasons[engine.backend] = engine.reason or reasons.get(engine.backend, "")
    if out.as_json:
        out.document(
            [{"backend": b, "engines": dict(n), "reason": reasons[b]} for b, n in states.items()]
        )
        return
    rows = [
        (backend, ", ".join(f"{n} {state}" for state, n in counts.items()), reasons[backend])
        for backend, counts in states.items()
    ]
    out.table(("backend", "engines", "reason"), rows)


_SHOW_ENGINES: dict[str, Callable[[list[EngineEntry], Output], None]] = {
    "engines": _show_engines,
    "backends": _show_backends,
}
