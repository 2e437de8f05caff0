"""The static check of candidates."""

from __future__ import annotations

from collections.abc import Iterator

from dandelion.blueprint.records import MAX_ALTERNATIVES, Action, Candidates, Repeat
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
        if has_candidates(actions):
            yield Problem("depth", "candidates within candidates", at)


def has_candidates(actions: tuple[Action, ...]) -> bool:
    """Tell whether there are candidates among actions, or in their repeats."""
    return any(
        isinstance(action, Candidates)
        or (isinstance(action, Repeat) and has_candidates(action.actions))
        for action in actions
    )
