"""Error families: what went wrong, in fields; whose fault it is; which HTTP status says so.

Every error is a dataclass that is also an exception. Its fields are the facts (bytes, names,
seconds), ``str(error)`` is the sentence for a person. An error crosses a process or a socket as an
`ErrorRecord` and comes back as the same class with the same fields, so a caller cannot tell
whether an engine ran in its own process or elsewhere.

Families, one per floor:

=================== ====== ==========================================================
`InvalidInput`       400    the caller sent something that does not fit
`InvalidComposition` 400    a composition text or graph breaks the static rules
`InvalidBlueprint`   400    a blueprint breaks the static rules
`CatalogError`       404/9  names that are unknown, or taken
`FunctionError`      422    the user's function failed: it raised, exited, ran out of time
`CapacityError`      507/429 memory or places are full
`BackendUnavailable` 501    a backend cannot work on this machine, and what is missing
`EngineDied`         503    the engine, not the function, stopped
`InternalError`      500    our bug
=================== ====== ==========================================================
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import msgspec


class Blame(enum.Enum):
    """Whose fault an error is."""

    CALLER = "caller"  # the request: its names, sets, sizes
    FUNCTION = "function"  # the user's code
    CAPACITY = "capacity"  # nobody's: the node is full; the same request may succeed later
    PLATFORM = "platform"  # ours


class ErrorRecord(msgspec.Struct, frozen=True):
    """An error on the wire: class name, message for people, the fields of the class."""

    type: str
    message: str
    fields: dict[str, Any] = {}
    cause: ErrorRecord | None = None


@dataclass(eq=False)
class DandelionError(Exception):
    """The root of all errors that this project raises on purpose."""

    status = 500
    blame = Blame.PLATFORM
    invocation = ""  # id of the invocation that failed, where there is one

    def __post_init__(self) -> None:
        # Exception keeps positional arguments only; keyword fields must survive repr and copy too.
        self.args = tuple(getattr(self, f.name) for f in dataclasses.fields(self))

    def __str__(self) -> str:
        pairs = (f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self))
        return f"{type(self).__name__}({', '.join(pairs)})"

    def because(self, cause: DandelionError) -> Self:
        """Set the cause and give this error back."""
        self.__cause__ = cause
        return self

    def record(self) -> ErrorRecord:
        """Give this error, its fields and its cause as a record for the wire."""
        fields = {f.name: _portable(getattr(self, f.name)) for f in self._fields()}
        cause = self.__cause__.record() if isinstance(self.__cause__, DandelionError) else None
        return ErrorRecord(type(self).__name__, _portable(str(self)), fields, cause)

    @classmethod
    def _fields(cls) -> tuple[dataclasses.Field[Any], ...]:
        return dataclasses.fields(cls)


def _all_classes(root: type[DandelionError]) -> dict[str, type[DandelionError]]:
    found = {root.__name__: root}
    for child in root.__subclasses__():
        found.update(_all_classes(child))
    return found


def from_record(record: ErrorRecord) -> DandelionError:
    """Rebuild the error that `DandelionError.record` described.

    A class that this process does not know, or fields that do not fit it (a newer peer), become an
    `InternalError` that carries the original message.
    """
    cls = _all_classes(DandelionError).get(record.type)
    try:
        if cls is None:
            raise TypeError(record.type)
        hints = {f.name: f.type for f in dataclasses.fields(cls)}
        error = cls(**{k: _restore(hints.get(k), v) for k, v in record.fields.items()})
    except (TypeError, ValueError, msgspec.ValidationError):
        error = InternalError(f"{record.type}: {record.message}")
    if record.cause is not None:
        error.because(from_record(record.cause))
    return error


def _portable(value: Any) -> Any:
    """Give a field as what any codec takes: integers of 64 bits, text that is valid Unicode."""
    plain = msgspec.to_builtins(value)
    if isinstance(plain, int):
        return max(-(2**63), min(plain, 2**64 - 1))
    if isinstance(plain, str):
        return plain.encode(errors="replace").decode()
    if isinstance(plain, dict):
        return {name: _portable(part) for name, part in plain.items()}
    return [_portable(part) for part in plain] if isinstance(plain, list | tuple) else plain


def _restore(hint: object, value: Any) -> Any:
    if isinstance(hint, str) and "Problem" in hint:
        return msgspec.convert(value, tuple[Problem, ...])
    return tuple(value) if isinstance(value, list) else value


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Find the known name that a person most likely meant, or None."""
    if len(name) > 128:  # the comparison is quadratic, and nobody mistypes that
        return None
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None


