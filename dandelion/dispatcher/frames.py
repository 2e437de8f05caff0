"""The state of a walk: frames, running applications, instances in flight."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from dandelion.data import Item, ItemSet, Origin
from dandelion.dataflow.graph import Sharding
from dandelion.dataflow.sharding import Instance
from dandelion.dispatcher.plan import ApplicationPlan, CompositionPlan, RepeatPlan


class Caught(msgspec.Struct, eq=False, gc=False):
    """Failures that an application caught: items with their instances; characters of messages."""

    items: list[tuple[int, Item]] = []
    characters: int = 0

    def items_only(self) -> ItemSet:
        """Return the items in any order, to count them."""
        return ItemSet("errors", tuple([item for _, item in self.items]))


class Running(msgspec.Struct, eq=False, gc=False):
    """A running application.

    `made` counts instances of all iterations, `before` those of earlier ones; `left` is the largest
    number of iterations from here on, including this one. `sets` are those that instances are still
    made from, if the frame does not have them. `caught` has the failures of all iterations.
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
    caught: Caught | None = None


class Iteration(msgspec.Struct, eq=False, gc=False):
    """The next iteration of a loop: its bound sets, and the instances and failures so far."""

    sets: Instance
    made: int
    left: int
    caught: Caught | None = None


class Frame(msgspec.Struct, eq=False, gc=False):
    """One run of a composition. `parent` is the instance of the enclosing frame, if any.

    `missing` counts the sets that an application waits for, `left` the applications that have not
    merged, `uses` the applications that still need a set: without uses a set is dropped. `origin`
    is the item that the frame is made for; its instances inherit it unless they have their own.
    """

    plan: CompositionPlan
    sets: list[ItemSet | None]
    missing: list[int]
    parent: InFlight | None
    left: int
    uses: list[int]
    origin: Origin | None = None


class InFlight(msgspec.Struct, eq=False, gc=False):
    """An instance in flight: its frame, its application, its number, its inputs, its attempt."""

    frame: Frame
    running: Running
    number: int
    inputs: Instance
    attempt: int = 1

    def key(self) -> int | None:
        """Return the key of its first sharded set, which identifies the instance in errors."""
        for group in self.running.plan.groups:
            for position in group.positions:
                item_set = self.inputs[position]
                if group.sharding is not Sharding.ALL and item_set is not None:
                    return item_set.items[0].key
        return None


def renamed(name: str, item_set: ItemSet | None) -> ItemSet | None:
    if item_set is None or item_set.name == name:
        return item_set
    return ItemSet(name, item_set.items, item_set.dtype, item_set.shape)


def first_iteration(frame: Frame, repeat: RepeatPlan, sets: Instance) -> Iteration:
    """Start a loop; drop the sets that only its first iteration needs."""
    for set_id in repeat.dropped:
        frame.uses[set_id] -= 1
        if not frame.uses[set_id]:
            frame.sets[set_id] = None
    return Iteration(sets, 0, repeat.times)


def is_inside(frame: Frame, call: InFlight) -> bool:
    """Tell whether a frame was entered for an instance, or for one inside of it."""
    while frame.parent is not None:
        if frame.parent is call:
            return True
        frame = frame.parent.frame
    return False


def errors_set(caught: Caught | None) -> ItemSet | None:
    """Make the errors set: in the order of instances, then of keys, as every other set."""
    if caught is None:
        return None
    ordered = sorted(caught.items, key=lambda entry: (entry[1].key, entry[0]))
    return ItemSet("errors", tuple([item for _, item in ordered]))
