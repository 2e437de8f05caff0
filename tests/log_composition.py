"""A composition that shows logs, its functions, and the problem of a description."""

from collections.abc import Callable
from typing import Any

import pytest

from dandelion.dataflow.dsl import SetHandle, composition, each, functions, http
from dandelion.errors import InvalidComposition, Problem

access, fan_out, render, merge = functions(
    "Access(token) -> (request)",
    "FanOut(page, topic) => (requests)",
    "Render(pages) -> (html)",
    "Merge(a, b, c, style) -> (merged, rest)",
)


@composition
def render_logs(token: SetHandle, topic: SetHandle) -> dict[str, Any]:
    """Show the logs of a topic."""
    login = http(requests=each(access(token=token)))
    logs = http(requests=each(fan_out(page=login.bodies, topic=topic)))
    return {"html": render(pages=logs.bodies)}


def problem_of(call: Callable[[], object]) -> Problem:
    with pytest.raises(InvalidComposition) as caught:
        call()
    return caught.value.problems[0]
