"""Which failures of an instance a composition can handle, and what is left of a caught one.

A failure is **caught** by an application with an errors set, and **tried again** by one with
several attempts. Both may name kinds of errors: classes of `dandelion.errors`, or families, which
stand for all classes below them.

Failures of one instance can be handled: errors of its function, of its data, of memory, and of the
engine that ran it. Errors that are about more than the instance cannot: a cancelled invocation, its
deadline, a node that closes, a node without a suitable engine or with a damaged catalogue, and
bugs of the platform, which a composition must not hide.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence

import msgspec

from dandelion.data import NAME_LIMIT_BYTES, Item, Origin
from dandelion.errors import (
    BadOutput,
    CapacityError,
    ContextFull,
    DandelionError,
    DeviceFault,
    DeviceFull,
    EngineDied,
    Exited,
    Faulted,
    FunctionError,
    InvalidBlueprint,
    InvalidInput,
    NotRecorded,
    OutOfMemory,
    Overloaded,
    QuotaExceeded,
    Raised,
    RequestFailed,
    RequestInterrupted,
    RequestRefused,
    SandboxLost,
    TimedOut,
    TooLarge,
    TooMany,
    Unauthorized,
    root_of,
)

KINDS: dict[str, type[DandelionError]] = {
    cls.__name__: cls
    for cls in (
        FunctionError,
        Raised,
        Exited,
        Faulted,
        Unauthorized,
        TimedOut,
        OutOfMemory,
        BadOutput,
        RequestFailed,
        RequestRefused,
        RequestInterrupted,
        InvalidInput,
        InvalidBlueprint,
        TooLarge,
        TooMany,
        QuotaExceeded,
        CapacityError,
        ContextFull,
        DeviceFull,
        Overloaded,
        EngineDied,
        SandboxLost,
        DeviceFault,
    )
}
"""Kinds of errors that can be caught and tried again, by their stable public names."""

ATTEMPTS_LIMIT = 100
"""Largest number of attempts of an instance."""
PAUSE_LIMIT_S = 60.0
"""Longest pause between two attempts, in seconds."""
CAUGHT_LIMIT = 65_536
"""Most failures that one application catches; the next one fails the invocation."""
MESSAGE_LIMIT = 2000
"""Most characters of a message in an errors set."""
MESSAGES_LIMIT = 1 << 20
"""Most characters of all messages of one application; those beyond it are left empty."""

Kinds = tuple[type[DandelionError], ...]
_ALL: Kinds = (
    FunctionError,
    InvalidInput,
    InvalidBlueprint,
    TooLarge,
    TooMany,
    QuotaExceeded,
    CapacityError,
    EngineDied,
    DeviceFault,
)
NEVER: Kinds = (NotRecorded,)
"""Members of families that are not handled: a replay without an answer must not go on."""
_TRANSIENT: Kinds = (EngineDied, DeviceFault, Overloaded, ContextFull)


class Purity(enum.Enum):
    """What running something again does to the world."""

    PURE = "pure"  # nothing: it is a compute function, or a composition of such functions
    IO = "io"  # one I/O function, which may have done its work, or a part of it
    MIXED = "mixed"  # a composition with I/O functions, some of which have done their work


class CaughtFailure(msgspec.Struct, frozen=True):
    """The data of an item of an errors set, as JSON.

    Attributes:
        kind: class name of the first error, one of `KINDS`.
        message: its text; for a composition with the path to the instance that failed.
        application: name of the application that caught it, such as ``HTTP#2``.
        instance: number of the instance in its application, counted over all iterations.
        attempts: how often the instance was run.
    """

    kind: str
    message: str
    application: str
    instance: int
    attempts: int


def kinds_of(names: Sequence[str]) -> Kinds:
    """Return the classes of named kinds; of all of them if none is named."""
    return tuple([KINDS[name] for name in names]) or _ALL


def may_succeed(error: DandelionError, purity: Purity) -> bool:
    """Tell whether another attempt is safe and may have another result.

    Args:
        error: the first error of a failed instance.
        purity: of what failed.
    """
    if purity is Purity.MIXED:
        return False
    if purity is Purity.IO:
        if isinstance(error, RequestFailed):
            return error.may_repeat
        return isinstance(error, Overloaded)  # it was refused before it began
    return isinstance(error, _TRANSIENT) or (isinstance(error, TimedOut) and error.what == "wall")


def pause_s(backoff_s: float, attempt: int) -> float:
    """Return the pause after a failed attempt, in seconds; it doubles with each of them.

    Args:
        backoff_s: the pause after the first one.
        attempt: which one failed, from 1.
    """
    return min(math.ldexp(backoff_s, attempt - 1), PAUSE_LIMIT_S)


def caught_item(
    error: DandelionError,
    application: str,
    instance: int,
    attempts: int,
    origin: Origin | None,
    message_limit: int = MESSAGE_LIMIT,
) -> Item:
    """Make the item of an errors set.

    Args:
        error: of the instance; for a composition with the path to its cause.
        application: name of the application.
        instance: number of the instance.
        attempts: how often it was run.
        origin: the item that it was made for. It gives the name and the key; without a name, the
            item is named after the application and the instance.
        message_limit: longer messages are cut, in characters.
    """
    message = _shortened(str(error), max(0, min(message_limit, MESSAGE_LIMIT)))
    kind = type(root_of(error)).__name__
    data = CaughtFailure(kind, message, application, instance, attempts)
    name = origin.name if origin is not None else None
    if name is None:
        end = f".{instance}"
        room = NAME_LIMIT_BYTES - len(end)
        name = application.encode()[:room].decode(errors="ignore") + end
    return Item(name, origin.key if origin is not None else 0, msgspec.json.encode(data))


def _shortened(text: str, limit: int) -> str:
    plain = text if len(text) <= limit else text[: max(0, limit - 3)] + "..."[:limit]
    return plain.encode(errors="replace").decode()
