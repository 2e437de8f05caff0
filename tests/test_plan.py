"""Plans: sizes, launches, arguments, layout, errors with positions, the cache; no device."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Mapping
from typing import Any

import pytest
from dandelion.backends.gpu import program as program_module
from dandelion.backends.gpu.layout import ALIGNMENT_BYTES, Slot
from dandelion.backends.gpu.plan import Launch, Plan, Pointer, Zero, plan
from dandelion.backends.gpu.plan_cache import PlanCache
from dandelion.backends.gpu.program import Program, make_program

import dandelion.blueprint as bp
from dandelion.blueprint.first_uses import is_written_first
from dandelion.blueprint.uses import integers_planned, integers_read
from dandelion.data import SetSpec
from dandelion.errors import InvalidBlueprint, InvalidInput
from dandelion.function import CodeObject, Function, FunctionSpec


def make(inputs: tuple[str, ...] = ("cfg", "A"), **options: Any) -> bp.Blueprint:
    return bp.Blueprint(inputs=inputs, modules=["m.c"], **options)


def planned(
    config: bp.GpuConfig,
    sizes: Mapping[str, int] | None = None,
    integers: Mapping[tuple[str, int], int] | None = None,
    limit_bytes: int | None = None,
) -> Plan:
    numbers = integers or {}
    return plan(config, sizes or {"cfg": 64, "A": 1000}, lambda n, i: numbers[n, i], limit_bytes)


def launches(made: Plan) -> list[Launch]:
    steps = [made.steps[i] for i in made.walk()]
    return [s for s in steps if isinstance(s, Launch)]


def test_sizes_launches_and_arguments() -> None:
    b = make()
    out = b.buffer("B", like="A")
    b.launch(
        "matmul",
        [b.A, bp.sizeof(b.A), out, -3, bp.scalar("f32", 0.5), bp.Raw(b"abc"), b.cfg[1]],
        grid=(b.cfg[0], bp.ceil_div(b.A.elements("f64"), 32)),
        block=(32, 2),
        shared_mem_bytes=bp.sizeof(b.cfg),
    )
    made = planned(b.build(), integers={("cfg", 0): 7})
    (launch,) = launches(made)
    a = Pointer(made.slots["A"].offset_bytes, 1000)
    assert launch.args[:3] == (
        a,
        struct.pack("<Q", 1000),
        Pointer(made.slots["B"].offset_bytes, 1000),
    )
    assert launch.args[3:6] == (struct.pack("<q", -3), struct.pack("<f", 0.5), b"abc")
    assert (launch.args[6], launch.open_args) == (bytes(8), ((6, 0),))
    assert made.open_arguments[0].packed(lambda n, i: -9) == struct.pack("<q", -9)
    assert (launch.grid, launch.block, launch.shared_bytes) == ((7, 4, 1), (32, 2, 1), 64)
    assert made.blocks == 28
    assert made.outputs["B"].size_bytes == 1000
    assert all(s.offset_bytes % ALIGNMENT_BYTES == 0 for s in made.slots.values())
    assert "cfg" not in made.slots, "no kernel gets its address"
    assert made.used_bytes == 1024 + 1024


def test_a_place_in_a_buffer() -> None:
    b = make()
    out = b.buffer("B", like="A")
    b.kernel("k", access=["read", "write"])
    b.launch("k", [bp.part(b.A, b.cfg[0] * 8), out])
    b.launch("k", [out, bp.part(out, 8)])
    config = b.build()
    assert bp.parse_blueprint(bp.print_blueprint(config)) == config
    assert integers_read(config) == (bp.FromInput("cfg", 0),)
    made = planned(config, integers={("cfg", 0): 4})
    first, second = launches(made)
    assert first.args[0] == Pointer(made.slots["A"].offset_bytes + 32, 968)
    assert second.args[1] == Pointer(made.slots["B"].offset_bytes + 8, 992)
    with pytest.raises(InvalidInput) as caught:
        planned(config, integers={("cfg", 0): 125})
    assert caught.value.where == "blueprint.control_flow[0].args[0].offset"


def test_a_part_that_is_written_leaves_the_rest_as_it_was() -> None:
    b = make(("A",), outputs=["A"])
    whole, part = b.buffer("B", 512, temporary=True), b.buffer("C", 512, temporary=True)
    b.kernel("k", access=["write"])
    b.launch("k", [whole])
    b.launch("k", [bp.part(part, 256)])
    config = b.build()
    made = planned(config, {"A": 1000}, limit_bytes=1)  # so that they share memory
    assert made.slots[part.name].offset_bytes == made.slots[whole.name].offset_bytes
    assert [step.size_bytes for step in made.steps if isinstance(step, Zero)] == [512]
    assert is_written_first("B", config)
    assert not is_written_first("C", config)


@pytest.mark.parametrize("content", [{}, {"buffer": "A"}, {"buffer": "A", "offset": -1}])
def test_a_place_that_is_not_valid(content: dict[str, object]) -> None:
    flow = [{"ExecKernel": ["k", [{"Ptr": content}], {}]}]
    body = {"inputs": ["A"], "buffers": {}, "outputs": ["A"], "control_flow": flow}
    document = {"modules": {"m": "m.c"}, "kernels": {"k": "m"}, "blueprint": body}
    with pytest.raises(InvalidBlueprint) as caught:
        bp.parse_blueprint(json.dumps(document))
    assert "args[0]" in str(caught.value)


def test_sizes_may_refer_to_each_other_in_a_chain_of_any_length() -> None:
    b = bp.Blueprint(inputs=["A"], modules=["m.c"], batch=bp.sizeof(bp.Buffer("B9999")))
    last = b.buffer("batched", size=bp.by_batch(2))
    for number in range(10_000):  # the first one refers to the second one, and so on
        b.buffer(f"B{number}", like=f"B{number + 1}" if number < 9999 else "A", temporary=True)
    b.launch("k", [b.A, b.B0, last])
    made = planned(b.build(), {"A": 24})
    assert (made.slots["B0"].size_bytes, made.slots["batched"].size_bytes) == (24, 48)


def test_the_batch_scales_sizes() -> None:
    b = make(("A",), batch=bp.ceil_div(bp.sizeof(bp.Buffer("A")), 100))
    b.buffer("one", size=bp.by_batch(10))
    b.buffer("two", size=bp.by_batch(10, even=True))
    made = planned(b.build(), {"A": 250})
    assert made.outputs["one"].size_bytes == 30
    assert made.outputs["two"].size_bytes == 20


@pytest.mark.parametrize(("batch", "pairs"), [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (1000, 500)])
def test_an_even_batch_counts_in_pairs(batch: int, pairs: int) -> None:
    """As the original has it: rounded up to an even number, then halved."""
    b = make(batch=batch)
    b.buffer("half", size=bp.by_batch(24, even=True))
    config = bp.parse_blueprint(b.json())
    assert planned(config).outputs["half"].size_bytes == 24 * pairs


def test_repeats_stay_compact() -> None:
    b = make()
    with b.repeat(b.cfg[0]):
        b.launch("first", [b.A])
        with b.repeat(1000):
            b.launch("second", [b.A])
        with b.repeat(0):
            b.launch("never", [b.A], grid=b.cfg[99])
        with b.repeat(1):
            b.launch("third", [b.A])
    made = planned(b.build(), integers={("cfg", 0): 3})
    assert [s.kernel for s in made.steps if isinstance(s, Launch)] == ["first", "second", "third"]
    assert made.launches == 3 * 1002
    walked = [launch.kernel for launch in launches(made)]
    assert walked == (["first"] + ["second"] * 1000 + ["third"]) * 3


# --- what is impossible ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "where"),
    [(0, "grid_dim_x"), (-1, "grid_dim_x"), (2**40, "grid_dim_x")],
)
def test_impossible_dimensions_name_the_place(number: int, where: str) -> None:
    b = make()
    b.launch("k", [b.A], grid=b.cfg[0])
    with pytest.raises(InvalidInput) as caught:
        planned(b.build(), integers={("cfg", 0): number})
    assert caught.value.where == f"blueprint.control_flow[0].launch.{where}"


def test_reading_past_the_end_of_an_input() -> None:
    b = make()
    b.launch("k", [b.A], grid=b.cfg[8])
    assert planned(b.build(), {"cfg": 72, "A": 1}, {("cfg", 8): 1}).launches == 1
    with pytest.raises(InvalidInput) as caught:
        planned(b.build(), {"cfg": 71, "A": 1})
    assert caught.value.where == "blueprint.control_flow[0].launch.grid_dim_x"


def test_a_missing_input() -> None:
    b = make()
    b.launch("k", [b.A])
    with pytest.raises(InvalidInput) as caught:
        planned(b.build(), {"A": 8})
    assert caught.value.where == "sets.cfg"


def test_blocks_that_are_too_large_together() -> None:
    b = make()
    b.launch("k", [b.A], block=(b.cfg[0], 32))
    assert planned(b.build(), integers={("cfg", 0): 32}).launches == 1
    with pytest.raises(InvalidInput) as caught:
        planned(b.build(), integers={("cfg", 0): 33})
    assert caught.value.where == "blueprint.control_flow[0].launch"


def test_negative_sizes_and_divisors_of_zero_come_from_the_input() -> None:
    b = make()
    b.buffer("B", size=b.cfg[0] * 4)
    b.buffer("C", size=bp.ceil_div(100, b.cfg[1]))
    assert planned(b.build(), integers={("cfg", 0): 0, ("cfg", 1): 3}).outputs["C"].size_bytes == 34
    for numbers, name in (((-1, 1), "B"), ((2**62, 1), "B"), ((1, 0), "C")):
        with pytest.raises(InvalidInput) as caught:
            planned(b.build(), integers={("cfg", 0): numbers[0], ("cfg", 1): numbers[1]})
        assert caught.value.where == f"blueprint.buffers.{name}"


def test_values_that_do_not_fit_their_type() -> None:
    b = make()
    b.launch("k", [bp.scalar("u8", b.cfg[0])])
    (argument,) = planned(b.build()).open_arguments
    assert argument.packed(lambda n, i: 255) == b"\xff"
    with pytest.raises(InvalidInput) as caught:
        argument.packed(lambda n, i: 256)
    assert caught.value.where == "blueprint.control_flow[0].args[0]"
    b.launch("k", [b.A], grid=b.cfg[0])  # so it is part of the plan
    made = planned(b.build(), integers={("cfg", 0): 255})
    assert (launches(made)[0].args, made.open_arguments) == ((b"\xff",), ())
    with pytest.raises(InvalidInput) as caught:
        planned(b.build(), integers={("cfg", 0): 256})
    assert caught.value.where == "blueprint.control_flow[0].args[0]"


def test_open_arguments_are_computed_in_each_call() -> None:
    b = make()
    n = b.cfg[1]
    quotient = bp.ceil_div(n * bp.sizeof(b.A) + 4, b.cfg[2])
    for value in (n, n, quotient, bp.sizeof(b.A)):
        b.launch("k", [bp.scalar("i32", value), bp.scalar("i64", n)], grid=b.cfg[0])
    made = planned(b.build(), integers={("cfg", 0): 5})
    assert [s.open_args for s in launches(made)] == [
        ((0, 0), (1, 1)), ((0, 0), (1, 1)), ((0, 2), (1, 1)), ((1, 1),),
    ]  # fmt: skip
    assert launches(made)[3].args[0] == struct.pack("<i", 1000)
    numbers = {1: 7, 2: 2}
    packed = [a.packed(lambda _, i: numbers[i]) for a in made.open_arguments]
    assert packed == [struct.pack("<i", 7), struct.pack("<q", 7), struct.pack("<i", 3502)]
    numbers[2] = 0
    with pytest.raises(InvalidInput, match="divisor is zero") as caught:
        made.open_arguments[2].packed(lambda _, i: numbers[i])
    assert caught.value.where == "blueprint.control_flow[2].args[0]"
    numbers |= {1: 2**62, 2: 1}
    with pytest.raises(InvalidInput, match="a product comes to"):
        made.open_arguments[2].packed(lambda _, i: numbers[i])
    with pytest.raises(InvalidInput, match="2-th integer of 'cfg', whose item has 16 bytes"):
        planned(b.build(), {"cfg": 16, "A": 8}, {("cfg", 0): 5})


def test_too_many_launches() -> None:
    b = make()
    with b.repeat(b.cfg[0]), b.repeat(1000):
        b.launch("k", [b.A])
    with pytest.raises(InvalidInput):
        planned(b.build(), integers={("cfg", 0): 1001})
    with pytest.raises(InvalidInput) as caught:
        planned(b.build(), integers={("cfg", 0): -2})
    assert caught.value.where == "blueprint.control_flow[0].times"


def test_what_no_input_can_help_is_the_blueprints_fault() -> None:
    launch = bp.LaunchConfig(grid_dim_x=bp.Absolute(0))
    body = bp.ExecutionBlueprint(("A",), control_flow=(bp.ExecKernel("k", (), launch),))
    config = bp.GpuConfig((bp.Module("m", ()),), (bp.Kernel("k", "m"),), body)
    with pytest.raises(InvalidBlueprint) as caught:
        planned(config, {"A": 8})
    assert caught.value.problems[0].where == "blueprint.control_flow[0].launch.grid_dim_x"


# --- layout ---------------------------------------------------------------------------------


def chain(length: int, access: tuple[str, ...] = ("read", "write")) -> bp.GpuConfig:
    """A chain of launches, each from one temporary buffer of 1 KiB to the next."""
    b = make(("A",), outputs=["out"])
    b.kernel("step", access=access)
    previous = b.A
    for i in range(length):
        following = b.buffer(f"t{i}", size=1024)
        b.launch("step", [previous, following])
        previous = following
    b.launch("step", [previous, b.buffer("out", size=1024)])
    return b.build()


def test_buffers_that_never_live_together_share_memory() -> None:
    made = planned(chain(50), {"A": 1024})
    assert made.used_bytes <= 3 * 1024
    assert not any(isinstance(step, Zero) for step in made.steps)


def test_without_declarations_nothing_shares_memory() -> None:
    made = planned(chain(50, access=()), {"A": 1024})
    assert made.used_bytes == 52 * 1024


def test_where_memory_is_short_it_is_zeroed_in_between() -> None:
    config = chain(50, access=("read", "both"))
    assert planned(config, {"A": 1024}).used_bytes == 52 * 1024
    made = planned(config, {"A": 1024}, limit_bytes=10 * 1024)
    assert made.used_bytes <= 3 * 1024
    order = [made.steps[i] for i in made.walk()]
    zeroed = [i for i, step in enumerate(order) if isinstance(step, Zero)]
    assert zeroed
    assert made.launches == len(order)
    for index in zeroed:
        zero, launch = order[index], order[index + 1]
        assert isinstance(zero, Zero)
        assert isinstance(launch, Launch)
        assert Pointer(zero.offset_bytes, zero.size_bytes) == launch.args[1]


def test_weights_and_outputs_keep_their_memory() -> None:
    b = make(("A",), weights=["w"], outputs=["A", "B"])
    b.kernel("fill", access=["write"])
    b.launch("fill", [b.buffer("B", size=512)])
    for i in range(5):
        b.launch("fill", [b.buffer(f"t{i}", size=512)])
    b.kernel("read", access=["read"])
    b.launch("read", [b.w])
    made = planned(b.build(), {"A": 512, "w": 512})
    kept = {made.slots[name].offset_bytes for name in ("A", "w", "B")}
    temporary = {made.slots[f"t{i}"].offset_bytes for i in range(5)}
    assert len(kept) == 3
    assert len(temporary) == 1
    assert not kept & temporary


def test_inputs_that_are_held_take_no_memory_of_the_pool() -> None:
    b = make(("A",), weights=["w"], outputs=["A"])
    b.kernel("read", access=["read", "both"])
    b.launch("read", [b.w, b.A])
    made = plan(b.build(), {"A": 512, "w": 512}, lambda n, i: 0, resident={"w": Slot(2048, 512)})
    (launch,) = launches(made)
    assert launch.args == (Pointer(2048, 512, constant=True), Pointer(0, 512))
    assert (set(made.slots), made.used_bytes) == ({"A"}, 512)


def test_buffers_that_are_not_used_take_no_memory() -> None:
    b = make(("A",), outputs=["A"])
    b.buffer("never", size=2**40, temporary=True)
    assert planned(b.build(), {"A": 8}).used_bytes == 256


# --- speed and the cache --------------------------------------------------------------------


def test_which_integers_are_read() -> None:
    b = make()
    b.buffer("B", size=b.cfg[3] + 1)
    with b.repeat(b.cfg[0]):
        b.launch("k", [b.A, bp.scalar("i32", b.cfg[1] * 2)], grid=(b.cfg[0], b.cfg[2]))
    assert {i.idx for i in integers_read(b.build())} == {0, 1, 2, 3}
    assert {i.idx for i in integers_planned(b.build())} == {0, 2, 3}


def test_the_cache_depends_on_sizes_and_integers() -> None:
    b = make()
    b.launch("k", [b.A], grid=b.cfg[0])
    config = b.build()
    integers = integers_read(config)
    cache = PlanCache(capacity=3)

    def get(identity: str, size: int, number: int) -> Plan:
        return cache.get(identity, config, integers, {"cfg": 8, "A": size}, lambda n, i: number)

    first = get("f", 8, 1)
    assert get("f", 8, 1) is first
    others = [get("f", 8, 2), get("f", 16, 1), get("g", 8, 1)]
    assert len({id(p) for p in (first, *others)}) == 4
    assert len(cache) == 3
    assert get("g", 8, 1) is others[2]
    assert get("f", 8, 1) is not first, "the oldest was dropped"
    with pytest.raises(InvalidInput):
        cache.get("f", config, integers, {"cfg": 4, "A": 8}, lambda n, i: 1)


def test_fifteen_hundred_launches_are_planned_quickly() -> None:
    b = make()
    for i in range(1500):
        b.launch("k", [b.A, bp.sizeof(b.A), bp.scalar("i32", i)], grid=(i + 1,), block=32)
    config = b.build()
    integers = integers_read(config)
    cache = PlanCache()
    started = time.thread_time()
    cache.get("f", config, integers, {"cfg": 8, "A": 8}, lambda n, i: 1)
    assert time.thread_time() - started < 2  # measured: 10 ms
    started = time.thread_time()
    for _ in range(1000):
        cache.get("f", config, integers, {"cfg": 8, "A": 8}, lambda n, i: 1)
    assert time.thread_time() - started < 0.5  # measured: 1 ms


def test_functions_with_the_same_code_share_what_is_read_of_it() -> None:
    b = make(("A",), outputs=["A"])
    b.launch("k", [b.A], grid=1, block=1)
    main = bp.print_blueprint(b.build()).encode()
    source = b"KERNEL void k(GLOBAL u8 *a) {}\n"

    def program(name: str, source: bytes) -> Program:
        spec = FunctionSpec(name, (SetSpec("A"),), (SetSpec("A"),))
        return make_program(Function(spec, CodeObject("blueprint"), main, {"m.c": source}))

    program_module._code.cache_clear()
    assert program("one", source).config is program("two", source).config
    large = program("three", source + b"//" + b"x" * (1 << 20))
    assert large.config.kernels == program("one", source).config.kernels
    assert program_module._code.cache_info().currsize == 1, "large ones are not kept"
