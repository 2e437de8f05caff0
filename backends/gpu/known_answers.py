"""What a broker knows beforehand of the answers to the calls of a function."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from dandelion.driver import Call, InstanceSets
from dandelion.engine_process.messages import WireItem, WireSet, WireSets
from dandelion.errors import DeviceFull

from .host_memory import Place
from .layout import aligned
from .plan_cache import PlanCache
from .program import Program, ProgramCache, Signature, plan_call

_KNOWN_CALLS = 256


@dataclass(slots=True, eq=False)
class KnownAnswer:
    """What is planned for the calls of one function with the same sizes.

    Attributes:
        results: for each output its name, offset in the result, and size.
        context_bytes: size of the result.
        optional: positions of the outputs that may be absent.
        host: process id of the host that ran the last such call.
        calls: how many it ran in a row.
        least_ns: the shortest of them, without the first one, which compiles; 0 for none.
    """

    program: Program
    results: tuple[tuple[str, int, int], ...]
    context_bytes: int
    optional: frozenset[int]
    host: int = 0
    calls: int = 0
    least_ns: int = 0

    def expected(self, inputs: InstanceSets, place: Place) -> WireSets:
        """Give the only answer of a call that succeeds, but for the optional outputs."""
        name, key = self.program.name_of_outputs(inputs)
        start = place.result_offset
        return tuple(
            WireSet(
                output,
                (WireItem(output if name is None else name, key, size and start + at, size),),
            )
            for output, at, size in self.results
        )

    def ran(self, host: int, took_ns: int) -> None:
        """Note a call on a host, by its process id."""
        if self.host != host:
            self.host, self.calls, self.least_ns = host, 1, 0
            return
        self.calls += 1
        self.least_ns = min(self.least_ns or took_ns, took_ns)


class KnownAnswers:
    """Answers by function and sizes; the least recently used go first.

    Args:
        owner: name of the engine, for errors.
        plans: as the hosts plan.
        limit_bytes: device memory of a host.
    """

    def __init__(self, owner: str, plans: PlanCache, limit_bytes: int) -> None:
        self._owner = owner
        self._plans = plans
        self._limit_bytes = limit_bytes
        self._programs = ProgramCache()
        self._known: OrderedDict[tuple[str, Signature], KnownAnswer] = OrderedDict()

    def find(self, call: Call) -> KnownAnswer:
        """Give what is known of a call.

        Raises:
            InvalidInput, InvalidBlueprint: its inputs do not fit its code.
            DeviceFull: it needs more memory than a host has.
        """
        program = self._programs.get(call.function)
        key = (program.identity, program.signature(call.inputs))
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._learn(program, call)
            if len(self._known) > _KNOWN_CALLS:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return known

    def _learn(self, program: Program, call: Call) -> KnownAnswer:
        plan = plan_call(self._plans, program, program.items(call.inputs))
        if plan.used_bytes > self._limit_bytes:
            raise DeviceFull(self._owner, plan.used_bytes, self._limit_bytes)
        results, end = [], 0
        for name in program.outputs:
            size = plan.outputs[name].size_bytes
            results.append((name, end, size))
            end += aligned(size)
        optional = (i for i, name in enumerate(program.outputs) if name in plan.present_if)
        return KnownAnswer(program, tuple(results), end, frozenset(optional))

    def forget(self, identity: str) -> None:
        """Drop what is known of a function."""
        self._programs.forget(identity)
        for key in [key for key in self._known if key[0] == identity]:
            del self._known[key]
