"""Applying what is called in the description of a composition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dandelion.dataflow.draft import (
    Draft,
    DraftApplication,
    DraftBinding,
    current_draft,
    refuse,
    user_place,
)
from dandelion.dataflow.dsl_sets import (
    ApplicationHandle,
    BoundSet,
    JoinChain,
    SetLike,
    bound_set,
)
from dandelion.dataflow.graph import (
    CompositionModule,
    Join,
    Sharding,
)
from dandelion.dataflow.rules_names import FunctionSignature, meant


class Applicable:
    """A function or composition that compositions apply by calling it."""

    def __init__(self, signature: FunctionSignature) -> None:
        self._signature = signature

    @property
    def name(self) -> str:
        """Its name in the catalogue."""
        return self._signature.name

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the input sets, in order."""
        return self._signature.inputs

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the output sets, in order."""
        return self._signature.outputs

    @property
    def sources(self) -> tuple[object, ...]:
        """What has to be registered with a composition that applies this, where it is known."""
        return ()

    def _positional(self) -> tuple[str, ...]:
        """Return the input sets that can be bound, in order."""
        return self.inputs

    def _may_be_absent(self, name: str) -> bool:
        """Tell whether an input set is bound as optional if it is bound as a whole."""
        return False

    def _has_to_be_bound(self, name: str) -> bool:
        """Tell whether each call fails if an input set is not bound."""
        return False

    def _needs(self) -> CompositionModule:
        """Return the declarations and compositions that a text needs to apply this."""
        raise NotImplementedError

    def __call__(self, /, *given: JoinChain | SetLike, **sets: SetLike) -> Any:
        """Apply it to sets of the composition that is being described.

        Args:
            given: at most one `join` chain, then sets in the order of the input sets.
            sets: sets by the name of the input set that they are bound to. Other input sets are
                empty, which a decorated function has to allow.

        Returns:
            The application, an `ApplicationHandle`.

        Raises:
            InvalidComposition: an unknown input set, one that is needed and not bound, a value that
                is not a set of this composition, or no composition is being described.
        """
        return self._apply(given, sets)

    def _apply(self, given: tuple[object, ...], named: Mapping[str, object]) -> ApplicationHandle:
        draft = current_draft(self.name)
        chain = JoinChain({})
        if given and isinstance(given[0], JoinChain):
            chain, given = given[0], given[1:]
        sets = self._with_positions(given, chain, named)
        for name in chain.sets:
            if name in sets:
                refuse("duplicate-parameter", f"input set '{name}' of '{self.name}' is bound twice")
        bound = chain.sets | {name: bound_set(value) for name, value in sets.items()}
        for name, value in bound.items():
            self._check(draft, name, value)
        for name in self._positional():
            if name not in bound and self._has_to_be_bound(name):
                message = f"'{self.name}' needs its input set '{name}', which is not bound"
                expected = f"{name}=SET, or a parameter with '| None' or a default"
                refuse("unbound-parameter", message, expected=expected)
        bindings = tuple(
            DraftBinding(
                name,
                b.source,
                b.sharding or Sharding.ALL,
                b.optional or (b.sharding is None and self._may_be_absent(name)),
            )
            for name, b in bound.items()
        )
        place = user_place()
        by = Join(tuple(chain.sets), chain.strategies, place) if chain.sets else None
        application = DraftApplication(self._signature, bindings, by, place)
        draft.applications.append(application)
        draft.use(self._needs(), self.sources)
        return ApplicationHandle(draft, application)

    def _with_positions(
        self, given: tuple[object, ...], chain: JoinChain, named: Mapping[str, object]
    ) -> dict[str, object]:
        """Name the sets that were given by position; those of a chain have names."""
        names = [name for name in self._positional() if name not in chain.sets]
        shown = f"{self.name}({', '.join(names)})"
        if any(isinstance(value, JoinChain) for value in given):
            message = f"'{self.name}' takes at most one join, before all sets"
            refuse("not-a-set", message, expected=shown)
        if len(given) > len(names):
            message = f"'{self.name}' takes {len(names)} sets by position"
            refuse("not-a-set", message, expected=shown, found=f"{len(given)}")
        sets = dict(zip(names, given, strict=False))
        for name in sets:
            if name in named:
                refuse("duplicate-parameter", f"input set '{name}' of '{self.name}' is bound twice")
        return {**sets, **named}

    def _check(self, draft: Draft, name: str, bound: BoundSet) -> None:
        if name not in self.inputs:
            known = ", ".join(f"'{s}'" for s in self.inputs) or "no input set at all"
            message = f"'{self.name}' has no input set '{name}'"
            near = meant(name, self.inputs)
            refuse("unknown-parameter", message, expected=known, nearest=near)
        if bound.source.draft is not draft:
            other = bound.source.draft.name
            message = f"{bound.source!r} belongs to composition '{other}', not to '{draft.name}'"
            refuse("foreign-set", message)
