"""The differences of two recordings of the same invocation.

Calls are matched by function and content of inputs. A call that had the same inputs and another
answer is where a difference begins (`Change.CALL`); calls that only one of the two has follow from
such differences, or from other code. Calls of compute functions that the limit of the other
recording may have left out are not compared.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dandelion.data import Bytes
from dandelion.errors import ErrorRecord
from dandelion.recording.records import (
    RecordedCall,
    RecordedItem,
    RecordedSet,
    Recording,
)

_NAMED_LIMIT = 5


class Change(enum.Enum):
    """What differs."""

    CODE = "code"  # of a function
    RESULT = "result"  # of the invocation
    CALL = "call"  # the answer of a call with the same inputs
    MISSING = "missing"  # a call that only the first recording has
    ADDED = "added"  # a call that only the second one has


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference.

    Attributes:
        change: its kind.
        where: a function, a set of the result, or ``application[number]``.
        detail: what was and what is.
    """

    change: Change
    where: str
    detail: str


def differences(before: Recording, after: Recording) -> list[Difference]:
    """Compare two recordings: code, answers of calls, then the result."""
    return _Comparison(before, after).run()


class _Comparison:
    def __init__(self, before: Recording, after: Recording) -> None:
        self._before = before
        self._after = after

    def run(self) -> list[Difference]:
        return [*self._code(), *self._calls(), *self._result()]

    def _code(self) -> Iterator[Difference]:
        old = {f.name: f for f in self._before.document.functions}
        new = {f.name: f for f in self._after.document.functions}
        for name in sorted(old.keys() | new.keys()):
            if old.get(name) != new.get(name):
                verb = "removed" if name not in new else "added" if name not in old else "changed"
                yield Difference(Change.CODE, name, verb)

    def _calls(self) -> Iterator[Difference]:
        left: dict[bytes, list[RecordedCall]] = defaultdict(list)
        for call in self._before.calls:
            left[call.identity()].append(call)
        added = []
        for call in self._after.calls:
            same = left.get(call.identity())
            if not same:
                added.append(call)
                continue
            for detail in self._answers(same.pop(0), call):
                yield Difference(Change.CALL, call.label, detail)
        missing = [call for calls in left.values() for call in calls]
        for change, calls, omitted in (
            (Change.MISSING, missing, self._after.omitted_calls),
            (Change.ADDED, added, self._before.omitted_calls),
        ):
            compute = sum(call.kind != "io" for call in calls)
            for call in calls:
                if call.kind == "io" or compute > omitted:
                    yield Difference(change, call.label, call.function)

    def _result(self) -> Iterator[Difference]:
        for detail in self._answers(self._before, self._after):
            yield Difference(Change.RESULT, self._before.name, detail)

    def _answers(
        self, before: RecordedCall | Recording, after: RecordedCall | Recording
    ) -> Iterator[str]:
        """Compare outputs, or errors, of two calls or invocations."""
        if before.outputs is None or after.outputs is None:
            old, new = (_outcome(one.error) for one in (before, after))
            if old != new:
                yield f"{old}, now {new}"
            return
        if len(before.outputs) != len(after.outputs):
            yield f"{len(before.outputs)} sets, now {len(after.outputs)}"
            return
        for a, b in zip(before.outputs, after.outputs, strict=True):
            named = a or b
            if a != b and named is not None:
                yield f"set '{named.name}': {self._items(a, b)}"

    def _items(self, before: RecordedSet | None, after: RecordedSet | None) -> str:
        old = () if before is None else before.items
        new = () if after is None else after.items
        if len(old) != len(new):
            return f"{len(old)} items, now {len(new)}"
        found = [self._item(a, b) for a, b in zip(old, new, strict=True) if a != b]
        if not found:
            return "declared type"
        rest = len(found) - _NAMED_LIMIT
        return ", ".join(found[:_NAMED_LIMIT]) + (f" and {rest} more" if rest > 0 else "")

    def _item(self, before: RecordedItem, after: RecordedItem) -> str:
        named = f"item '{before.name}'"
        if (before.name, before.key) != (after.name, after.key):
            return f"{named} (key {before.key}), now '{after.name}' (key {after.key})"
        if (before.dtype, before.shape) != (after.dtype, after.shape):
            return f"{named}: {_type(before)}, now {_type(after)}"
        old = self._before.blobs.get(before.digest, b"")
        new = self._after.blobs.get(after.digest, b"")
        if len(old) != len(new):
            return f"{named}: {len(old)} bytes, now {len(new)}"
        return f"{named}: {_data(old, new, before.dtype)}"


def _outcome(error: ErrorRecord | None) -> str:
    return "a result" if error is None else error.message


def _data(old: Bytes, new: Bytes, dtype: str | None) -> str:
    """Say how much of the data differs, and for arrays by how much at most."""
    if dtype is None:
        a, b = (np.frombuffer(data, np.uint8) for data in (old, new))
        return f"{np.count_nonzero(a != b)} of {a.size} bytes"
    a, b = (np.frombuffer(data, np.dtype(dtype)) for data in (old, new))
    differ = f"{np.count_nonzero(a != b)} of {a.size} elements"
    if a.dtype.kind == "b":
        return differ
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        largest = np.nanmax(np.abs(a.astype(wide) - b.astype(wide)), initial=0.0)
    return f"{differ}, by at most {largest:.3g}"


def _type(item: RecordedItem) -> str:
    if item.dtype is None:
        return "bytes"
    return f"{item.dtype}{list(item.shape)}" if item.shape is not None else item.dtype
