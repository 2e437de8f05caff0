"""Which applications of a composition are run together.

A group grows along the edges of the graph, in the order of execution, as long as running it as one
call means the same and does not delay anything:

* **No delay.** What members need besides is there when the first ones can begin: it is an input of
  the composition, or is made by an application that comes before all first members. So no other
  application lies between two members. What functions of other kinds need of the group is made by
  its last member, after all others.
* **Instances.** Either each member has one instance, or the first one has an instance for `each`
  item of a set, and every other member takes `each` item that a member before it makes. There, an
  output item has the key of the input item that it was made for; so the order of the items is the
  same whether the instances of a member are merged in between or not.
* **Sizes.** No size is read from the content of a set that is made within the group.
* **Types.** A set that is passed on is declared alike on both sides, or not on the side that takes
  it.
* **Loops.** Each iteration takes what is fed back to it from the one before, as it is. What is fed
  back is there if there is a further iteration.
* **Absent sets.** A set that may be absent is passed to no member: whether it runs would be known
  on the device only.
* **Failures.** No member has attempts or catches failures: each of its instances is a call of its
  own, whose failure is known.
* **Names.** All outputs of the group take over the name and key of the same item.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dandelion.dataflow.graph import Application, Binding, Composition, Sharding
from dandelion.function import FunctionSpec

if TYPE_CHECKING:
    import networkx as nx

MEMBERS = 64
"""Largest number of applications in a group."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An application of a GPU function that could be run together with others.

    Attributes:
        index: of the application in its composition.
        written: which, as the composition has it.
        application: the same as an application of its function.
        spec: of its function.
        naming: the parameter whose item gives outputs their name and key.
        read: parameters that sizes are read from.
        words: outputs that may be absent, with the buffer whose word says so.
        bindings: of the application, by parameter.
        makes: the sets that it makes, with the output that each one is.
    """

    index: int
    written: Application
    application: Application
    spec: FunctionSpec
    naming: str
    read: frozenset[str]
    words: Mapping[str, str] = field(default_factory=dict)
    bindings: Mapping[str, Binding] = field(init=False)
    makes: Mapping[str, str] = field(init=False)

    def __post_init__(self) -> None:
        bindings = {b.parameter: b for b in self.application.bindings}
        object.__setattr__(self, "bindings", bindings)
        makes = {r.target: r.output for r in self.application.returns}
        object.__setattr__(self, "makes", makes)

    @property
    def times(self) -> int:
        """How often it is repeated."""
        repeat = self.application.repeat
        return 1 if repeat is None else repeat.times

    @property
    def fed(self) -> dict[str, str]:
        """For parameters that later iterations take from the one before: from which output."""
        repeat = self.application.repeat
        return {} if repeat is None else {f.parameter: f.output for f in repeat.feedback}

    @property
    def until(self) -> str:
        """The output whose absence ends the repetition; empty if there is none."""
        repeat = self.application.repeat
        return "" if repeat is None else repeat.until or ""

    @property
    def each(self) -> str | None:
        """The parameter that it has an instance for each item of, if there is one."""
        return next((p for p, b in self.bindings.items() if b.sharding is Sharding.EACH), None)


def is_groupable(application: Application, spec: FunctionSpec) -> bool:
    """Tell whether an application may be part of a group, as far as its clauses say."""
    bindings = application.bindings
    shardings = [binding.sharding for binding in bindings]
    bound = {binding.parameter for binding in bindings}
    return (
        application.join is None
        and application.attempts is None
        and application.catch is None
        and bool(application.returns)
        and not any(binding.optional for binding in bindings)
        and shardings.count(Sharding.EACH) <= (application.repeat is None)
        and all(sharding in (Sharding.ALL, Sharding.EACH) for sharding in shardings)
        and all(name in bound or name in spec.static for name in spec.input_names)
    )


class Groups:
    """Finds the groups of a composition.

    Args:
        composition: which.
        candidates: its applications that could be in a group, by index.
    """

    def __init__(self, composition: Composition, candidates: Mapping[int, Candidate]) -> None:
        self._composition = composition
        self._candidates = candidates
        self._producers = {
            target: index
            for index, application in enumerate(composition.applications)
            for target, _ in application.targets()
        }
        self._foreign = [a for i, a in enumerate(composition.applications) if i not in candidates]
        import networkx as nx

        graph: nx.DiGraph[int] = nx.DiGraph()
        graph.add_nodes_from(range(len(composition.applications)))
        for index, application in enumerate(composition.applications):
            for binding in application.bindings:
                if binding.source in self._producers:
                    graph.add_edge(self._producers[binding.source], index)
        self._order = list(nx.lexicographical_topological_sort(graph))
        self._before: dict[int, set[int]] = {}
        for index in self._order:
            direct = set(graph.predecessors(index))
            self._before[index] = direct.union(*(self._before[i] for i in direct))

    def find(self) -> list[list[Candidate]]:
        """Find the groups with several members, or with a loop, in the order of execution."""
        groups: list[list[int]] = []
        group_of: dict[int, list[int]] = {}
        for index in self._order:
            if index not in self._candidates:
                continue
            group = self._joined(index, group_of)
            for member in group:
                if member in group_of and group_of[member] in groups:
                    groups.remove(group_of[member])
                group_of[member] = group
            groups.append(group)
        found = [[self._candidates[i] for i in group] for group in groups]
        return [group for group in found if len(group) > 1 or self._is_used_loop(group)]

    def _is_used_loop(self, group: list[Candidate]) -> bool:
        return group[0].times > 1 and bool(self.outputs(group))

    def _joined(self, index: int, group_of: Mapping[int, list[int]]) -> list[int]:
        """Join an application with groups that make its inputs, best with all of them."""
        candidate = self._candidates[index]
        sources = dict.fromkeys(b.source for b in candidate.bindings.values())
        producers = [self._producers[s] for s in sources if s in self._producers]
        near: list[list[int]] = []
        for producer in producers:
            group = group_of.get(producer)
            if group is not None and group not in near:
                near.append(group)
        for choice in (near, *([group] for group in near)):
            members = sorted({index, *(i for g in choice for i in g)}, key=self._order.index)
            if choice and len(members) <= MEMBERS and self._is_valid(members):
                return members
        return [index]

    def _is_valid(self, indices: Sequence[int]) -> bool:
        members = [self._candidates[i] for i in indices]
        made = {name: member for member in members for name in member.makes}
        return (
            self._is_prompt(members, made)
            and self._has_equal_instances(members, made)
            and all(_passes_on(member, made) for member in members)
            and len({naming(o, made) for o in self.outputs(members)}) == 1
        )

    def outputs(self, members: Sequence[Candidate]) -> list[str]:
        """List the sets of a group that others use, or that are outputs of the composition."""
        inside = {member.index for member in members}
        wanted = set(self._composition.outputs)
        for application in self._others(inside):
            wanted.update(binding.source for binding in application.bindings)
        return [name for member in members for name in member.makes if name in wanted]

    def _is_prompt(self, members: Sequence[Candidate], made: Mapping[str, Candidate]) -> bool:
        external = {b.source for m in members for b in m.bindings.values()} - made.keys()
        needed = {self._producers[name] for name in external if name in self._producers}
        first = [m for m in members if not any(b.source in made for b in m.bindings.values())]
        inside = {member.index for member in members}
        used = {b.source for a in self._foreign for b in a.bindings}
        last = {member.index for name, member in made.items() if name in used}
        return all(needed <= self._before[member.index] for member in first) and all(
            inside <= {index, *self._before[index]} for index in last
        )

    def _others(self, inside: set[int]) -> Iterator[Application]:
        for index, application in enumerate(self._composition.applications):
            if index not in inside:
                yield application

    @staticmethod
    def _has_equal_instances(members: Sequence[Candidate], made: Mapping[str, Candidate]) -> bool:
        if all(member.each is None for member in members):
            return True
        first, *others = members
        if first.each is None:
            return False
        divided = first.bindings[first.each].source
        whole = [b.source for m in members for p, b in m.bindings.items() if p != m.each]
        if divided in whole:
            return False
        for member in others:
            passed = [p for p, b in member.bindings.items() if b.source in made]
            if passed != [member.each] or member.naming != member.each:
                return False
        return True


def _passes_on(member: Candidate, made: Mapping[str, Candidate]) -> bool:
    """Check sizes and types of the sets that a member takes from others."""
    for parameter, binding in member.bindings.items():
        producer = made.get(binding.source)
        if producer is None:
            continue
        output = producer.makes[binding.source]
        if output in producer.words or not _is_passed(producer.spec, output, member, parameter):
            return False
    return True


def _is_passed(maker: FunctionSpec, output: str, member: Candidate, parameter: str) -> bool:
    """Tell whether a function's output can be a member's input without being looked at."""
    given = next(s for s in maker.outputs if s.name == output)
    wanted = next(s for s in member.spec.inputs if s.name == parameter)
    same = (wanted.dtype, wanted.shape) == (given.dtype, given.shape)
    return parameter not in member.read and (wanted.dtype is None or same)


def has_plain_loop(member: Candidate, returned: Container[str]) -> bool:
    """Check what a member feeds back.

    Args:
        member: which.
        returned: its inputs that are outputs, too, changed in place.
    """
    going = member.words.get(member.until)
    for parameter, output in member.fed.items():
        if member.words.get(output, going) != going:
            return False  # it may be absent although the loop goes on
        if parameter in member.words.values() and parameter != output:
            return False  # it would be overwritten before its word is read
        if not _is_passed(member.spec, output, member, parameter):
            return False
        if parameter in returned and parameter != output:
            return False  # it would be overwritten before it is returned
    return True


def naming(name: str, made: Mapping[str, Candidate]) -> tuple[str, Sharding]:
    """Find the set outside of a group whose item gives a set its item's name and key.

    Args:
        name: a set that the group makes.
        made: the member that makes each set.

    Returns:
        The set, and how it is distributed over the instances of the group.
    """
    sharding = Sharding.ALL
    while name in made:
        member = made[name]
        binding = member.bindings[member.naming]
        name, sharding = binding.source, binding.sharding
    return name, sharding
