"""The sequential engine: one device, one buffer pool, one call at a time.

A call goes through these stages, and `Call.stages` says how long each held the engine up:

=========== ==================================================================================
plan        the plan from the cache, or made; modules loaded and launches prepared if new
copy_in     each input from where it lies to its slot
kernels     launched one by one, or as one graph
copy_out    each output to one context of the call's domain; then the wait for all of it
zero        the used range of the pool is zeroed, after the outputs were handed over
=========== ==================================================================================

On an asynchronous device the stages before the wait only measure how long it took to ask; with
`exact_stages` the engine waits after each, which costs time but tells where it goes.

Invariants: before `copy_in` the pool is zero. No memory of a call is let go while the device may
still copy from or to it. Whatever fails, the next call finds a clean pool, or is told that the
engine died.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from dandelion.data import Item, ItemSet
from dandelion.driver import Call, Capacity, Engine, InstanceSets
from dandelion.errors import DeviceFault, DeviceFull, EngineDied, Faulted, TimedOut
from dandelion.function import Function
from dandelion.memory import ArenaMap, Context

from .device import Device
from .layout import aligned
from .modules import Modules, Ready
from .plan import Plan
from .plan_cache import PlanCache
from .pool import BufferPool
from .program import Program, ProgramCache, plan_call

LAUNCHES_BETWEEN_CHECKS = 512
"""How many launches are asked for before the deadline is looked at again."""


class SequentialEngine(Engine):
    """Runs GPU functions on one device.

    Args:
        device: not open yet; the engine opens, owns and closes it.
        pool_bytes: size of the buffer pool; 0 leaves it to the device.
        pool_share: part of what the device offers, where `pool_bytes` is 0.
        arena: where calls' data will lie; the device is told, to copy faster.
        exact_stages: see the module's text.

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
    ) -> None:
        self.name = device.name
        self.device = device
        self.exact_stages = exact_stages
        self._broken = ""
        self._in_flight: list[object] = []  # what the device may still copy from or to
        self._settling: Call | None = None
        self._programs = ProgramCache()
        device.open()
        try:
            found = device.properties()
            self.pool = BufferPool(device, pool_bytes or int(found.pool_bytes * pool_share))
            self.capacity = Capacity(self.pool.size_bytes, found.compute_units)
            self.modules = Modules(device)
            if arena is not None:
                device.register(arena.address, arena.size_bytes)
        except BaseException:
            device.close()
            raise
        self.plans = PlanCache(limit_bytes=self.pool.size_bytes)

    @property
    def lost(self) -> bool:  # type: ignore[override]  # here it is known, not remembered
        return bool(self._broken)

    # a call

    def _run(self, call: Call) -> InstanceSets:
        if self._broken:
            raise EngineDied(self.name, self._broken)
        self._check_deadline(call)
        try:
            return self._stages(call)
        except DeviceFault as error:
            broken = self.device.fault()
            if broken is None:
                self._recover()
                raise
            self._broken = broken
            raise Faulted(call.function.spec.name, broken) from error
        except BaseException:
            self._recover()
            raise

    def _stages(self, call: Call) -> InstanceSets:
        clock = time.perf_counter_ns
        started = clock()
        self._settling = call
        program = self._programs.get(call.function)
        items = program.items(call.inputs)
        plan = plan_call(self.plans, program, items)
        if plan.used_bytes > self.pool.size_bytes:
            raise DeviceFull(self.name, plan.used_bytes, self.pool.size_bytes)
        ready = self.modules.ready(program, plan, call.function.files)
        total = program.output_bytes(plan)
        context = call.domain.acquire(total) if total else None
        self._in_flight += (items, context)
        self.pool.clean()  # nothing to do, unless nobody called `settle` or it failed
        self.pool.begin(plan)
        planned = clock()
        self._copy_in(plan, items)
        self._exact()
        copied = clock()
        self._launch(call, ready)
        self._exact()
        launched = clock()
        outputs = self._copy_out(program, plan, context, call.inputs)
        self.device.wait(self.device.mark())
        self._in_flight.clear()
        ended = clock()
        call.stages.update(
            plan=planned - started,
            copy_in=copied - planned,
            kernels=launched - copied,
            copy_out=ended - launched,
        )
        self._check_deadline(call)
        return outputs

    def _copy_in(self, plan: Plan, items: Mapping[str, Item]) -> None:
        """Copy inputs and weights to their slots.

        Weights are copied like inputs; where they stay resident, this is the place to leave them.
        """
        for name, item in items.items():
            self.pool.write(plan.slots[name], item.data)

    def _launch(self, call: Call, ready: Ready) -> None:
        if ready.graph is not None:
            self.device.replay(ready.graph)
            return
        before = latest = None
        for chunk in ready.chunks(LAUNCHES_BETWEEN_CHECKS):
            self.device.launch(chunk)
            if len(chunk) == LAUNCHES_BETWEEN_CHECKS:  # the queue must not grow without bound
                self.device.wait(before)
                before, latest = latest, self.device.mark()
            self._check_deadline(call)

    def _copy_out(
        self, program: Program, plan: Plan, context: Context | None, inputs: InstanceSets
    ) -> InstanceSets:
        item_name, key = program.name_of_outputs(inputs)
        offset = 0
        sets = []
        for name in program.outputs:
            slot = plan.outputs[name]
            assert context is not None
            view = context.view[offset : offset + slot.size_bytes]
            self.pool.read(slot, view)
            offset += aligned(slot.size_bytes)
            item = Item(name if item_name is None else item_name, key, view.toreadonly())
            sets.append(ItemSet(name, (item,)))
        return tuple(sets)

    def _check_deadline(self, call: Call) -> None:
        if time.monotonic_ns() >= call.deadline_ns:
            raise TimedOut(call.function.spec.name, "wall", call.limit_s)

    def _exact(self) -> None:
        if self.exact_stages:
            self.device.synchronize()

    # between calls

    def settle(self) -> None:
        """Zero what the last call used; the device does it while the outputs are on their way."""
        call, self._settling = self._settling, None
        if self._broken or not self.pool.dirty_bytes:
            return
        started = time.perf_counter_ns()
        try:
            self.pool.clean()
            self._exact()
        except DeviceFault:
            self._recover()  # the pool stays dirty; the next call tries again
        if call is not None:
            call.stages["zero"] = time.perf_counter_ns() - started

    def _recover(self) -> None:
        """After a failure: wait until the device touches no memory of the call any more."""
        try:
            self.device.synchronize()
        except DeviceFault as error:
            self._broken = self.device.fault() or ""
            if self._broken:
                return
            try:
                self.device.synchronize()
            except DeviceFault:
                self._broken = str(error)
                return
        self._in_flight.clear()

    def forget(self, function: Function) -> None:
        """Drop what was cached for a function that is no longer registered."""
        self._programs.forget(function.identity)
        if not self._broken:
            self.device.synchronize()
            self.modules.forget(function.identity)

    def close(self) -> None:
        """Give the device back. May be called twice."""
        try:
            if not self._broken:
                self.device.synchronize()
                self.modules.close()
                self.pool.close()
        finally:
            self._broken = self._broken or "it was closed"
            self.device.close()
            self._in_flight.clear()
