"""The model of a composition: records, with three views: text, DSL and JSON.

A composition is a set of **applications** of functions. An application binds input sets of its
function to sets of the composition, each with a sharding, and names the output sets. So the edges
of the graph are names of sets: each is an input of the composition or produced by exactly one
application. The order of applications has no meaning. An application may be repeated, with its own
outputs fed back; this is a property of the application, so the graph has no loops.

Records are equal if they have the same meaning; a `SourcePosition` does not count.
"""

from __future__ import annotations

import enum

import msgspec

TIMES_LIMIT = 1_000_000
"""Largest number of iterations of an application."""


class Sharding(enum.Enum):
    """How the items of a bound set are distributed over the instances of an application."""

    ALL = "all"  # every instance gets the whole set
    EACH = "each"  # an instance for each item
    KEYED = "keyed"  # an instance for each key
    ANY_EACH = "anyEach"  # items in groups; the platform chooses how many
    ANY_KEYED = "anyKeyed"  # keys in groups; the platform chooses how many


class Strategy(enum.Enum):
    """How two keyed sets are joined: which keys get an instance."""

    CROSS = "cross"  # all pairs of keys
    INNER = "inner"  # keys in both
    LEFT = "left"  # keys of the left set
    RIGHT = "right"  # keys of the right set
    FULL = "full"  # keys of either


class SourcePosition(msgspec.Struct, frozen=True, eq=False):
    """A position in a source: file, line and column, counted from one. All are equal."""

    line: int = 0
    column: int = 0
    file: str = ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SourcePosition)

    def __hash__(self) -> int:
        return 0

    def __str__(self) -> str:
        return f"{self.file or '<text>'}:{self.line}:{self.column}" if self.line else self.file


NOWHERE = SourcePosition()


class Binding(msgspec.Struct, frozen=True, omit_defaults=True):
    """Binds input set `parameter` of the applied function to set `source` of the composition.

    With `optional`, the application runs even if the set is absent.
    """

    parameter: str
    source: str
    sharding: Sharding = Sharding.ALL
    optional: bool = False
    place: SourcePosition = NOWHERE


class Return(msgspec.Struct, frozen=True, omit_defaults=True):
    """Names output set `output` of the applied function `target` in the composition."""

    target: str
    output: str
    place: SourcePosition = NOWHERE


class Join(msgspec.Struct, frozen=True, omit_defaults=True):
    """Joins keyed parameters from left to right; ``len(strategies) == len(order) - 1``."""

    order: tuple[str, ...]
    strategies: tuple[Strategy, ...]
    place: SourcePosition = NOWHERE


class Feed(msgspec.Struct, frozen=True, omit_defaults=True):
    """Passes output set `output` of an iteration to input set `parameter` of the next one."""

    parameter: str
    output: str
    place: SourcePosition = NOWHERE


class RepeatClause(msgspec.Struct, frozen=True, omit_defaults=True):
    """Repeats an application, with outputs of the last iteration as inputs of the next.

    Attributes:
        times: largest number of iterations, from 1 to `TIMES_LIMIT`.
        until: output set whose absence after an iteration ends the loop; None runs all iterations.
        feedback: which outputs replace which inputs; other inputs keep their binding.
        place: its position.
    """

    times: int
    until: str | None = None
    feedback: tuple[Feed, ...] = ()
    place: SourcePosition = NOWHERE


class AttemptsClause(msgspec.Struct, frozen=True, omit_defaults=True):
    """Runs an instance that failed again.

    Attributes:
        times: how often an instance is run in total, from 1 to `dandelion.failures.ATTEMPTS_LIMIT`.
        kinds: names of the errors after which it is run again; by default those that are safe to
            try again and may not occur again, see `dandelion.failures.may_succeed`.
        backoff_s: pause after the first attempt, in whole milliseconds; it doubles each time.
        place: its position.
    """

    times: int
    kinds: tuple[str, ...] = ()
    backoff_s: float = 0.0
    place: SourcePosition = NOWHERE


class CatchClause(msgspec.Struct, frozen=True, omit_defaults=True):
    """Makes an item of set `target` of each instance that failed, and lets the others continue.

    Attributes:
        target: the errors set, a set of the composition.
        kinds: names of the errors that are caught; by default all that can be.
        place: its position.
    """

    target: str
    kinds: tuple[str, ...] = ()
    place: SourcePosition = NOWHERE


class Application(msgspec.Struct, frozen=True, omit_defaults=True):
    """One use of a function in a composition."""

    function: str
    bindings: tuple[Binding, ...] = ()
    returns: tuple[Return, ...] = ()
    join: Join | None = None
    repeat: RepeatClause | None = None
    attempts: AttemptsClause | None = None
    catch: CatchClause | None = None
    place: SourcePosition = NOWHERE

    def targets(self) -> list[tuple[str, SourcePosition]]:
        """List the sets that it produces, with their positions: its results, its errors set."""
        found = [(returned.target, returned.place) for returned in self.returns]
        if self.catch is not None:
            found.append((self.catch.target, self.catch.place))
        return found


class Composition(msgspec.Struct, frozen=True, omit_defaults=True):
    """A dataflow graph with named input and output sets."""

    name: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    applications: tuple[Application, ...] = ()
    place: SourcePosition = NOWHERE


class Declaration(msgspec.Struct, frozen=True, omit_defaults=True):
    """Declares the sets of a function, in order; registration checks it."""

    name: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    place: SourcePosition = NOWHERE


class CompositionModule(msgspec.Struct, frozen=True, omit_defaults=True):
    """The content of a text: declarations and compositions, in order."""

    declarations: tuple[Declaration, ...] = ()
    compositions: tuple[Composition, ...] = ()


def application_ids(composition: Composition) -> tuple[str, ...]:
    """Name every application: its function's name, with ``#2``, ``#3`` ... for further uses."""
    seen: dict[str, int] = {}
    names = []
    for application in composition.applications:
        count = seen[application.function] = seen.get(application.function, 0) + 1
        names.append(application.function if count == 1 else f"{application.function}#{count}")
    return tuple(names)
