"""What belongs to each tenant: its part of the catalogue, its plans, its quotas."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from dandelion.catalog import Catalog
from dandelion.driver import Checker
from dandelion.errors import Overloaded
from dandelion.function import CodeObject, Environment, FunctionSpec, Limits
from dandelion.namespaces import Namespace
from dandelion.node.library import Library
from dandelion.registration import Registrar, Target
from dandelion.scheduler import Quota, Tenant
from dandelion.secrets import SecretStore
from dandelion.settings import TenantSettings

TENANTS_LIMIT = 10_000
"""A node makes no further tenant that only other nodes have named."""


@dataclass(frozen=True, slots=True)
class Space:
    """What belongs to one tenant."""

    tenant: Tenant
    catalog: Catalog
    library: Library
    registrar: Registrar


class Spaces:
    """The tenants of a node; each is made when it is first named. Safe from any thread.

    Args:
        catalog: of all tenants.
        platform: functions that the platform provides, by name.
        checkers: what checks code objects, by their format.
        targets: gives the devices that run a format.
        caps: the operator's largest limits.
        fuse: run GPU functions that follow each other as one.
        secrets: of the node.
        offered: backends that are installed and not started, by the functions that they provide.
        environment: gives the packages of code of a tenant that is being registered.
    """

    def __init__(
        self,
        catalog: Catalog,
        platform: Mapping[str, FunctionSpec],
        checkers: Mapping[str, Checker],
        targets: Callable[[str], Sequence[Target]],
        caps: Limits,
        fuse: bool,
        secrets: SecretStore,
        offered: Mapping[str, str],
        environment: Callable[[CodeObject, str], Environment | None],
    ) -> None:
        self._catalog = catalog
        self._platform = platform
        self._checkers = checkers
        self._targets = targets
        self._caps = caps
        self._fuse = fuse
        self._secrets = secrets
        self._offered = offered
        self._environment = environment
        self._spaces: dict[str, Space] = {}

    def of(self, tenant: str) -> Space:
        """Give a tenant's space.

        Raises:
            InvalidInput: the name cannot be one.
        """
        space = self._spaces.get(tenant)
        return space if space is not None else self._spaces.setdefault(tenant, self._made(tenant))

    def configured(self, name: str, settings: TenantSettings) -> Tenant:
        """Give a tenant other quotas and another weight; on the node's loop.

        Raises:
            InvalidInput: the name cannot be one.
        """
        tenant = self.of(name).tenant
        tenant.quota, tenant.weight = quota_of(settings), settings.weight
        tenant.share_constants = settings.share_constants
        return tenant

    def named_elsewhere(self, tenant: str) -> Space:
        """Give the space of a tenant that another node has named.

        Raises:
            Overloaded: this node has no such tenant, and too many for one more.
            InvalidInput: the name cannot be one.
        """
        if tenant not in self._spaces and len(self._spaces) >= TENANTS_LIMIT:
            raise Overloaded(TENANTS_LIMIT, TENANTS_LIMIT, "tenants")
        return self.of(tenant)

    def tenants(self) -> list[Tenant]:
        """Return all tenants that were named."""
        return [space.tenant for space in list(self._spaces.values())]

    def _made(self, tenant: str) -> Space:
        catalog = Namespace(self._catalog, tenant)
        library = Library(catalog, self._platform, self._caps, self._fuse, self._offered)
        registrar = Registrar(
            catalog,
            self._platform,
            self._checkers,
            self._targets,
            self._caps,
            partial(self._secrets.names, tenant),
            self._offered,
            lambda code: self._environment(code, tenant),
        )
        return Space(Tenant(tenant), catalog, library, registrar)


def quota_of(settings: TenantSettings) -> Quota:
    """Give the quota that settings describe; what they leave out is not limited."""
    given = {name: getattr(settings, name) for name in Quota._fields}
    return Quota(**{name: value for name, value in given.items() if value is not None})
