"""Sets in the Python DSL: outputs of applications, bindings and joins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn, TypeAlias

from dandelion.data import next_name
from dandelion.dataflow.draft import (
    Draft,
    DraftApplication,
    Handle,
    SetHandle,
    called_as,
    python_line,
    refuse,
    user_place,
)
from dandelion.dataflow.excerpt import with_excerpts
from dandelion.dataflow.graph import (
    AttemptsClause,
    Feed,
    RepeatClause,
    Sharding,
    SourcePosition,
    Strategy,
)
from dandelion.dataflow.rules_names import FunctionSignature, meant, problem
from dandelion.errors import DandelionError, InvalidComposition


@dataclass(slots=True, frozen=True)
class BoundSet:
    """A set and its binding. `sharding` is None until one is chosen."""

    source: SetHandle
    sharding: Sharding | None = None
    optional: bool = False


class ApplicationHandle(Handle):
    """One application: its output sets are attributes, or items where Python needs the name.

    An application with a single output set can be used wherever a set can. An output set with the
    name of a method, such as ``repeat``, is ``application["repeat"]``.
    """

    __slots__ = ("_application", "_draft")
    _what = "an application"

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

    @called_as("bad-loop", '.repeat(10, feed={"input": "output"}, until="output")')
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

    @called_as("bad-attempts", ".attempts(3, backoff_s=0.5, on=[RequestFailed])")
    def attempts(
        self, times: int, *, backoff_s: float = 0.0, on: Kind | Iterable[Kind] = ()
    ) -> ApplicationHandle:
        """Run instances that fail again; see ``docs/language.md``.

        Args:
            times: how often an instance is run in total, from 1 to 100.
            backoff_s: pause after the first attempt, up to 60 s in whole milliseconds; it doubles
                with each further one, up to 60 s.
            on: the errors after which it is run again, as names or classes of `dandelion.errors`;
                by default those that are safe to try again and may not occur again.

        Returns:
            The application itself.

        Raises:
            InvalidComposition: it has attempts already, or an argument has another type. Numbers
                and names are checked when the description is complete.
        """
        application = self._application
        if application.attempts is not None:
            refuse("bad-attempts", f"'{application.signature.name}' has attempts already")
        numbers = [type(times) is int, type(backoff_s) in (int, float)]
        if not all(numbers):
            rule = ".attempts(3, backoff_s=0.5, on=[RequestFailed])"
            refuse("bad-attempts", "attempts take a number and a pause in seconds", expected=rule)
        kinds = _kind_names(on)
        application.attempts = AttemptsClause(times, kinds, float(backoff_s), user_place())
        return self

    @called_as("bad-attempts", ".catch(on=[RequestFailed])")
    def catch(self, on: Kind | Iterable[Kind] = ()) -> SetHandle:
        """Catch failures: each failed instance gives an item of the errors set, and no outputs.

        Args:
            on: the errors that are caught, as names or classes of `dandelion.errors`; by default
                all that can be.

        Returns:
            The errors set; it is empty if no instance fails.

        Raises:
            InvalidComposition: its failures are caught already, or an argument is not a kind.
        """
        application = self._application
        if application.errors is not None:
            name = application.signature.name
            refuse("bad-attempts", f"the failures of '{name}' are caught already")
        application.caught = _kind_names(on)
        application.errors = SetHandle(self._draft, "errors", application)
        return application.errors

    def __dir__(self) -> list[str]:
        return list(self._application.signature.outputs)

    def __repr__(self) -> str:
        return f"<application of {self._application.signature}>"


def _kind_names(kinds: Kind | Iterable[Kind]) -> tuple[str, ...]:
    """Return the names of kinds of errors, which may be given as classes."""
    if isinstance(kinds, str | type):
        return (_kind_name(kinds),)
    if not isinstance(kinds, Iterable):
        _refuse_kind(kinds)
    return tuple([_kind_name(kind) for kind in kinds])


def _kind_name(kind: object) -> str:
    if isinstance(kind, str):
        return kind
    if not (isinstance(kind, type) and issubclass(kind, DandelionError)):
        _refuse_kind(kind)
    return kind.__name__


def _refuse_kind(kind: object) -> NoReturn:
    message = "a kind of error is a name, or a class of dandelion.errors"
    refuse(
        "bad-attempts", message, expected='RequestFailed or "RequestFailed"', found=f"{kind!r:.60}"
    )


Kind: TypeAlias = str | type[DandelionError]
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

    @called_as("join-shape", ".cross(names=b)")
    def cross(self, /, **operand: SetLike) -> JoinChain:
        """Pair every key of the chain so far with every key of this set."""
        return self._add(Strategy.CROSS, operand)

    @called_as("join-shape", ".inner(names=b)")
    def inner(self, /, **operand: SetLike) -> JoinChain:
        """Keep the keys that both sides have."""
        return self._add(Strategy.INNER, operand)

    @called_as("join-shape", ".left(names=b)")
    def left(self, /, **operand: SetLike) -> JoinChain:
        """Keep the keys of the chain so far."""
        return self._add(Strategy.LEFT, operand)

    @called_as("join-shape", ".right(names=b)")
    def right(self, /, **operand: SetLike) -> JoinChain:
        """Keep the keys of this set."""
        return self._add(Strategy.RIGHT, operand)

    @called_as("join-shape", ".full(names=b)")
    def full(self, /, **operand: SetLike) -> JoinChain:
        """Keep the keys of either side."""
        return self._add(Strategy.FULL, operand)

    def _add(self, strategy: Strategy, operand: Mapping[str, SetLike]) -> JoinChain:
        added = _operand(operand)
        for name in added:
            if name in self.sets:
                refuse("join-duplicate", f"'{name}' is joined twice")
        return JoinChain({**self.sets, **added}, (*self.strategies, strategy))


@called_as("join-shape", "dandelion.join(pages=a).inner(names=b)")
def join(**operand: SetLike) -> JoinChain:
    """Begin a join: ``merge(join(pages=a).inner(names=b).left(dates=c), style=style)``."""
    return JoinChain(_operand(operand))


def _operand(operand: Mapping[str, SetLike]) -> dict[str, BoundSet]:
    if len(operand) != 1:
        refuse("join-shape", "a step of a join takes one set by name", found=f"{len(operand)}")
    bound = {name: bound_set(value) for name, value in operand.items()}
    return {n: b if b.sharding else replace(b, sharding=Sharding.KEYED) for n, b in bound.items()}
