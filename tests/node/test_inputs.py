"""Large inputs of engines in processes: who copies them to the arena, and when nobody does yet."""

import os
from collections.abc import Iterator

import pytest

from dandelion.catalog import MemoryCatalog
from dandelion.data import Item, ItemSet
from dandelion.dispatcher import CompositionPlan
from dandelion.documents import CodeDocument, FunctionDocument, RegistrationDocument
from dandelion.memory import SharedDomain, Transfers
from dandelion.node.inputs import RESERVE_BYTES, brought
from dandelion.node.library import Library
from dandelion.node.remote import QUICK_BYTES
from dandelion.registration import Registrar

DEVICE = frozenset({"device"})
LARGE = os.urandom(QUICK_BYTES + 1)
DOCUMENT = RegistrationDocument(
    functions=tuple(
        FunctionDocument(name, ("a", "b"), ("c",), code=tuple(CodeDocument(f) for f in formats))
        for name, formats in {
            "OnDevice": ["device"],
            "OnCore": ["core"],
            "Either": ["core", "device"],
        }.items()
    ),
    compositions=(
        "composition Inner(p, q) => (r) { OnDevice(a = all p, b = all q) => (r = c); }",
        """composition Mixed(x, y, z) => (u, v) {
            OnCore(a = all x, b = all y) => (m = c);
            OnDevice(a = all m, b = all z) => (u = c);
            Inner(p = all y, q = all m) => (v = r);
        }""",
    ),
)


class Format:
    """A driver that lets all code pass."""

    def references(self, main: object) -> tuple[str, ...]:
        return ()

    def check(self, function: object) -> None:
        pass


@pytest.fixture(scope="module")
def library() -> Library:
    catalog = MemoryCatalog()
    drivers = {"device": Format(), "core": Format()}
    registrar = Registrar(catalog, {}, drivers)  # type: ignore[arg-type]  # all it asks of drivers
    catalog.register(registrar.batch(DOCUMENT))
    return Library(catalog, {}, SharedDomain(1 << 20), Transfers())


@pytest.fixture
def arena() -> Iterator[SharedDomain]:
    domain = SharedDomain(4 * RESERVE_BYTES)
    yield domain
    domain.close()


def item_set(data: bytes | memoryview) -> ItemSet:
    return ItemSet("s", (Item("i", 7, data),))


def places(
    plan: CompositionPlan, arena: SharedDomain, *data: bytes | memoryview | None
) -> list[bool]:
    """Tell which inputs lie in the arena, once they were brought."""
    inputs = tuple(None if d is None else item_set(d) for d in data)
    found = brought(plan, inputs, DEVICE, arena, Transfers())
    for before, after in zip(inputs, found, strict=True):
        assert (before is None) == (after is None)
        if before is not None and after is not None:
            assert bytes(after.items[0].data) == bytes(before.items[0].data)
            assert (after.name, after.items[0].name, after.items[0].key) == ("s", "i", 7)
    return [s is not None and arena.locate(s.items[0].data) is not None for s in found]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("OnDevice", [True, True]), ("Either", [True, True]), ("OnCore", [False, False])],
)
def test_large_inputs_are_brought_where_a_device_may_read_them(
    library: Library, arena: SharedDomain, name: str, expected: list[bool]
) -> None:
    assert places(library.plan(name), arena, LARGE, LARGE) == expected


def test_of_a_composition_those_are_brought_that_reach_a_device(
    library: Library, arena: SharedDomain
) -> None:
    """`y` does so by a nested composition, `x` does not."""
    plan = library.plan("Mixed")
    assert places(plan, arena, LARGE, LARGE, LARGE) == [False, True, True]


def test_small_inputs_are_left_where_they_are(library: Library, arena: SharedDomain) -> None:
    assert places(library.plan("OnDevice"), arena, LARGE[:-1], None) == [False, False]
    assert places(library.plan("OnDevice"), arena, LARGE[:-1], b"x") == [True, True]


def test_what_lies_in_the_arena_stays_there(library: Library, arena: SharedDomain) -> None:
    context = arena.acquire(len(LARGE))
    view = context.write(0, LARGE)
    before = arena.stats().used_bytes
    assert places(library.plan("OnDevice"), arena, view, b"small") == [True, False]
    assert arena.stats().used_bytes == before


def test_room_is_left_to_calls_that_run(library: Library, arena: SharedDomain) -> None:
    rest = arena.acquire(3 * RESERVE_BYTES - len(LARGE) // 2)
    assert places(library.plan("OnDevice"), arena, LARGE, None) == [False, False]
    del rest
    arena.recycle()
    assert places(library.plan("OnDevice"), arena, LARGE, None) == [True, False]


def test_of_a_small_arena_one_half_is_left(library: Library) -> None:
    arena = SharedDomain(4 * len(LARGE))
    kept = brought(library.plan("OnDevice"), (item_set(LARGE), None), DEVICE, arena, Transfers())
    assert kept[0] is not None
    assert arena.locate(kept[0].items[0].data) is not None
    assert places(library.plan("OnDevice"), arena, LARGE, LARGE) == [False, False]
    arena.close()
