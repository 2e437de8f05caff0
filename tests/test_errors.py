"""Every error is sent to another process as a record and restored as the same error."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import pickle
import pkgutil
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import dandelion
from dandelion import errors
from dandelion.errors import (
    ApplicationFailed,
    Blame,
    Cancelled,
    ContextFull,
    DandelionError,
    DeadlineExceeded,
    DeviceFull,
    ErrorRecord,
    Exited,
    InternalError,
    InvalidComposition,
    InvalidInput,
    NoEngine,
    OutOfMemory,
    Problem,
    Raised,
    RequestFailed,
    TimedOut,
    TooLarge,
    Unknown,
    from_record,
    nearest,
)


def classes(root: type[DandelionError] = DandelionError) -> list[type[DandelionError]]:
    found = [root]
    for child in root.__subclasses__():
        found += classes(child)
    return found


PROBLEM = Problem(
    "code", "message", "f:1:2", 1, 2, "expected", "found", "near", "excerpt\n^", "hint"
)
SAMPLES: dict[str, Any] = {
    "str": "text ü",
    "str | None": "text",
    "bool": True,
    "int": 7,
    "int | None": 7,
    "float": 2.5,
    "tuple[str, ...]": ("a", "b"),
    "tuple[Problem, ...]": (PROBLEM, Problem("other", "text")),
}


def sample(cls: type[DandelionError]) -> DandelionError:
    """An error with a distinct value in each field."""
    return cls(*(SAMPLES[str(f.type)] for f in dataclasses.fields(cls)))


def across(error: DandelionError) -> DandelionError:
    wire = msgspec.msgpack.encode(error.record())
    return from_record(msgspec.msgpack.decode(wire, type=ErrorRecord))


def values(error: DandelionError) -> dict[str, Any]:
    return {f.name: getattr(error, f.name) for f in dataclasses.fields(error)}


def pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))  # noqa: S301  # its own data


ALL = sorted({c for c in classes() if c.__module__ == errors.__name__}, key=lambda c: c.__name__)


@pytest.mark.parametrize("cls", ALL)
def test_every_error_survives_a_border_with_its_cause(cls: type[DandelionError]) -> None:
    error = sample(cls)
    cause = RequestFailed("f", "item", "no").because(ContextFull("heap", 5, 3))
    back = across(error.because(cause))
    assert type(back) is cls
    assert values(back) == values(error)
    assert str(back) == str(error)
    assert isinstance(back.__cause__, RequestFailed)
    assert values(back.__cause__) == values(cause)
    assert isinstance(back.__cause__.__cause__, ContextFull)
    assert (back.status, back.blame) == (error.status, error.blame)


@pytest.mark.parametrize("cls", ALL)
def test_every_error_has_a_sentence_and_can_be_copied(cls: type[DandelionError]) -> None:
    error = sample(cls)
    assert str(error)
    assert values(copy.copy(error)) == values(error)
    assert error.args == tuple(values(error).values())
    for name in values(error):
        assert name in repr(error)
    with pytest.raises(cls):
        raise error


@pytest.mark.parametrize("copied", [copy.deepcopy, pickled])
@pytest.mark.parametrize("cls", ALL)
def test_every_error_can_be_pickled_and_copied_with_its_cause(
    cls: type[DandelionError], copied: Callable[[Any], Any]
) -> None:
    error = sample(cls).because(RequestFailed("f", "item", "no"))
    error.invocation = "id"
    error.add_note("note")
    again = copied(error)
    assert type(again) is cls
    assert values(again) == values(error)
    assert (str(again), again.invocation, again.__notes__) == (str(error), "id", ["note"])
    assert (again.status, again.blame) == (error.status, error.blame)
    assert values(again.__cause__) == values(RequestFailed("f", "item", "no"))


@pytest.mark.parametrize("cls", ALL)
def test_every_error_has_status_and_blame_that_agree(cls: type[DandelionError]) -> None:
    assert 400 <= cls.status < 600
    assert isinstance(cls.blame, Blame)
    if cls.blame in (Blame.CALLER, Blame.FUNCTION):
        assert cls.status < 500 or cls.status == 504
    if cls.blame is Blame.PLATFORM:
        assert cls.status >= 500


def test_names_of_errors_are_unique() -> None:
    for module in pkgutil.iter_modules(dandelion.__path__, "dandelion."):
        if module.name in ("dandelion.errors", "dandelion.catalog", "dandelion.driver"):
            importlib.import_module(module.name)
    names = [c.__name__ for c in classes() if c.__module__.startswith("dandelion.")]
    assert len(names) == len(set(names))


def test_families_are_as_the_table_says() -> None:
    families = {
        "InvalidInput": 400,
        "InvalidComposition": 400,
        "InvalidBlueprint": 400,
        "CatalogError": 404,
        "Conflict": 409,
        "FunctionError": 422,
        "CapacityError": 507,
        "Overloaded": 429,
        "BackendUnavailable": 501,
        "EngineDied": 503,
        "InternalError": 500,
    }
    assert {name: getattr(errors, name).status for name in families} == families


def test_an_unknown_class_becomes_an_internal_error_with_its_message() -> None:
    back = from_record(ErrorRecord("FromTheFuture", "what happened", {"a": 1}))
    assert isinstance(back, InternalError)
    assert "FromTheFuture: what happened" in back.message


def test_fields_of_a_newer_version_are_left_out() -> None:
    known = ApplicationFailed("c", "f", 1, 2, 3).record()
    newer = msgspec.structs.replace(known, fields={**known.fields, "extra": 1})
    back = from_record(newer)
    assert isinstance(back, ApplicationFailed)
    assert back.record() == known


@pytest.mark.parametrize("fields", [{}, {"function": "f"}, {"message": "m", "extra": 1}])
def test_fields_that_do_not_fit_become_an_internal_error(fields: dict[str, Any]) -> None:
    back = from_record(ErrorRecord("Raised", "sentence", fields))
    assert isinstance(back, InternalError)
    assert "sentence" in back.message


def test_problems_that_do_not_fit_become_an_internal_error() -> None:
    record = ErrorRecord("InvalidComposition", "sentence", {"problems": [{"code": 3}]})
    assert isinstance(from_record(record), InternalError)


def test_a_foreign_cause_stays_behind() -> None:
    error = InternalError("bug")
    error.__cause__ = ValueError("foreign")
    assert across(error).__cause__ is None


def test_numbers_and_text_that_no_codec_takes_are_made_to_fit() -> None:
    full = across(DeviceFull("gpu", 2**100, -(2**100)))
    assert isinstance(full, DeviceFull)
    assert (full.needed_bytes, full.pool_bytes) == (2**64 - 1, -(2**63))
    raised = across(Raised("f", "ValueError: \ud800", "tb \udcff", "\0"))
    assert isinstance(raised, Raised)
    assert (raised.exception, raised.traceback, raised.stderr) == ("ValueError: ?", "tb ?", "\0")
    problem = across(InvalidComposition((Problem("c", "\ud800", line=2**70),)))
    assert isinstance(problem, InvalidComposition)
    assert (problem.problems[0].message, problem.problems[0].line) == ("?", 2**64 - 1)


def test_optional_fields_stay_optional() -> None:
    back = across(Unknown("function", "f"))
    assert isinstance(back, Unknown)
    assert (back.version, back.nearest) == (None, None)
    no_engine = across(NoEngine("f", (), ("python",)))
    assert isinstance(no_engine, NoEngine)
    assert (no_engine.formats, no_engine.available) == ((), ("python",))


@pytest.mark.parametrize(
    ("error", "parts"),
    [
        (TimedOut("f", "wall", 0.5), ["'f'", "0.5 s", "'wall_s'", "deadline"]),
        (TimedOut("f", "cpu", 2), ["'f'", "2 s", "'cpu_s'"]),
        (OutOfMemory("f", 64), ["'f'", "64 bytes", "'memory_bytes'"]),
        (Exited("f", 0), ["'f'", "code 0", "before it returned its outputs"]),
        (DeadlineExceeded(2), ["2 s", "later deadline"]),
        (Cancelled("by its caller"), ["the invocation", "by its caller"]),
        (TooLarge("body", 9, 8, "raise 'x'"), ["body", "9 bytes", "limit 8", "or raise 'x'"]),
        (TooLarge("body", 9, 8), ["make it smaller"]),
        (ContextFull("shared", 9, 8), ["shared", "9 bytes", "8 free", "smaller inputs"]),
        (ContextFull("shared", 0, 0), ["shared", "too little memory is free", "smaller inputs"]),
        (ContextFull("shared", 9, 8, "raise 'x'"), ["shared", "9 bytes", "8 free", "raise 'x'"]),
        (
            DeviceFull("cuda:0", 9, 8),
            ["cuda:0", "9 bytes", "has 8 bytes", "lower the backend's options 'workers'"],
        ),
        (DeviceFull("cuda:0", 0, 8), ["cuda:0", "more memory", "has 8 bytes"]),
        (Problem("c", "no x", "f:1:2", nearest="y", hint="add x"), ["f:1:2: no x; add x", "'y'"]),
    ],
    ids=str,
)
def test_a_message_says_what_where_and_what_to_do(
    error: DandelionError | Problem, parts: list[str]
) -> None:
    for part in parts:
        assert part in str(error)


def test_unknown_sizes_are_left_out() -> None:
    assert "0 bytes" not in str(ContextFull("no memory file", 0, 0))
    assert "needs 0" not in str(DeviceFull("cuda:0", 0, 8))


def test_the_root_of_a_failure_is_found() -> None:
    root = TimedOut("f", "wall", 1.0)
    inner = ApplicationFailed("inner", "a", 0).because(root)
    outer = ApplicationFailed("outer", "b", 3, 7).because(inner)
    assert outer.root is root
    assert inner.root is root
    assert ApplicationFailed("c", "a", 0).root.__class__ is ApplicationFailed
    for part in ("outer.b", "instance 3", "key 7", "inner.a", str(root)):
        assert part in str(outer)
    assert "key" not in str(ApplicationFailed("c", "a", 0))
    back = across(outer)
    assert isinstance(back, ApplicationFailed)
    assert isinstance(back.root, TimedOut)
    for failed in (inner, outer, back):
        assert (failed.status, failed.blame) == (root.status, root.blame)
    assert ApplicationFailed.status == 500  # of the class, and of one without a known cause


def test_errors_are_told_apart_by_identity() -> None:
    assert Cancelled("a") != Cancelled("a")
    assert len({Cancelled("a"), Cancelled("a")}) == 2


def test_keyword_arguments_are_fields_too() -> None:
    error = InvalidInput(where="sets.a", message="bad", hint="good")
    assert error.args == ("sets.a", "bad", "good")
    assert str(error) == "sets.a: bad; good"


def test_a_problem_says_where_and_what_instead() -> None:
    text = str(PROBLEM)
    assert text.startswith("f:1:2: message; expected expected, found found")
    assert "did you mean 'near'?" in text
    assert text.endswith("\nexcerpt\n^")
    assert str(Problem("c", "only")) == "only"


@pytest.mark.parametrize(
    ("name", "expected"), [("resise", "resize"), ("resize", "resize"), ("xyz", None), ("", None)]
)
def test_the_nearest_name(name: str, expected: str | None) -> None:
    assert nearest(name, iter(["rotate", "resize", "crop"])) == expected