def _hint(name: str | None) -> str:
    return f"; did you mean '{name}'?" if name else ""


# --- the caller's input ---------------------------------------------------------------------


class Problem(msgspec.Struct, frozen=True):
    """One thing that is wrong in a text or document, and where.

    `where` is ``file:line:column`` for texts and a path such as
    ``blueprint.control_flow[3].args[1]`` for documents; `line` and `column` count from one and are
    zero where there is no text. `excerpt` is the offending line with a caret line below it.
    """

    code: str
    message: str
    where: str = ""
    line: int = 0
    column: int = 0
    expected: str = ""
    found: str = ""
    nearest: str = ""
    excerpt: str = ""

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        if self.expected:
            text += f"; expected {self.expected}"
        if self.found:
            text += f", found {self.found}"
        text += _hint(self.nearest)
        return f"{text}\n{self.excerpt}" if self.excerpt else text


@dataclass(eq=False)
class InvalidInput(DandelionError):
    """A request does not fit what it asks for: a set, a shape, a field, a size.

    `where` names the part of the request, for example ``sets.image`` or ``deadline_s``.
    """

    where: str
    message: str
    hint: str = ""
    status = 400
    blame = Blame.CALLER

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" + (f"; {self.hint}" if self.hint else "")


@dataclass(eq=False)
class TooLarge(DandelionError):
    """A body, item or set is larger than the limit that is set for it."""

    where: str
    size_bytes: int
    limit_bytes: int
    status = 413
    blame = Blame.CALLER

    def __str__(self) -> str:
        return f"{self.where}: {self.size_bytes} bytes are more than the limit {self.limit_bytes}"


@dataclass(eq=False)
class TooMany(DandelionError):
    """There is more of something than the limit that is set for it."""

    where: str
    what: str
    count: int
    limit: int
    status = 413
    blame = Blame.CALLER

    def __str__(self) -> str:
        return (
            f"{self.where}: {self.count} {self.what} are more than the limit {self.limit};"
            " put more into each, or send several requests"
        )


@dataclass(eq=False)
class Problems(DandelionError):
    """Several things are wrong in one document; all are reported at once."""

    problems: tuple[Problem, ...]
    status = 400
    blame = Blame.CALLER

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


@dataclass(eq=False)
class InvalidComposition(Problems):
    """A composition text or graph breaks the static rules."""


@dataclass(eq=False)
class InvalidBlueprint(Problems):
    """A blueprint breaks the static rules, or does not fit its inputs or the device."""


@dataclass(eq=False)
class InvalidFunction(Problems):
    """A function's declaration or code cannot be accepted: names, limits, code that won't load."""


# --- the catalogue --------------------------------------------------------------------------


@dataclass(eq=False)
class CatalogError(DandelionError):
    """A name or a version is not, or already, in the catalogue."""

    status = 404
    blame = Blame.CALLER


@dataclass(eq=False)
class Unknown(CatalogError):
    """Nothing of that name (or version) is registered."""

    kind: str
    name: str
    version: int | None = None
    nearest: str | None = None

    def __str__(self) -> str:
        version = "" if self.version is None else f" version {self.version}"
        return f"no {self.kind} '{self.name}'{version}{_hint(self.nearest)}"


@dataclass(eq=False)
class Conflict(CatalogError):
    """The change would break what is registered: a name of another kind, something still in use."""

    kind: str
    name: str
    message: str
    status = 409

    def __str__(self) -> str:
        return f"{self.kind} '{self.name}': {self.message}"


@dataclass(eq=False)
class CatalogCorrupt(DandelionError):
    """The durable catalogue cannot be read: a file is damaged or from a newer version."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


@dataclass(eq=False)
class CatalogLost(CatalogCorrupt):
    """The file of records is missing or empty, but blobs that belong to its records are there."""

    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.path}: {self.message}; {self.remedy}"


@dataclass(eq=False)
class CatalogUnavailable(DandelionError):
    """The durable catalogue cannot be used now: locked, read-only, not permitted, a failing disk.

    Its files are not known to be damaged, and nothing that was acknowledged is lost.
    """

    path: str
    message: str
    remedy: str = ""
    status = 503

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" + (f"; {self.remedy}" if self.remedy else "")


# --- the user's function --------------------------------------------------------------------


@dataclass(eq=False)
class FunctionError(DandelionError):
    """The user's function failed. The platform is fine; the same call will fail again."""

    function: str
    status = 422
    blame = Blame.FUNCTION


