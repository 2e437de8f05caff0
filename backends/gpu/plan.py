"""Plans: what a call of a blueprint will do, worked out before it runs and without a device.

A plan is a function of the blueprint, the inputs' sizes and the integers that sizes read; what only
goes to kernels by value is open in it, see `.open_arguments`. It says where in the buffer pool each
buffer lies, what is launched with which arguments, and how large everything is. The n-th call of a
plan uses the same offsets as the first, so a device can prepare its launches once, or capture them
as a graph.

Repeats stay compact: `Plan.steps` holds each launch of the blueprint once, `Plan.program` says
in which order, with loops.

Where a call must not begin, the error names the place: `InvalidInput` if the inputs brought it
about, `InvalidBlueprint` if it would be so with any input.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from dandelion.blueprint import Access, GpuConfig
from dandelion.blueprint.operation_calls import OperationCall, operand_calls
from dandelion.errors import InvalidInput

from .branches import BranchLaunch, set_apart
from .draft_records import (
    CandidateGroup,
    Choices,
    CopyDraft,
    Draft,
    Loop,
    OperationDraft,
    Program,
    ZeroDraft,
    walked,
)
from .drafts import Drafts, check_word
from .layout import Lifetime, Slot, aligned, is_shared, place, used_bytes
from .lowering import LibraryStep, Lowering
from .open_arguments import OpenArgument
from .plan_html import StepRow, plan_html
from .sizes import ReadInteger, Sizes
from .templates import PREFIX, Template, TemplateLaunch


@dataclass(frozen=True, slots=True)
class Pointer:
    """An argument that is the address of a buffer: its place, in bytes.

    Attributes:
        offset_bytes: in the pool, or in the memory of the constants that stay on the device.
        size_bytes: of the buffer.
        constant: which of the two.
    """

    offset_bytes: int
    size_bytes: int
    constant: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch.

    Attributes:
        args: those by value are packed as the kernel gets them.
        access: what is declared of the kernel's parameters; it may be shorter than `args`.
        open_args: of those by value, which each call gives: the position in `args`, where there
            are only bytes of its size, and the index in `Plan.open_arguments`.
    """

    kernel: str
    args: tuple[Pointer | bytes, ...]
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int = 0
    access: tuple[Access, ...] = ()
    open_args: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Zero:
    """Zero a part of the pool amid a call."""

    offset_bytes: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy a part of the pool, or of the constants, to another part of the pool."""

    target: Pointer
    source: Pointer


@dataclass(frozen=True, slots=True)
class LibraryCall:
    """One operation of the device's library.

    Attributes:
        call: which, with sizes.
        operands: the whole buffer of each operand, by its field; ``out`` is written.
        workspace: memory that it needs besides, or None.
    """

    call: OperationCall
    operands: Mapping[str, Pointer]
    workspace: Pointer | None


Step: TypeAlias = Launch | Zero | Copy | LibraryCall


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """See the module's text. Plans are equal only if they are the same object.

    Attributes:
        slots: where each buffer lies in the pool; buffers that are neither used by a
            launch nor copied out have none, nor have constants that stay on the device.
        steps: each step once.
        templates: kernels of the platform that steps launch, by the name in them.
        twin: a plan with the same steps for data of another size in padded buffers; what a device
            has prepared for it serves this one too.
        program: the order of the steps.
        launches: how many steps there are at most, loops unrolled.
        used_bytes: how much of the pool is used, from its start.
        outputs: the slots that are copied out, by name, in the order of the blueprint.
        blocks, block_threads: of the launch that has most threads.
        groups: the candidates, with the steps of the chosen alternatives.
        open_arguments: arguments by value that each call gives.
        words: offsets of the words that loops look at, by the buffer's name.
        present_if: for outputs that may be absent, the offset of the word that is zero then.
    """

    slots: Mapping[str, Slot]
    steps: tuple[Step, ...]
    program: Program
    launches: int
    used_bytes: int
    outputs: Mapping[str, Slot]
    blocks: int
    block_threads: int
    templates: Mapping[str, Template] = field(default_factory=dict)
    words: Mapping[str, int] = field(default_factory=dict)
    present_if: Mapping[str, int] = field(default_factory=dict)
    groups: tuple[CandidateGroup, ...] = ()
    open_arguments: tuple[OpenArgument, ...] = ()
    twin: Plan | None = None

    def with_twin(self, others: Iterable[Plan]) -> Plan:
        """Give this plan with the first of the others as its twin that can be it."""
        for other in others:
            if (self.slots, self.program, self.steps) == (other.slots, other.program, other.steps):
                return replace(self, twin=other.twin or other)
        return self

    def walk(self) -> Iterator[int]:
        """Give the index of each step in the order of execution, loops unrolled.

        A loop with a condition is unrolled as often as it may run.
        """
        return walked(self.program)

    def _repr_html_(self) -> str:
        return plan_html(self, map(_row, self.steps))


def _row(step: Step) -> StepRow:
    if isinstance(step, Launch):
        name = step.kernel.removeprefix(PREFIX)
        return name, step.grid, step.block, step.shared_bytes
    if isinstance(step, Zero):
        return "zero", (), (), step.size_bytes
    if isinstance(step, LibraryCall):
        name = type(step.call).__name__.removesuffix("Call").lower()
        return name, (), (), 0 if step.workspace is None else step.workspace.size_bytes
    return "copy", (), (), step.target.size_bytes


def plan(
    config: GpuConfig,
    input_sizes: Mapping[str, int],
    read_integer: ReadInteger,
    limit_bytes: int | None = None,
    resident: Mapping[str, Slot] | None = None,
    lanes: int = 1,
    room_bytes: int | None = None,
    lowering: Lowering | None = None,
    choices: Choices | None = None,
) -> Plan:
    """Work out a call.

    Args:
        config: a checked blueprint.
        input_sizes: size of each input and weight in bytes.
        read_integer: reads the integers that sizes ask for.
        limit_bytes: size of the pool; if buffers do not fit, more of them share memory at the
            price of zeroing in between. The plan may still be larger.
        resident: constants that are on the device already, and where in their memory.
        lanes: how many launches of a graph the device can run side by side; with more than one,
            buffers of such launches do not share memory where that is cheap, see `.branches`.
        room_bytes: how much the plan may take for that.
        lowering: how the device carries out library operations; by default with templates.
        choices: of candidates; by default the first alternative of each.

    Raises:
        InvalidInput: inputs are missing, too short for an integer that is read, or lead to
            impossible numbers; `where` is the place in the blueprint or the set.
        InvalidBlueprint: the blueprint is impossible with any input.
    """
    planner = _Planner(
        config, input_sizes, read_integer, resident or {}, lowering or Lowering(), choices
    )
    lifetimes = planner.lifetimes()
    slots, zeroed = place(lifetimes, tight=False)
    if limit_bytes is not None and used_bytes(slots) > limit_bytes:
        slots, zeroed = place(lifetimes, tight=True)
    elif lanes > 1 and is_shared(slots):
        slots = set_apart(planner.branches(), lifetimes, slots, lanes, room_bytes)
    return planner.plan(lifetimes, slots, zeroed)


class _Planner:
    def __init__(
        self,
        config: GpuConfig,
        sizes: Mapping[str, int],
        read: ReadInteger,
        resident: Mapping[str, Slot],
        lowering: Lowering,
        choices: Choices | None,
    ) -> None:
        body = config.blueprint
        self.body = body
        self.resident = resident
        self.inputs = (*body.inputs, *body.weights)
        for name in self.inputs:
            if name not in sizes:
                raise InvalidInput(f"sets.{name}", "it is missing; a GPU function needs every set")
        self.sizes = Sizes(config, sizes, read)
        self.access = {k.name: k.access for k in config.kernels}
        for name in body.buffers:
            self.sizes.buffer(name)
        self.drafts = Drafts(config, self.sizes, lowering, choices)
        self.templates: dict[str, Template] = {}
        self.open_arguments: dict[OpenArgument, int] = {}  # their indices
        for name, word in body.present_if.items():
            check_word(f"blueprint.present_if.{name}", word, self.sizes)

    # layout

    def branches(self) -> list[BranchLaunch]:
        """List the launches as `.branches` looks at them."""
        counts = [1] * len(self.drafts.all)
        for first, last, times in self.drafts.loops:
            counts[first : last + 1] = [count * times for count in counts[first : last + 1]]
        accesses = [draft.access for draft in self.drafts.all]
        if self.resident:
            accesses = [
                {name: way for name, way in access.items() if name not in self.resident}
                for access in accesses
            ]
        return list(map(BranchLaunch, accesses, counts))

    def plan(
        self,
        lifetimes: Mapping[str, Lifetime],
        slots: Mapping[str, Slot],
        zeroed: tuple[str, ...],
    ) -> Plan:
        drafts = self.drafts
        steps: list[Step] = [self.step(draft, slots) for draft in drafts.all]
        launches = [step for step in steps if isinstance(step, Launch)]
        shapes = [(math.prod(step.grid), math.prod(step.block)) for step in launches]
        program = drafts.program
        if zeroed:
            program = _with_zeros(program, zeroed, lifetimes, slots, steps)
        blocks, threads = max(shapes, key=math.prod, default=(0, 0))
        used = used_bytes(slots)
        outputs = {
            name: Slot(slots[name].offset_bytes, self.sizes.buffer(name))
            for name in self.body.outputs
        }
        count = drafts.launches + len(zeroed)
        words = {name: slots[name].offset_bytes for name, _ in drafts.words}
        present = {n: slots[word].offset_bytes for n, word in self.body.present_if.items()}
        return Plan(
            slots, tuple(steps), program, count, used, outputs, blocks, threads, self.templates,
            words, present, tuple(drafts.groups), tuple(self.open_arguments),
        )  # fmt: skip

    def step(self, draft: Draft, slots: Mapping[str, Slot]) -> Step:
        if isinstance(draft, CopyDraft):
            size = self.sizes.buffer(draft.target)  # padding is not copied
            target, source = (self.pointer(n, slots) for n in (draft.target, draft.source))
            return Copy(replace(target, size_bytes=size), replace(source, size_bytes=size))
        if isinstance(draft, ZeroDraft):
            slot = slots[draft.buffer]
            return Zero(slot.offset_bytes, aligned(slot.size_bytes))
        if isinstance(draft, OperationDraft):
            return self.operation(draft.step, slots)
        args: list[Pointer | bytes] = []
        open_args: list[tuple[int, int]] = []
        for argument in draft.args:
            if isinstance(argument, OpenArgument):
                index = self.open_arguments.setdefault(argument, len(self.open_arguments))
                open_args.append((len(args), index))
                args.append(argument.unset)
            elif isinstance(argument, bytes):
                args.append(argument)
            else:
                args.append(self.pointer(argument.buffer, slots, argument.offset_bytes))
        return Launch(
            draft.kernel, tuple(args), draft.grid, draft.block, draft.shared_bytes,
            self.access.get(draft.kernel, ()), tuple(open_args),
        )  # fmt: skip

    def operation(self, step: LibraryStep | TemplateLaunch, slots: Mapping[str, Slot]) -> Step:
        if isinstance(step, LibraryStep):
            places = {n: self.pointer(o.buffer, slots) for n, o in operand_calls(step.call)}
            workspace = self.pointer(step.workspace, slots) if step.workspace else None
            return LibraryCall(step.call, places, workspace)
        template = step.template
        name = PREFIX + template.symbol
        self.templates[name] = template
        args = tuple(self.pointer(a, slots) if isinstance(a, str) else a for a in step.args)
        return Launch(name, args, step.grid, step.block, 0, template.access)

    def pointer(self, name: str, slots: Mapping[str, Slot], offset_bytes: int = 0) -> Pointer:
        """The place of a buffer, or of what lies in it from an offset on."""
        slot = self.resident.get(name)
        found = slots[name] if slot is None else slot
        start, size_bytes = found.offset_bytes + offset_bytes, found.size_bytes - offset_bytes
        return Pointer(start, size_bytes, constant=slot is not None)

    def lifetimes(self) -> dict[str, Lifetime]:
        """From when to when each buffer must keep its memory; positions are indices of drafts.

        A buffer that is used in a loop must outlive the loop, unless it begins to live in there
        anew at each turn, with a write.
        """
        end = len(self.drafts.all)
        found: dict[str, Lifetime] = {}
        used = {name for draft in self.drafts.all for name in draft.access}
        used.update(self.body.outputs, (name for name, _ in self._words()))
        for name in self.inputs:
            if name in self.resident or name not in used:
                continue
            last = end if name in self.body.outputs or name in self.body.weights else -1
            found[name] = Lifetime(self.sizes.room(name), -1, last, fresh=True)
        for position, draft in enumerate(self.drafts.all):
            for name, way in draft.access.items():
                if name in self.resident:
                    continue
                seen = found.get(name)
                if seen is None:
                    size = self.sizes.room(name)
                    whole = not isinstance(draft, CopyDraft) or size == self.sizes.buffer(name)
                    fresh = way is Access.WRITE and whole  # padding is not copied, and stays zero
                    found[name] = Lifetime(size, position, position, fresh)
                else:
                    seen.last = max(seen.last, position)
        for name in self.body.outputs:
            if name not in found:
                found[name] = Lifetime(self.sizes.room(name), -1, end, fresh=False)
            found[name].last = end
        for name, last in self._words():
            life = found.setdefault(name, Lifetime(self.sizes.buffer(name), -1, last, fresh=False))
            if life.first > last:  # its word is read before anything is written
                life.first, life.fresh = last, False
            life.last = max(life.last, last)
        for first, last, _ in self.drafts.loops:
            for lifetime in found.values():
                lifetime.extend(first, last)
        return found

    def _words(self) -> list[tuple[str, int]]:
        """List the buffers of words, and until which draft each is needed."""
        end = len(self.drafts.all)
        return [*self.drafts.words, *((word, end) for word in self.body.present_if.values())]


def _with_zeros(
    program: Program,
    zeroed: tuple[str, ...],
    lifetimes: Mapping[str, Lifetime],
    slots: Mapping[str, Slot],
    steps: list[Step],
) -> Program:
    """Put a step that zeroes its memory before the first use of each buffer in `zeroed`.

    Such a buffer's life begins outside of all loops, see `Lifetime.extend`.
    """
    before: dict[int, list[int]] = {}
    for name in zeroed:
        before.setdefault(lifetimes[name].first, []).append(len(steps))
        steps.append(Zero(slots[name].offset_bytes, aligned(slots[name].size_bytes)))
    result: list[int | Loop] = []
    for step in program:
        result += before.pop(_first(step), [])
        result.append(step)
    assert not before, "a zeroed buffer begins inside a loop"
    return tuple(result)


def _first(step: int | Loop) -> int:
    while isinstance(step, Loop):
        step = step.program[0]
    return step
