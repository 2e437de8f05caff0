"""The walk of one invocation: a pure state machine, events in, instructions out.

Events are the methods `start`, `finished`, `failed`, `cancel` and `resume`; each returns a list of
instructions for the node to carry out. The walk has no clock, no I/O and no lock; only one thread
may call it at a time.

Life of an application within a frame (a frame is one run of a composition)::

    waiting --last set known--> skipped                      (a required set is absent)
                            --> running --last instance--> merged
                                   ^------ next iteration ----'      (it is repeated)

* A set is known when all instances of its producer have finished; there is no streaming between
  applications.
* Instances are made as others finish: at most `window` of an application are in flight at once.
* Nested compositions run in frames of their own, one for each instance.
* A loop is one application whose instances are made again from fed-back sets. Only the sets that
  the next iteration needs are kept.
* Compositions may resolve sets endlessly without running a function: empty iterations, endless
  renaming. A walk with a slice stops after this number of sets with `has_pending_sets`, until it is
  resumed.
* An application of a function that was made of several (`dandelion.fusion`) is run as these, in a
  frame of their own, if a call of it fails, or if one of its sets is absent: then some of its parts
  may run and others not.
* The first failure ends the walk: instances in flight are cancelled, sets are dropped. Events of
  instances that are no longer in flight are ignored, so cancelling may race with finishing.

Source: execution model of the Dandelion paper; skipping and optional sets as in its language.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import msgspec

from dandelion.data import ItemSet, Origin
from dandelion.dataflow.graph import Sharding
from dandelion.dataflow.sharding import Instance, Partitioning, instances, merged
from dandelion.dispatcher.plan import ApplicationPlan, CompositionPlan, RepeatPlan
from dandelion.errors import ApplicationFailed, Cancelled, DandelionError
from dandelion.function import FunctionSpec

_FRAME_END = -1  # resolved last: all sets of the frame are known
_NEXT_ITERATION = -2  # and below: the next iteration of application 0, 1, ... of the frame

_NONE: Iterator[Instance] = iter(())

WINDOW = 64
"""How many instances of one application are in flight at once."""


class Run(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Run an instance of a function; reply with `Walk.finished` or `Walk.failed`.

    Attributes:
        instance: id of the instance within the walk.
        function: the function.
        inputs: its sets by position; static ones are absent here.
        application: the application, for errors and traces.
        number: of the instance in its application, from 0, counted over all iterations.
        origin: the item that the instance is made for, if it is made for one.
    """

    instance: int
    function: FunctionSpec
    inputs: Instance
    application: ApplicationPlan
    number: int
    origin: Origin | None = None


class Cancel(msgspec.Struct, frozen=True):
    """Stop an instance if possible; its outputs are dropped."""

    instance: int


class Complete(msgspec.Struct, frozen=True):
    """The invocation has completed, with its output sets by position."""

    outputs: tuple[ItemSet | None, ...]


class Fail(msgspec.Struct, frozen=True):
    """The invocation failed."""

    error: DandelionError


Instruction: TypeAlias = Run | Cancel | Complete | Fail


class _Running(msgspec.Struct, eq=False, gc=False):
    """A running application.

    `made` counts instances of all iterations, `before` those of earlier ones; `left` is the largest
    number of iterations from here on, including this one. `sets` are those that instances are still
    made from, if the frame does not have them.
    """

    plan: ApplicationPlan
    source: Iterator[Instance]
    outputs: list[tuple[ItemSet | None, ...]] = []
    made: int = 0
    in_flight: int = 0
    exhausted: bool = False
    before: int = 0
    left: int = 1
    sets: Instance = ()


class _Iteration(msgspec.Struct, eq=False, gc=False):
    """The next iteration of a loop: its bound sets, and the number of instances made so far."""

    sets: Instance
    made: int
    left: int


class _Frame(msgspec.Struct, eq=False, gc=False):
    """One run of a composition. `parent` is the instance of the enclosing frame, if any.

    `missing` counts the sets that an application waits for, `left` the applications that have not
    merged, `uses` the applications that still need a set: without uses a set is dropped. `origin`
    is the item that the frame is made for; its instances inherit it unless they have their own.
    """

    plan: CompositionPlan
    sets: list[ItemSet | None]
    missing: list[int]
    parent: _InFlight | None
    left: int
    uses: list[int]
    origin: Origin | None = None


