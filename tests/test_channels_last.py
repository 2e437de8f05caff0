"""Convolutions of exported models with channels last: what is moved, and what is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dandelion.arrays import declared_dtype
from dandelion.blueprint import Activation, Computation, ImageLayout
from dandelion.export import products
from dandelion.export.aten import STORED_LAST
from dandelion.export.product_records import ConvolutionProduct, Place
from dandelion.export.products import with_products
from dandelion.export.torch_graph import Constant, Graph, Node, Reference, TensorType

_REST = ((1, 1), (0, 0), (1, 1), False, (0, 0), 1)


@pytest.fixture(autouse=True)
def _take_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "LEAST_PRODUCTS", 1)


class Model:
    """A graph of one type, written by hand; images have 8 channels of 6 x 5."""

    def __init__(self, channels: int = 8, dtype: str = "float32") -> None:
        self.dtype = dtype
        self.inputs = {"x": TensorType((2, channels, 6, 5), dtype)}
        self.constants: dict[str, Constant] = {}
        self.nodes: list[Node] = []

    def convolution(self, name: str, source: str, channels: int = 8, groups: int = 1) -> None:
        shape = (8, channels // groups, 1, 1)
        data = np.arange(np.prod(shape)).reshape(shape).astype(declared_dtype(self.dtype))
        self.constants[f"{name}_w"] = Constant(TensorType(shape, self.dtype), data)
        weight = Reference(f"{name}_w")
        rest = (*_REST[:-1], groups)
        self.add(name, "convolution.default", Reference(source), weight, None, *rest)

    def add(self, name: str, operator: str, *arguments: Any, channels: int = 8) -> None:
        kind = TensorType((2, channels, 6, 5), self.dtype)
        given = tuple(Reference(a) if isinstance(a, str) else a for a in arguments)
        self.nodes.append(
            Node(name, f"aten.{operator}", given, {}, (kind,), True, self.dtype, "m.py:1", "")
        )

    def rewritten(
        self, output: str, compute: Computation = Computation.TF32, for_gpu: bool = True
    ) -> tuple[list[Node], dict[str, ConvolutionProduct], Graph]:
        graph = Graph(self.inputs, self.constants, self.nodes, {"y": output})
        made, found = with_products(graph, compute, for_gpu=for_gpu)
        operations = {n: p for n, p in found.items() if isinstance(p, ConvolutionProduct)}
        assert operations.keys() == found.keys()
        return list(made.nodes), operations, made


def residual() -> Model:
    model = Model()
    model.convolution("first", "x")
    model.add("a", "relu.default", "first")
    model.convolution("second", "a")
    model.add("sum", "add.Tensor", "second", "a")
    model.add("out", "relu.default", "sum")
    return model


def test_values_between_convolutions_are_moved_nowhere() -> None:
    nodes, made, _ = residual().rewritten("out")
    assert [n.name for n in nodes] == ["first_moved", "first_image", "a_last", "out_last", "out"]
    first, second = made["a_last"], made["out_last"]
    assert first.image == Place("first_image")
    assert (second.image, second.c) == (Place("a_last"), Place("a_last"))
    for one in (first, second):
        assert one.layout is ImageLayout.NHWC
        assert one.activation is Activation.RELU
        assert (one.batch, one.channels, one.filters, one.size) == (2, 8, 8, (6, 5))
    assert nodes[-1].type.shape == (2, 8, 6, 5)


@pytest.mark.parametrize(
    ("compute", "for_gpu"), [(Computation.F32, True), (Computation.TF32, False)]
)
def test_only_where_there_are_tensor_cores(compute: Computation, for_gpu: bool) -> None:
    nodes, made, _ = residual().rewritten("out", compute, for_gpu)
    assert {one.layout for one in made.values()} == {ImageLayout.NCHW}
    assert [n.name for n in nodes] == ["a", "out"]


@pytest.mark.parametrize(("dtype", "width"), [("float32", 4), ("bfloat16", 8)])
def test_few_channels_are_filled_up(dtype: str, width: int) -> None:
    model = Model(3, dtype)
    model.convolution("first", "x", 3)
    nodes, made, graph = model.rewritten("first")
    (operation,) = made.values()
    assert operation.channels == width
    stored = next(n for n in nodes if n.operator == STORED_LAST)
    assert stored.type.shape == (2, 6, 5, width)
    weight = graph.constants["first_weight_last"]
    assert weight.type.shape == (8, 1, 1, width)
    old = model.constants["first_w"].data
    assert (weight.data[:, 0, 0, :3] == old[:, :, 0, 0]).all()
    assert not weight.data[..., 3:].any()


def test_what_follows_element_by_element_stays_in_order() -> None:
    """Also with a value that has another order, and a constant for each channel."""
    model = Model()
    shape = (1, 8, 1, 1)
    model.constants["scale"] = Constant(TensorType(shape, "float32"), np.ones(shape, np.float32))
    model.convolution("first", "x")
    model.add("scaled", "mul.Tensor", "first", "scale")
    model.add("more", "add.Tensor", "scaled", "x")
    model.add("both", "cat.default", (Reference("more"), Reference("scaled")), 1, channels=16)
    model.convolution("last", "both", 16)
    nodes, made, _ = model.rewritten("last")
    by_name = {n.name: n for n in nodes}
    assert by_name["scaled_last"].arguments == (
        Reference("first_last"),
        Reference("scale_last_view"),
    )
    assert by_name["scale_last_view"].type.shape == (1, 1, 1, 8)
    assert by_name["both_last"].arguments[1] == 3
    assert by_name["both_last"].type.shape == (2, 6, 5, 16)
    assert made["last_last"].image == Place("both_last")


def test_other_operators_read_the_old_order() -> None:
    model = Model()
    model.convolution("first", "x")
    model.add("soft", "_softmax.default", "first", 1, False)
    model.convolution("last", "soft")
    nodes, made, _ = model.rewritten("last")
    by_name = {n.name: n for n in nodes}
    assert by_name["soft"].arguments[0] == Reference("first")
    assert by_name["first"].arguments[0] == Reference("first_last")
    assert made["last_last"].image == Place("last_image")


def test_groups_are_left_as_they_are() -> None:
    model = Model()
    model.convolution("first", "x", groups=8)
    nodes, made, _ = model.rewritten("first")
    assert [n.name for n in nodes] == ["first"]
    assert not made


def test_a_network_computes_what_torch_does() -> None:
    """With every convolution as an operation, on whatever device there is."""
    torch = pytest.importorskip("torch", reason="the extra 'export' is not installed")
    pytest.importorskip("tinygrad", reason="the extra 'export' is not installed")
    from dandelion.export import export_module
    from dandelion.export.torch_binding import example_arrays, reference_outputs
    from dandelion.node import Node
    from tests.torch_calls import SETTINGS, call

    class Network(torch.nn.Module):  # type: ignore[misc, name-defined]  # torch may be absent
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Conv2d(3, 8, 3, padding=1)
            self.second = torch.nn.Conv2d(8, 8, 3, padding=1)

        def forward(self, x: Any) -> Any:
            x = torch.nn.functional.max_pool2d(self.first(x).relu(), 2)
            return torch.nn.functional.hardswish(self.second(x) + x).mean((2, 3))

    torch.manual_seed(1)
    network = Network().eval()
    examples = (torch.randn(2, 3, 10, 12),)
    made = export_module("exported", network, examples, precision="tf32")
    assert made.report.library_operations == 2
    with Node(SETTINGS) as node:
        found = call(node, made.function, example_arrays(examples, made.inputs))
    expected = reference_outputs(network, examples, made.outputs)
    assert max(made.report.with_errors(found, expected).errors.values()) < 5e-3
