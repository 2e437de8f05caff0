"""Error families. Each error has fields, the side at fault, and an HTTP status.

Every error is a dataclass that is also an exception. Its fields are the facts (bytes, names,
seconds); ``str(error)`` is the message. An error is sent to another process as an `ErrorRecord` and
restored as the same class with the same fields, so callers see no difference between engines in
their own process and elsewhere.

Families, one per layer:

=================== ====== ==========================================================
`InvalidInput`       400    the caller sent something that does not fit
`InvalidComposition` 400    a composition text or graph breaks the static rules
`InvalidBlueprint`   400    a blueprint breaks the static rules
`CatalogError`       404/9  names that are unknown, or in use
`FunctionError`      422    the user's function failed: it raised, exited, ran out of time
`CapacityError`      507/429 memory or a queue is full
`BackendUnavailable` 501    a backend cannot work on this machine; what is missing
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


def _all_classes(root: type[DandelionError]) -> dict[str, type[DandelionError]]:
    found = {root.__name__: root}
    for child in root.__subclasses__():
        found.update(_all_classes(child))
    return found


def from_record(record: ErrorRecord) -> DandelionError:
    """Restore an error from its record.

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
    """Convert a field to what any codec accepts: integers of 64 bits, valid Unicode."""
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
    """Find the known name that was most likely meant, or None."""
    if len(name) > 128:  # the comparison is quadratic, and such a name is not a typing error
        return None
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None


def _hint(name: str | None) -> str:
    return f"; did you mean '{name}'?" if name else ""


# --- the caller's input ---------------------------------------------------------------------


class Problem(msgspec.Struct, frozen=True):
    """One mistake in a text or document, and its location.

    `where` is ``file:line:column`` for texts and a path such as
    ``blueprint.control_flow[3].args[1]`` for documents; `line` and `column` count from one and are
    zero where there is no text. `hint` says what to do. `excerpt` is the line at fault with a caret
    line below it.
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
    hint: str = ""

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        if self.expected:
            text += f"; expected {self.expected}"
        if self.found:
            text += f", found {self.found}"
        text += f"; {self.hint}" if self.hint else ""
        text += _hint(self.nearest)
        return f"{text}\n{self.excerpt}" if self.excerpt else text


@dataclass(eq=False)
class InvalidInput(DandelionError):
    """A part of a request is not valid: a set, a shape, a field, a size.

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
    """A body, item or set is larger than its limit.

    `remedy` says how the limit is raised, if that is possible.
    """

    where: str
    size_bytes: int
    limit_bytes: int
    remedy: str = ""
    status = 413
    blame = Blame.CALLER

    def __str__(self) -> str:
        text = f"{self.where}: {self.size_bytes} bytes are more than the limit {self.limit_bytes}"
        return f"{text}; make it smaller" + (f", or {self.remedy}" if self.remedy else "")


@dataclass(eq=False)
class TooMany(DandelionError):
    """A count exceeds its limit."""

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
    """All mistakes of one document, reported at once."""

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
    """A function's declaration or code is not valid: names, limits, code that does not load."""


# --- the catalogue --------------------------------------------------------------------------


@dataclass(eq=False)
class CatalogError(DandelionError):
    """A name or a version is missing in the catalogue, or already in use."""

    status = 404
    blame = Blame.CALLER


@dataclass(eq=False)
class Unknown(CatalogError):
    """No record of that name (or version) is registered."""

    kind: str
    name: str
    version: int | None = None
    nearest: str | None = None

    def __str__(self) -> str:
        version = "" if self.version is None else f" version {self.version}"
        return f"no {self.kind} '{self.name}'{version}{_hint(self.nearest)}"


@dataclass(eq=False)
class Conflict(CatalogError):
    """The change conflicts with registered records: a name of another kind, a record in use."""

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
    """The file of records is missing or empty, although there are blobs."""

    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.path}: {self.message}; {self.remedy}"


@dataclass(eq=False)
class CatalogUnavailable(DandelionError):
    """The durable catalogue cannot be used now: locked, read-only, not permitted, a failing disk.

    Its files are not known to be damaged, and no acknowledged registration is lost.
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
    """The user's function failed, not the platform; the same call will fail again."""

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
    """A function exited with a non-zero code, or without its outputs."""

    code: int
    stderr: str = ""

    def __str__(self) -> str:
        printed = f"\n--- stderr ---\n{self.stderr.rstrip()}" if self.stderr else ""
        missing = "" if self.code else " before it returned its outputs"
        return f"function '{self.function}' exited with code {self.code}{missing}{printed}"


