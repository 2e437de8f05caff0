"""Where outcomes come from: which of them a page shows, and under which name."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence

from ..records import Outcome
from ..units import clean


def chosen(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Give one outcome of each experiment, machine and backend, in the order of experiments.

    A full run is preferred to a quick one, then a newer one to an older.
    """
    best: dict[tuple[str, str, str], Outcome] = {}
    for outcome in outcomes:
        key = (outcome.experiment, outcome.machine_name, outcome.backend)
        if key not in best or _rank(outcome) >= _rank(best[key]):
            best[key] = outcome
    ordered = sorted(best.values(), key=lambda o: (o.machine_name, o.backend))
    return sorted(ordered, key=lambda o: _natural(o.experiment))


def places_of(outcomes: Sequence[Outcome]) -> list[str]:
    """Give the names of the places that outcomes come from, sorted."""
    return sorted({place_of(o) for o in outcomes})


def place_of(outcome: Outcome) -> str:
    """Name where an outcome comes from: its machine."""
    return clean(outcome.machine_name) or "unnamed machine"


def anchor(name: str) -> str:
    """Give an id for an experiment in the page; different names have different ids."""
    plain = re.sub(r"[^A-Za-z0-9]+", "-", name)[:40].strip("-").lower()
    if plain == name:
        return f"experiment-{plain}"
    return f"experiment-{plain}-{zlib.crc32(name.encode(errors='replace')):08x}"


def _rank(outcome: Outcome) -> tuple[bool, str]:
    return (not outcome.quick, outcome.date)


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """Order names with numbers as people do: fig-5-2 before fig-5-10."""
    parts = re.findall(r"\d+|\D+", name)
    return [(p.isascii() and p.isdigit(), int(p[:18]) if p.isascii() and p.isdigit() else 0, p)
            for p in parts]  # fmt: skip
