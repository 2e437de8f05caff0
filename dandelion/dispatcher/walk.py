"""The walk of one invocation: a pure state machine, events in, instructions out.

Events are the methods `start`, `finished`, `failed`, `again`, `give_up`, `cancel` and `resume`;
each returns a list of instructions for the node to carry out. The walk has no clock, no I/O and no
lock; only one thread may call it at a time.

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
* Compositions may go on endlessly without running a function: empty iterations, endless renaming.
  A walk with a slice stops with `has_more` after it has begun this number of applications, frames
  that it left included, until it is resumed.
* An application of a function that was made of several (`dandelion.fusion`) is run as these, in a
  frame of their own, if a call of it fails, or if one of its sets is absent: then some of its parts
  may run and others not.
* An instance that fails may be handled by its application, else by the instance of a composition
  that it is inside of, and so on outwards. It is run again with the same inputs, after a pause, or
  it becomes an item of an errors set, as if it had no outputs. Whatever else is in flight inside of
  a nested composition that failed is cancelled first.
* A failure that is not handled ends the walk: instances in flight are cancelled, sets are dropped.
  Events of instances that are no longer in flight are ignored, so cancelling may race with
  finishing. Each attempt is an instance in flight of its own; so is a pause.

Source: execution model of the Dandelion paper; skipping and optional sets as in its language.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from mypy_extensions import mypyc_attr

from dandelion.data import ItemSet, Origin
from dandelion.dataflow.sharding import Instance, Partitioning, instances, merged
from dandelion.dispatcher.frames import (
    Caught,
    Frame,
    InFlight,
    Iteration,
    Running,
    errors_set,
    first_iteration,
    is_inside,
    renamed,
)
from dandelion.dispatcher.instructions import Cancel, Complete, Fail, Instruction, Pause, Run
from dandelion.dispatcher.plan import ApplicationPlan, CompositionPlan, FailurePlan
from dandelion.errors import ApplicationFailed, Cancelled, DandelionError, TooMany, root_of
from dandelion.failures import CAUGHT_LIMIT, MESSAGES_LIMIT, NEVER, caught_item, pause_s

_NONE: Iterator[Instance] = iter(())

WINDOW = 64
"""How many instances of one application are in flight at once."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Walk:
    """One invocation of a composition.

    Args:
        plan: the invoked composition.
        policy: partitions of ``any`` shardings.
        window: how many instances of an application may be in flight at once.
        slice_: how many applications an event begins at most; 0 is no limit. With a slice, call
            `resume` while `has_more`.

    Attributes:
        done: it has completed or failed.
        has_more: it stopped after a slice, or instructions were put back.
        has_dropped: instances were cancelled while others go on, so that instructions to run them
            may be outdated; see `expects`.
        caught, retried: numbers of failures that were caught, and tried again.
        caught_bytes: size of all items of errors sets so far.
    """

    def __init__(
        self, plan: CompositionPlan, policy: Partitioning, window: int = WINDOW, slice_: int = 0
    ) -> None:
        self.plan = plan
        self.done = False
        self.has_more = False
        self.has_dropped = False
        self.caught = self.retried = self.caught_bytes = 0
        self._policy = policy
        self._window = window
        self._slice = slice_
        self._in_flight: dict[int, InFlight] = {}
        self._next_instance = 0
        self._instructions: list[Instruction] = []
        self._put_back: list[Instruction] = []
        # Applications to begin, perhaps with their next iteration; None: the frame is to be left.
        # The last entry is taken first.
        self._ready: list[tuple[Frame, ApplicationPlan | None, Iteration | None]] = []

    @property
    def in_flight(self) -> int:
        """Number of function instances in flight, and of pauses."""
        return len(self._in_flight)

    def expects(self, instance: int) -> bool:
        """Tell whether an instance, or a pause, is in flight."""
        return instance in self._in_flight

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
        """Record an instance's failure: handle it, run its parts, or fail the invocation."""
        call = self._in_flight.pop(instance, None)
        if call is None or self.done:
            return []
        if call.running.plan.parts is not None and not isinstance(error, Cancelled):
            self._enter_parts(call)
            return self._take()
        return self._failed(call, error, may_try_again=True)

    def again(self, instance: int) -> list[Instruction]:
        """Run an instance again, whose pause is over."""
        call = self._in_flight.pop(instance, None)
        if call is None or self.done:
            return []
        call.attempt += 1
        self._send(call)
        return self._take()

    def give_up(self, instance: int, error: DandelionError) -> list[Instruction]:
        """Fail an instance that cannot pause, with the error of its last attempt."""
        call = self._in_flight.pop(instance, None)
        if call is None or self.done:
            return []
        self.retried -= 1
        return self._failed(call, error, may_try_again=False)

    def put_back(self, instructions: list[Instruction]) -> None:
        """Take instructions back that are to be carried out later; call `resume` for them."""
        self._put_back += instructions
        self.has_more = True

    def _failed(
        self, call: InFlight, error: DandelionError, may_try_again: bool
    ) -> list[Instruction]:
        """Have a failure handled where it can be, from the inside to the outside."""
        parent: InFlight | None = call
        while parent is not None:
            failures = parent.running.plan.failures
            if failures is not None:
                if self._is_handled(parent, failures, error, may_try_again):
                    return self._take()
                may_try_again = True
            frame = parent.frame
            outer = frame.parent
            within = parent
            if outer is not None and outer.running.plan.parts is frame.plan:
                within, frame = outer, outer.frame  # the parts stand for their application
            if not frame.plan.is_call:
                error = ApplicationFailed(
                    frame.plan.name,
                    parent.running.plan.id,
                    within.number,
                    within.key(),
                    within.attempt,
                ).because(error)
            parent = frame.parent
        return self.cancel(error)

    def resume(self) -> list[Instruction]:
        """Continue after the end of a slice, or with what was put back."""
        instructions, self._put_back = self._put_back, []
        return [*instructions, *self._take()]

    def cancel(self, error: DandelionError) -> list[Instruction]:
        """End the invocation with an error: of an instance, a deadline, a closed connection."""
        if self.done:
            return []
        self.done = True
        instructions: list[Instruction] = [Cancel(instance) for instance in self._in_flight]
        self._in_flight.clear()
        self._instructions.clear()
        self._put_back.clear()
        self._ready.clear()
        self.has_more = False
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
        in_flight = self._in_flight.values()
        iterations = [one for _, _, one in self._ready if one is not None]
        runs = {call.running: None for call in in_flight}
        frames: dict[Frame, None] = {}
        busy = [call.frame for call in in_flight]
        busy += [frame for frame, _, _ in self._ready]
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
        caught = [running.caught for running in runs]
        caught += [iteration.caught for iteration in iterations]
        yield from (one.items_only() for one in caught if one is not None)
        for sets in (*(c.inputs for c in in_flight), *(i.sets for i in iterations)):
            yield from sets

    def _take(self) -> list[Instruction]:
        """Begin what is ready, without recursion, and return the instructions."""
        left, ready = self._slice, self._ready
        while ready and not self.done:
            frame, plan, iteration = ready.pop()
            if plan is None:
                self._leave(frame)
            else:
                self._begin(frame, plan, iteration)
            left -= 1
            if not left:
                break
        self.has_more = bool(ready or self._put_back)
        instructions = self._instructions
        self._instructions = []
        return instructions

    def _enter(
        self,
        plan: CompositionPlan,
        inputs: Sequence[ItemSet | None],
        parent: InFlight | None,
        origin: Origin | None = None,
    ) -> None:
        frame = Frame(
            plan,
            [None] * plan.set_count,
            [application.waits for application in plan.applications],
            parent,
            len(plan.applications),
            list(plan.uses),
            origin,
        )
        for set_id, item_set in enumerate(inputs):
            self._know(frame, set_id, item_set)
        for application in reversed(plan.applications):
            if not application.waits:
                self._ready.append((frame, application, None))  # begun first, without recursion
        if not plan.applications:
            self._ready.append((frame, None, None))

    def _know(self, frame: Frame, set_id: int, item_set: ItemSet | None) -> None:
        """Record a set of a frame that is known: begin what waited for nothing else."""
        if frame.uses[set_id]:
            frame.sets[set_id] = item_set
        plan, missing = frame.plan, frame.missing
        for index in plan.consumers[set_id]:
            missing[index] -= 1
            if not missing[index]:
                self._ready.append((frame, plan.applications[index], None))

    def _begin(
        self, frame: Frame, plan: ApplicationPlan, iteration: Iteration | None = None
    ) -> None:
        if iteration is None:
            known = frame.sets
            sets = tuple([None if s is None else known[s] for s in plan.sources])
            if plan.repeat is not None:
                iteration = first_iteration(frame, plan.repeat, sets)
        else:
            sets = iteration.sets
        for at in plan.required:
            if sets[at] is None:
                self._lack(frame, plan, sets, iteration)
                return
        running = Running(plan, _NONE, exhausted=True)
        if iteration is not None:
            running.made = running.before = iteration.made
            running.left = iteration.left
            running.caught = iteration.caught
        if plan.is_single:
            call = InFlight(frame, running, running.made, sets)
            running.made += 1
            running.in_flight += 1
            running.outputs.append(())
            self._send(call)
            return
        running.source = instances(plan.groups, sets, self._policy)
        running.exhausted = False
        if iteration is not None:
            running.sets = sets
        self._advance(frame, running)

    def _lack(
        self,
        frame: Frame,
        plan: ApplicationPlan,
        sets: Instance,
        iteration: Iteration | None,
    ) -> None:
        """Skip an application with an absent set; run the parts that do not need it."""
        if plan.parts is None:
            caught = None if iteration is None else iteration.caught
            self._merge(frame, Running(plan, _NONE, caught=caught))
            return
        running = Running(plan, _NONE, exhausted=True, made=1, in_flight=1, outputs=[()])
        self._enter_parts(InFlight(frame, running, 0, sets))

    def _enter_parts(self, call: InFlight) -> None:
        plan = call.running.plan
        assert plan.parts is not None, "it has parts"
        inputs = [call.inputs[position] for position in plan.part_inputs]
        self._enter(plan.parts, inputs, call, self._origin(call))

    def _advance(self, frame: Frame, running: Running) -> None:
        """Make instances up to the window; merge after the last one has finished."""
        while not running.exhausted and running.in_flight < self._window:
            try:
                inputs = next(running.source, None)
            except TooMany as error:
                self._refuse(frame, running, error)
                return
            if inputs is None:
                running.exhausted = True
                running.sets = ()
                break
            call = InFlight(frame, running, running.made, inputs)
            running.made += 1
            running.in_flight += 1
            running.outputs.append(())
            self._send(call)
        if running.exhausted and not running.in_flight:
            self._merge(frame, running)

    def _refuse(self, frame: Frame, running: Running, error: DandelionError) -> None:
        """Fail an application that can have no instances."""
        call = InFlight(frame, running, running.made, (None,) * len(running.plan.sources))
        running.made += 1
        running.in_flight += 1
        running.exhausted = True
        running.outputs.append(())
        found = self._failed(call, error, may_try_again=False)
        self._instructions = [*found, *self._instructions]

    def _send(self, call: InFlight) -> None:
        """Run an instance, for the first time or again."""
        plan = call.running.plan
        target = plan.target
        origin = self._origin(call)
        if isinstance(target, CompositionPlan):
            self._enter(target, call.inputs, call, origin)
            return
        instance = self._next_instance
        self._next_instance += 1
        self._in_flight[instance] = call
        self._instructions.append(
            Run(instance, target, call.inputs, plan, call.number, origin, call.attempt)
        )

    @staticmethod
    def _origin(call: InFlight) -> Origin | None:
        for position, is_each in call.running.plan.origins:
            item_set = call.inputs[position]
            if item_set is not None:
                item = item_set.items[0]
                return Origin(item.name if is_each else None, item.key)
        return call.frame.origin

    def _collect(self, call: InFlight, outputs: tuple[ItemSet | None, ...]) -> None:
        running = call.running
        running.outputs[call.number - running.before] = outputs
        running.in_flight -= 1
        if not running.exhausted:
            self._advance(call.frame, running)
        elif not running.in_flight:
            self._merge(call.frame, running)

    def _merge(self, frame: Frame, running: Running) -> None:
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
                self._know(frame, produced, item_set)
        failures = plan.failures
        if failures is not None and failures.errors is not None:
            self._know(frame, failures.errors, errors_set(running.caught))
        if not frame.left:
            self._ready.append((frame, None, None))

    def _feed(self, frame: Frame, running: Running, outputs: Instance) -> bool:
        """Schedule the next iteration; False if the loop ends here."""
        plan, repeat = running.plan, running.plan.repeat
        assert repeat is not None, "only a repeated application has iterations left"
        if repeat.until is not None and outputs[repeat.until] is None:
            return False
        sets = [None if s is None else frame.sets[s] for s in plan.sources]
        for parameter, output in repeat.feedback:
            sets[parameter] = outputs[output]
        next_one = Iteration(tuple(sets), running.made, running.left - 1, running.caught)
        self._ready.append((frame, plan, next_one))
        return True

    # --- failures -----------------------------------------------------------------------------

    def _is_handled(
        self, call: InFlight, failures: FailurePlan, error: DandelionError, may_try_again: bool
    ) -> bool:
        """Try an instance again that failed, or catch its failure; False if neither is declared."""
        root, running = root_of(error), call.running
        if isinstance(root, NEVER):
            return False
        if may_try_again and failures.tries_again(root, call.attempt):
            self.retried += 1
            self._drop_inside(call)
            self._try_again(call, pause_s(failures.backoff_s, call.attempt), error)
            return True
        if failures.errors is None or not isinstance(root, failures.caught):
            return False
        if running.caught is None:
            running.caught = Caught()
        elif len(running.caught.items) >= CAUGHT_LIMIT:
            return False
        self.caught += 1
        self._drop_inside(call)
        self._note(call, running.caught, error)
        self._collect(call, (None,) * len(running.plan.produced))
        return True

    def _try_again(self, call: InFlight, pause: float, error: DandelionError) -> None:
        if not pause:
            call.attempt += 1
            self._send(call)
            return
        instance = self._next_instance
        self._next_instance += 1
        self._in_flight[instance] = call
        self._instructions.append(Pause(instance, pause, error))

    def _note(self, call: InFlight, caught: Caught, error: DandelionError) -> None:
        """Add an item to the errors set."""
        left = MESSAGES_LIMIT - caught.characters
        name, origin = call.running.plan.id, self._origin(call)
        item = caught_item(error, name, call.number, call.attempt, origin, left)
        caught.items.append((call.number, item))
        caught.characters += item.size_bytes
        self.caught_bytes += item.size_bytes

    def _drop_inside(self, call: InFlight) -> None:
        """Cancel everything that is in flight inside of an instance of a composition."""
        if not isinstance(call.running.plan.target, CompositionPlan):
            return
        self.has_dropped = True
        for instance, one in list(self._in_flight.items()):
            if is_inside(one.frame, call):
                del self._in_flight[instance]
                self._instructions.append(Cancel(instance))
        self._ready = [entry for entry in self._ready if not is_inside(entry[0], call)]

    def _leave(self, frame: Frame) -> None:
        plan, sets = frame.plan, frame.sets
        outputs = tuple(
            [
                renamed(name, sets[set_id])
                for name, set_id in zip(plan.output_names, plan.outputs, strict=True)
            ]
        )
        if frame.parent is not None:
            self._collect(frame.parent, outputs)
            return
        self.done = True
        self._instructions.append(Complete(outputs))
