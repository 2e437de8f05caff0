"""Library operations: checks, document form, plans, and that all ways of computing them agree."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from dandelion.backends.gpu.graph_parts import use_of
from dandelion.backends.gpu.lowering import AssumedLibrary, Lowering
from dandelion.backends.gpu.plan import Launch, LibraryCall
from dandelion.backends.gpu.reference_library import ReferenceLibrary

import dandelion.blueprint as bp
from dandelion.blueprint import Absolute, Access, Activation
from dandelion.blueprint.first_uses import is_written_first
from dandelion.blueprint.operation_calls import ConvolutionCall, OperationCall
from dandelion.blueprint.uses import integers_read, written_buffers
from dandelion.errors import InvalidBlueprint, InvalidInput
from dandelion.fusion.blueprints import BlueprintPart, fused_blueprint
from tests.operation_plans import planned


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
