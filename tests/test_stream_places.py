"""Places of streams: what one tenant takes leaves some to the others."""

from __future__ import annotations

from contextlib import ExitStack, suppress

import pytest

from dandelion.errors import Overloaded
from dandelion.frontend.stream_places import PLACES, StreamPlaces


def fill(places: StreamPlaces, tenant: str, held: ExitStack) -> int:
    """Take all places that a tenant gets; return how many."""
    count = 0
    with suppress(Overloaded):
        while count <= PLACES:
            places.check(tenant)
            held.enter_context(places.taken(tenant))
            count += 1
    return count


def test_each_tenant_leaves_some_to_the_others() -> None:
    places = StreamPlaces("seats")
    with ExitStack() as held:
        assert [fill(places, name, held) for name in "abcd"] == [64, 22, 7, 2]
        with pytest.raises(Overloaded) as caught:
            places.check("b")
        assert str(caught.value).startswith("tenant 'b' has 22 seats, the limit is 22")
    assert fill(places, "e", ExitStack()) == 64


def test_a_tenant_that_holds_much_gets_no_more_once_others_came() -> None:
    places = StreamPlaces("seats")
    with ExitStack() as first, ExitStack() as second:
        for _ in range(40):
            first.enter_context(places.taken("a"))
        fill(places, "b", second)
        with pytest.raises(Overloaded):
            places.check("a")
        second.close()
        places.check("a")
