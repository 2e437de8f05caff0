"""What a node keeps of the catalogue in memory: compiled plans and loaded functions.

Plans are valid for one generation of the catalogue. Functions are kept by identity, at most
`LOADED_LIMIT` of them; what is no longer registered is dropped at the next change.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping

import msgspec

from dandelion.catalog import Catalog, CompositionRecord
from dandelion.data import Item, ItemSet, SetSpec, checked
from dandelion.dataflow.language import parse
from dandelion.dispatcher.plan import CompositionPlan, Target, compile_composition, direct_plan
from dandelion.errors import InternalError, Unknown, nearest
from dandelion.function import Function, FunctionSpec, Limits
from dandelion.memory import MemoryDomain, Transfers

LOADED_LIMIT = 256


class Library:
    """Resolves names to plans and loads functions. Safe from any thread.

    Args:
        catalog: the registered records.
        platform: functions that the platform provides, by name.
        domain: where static sets are kept.
        transfers: brings them there.
        caps: the operator's largest limits. A function that was registered under larger ones runs
            under these, so that lowering a cap takes effect and no function out of service.
    """

    def __init__(
        self,
        catalog: Catalog,
        platform: Mapping[str, FunctionSpec],
        domain: MemoryDomain,
        transfers: Transfers,
        caps: Limits,
    ) -> None:
        self.catalog = catalog
        self.platform = platform
        self._domain = domain
        self._transfers = transfers
        self._caps = caps
        self._plans: dict[tuple[str, int | None], CompositionPlan] = {}
        self._generation = catalog.generation
        self._functions: OrderedDict[tuple[str, int, str], Function] = OrderedDict()
        self._lock = threading.RLock()

    def find(self, name: str, version: int | None = None) -> FunctionSpec | CompositionRecord:
        """Find a function, with the limits that hold here, or a composition.

        Raises:
            Unknown: with the nearest name.
        """
        if name in self.platform and version is None:
            return self.platform[name]
        found = self.catalog.find_callable(name, version)
        if isinstance(found, FunctionSpec):
            limits = found.limits.within(self._caps)
            same = limits is found.limits
            return found if same else msgspec.structs.replace(found, limits=limits)
        if found is not None:
            return found
        names = [*self.platform, *(r.name for r in self.catalog.records())]
        close = nearest(name, names) if version is None else None
        raise Unknown("function or composition", name, version, close)

    def plan(self, name: str, version: int | None = None) -> CompositionPlan:
        """Give the plan for invoking a function or composition.

        Raises:
            Unknown: nothing of that name and version is registered.
        """
        if self._generation != self.catalog.generation:
            self._refresh()
        plan = self._plans.get((name, version))
        if plan is None:
            generation = self.catalog.generation
            found = self.find(name, version)
            plan = direct_plan(found) if isinstance(found, FunctionSpec) else self._plan(found)
            with self._lock:
                if generation == self._generation == self.catalog.generation:
                    self._plans[name, version] = plan
        return plan

    def _plan(
        self, record: CompositionRecord, made: dict[str, CompositionPlan] | None = None
    ) -> CompositionPlan:
        """Compile a composition; its functions are the newest ones.

        Args:
            record: what to compile.
            made: compositions that were compiled on the way: each is compiled once, however often
                others apply it.
        """
        plans: dict[str, CompositionPlan] = {} if made is None else made
        composition = next(
            (c for c in parse(record.text, record.name).compositions if c.name == record.name), None
        )
        if composition is None:
            raise InternalError(f"the text of composition '{record.name}' does not define it")

        def target(name: str) -> Target:
            found = self.find(name)
            if isinstance(found, FunctionSpec):
                return found
            if name not in plans:
                plans[name] = self._plan(found, plans)
            return plans[name]

        return compile_composition(composition, target)

    def function(self, spec: FunctionSpec, code_format: str) -> Function:
        """Load a function with its first code object of a format.

        Raises:
            CatalogCorrupt, Unknown: a blob is damaged or gone.
            ContextFull: static sets do not fit into the domain.
        """
        slot = (spec.name, spec.version, code_format)
        try:  # without the lock, which only guards changes: this is on the path of every call
            self._functions.move_to_end(slot)
            return self._functions[slot]
        except KeyError:
            pass
        with self._lock:
            function = self._load(spec, code_format)
            self._functions[slot] = function
            if len(self._functions) > LOADED_LIMIT:
                self._functions.popitem(last=False)
            return function

    def _load(self, spec: FunctionSpec, code_format: str) -> Function:
        code = next(c for c in spec.code if c.format == code_format)
        blob = self.catalog.blob
        names = [s for s in spec.inputs if s.name in spec.static]
        static = self._transfers.place(tuple(self._static(spec, s) for s in names), self._domain)
        return Function(
            spec,
            code,
            blob(code.main) if code.main else b"",
            {name: blob(digest) for name, digest in code.files.items()},
            {s.name: item_set for s, item_set in zip(names, static, strict=True) if item_set},
        )

    def _static(self, spec: FunctionSpec, declared: SetSpec) -> ItemSet | None:
        blob = self.catalog.blob
        items = [
            Item(i.name, 0, blob(i.digest), i.dtype, i.shape) for i in spec.static[declared.name]
        ]
        return checked(declared.name, items, declared)

    def _refresh(self) -> None:
        with self._lock:
            self._generation = self.catalog.generation  # first: a plan of before is not kept then
            self._plans.clear()

    def drop(self, name: str, version: int | None) -> list[Function]:
        """Forget the loaded forms of a removed function; give them, so that engines can follow."""
        with self._lock:
            slots = [s for s in self._functions if s[0] == name and version in (None, s[1])]
            return [self._functions.pop(slot) for slot in slots]