@dataclass(eq=False)
class Faulted(FunctionError):
    """A fault ended a function: a bad address, an illegal instruction, a device fault."""

    fault: str
    stderr: str = ""

    def __str__(self) -> str:
        printed = f"\n--- stderr ---\n{self.stderr.rstrip()}" if self.stderr else ""
        return f"function '{self.function}' faulted: {self.fault}{printed}"


@dataclass(eq=False)
class Unauthorized(FunctionError):
    """A function attempted a denied operation: a system call, a file, a socket."""

    what: str
    traceback: str = ""

    def __str__(self) -> str:
        tail = f"\n{self.traceback.rstrip()}" if self.traceback else ""
        text = f"function '{self.function}' may not {self.what}"
        return f"{text}; a sandbox has no files, network or programs: pass data as inputs{tail}"


@dataclass(eq=False)
class TimedOut(FunctionError):
    """A function used up its wall-clock (`what="wall"`) or CPU (`what="cpu"`) limit, in seconds."""

    what: str
    limit_s: float

    def __str__(self) -> str:
        text = f"function '{self.function}' exceeded its {self.what} limit of {self.limit_s:g} s"
        longer = "'cpu_s'" if self.what == "cpu" else "'wall_s', and the deadline of the call"
        return f"{text}; if it needs longer, raise its limit {longer}"


@dataclass(eq=False)
class OutOfMemory(FunctionError):
    """A function needed more memory than its limit, in bytes."""

    limit_bytes: int

    def __str__(self) -> str:
        text = f"function '{self.function}' exceeded its memory limit of {self.limit_bytes} bytes"
        return f"{text}; if it needs more, raise its limit 'memory_bytes'"


@dataclass(eq=False)
class BadOutput(FunctionError):
    """A function returned outputs that are not valid: unknown sets, bad names, keys, sizes."""

    message: str

    def __str__(self) -> str:
        return f"function '{self.function}' returned invalid output: {self.message}"


@dataclass(eq=False)
class RequestFailed(FunctionError):
    """The request of an item failed in an I/O function.

    Three classes: `RequestRefused`, `RequestInterrupted`, and this one for all other failures, such
    as an answer that says no. `transient` says whether the same request may succeed later. With
    `may_repeat`, that is so and all requests of the call are idempotent, so the call may be run
    again.
    """

    item: str
    message: str
    transient: bool = False
    may_repeat: bool = False

    def __str__(self) -> str:
        later = "; it may succeed later" if self.transient else ""
        return f"function '{self.function}', item '{self.item}': {self.message}{later}"


@dataclass(eq=False)
class RequestRefused(RequestFailed):
    """The request of an item was not sent: it is malformed, or not allowed."""


@dataclass(eq=False)
class RequestInterrupted(RequestFailed):
    """A service could not be reached, broke off, or was too busy; it may have done the request."""

    transient: bool = True
    status = 502
    blame = Blame.CAPACITY


@dataclass(eq=False)
class NotRecorded(FunctionError):
    """A replay made an I/O call that the recorded invocation did not make."""

    items: str
    hint: str = "record the invocation again with the code that makes this call"

    def __str__(self) -> str:
        given = f" with {self.items}" if self.items else ""
        return f"function '{self.function}'{given}: the recording has no answer; {self.hint}"


@dataclass(eq=False)
class SecretMissing(DandelionError):
    """A function needs a secret that its tenant does not have."""

    function: str
    name: str
    nearest: str | None = None
    status = 503
    blame = Blame.PLATFORM

    def __str__(self) -> str:
        needs = f"function '{self.function}' needs the secret '{self.name}'{_hint(self.nearest)}"
        return f"{needs}; ask the operator to add it to the file that the setting 'secrets' names"


# --- the invocation -------------------------------------------------------------------------


@dataclass(eq=False)
class ApplicationFailed(DandelionError):
    """One application of a composition failed; ``__cause__`` is its error.

    Status and blame are those of the cause, so that a client reacts to the cause.
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
    """The invocation's deadline passed before it completed."""

    deadline_s: float
    status = 504
    blame = Blame.CALLER

    def __str__(self) -> str:
        text = f"the invocation did not end within its deadline of {self.deadline_s:g} s"
        return f"{text}; give a later deadline, or find the slow call in its trace"


@dataclass(eq=False)
class Cancelled(DandelionError):
    """The invocation was cancelled: by its caller, by a closed connection, or by shutdown."""

    reason: str
    status = 499
    blame = Blame.CALLER

    def __str__(self) -> str:
        return f"the invocation was cancelled: {self.reason}"


# --- capacity -------------------------------------------------------------------------------


