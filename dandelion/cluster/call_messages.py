"""What nodes say to each other about calls; see `messages`."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from dandelion.call_logs import PrintedLine
from dandelion.data import Origin
from dandelion.errors import ErrorRecord
from dandelion.function import Digest, FunctionSpec, FusedFunction

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
Shape: TypeAlias = tuple[int, ...] | None


class EngineGroup(msgspec.Struct, frozen=True, array_like=True):
    """The engines of one backend of a node.

    Attributes:
        backend: its name.
        formats: of code objects that they run.
        engines: how many calls they run at the same time.
        free: how many more they would begin now.
    """

    backend: Name
    formats: tuple[Name, ...]
    engines: Count
    free: Count


class Load(msgspec.Struct, frozen=True, array_like=True):
    """What a node has and does.

    Attributes:
        groups: its engines.
        received: calls that it got from the reader of this; what was sent later is not in `free`.
        waiting: calls that wait there for engines.
    """

    groups: tuple[EngineGroup, ...] = ()
    received: Count = 0
    waiting: Count = 0


class Define(msgspec.Struct, frozen=True, array_like=True, tag="define"):
    """A function.

    Attributes:
        function: number that calls name it by.
        tenant: whose it is.
        spec: its record.
        fused: the same, if it is made of others; then `spec` is None.
        blobs: digests and sizes in bytes of all blobs that it needs.
    """

    function: Count
    tenant: Name
    spec: FunctionSpec | None
    fused: FusedFunction | None
    blobs: dict[Digest, Count]


class Undefine(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="undefine"):
    """No later call names a function."""

    function: Count


class WireItem(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An item: name, key, where its bytes are, its type.

    Attributes:
        region: that has the bytes: of the sender, or if negative of the receiver; 0 is the frame.
        offset, size: in the region, in bytes.
    """

    name: str
    key: Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
    region: int
    offset: Count
    size: Count
    dtype: str | None = None
    shape: Shape = None


class WireSet(msgspec.Struct, frozen=True, array_like=True):
    """A set."""

    name: str
    items: Annotated[tuple[WireItem, ...], msgspec.Meta(min_length=1)]
    dtype: str | None = None
    shape: Shape = None


WireSets: TypeAlias = tuple[WireSet | None, ...]


class RegionSize(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A region that a message refers to, and its size in bytes."""

    region: Annotated[int, msgspec.Meta(ge=1)]
    size: Annotated[int, msgspec.Meta(ge=1, le=1 << 48)]


class Run(msgspec.Struct, frozen=True, array_like=True, tag="run"):
    """Run one instance.

    Attributes:
        call: number of the call, unique on the connection.
        function: see `Define`.
        inputs: its sets.
        regions: of the sender, that items are in.
        deadline_s: seconds from now.
        priority: among the calls of its tenant.
        invocation: id of the invocation, for idempotency keys.
        attempt: of the composition, from 1.
    """

    call: Count
    function: Count
    inputs: WireSets
    regions: tuple[RegionSize, ...]
    deadline_s: Annotated[float, msgspec.Meta(gt=0, lt=1e9)]
    priority: int = 0
    origin: Origin | None = None
    invocation: str = ""
    attempt: Count = 1


class StopRun(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="stop"):
    """The result of a call is not needed; it is answered all the same."""

    call: Count


class Done(msgspec.Struct, frozen=True, array_like=True, tag="done"):
    """A call gave its outputs.

    Attributes:
        run_ns: how long it was on its engine.
        engine: which that was.
        printed: lines that the function wrote.
    """

    call: Count
    outputs: WireSets
    regions: tuple[RegionSize, ...]
    load: Load
    run_ns: Count = 0
    engine: str = ""
    stages: dict[str, int] = {}
    printed: tuple[PrintedLine, ...] = ()


class Failed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """A call failed.

    Attributes:
        refused: the node did not begin it; another one may.
        gone: regions of the receiver that the call named and that it no longer holds.
    """

    call: Count
    error: ErrorRecord
    load: Load
    refused: bool = False
    run_ns: Count = 0
    engine: str = ""
    printed: tuple[PrintedLine, ...] = ()
    gone: tuple[int, ...] = ()
