"""The user's function failed, not the platform."""

from __future__ import annotations

from dataclasses import dataclass

from dandelion.errors.error import Blame, DandelionError
from dandelion.errors.suggestions import suggestion

PRINTED = "\n--- printed ---\n"
"""Stands before what a function wrote to standard output and standard error."""


def _printed(text: str) -> str:
    return f"{PRINTED}{text.rstrip()}" if text else ""


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
        printed = _printed(self.stderr)
        return f"function '{self.function}' raised {self.exception}{tail}{printed}"


@dataclass(eq=False)
class Exited(FunctionError):
    """A function exited with a non-zero code, or without its outputs."""

    code: int
    stderr: str = ""

    def __str__(self) -> str:
        printed = _printed(self.stderr)
        missing = "" if self.code else " before it returned its outputs"
        return f"function '{self.function}' exited with code {self.code}{missing}{printed}"


@dataclass(eq=False)
class Faulted(FunctionError):
    """A fault ended a function: a bad address, an illegal instruction, a device fault."""

    fault: str
    stderr: str = ""

    def __str__(self) -> str:
        printed = _printed(self.stderr)
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
        needs = (
            f"function '{self.function}' needs the secret '{self.name}'{suggestion(self.nearest)}"
        )
        return f"{needs}; ask the operator to add it to the file that the setting 'secrets' names"
