"""Library operations of exported models: views as strides, and which operators become one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dandelion.blueprint import Activation, Computation, ElementType, ImageLayout
from dandelion.errors import InvalidInput
from dandelion.export import products
from dandelion.export.peak_graph import for_peak
from dandelion.export.peak_records import AttentionProduct
from dandelion.export.product_records import ConvolutionProduct, GemmProduct, Place
from dandelion.export.products import with_products
from dandelion.export.strided_views import Layout, StridedView, row_major
from dandelion.export.torch_document import export_module
from dandelion.export.torch_graph import Argument, Constant, Graph, Node, Reference, TensorType

# --- views --------------------------------------------------------------------------------------


@st.composite
def moves(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Any]]:
    shape = draw(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=4).map(tuple))
    made: list[Any] = []
    now = np.empty(shape)
    for _ in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(["permute", "reshape", "narrow", "swap"]))
        if kind == "permute":
            order = tuple(draw(st.permutations(range(now.ndim))))
            made.append((kind, order))
            now = now.transpose(order)
        elif kind == "narrow":
            axis = draw(st.integers(0, now.ndim - 1))
            step = draw(st.sampled_from([1, 2]))
            start = draw(st.integers(0, now.shape[axis] - 1))
            length = draw(st.integers(1, (now.shape[axis] - start + step - 1) // step))
            made.append((kind, axis, start, length, step))
            cut = [slice(None)] * now.ndim
            cut[axis] = slice(start, start + (length - 1) * step + 1, step)
            now = now[tuple(cut)]
        elif kind == "swap" and now.ndim > 1:
            made.append((kind,))
            now = now.swapaxes(-1, -2)
        else:
            sizes = _factors(draw, now.size)
            made.append(("reshape", sizes))
            now = now.reshape(sizes)
    return shape, made


@settings(max_examples=100, deadline=None)
@given(moves())
def test_layouts_say_it_where_strides_cannot(given: Any) -> None:
    shape, steps = given
    values = np.arange(math.prod(shape))
    wanted: Any = values.reshape(shape)
    layout: Layout | None = Layout.of(StridedView("x", shape, row_major(shape)))
    for kind, *how in steps:
        if kind == "permute" and layout is not None:
            dimensions = tuple(layout.dimensions[d] for d in how[0])
            wanted, layout = wanted.transpose(how[0]), Layout("x", dimensions)
        elif kind == "reshape" and layout is not None:
            wanted, layout = wanted.reshape(how[0]), layout.reshaped(how[0])
        else:
            break
    if layout is None:
        return
    parts = [part for each in layout.dimensions for part in each]
    places = np.zeros((1,), int)
    for size, stride in parts:
        places = (places[:, None] + stride * np.arange(size)).reshape(-1)
    assert layout.shape == wanted.shape
    assert np.array_equal(values[places].reshape(wanted.shape), wanted)
    view = layout.view()
    if view is not None:
        assert view.shape == wanted.shape


def _factors(draw: st.DrawFn, size: int) -> tuple[int, ...]:
    sizes = []
    while size > 1 and len(sizes) < 3:
        factor = draw(st.sampled_from([d for d in range(1, size + 1) if size % d == 0]))
        sizes.append(factor)
        size //= factor
    return (*sizes, size)


@settings(max_examples=150, deadline=None)
@given(moves())
def test_strides_say_which_elements_a_view_has(given: Any) -> None:
    shape, steps = given
    values = np.arange(math.prod(shape))
    wanted: Any = values.reshape(shape)
    view: StridedView | None = StridedView("x", shape, row_major(shape))
    for kind, *how in steps:
        assert view is not None
        if kind == "permute":
            wanted, view = wanted.transpose(how[0]), view.permuted(how[0])
        elif kind == "swap":
            wanted, view = wanted.swapaxes(-1, -2), view.swapped()
        elif kind == "narrow":
            axis, start, length, step = how
            cut = [slice(None)] * wanted.ndim
            cut[axis] = slice(start, start + (length - 1) * step + 1, step)
            wanted, view = wanted[tuple(cut)], view.narrowed(axis, start, length, step)
        else:
            before = wanted
            wanted, view = wanted.reshape(how[0]), view.reshaped(how[0])
            if view is None:  # then numpy must have copied as well
                assert not np.shares_memory(before, wanted)
                return
    assert view is not None
    item = values.itemsize
    found = np.lib.stride_tricks.as_strided(
        values[view.offset :], view.shape, [item * stride for stride in view.strides]
    )
    assert (found == wanted).all()
    if view.is_dense:
        end = view.offset + math.prod(view.shape)
        assert (values[view.offset : end] == wanted.reshape(-1)).all()


# --- graphs -------------------------------------------------------------------------------------


class Model:
    """A graph, written by hand."""

    def __init__(self, **inputs: tuple[int, ...]) -> None:
        self.inputs = {name: TensorType(shape, "float32") for name, shape in inputs.items()}
        self.constants: dict[str, Constant] = {}
        self.nodes: list[Node] = []

    def constant(self, name: str, *shape: int) -> None:
        data = np.zeros(shape, np.float32)
        self.constants[name] = Constant(TensorType(shape, "float32"), data)

    def add(
        self, name: str, operator: str, shape: tuple[int, ...], *arguments: Any, **keywords: Any
    ) -> None:
        def argument(given: Any) -> Argument:
            return Reference(given) if isinstance(given, str) else given

        kind = TensorType(shape, "float32")
        self.nodes.append(
            Node(
                name, f"aten.{operator}",
                tuple(map(argument, arguments)), keywords, (kind,), True, "float32",
                f"m.py:{len(self.nodes)}", "",
            )
        )  # fmt: skip

    def rewritten(self, output: str) -> tuple[Graph, dict[str, Any]]:
        graph = Graph(self.inputs, self.constants, self.nodes, {"y": output})
        return with_products(graph, Computation.TF32)


@pytest.fixture(autouse=True)
def _take_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "LEAST_PRODUCTS", 1)


def linear() -> Model:
    """A linear layer with a residual sum and an activation behind it."""
    model = Model(x=(2, 3, 8), r=(2, 3, 5))
    model.constant("w", 5, 8)
    model.constant("b", 5)
    model.add("flat", "view.default", (6, 8), "x", (6, 8))
    model.add("t", "permute.default", (8, 5), "w", (1, 0))
    model.add("mm", "addmm.default", (6, 5), "b", "flat", "t")
    model.add("back", "view.default", (2, 3, 5), "mm", (2, 3, 5))
    model.add("sum", "add.Tensor", (2, 3, 5), "r", "back")
    model.add("out", "relu.default", (2, 3, 5), "sum")
    return model


def test_a_linear_layer_takes_in_what_follows() -> None:
    graph, made = linear().rewritten("out")
    (product,) = made.values()
    assert product == GemmProduct(
        Place("x", 0, False, 8, 0), Place("w", 0, True, 8, 0), 6, 5, 8, 1, ElementType.F32,
        Computation.TF32, 1.0, 1.0, Place("r", 0, False, 5, 30), Place("b"),
        activation=Activation.RELU,
    )  # fmt: skip
    assert [n.name for n in graph.nodes] == ["flat", "t", "out"]
    assert list(graph.nodes[-1].inputs()) == ["x", "w", "r", "b"]


@pytest.mark.parametrize("other", ["sum", "back", "mm"])
def test_a_value_that_others_use_is_not_taken_in(other: str) -> None:
    model = linear()
    shape = {"sum": (2, 3, 5), "back": (2, 3, 5), "mm": (6, 5)}[other]
    model.add("more", "neg.default", shape, other)
    model.add("both", "cat.default", (0,), ("out", "more"))
    graph, made = model.rewritten("both")
    assert other in {n.name for n in graph.nodes} or other == "back"
    (name,) = made
    assert name == ("sum" if other == "sum" else "mm")


def test_two_convolutions_that_are_added_are_two_operations() -> None:
    model = Model(x=(1, 4, 6, 6))
    for name in ("u", "v"):
        model.constant(name, 4, 4, 1, 1)
    rest = ((1, 1), (0, 0), (1, 1), False, (0, 0), 1)
    model.add("first", "convolution.default", (1, 4, 6, 6), "x", "u", None, *rest)
    model.add("second", "convolution.default", (1, 4, 6, 6), "x", "v", None, *rest)
    model.add("sum", "add.Tensor", (1, 4, 6, 6), "first", "second")
    model.add("out", "relu.default", (1, 4, 6, 6), "sum")
    graph, made = model.rewritten("out")
    assert [n.name for n in graph.nodes] == ["second", "out"]
    assert isinstance(made["out"], ConvolutionProduct)
    assert made["out"].c == Place("second")
    assert made["second"].activation is Activation.NONE


def test_heads_of_attention_are_matrices_in_each_other() -> None:
    model = Model(q=(1, 16, 12), m=(1, 1, 16, 16))
    model.add("heads", "view.default", (1, 16, 3, 4), "q", (1, 16, 3, 4))
    model.add("x", "permute.default", (1, 3, 16, 4), "heads", (0, 2, 1, 3))
    model.add(
        "y", "scaled_dot_product_attention.default", (1, 3, 16, 4), "x", "x", "x", "m",
    )  # fmt: skip
    graph, made = model.rewritten("y")
    scores, last = made["y_scores"], made["y"]
    assert scores.a == Place("q", 0, False, 12, 4)
    assert scores.b == Place("q", 0, True, 12, 4)
    assert (scores.m, scores.n, scores.k, scores.batch, scores.alpha) == (16, 16, 4, 3, 0.5)
    assert last.a == Place("y_weights", 0, False, 16, 256)
    assert [n.name for n in graph.nodes][-3:] == ["y_scores", "y_weights", "y"]


def test_what_strides_cannot_say_is_stored() -> None:
    """Two batch dimensions that lie apart."""
    model = Model(q=(2, 16, 12))
    model.add("heads", "view.default", (2, 16, 3, 4), "q", (2, 16, 3, 4))
    model.add("x", "permute.default", (2, 3, 16, 4), "heads", (0, 2, 1, 3))
    model.add("y", "scaled_dot_product_attention.default", (2, 3, 16, 4), "x", "x", "x")
    _, made = model.rewritten("y")
    assert made["y_scores"].a == Place("x", 0, False, 4, 64)
    assert made["y_scores"].b == Place("x", 0, True, 4, 64)
    assert made["y_scores"].batch == 6


@pytest.mark.parametrize(
    ("dtype", "least"), [("int32", 1), ("float32", 1 << 20)], ids=["integers", "small"]
)
def test_other_products_stay_as_they_are(
    dtype: str, least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "LEAST_PRODUCTS", least)
    kind = TensorType((4, 4), dtype)
    node = Node(
        "y", "aten.mm.default", (Reference("x"), Reference("x")), {}, (kind,), True, dtype, "", ""
    )
    graph, made = with_products(Graph({"x": kind}, {}, [node], {"y": "y"}), Computation.F32)
    assert (graph.nodes, made) == ([node], {})


# --- the route for one architecture -------------------------------------------------------------


def peak(model: Model, output: str) -> tuple[Graph, dict[str, Any]]:
    graph = Graph(model.inputs, model.constants, model.nodes, {"y": output})
    return for_peak(graph, Computation.TF32)


def test_rows_in_another_order_are_multiplied_as_they_lie() -> None:
    model = Model(x=(2, 3, 8))
    model.constant("w", 8, 5)
    model.constant("b", 5)
    model.add("turned", "permute.default", (3, 2, 8), "x", (1, 0, 2))
    model.add("wide", "expand.default", (3, 8, 5), "w", (3, 8, 5))
    model.add("mm", "bmm.default", (3, 2, 5), "turned", "wide")
    model.add("sum", "add.Tensor", (3, 2, 5), "mm", "b")
    model.add("out", "permute.default", (2, 3, 5), "sum", (1, 0, 2))
    graph, made = peak(model, "out")
    (product,) = made.values()
    assert product == GemmProduct(
        Place("x", 0, False, 8, 0), Place("w", 0, False, 5, 0), 6, 5, 8, 1, ElementType.F32,
        Computation.TF32, bias=Place("b"),
    )  # fmt: skip
    shapes = {node.name: node.type.shape for node in graph.nodes}
    assert shapes["sum"] == (3, 2, 5)
    assert shapes["out"] == (2, 3, 5)


def test_attention_reads_its_heads_where_they_lie() -> None:
    model = Model(x=(2, 7, 3, 4, 16))
    for at, name in enumerate("qkv"):
        model.add(f"{name}_rows", "select.int", (2, 7, 4, 16), "x", 2, at)
        model.add(name, "permute.default", (2, 4, 7, 16), f"{name}_rows", (0, 2, 1, 3))
    model.add("out", "scaled_dot_product_attention.default", (2, 4, 7, 16), "q", "k", "v")
    graph, made = peak(model, "out")
    (product,) = made.values()
    assert isinstance(product, AttentionProduct)
    offsets = [(view.base, view.offset) for view in (product.q, product.k, product.v)]
    assert offsets == [("x", 0), ("x", 64), ("x", 128)]
    assert product.q.strides == (7 * 192, 16, 192, 1)
    assert product.scale == 0.25
    assert graph.nodes[-1].operator == "aten.permute.default"


@pytest.mark.parametrize(
    ("kernel", "stride", "size"), [((1, 1), (1, 1), (6, 4)), ((2, 2), (2, 2), (3, 2))]
)
def test_convolutions_that_are_products(
    kernel: tuple[int, int], stride: tuple[int, int], size: tuple[int, int]
) -> None:
    model = Model(x=(2, 8, 6, 4))
    model.constant("w", 5, 8, *kernel)
    model.add("y", "convolution.default", (2, 5, *size), "x", "w", None, stride, (0, 0), (1, 1),
              False, (0, 0), 1)  # fmt: skip
    _, made = peak(model, "y")
    (product,) = made.values()
    inner = 8 * math.prod(kernel)
    assert isinstance(product, GemmProduct)
    assert (product.m, product.n, product.k) == (2 * math.prod(size), 5, inner)


def test_images_have_channels_last_and_as_many_as_loads_need() -> None:
    model = Model(x=(2, 3, 6, 6), r=(2, 4, 6, 6))
    model.constant("w", 4, 3, 3, 3)
    model.add("conv", "convolution.default", (2, 4, 6, 6), "x", "w", None, (1, 1), (1, 1), (1, 1),
              False, (0, 0), 1)  # fmt: skip
    model.add("sum", "add.Tensor", (2, 4, 6, 6), "conv", "r")
    graph, made = peak(model, "sum")
    (product,) = made.values()
    assert isinstance(product, ConvolutionProduct)
    assert product.layout is ImageLayout.NHWC
    assert product.channels == 4
    types = {node.name: node.type.shape for node in graph.nodes}
    assert types[product.image.value] == (2, 6, 6, 4)
    assert product.c is not None
    assert types[product.c.value] == (2, 6, 6, 4)
    assert graph.constants[product.weight.value].data.shape == (4, 3, 3, 4)
    assert types["sum"] == (2, 4, 6, 6)


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({"route": "peak"}, "target"),
        ({"route": "both"}, "target"),
        ({"route": "peak", "target": "cuda:90,cuda:90"}, "twice"),
        ({"target": "cuda:90"}, "for all devices"),
        ({"route": "best"}, "no route 'best'"),
    ],
)
def test_routes_that_are_not_possible(given: dict[str, Any], part: str) -> None:
    with pytest.raises(InvalidInput, match=part):
        export_module("f", object(), (), **given)
