"""Sets in the Python DSL: outputs of applications, bindings and joins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from dandelion.data import next_name
from dandelion.dataflow.draft import (
    Draft,
    DraftApplication,
    SetHandle,
    python_line,
    refuse,
    user_place,
)
from dandelion.dataflow.excerpt import with_excerpts
from dandelion.dataflow.graph import Feed, RepeatClause, Sharding, SourcePosition, Strategy
from dandelion.dataflow.rules_names import FunctionSignature, meant, problem
from dandelion.errors import InvalidComposition


@dataclass(slots=True, frozen=True)
class BoundSet:
    """A set and its binding. `sharding` is None until one is chosen."""

    source: SetHandle
    sharding: Sharding | None = None
    optional: bool = False


class ApplicationHandle:
    """One application: its output sets are attributes, or items where Python needs the name.

    An application with a single output set can be used wherever a set can. An output set called
    ``repeat``, like the method, is ``application["repeat"]``.
    """

    __slots__ = ("_application", "_draft")

    def __init__(self, draft: Draft, application: DraftApplication) -> None:
        self._draft = draft
        self._application = application

    def __getattr__(self, name: str) -> SetHandle:
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]

    def __getitem__(self, name: str) -> SetHandle:
        application = self._application
        signature = application.signature
        name = self._output(name)
        if name not in signature.outputs:
            raise _no_such_output(signature, name)
        if name not in application.outputs:
            application.outputs[name] = SetHandle(self._draft, name, application)
        return application.outputs[name]

    def repeat(
        self,
        times: int,
        *,
        feed: Mapping[str, str] | Sequence[str] | str,
        until: str | None = None,
    ) -> ApplicationHandle:
        """Repeat the application, fed with its own outputs; see ``docs/language.md``.

        Args:
            times: largest number of iterations, from 1 to 1,000,000.
            feed: for input sets, the output set of the last iteration that replaces them. An
                input set that is only named gets the output set of its name, or the only one.
            until: output set that ends the loop once it is empty.

        Returns:
            The application itself; its outputs are those of the last iteration.

        Raises:
            InvalidComposition: it is repeated already, or an argument has another type. Unknown
                sets are reported when the description is complete.
        """
        if self._application.repeat is not None:
            refuse("bad-loop", f"'{self._application.signature.name}' is repeated already")
        feed = self._fed(feed)
        until = until if until is None else self._output(until)
        names = [*feed, *feed.values()]
        names += [until] if until is not None else []
        is_number = isinstance(times, int) and not isinstance(times, bool)
        if not is_number or not all(isinstance(name, str) for name in names):
            rule = '.repeat(10, feed={"input": "output"}, until="output")'
            refuse("bad-loop", "a loop takes a number, and names of sets", expected=rule)
        place = user_place()
        feeds = tuple(Feed(parameter, output, place) for parameter, output in feed.items())
        self._application.repeat = RepeatClause(times, until, feeds, place)
        return self

    def _fed(self, feed: object) -> Mapping[str, str]:
        """Return the output set for each input set."""
        if isinstance(feed, Mapping):
            return {name: self._output(output) for name, output in feed.items()}
        outputs = self._application.signature.outputs
        names = [feed] if isinstance(feed, str) else feed
        if not isinstance(names, list | tuple) or not all(isinstance(n, str) for n in names):
            rule = '.repeat(10, feed="set"), or feed={"input": "output"}'
            refuse("bad-loop", "a loop is fed with sets by their names", expected=rule)
        only = outputs[0] if len(outputs) == 1 else ""
        found = {name: self._output(name) for name in names}
        return {
            name: output if output in outputs else only or output for name, output in found.items()
        }

    def _output(self, name: str) -> str:
        """Return the output set that is meant: of a composition, perhaps that after a step."""
        signature = self._application.signature
        is_stepped = name not in signature.outputs and name in signature.inputs
        return next_name(name) if is_stepped and next_name(name) in signature.outputs else name

    def __dir__(self) -> list[str]:
        return list(self._application.signature.outputs)

    def __repr__(self) -> str:
        return f"<application of {self._application.signature}>"


SetLike: TypeAlias = SetHandle | ApplicationHandle | BoundSet
Returned: TypeAlias = SetHandle | ApplicationHandle | Mapping[str, SetHandle | ApplicationHandle]


class UnknownOutput(InvalidComposition, AttributeError):
    """An application has no output set of this name."""


def _no_such_output(signature: FunctionSignature, name: str) -> UnknownOutput:
    message = f"'{signature.name}' has no output set '{name}'"
    known = ", ".join(f"'{s}'" for s in signature.outputs) or "no output set at all"
    near = meant(name, signature.outputs)
    found = problem("unknown-return", message, user_place(), expected=known, nearest=near)
    return UnknownOutput(tuple(with_excerpts([found], python_line)))


# --- how sets are bound -----------------------------------------------------------------------


def all_(value: SetLike) -> BoundSet:
    """Pass the whole set to every instance. This is the default."""
    return _sharded(value, Sharding.ALL)


def each(value: SetLike) -> BoundSet:
    """Run an instance for each item."""
    return _sharded(value, Sharding.EACH)


def keyed(value: SetLike) -> BoundSet:
    """Run an instance for each key."""
    return _sharded(value, Sharding.KEYED)


def any_each(value: SetLike) -> BoundSet:
    """Distribute the items over a number of instances that the platform chooses."""
    return _sharded(value, Sharding.ANY_EACH)


def any_keyed(value: SetLike) -> BoundSet:
    """Distribute the keys over a number of instances that the platform chooses."""
    return _sharded(value, Sharding.ANY_KEYED)


def optional(value: SetLike) -> BoundSet:
    """Run the application even if the set has no items."""
    return replace(bound_set(value), optional=True)


def _sharded(value: SetLike, sharding: Sharding) -> BoundSet:
    bound = bound_set(value)
    if bound.sharding is not None:
        message = f"the set is bound with '{bound.sharding.value}' already"
        refuse("two-shardings", message, found=f"'{sharding.value}'")
    return replace(bound, sharding=sharding)


def bound_set(value: object) -> BoundSet:
    """Take a set with or without a sharding."""
    return value if isinstance(value, BoundSet) else BoundSet(only_set(value))


def only_set(value: object, place: SourcePosition | None = None) -> SetHandle:
    """Take a set, or the only output of an application."""
    if isinstance(value, SetHandle):
        return value
    if not isinstance(value, ApplicationHandle):
        refuse(
            "not-a-set",
            "a set of the composition is needed",
            expected="an input or output set; fix a value with static={...} of the function",
            found=f"{type(value).__name__} {value!r:.60}",
        )
    signature = value._application.signature
    if len(signature.outputs) != 1:
        sets = ", ".join(f".{name}" for name in signature.outputs) or "it has no output sets"
        message = f"'{signature.name}' does not have exactly one output set; say which one"
        refuse("not-a-set", message, place, expected=sets)
    return value[signature.outputs[0]]


@dataclass(slots=True, frozen=True)
class JoinChain:
    """Keyed sets that are joined from left to right, as ``by a inner b left c`` in the language.

    Each method adds one input set, by name. A set without a sharding is bound with ``keyed``.
    """

    sets: dict[str, BoundSet]
    strategies: tuple[Strategy, ...] = ()

    def cross(self, /, **operand: SetLike) -> JoinChain:
        """Pair every key of the chain so far with every key of this set."""
        return self._add(Strategy.CROSS, operand)

    def inner(self, /, **operand: SetLike) -> JoinChain:
        """Keep the keys that both sides have."""
        return self._add(Strategy.INNER, operand)

    def left(self, /, **operand: SetLike) -> JoinChain:
        """Keep the keys of the chain so far."""
        return self._add(Strategy.LEFT, operand)

    def right(self, /, **operand: SetLike) -> JoinChain:
        """Keep the keys of this set."""
        return self._add(Strategy.RIGHT, operand)

    def full(self, /, **operand: SetLike) -> JoinChain:
        """Keep the keys of either side."""
        return self._add(Strategy.FULL, operand)

    def _add(self, strategy: Strategy, operand: Mapping[str, SetLike]) -> JoinChain:
        added = _operand(operand)
        for name in added:
            if name in self.sets:
                refuse("join-duplicate", f"'{name}' is joined twice")
        return JoinChain({**self.sets, **added}, (*self.strategies, strategy))


def join(**operand: SetLike) -> JoinChain:
    """Begin a join: ``merge(join(pages=a).inner(names=b).left(dates=c), style=style)``."""
    return JoinChain(_operand(operand))


def _operand(operand: Mapping[str, SetLike]) -> dict[str, BoundSet]:
    if len(operand) != 1:
        refuse("join-shape", "a step of a join takes one set by name", found=f"{len(operand)}")
    bound = {name: bound_set(value) for name, value in operand.items()}
    return {n: b if b.sharding else replace(b, sharding=Sharding.KEYED) for n, b in bound.items()}
