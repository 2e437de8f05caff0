"""Modules that are loaded on a device, and plans that are ready to run there.

A module is known by the digest of its content, so functions that share a library share the module.
A plan is ready (`.ready_plans`) once each of its launches is prepared. Its first call measures
them; from the second one on it runs as a graph where the device has graphs: one graph if it is
brief, else one for each part (see `.pacing`, `.graph_parts`). Both caches are bounded; with a
module its ready plans are dropped.

A module with variables of its own would carry data from one call to the next. Where the device can
restore them, the pool has that done for each call, and launches are not put side by side. Any other
such module is loaded for one call and unloaded after it (`expire`); it is never shared and never
part of a graph.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from dandelion.blueprint.uses import symbol_of
from dandelion.data import Bytes
from dandelion.errors import DeviceFault, DeviceFull
from dandelion.function import Digest

from .constants import ResidentConstants
from .device import Device, Handle, Variables
from .graph_parts import Width, graph_parts
from .graph_trials import FEW_LAUNCHES, GraphTrial
from .local_memory import with_local_memory
from .open_arguments import Values, bits_of
from .pacing import PART_NS, StepTimes
from .plan import Launch, Plan
from .prepared_steps import prepare_steps, with_values
from .program import Program
from .ready_plans import Ready, Segment
from .sections import ReadyRound, Round, Section, section_plan, sections_of, straight
from .source import LoadedCode, choose, code_of

GRAPH_LAUNCHES = 20_000
"""Plans with more launches are not captured: a graph takes host and device memory by launch."""

LISTED_LAUNCHES = 100_000
"""Plans with more launches are unrolled while they run."""

MODULES = 256
"""So many modules are kept; what is loaded again for each call takes milliseconds."""

PLANS, PLANNED_LAUNCHES = 256, 200_000
"""So many plans are kept ready, with so many launches in all: these take memory."""


class Modules:
    """The caches of one device; see the module's text.

    Args:
        device: open.
        capacity: number of modules.
        plans: number of ready plans.
        part_ns: how long a part of a call should take.
    """

    def __init__(
        self, device: Device, capacity: int = MODULES, plans: int = PLANS, part_ns: int = PART_NS
    ) -> None:
        self._device = device
        self._part_ns = part_ns
        self._capacity = capacity
        self._plans = plans
        found = device.properties()
        self._archs = found.archs
        lanes = device.abilities.graph_lanes
        self._width = Width(lanes, found.compute_units, found.unit_threads)
        self._modules: OrderedDict[Digest, Handle] = OrderedDict()
        self._ready: OrderedDict[tuple[Plan, tuple[int, ...]], Ready] = OrderedDict()
        self._used: dict[str, set[Digest]] = {}  # modules by function, until it is forgotten
        self._passing: list[Ready] = []  # with modules of their own
        self.loads = self.load_ns = 0

    def ready(
        self,
        program: Program,
        plan: Plan,
        files: Mapping[str, Bytes],
        resident: ResidentConstants | None = None,
        values: Values = (),
    ) -> Ready:
        """Give a plan that is ready to run, loading and preparing what is missing.

        Args:
            program: of the function.
            plan: which.
            files: of the function.
            resident: constants that its launches point to.
            values: of the call, by the indices of `Plan.open_arguments`.

        Raises:
            InvalidBlueprint: no file of a module runs here, or a kernel is not what it should be.
            InvalidFunction: a module cannot be compiled or loaded.
        """
        plan = plan.twin or plan
        found = self._ready.get((plan, bits_of(values)))
        if found is None:
            try:
                try:
                    found = self._make(program, plan, files, resident, values)
                except DeviceFull:  # there may be room without what others use
                    self._drop_all()
                    found = self._make(program, plan, files, resident, values)
            except BaseException:
                self._trim_modules(frozenset())  # those that were loaded before it failed
                raise
            if found.own:
                self._passing.append(found)
                self._trim_modules(found.modules)
                return found
            self._ready[found.key] = found
            self._trim(found)
        self.use(found, values)
        return found

    def use(self, ready: Ready, values: Values) -> None:
        """Note that a plan is about to run with these values; capture it when that is due."""
        self._ready.move_to_end(ready.key)
        if values != ready.values:
            self._set_values(ready, values)
        self.prepare(ready)

    def _set_values(self, ready: Ready, values: Values) -> None:
        """Give open arguments their values; without graphs if these cannot be changed."""
        try:
            ready.set_values(self._device, values)
        except (DeviceFault, DeviceFull):
            if self._device.fault() is not None or not ready.captures:
                raise
            for one in (ready, *straight(ready.sections)):
                self._discard_graphs(one)
                one.captures = False
            ready.set_values(self._device, values)

    def prepare(self, ready: Ready) -> None:
        """Capture a plan, or a section of one, when that is due; discard graphs not in use."""
        if ready.capture_due:
            self._capture(ready)
        elif ready.segments and not ready.captures:
            self._discard_graphs(ready)

    def _capture(self, ready: Ready) -> None:
        """Capture a plan as one graph if it is brief, else as one for each part."""
        ready.capture_due = False
        few = 1 <= len(ready.order or ()) <= GRAPH_LAUNCHES
        if ready.own or not ready.captures or not few:
            return
        steps, order = ready.plan.steps, list(ready.plan.walk())
        width = Width(1) if ready.restored else self._width  # they may share a variable
        parts = graph_parts(steps, order, ready.times, width, ready.brief)
        if parts == [segment.part for segment in ready.segments]:
            return
        self._discard_graphs(ready)
        open_steps = {prepared for prepared, _ in ready.open_steps}
        made: list[Segment] = []
        try:
            for part in parts:
                prepared = [ready.steps[index] for index in part.steps]
                changing = [(at, step) for at, step in enumerate(prepared) if step in open_steps]
                places = [place for place, _ in changing]
                graph = self._device.capture(prepared, part.forks, places)
                if graph is None:
                    break
                made.append(Segment(part, graph, changing))
        finally:
            ready.segments = tuple(made)
            if len(made) < len(parts):  # it is launched step by step, as before
                self._discard_graphs(ready)
        if ready.brief and ready.segments:
            ready.graph = ready.segments[0].graph
            if len(order) <= FEW_LAUNCHES:
                ready.trial = GraphTrial(ready.graph)

    def _discard_graphs(self, ready: Ready) -> None:
        for section in straight(ready.sections):
            self._discard_graphs(section)
        ready.graph = ready.trial = None
        segments, ready.segments = ready.segments, ()
        for segment in segments:
            self._device.discard((), segment.graph)

    def expire(self) -> None:
        """Unload the modules that were loaded for calls which are over."""
        while self._passing:
            gone = self._passing.pop()
            gone.dropped = True
            self._device.discard(gone.steps, None)
            for module in gone.own:
                self._device.unload(module)

    def _trim(self, kept: Ready) -> None:
        """Enforce the bounds, but keep a plan and its modules: it is about to run."""
        launches = sum(ready.launches for ready in self._ready.values())
        while len(self._ready) > 1 and (
            len(self._ready) > self._plans or launches > PLANNED_LAUNCHES
        ):
            oldest = next(key for key in self._ready if key != kept.key)
            launches -= self._ready[oldest].launches
            self._drop(oldest)
        self._trim_modules(kept.modules)

    def _trim_modules(self, kept: frozenset[Digest]) -> None:
        unused = [d for d in self._modules if d not in kept]
        for digest in unused[: max(len(self._modules) - self._capacity, 0)]:
            self._unload(digest)

    def _make(
        self,
        program: Program,
        plan: Plan,
        files: Mapping[str, Bytes],
        resident: ResidentConstants | None,
        values: Values,
    ) -> Ready:
        used = {k.name: k for k in program.config.kernels}
        wanted = {getattr(step, "kernel", "") for step in plan.steps} - {""}
        by_name = {m.name: m for m in program.config.modules}
        backend, formats = self._device.backend, self._device.formats
        loaded: dict[str, tuple[Handle, Digest | None]] = {}
        table: dict[str, tuple[Handle, str]] = {}
        shared: dict[str, int | None] = {}
        own: list[Handle] = []
        of_function = self._used.setdefault(program.identity, set())
        try:
            for name in sorted(wanted):
                template = plan.templates.get(name)
                if template is not None:
                    code = code_of(template)
                    loaded[name] = self._module(code, own, of_function)
                    table[name] = (loaded[name][0], template.symbol)
                    continue
                kernel = used[name]
                if kernel.module not in loaded:
                    module = by_name[kernel.module]
                    code = choose(module, files, backend, formats, self._archs)
                    loaded[kernel.module] = self._module(code, own, of_function)
                    shared[kernel.module] = code.shared_mem_bytes
                table[name] = (loaded[kernel.module][0], symbol_of(kernel))
            memory = None if resident is None else resident.memory
            needed = {name: shared[k.module] for name, k in used.items() if name in table}
            launches = with_values(with_local_memory(plan.steps, needed), values)
            steps = prepare_steps(self._device, launches, table, memory)
        except BaseException:
            for handle in own:
                self._device.unload(handle)
            raise
        digests = frozenset(digest for _, digest in loaded.values() if digest is not None)
        times = StepTimes(len(steps), self._part_ns)
        restored = tuple(
            {
                id(module): module
                for module, _ in loaded.values()
                if self._device.variables(module) is Variables.RESTORED
            }.values()
        )
        made = Ready(
            plan, program.identity, resident, steps, digests, None, times, bits_of(values),
            _open_steps(plan, steps), values, own, restored,
        )  # fmt: skip
        if plan.words:
            made.sections = _sections(made, sections_of(plan.program))
        else:
            made.order = _order(plan, steps)
        return made

    def _module(
        self, code: LoadedCode, own: list[Handle], of_function: set[Digest]
    ) -> tuple[Handle, Digest | None]:
        """Give a loaded module, and its digest if others may use it too.

        Args:
            code: of the module.
            own: grows by a module that is for one call alone.
            of_function: grows by the digest of any other.
        """
        found = self._modules.get(code.digest)
        if found is None:
            started = time.perf_counter_ns()
            found = self._device.load(code)
            self.load_ns += time.perf_counter_ns() - started
            self.loads += 1
            if self._device.variables(found) is Variables.UNKNOWN:
                own.append(found)
                return found, None
            self._modules[code.digest] = found
        self._modules.move_to_end(code.digest)
        of_function.add(code.digest)
        return found, code.digest

    def _unload(self, digest: Digest) -> None:
        self._drop_those(lambda ready: digest in ready.modules)
        self._device.unload(self._modules.pop(digest))

    def _drop_those(self, are_outdated: Callable[[Ready], bool]) -> None:
        for key in [key for key, ready in self._ready.items() if are_outdated(ready)]:
            self._drop(key)

    def _drop(self, key: tuple[Plan, tuple[int, ...]]) -> None:
        gone = self._ready.pop(key)
        gone.dropped = True
        self._discard_graphs(gone)
        self._device.discard(gone.steps, None)

    def forget(self, identity: str) -> None:
        """Drop the ready plans of a function, and modules that no other function uses."""
        self._drop_those(lambda ready: ready.identity == identity)
        used = self._used.pop(identity, set())
        for digest in used.difference(*self._used.values()).intersection(self._modules):
            self._unload(digest)

    def forget_plans(self) -> None:
        """Drop all ready plans: their addresses are not valid any more. Modules stay."""
        self.expire()
        for key in list(self._ready):
            self._drop(key)

    def forget_constants(self, resident: ResidentConstants) -> None:
        """Drop the ready plans whose launches point to constants that will be dropped."""
        self._drop_those(lambda ready: ready.resident is resident)

    def close(self) -> None:
        """Drop everything."""
        self._drop_all()

    def _drop_all(self) -> None:
        self.forget_plans()
        for digest in list(self._modules):
            self._unload(digest)

    def __len__(self) -> int:
        return len(self._modules)


def _open_steps(
    plan: Plan, prepared: Sequence[Handle]
) -> list[tuple[Handle, Sequence[tuple[int, int]]]]:
    """List the launches with open arguments."""
    return [
        (handle, step.open_args)
        for step, handle in zip(plan.steps, prepared, strict=True)
        if isinstance(step, Launch) and step.open_args
    ]


def _order(plan: Plan, steps: Sequence[Handle]) -> list[Handle] | None:
    """List the steps in the order of execution, if they are not too many."""
    return [steps[i] for i in plan.walk()] if plan.launches <= LISTED_LAUNCHES else None


def _sections(whole: Ready, sections: Sequence[Section]) -> tuple[Ready | ReadyRound, ...]:
    """Make the sections of a plan ready."""
    made: list[Ready | ReadyRound] = []
    for section in sections:
        if isinstance(section, Round):
            word = whole.plan.words.get(section.word)
            made.append(ReadyRound(section.times, word, _sections(whole, section.sections)))
            continue
        plan = section_plan(whole.plan, section)
        ready = replace(whole, plan=plan, order=_order(plan, whole.steps), sections=())
        made.append(ready)
    return tuple(made)
