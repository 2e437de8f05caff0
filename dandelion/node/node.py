"""`Node`: a Dandelion node, embedded in a program or behind the frontend.

    with Node() as node:
        node.register(document)
        html = node.invoke("render", page=b"...").html.text()

The node has one event loop, its own or the caller's. The scheduler runs there and nowhere else
(`runtime`); blocking callers wait in their threads until it has their result. No user code runs in
this process and no device is opened in it.

`components` makes the parts of a node. Its methods are in one file for each purpose: `running`,
`registering`, `invoking`, `submitting`, `viewing`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from dandelion.driver import Driver
from dandelion.memory import ArenaMap, Context
from dandelion.namespaces import DEFAULT_TENANT, check_tenant
from dandelion.node.attachment import ClusterPart
from dandelion.node.components import Components
from dandelion.node.invoking import Invoking
from dandelion.node.registering import Registering
from dandelion.node.running import Running
from dandelion.node.submitting import Submitting
from dandelion.node.viewing import Viewing
from dandelion.settings import (
    Settings,
    TenantSettings,
    checked_settings,
    checked_tenant_settings,
)
from dandelion.shared_regions import SharedRegion, SharedRegions


class Node(Running, Registering, Invoking, Submitting, Viewing):
    """Registers and invokes. Safe to use from any thread.

    Args:
        settings: see `Settings`; by default everything that works here, a catalogue in memory.
        drivers: further backends, made by the embedding program.
        cluster: makes the node one of several, see `dandelion.cluster.Cluster`.

    Raises:
        InvalidInput: a setting, or a backend or option that it names, does not exist or is bad.
        BackendUnavailable: spans are to be exported, and OpenTelemetry is not installed.
        CatalogCorrupt, CatalogUnavailable, Conflict, DiskFull: the catalogue
            cannot be opened.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        drivers: Sequence[Driver] = (),
        cluster: ClusterPart | None = None,
    ) -> None:
        self.settings = settings = checked_settings(settings or Settings())
        self._regions = SharedRegions(settings)
        parts = Components(settings, drivers, cluster)
        Running.__init__(self, parts)
        Registering.__init__(self, parts)
        Invoking.__init__(self, parts)
        Submitting.__init__(self, parts)
        Viewing.__init__(self, parts)

    # --- tenants --------------------------------------------------------------------------------

    def set_tenant(self, name: str, settings: TenantSettings) -> None:
        """Give a tenant other quotas and another weight; it need not exist before.

        Raises:
            InvalidInput: the name cannot be one, or the settings are not valid.
        """
        check_tenant(name)
        settings = checked_tenant_settings(f"settings.tenants.{name}", settings)
        parts = self._parts

        def change() -> None:
            parts.runtime.tenant_changed(parts.spaces.configured(name, settings))

        parts.loop.call(change)

    def reload(self) -> None:
        """Read the file of secrets again; functions that use changed ones are loaded again.

        Calls that run, or wait for an engine, still get the old values.

        Raises:
            InvalidInput: the file cannot be used; the old secrets stay.
        """
        changed = self._parts.secrets.reload()
        if changed and self._parts.running:
            self._parts.loop.call(partial(self._parts.runtime.reload_functions, changed))

    # --- shared memory of clients -----------------------------------------------------------------

    def register_region(self, region: SharedRegion, tenant: str = DEFAULT_TENANT) -> None:
        """Let requests of a tenant refer to shared memory; raises as `SharedRegions.register`."""
        self._regions.register(region, tenant)

    def unregister_region(self, name: str | None, tenant: str = DEFAULT_TENANT) -> None:
        """Remove a region of a tenant; None removes all. One that is not there is no error."""
        self._regions.unregister(name, tenant)

    def regions(self, tenant: str = DEFAULT_TENANT) -> list[SharedRegion]:
        """List the regions of a tenant."""
        return self._regions.of(tenant)

    # --- memory ----------------------------------------------------------------------------------

    def acquire(self, size_bytes: int) -> Context:
        """Give a zeroed context in the arena, for data that is about to be invoked with.

        Raises:
            ContextFull: the arena has no room.
        """
        return self._parts.arena.acquire(size_bytes)

    def acquire_to_fill(self, size_bytes: int) -> Context:
        """Give a context that may have any content; raises as `acquire`.

        Only what the caller has written to it may be passed on.
        """
        return self._parts.arena.acquire_to_fill(size_bytes)

    async def acquire_to_fill_async(self, size_bytes: int) -> Context:
        """Give a context as `acquire_to_fill`; a node in another process has to be waited for."""
        return self._parts.arena.acquire_to_fill(size_bytes)

    @property
    def arena(self) -> ArenaMap:
        """The arena, for processes that are trusted with it."""
        return self._parts.arena.map

    @property
    def arena_descriptors(self) -> tuple[int, ...]:
        """Descriptors that such processes inherit beside the arena's: none."""
        return ()