@dataclass(eq=False)
class Raised(FunctionError):
    """A Python function raised. `traceback` shows the user's frames only."""

    exception: str
    traceback: str = ""
    stderr: str = ""

    def __str__(self) -> str:
        tail = f"\n{self.traceback.rstrip()}" if self.traceback else ""
        printed = f"\n--- stderr ---\n{self.stderr.rstrip()}" if self.stderr else ""
        return f"function '{self.function}' raised {self.exception}{tail}{printed}"


@dataclass(eq=False)
class Exited(FunctionError):
    """A function left with a non-zero exit code, or without giving its outputs."""

    code: int
    stderr: str = ""

    def __str__(self) -> str:
        printed = f"\n--- stderr ---\n{self.stderr.rstrip()}" if self.stderr else ""
        return f"function '{self.function}' exited with code {self.code}{printed}"


@dataclass(eq=False)
class Faulted(FunctionError):
    """A function was ended by a fault: a bad address, an illegal instruction, a device fault."""

    fault: str
    stderr: str = ""

    def __str__(self) -> str:
        printed = f"\n--- stderr ---\n{self.stderr.rstrip()}" if self.stderr else ""
        return f"function '{self.function}' faulted: {self.fault}{printed}"


@dataclass(eq=False)
class Unauthorized(FunctionError):
    """A function tried what its sandbox does not allow: a system call, a file, a socket."""

    what: str
    traceback: str = ""

    def __str__(self) -> str:
        tail = f"\n{self.traceback.rstrip()}" if self.traceback else ""
        return f"function '{self.function}' may not {self.what}{tail}"


@dataclass(eq=False)
class TimedOut(FunctionError):
    """A function used up its wall-clock (`what="wall"`) or CPU (`what="cpu"`) limit, in seconds."""

    what: str
    limit_s: float

    def __str__(self) -> str:
        return f"function '{self.function}' exceeded its {self.what} limit of {self.limit_s:g} s"


@dataclass(eq=False)
class OutOfMemory(FunctionError):
    """A function wanted more memory than its limit, in bytes."""

    limit_bytes: int

    def __str__(self) -> str:
        return f"function '{self.function}' exceeded its memory limit of {self.limit_bytes} bytes"


@dataclass(eq=False)
class BadOutput(FunctionError):
    """A function gave outputs that cannot be accepted: unknown sets, bad names, keys, sizes."""

    message: str

    def __str__(self) -> str:
        return f"function '{self.function}' gave a bad output: {self.message}"


@dataclass(eq=False)
class RequestFailed(FunctionError):
    """An I/O function could not do what an item asked for: refused, unreachable, malformed."""

    item: str
    message: str

    def __str__(self) -> str:
        return f"function '{self.function}', item '{self.item}': {self.message}"


# --- the invocation -------------------------------------------------------------------------


@dataclass(eq=False)
class ApplicationFailed(DandelionError):
    """One application of a composition failed; the cause (``__cause__``) says how.

    Status and blame are those of the cause, so a client acts on the root of the matter.
    """

    composition: str
    application: str
    instance: int
    key: int | None = None

    def because(self, cause: DandelionError) -> Self:
        self.status = cause.status
        self.blame = cause.blame
        return super().because(cause)

    @property
    def root(self) -> BaseException:
        """The first error of the chain of causes."""
        error: BaseException = self
        while error.__cause__ is not None:
            error = error.__cause__
        return error

    def __str__(self) -> str:
        key = "" if self.key is None else f", key {self.key}"
        where = f"{self.composition}.{self.application} (instance {self.instance}{key})"
        return f"{where}: {self.__cause__}" if self.__cause__ is not None else where


@dataclass(eq=False)
class DeadlineExceeded(DandelionError):
    """The invocation's deadline passed before its result was there."""

    deadline_s: float
    status = 504
    blame = Blame.CALLER

    def __str__(self) -> str:
        return f"the invocation did not end within its deadline of {self.deadline_s:g} s"


