"""From the items of a call to jobs: whose store, which path, what content.

A write has two sets: `contents`, and `to`, which says where they go. One item in `to` is for all
contents. Several items in `to` are matched with the contents by name and key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from dandelion.data import Bytes, Item, ItemSet
from dandelion.driver import Call
from dandelion.errors import InvalidInput
from dandelion.function import FunctionSpec
from dandelion.tenant_places import TenantPlaces

from .failures import ItemFailed, ItemRefused, typed_failure
from .request import CONTROL, StoreRequest, read_request
from .settings import StoreSettings
from .turns import Turns

C = TypeVar("C")

_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Operation:
    """One function of a backend.

    Attributes:
        name: in the option ``operation`` of code objects.
        spec: of the platform function.
        options: of its requests.
        changes: it writes or deletes, which a read-only store refuses.
        lists: its path is a prefix, which may be empty or end with a slash.
    """

    name: str
    spec: FunctionSpec
    options: tuple[str, ...] = ()
    changes: bool = False
    lists: bool = False

    @property
    def has_contents(self) -> bool:
        """Whether its inputs are `contents` and `to`, instead of `requests`."""
        return len(self.spec.inputs) == 2


@dataclass(slots=True)
class OpenStore(Generic[C]):
    """A store that is in use.

    Attributes:
        client: of the backend.
        places: for requests that are under way.
    """

    name: str
    settings: StoreSettings
    client: C
    places: TenantPlaces


@dataclass(frozen=True, slots=True)
class Job(Generic[C]):
    """What one item asks for.

    Attributes:
        item: its results take name and key of this one.
        request: as it was read; its path is without the store's prefix.
        path: with the prefix.
        prefix: of the store, for this tenant.
        content: that is written.
    """

    item: Item
    store: OpenStore[C]
    request: StoreRequest
    path: str
    prefix: str
    content: Bytes = b""

    def named(self, data: Bytes) -> Item:
        """Make the result that belongs to the item."""
        return Item(self.item.name, self.item.key, data)

    @property
    def line(self) -> bytes:
        """The first line of a request for the same path."""
        return f"{self.request.store} {self.request.path}".encode()


PathCheck = Callable[[str, bool], None]
"""Raises `ItemRefused` if a path, or a prefix of paths, is not valid in stores of a backend."""


@dataclass(slots=True)
class JobReader(Generic[C]):
    """Reads the jobs of one call."""

    call: Call
    operation: Operation
    stores: Mapping[str, OpenStore[C]]
    check_path: PathCheck
    turns: Turns
    _paths: set[tuple[str, str]] = field(default_factory=set)
    _found: dict[str, tuple[OpenStore[C], str]] = field(default_factory=dict)

    async def read(self) -> list[Job[C]]:
        """Read all jobs, before any of them begins.

        Raises:
            RequestRefused: the first item that is not valid, or not allowed.
            InvalidInput: contents come without the set that says where they go.
        """
        jobs: list[Job[C]] = []
        async for item, source in self.turns.through(self._sources()):
            try:
                jobs.append(self._job(item, source))
            except (ItemRefused, ItemFailed) as error:
                spec = self.call.function.spec
                raise typed_failure(error, spec, item.name) from None
        return jobs

    def _sources(self) -> Iterator[tuple[Item, Callable[[], StoreRequest]]]:
        options = self.operation.options
        first = self.call.inputs[0]
        if first is None:
            return
        if not self.operation.has_contents:
            for item in first:
                yield item, lambda item=item: read_request(item.data, options)  # type: ignore[misc]
            return
        targets = self.call.inputs[1]
        if targets is None:
            name = self.call.function.spec.inputs[1].name
            hint = "give one item for all contents, or one for each with its name and key"
            raise InvalidInput(f"sets.{name}", "it is empty, but there are contents", hint)
        find = _targets(targets, options)
        for item in first:
            yield item, lambda item=item: find(item)  # type: ignore[misc]

    def _job(self, item: Item, source: Callable[[], StoreRequest]) -> Job[C]:
        request, operation = source(), self.operation
        store, prefix = self._found.get(request.store) or self._store(request.store)
        if CONTROL.search(request.path):
            raise ItemRefused(f"path {request.path[:_SHOWN]!r} has a control character")
        if not request.path and not operation.lists:
            raise ItemRefused("the first line has no path; expected STORE PATH")
        self.check_path(request.path, operation.lists)
        path = prefix + request.path
        if operation.has_contents:
            if (request.store, path) in self._paths:
                message = f"another item of the call is written to '{request.path[:_SHOWN]}' too"
                raise ItemRefused(f"{message}; a path may have {{name}} and {{key}} in it")
            self._paths.add((request.store, path))
        content = item.data if operation.has_contents else b""
        return Job(item, store, request, path, prefix, content)

    def _store(self, name: str) -> tuple[OpenStore[C], str]:
        """Return a store and the prefix of the call's tenant in it; raises `ItemRefused`."""
        tenant = self.call.tenant
        store = self.stores.get(name)
        if store is None or not store.settings.visible_to(tenant):
            raise ItemRefused(_unknown(name, tenant, self.stores))
        if self.operation.changes and store.settings.read_only:
            raise ItemRefused(f"store '{name}' is read-only")
        self._found[name] = store, store.settings.prefix_of(tenant)
        return self._found[name]


def _targets(targets: ItemSet, options: tuple[str, ...]) -> Callable[[Item], StoreRequest]:
    """Return what finds the target of a content."""
    if len(targets) == 1:
        only: list[StoreRequest] = []

        def fill(item: Item) -> StoreRequest:
            if not only:
                only.append(read_request(targets[0].data, options))
            return only[0].filled(item)

        return fill
    by_name: dict[tuple[str, int], Item] = {}
    for target in targets:
        if by_name.setdefault((target.name, target.key), target) is not target:
            message = f"two items have the name '{target.name}' and the key {target.key}"
            raise InvalidInput(f"sets.{targets.name}", message)

    def find(item: Item) -> StoreRequest:
        target = by_name.get((item.name, item.key))
        if target is None:
            raise ItemRefused(f"no item of set '{targets.name}' has its name and key {item.key}")
        return read_request(target.data, options).filled(item)

    return find


def _unknown(name: str, tenant: str, stores: Mapping[str, OpenStore[C]]) -> str:
    known = sorted(n for n, store in stores.items() if store.settings.visible_to(tenant))
    missing = f"tenant '{tenant}' has no store '{name[:_SHOWN]}'"
    if known:
        return f"{missing}; it may use {', '.join(known)}"
    return f"{missing}; it may use none; the operator allows it with the store's option 'tenants'"
