"""How many launches a list of actions has."""

from __future__ import annotations

from dandelion.blueprint.numbers import constant
from dandelion.blueprint.records import (
    Action,
    Candidates,
    Choose,
    Repeat,
    RepeatWhile,
    inner_lists,
)


def launches(actions: tuple[Action, ...], once: type[Action] | None = None) -> int:
    """Count launches at most; a repeat whose number depends on the inputs counts once.

    Of a choice the case with most of them counts.

    Args:
        actions: which.
        once: repeats of this kind count once, too.
    """
    total = 0
    for action in actions:
        lists = [launches(inner, once) for _, inner in inner_lists(action)]
        if isinstance(action, Candidates | Choose):
            total += max(lists, default=0)
        elif not isinstance(action, Repeat | RepeatWhile):
            total += 1
        else:
            times = 1 if type(action) is once else constant(action.times)
            total += max(1 if times is None else times, 0) * lists[0]
    return total