@dataclass(eq=False)
class Cancelled(DandelionError):
    """The invocation was cancelled: by its caller, by a client that left, or by shutdown."""

    reason: str
    status = 499
    blame = Blame.CALLER

    def __str__(self) -> str:
        return f"cancelled: {self.reason}"


# --- capacity -------------------------------------------------------------------------------


@dataclass(eq=False)
class CapacityError(DandelionError):
    """Something bounded is full. Nothing was lost; the same request may succeed later."""

    status = 507
    blame = Blame.CAPACITY


@dataclass(eq=False)
class ContextFull(CapacityError):
    """A memory domain or a context has no room for this."""

    domain: str
    needed_bytes: int
    free_bytes: int

    def __str__(self) -> str:
        return f"{self.domain}: {self.needed_bytes} bytes needed, {self.free_bytes} free"


@dataclass(eq=False)
class DiskFull(CapacityError):
    """The disk of the durable catalogue has no room. `reason` is the system's: space, a quota.

    `needed_bytes` is 0 where it is not known.
    """

    path: str
    reason: str
    needed_bytes: int
    free_bytes: int

    def __str__(self) -> str:
        needed = f"{self.needed_bytes} bytes needed, " if self.needed_bytes else ""
        return (
            f"{self.path}: {self.reason}; {needed}{self.free_bytes} bytes free; "
            "make room and try again"
        )


@dataclass(eq=False)
class DeviceFull(CapacityError):
    """A GPU function needs more device memory than the engine's buffer pool has."""

    device: str
    needed_bytes: int
    pool_bytes: int

    def __str__(self) -> str:
        return f"{self.device}: {self.needed_bytes} bytes needed, the pool has {self.pool_bytes}"


@dataclass(eq=False)
class Overloaded(CapacityError):
    """Too many invocations wait already."""

    waiting: int
    limit: int
    status = 429

    def __str__(self) -> str:
        return f"{self.waiting} invocations wait already, the limit is {self.limit}"


# --- the platform ---------------------------------------------------------------------------


@dataclass(eq=False)
class BackendUnavailable(DandelionError):
    """A backend cannot work here: what is missing, and how to get it."""

    backend: str
    missing: str
    remedy: str = ""
    status = 501

    def __str__(self) -> str:
        remedy = f" ({self.remedy})" if self.remedy else ""
        return f"backend '{self.backend}' is not available: {self.missing}{remedy}"


@dataclass(eq=False)
class NoEngine(DandelionError):
    """No running engine can run any of the function's code objects."""

    function: str
    formats: tuple[str, ...]
    available: tuple[str, ...]
    status = 501

    def __str__(self) -> str:
        return (
            f"function '{self.function}' has code for {', '.join(self.formats) or 'nothing'}; "
            f"this node runs {', '.join(self.available) or 'nothing'}"
        )


@dataclass(eq=False)
class EngineDied(DandelionError):
    """An engine's process ended during a call. It is replaced; pure calls may be run again."""

    engine: str
    message: str
    status = 503

    def __str__(self) -> str:
        return f"engine {self.engine} died: {self.message}"


@dataclass(eq=False)
class SandboxLost(EngineDied):
    """A sandbox was killed from outside, or could not be made. The function cannot cause this.

    A pure call is run again once. If that fails the same way, the platform is still at fault.
    """

    def __str__(self) -> str:
        return f"engine {self.engine} lost a sandbox: {self.message}"


@dataclass(eq=False)
class DeviceFault(DandelionError):
    """A device reported an error that is not known to be a kernel's doing."""

    device: str
    operation: str
    message: str
    status = 503

    def __str__(self) -> str:
        return f"{self.device}: {self.operation} failed: {self.message}"


@dataclass(eq=False)
class InternalError(DandelionError):
    """A bug of this project. `detail` holds a traceback for the report."""

    message: str
    detail: str = ""

    def __str__(self) -> str:
        return f"internal error (a bug of Dandelion): {self.message}"


def root_of(error: DandelionError) -> DandelionError:
    """Find the error that says what to do: the cause of a failed application, else itself."""
    while isinstance(error, ApplicationFailed) and isinstance(error.__cause__, DandelionError):
        error = error.__cause__
    return error
