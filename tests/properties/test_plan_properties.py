"""Properties of blueprints and plans, with random ones.

The layout is proven by running: a plan in one pool, where buffers share memory, must give what the
blueprint gives with memory of its own for each buffer.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pytest
from dandelion.backends.gpu.layout import aligned
from dandelion.backends.gpu.plan import Copy, Plan, Pointer, Zero, plan
from hypothesis import given, settings
from hypothesis import strategies as st

import dandelion.blueprint as bp
from dandelion.blueprint.reading import read_config

Memory = npt.NDArray[np.uint8]

# --- printing and reading -------------------------------------------------------------------

names = st.sampled_from(["A", "B", "cfg", "weights_1", "größe"])
numbers = st.integers(-(2**70), 2**70)
dtypes = st.sampled_from(list(bp.ScalarType))

plain_sizes: st.SearchStrategy[bp.Size] = st.one_of(
    st.builds(bp.Absolute, numbers),
    st.builds(bp.Sizeof, names),
    st.builds(bp.FromInput, names, st.integers(-5, 100)),
    st.builds(bp.Elements, names, dtypes),
    st.builds(bp.ByBatch, numbers, st.booleans()),
)
sizes: st.SearchStrategy[bp.Size] = st.recursive(
    plain_sizes,
    lambda inner: st.one_of(
        st.builds(bp.Add, st.lists(inner, min_size=1, max_size=3).map(tuple)),
        st.builds(bp.Mul, st.lists(inner, min_size=1, max_size=3).map(tuple)),
        st.builds(bp.CeilDiv, inner, inner),
    ),
    max_leaves=6,
)


@st.composite
def scalars(draw: st.DrawFn) -> bp.Scalar:
    dtype = draw(dtypes)
    if dtype.is_float:
        return bp.Scalar(dtype, draw(st.floats(allow_nan=False, allow_infinity=False)))
    return bp.Scalar(
        dtype, draw(numbers | sizes.filter(lambda size: not isinstance(size, bp.Absolute)))
    )


arguments = st.one_of(st.builds(bp.Ptr, names), scalars(), st.builds(bp.Raw, st.binary(max_size=9)))
launch_configs = st.builds(bp.LaunchConfig, *[sizes] * 7)
kernels = st.builds(
    bp.ExecKernel, names, st.lists(arguments, max_size=4).map(tuple), launch_configs
)
places = st.builds(bp.BufferPart, names, sizes)
matrices = st.builds(bp.Matrix, names, sizes, st.booleans(), st.none() | sizes, st.none() | sizes)
factors = st.floats(-1e300, 1e300)
gemms = st.builds(
    bp.Gemm, matrices, matrices, matrices, *[sizes] * 4, st.none() | matrices, factors, factors,
    st.none() | places, *map(st.sampled_from, (bp.BiasAxis, bp.ElementType, bp.Computation)),
    st.sampled_from(bp.Activation),
)  # fmt: skip
pairs = st.tuples(sizes, sizes)
convolutions = st.builds(
    bp.Conv2d, places, places, places, *[sizes] * 5, *[pairs] * 4, sizes, st.none() | places,
    st.none() | places, *map(st.sampled_from, (bp.ImageLayout, bp.ElementType, bp.Computation)),
    st.sampled_from(bp.Activation),
)  # fmt: skip
plain_actions = st.one_of(
    kernels,
    st.builds(bp.CopyBuffer, names, names),
    st.builds(bp.ZeroBuffer, names),
    gemms,
    convolutions,
)
actions: st.SearchStrategy[bp.Action] = st.recursive(
    plain_actions,
    lambda inner: st.one_of(
        st.builds(bp.Repeat, sizes, st.lists(inner, max_size=3).map(tuple)),
        st.builds(
            bp.Candidates,
            st.lists(st.lists(inner, max_size=2).map(tuple), max_size=3).map(tuple),
        ),
    ),
    max_leaves=5,
)
configs = st.builds(
    bp.GpuConfig,
    st.lists(
        st.builds(
            bp.Module,
            names,
            st.lists(
                st.builds(
                    bp.Code, names, st.sampled_from(["", "cuda"]), st.sampled_from(["", "x"])
                ),
                max_size=3,
            ).map(tuple),
        ),
        max_size=3,
        unique_by=lambda module: module.name,
    ).map(tuple),
    st.lists(
        st.builds(
            bp.Kernel,
            names,
            names,
            st.sampled_from(["", "symbol"]),
            st.lists(st.sampled_from(list(bp.Access)), max_size=3).map(tuple),
        ),
        max_size=3,
        unique_by=lambda kernel: kernel.name,
    ).map(tuple),
    st.builds(
        bp.ExecutionBlueprint,
        st.lists(names, max_size=3).map(tuple),
        st.lists(names, max_size=2).map(tuple),
        st.dictionaries(names, sizes, max_size=3),
        st.lists(names, max_size=2).map(tuple),
        st.lists(actions, max_size=3).map(tuple),
        sizes,
    ),
)


@settings(max_examples=100, deadline=None)
@given(configs)
def test_reading_what_was_printed_gives_the_same(config: bp.GpuConfig) -> None:
    again, problems = read_config(bp.print_blueprint(config))
    assert problems == ()
    assert again == config


# --- the layout -----------------------------------------------------------------------------


def program(seed: int) -> bp.GpuConfig:
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

    def block(depth: int) -> tuple[bp.Action, ...]:
        found: list[bp.Action] = []
        for _ in range(source.randint(1, 6 if depth == 0 else 4)):
            if depth < 3 and source.random() < 0.3:
                times = bp.Absolute(source.choice([0, 1, 2, 2, 3]))
                found.append(bp.Repeat(times, block(depth + 1)))
            elif source.random() < 0.15:
                found.append(other())
            else:
                found.append(launch())
        return tuple(found)

    flow = block(0)
    outputs = tuple(source.sample(every, source.choice([0, 1, 2])))
    body = bp.ExecutionBlueprint(("in0", "in1"), ("w",), dict(buffers), outputs, flow)
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
            view[:] = np.frombuffer((seen + index).to_bytes(8, "little") * 75, np.uint8)[
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
        view(slot.offset_bytes, slot.size_bytes)[:] = np.frombuffer(data, dtype=np.uint8)
    for index in made.walk():
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
    return outputs, seen


def run_apart(
    config: bp.GpuConfig, inputs: Mapping[str, bytes]
) -> tuple[dict[str, bytes], list[int]]:
    """Do the same with separate memory for each buffer."""
    seen = []
    memory = {n: np.frombuffer(d, dtype=np.uint8).copy() for n, d in inputs.items()}
    for name, size in config.blueprint.buffers.items():
        assert isinstance(size, bp.Absolute)
        memory[name] = np.zeros(size.value, dtype=np.uint8)

    def act(actions: tuple[bp.Action, ...]) -> None:
        for action in actions:
            if isinstance(action, bp.Repeat):
                assert isinstance(action.times, bp.Absolute)
                for _ in range(action.times.value):
                    act(action.actions)
                continue
            if isinstance(action, bp.CopyBuffer):
                memory[action.target][:] = memory[action.source]
                continue
            if isinstance(action, bp.ZeroBuffer):
                memory[action.buffer][:] = 0
                continue
            salt = action.args[-1]
            assert isinstance(salt, bp.Scalar)
            assert isinstance(salt.value, int)
            views = [memory[a.buffer] for a in action.args if isinstance(a, bp.Ptr)]
            seen.append(run_kernel(action.kernel, views, salt.value.to_bytes(8, "little")))

    act(config.blueprint.control_flow)
    return {name: memory[name].tobytes() for name in config.blueprint.outputs}, seen


INPUTS = {"in0": b"\x07" * 300, "in1": bytes(range(200)), "w": b"weights!"}
SIZES = {name: len(data) for name, data in INPUTS.items()}


def asked(config: bp.GpuConfig) -> int:
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


def test_only_the_tight_layout_zeroes_and_all_lies_inside() -> None:
    for seed in range(400):
        config = program(seed)
        loose = plan(config, SIZES, lambda n, i: 0)
        tight = plan(config, SIZES, lambda n, i: 0, limit_bytes=1)
        assert sum(isinstance(s, Zero) for s in loose.steps) == asked(config), seed
        assert sum(1 for _ in tight.walk()) == tight.launches
        for made in (loose, tight):
            ends = [s.offset_bytes + aligned(s.size_bytes) for s in made.slots.values()]
            assert max(ends, default=0) == made.used_bytes
            assert made.used_bytes <= sum(aligned(s.size_bytes) for s in made.slots.values())
