"""Names to plans: what an invocation of a function or composition does.

Plans are compiled once for each generation of the catalogue.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import msgspec

from dandelion.catalog import Catalog, CatalogView, CompositionRecord, with_uses
from dandelion.dataflow.graph import Composition
from dandelion.dataflow.language import parse
from dandelion.dispatcher.plan import CompositionPlan, Target, compile_composition, direct_plan
from dandelion.errors import (
    BackendUnavailable,
    Conflict,
    InternalError,
    Unknown,
    nearest,
    versions_hint,
)
from dandelion.function import FunctionSpec, Limits, digest_of
from dandelion.fusion import Found, Whole, whole
from dandelion.node.fuser import Fuser
from dandelion.registration.compositions import NESTING_LIMIT, misfit, too_deep

PREPARED_LIMIT = 1024
"""Compositions of one tenant that are kept without being registered."""
_PREPARED = "="  # no registered name begins with it


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A composition that is not registered, its plan, and the generation that they are for."""

    record: CompositionRecord
    plan: CompositionPlan
    generation: int


class Library:
    """Resolves the names of one tenant to plans. Safe from any thread.

    Args:
        catalog: the tenant's records.
        platform: functions that the platform provides, by name.
        caps: the operator's largest limits. A function that was registered under larger ones runs
            under these, so that lowering a cap takes effect and no function out of service.
        fuse: run GPU functions that follow each other as one, see `dandelion.fusion`.
        offered: backends that are installed and not started, by the functions that they provide.
    """

    def __init__(
        self,
        catalog: Catalog,
        platform: Mapping[str, FunctionSpec],
        caps: Limits,
        fuse: bool = True,
        offered: Mapping[str, str] | None = None,
    ) -> None:
        self.catalog = catalog
        self.platform = platform
        self._offered = offered or {}
        self._caps = caps
        self._fuser = Fuser(catalog) if fuse else None
        self._plans: dict[tuple[str, int | None], CompositionPlan] = {}
        self._generation = catalog.generation
        self._prepared: OrderedDict[str, _Prepared] = OrderedDict()
        self._lock = threading.RLock()

    def prepare(self, text: str, check: Callable[[str], CompositionRecord]) -> str:
        """Compile a composition without registering it, and give a name for it.

        The name is for `plan` and `find`, until the catalogue changes or `PREPARED_LIMIT` others
        were prepared or used since; then it is unknown, and can be prepared again.

        Args:
            text: of the composition.
            check: gives the record of the text, or raises.
        """
        name = _PREPARED + digest_of(text.encode())
        generation = self.catalog.generation
        with self._lock:
            known = self._prepared.get(name)
            if known is not None and known.generation == generation:
                self._prepared.move_to_end(name)
                return name
        record = check(text)
        prepared = _Prepared(record, self._plan(record, self.catalog.view()), generation)
        with self._lock:
            self._prepared[name] = prepared
            self._prepared.move_to_end(name)
            if len(self._prepared) > PREPARED_LIMIT:
                self._prepared.popitem(last=False)
        return name

    def _find_prepared(self, name: str) -> _Prepared:
        with self._lock:
            found = self._prepared.get(name)
            if found is None or found.generation != self.catalog.generation:
                raise Unknown("prepared composition", name)
            self._prepared.move_to_end(name)
            return found

    def find(self, name: str, version: int | None = None) -> FunctionSpec | CompositionRecord:
        """Find a function, with the limits that hold here, or a composition.

        Raises:
            Unknown: with the nearest name.
            BackendUnavailable: it is a function of a backend that is not started.
        """
        if name.startswith(_PREPARED):
            return self._find_prepared(name).record
        return self._find(self.catalog.view(), name, version)

    def _find(
        self, view: CatalogView, name: str, version: int | None = None
    ) -> FunctionSpec | CompositionRecord:
        if name in self.platform and version is None:
            return self.platform[name]
        found = view.find_callable(name, version)
        if isinstance(found, FunctionSpec):
            return self._capped(found)
        if found is not None:
            return found
        if name in self._offered:
            backend = self._offered[name]
            remedy = f"add '{backend}' to the node's setting 'backends'"
            raise BackendUnavailable(backend, f"it provides '{name}' and is not started", remedy)
        names = [*self.platform, *(r.name for r in view.newest())]
        close = nearest(name, names) if version is None else None
        kinds = (FunctionSpec, CompositionRecord)
        hint = versions_hint([v for kind in kinds for v in view.versions(kind, name)])
        raise Unknown("function or composition", name, version, close, hint)

    def _capped(self, spec: FunctionSpec) -> FunctionSpec:
        limits = spec.limits.within(self._caps)
        return spec if limits is spec.limits else msgspec.structs.replace(spec, limits=limits)

    def plan(self, name: str, version: int | None = None) -> CompositionPlan:
        """Give the plan for invoking a function or composition.

        Raises:
            Unknown: nothing of that name and version is registered.
            Conflict: it is an older version of a composition, which does not fit its functions.
        """
        if name.startswith(_PREPARED):
            return self._find_prepared(name).plan
        if self._generation != self.catalog.generation:
            self._refresh()
        plan = self._plans.get((name, version))
        if plan is None:
            generation = self.catalog.generation  # first: that of the view is as new, or newer
            view = self.catalog.view()
            found = self._find(view, name, version)
            if isinstance(found, FunctionSpec):
                plan = direct_plan(found)
            else:
                plan = self._plan(found, view)
            with self._lock:
                if generation == self._generation == self.catalog.generation:
                    self._plans[name, version] = plan
        return plan

    def separate_plan(self, name: str, version: int | None = None) -> CompositionPlan:
        """Compile a plan in which each function is called by itself, and none are joined."""
        return Library(self.catalog, self.platform, self._caps, fuse=False).plan(name, version)

    def known(self, name: str, version: int | None = None) -> CompositionPlan | None:
        """Give a plan if that takes microseconds: it is compiled, or that of a function."""
        if name.startswith(_PREPARED):
            return self._find_prepared(name).plan
        if self._generation == self.catalog.generation:
            plan = self._plans.get((name, version))
            if plan is not None:
                return plan
        is_function = name in self.platform or isinstance(
            self.catalog.find_callable(name, version), FunctionSpec
        )
        return self.plan(name, version) if is_function else None

    def _plan(self, record: CompositionRecord, view: CatalogView) -> CompositionPlan:
        """Compile a composition; its functions are the newest ones of a view.

        What it applies is compiled first, each once.

        Raises:
            Conflict: a composition does not fit what it uses.
            InvalidInput: they are nested too deeply.
        """
        levels: dict[str, int] = {}
        targets: dict[str, Target] = {}
        wholes: dict[str, Whole | None] = {}
        find = partial(self._find, view)
        for one in with_uses(record, find):
            if isinstance(one, FunctionSpec):
                targets[one.name] = one
            else:
                levels[one.name] = 1 + max((levels.get(name, 0) for name in one.uses), default=0)
                if levels[one.name] > NESTING_LIMIT:
                    raise too_deep(one.name, levels[one.name])
                made = self._compiled(_composition(one, find), targets.__getitem__, wholes)
                targets[one.name] = made
        return made

    def _compiled(
        self,
        composition: Composition,
        target: Callable[[str], Target],
        wholes: dict[str, Whole | None],
    ) -> CompositionPlan:
        """Compile a composition, with GPU functions that follow each other as one."""

        def function(name: str) -> Found:
            found = target(name)
            return found if isinstance(found, FunctionSpec) else wholes.get(name)

        made = None if self._fuser is None else self._fuser.fuse(composition, function)
        if made is None:
            wholes[composition.name] = whole(composition, function, {})
            return compile_composition(composition, target)
        wholes[composition.name] = whole(made.composition, function, made.functions)
        parts = [
            None if part is None else compile_composition(part[0], target, part[1])
            for part in made.parts
        ]

        def find(name: str) -> Target:
            joined = made.functions.get(name)
            return target(name) if joined is None else self._capped(joined)

        return compile_composition(made.composition, find, made.ids, parts)

    def _refresh(self) -> None:
        with self._lock:
            self._generation = self.catalog.generation  # first: a plan of before is not kept then
            self._plans.clear()


def _composition(
    record: CompositionRecord, find: Callable[[str], FunctionSpec | CompositionRecord]
) -> Composition:
    """Read the text of a record, which fits what is registered.

    Raises:
        Conflict: it does not.
    """
    module = parse(record.text, record.name)
    composition = next((c for c in module.compositions if c.name == record.name), None)
    if composition is None:
        raise InternalError(f"the text of composition '{record.name}' does not define it")
    problem = misfit(module, find)
    if problem is not None:
        message = f"version {record.version} does not fit the newest versions of what it uses"
        raise Conflict("composition", record.name, f"{message}: {problem}")
    return composition
