"""Library operations: checks, document form, plans, and that all ways of computing them agree."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from dandelion.backends.gpu.device import Handle
from dandelion.backends.gpu.graph_parts import use_of
from dandelion.backends.gpu.host import HostDevice
from dandelion.backends.gpu.lowering import AssumedLibrary, Lowering
from dandelion.backends.gpu.opencl_device import OpenClDevice
from dandelion.backends.gpu.plan import Launch, LibraryCall, Plan, plan
from dandelion.backends.gpu.prepared_steps import prepare_steps
from dandelion.backends.gpu.reference_library import ReferenceLibrary
from dandelion.backends.gpu.sequential import SequentialEngine
from dandelion.backends.gpu.source import code_of
from hypothesis import given, settings
from hypothesis import strategies as st

import dandelion.blueprint as bp
from dandelion.blueprint import Absolute, Access, Activation, BiasAxis, ElementType, ImageLayout
from dandelion.blueprint.operation_calls import ConvolutionCall, OperationCall
from dandelion.blueprint.uses import integers_read, is_written_first, written_buffers
from dandelion.data import Item, ItemSet, SetSpec
from dandelion.driver import Call
from dandelion.errors import BackendUnavailable, InvalidBlueprint, InvalidInput
from dandelion.function import CodeObject, Function, FunctionSpec, digest_of
from dandelion.fusion.blueprints import BlueprintPart, fused_blueprint
from dandelion.memory import HeapDomain
from tests.operation_cases import TOLERANCES, Case, Maker

F32 = ElementType.F32
POOL_BYTES = 1 << 22


def product(**fields: Any) -> bp.GpuConfig:
    """y = a @ b, both [8, 8], with other fields."""
    made = bp.Blueprint(inputs=["a", "b", "cfg"], outputs=["y"])
    y = made.buffer("y", 4 * 64)
    made.buffer("t", 4 * 64, temporary=True)
    sizes = {"m": 8, "n": 8, "k": 8}
    out = fields.pop("out", y)
    made.gemm(made.a, made.b, out, **{**sizes, **fields})
    return made.build()


def image(**fields: Any) -> bp.GpuConfig:
    """A convolution of an image [1, 4, 6, 6] with 8 filters [3, 3], with other fields."""
    made = bp.Blueprint(inputs=["x", "w"], outputs=["y"])
    y = made.buffer("y", 4 * 8 * 4 * 4)
    usual = {"batch": 1, "channels": 4, "size": 6, "filters": 8, "kernel": 3}
    made.convolution(made.x, made.w, y, **{**usual, **fields})
    return made.build()


# --- checks -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"m": 0}, "m"),
        ({"m": -1}, "m"),
        ({"n": 2**31}, "n"),
        ({"k": 2**70}, "k"),
        ({"batch": 0}, "batch"),
        ({"batch": 65536}, "batch"),
        ({"m": 9}, "out"),
        ({"batch": 2}, "out"),
        ({"m": 7, "out": bp.Matrix("y", Absolute(2))}, "out.offset"),
        ({"out": bp.Matrix("y", Absolute(4))}, "out"),
        ({"out": bp.Matrix("y", Absolute(-4))}, "out.offset"),
        ({"out": bp.Matrix("y", transposed=True)}, "out.transposed"),
        ({"out": bp.Matrix("a")}, "a"),
        ({"a": bp.Matrix("a", ld=Absolute(7))}, "a.ld"),
        ({"a": bp.Matrix("nothing")}, "a"),
        ({"bias": bp.BufferPart("y")}, "bias"),
        ({"bias": bp.BufferPart("t", Absolute(4 * 57))}, "bias"),
        ({"c": bp.Matrix("t", transposed=True)}, "c.transposed"),
        ({"c": bp.Matrix("y", Absolute(0), ld=Absolute(9))}, "c"),
        ({"beta": 1.0}, "beta"),
        ({"m": 4, "dtype": "f64", "compute": "f32"}, "compute"),
        ({"dtype": "f16", "compute": "tf32"}, "compute"),
        (
            {"batch": 2, "m": 4, "out": bp.Matrix("y", batch_stride=Absolute(8))},
            "out.batch_stride",
        ),
    ],
)
def test_a_product_that_cannot_be_is_refused_at_its_field(fields: Any, field: str) -> None:
    with pytest.raises(InvalidBlueprint) as caught:
        if "a" in fields:
            a = fields.pop("a")
            made = bp.Blueprint(inputs=["a", "b"], outputs=["y"])
            made.gemm(a, made.b, made.buffer("y", 256), m=8, n=8, k=8)
            made.build()
        product(**fields)
    assert {p.where for p in caught.value.problems} == {f"blueprint.control_flow[0].{field}"}


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"kernel": 7}, "kernel[0]"),
        ({"kernel": (3, 8)}, "kernel[1]"),
        ({"dilation": 3}, "kernel[0]"),
        ({"groups": 3}, "channels"),
        ({"groups": 4, "filters": 6}, "filters"),
        ({"stride": 0}, "stride[0]"),
        ({"padding": (-1, 0)}, "padding[0]"),
        ({"filters": 9}, "out"),
        ({"channels": 2**31 - 1}, "channels"),
        ({"padding": 1}, "out"),
        ({"dtype": "bf16", "compute": "bf16"}, "compute"),
    ],
)
def test_a_convolution_that_cannot_be_is_refused_at_its_field(fields: Any, field: str) -> None:
    with pytest.raises(InvalidBlueprint) as caught:
        image(**fields)
    wheres = {p.where.removeprefix("blueprint.control_flow[0].") for p in caught.value.problems}
    assert field in wheres


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"dtype": "f23"}, ".dtype"),
        ({"compute": 32}, ".compute"),
        ({"activation": "relv"}, ".activation"),
        ({"a": {"buffer": "a", "transposed": 1}}, ".a.transposed"),
        ({"a": {"ld": 4}}, ".a"),
        ({"alpha": "1"}, ".alpha"),
        ({"kernel": 3}, ".kernel"),
        ({"bias_axis": "diagonal"}, ".bias_axis"),
    ],
)
def test_a_document_with_a_mistake_is_refused_at_its_place(change: Any, where: str) -> None:
    document = json.loads(bp.print_blueprint(product()))
    document["blueprint"]["control_flow"][0]["Gemm"].update(change)
    with pytest.raises(InvalidBlueprint) as caught:
        bp.parse_blueprint(json.dumps(document))
    assert f"blueprint.control_flow[0]{where}" in {p.where for p in caught.value.problems}


def test_the_builder_refuses_unknown_words() -> None:
    with pytest.raises(InvalidInput, match="did you mean 'tf32'"):
        product(compute="tf23")
    with pytest.raises(InvalidInput, match="height and width"):
        image(stride=(1, 2, 3))


def test_a_short_document_has_defaults() -> None:
    gemm = {"a": "a", "b": "b", "out": "y", "m": 8, "n": 8, "k": 8, "c": "t", "dtype": "f64"}
    body: dict[str, Any] = {"inputs": ["a", "b", "t"], "buffers": {"y": 512}, "outputs": ["y"]}
    document = {
        "modules": {},
        "kernels": {},
        "blueprint": {**body, "control_flow": [{"Gemm": gemm}]},
    }
    (action,) = bp.parse_blueprint(json.dumps(document)).blueprint.control_flow
    assert isinstance(action, bp.Gemm)
    assert (action.beta, action.compute) == (1.0, bp.Computation.F64)


# --- what blueprints say of their buffers -------------------------------------------------------


def test_uses_of_buffers() -> None:
    config = product(m=bp.Buffer("cfg")[3], bias=bp.BufferPart("t"))
    assert written_buffers(config) == {"y"}
    assert integers_read(config) == (bp.FromInput("cfg", 3),)
    assert not is_written_first("y", config), "a part may stay as it was"
    assert not is_written_first("t", config)


def test_a_fused_blueprint_has_the_operations_of_its_parts() -> None:
    parts = [
        BlueprintPart(product(m=bp.Buffer("cfg")[3]), {"a": "p", "b": "p", "cfg": "n"}, {"y": "q"}),
        BlueprintPart(image(size=4), {"x": "q", "w": "p"}, {"y": "r"}),
    ]
    whole = fused_blueprint(parts, ["p", "n"], {"r": "result"})
    assert bp.check_blueprint(whole) == []
    first, second = whole.blueprint.control_flow
    assert isinstance(first, bp.Gemm)
    assert isinstance(second, bp.Conv2d)
    assert (first.a.buffer, first.m) == ("p", bp.FromInput("n", 3))
    assert (second.image.buffer, second.out.buffer) == (first.out.buffer, "result")


# --- plans --------------------------------------------------------------------------------------


def planned(config: bp.GpuConfig, sizes: dict[str, int], lowering: Lowering, *cfg: int) -> Plan:
    return plan(config, sizes, lambda name, at: cfg[at], lowering=lowering)


SIZES = {"a": 256, "b": 256, "cfg": 16}
LIBRARY = Lowering(ReferenceLibrary(512))


def test_sizes_of_a_call_are_checked_when_it_is_planned() -> None:
    config = product(m=bp.Buffer("cfg")[0], k=bp.Buffer("cfg")[1])
    (step,) = planned(config, SIZES, LIBRARY, 8, 8).steps
    assert isinstance(step, LibraryCall)
    for cfg, field in (((9, 8), "a"), ((8, 9), "a"), ((0, 8), "m"), ((8, 2**40), "k")):
        with pytest.raises(InvalidInput) as caught:
            planned(config, SIZES, LIBRARY, *cfg)
        assert caught.value.where == f"blueprint.control_flow[0].{field}"
    with pytest.raises(InvalidInput, match="it ends at byte 256 of 'b', which has 255"):
        planned(config, {**SIZES, "b": 255}, LIBRARY, 8, 8)


def test_a_result_that_fills_its_buffer_does_not_need_zeros() -> None:
    """What a product leaves is zero, so only a whole result may reuse memory that is not."""
    made = bp.Blueprint(inputs=["a"], outputs=["y"])
    first, second = made.buffer("t", 256, temporary=True), made.buffer("u", 256, temporary=True)
    y = made.buffer("y", 256)
    shape = {"m": 8, "n": 8, "k": 8}
    made.gemm(made.a, made.a, first, **shape)
    made.gemm(first, made.a, second, **shape)
    made.gemm(second, made.a, y, **shape)
    whole = planned(made.build(), {"a": 256}, LIBRARY)
    assert whole.slots["y"].offset_bytes in (
        whole.slots["t"].offset_bytes, whole.slots["\0workspace 0"].offset_bytes,
    )  # fmt: skip


def test_operations_wait_for_what_they_use() -> None:
    (step,) = planned(product(), SIZES, LIBRARY).steps
    assert isinstance(step, LibraryCall)
    assert step.workspace is not None
    use = use_of(step)
    assert {start for start, _ in use.writes} == {
        step.operands["out"].offset_bytes, step.workspace.offset_bytes,
    }  # fmt: skip
    assert {start for start, _ in use.reads} == {step.operands[name].offset_bytes for name in "ab"}
    constant = dataclasses.replace(step.operands["b"], constant=True)
    kept = dataclasses.replace(step, operands={**step.operands, "b": constant})
    assert len(use_of(kept).reads) == 1, "constants are never written"


def test_a_plan_without_a_device_counts_the_workspace() -> None:
    small = planned(product(), SIZES, Lowering()).used_bytes
    large = planned(product(), SIZES, Lowering(AssumedLibrary(32 << 20))).used_bytes
    assert large >= small + (32 << 20)


class Products(AssumedLibrary):
    """A library without convolutions."""

    def workspace_bytes(self, call: OperationCall) -> int | None:
        return None if isinstance(call, ConvolutionCall) else super().workspace_bytes(call)


class BareConvolutions(Products):
    """A library of convolutions without anything that follows them."""

    def workspace_bytes(self, call: OperationCall) -> int | None:
        if not isinstance(call, ConvolutionCall):
            return None
        bare = call.activation is Activation.NONE and call.bias is None and call.addend is None
        return 64 if bare else None


def test_what_a_library_lacks_goes_around_it() -> None:
    library = Lowering(Products(64))
    unfolded = planned(image(bias=bp.BufferPart("w")), {"x": 576, "w": 1152}, library)
    assert [type(step) for step in unfolded.steps] == [Launch, LibraryCall, Launch]
    pointwise = image(kernel=1, size=4)
    (step,) = planned(pointwise, {"x": 256, "w": 128}, library).steps
    assert isinstance(step, LibraryCall)
    groups = planned(image(groups=2), {"x": 576, "w": 576}, library)
    assert [type(step) for step in groups.steps] == [Launch]


def test_what_follows_a_convolution_is_done_after_it() -> None:
    library = Lowering(BareConvolutions(64))
    (step,) = planned(image(), {"x": 576, "w": 1152}, library).steps
    assert isinstance(step, LibraryCall)
    biased = planned(image(bias=bp.BufferPart("w")), {"x": 576, "w": 1152}, library)
    bare, after = biased.steps
    assert isinstance(bare, LibraryCall)
    assert isinstance(after, Launch)
    assert after.access.count(Access.BOTH) == 1, "it changes the result in its place"


def test_a_plan_without_a_device_has_room_for_each_way() -> None:
    """The device may have a library of convolutions, or one of products, or none."""
    case = image(bias=bp.BufferPart("w"))
    sizes = {"x": 576, "w": 1152}
    most = planned(case, sizes, Lowering(AssumedLibrary(64))).used_bytes
    for library in (Products(64), BareConvolutions(64), None):
        assert planned(case, sizes, Lowering(library)).used_bytes <= most


# --- results ------------------------------------------------------------------------------------


class Templates:
    """Templates on the OpenCL device, each compiled once."""

    def __init__(self) -> None:
        self.device = OpenClDevice()
        self.device.open()
        self.device.allocate(POOL_BYTES)
        self.modules: dict[str, Handle] = {}

    def run(self, case: Case, lowering: Lowering) -> bytes:
        made = plan(case.config, case.sizes, lambda name, at: 0, lowering=lowering)
        self.device.zero(0, made.used_bytes)
        for name, data in case.data.items():
            self.device.copy_in(made.slots[name].offset_bytes, data)
        table = {}
        for name, template in made.templates.items():
            if template.symbol not in self.modules:
                self.modules[template.symbol] = self.device.load(code_of(template))
            table[name] = (self.modules[template.symbol], template.symbol)
        self.device.launch(prepare_steps(self.device, made.steps, table))
        self.device.synchronize()
        found = bytearray(made.outputs["y"].size_bytes)
        self.device.copy_out(made.outputs["y"].offset_bytes, memoryview(found))
        return bytes(found)


@pytest.fixture(scope="module")
def templates() -> Iterator[Templates]:
    try:
        made = Templates()
    except BackendUnavailable as error:
        pytest.skip(str(error))
    yield made
    made.device.close()


PROCESSOR, NARROW, DEVICE = Lowering(None, True, 64), Lowering(None, True, 16), Lowering()
seeds = st.integers(0, 2**32)
extents = st.sampled_from([1, 2, 7, 8, 17, 31, 33, 64, 130])


@settings(max_examples=40, deadline=None)
@given(seeds, extents, extents, st.sampled_from([1, 5, 128, 300]), st.sampled_from([1, 3]))
def test_products_by_panels(
    templates: Templates, seed: int, m: int, n: int, k: int, batch: int
) -> None:
    """One template for all sizes: 8 rows of 32 columns at a time, their depth in parts of 128."""
    case = Maker(seed).gemm(
        F32, (max(m, 8), max(n, 17), k), a=False, b=True, added=False, bias=None, batch=batch
    )
    assert case.error(templates.run(case, PROCESSOR)) < TOLERANCES["f32"]


@settings(max_examples=40, deadline=None)
@given(seeds, extents, st.sampled_from([1, 5, 31, 64]))
def test_products_by_tiles(templates: Templates, seed: int, m: int, k: int) -> None:
    case = Maker(seed).gemm(F32, (m, 16, k), a=True, b=False, added=True, bias=BiasAxis.ROWS)
    assert case.error(templates.run(case, DEVICE)) < TOLERANCES["f32"]


_KINDS = [
    # rows of a single matrix, and every type, layout, epilogue once
    (PROCESSOR, F32, (1, 40, 70), False, True, True, BiasAxis.COLUMNS, Activation.NONE),
    (PROCESSOR, ElementType.BF16, (3, 18, 33), False, True, False, None, Activation.RELU),
    (PROCESSOR, ElementType.F64, (9, 20, 150), True, False, True, BiasAxis.ROWS, Activation.NONE),
    (PROCESSOR, ElementType.F16, (20, 35, 9), False, False, False, None, Activation.GELU_TANH),
    (NARROW, F32, (20, 35, 9), True, True, True, BiasAxis.COLUMNS, Activation.RELU),
    (DEVICE, ElementType.F64, (40, 35, 9), False, True, True, BiasAxis.COLUMNS, Activation.NONE),
    (DEVICE, ElementType.BF16, (33, 40, 20), True, True, False, None, Activation.GELU_TANH),
    (DEVICE, ElementType.F16, (70, 33, 70), False, False, True, BiasAxis.ROWS, Activation.RELU),
]


@pytest.mark.parametrize("kind", _KINDS, ids=lambda kind: f"{kind[1].value}-{kind[2][0]}")
def test_kinds_of_products(templates: Templates, kind: Any) -> None:
    lowering, dtype, sizes, a, b, added, bias, activation = kind
    for seed, batch in ((1, 1), (2, 3)):
        case = Maker(seed).gemm(
            dtype, sizes, a=a, b=b, added=added, bias=bias, activation=activation, batch=batch
        )
        assert case.error(templates.run(case, lowering)) < TOLERANCES[dtype.value], seed


_IMAGES: list[tuple[Lowering, ElementType, ImageLayout, dict[str, Any]]] = [
    (PROCESSOR, F32, ImageLayout.NCHW, {"kernel": (3, 3), "padding": (1, 1), "bias": True}),
    (PROCESSOR, ElementType.F16, ImageLayout.NHWC, {"kernel": (2, 3), "stride": (2, 1)}),
    (DEVICE, F32, ImageLayout.NCHW, {"kernel": (3, 2), "dilation": (2, 1), "groups": 2}),
    (DEVICE, F32, ImageLayout.NHWC, {"kernel": (3, 3), "padding": (1, 0), "groups": 2}),
]


@pytest.mark.parametrize("kind", _IMAGES, ids=lambda kind: f"{kind[1].value}-{kind[2].value}")
def test_convolutions(templates: Templates, kind: Any) -> None:
    """The sizes of an image are arguments: one template for all of these."""
    lowering, dtype, layout, fields = kind
    for seed, size in enumerate([(9, 7), (6, 40), (5, 5), (20, 33)]):
        case = Maker(seed).convolution(
            dtype, layout, batch=1 + seed % 2, channels=4, filters=10, size=size, added=True,
            activation=Activation.RELU, **fields,
        )  # fmt: skip
        assert case.error(templates.run(case, lowering)) < TOLERANCES[dtype.value], size


# --- engines ------------------------------------------------------------------------------------


def called(case: Case, device: HostDevice) -> bytes:
    """Run a case on an engine, some times, which all must give the same."""
    main = bp.print_blueprint(case.config).encode()
    code = CodeObject("blueprint", digest_of(main), {})
    inputs = tuple(SetSpec(name) for name in case.data)
    function = Function(FunctionSpec("F", inputs, (SetSpec("y"),), code=(code,)), code, main, {})
    sets = tuple(ItemSet(n, (Item("i", 0, d),)) for n, d in case.data.items())
    engine = SequentialEngine(device, POOL_BYTES)
    try:
        found = []
        for number in range(3):
            call = Call(number, function, sets, HeapDomain(1 << 22), 2**62)
            (out,) = engine.run(call)
            assert out is not None
            found.append(bytes(out.items[0].data))
            engine.clean_up()
        assert found[0] == found[1] == found[2]
        return found[0]
    finally:
        engine.close()


@settings(max_examples=30, deadline=None)
@given(seeds, st.sampled_from(list(ElementType)), st.booleans(), st.booleans(), st.booleans())
def test_an_engine_gives_an_operation_to_the_library(
    seed: int, dtype: ElementType, a: bool, b: bool, is_image: bool
) -> None:
    maker = Maker(seed)
    if is_image:
        case = maker.convolution(
            dtype, ImageLayout.NHWC if a else ImageLayout.NCHW, batch=2, channels=4, filters=6,
            size=(5, 7), kernel=(3, 3), padding=(1, 1), added=b, bias=True,
        )  # fmt: skip
    else:
        case = maker.gemm(dtype, (5, 6, 7), a=a, b=b, added=True, bias=BiasAxis.ROWS, batch=2)
    device = HostDevice({}, POOL_BYTES, lazy=True, graphs=True, library=ReferenceLibrary(1024))
    assert case.error(called(case, device)) < 1e-12


def test_what_a_result_leaves_of_its_buffer_is_zero() -> None:
    """Also where the memory was used before: only whole results may reuse it as it is."""
    made = bp.Blueprint(inputs=["a"], outputs=["y"])
    first, second = made.buffer("t", 256, temporary=True), made.buffer("u", 256, temporary=True)
    y = made.buffer("y", 256)
    shape = {"n": 8, "k": 8}
    made.gemm(made.a, made.a, first, m=8, **shape)
    made.gemm(first, made.a, second, m=8, **shape)
    made.gemm(second, made.a, y, m=4, **shape)
    a = np.eye(8, dtype=np.float32)
    device = HostDevice({}, POOL_BYTES, graphs=True, library=ReferenceLibrary())
    found = called(Case(made.build(), {"a": a.tobytes()}, F32), device)
    a[4:] = 0
    assert (np.frombuffer(found, np.float32).reshape(8, 8) == a).all()


def test_access_of_a_template_is_what_it_does() -> None:
    """A sum in place reads and writes its buffer."""
    made = bp.Blueprint(inputs=["y", "b"], outputs=["y"])
    made.gemm(made.b, made.b, made.y, c=made.y, m=8, n=8, k=8)
    (step,) = planned(made.build(), {"y": 256, "b": 256}, Lowering()).steps
    assert isinstance(step, Launch)
    assert Access.WRITE in step.access
    y = np.zeros(64, np.float32)
    data = {"y": (y + 1).tobytes(), "b": np.eye(8, dtype=np.float32).tobytes()}
    device = HostDevice({}, POOL_BYTES, graphs=True, library=ReferenceLibrary())
    case = Case(made.build(), data, F32)
    found = np.frombuffer(called(case, device), np.float32).reshape(8, 8)
    assert (found == np.ones((8, 8)) + np.eye(8)).all()
