"""The model of a composition: records, which text, DSL and JSON are three views of.

A composition is a set of **applications** of functions. An application binds input sets of its
function to sets of the composition, each with a sharding, and gives names to the output sets. The
edges of the graph are therefore names of sets: each is an input of the composition or produced by
exactly one application. The order of applications has no meaning. An application may be repeated,
fed with its own outputs; that is a matter of its own, so the graph has no loops.

Records are equal if they mean the same; a `Place` (where something stood in a source) is no part of
that.
"""

from __future__ import annotations

import enum
from typing import TypeAlias

import msgspec
import networkx as nx

CompositionGraph: TypeAlias = "nx.DiGraph[str]"
TIMES_LIMIT = 1_000_000
"""How often an application may be repeated."""


class Sharding(enum.Enum):
    """How the items of a bound set are spread over the instances of an application."""

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


class Place(msgspec.Struct, frozen=True, eq=False):
    """Where something stood: file and position, counted from one. All places are equal."""

    line: int = 0
    column: int = 0
    file: str = ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Place)

    def __hash__(self) -> int:
        return 0

    def __str__(self) -> str:
        return f"{self.file or '<text>'}:{self.line}:{self.column}" if self.line else self.file


NOWHERE = Place()


class Binding(msgspec.Struct, frozen=True, omit_defaults=True):
    """Binds input set `parameter` of the applied function to set `source` of the composition.

    With `optional`, an absent set does not keep the application from running.
    """

    parameter: str
    source: str
    sharding: Sharding = Sharding.ALL
    optional: bool = False
    place: Place = NOWHERE


class Return(msgspec.Struct, frozen=True, omit_defaults=True):
    """Names output set `output` of the applied function `target` in the composition."""

    target: str
    output: str
    place: Place = NOWHERE


class Join(msgspec.Struct, frozen=True, omit_defaults=True):
    """Joins keyed parameters from left to right; ``len(strategies) == len(order) - 1``."""

    order: tuple[str, ...]
    strategies: tuple[Strategy, ...]
    place: Place = NOWHERE


class Feed(msgspec.Struct, frozen=True, omit_defaults=True):
    """Gives output set `output` of an iteration to input set `parameter` of the next one."""

    parameter: str
    output: str
    place: Place = NOWHERE


class Repeat(msgspec.Struct, frozen=True, omit_defaults=True):
    """Repeats an application, fed with what its last iteration gave.

    Attributes:
        times: the most iterations there may be, from 1 to `TIMES_LIMIT`.
        until: output set whose absence after an iteration ends the loop; None runs all iterations.
        feedback: which outputs replace which inputs; the others stay as they are bound.
        place: where it stands.
    """

    times: int
    until: str | None = None
    feedback: tuple[Feed, ...] = ()
    place: Place = NOWHERE


class Application(msgspec.Struct, frozen=True, omit_defaults=True):
    """One use of a function in a composition."""

    function: str
    bindings: tuple[Binding, ...] = ()
    returns: tuple[Return, ...] = ()
    join: Join | None = None
    repeat: Repeat | None = None
    place: Place = NOWHERE


class Composition(msgspec.Struct, frozen=True, omit_defaults=True):
    """A dataflow graph with named input and output sets."""

    name: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    applications: tuple[Application, ...] = ()
    place: Place = NOWHERE


class Declaration(msgspec.Struct, frozen=True, omit_defaults=True):
    """Says which sets a function has, in order; an assertion that registration checks."""

    name: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    place: Place = NOWHERE


class Module(msgspec.Struct, frozen=True, omit_defaults=True):
    """A text: declarations and compositions, in the order in which they stand."""

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


def to_networkx(composition: Composition) -> CompositionGraph:
    """Give the graph: nodes ``in:SET``, ``app:ID``, ``out:SET``; edges carry the set's name.

    Node attributes: ``kind`` (input, application, output), ``label``, and for applications
    ``application`` (the record). Edge attributes: ``set``, ``binding`` (the record, or None on the
    way to an output). Several sets between two nodes are one edge with a list in ``bindings``.
    Unknown sources and duplicate producers are not errors here; see `dandelion.dataflow.validate`.
    """
    graph: CompositionGraph = nx.DiGraph(name=composition.name)
    producer: dict[str, str] = {}
    for name in composition.inputs:
        graph.add_node(f"in:{name}", kind="input", label=name)
        producer[name] = f"in:{name}"
    ids = application_ids(composition)
    for app_id, application in zip(ids, composition.applications, strict=True):
        graph.add_node(f"app:{app_id}", kind="application", label=app_id, application=application)
        for returned in application.returns:
            producer.setdefault(returned.target, f"app:{app_id}")
    for app_id, application in zip(ids, composition.applications, strict=True):
        for binding in application.bindings:
            if binding.source in producer:
                _connect(graph, producer[binding.source], f"app:{app_id}", binding.source, binding)
    for name in composition.outputs:
        graph.add_node(f"out:{name}", kind="output", label=name)
        if name in producer:
            _connect(graph, producer[name], f"out:{name}", name, None)
    return graph


def _connect(
    graph: CompositionGraph, source: str, target: str, set_name: str, binding: Binding | None
) -> None:
    if not graph.has_edge(source, target):
        graph.add_edge(source, target, bindings=[])
    graph.edges[source, target]["bindings"].append((set_name, binding))
