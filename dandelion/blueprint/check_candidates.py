"""The static check of candidates."""

from __future__ import annotations

from collections.abc import Iterator

from dandelion.blueprint.records import MAX_ALTERNATIVES, Candidates, contains
from dandelion.errors import Problem


def candidate_problems(where: str, action: Candidates) -> Iterator[Problem]:
    """Yield what is wrong with candidates, beside what is wrong with their actions."""
    count = len(action.alternatives)
    if not 1 <= count <= MAX_ALTERNATIVES:
        expected = f"1..{MAX_ALTERNATIVES}"
        yield Problem("out-of-range", f"{count} alternatives", where, expected=expected)
    for number, actions in enumerate(action.alternatives):
        at = f"{where}[{number}]"
        if not actions:
            yield Problem("empty", "an alternative without actions", at)
        if contains(actions, Candidates):
            yield Problem("depth", "candidates within candidates", at)
