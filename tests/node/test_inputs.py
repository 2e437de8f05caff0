"""Large inputs of engines in processes: which thread copies them to the arena, and when."""

import os
from collections.abc import Iterator

import pytest

from dandelion.catalog import MemoryCatalog
from dandelion.data import Item, ItemSet
from dandelion.dispatcher import CompositionPlan
from dandelion.documents import CodeDocument, FunctionDocument, RegistrationDocument
from dandelion.executors.staging import INLINE_COPY_BYTES
from dandelion.memory import SharedDomain, Transfers
from dandelion.node.inputs import STAGING_DIVISOR, InputStager
from dandelion.node.library import Library
from dandelion.registration import Registrar
from dandelion.settings import Settings

DEVICE = frozenset({"device"})
LARGE = os.urandom(INLINE_COPY_BYTES + 1)
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
        "composition Each(x) => (y) { OnDevice(a = each x) => (y = c); }",
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
    catalog.register(registrar.draft(DOCUMENT).batch)
    return Library(catalog, {}, Settings().caps)


@pytest.fixture
def arena() -> Iterator[SharedDomain]:
    domain = SharedDomain(3 * STAGING_DIVISOR * len(LARGE))
    yield domain
    domain.close()


def item_set(data: bytes | memoryview) -> ItemSet:
    return ItemSet("s", (Item("i", 7, data),))


def places(
    plan: CompositionPlan, arena: SharedDomain, *data: bytes | memoryview | None
) -> list[bool]:
    """Tell which inputs lie in the arena, once they were brought."""
    inputs = tuple(None if d is None else item_set(d) for d in data)
    found, _ = InputStager(DEVICE, arena, Transfers()).stage(plan, inputs)
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


def a_stager(arena: SharedDomain) -> InputStager:
    return InputStager(DEVICE, arena, Transfers())


def lies_in(arena: SharedDomain, item_set: ItemSet | None) -> bool:
    return item_set is not None and arena.locate(item_set.items[0].data) is not None


def test_of_a_set_that_is_sharded_each_item_is_brought_with_its_own_call(
    library: Library, arena: SharedDomain
) -> None:
    """Together they would be kept until the last of them is done."""
    assert places(library.plan("Each"), arena, LARGE) == [False]


def test_what_waits_takes_a_part_of_the_arena_and_gives_it_back(
    library: Library, arena: SharedDomain
) -> None:
    plan, callers = library.plan("OnDevice"), a_stager(arena)
    found = [callers.stage(plan, (item_set(LARGE), None)) for _ in range(5)]
    brought = [lies_in(arena, inputs[0]) for inputs, _ in found]
    assert brought == [size > 0 for _, size in found] == [True, True, True, False, False]
    assert arena.stats().used_bytes <= arena.map.size_bytes / STAGING_DIVISOR + 3 * 4096
    for _, size in found:
        callers.release(size)
    assert lies_in(arena, callers.stage(plan, (item_set(LARGE), None))[0][0])


def test_a_full_arena_takes_nothing_and_is_no_error(library: Library, arena: SharedDomain) -> None:
    rest = arena.acquire(arena.map.size_bytes - 3 * len(LARGE))
    callers = a_stager(arena)
    assert callers.stage(library.plan("OnDevice"), (item_set(LARGE), None))[1] == 0
    del rest
    arena.recycle()
    assert callers.stage(library.plan("OnDevice"), (item_set(LARGE), None))[1] == len(LARGE)


def test_what_cannot_be_copied_is_left_to_the_check_that_explains(
    library: Library, arena: SharedDomain
) -> None:
    strided = memoryview(LARGE + LARGE)[::2]
    given = (item_set(strided), None)
    callers = a_stager(arena)
    assert callers.stage(library.plan("OnDevice"), given) == (given, 0)
    assert lies_in(arena, callers.stage(library.plan("OnDevice"), (item_set(LARGE), None))[0][0])