class _InFlight(msgspec.Struct, eq=False, gc=False):
    """An instance in flight: its frame, its application, its number and its inputs."""

    frame: _Frame
    running: _Running
    number: int
    inputs: Instance

    def key(self) -> int | None:
        """Return the key of its first sharded set, which identifies the instance in errors."""
        for group in self.running.plan.groups:
            for position in group.positions:
                item_set = self.inputs[position]
                if group.sharding is not Sharding.ALL and item_set is not None:
                    return item_set.items[0].key
        return None


class Walk:
    """One invocation of a composition.

    Args:
        plan: the invoked composition.
        policy: partitions of ``any`` shardings.
        window: how many instances of an application may be in flight at once.
        slice_: how many sets an event resolves at most; 0 resolves all. With a slice, call `resume`
            while `has_pending_sets`.
    """

    def __init__(
        self, plan: CompositionPlan, policy: Partitioning, window: int = WINDOW, slice_: int = 0
    ) -> None:
        self.plan = plan
        self.done = False
        self.has_pending_sets = False
        self._policy = policy
        self._window = window
        self._slice = slice_
        self._in_flight: dict[int, _InFlight] = {}
        self._next_instance = 0
        self._instructions: list[Instruction] = []
        self._pending: list[tuple[_Frame, int, ItemSet | None]] = []
        self._iterations: dict[tuple[_Frame, int], _Iteration] = {}

    @property
    def in_flight(self) -> int:
        """Number of function instances in flight."""
        return len(self._in_flight)

    def start(self, inputs: Sequence[ItemSet | None]) -> list[Instruction]:
        """Start, with the input sets by position."""
        self._enter(self.plan, inputs, None)
        return self._take()

    def finished(self, instance: int, outputs: tuple[ItemSet | None, ...]) -> list[Instruction]:
        """Record an instance's outputs, by position."""
        call = self._in_flight.pop(instance, None)
        if call is None or self.done:
            return []
        self._collect(call, outputs)
        return self._take()

    def failed(self, instance: int, error: DandelionError) -> list[Instruction]:
        """Record an instance's failure, which fails the invocation or runs its parts."""
        call = self._in_flight.pop(instance, None)
        if call is None or self.done:
            return []
        if call.running.plan.parts is not None and not isinstance(error, Cancelled):
            self._enter_parts(call)
            return self._take()
        parent: _InFlight | None = call
        while parent is not None:
            frame = parent.frame
            outer = frame.parent
            within = parent
            if outer is not None and outer.running.plan.parts is frame.plan:
                within, frame = outer, outer.frame  # the parts stand for their application
            if not frame.plan.is_call:
                error = ApplicationFailed(
                    frame.plan.name, parent.running.plan.id, within.number, within.key()
                ).because(error)
            parent = frame.parent
        return self.cancel(error)

    def resume(self) -> list[Instruction]:
        """Continue after the end of a slice."""
        return self._take()

    def cancel(self, error: DandelionError) -> list[Instruction]:
        """End the invocation with an error: of an instance, a deadline, a closed connection."""
        if self.done:
            return []
        self.done = True
        instructions: list[Instruction] = [Cancel(instance) for instance in self._in_flight]
        self._in_flight.clear()
        self._instructions.clear()
        self._pending.clear()
        self.has_pending_sets = False
        self._iterations.clear()
        return [*instructions, Fail(error)]

    def held(self) -> tuple[int, int]:
        """Return the bytes of the data that is still needed, and how many items were visited.

        Data that is in several sets counts once.
        """
        items = {id(one.items): one.items for one in self._held_sets() if one is not None}
        sizes = {id(item.data): item.size_bytes for some in items.values() for item in some}
        return sum(sizes.values()), sum(map(len, items.values()))

    # --- private ----------------------------------------------------------------------------

    def _held_sets(self) -> Iterator[ItemSet | None]:
        """Yield all sets that are still needed, perhaps several times."""
        in_flight, pending, iterations = self._in_flight.values(), self._pending, self._iterations
        runs = {call.running: None for call in in_flight}
        frames: dict[_Frame, None] = {}
        busy = [call.frame for call in in_flight]
        busy += [frame for frame, _, _ in pending]
        busy += [frame for frame, _ in iterations]
        for frame in busy:
            while frame not in frames:
                frames[frame] = None
                yield from frame.sets
                if frame.parent is None:
                    break
                runs[frame.parent.running] = None
                yield from frame.parent.inputs
                frame = frame.parent.frame
        for running in runs:
            yield from running.sets
            yield from itertools.chain.from_iterable(running.outputs)
        for sets in (*(c.inputs for c in in_flight), *(i.sets for i in iterations.values())):
            yield from sets
        yield from (item_set for _, _, item_set in pending)

    def _take(self) -> list[Instruction]:
        """Resolve pending sets, without recursion, and return the instructions."""
        left, pending = self._slice, self._pending
        while pending and not self.done:
            self._resolve(*pending.pop())
            left -= 1
            if not left:
                break
        self.has_pending_sets = bool(pending)
        instructions = self._instructions
        self._instructions = []
        return instructions

    def _enter(
        self,
        plan: CompositionPlan,
        inputs: Sequence[ItemSet | None],
        parent: _InFlight | None,
        origin: Origin | None = None,
    ) -> None:
        frame = _Frame(
            plan,
            [None] * plan.set_count,
            [application.waits for application in plan.applications],
            parent,
            len(plan.applications),
            list(plan.uses),
            origin,
        )
        for application in plan.applications:
            if not application.waits:
                self._begin(frame, application)
        for set_id, item_set in enumerate(inputs):
            self._pending.append((frame, set_id, item_set))
        if not plan.applications:
            self._pending.insert(0, (frame, _FRAME_END, None))

    def _resolve(self, frame: _Frame, set_id: int, item_set: ItemSet | None) -> None:
        """Record a known set of a frame: start the applications that wait for it."""
        if set_id < 0:
            self._end_or_repeat(frame, set_id)
            return
        if frame.uses[set_id]:
            frame.sets[set_id] = item_set
        for index in frame.plan.consumers[set_id]:
            frame.missing[index] -= 1
            if not frame.missing[index]:
                self._begin(frame, frame.plan.applications[index])

    def _end_or_repeat(self, frame: _Frame, event: int) -> None:
        """Leave a frame, or start the next iteration of one of its applications."""
        if event == _FRAME_END:
            self._leave(frame)
            return
        plan = frame.plan.applications[_NEXT_ITERATION - event]
        self._begin(frame, plan, self._iterations.pop((frame, plan.index)))

    def _begin(
        self, frame: _Frame, plan: ApplicationPlan, iteration: _Iteration | None = None
    ) -> None:
        if iteration is None:
            known = frame.sets
            sets = tuple([None if s is None else known[s] for s in plan.sources])
            if plan.repeat is not None:
                iteration = _first_iteration(frame, plan.repeat, sets)
        else:
            sets = iteration.sets
        for at in plan.required:
            if sets[at] is None:
                self._lack(frame, plan, sets)
                return
        running = _Running(plan, _NONE, exhausted=True)
        if iteration is not None:
            running.made = running.before = iteration.made
            running.left = iteration.left
        if plan.is_single:
            self._send(_InFlight(frame, running, running.made, sets))
            return
        running.source = instances(plan.groups, sets, self._policy)
        running.exhausted = False
        if iteration is not None:
            running.sets = sets
        self._advance(frame, running)

    def _lack(self, frame: _Frame, plan: ApplicationPlan, sets: Instance) -> None:
        """Skip an application with an absent set; run the parts that do not need it."""
        if plan.parts is None:
            self._merge(frame, _Running(plan, _NONE))
            return
        running = _Running(plan, _NONE, exhausted=True, made=1, in_flight=1, outputs=[()])
        self._enter_parts(_InFlight(frame, running, 0, sets))

    def _enter_parts(self, call: _InFlight) -> None:
        plan = call.running.plan
        assert plan.parts is not None, "it has parts"
        inputs = [call.inputs[position] for position in plan.part_inputs]
        self._enter(plan.parts, inputs, call, self._origin(call))

    def _advance(self, frame: _Frame, running: _Running) -> None:
        """Make instances up to the window; merge after the last one has finished."""
        while not running.exhausted and running.in_flight < self._window:
            inputs = next(running.source, None)
            if inputs is None:
                running.exhausted = True
                running.sets = ()
                break
            self._send(_InFlight(frame, running, running.made, inputs))
        if running.exhausted and not running.in_flight:
            self._merge(frame, running)

    def _send(self, call: _InFlight) -> None:
        running = call.running
        running.made += 1
        running.in_flight += 1
        running.outputs.append(())
        plan = running.plan
        target = plan.target
        origin = self._origin(call)
        if isinstance(target, CompositionPlan):
            self._enter(target, call.inputs, call, origin)
            return
        instance = self._next_instance
        self._next_instance += 1
        self._in_flight[instance] = call
        self._instructions.append(Run(instance, target, call.inputs, plan, call.number, origin))

    @staticmethod
    def _origin(call: _InFlight) -> Origin | None:
        for position, is_each in call.running.plan.origins:
            item_set = call.inputs[position]
            if item_set is not None:
                item = item_set.items[0]
                return Origin(item.name if is_each else None, item.key)
        return call.frame.origin

    def _collect(self, call: _InFlight, outputs: tuple[ItemSet | None, ...]) -> None:
        running = call.running
        running.outputs[call.number - running.before] = outputs
        running.in_flight -= 1
        if not running.exhausted:
            self._advance(call.frame, running)
        elif not running.in_flight:
            self._merge(call.frame, running)

    def _merge(self, frame: _Frame, running: _Running) -> None:
        plan = running.plan
        outputs: tuple[ItemSet | None, ...]
        if running.outputs:
            outputs = merged(plan.output_names, running.outputs)
        else:
            outputs = (None,) * len(plan.produced)
        if running.left > 1 and self._feed(frame, running, outputs):
            return
        frame.left -= 1
        uses = frame.uses
        for set_id in plan.kept_sets:
            uses[set_id] -= 1
            if not uses[set_id]:
                frame.sets[set_id] = None
        for produced, item_set in zip(plan.produced, outputs, strict=True):
            if produced is not None:
                self._pending.append((frame, produced, item_set))
        if not frame.left:
            self._pending.insert(0, (frame, _FRAME_END, None))

    def _feed(self, frame: _Frame, running: _Running, outputs: Instance) -> bool:
        """Schedule the next iteration; False if the loop ends here."""
        plan, repeat = running.plan, running.plan.repeat
        assert repeat is not None, "only a repeated application has iterations left"
        if repeat.until is not None and outputs[repeat.until] is None:
            return False
        sets = [None if s is None else frame.sets[s] for s in plan.sources]
        for parameter, output in repeat.feedback:
            sets[parameter] = outputs[output]
        next_one = _Iteration(tuple(sets), running.made, running.left - 1)
        self._iterations[frame, plan.index] = next_one
        self._pending.append((frame, _NEXT_ITERATION - plan.index, None))
        return True

    def _leave(self, frame: _Frame) -> None:
        plan, sets = frame.plan, frame.sets
        outputs = tuple(
            [
                _named(name, sets[set_id])
                for name, set_id in zip(plan.output_names, plan.outputs, strict=True)
            ]
        )
        if frame.parent is not None:
            self._collect(frame.parent, outputs)
            return
        self.done = True
        self._instructions.append(Complete(outputs))


def _named(name: str, item_set: ItemSet | None) -> ItemSet | None:
    if item_set is None or item_set.name == name:
        return item_set
    return ItemSet(name, item_set.items, item_set.dtype, item_set.shape)


def _first_iteration(frame: _Frame, repeat: RepeatPlan, sets: Instance) -> _Iteration:
    """Start a loop; drop the sets that only its first iteration needs."""
    for set_id in repeat.dropped:
        frame.uses[set_id] -= 1
        if not frame.uses[set_id]:
            frame.sets[set_id] = None
    return _Iteration(sets, 0, repeat.times)
