"""The sequential engine: one device, one buffer pool, one call at a time.

A call goes through these stages, and `Call.stages` says how long the engine spent in each:

=========== ==================================================================================
plan        the plan from the cache, or made; alternatives timed; launches prepared if new;
            constants brought to the device if they are to stay; access to them granted
load        modules compiled and loaded, meanwhile; only if there are any
copy_in     each input that a kernel reads from where it lies to its slot
kernels     launched as one graph, in parts of some milliseconds, or one by one
copy_out    a context of the call's domain acquired, outputs copied to it; the wait for all of it
zero        the used range of the pool is zeroed, and variables of modules get their first
            values, after the outputs were handed over
=========== ==================================================================================

A call whose function, sizes and integers that sizes read were seen before is `KnownCall`:
everything about it is computed already but the integers that go to kernels by value, and it only
has to be launched. This order keeps the device busy while Python works: the context of the outputs
is acquired while the kernels run.

On an asynchronous device the stages before the wait only measure how long launching took; with
`exact_stages` the engine waits after each stage, which costs time but measures the work itself.

A call is stopped (`TimedOut`, `Cancelled`) between two parts of its launches, see `.pacing`, and
between two iterations of a loop that ends by a word on the device, see `.sections`. A single kernel
cannot be stopped; its process ends with it.

Invariants: before `copy_in` the pool is zero. No memory of a call is released while the device may
still copy from or to it. Whatever fails, the next call finds a clean pool, or fails with
`EngineDied`.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections import OrderedDict
from collections.abc import Callable

from dandelion.data import Item, ItemSet
from dandelion.driver import Call, Capacity, Engine, InstanceSets
from dandelion.errors import Cancelled, DeviceFault, DeviceFull, EngineDied, Faulted, TimedOut
from dandelion.function import Function
from dandelion.memory import ArenaMap

from .candidates import Chooser
from .chosen_plans import ChosenPlans
from .constants import LEAST_BYTES, UNIT_BYTES, DeviceConstants, WeightsLimit
from .device import Device
from .known_calls import KnownCall, known_call
from .modules import PLANS, Modules
from .pacing import BRIEF_PARTS, PART_NS, Pacer
from .plan_cache import PlanCache
from .pool import BufferPool
from .program import Program, ProgramCache, Signature, plan_call
from .ready_plans import Ready
from .sections import SectionRunner, WordReader


class SequentialEngine(Engine):
    """Runs GPU functions on one device.

    Args:
        device: the engine opens it if it is not open, owns it and closes it.
        pool_bytes: size of the buffer pool; 0 leaves it to the device.
        pool_share: part of the device's memory that is this engine's, where `pool_bytes` is 0.
        weights: how much of that constants may take that stay there, beside the pool.
        kept_bytes: keep constants of so much even so, beside the pool and what `capacity` says; for
            a process that has one function alone.
        shares_constants: other engines of the device, whose memory can be shared, map the constants
            of this one: `weights` is for all of them.
        arena: where calls' data will lie; the device is told, to copy faster.
        first_bytes: take only so much for the pool until a call needs more. Memory that a process
            has just left is not to be had at once: the device scrubs it, 0.5 TB/s on an H200.
        exact_stages: see the module's text.
        part_ns: how long the parts should take between which a call can be stopped.

    Raises:
        BackendUnavailable: the device cannot be used.
        DeviceFault: there is no room for the pool.
    """

    def __init__(
        self,
        device: Device,
        pool_bytes: int = 0,
        arena: ArenaMap | None = None,
        exact_stages: bool = False,
        pool_share: float = 1.0,
        weights: WeightsLimit | None = None,
        first_bytes: int = 0,
        part_ns: int = PART_NS,
        kept_bytes: int = 0,
        shares_constants: bool = False,
    ) -> None:
        self.name = device.name
        self.device = device
        self.exact_stages = exact_stages
        self._brief_ns = BRIEF_PARTS * part_ns
        self._broken = ""
        self._in_flight: list[object] = []  # what the device may still copy from or to
        self._settling: Call | None = None
        self._untried: KnownCall | None = None  # of the call that was launched
        self._programs = ProgramCache()
        self._words = WordReader(device)
        self._known: OrderedDict[tuple[str, Signature], KnownCall] = OrderedDict()
        device.open()
        try:
            found = device.properties()
            room = int(found.memory_bytes * pool_share)
            if not first_bytes:  # else much of it is not free yet
                room = min(room, found.pool_bytes)
            shares = shares_constants and device.abilities.shared_memory
            limit = own = 0
            if device.abilities.protected_memory:
                limit = own = (weights or WeightsLimit()).of(room)
            if shares:
                limit = (weights or WeightsLimit()).of(found.memory_bytes)
                own = int(limit * pool_share)
            size = pool_bytes or max(room - own, room // 8)
            self.pool = BufferPool(device, min(size, first_bytes or size))
            self.capacity = Capacity(
                size,
                found.compute_units,
                found.archs,
                found.unit_threads,
                constants_bytes=limit,
                constants_unit_bytes=UNIT_BYTES,
                constants_least_bytes=LEAST_BYTES,
                constants_shared=shares,
            )
            self.modules = Modules(device, part_ns=part_ns)
            forget = self.modules.forget_constants
            kept_bytes = max(limit, kept_bytes)
            self.constants = DeviceConstants(device, kept_bytes, forget, shares)
            if arena is not None:
                device.register(arena.address, arena.size_bytes)
        except BaseException:
            device.close()
            raise
        lanes = device.abilities.graph_lanes
        limit_bytes, lowering = self.capacity.device_bytes, device.lowering()
        self.plans = PlanCache(limit_bytes=limit_bytes, lanes=lanes, lowering=lowering)
        self.plans.room_bytes = self.pool.size_bytes  # no reason to take the whole pool
        self._chooser = Chooser(device)
        self._chosen = ChosenPlans(
            device, self.pool, self.modules, self.constants, self.plans, self._words, self._chooser
        )

    @property
    def lost(self) -> bool:  # type: ignore[override]  # here it is known, not remembered
        return bool(self._broken)

    # a call

    def _run(self, call: Call) -> InstanceSets:
        if self._broken:
            raise EngineDied(self.name, self._broken)
        self._check_deadline(call)
        while True:
            self._untried = None
            try:
                return self._stages(call)
            except (DeviceFault, MemoryError) as error:
                broken = self.device.fault()
                if broken is not None:
                    self._broken = broken
                    raise Faulted(call.function.spec.name, broken) from error
                self._recover()
                if isinstance(error, MemoryError) or not self._takes_others():
                    raise
                self._check(call)
            except BaseException:
                self._recover()
                raise

    def _takes_others(self) -> bool:
        """Tell whether a call that failed runs other alternatives when it is run again."""
        untried = self._untried
        if untried is None or not self._chooser.failed(untried.candidates):
            return False
        self._forget_known(lambda known: known is untried)
        return True

    def _stages(self, call: Call) -> InstanceSets:
        clock = time.perf_counter_ns
        started = clock()
        self._settling = call
        inputs, loaded_ns = call.inputs, self.modules.load_ns
        known = self._find(call)
        loaded_ns = self.modules.load_ns - loaded_ns
        ready = known.ready
        self.constants.grant_access(ready.resident)
        pool = self.pool
        if not pool.is_clean:  # `clean_up` was not called, or it failed
            pool.clean()
        pool.begin(ready.plan, ready.restored)
        planned = clock()
        self._in_flight.append(inputs)
        copy_in = self.device.copy_in
        for position, offset in known.copies:
            copy_in(offset, inputs[position].items[0].data)  # type: ignore[union-attr]  # in `_find`
        self._exact()
        copied = clock()
        self._untried = known if known.candidates else None
        pacer = self._launch(call, ready)
        self._exact()
        launched = clock()
        outputs = self._copy_out(known, call)
        words = self._words.fetch(known.words) if known.words else None
        if pacer is not None:
            pacer.finish()
            ready.ran(pacer.took_ns)
        if ready.sections:  # most of it was waited for; how long the next one takes is open
            self.device.synchronize()
        else:
            known.waiting.wait(self.device.synchronize, planned)
        if words is not None:
            outputs = known.present(outputs, words)
        self._in_flight.clear()
        ended = clock()
        if known.candidates:
            self._chooser.ran(known.candidates, (ended - copied) / 1e9)
        call.stages["plan"] = planned - started - loaded_ns
        if loaded_ns:
            call.stages["load"] = loaded_ns
        call.stages.update(
            copy_in=copied - planned,
            kernels=launched - copied,
            copy_out=ended - launched,
        )
        ready.took(ended - planned)
        if pacer is None and not ready.sections and ended - copied > self._brief_ns:
            ready.took_long()
        self._check_deadline(call)
        return outputs

    def _find(self, call: Call) -> KnownCall:
        """Give what is known of such a call, or work it out."""
        function = call.function
        program = self._programs.get(function)
        key = (program.identity, program.signature(call.inputs))
        known = self._known.get(key)
        if known is not None and known.keep is call.keep_constants and not known.ready.dropped:
            open_ = known.candidates
            if not (open_ and self._chooser.has_time(open_, call.left_s())):
                self._known.move_to_end(key)
                values = program.values(known.open_arguments, call.inputs)
                self.modules.use(known.ready, values)
                return known
        known = self._learn(program, call)
        if not known.ready.own:
            self._known[key] = known
            if len(self._known) > PLANS:
                self._known.popitem(last=False)
        return known

    def _learn(self, program: Program, call: Call) -> KnownCall:
        self.device.trials_until = time.monotonic() + call.left_s() / 2
        self.modules.expire()
        items = program.items(call.inputs)
        self._in_flight.append(items)  # constants may be copied from them
        keep = call.keep_constants
        resident = self.constants.find(program, items, call)
        slots = None if resident is None else resident.slots
        plan = plan_call(self.plans, program, items, slots)
        if plan.used_bytes > self.capacity.device_bytes:
            raise DeviceFull(self.name, plan.used_bytes, self.capacity.device_bytes)
        if plan.used_bytes > self.pool.size_bytes:
            self._enlarge()
        key = ""
        if plan.groups:
            check = functools.partial(self._check, call)
            plan, key = self._chosen.plan(program, call, items, plan, resident, check)
        values = program.values(plan.open_arguments, call.inputs)
        ready = self.modules.ready(program, plan, call.function.files, resident, values)
        refused = keep and resident is None and bool(program.constants)
        return known_call(program, plan, ready, keep, refused, key)

    def _enlarge(self) -> None:
        """Take the whole pool. Its addresses are other ones, so nothing that was captured lasts."""
        self._known.clear()
        self.modules.forget_plans()
        try:
            self.pool.enlarge(self.capacity.device_bytes)
            self.plans.room_bytes = self.pool.size_bytes
        finally:
            if not self.device.pool_bytes:
                self._broken = "its pool is gone"

    def _launch(self, call: Call, ready: Ready) -> Pacer | None:
        """Launch all; gives what measures it, unless it is brief."""
        if ready.sections:
            self._run_sections(call, ready)
            return None
        if ready.graph is not None:
            self.device.replay(ready.graph)
            return None
        if ready.brief:
            self.device.launch(ready.order or ())
            return None
        pacer = Pacer(self.device, ready.times, lambda: self._check(call))
        if ready.segments:
            for segment in ready.segments:
                pacer.replay(segment.part.steps, segment.graph, segment.part.speedup)
        else:
            for part in ready.times.cut(ready.plan.walk()):
                pacer.launch(part, ready.steps)
        return pacer

    def _run_sections(self, call: Call, ready: Ready) -> None:
        def launch(section: Ready) -> None:
            self.modules.prepare(section)
            pacer = self._launch(call, section)
            if pacer is not None:
                pacer.finish()
                section.ran(pacer.took_ns)

        runner = SectionRunner(self._words, launch, lambda: self._check(call), self._brief_ns)
        runner.run(ready.sections)

    def _copy_out(self, known: KnownCall, call: Call) -> InstanceSets:
        if not known.results:
            return ()
        context = call.domain.acquire(known.context_bytes)
        view = context.view
        self._in_flight.append(view)
        item_name, key = known.program.name_of_outputs(call.inputs)
        copy_out = self.device.copy_out
        sets = []
        for name, start, size, offset in known.results:
            part = view[start : start + size]
            copy_out(offset, part)
            item = Item(name if item_name is None else item_name, key, part.toreadonly())
            sets.append(ItemSet(name, (item,)))
        return tuple(sets)

    def _check_deadline(self, call: Call) -> None:
        if time.monotonic_ns() >= call.deadline_ns:
            raise TimedOut(call.function.spec.name, "wall", call.limit_s)

    def _check(self, call: Call) -> None:
        """Raise if a call must end."""
        self._check_deadline(call)
        if call.is_stopped():
            raise Cancelled("its invocation ended")

    def _exact(self) -> None:
        if self.exact_stages:
            self.device.synchronize()

    # between calls

    def clean_up(self) -> None:
        """Zero what the last call used; the device does it while the outputs are on their way."""
        call, self._settling = self._settling, None
        if self._broken:
            return
        started = time.perf_counter_ns()
        try:
            self.modules.expire()
            self.pool.clean()
            self._exact()
        except (DeviceFault, DeviceFull):
            self._recover()  # the pool stays dirty; the next call tries again
        if call is not None:
            call.stages["zero"] = time.perf_counter_ns() - started

    def _recover(self) -> None:
        """After a failure: wait until the device touches no memory of the call; zero the pool."""
        if not self._is_quiet():
            return
        self._in_flight.clear()
        with contextlib.suppress(
            DeviceFault, DeviceFull
        ):  # the pool stays dirty; the next call tries again
            self.pool.clean()

    def _is_quiet(self) -> bool:
        """Wait for the device, twice if that fails. False if it can no longer be used."""
        for _ in range(2):
            if self._broken:
                return False
            with contextlib.suppress(Exception):  # an unknown code of the binding may be anything
                self.device.synchronize()
                return True
        self._broken = self.device.fault() or "it cannot be waited for"
        return False

    def evict(self, function: Function) -> None:
        """Drop the constants of a function, unless another function keeps equal ones."""
        if self._is_quiet():
            self._evict(function.identity)

    def _evict(self, identity: str) -> None:
        self._forget_known(lambda known: known.program.identity == identity)
        if self.constants.evict(identity):
            self._forget_known(lambda known: known.refused)  # now there may be room

    def _forget_known(self, is_outdated: Callable[[KnownCall], bool]) -> None:
        for key in [key for key, known in self._known.items() if is_outdated(known)]:
            del self._known[key]

    def forget(self, function: Function) -> None:
        """Drop what was cached for a function that is no longer registered."""
        self._programs.forget(function.identity)
        if self._is_quiet():
            self.modules.forget(function.identity)
            self._evict(function.identity)

    def close(self) -> None:
        """Give the device back. May be called twice."""
        try:
            if not self._broken:
                self.device.synchronize()
                self._known.clear()
                self.modules.close()
                self.constants.close()
                self.pool.close()
        finally:
            self._broken = self._broken or "it was closed"
            self.device.close()
            self._in_flight.clear()