@dataclass(eq=False)
class CapacityError(DandelionError):
    """A limited resource is full. Nothing was lost; the same request may succeed later."""

    status = 507
    blame = Blame.CAPACITY


@dataclass(eq=False)
class ContextFull(CapacityError):
    """A memory domain or a context has too little free memory.

    `needed_bytes` is 0 if unknown. `remedy` names what gives it more memory.
    """

    domain: str
    needed_bytes: int
    free_bytes: int
    remedy: str = ""

    def __str__(self) -> str:
        sizes = f"{self.needed_bytes} bytes needed, {self.free_bytes} free; "
        remedy = self.remedy or "use smaller inputs, or try again when other calls have ended"
        return f"{self.domain}: {sizes if self.needed_bytes else ''}{remedy}"


@dataclass(eq=False)
class DiskFull(CapacityError):
    """The disk of the durable catalogue is full. `reason` is the system's: space, a quota.

    `needed_bytes` is 0 if unknown.
    """

    path: str
    reason: str
    needed_bytes: int
    free_bytes: int

    def __str__(self) -> str:
        needed = f"{self.needed_bytes} bytes needed, " if self.needed_bytes else ""
        return (
            f"{self.path}: {self.reason}; {needed}{self.free_bytes} bytes free; "
            "free some space and try again"
        )


@dataclass(eq=False)
class EnvironmentsFull(CapacityError):
    """The environments of registered functions leave no room for another one."""

    needed_bytes: int
    used_bytes: int
    limit_bytes: int

    def __str__(self) -> str:
        return (
            f"packages: {self.needed_bytes} bytes needed, {self.used_bytes} of {self.limit_bytes} "
            "are used by registered functions; remove functions, or raise packages_bytes"
        )


@dataclass(eq=False)
class DeviceFull(CapacityError):
    """A GPU function needs more device memory than the engine's buffer pool has.

    `needed_bytes` is 0 if unknown.
    """

    device: str
    needed_bytes: int
    pool_bytes: int

    def __str__(self) -> str:
        needed = f"{self.needed_bytes} bytes" if self.needed_bytes > 0 else "more memory"
        return (
            f"{self.device}: the call needs {needed}, its engine has {self.pool_bytes} bytes for "
            "buffers; use smaller inputs, or lower the backend's options 'workers' or 'weights'"
        )


@dataclass(eq=False)
class Overloaded(CapacityError):
    """A limit of invocations or waiting calls is reached.

    `what` is counted, and `owner` has the limit: the node, a tenant or a function.
    """

    waiting: int
    limit: int
    what: str = "invocations"
    owner: str = "this node"
    status = 429

    def __str__(self) -> str:
        count = f"{self.owner} has {self.waiting} {self.what}"
        return f"{count}, the limit is {self.limit}; try again later"


@dataclass(eq=False)
class QuotaExceeded(DandelionError):
    """A call needs more of a resource than its tenant may use at all; `what` is the resource."""

    owner: str
    what: str
    needed_bytes: int
    quota_bytes: int
    status = 413
    blame = Blame.CALLER

    def __str__(self) -> str:
        return (
            f"{self.owner}: {self.needed_bytes} bytes of {self.what} are needed, the quota is "
            f"{self.quota_bytes}; use smaller inputs, or ask the operator for a larger quota"
        )


# --- the platform ---------------------------------------------------------------------------


@dataclass(eq=False)
class BackendUnavailable(DandelionError):
    """A backend cannot work on this machine: what is missing, and how to get it."""

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
            f"this node runs {', '.join(self.available) or 'nothing'}; "
            "'dandelion ls backends' shows what other backends need"
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
class NodeLost(EngineDied):
    """Another node of the cluster is gone, or did not take a call. The function is not the cause.

    A pure call is run again elsewhere.
    """

    def __str__(self) -> str:
        return f"node {self.engine}: {self.message}"


@dataclass(eq=False)
class DeviceFault(DandelionError):
    """A device reported an error that is not known to be caused by a kernel."""

    device: str
    operation: str
    message: str
    status = 503

    def __str__(self) -> str:
        return f"{self.device}: {self.operation} failed: {self.message}"


@dataclass(eq=False)
class InternalError(DandelionError):
    """A bug of this project. `detail` is a traceback for the bug report."""

    message: str
    detail: str = ""

    def __str__(self) -> str:
        return f"internal error (a bug of Dandelion, please report it): {self.message}"


def root_of(error: DandelionError) -> DandelionError:
    """Return the cause of a failed application, else the error itself."""
    while isinstance(error, ApplicationFailed) and isinstance(error.__cause__, DandelionError):
        error = error.__cause__
    return error
