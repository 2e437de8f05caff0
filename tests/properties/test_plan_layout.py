"""Sharing memory changes no result of a plan."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator, Mapping

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from dandelion.backends.gpu.drafts import Program
from dandelion.backends.gpu.layout import aligned
from dandelion.backends.gpu.plan import Copy, Plan, Pointer, Zero, plan

import dandelion.blueprint as bp

Memory = npt.NDArray[np.uint8]


def program(seed: int, conditions: bool = False, choices: bool = False) -> bp.GpuConfig:
    """A blueprint of kernels whose declared access is true, with loops.

    Few buffers and many launches, so that lives end and begin all over the place.
    """
    source = random.Random(seed)
    same = source.choice([0, 256])
    buffers = {f"t{i}": bp.Absolute(same or source.choice([8, 256, 600])) for i in range(4)}
    every = ["in0", "in1", *buffers]
    ways = [bp.Access.READ, bp.Access.WRITE, bp.Access.BOTH]
    weights = source.choice([(1, 1, 1), (4, 4, 1), (1, 4, 0)])
    made: dict[str, bp.Kernel] = {}

    def launch() -> bp.ExecKernel:
        used = source.choices(every, k=source.choice([1, 2, 2, 3]))
        access = source.choices(ways, weights, k=len(used))
        args: list[bp.Argument] = [bp.Ptr(n) for n in used]
        if choices:
            args = [bp.Ptr(n, bp.Absolute(source.choice([0, 0, 5]))) for n in used]
        if source.random() < 0.1:
            args.append(bp.Ptr("w"))
            access.append(bp.Access.READ)
        name = "k" + "".join(way.value[0] for way in access)
        made[name] = bp.Kernel(name, "m", "", (*access, bp.Access.VALUE))
        salt = bp.Scalar(bp.ScalarType.U64, source.randrange(10))
        return bp.ExecKernel(name, (*args, salt), bp.LaunchConfig())

    def other() -> bp.Action:
        target, *equal = source.sample(list(buffers), len(buffers))
        equal = [name for name in equal if buffers[name] == buffers[target]]
        if equal and source.random() < 0.7:
            return bp.CopyBuffer(target, equal[0])
        return bp.ZeroBuffer(target)

    def choose(depth: int, inside: bool) -> bp.Choose:
        """For the size of in0; some buffers are padded."""

        def case(up_to: int) -> bp.Case:
            padded = source.sample(every, source.choice([0, 1, 2]))
            rooms: dict[str, bp.Size] = {n: bp.Absolute(600 + source.randrange(3)) for n in padded}
            return bp.Case(up_to, block(depth + 1, inside), rooms)

        return bp.Choose((bp.Sizeof("in0"),), tuple(case(n) for n in (200, 295, 400)))

    def block(depth: int, inside: bool = False) -> tuple[bp.Action, ...]:
        found: list[bp.Action] = []
        for _ in range(source.randint(1, 6 if depth == 0 else 4)):
            if depth < 3 and source.random() < 0.3:
                times = bp.Absolute(source.choice([0, 1, 2, 2, 3]))
                if choices and source.random() < 0.6:
                    if inside or source.random() < 0.5:
                        found.append(choose(depth, inside))
                    else:
                        both = (block(depth + 1, True), block(depth + 1, True))
                        found.append(bp.Candidates(both))
                    continue
                inner = block(depth + 1, inside)
                if conditions and times.value and source.random() < 0.5:
                    found.append(bp.RepeatWhile(times, source.choice(every), inner))
                else:
                    found.append(bp.Repeat(times, inner))
            elif source.random() < 0.15:
                found.append(other())
            else:
                found.append(launch())
        return tuple(found)

    flow = block(0)
    outputs = tuple(source.sample(every, source.choice([0, 1, 2])))
    body = bp.ExecutionBlueprint(("in0", "in1"), ("w",), dict(buffers), outputs, flow)
    if conditions:
        present_if = {name: source.choice(every) for name in outputs}
        body = msgspec.structs.replace(body, present_if=present_if)
    return bp.GpuConfig((bp.Module("m", (bp.Code("m.c"),)),), tuple(made.values()), body)


def run_kernel(name: str, views: list[Memory], salt: bytes) -> int:
    """Read what is declared to be read, and write something that depends on all of it.

    Returns:
        A digest of all that was read.
    """
    seen = zlib.crc32(salt + name.encode())
    for letter, view in zip(name[1:], views, strict=True):
        if letter in "rb":
            seen = zlib.crc32(view.tobytes(), seen)
    for index, (letter, view) in enumerate(zip(name[1:], views, strict=True)):
        if letter in "wb":
            view[:] = np.frombuffer((seen + index).to_bytes(8, "little") * 76, np.uint8)[
                : view.size
            ]
    return seen


def run_plan(made: Plan, inputs: Mapping[str, bytes]) -> tuple[dict[str, bytes], list[int]]:
    """Return the outputs and what each launch read."""
    seen = []
    pool = np.zeros(made.used_bytes, dtype=np.uint8)

    def view(offset: int, size: int) -> Memory:
        return pool[offset : offset + size]

    for name, data in inputs.items():
        if name not in made.slots:  # no kernel reads it
            continue
        slot = made.slots[name]
        view(slot.offset_bytes, len(data))[:] = np.frombuffer(data, dtype=np.uint8)

    def order(program: Program) -> Iterator[int]:
        for step in program:
            if isinstance(step, int):
                yield step
                continue
            for _ in range(step.times):
                yield from order(step.program)
                if step.word and ends(view(made.words[step.word], 4)):
                    break

    def ends(word: Memory) -> bool:
        seen.append(int(word.view(np.uint32)[0]))
        return seen[-1] % 3 == 0

    for index in order(made.program):
        step = made.steps[index]
        if isinstance(step, Zero):
            view(step.offset_bytes, step.size_bytes)[:] = 0
            continue
        if isinstance(step, Copy):
            target, data = step.target, step.source
            view(target.offset_bytes, target.size_bytes)[:] = view(
                data.offset_bytes, data.size_bytes
            )
            continue
        views = [view(a.offset_bytes, a.size_bytes) for a in step.args if isinstance(a, Pointer)]
        salt = step.args[-1]
        assert isinstance(salt, bytes)
        seen.append(run_kernel(step.kernel, views, salt))
    outputs = {n: view(s.offset_bytes, s.size_bytes).tobytes() for n, s in made.outputs.items()}
    seen += [int(view(at, 4).view(np.uint32)[0]) for at in made.present_if.values()]
    return outputs, seen


def chosen_actions(
    where: str, actions: tuple[bp.Action, ...], sizes: dict[str, int], choices: Mapping[str, int]
) -> tuple[bp.Action, ...]:
    """Put what is chosen in the place of choices and candidates; `sizes` become those of memory."""
    found: list[bp.Action] = []
    for index, action in enumerate(actions):
        at = f"{where}[{index}]"
        if isinstance(action, bp.Candidates):
            number = choices.get(at, 0)
            one = action.alternatives[number]
            found += chosen_actions(f"{at}[{number}]", one, sizes, choices)
        elif isinstance(action, bp.Choose):
            place = next(n for n, c in enumerate(action.cases) if sizes[""] <= c.up_to)
            case = action.cases[place]
            for name, size in case.padded.items():
                assert isinstance(size, bp.Absolute)
                sizes[name] = max(sizes[name], size.value)
            found += chosen_actions(f"{at}.cases[{place}].actions", case.actions, sizes, choices)
        elif isinstance(action, bp.Repeat | bp.RepeatWhile):
            if action.times != bp.Absolute(0):
                inner = chosen_actions(f"{at}.actions", action.actions, sizes, choices)
                found.append(msgspec.structs.replace(action, actions=inner))
        else:
            found.append(action)
    return tuple(found)


def run_apart(
    config: bp.GpuConfig, inputs: Mapping[str, bytes], choices: Mapping[str, int] | None = None
) -> tuple[dict[str, bytes], list[int]]:
    """Do the same with separate memory for each buffer."""
    seen = []
    data = {n: len(d) for n, d in inputs.items()}
    for name, size in config.blueprint.buffers.items():
        assert isinstance(size, bp.Absolute)
        data[name] = size.value
    rooms = {"": data["in0"], **data}
    flow = config.blueprint.control_flow
    flow = chosen_actions("blueprint.control_flow", flow, rooms, choices or {})
    memory = {n: np.zeros(rooms[n], dtype=np.uint8) for n in data}
    for name, content in inputs.items():
        memory[name][: len(content)] = np.frombuffer(content, dtype=np.uint8)

    def act(actions: tuple[bp.Action, ...]) -> None:
        for action in actions:
            if isinstance(action, bp.Repeat):
                assert isinstance(action.times, bp.Absolute)
                for _ in range(action.times.value):
                    act(action.actions)
                continue
            if isinstance(action, bp.RepeatWhile):
                assert isinstance(action.times, bp.Absolute)
                for _ in range(action.times.value):
                    act(action.actions)
                    if action.times.value > 1 and runs(action.actions):
                        seen.append(word(action.word))
                        if seen[-1] % 3 == 0:
                            break
                continue
            if isinstance(action, bp.CopyBuffer):
                size = data[action.target]  # padding is not copied
                memory[action.target][:size] = memory[action.source][:size]
                continue
            if isinstance(action, bp.ZeroBuffer):
                memory[action.buffer][:] = 0
                continue
            salt = action.args[-1]
            assert isinstance(salt, bp.Scalar)
            assert isinstance(salt.value, int)
            views = [
                memory[a.buffer][a.offset.value :]
                for a in action.args
                if isinstance(a, bp.Ptr) and isinstance(a.offset, bp.Absolute)
            ]
            seen.append(run_kernel(action.kernel, views, salt.value.to_bytes(8, "little")))

    def word(name: str) -> int:
        return int(memory[name][:4].view(np.uint32)[0])

    act(flow)
    seen += map(word, config.blueprint.present_if.values())
    return {n: memory[n][: data[n]].tobytes() for n in config.blueprint.outputs}, seen


def runs(actions: tuple[bp.Action, ...]) -> bool:
    """Tell whether actions have anything to do; a loop without is left out of a plan."""
    return any(
        action.times != bp.Absolute(0) and runs(action.actions)
        if isinstance(action, bp.Repeat | bp.RepeatWhile)
        else True
        for action in actions
    )


INPUTS = {"in0": b"\x07" * 300, "in1": bytes(range(200)), "w": b"weights!"}
SIZES = {name: len(data) for name, data in INPUTS.items()}


def requested(config: bp.GpuConfig) -> int:
    """Count the actions that zero a buffer, in loops that run."""

    def count(actions: tuple[bp.Action, ...]) -> int:
        loops = [a for a in actions if isinstance(a, bp.Repeat) and a.times != bp.Absolute(0)]
        zeros = [a for a in actions if isinstance(a, bp.ZeroBuffer)]
        return len(zeros) + sum(count(loop.actions) for loop in loops)

    return count(config.blueprint.control_flow)


@pytest.mark.parametrize("tight", [False, True])
def test_sharing_memory_changes_no_result(tight: bool) -> None:
    shared = 0
    for seed in range(800):
        config = program(seed)
        made = plan(config, SIZES, lambda n, i: 0, limit_bytes=1 if tight else None)
        shared += made.used_bytes < sum(aligned(s.size_bytes) for s in made.slots.values())
        assert run_plan(made, INPUTS) == run_apart(config, INPUTS), seed
    assert shared > 100, "the programs must give something to share"


@pytest.mark.parametrize("tight", [False, True])
def test_sharing_memory_changes_no_word(tight: bool) -> None:
    looped = 0
    for seed in range(500):
        config = program(seed, conditions=True)
        made = plan(config, SIZES, lambda n, i: 0, limit_bytes=1 if tight else None)
        looped += bool(made.words)
        assert run_plan(made, INPUTS) == run_apart(config, INPUTS), seed
    assert looped > 100


@pytest.mark.parametrize("tight", [False, True])
def test_all_actions_together(tight: bool) -> None:
    """Choices, candidates, padding, loops by words, and pointers to places, in each other."""
    groups = padded = twins = 0
    limit = 1 if tight else None
    short = {**INPUTS, "in0": b"\x09" * 296}
    for seed in range(450):
        config = program(seed, conditions=True, choices=True)
        source = random.Random(seed)

        first = plan(config, SIZES, lambda n, i: 0)
        choices = {group.where: source.randrange(group.count) for group in first.groups}
        made = plan(config, SIZES, lambda n, i: 0, limit, lanes=4, choices=choices)
        assert run_plan(made, INPUTS) == run_apart(config, INPUTS, choices), seed
        sizes = {name: len(data) for name, data in short.items()}
        other = plan(config, sizes, lambda n, i: 0, limit, lanes=4, choices=choices)
        other = other.with_twin([made])
        assert run_plan(other, short) == run_apart(config, short, choices), seed
        if other.twin is not None:
            assert (other.words, other.present_if) == (made.words, made.present_if)
            assert [g.where for g in other.groups] == [g.where for g in made.groups]
            twins += other.slots["in0"].size_bytes > 300 if "in0" in other.slots else 0
        groups += any(choices.values())
        padded += any(s.size_bytes > 600 for s in made.slots.values())
    assert groups > 40
    assert padded > 40
    assert twins > 20


def test_only_the_tight_layout_zeroes_and_all_lies_inside() -> None:
    for seed in range(400):
        config = program(seed)
        loose = plan(config, SIZES, lambda n, i: 0)
        tight = plan(config, SIZES, lambda n, i: 0, limit_bytes=1)
        assert sum(isinstance(s, Zero) for s in loose.steps) == requested(config), seed
        assert sum(1 for _ in tight.walk()) == tight.launches
        for made in (loose, tight):
            ends = [s.offset_bytes + aligned(s.size_bytes) for s in made.slots.values()]
            assert max(ends, default=0) == made.used_bytes
            assert made.used_bytes <= sum(aligned(s.size_bytes) for s in made.slots.values())
