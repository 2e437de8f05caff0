"""Deadlines and priorities that callers give."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from dandelion.deadline import checked_deadline
from dandelion.errors import InvalidInput
from dandelion.priority import checked_priority


@pytest.mark.parametrize("value", [3, 3.0, np.float32(3), np.int64(3), Fraction(6, 2)])
def test_deadlines_of_any_number_type_become_floats(value: object) -> None:
    seconds = checked_deadline(value)
    assert type(seconds) is float
    assert seconds == 3.0


@pytest.mark.parametrize("check", [checked_deadline, lambda value: checked_priority("p", value)])
def test_messages_stay_short(check: Callable[[object], object]) -> None:
    with pytest.raises(InvalidInput, match="an integer of 33220 bits is not"):
        check(10**10000)
    with pytest.raises(InvalidInput, match=r"'x{76}\.\.\. is not") as caught:
        check("x" * 100000)
    assert len(str(caught.value)) < 200
