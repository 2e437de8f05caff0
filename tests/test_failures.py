"""Which failures can be handled, and what is left of a caught one."""

import msgspec
import pytest

from dandelion import errors
from dandelion.data import NAME_LIMIT_BYTES, Item, Origin
from dandelion.errors import (
    ApplicationFailed,
    Cancelled,
    ContextFull,
    DandelionError,
    DeadlineExceeded,
    DeviceFault,
    DeviceFull,
    EngineDied,
    Faulted,
    InternalError,
    NoEngine,
    Overloaded,
    Raised,
    RequestFailed,
    SandboxLost,
    TimedOut,
)
from dandelion.failures import (
    KINDS,
    MESSAGE_LIMIT,
    PAUSE_LIMIT_S,
    CaughtFailure,
    Purity,
    caught_item,
    kinds_of,
    may_succeed,
    pause_s,
)

REFUSED = Overloaded(1, 1)
ENGINE = EngineDied("e", "gone")
WALL = TimedOut("f", "wall", 1.0)


def read(item: Item) -> CaughtFailure:
    return msgspec.json.decode(item.data, type=CaughtFailure, strict=True)


def test_names_of_kinds_are_those_of_their_classes() -> None:
    assert all(getattr(errors, name) is cls for name, cls in KINDS.items())


def test_what_is_about_more_than_an_instance_cannot_be_caught() -> None:
    lasting: tuple[DandelionError, ...] = (
        Cancelled("gone"),
        DeadlineExceeded(1.0),
        InternalError("bug"),
        NoEngine("f", (), ()),
    )
    for error in lasting:
        assert not isinstance(error, kinds_of(()))
        assert type(error).__name__ not in KINDS
    assert all(issubclass(cls, kinds_of(())) for cls in KINDS.values())


def test_a_family_stands_for_its_members() -> None:
    assert isinstance(Raised("f", "x"), kinds_of(("FunctionError",)))
    assert isinstance(SandboxLost("e", "x"), kinds_of(("Raised", "EngineDied")))
    assert not isinstance(Raised("f", "x"), kinds_of(("EngineDied", "TimedOut")))


@pytest.mark.parametrize(
    ("error", "pure", "io"),
    [
        (ENGINE, True, False),
        (SandboxLost("e", "killed"), True, False),
        (DeviceFault("d", "copy", "lost"), True, False),
        (ContextFull("arena", 2, 1), True, False),
        (REFUSED, True, True),
        (WALL, True, False),
        (TimedOut("f", "cpu", 1.0), False, False),
        (DeviceFull("d", 2, 1), False, False),
        (Raised("f", "ValueError"), False, False),
        (Faulted("f", "bad address"), False, False),
        (RequestFailed("f", "i", "lost"), False, False),
        (RequestFailed("f", "i", "lost", may_repeat=True), False, True),
    ],
)
def test_only_safe_attempts_are_made_by_default(
    error: DandelionError, pure: bool, io: bool
) -> None:
    assert may_succeed(error, Purity.PURE) is pure
    assert may_succeed(error, Purity.IO) is io
    assert not may_succeed(error, Purity.MIXED)


def test_pauses_double_up_to_a_limit() -> None:
    assert [pause_s(0.5, n) for n in (1, 2, 3, 4)] == [0.5, 1.0, 2.0, 4.0]
    assert pause_s(0.5, 99) == PAUSE_LIMIT_S
    assert pause_s(0.0, 99) == 0.0


def test_an_item_has_name_and_key_of_what_the_instance_was_made_for() -> None:
    error = Raised("F", "ValueError: no")
    item = caught_item(error, "F#2", 7, 3, Origin("page", 5))
    assert (item.name, item.key) == ("page", 5)
    assert read(item) == CaughtFailure("Raised", str(error), "F#2", 7, 3)
    assert caught_item(error, "F#2", 7, 3, Origin(None, 5)).name == "F#2.7"
    alone = caught_item(error, "F", 0, 1, None)
    assert (alone.name, alone.key) == ("F.0", 0)


def test_the_kind_is_that_of_the_first_error_and_the_message_has_the_path() -> None:
    error = ApplicationFailed("Inner", "F", 1).because(Raised("F", "ValueError: no"))
    found = read(caught_item(error, "Inner", 0, 1, None))
    assert found.kind == "Raised"
    assert found.message.startswith("Inner.F (instance 1): function 'F' raised")


def test_hostile_names_and_messages_stay_within_bounds() -> None:
    error = Raised("F", "\ud800" + "é" * 5000)
    item = caught_item(error, "é" * 200, 12345, 1, Origin(None, 1))
    assert len(item.name.encode()) <= NAME_LIMIT_BYTES
    assert item.name.endswith(".12345")
    message = read(item).message
    assert len(message) == MESSAGE_LIMIT
    assert message.endswith("...")
    for limit in (-5, 0, 1, 2, 3, 4):
        cut = read(caught_item(error, "F", 0, 1, None, limit)).message
        assert len(cut) == max(0, limit)
