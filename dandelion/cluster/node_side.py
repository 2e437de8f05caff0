"""What the links of a cluster need of the node that they belong to. On the node's loop."""

from __future__ import annotations

import time
from collections.abc import Iterable

import msgspec

from dandelion.cluster.blob_source import BlobSource
from dandelion.cluster.call_messages import EngineGroup, Load
from dandelion.cluster.catalog import ClusterCatalog
from dandelion.cluster.control_end import ControlEnd
from dandelion.errors import DandelionError
from dandelion.executors import Surroundings
from dandelion.function import Digest, FunctionSpec
from dandelion.node.attachment import NodeParts
from dandelion.node.invocation import Invocation
from dandelion.scheduler import EngineState, Tenant
from dandelion.scheduler.engine import EnginePhase

MANY = 64
"""An engine that takes more calls at once counts as one of so many."""


class NodeSide:
    """The node, to links; see `serving.Host`.

    Attributes:
        parts, around, catalog, source: of the node; set before the first link.
    """

    parts: NodeParts
    around: Surroundings
    catalog: ClusterCatalog
    source: BlobSource

    def load(self, received: int) -> Load:
        """Tell what engines this node has, and how many of them are free."""
        scheduler = self.parts.runtime.scheduler
        groups: dict[str, tuple[set[str], int, int]] = {}
        for executor in self.parts.runtime.executors.values():
            engine = executor.engine
            if engine.remote or not _counts(engine):
                continue
            formats, engines, free = groups.get(executor.info.backend, (set(), 0, 0))
            places = min(engine.places or 1, MANY)
            left = max(0, min(places - len(engine.sent), engine.free or places, places))
            groups[executor.info.backend] = (
                formats | engine.formats,
                engines + places,
                free + left,
            )
        made = [
            EngineGroup(backend, tuple(sorted(formats)), engines, free)
            for backend, (formats, engines, free) in groups.items()
        ]
        return Load(tuple(made), received, scheduler.calls.lines.waiting)

    def tenants(self) -> Iterable[Tenant]:
        """Give the tenants of this node."""
        return self.parts.runtime.scheduler.tenants.values()

    def tenant(self, name: str) -> Tenant:
        """Give a tenant of this node; another node names it. Raises as `Spaces`."""
        return self.parts.spaces.named_elsewhere(name).tenant

    def known(self, tenant: str, spec: FunctionSpec) -> FunctionSpec | None:
        """Give the function of that name and version that calls here have had."""
        flows = self.parts.runtime.scheduler.calls.flows
        flow = flows.get((tenant, spec.name, spec.version))
        return None if flow is None else flow.spec

    def capped(self, spec: FunctionSpec) -> FunctionSpec:
        """Lower the limits of a function to those of this node."""
        limits = spec.limits.within(self.parts.caps)
        return spec if limits is spec.limits else msgspec.structs.replace(spec, limits=limits)

    def announce(self, blobs: dict[str, int], peer: ControlEnd) -> None:
        """Another node has blobs."""
        self.source.announced({Digest(digest): size for digest, size in blobs.items()}, peer)

    def submit(self, invocation: Invocation) -> None:
        """Begin an invocation; raises as the scheduler."""
        self.parts.runtime.submit(invocation)

    def cancel(self, invocation: Invocation, error: DandelionError) -> None:
        """End one."""
        self.parts.runtime.scheduler.cancelled(invocation, error, time.monotonic_ns())
        self.parts.runtime.work()


def _counts(engine: EngineState) -> bool:
    """Whether an engine runs calls, or would as soon as one comes."""
    if engine.phase is EnginePhase.DORMANT:
        return engine.on_demand
    return engine.phase is EnginePhase.READY and engine.active
