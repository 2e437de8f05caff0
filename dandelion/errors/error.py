"""The base class of all errors, the side at fault, and the record of an error."""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass
from typing import Any, Self

import msgspec


class Blame(enum.Enum):
    """The side at fault."""

    CALLER = "caller"  # the request: its names, sets, sizes
    FUNCTION = "function"  # the user's code
    CAPACITY = "capacity"  # no fault: something is full or away; the same may succeed later
    PLATFORM = "platform"  # this project or the machine


class ErrorRecord(msgspec.Struct, frozen=True):
    """An error on the wire: class name, message, the fields of the class."""

    type: str
    message: str
    fields: dict[str, Any] = {}
    cause: ErrorRecord | None = None


@dataclass(eq=False)
class DandelionError(Exception):
    """The base class of all errors that this project raises on purpose."""

    status = 500
    blame = Blame.PLATFORM
    invocation = ""  # id of the invocation that failed, where there is one

    def __post_init__(self) -> None:
        # Exception stores positional arguments only; repr and copy need keyword fields, too.
        self.args = tuple(getattr(self, f.name) for f in dataclasses.fields(self))

    def __reduce__(self) -> tuple[Any, ...]:
        # Exception leaves out the cause, with which an `ApplicationFailed` says what happened.
        cause = self.__cause__ if isinstance(self.__cause__, DandelionError) else None
        return _copied, (type(self), self.args, cause), self.__dict__

    def __str__(self) -> str:
        pairs = (f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self))
        return f"{type(self).__name__}({', '.join(pairs)})"

    def because(self, cause: DandelionError) -> Self:
        """Set the cause and return this error."""
        self.__cause__ = cause
        return self

    def record(self) -> ErrorRecord:
        """Return this error, its fields and its cause as a record for the wire."""
        fields = {f.name: _portable(getattr(self, f.name)) for f in self._fields()}
        cause = self.__cause__.record() if isinstance(self.__cause__, DandelionError) else None
        return ErrorRecord(type(self).__name__, _portable(str(self)), fields, cause)

    @classmethod
    def _fields(cls) -> tuple[dataclasses.Field[Any], ...]:
        return dataclasses.fields(cls)


def _copied(
    cls: type[DandelionError], fields: tuple[Any, ...], cause: DandelionError | None
) -> DandelionError:
    """Make the copy of an error for pickle and `copy`."""
    error = cls(*fields)
    return error if cause is None else error.because(cause)


def _portable(value: Any) -> Any:
    """Convert a field to what any codec accepts: integers of 64 bits, valid Unicode."""
    plain = msgspec.to_builtins(value)
    if isinstance(plain, int):
        return max(-(2**63), min(plain, 2**64 - 1))
    if isinstance(plain, str):
        return plain.encode(errors="replace").decode()
    if isinstance(plain, dict):
        return {name: _portable(part) for name, part in plain.items()}
    return [_portable(part) for part in plain] if isinstance(plain, list | tuple) else plain
