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

Each area has a file. All errors are imported from here, and carry the name of this module.
"""

from dandelion.errors.caller import (
    InvalidBlueprint,
    InvalidComposition,
    InvalidFunction,
    InvalidInput,
    Problem,
    Problems,
    TooLarge,
    TooMany,
)
from dandelion.errors.capacity import (
    CapacityError,
    ContextFull,
    DeviceFull,
    DiskFull,
    EnvironmentsFull,
    Overloaded,
    QuotaExceeded,
)
from dandelion.errors.catalog import (
    CatalogCorrupt,
    CatalogError,
    CatalogLost,
    CatalogUnavailable,
    Conflict,
    Unknown,
)
from dandelion.errors.error import (
    Blame,
    DandelionError,
    ErrorRecord,
)
from dandelion.errors.function import (
    BadOutput,
    Exited,
    Faulted,
    FunctionError,
    NotRecorded,
    OutOfMemory,
    Raised,
    RequestFailed,
    RequestInterrupted,
    RequestRefused,
    SecretMissing,
    TimedOut,
    Unauthorized,
)
from dandelion.errors.invocation import (
    ApplicationFailed,
    Cancelled,
    DeadlineExceeded,
    root_of,
)
from dandelion.errors.platform import (
    BackendUnavailable,
    DeviceFault,
    EngineDied,
    InternalError,
    NodeLost,
    NoEngine,
    PackagesLost,
    SandboxLost,
)
from dandelion.errors.restoring import (
    from_record,
)
from dandelion.errors.suggestions import (
    nearest,
    versions_hint,
)

__all__ = [
    "ApplicationFailed",
    "BackendUnavailable",
    "BadOutput",
    "Blame",
    "Cancelled",
    "CapacityError",
    "CatalogCorrupt",
    "CatalogError",
    "CatalogLost",
    "CatalogUnavailable",
    "Conflict",
    "ContextFull",
    "DandelionError",
    "DeadlineExceeded",
    "DeviceFault",
    "DeviceFull",
    "DiskFull",
    "EngineDied",
    "EnvironmentsFull",
    "ErrorRecord",
    "Exited",
    "Faulted",
    "FunctionError",
    "InternalError",
    "InvalidBlueprint",
    "InvalidComposition",
    "InvalidFunction",
    "InvalidInput",
    "NoEngine",
    "NodeLost",
    "NotRecorded",
    "OutOfMemory",
    "Overloaded",
    "PackagesLost",
    "Problem",
    "Problems",
    "QuotaExceeded",
    "Raised",
    "RequestFailed",
    "RequestInterrupted",
    "RequestRefused",
    "SandboxLost",
    "SecretMissing",
    "TimedOut",
    "TooLarge",
    "TooMany",
    "Unauthorized",
    "Unknown",
    "from_record",
    "nearest",
    "root_of",
    "versions_hint",
]

for _name in __all__:
    _exported = globals()[_name]
    if isinstance(_exported, type) and issubclass(_exported, DandelionError):
        _exported.__module__ = __name__  # users see it in tracebacks, and import it from here
