"""The code and constants of functions that are in the node's memory.

The scheduler decides what is here (`Fetch`, `Discard`); this module carries it out. Static sets lie
in the arena, and so does the code of functions that engine processes run, since these read it
there. Other code lies on the heap.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable

from dandelion.catalog import Catalog
from dandelion.data import Bytes, Item, ItemSet, SetSpec
from dandelion.driver import InstanceSets
from dandelion.errors import CatalogCorrupt, Unknown
from dandelion.function import (
    CodeObject,
    Digest,
    Environment,
    Function,
    FunctionSpec,
    FusedFunction,
    digest_of,
)
from dandelion.memory import SharedDomain, Transfers
from dandelion.memory.context import PAGE_BYTES
from dandelion.scheduler import Flow
from dandelion.secrets import SecretStore
from dandelion.set_values import checked

_EMPTY = digest_of(b"")


class FunctionStore:
    """Loads functions. Loading is for any thread; the rest is for the node's loop.

    Args:
        catalog: gives the catalogue of a tenant.
        arena: where static sets and the code for engine processes go.
        transfers: brings them there.
        in_arena: formats of code objects that engine processes run.
        secrets: of the node.
        environment: gives the packages of code of a tenant.
    """

    def __init__(
        self,
        catalog: Callable[[str], Catalog],
        arena: SharedDomain,
        transfers: Transfers,
        in_arena: frozenset[str],
        secrets: SecretStore,
        environment: Callable[[CodeObject, str], Environment | None],
    ) -> None:
        self._catalog = catalog
        self._arena = arena
        self._transfers = transfers
        self._code_transfers = Transfers()  # code is not data that was copied for a call
        self._in_arena = in_arena
        self._secrets = secrets
        self._environment = environment
        self._key = os.urandom(32)

    def sizes(self, flow: Flow) -> tuple[int, int]:
        """Give what a function takes in memory, and its constants' part of that, in bytes."""
        spec, catalog = flow.spec, self._catalog(flow.tenant.name)
        constants = [i.digest for items in spec.static.values() for i in items]
        code = {code.main for code in spec.code if code.main}
        own = _own_blobs(spec)
        code.update(digest for object_ in spec.code for digest in object_.files.values())
        static_bytes = sum(_aligned_bytes(catalog, digest) for digest in constants)
        code_bytes = sum(
            Transfers.aligned(len(own[digest]))
            if digest in own
            else _aligned_bytes(catalog, digest)
            for digest in code
        )
        secret_bytes = PAGE_BYTES * len(spec.secrets)
        total_bytes = _pages(static_bytes) + _pages(code_bytes) + secret_bytes
        return total_bytes, static_bytes  # a context each

    def load(self, flow: Flow) -> dict[str, Function]:
        """Load a function in all its formats.

        Raises:
            CatalogCorrupt: a blob is damaged or missing.
            Unknown: the function was removed meanwhile.
            SecretMissing: the tenant does not have one of its secrets.
            ContextFull: it does not fit into the arena.
            InvalidFunction, BackendUnavailable, CapacityError: its packages are gone, and cannot be
                prepared again.
        """
        spec, catalog = flow.spec, self._catalog(flow.tenant.name)
        try:
            static = self._static(spec, catalog) | self._secret_sets(flow.tenant.name, spec)
            return {
                code.format: self._function(spec, code, catalog, static, flow)
                for code in _best(spec)
            }
        except Unknown as error:
            if spec.version in catalog.versions(FunctionSpec, spec.name):
                reason = f"{error}; register it again"
                raise CatalogCorrupt(f"function '{spec.name}'", reason) from None
            raise Unknown("function", spec.name, spec.version, hint="it was removed") from None

    def loaded(self, flow: Flow, code_format: str) -> Function:
        """Give a function that was loaded, or that has no code to be loaded."""
        function = flow.functions.get(code_format)
        if function is None:
            code = next(code for code in flow.spec.code if code.format == code_format)
            assert not flow.size_bytes, "what has code is fetched before it is called"
            function = flow.functions[code_format] = Function(flow.spec, code)
        return function

    def _static(self, spec: FunctionSpec, catalog: Catalog) -> dict[str, ItemSet]:
        names = [declared for declared in spec.inputs if declared.name in spec.static]
        sets = tuple(_static_set(spec, declared, catalog) for declared in names)
        placed = self._transfers.place(sets, self._arena)
        return {d.name: s for d, s in zip(names, placed, strict=True) if s is not None}

    def _secret_sets(self, tenant: str, spec: FunctionSpec) -> dict[str, ItemSet]:
        """Give the sets with secrets; in the arena only if an engine process reads them there."""
        found = []
        for declared in spec.inputs:
            name = spec.secrets.get(declared.name)
            if name is not None:
                item = Item(name, 0, self._secrets.value(tenant, spec.name, name))
                found.append(ItemSet(declared.name, (item,)))
        if self._in_arena.isdisjoint(code.format for code in spec.code):
            return {one.name: one for one in found}
        placed = self._transfers.place(tuple(found), self._arena)
        return {one.name: one for one in placed if one is not None}

    def _function(
        self,
        spec: FunctionSpec,
        code: CodeObject,
        catalog: Catalog,
        static: dict[str, ItemSet],
        flow: Flow,
    ) -> Function:
        own = _own_blobs(spec)
        blobs: dict[Digest, Bytes] = {
            digest: own[digest] if digest in own else catalog.blob(digest)
            for digest in (code.main, *code.files.values())
            if digest
        }
        if code.format in self._in_arena and blobs:
            blobs = self._placed(blobs)
        main = blobs[code.main] if code.main else b""
        files = {name: blobs[digest] for name, digest in code.files.items()}
        plain = spec.plain() if isinstance(spec, FusedFunction) else spec
        function = Function(plain, code, main, files, static, scope=flow.scope)
        if code.packages:
            function.environment = self._environment(code, flow.tenant.name)
        if spec.secrets:  # an engine that has it with old values must not take it for the same
            function.identity = self._identity_with_secrets(function)
        return function

    def _identity_with_secrets(self, function: Function) -> Digest:
        """Name a function and the values of its secrets; the values cannot be derived from it."""
        hashed = hashlib.blake2b(function.identity.encode(), key=self._key, digest_size=32)
        for name in function.spec.secrets:
            for item in function.static[name]:
                hashed.update(b"%d:" % item.size_bytes)
                hashed.update(item.data)
        return Digest(hashed.hexdigest())

    def _placed(self, blobs: dict[Digest, Bytes]) -> dict[Digest, Bytes]:
        items = tuple(Item(digest, 0, data) for digest, data in blobs.items())
        placed: InstanceSets = self._code_transfers.place((ItemSet("code", items),), self._arena)
        assert placed[0] is not None, "as many sets come back"
        return {Digest(item.name): item.data for item in placed[0].items}


def _pages(size_bytes: int) -> int:
    return -(-size_bytes // PAGE_BYTES) * PAGE_BYTES


def _aligned_bytes(catalog: Catalog, digest: Digest) -> int:
    """Give what a blob takes: more than nothing if it is missing, so that loading it says so."""
    return 0 if digest == _EMPTY else Transfers.aligned(max(1, catalog.blob_bytes(digest)))


def _own_blobs(spec: FunctionSpec) -> dict[Digest, bytes]:
    """Return the blobs that are in the record itself."""
    if isinstance(spec, FusedFunction):
        return {code.main: spec.blueprint for code in spec.code}
    return {}


def _best(spec: FunctionSpec) -> list[CodeObject]:
    """Choose the first code object of each format."""
    return list({code.format: code for code in reversed(spec.code)}.values())


def _static_set(spec: FunctionSpec, declared: SetSpec, catalog: Catalog) -> ItemSet | None:
    items = [
        Item(item.name, 0, catalog.blob(item.digest), item.dtype, item.shape)
        for item in spec.static[declared.name]
    ]
    return checked(declared.name, items, declared)
