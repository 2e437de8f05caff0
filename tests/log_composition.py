"""Functions and problems of descriptions in tests."""

from collections.abc import Callable

import pytest

from dandelion.dataflow.dsl import (
    functions,
)
from dandelion.errors import InvalidComposition, Problem

access, fan_out, render, merge = functions(
    "Access(token) -> (request)",
    "FanOut(page, topic) => (requests)",
    "Render(pages) -> (html)",
    "Merge(a, b, c, style) -> (merged, rest)",
)


def problem_of(call: Callable[[], object]) -> Problem:
    with pytest.raises(InvalidComposition) as caught:
        call()
    return caught.value.problems[0]
