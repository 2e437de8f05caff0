"""The catalogue of a node: registering, comparing, finding and removing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from dandelion.catalog import KINDS, CompositionRecord, Record, Removal, kind_of
from dandelion.documents import (
    ContentLike,
    FunctionDocument,
    PlannedChange,
    Registered,
    Registrable,
    RegistrationDocument,
    collect,
)
from dandelion.errors import Conflict
from dandelion.function import FunctionSpec
from dandelion.namespaces import DEFAULT_TENANT
from dandelion.node.components import Components, NodeState
from dandelion.node.info import Signature, output_specs
from dandelion.planned_changes import planned_changes
from dandelion.registration import blobs_of


class Registering:
    """The methods of a node that read and change the catalogue. Safe from any thread.

    Attributes:
        catalog: of the default tenant.
    """

    def __init__(self, parts: Components) -> None:
        self._parts = parts
        self.catalog = parts.spaces.of(DEFAULT_TENANT).catalog

    @property
    def generation(self) -> int:
        """A number that changes with every change of the catalogue."""
        return self.catalog.generation

    def register(
        self,
        *things: Registrable,
        functions: Iterable[FunctionDocument] = (),
        libraries: Mapping[str, ContentLike | bytes | Path] | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> list[Registered]:
        """Register functions, libraries and compositions, all or nothing.

        Code for devices that are up is compiled for them before.

        Args:
            things: registration documents, functions, compositions of the DSL, texts in the
                composition language.
            functions: further functions.
            libraries: code objects by name: text, bytes, or the path of a file.
            tenant: whose they are.

        Returns:
            Kind, name and version of each: libraries, functions, compositions.

        Raises:
            InvalidFunction, InvalidBlueprint, InvalidComposition: what is wrong, all of it.
            Conflict, InvalidInput, Unknown: see `Registrar` and `Catalog`.
            BackendUnavailable, EnvironmentsFull: packages of functions cannot be prepared.
        """
        document = collect(things, functions, libraries)
        with self._parts.packages.prepared(document) as completed:
            records = self._register(completed, tenant)
        return [Registered(kind_of(r), r.name, r.version) for r in records]

    def replace(
        self,
        document: RegistrationDocument,
        replaced: Sequence[Removal],
        tenant: str = DEFAULT_TENANT,
    ) -> list[Registered]:
        """Register a document in the place of other records, all or nothing.

        What it does not have unchanged of `replaced` is removed in the same step.

        Raises:
            DandelionError: see `register` and `remove_together`.
            BackendUnavailable: the node is part of a cluster.
        """
        names = {one.name for one in replaced if KINDS[one.kind] is FunctionSpec}
        before = {name: self.versions(FunctionSpec, name, tenant) for name in names}
        with self._parts.packages.prepared(document) as completed:
            records = self._register(completed, tenant, replaced)
        self._parts.packages.release_unused()
        for name, versions in before.items():
            left = self.versions(FunctionSpec, name, tenant)
            self._forget(name, [v for v in versions if v not in left], tenant)
        return [Registered(kind_of(r), r.name, r.version) for r in records]

    def _register(
        self,
        document: RegistrationDocument,
        tenant: str,
        replaced: Sequence[Removal] = (),
    ) -> list[Record]:
        """Register a document whose packages are prepared."""
        blobs = blobs_of(document)
        space = self._parts.spaces.of(tenant)
        with self._parts.registering:
            self._parts.check_open()
            draft = space.registrar.draft(document, blobs, replaced)
        try:
            draft.look_into_code()  # takes long, so no lock is held meanwhile
        finally:
            if self._parts.state is NodeState.CLOSED:  # a check may have started again since
                self._parts.backends.close_checkers()
        with self._parts.registering:
            self._parts.check_open()
            batch = space.registrar.batch(draft)
            if not replaced:
                return space.catalog.register(batch)
            return space.catalog.replace(batch, replaced)

    def compare(
        self, document: RegistrationDocument, /, tenant: str = DEFAULT_TENANT
    ) -> list[PlannedChange]:
        """Tell what registering a document would change. Code is not looked into.

        Raises:
            InvalidFunction, InvalidBlueprint, InvalidComposition, Conflict: as `register`.
        """
        document = self._parts.packages.resolved(document)
        space = self._parts.spaces.of(tenant)
        blobs = blobs_of(document)
        with self._parts.registering:
            self._parts.check_open()
            batch = space.registrar.draft(document, blobs).batch
            return planned_changes(batch, space.catalog)

    def records(self, tenant: str = DEFAULT_TENANT) -> list[Record]:
        """All registered records in their newest versions, and the platform's functions."""
        return [
            *self._parts.backends.platform.values(),
            *self._parts.spaces.of(tenant).catalog.records(),
        ]

    def versions(self, kind: type[Record], name: str, tenant: str = DEFAULT_TENANT) -> list[int]:
        """Versions of a name, ascending."""
        return self._parts.spaces.of(tenant).catalog.versions(kind, name)

    def describe(
        self, name: str, version: int | None = None, tenant: str = DEFAULT_TENANT
    ) -> FunctionSpec | CompositionRecord:
        """Find a function or composition.

        Raises:
            Unknown: with the nearest name.
        """
        return self._parts.spaces.of(tenant).library.find(name, version)

    def signature(
        self, name: str, version: int | None = None, tenant: str = DEFAULT_TENANT
    ) -> Signature:
        """Tell what a function or composition takes and gives.

        Raises:
            Unknown: with the nearest name.
        """
        library = self._parts.spaces.of(tenant).library
        found = library.find(name, version)
        plan = library.plan(name, version)
        static = found.fixed if isinstance(found, FunctionSpec) else ()
        return Signature(
            name, kind_of(found), found.version, plan.inputs, output_specs(plan), static
        )

    def prepare(self, text: str, tenant: str = DEFAULT_TENANT) -> str:
        """Compile a composition that is invoked without being registered.

        Args:
            text: one composition in the composition language.
            tenant: whose functions it applies.

        Returns:
            A name to invoke it by. After a change of the catalogue, or when other compositions
            were prepared since, it is unknown and has to be prepared again.

        Raises:
            InvalidComposition, InvalidInput, TooLarge: see `Registrar.composition`.
        """
        space = self._parts.spaces.of(tenant)
        return space.library.prepare(text, space.registrar.composition)

    def remove(
        self,
        kind: type[Record],
        name: str,
        version: int | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> list[Record]:
        """Remove one version of a name, or all; see `remove_together`."""
        return self.remove_together((Removal(kind_of(kind), name, version),), tenant)

    def remove_together(
        self, removals: Sequence[Removal], tenant: str = DEFAULT_TENANT
    ) -> list[Record]:
        """Remove records, all or nothing; return them.

        Raises:
            Unknown: there is no such thing.
            Conflict: a composition uses it, or would no longer fit what stays, or it belongs to the
                platform.
        """
        space = self._parts.spaces.of(tenant)
        for one in removals:
            if one.kind == kind_of(FunctionSpec) and one.name in space.library.platform:
                message = "it is a function of the platform, which the node's backends provide"
                raise Conflict("function", one.name, message)
        with self._parts.registering:  # or a composition may be registered that uses it meanwhile
            space.registrar.check_removals(removals)
            removed = space.catalog.remove_together(removals)
        self._parts.packages.release_unused()
        for record in removed:
            if isinstance(record, FunctionSpec):
                self._forget(record.name, [record.version], tenant)
        return removed

    def _forget(self, name: str, versions: Sequence[int], tenant: str) -> None:
        """Forget versions of a function that are no longer registered."""
        if versions and self._parts.running:
            of = self._parts.spaces.of(tenant).tenant
            self._parts.loop.call(partial(self._parts.forget, of, name, versions))
