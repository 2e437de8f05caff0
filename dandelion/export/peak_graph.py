"""A graph for the route with Inductor: operations that a library or one kernel of ours does best.

What is left of the graph goes to Inductor. Differences to the portable route:

- attention is one operation, for the element types that a device multiplies fast;
- images lie channels last, as libraries read them fastest; a convolution with a kernel of one
  element is then a product of matrices, with all that follows it;
- a convolution whose kernel lies beside its last place, such as that of patches, is a product too,
  and so is a transposed one;
- operators that only copy are left out, as no value is ever changed.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Generator, Iterator, Mapping, Sequence

import numpy as np

from dandelion.blueprint import Computation, ImageLayout
from dandelion.errors import InvalidFunction, Problem
from dandelion.export.aten import CONVOLUTION, GEMM
from dandelion.export.batch_norm import folded
from dandelion.export.peak_records import AttentionProduct, PeakProduct
from dandelion.export.product_records import ConvolutionProduct, GemmProduct, Place
from dandelion.export.product_rows import rows_in_order
from dandelion.export.products import with_products
from dandelion.export.strided_views import StridedView, ViewTracer, row_major
from dandelion.export.torch_graph import (
    Argument,
    Constant,
    Graph,
    Node,
    Reference,
    TensorType,
    shapes_of,
)

ATTENTION = "dandelion.attention"
"""The operator of nodes that are an `AttentionProduct`."""

_ATTENTION = "aten.scaled_dot_product_attention.default"
_CONVOLUTION = "aten.convolution.default"
_RANDOM = re.compile(
    r"aten\.(rand|bernoulli|normal|uniform|native_dropout|multinomial|exponential)"
)
_LARGEST_WIDTH = 256
_TO_NHWC, _TO_NCHW = (0, 2, 3, 1), (0, 3, 1, 2)


def for_peak(graph: Graph, precision: Computation) -> tuple[Graph, dict[str, PeakProduct]]:
    """Rewrite a graph.

    Args:
        graph: of a model.
        precision: how products of float32 are computed.

    Returns:
        The graph, and the operation of each node with an operator of ours by the node's name.
    """
    _refuse_random(graph)
    graph = rows_in_order(_Convolutions(folded(graph)).rewritten())
    graph, attention = _with_attention(graph, precision)
    graph = rows_in_order(graph)
    graph, products = with_products(graph, precision, least=1, grouped=True)
    graph, changed = _ChannelsLast(graph, products).rewritten()
    return graph, {**attention, **changed}


def _refuse_random(graph: Graph) -> None:
    problems = [
        Problem("unsupported-operator", f"operator {node.operator} is not supported", node.place,
                expected="random numbers as an input")
        for node in graph.nodes if _RANDOM.match(node.operator)
    ]  # fmt: skip
    if problems:
        raise InvalidFunction(tuple(problems))


def is_depthwise(node: Node, types: Mapping[str, TensorType]) -> bool:
    """Tell whether a convolution multiplies each channel with a kernel of its own."""
    if node.operator != _CONVOLUTION or node.arguments[6]:
        return False
    weight, groups = node.arguments[1], node.arguments[8]
    if not isinstance(weight, Reference):
        return False
    shape = types[weight.name].shape
    return len(shape) == 4 and shape[1] == 1 and groups == shape[0] != 1


class _Names:
    """Gives new nodes names of their own."""

    def __init__(self, graph: Graph) -> None:
        self.taken = {n.name for n in graph.nodes} | {*graph.inputs, *graph.constants}

    def new(self, name: str) -> str:
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        return name


def _node(
    like: Node, name: str, operator: str, arguments: Sequence[Argument], kind: TensorType
) -> Node:
    return dataclasses.replace(
        like, name=name, operator=f"aten.{operator}", arguments=tuple(arguments), keywords={},
        results=(kind,), single=True, operand=kind.dtype,
    )  # fmt: skip


class _Chain:
    """Nodes that follow each other, in the place of one node; the last has its name."""

    def __init__(self, node: Node, names: _Names, first: Reference) -> None:
        self.node, self.names, self.at = node, names, first
        self.made: list[Node] = []

    def add(self, operator: str, shape: Sequence[int], *arguments: Argument) -> None:
        kind = TensorType(tuple(shape), self.node.type.dtype)
        name = self.names.new(f"{self.node.name}_{operator.partition('.')[0]}")
        self.made.append(_node(self.node, name, operator, (self.at, *arguments), kind))
        self.at = Reference(name)

    def ended(self) -> list[Node]:
        last = dataclasses.replace(self.made[-1], name=self.node.name)
        return [*self.made[:-1], last]


class _Convolutions:
    """Writes convolutions as products of matrices, or at least as convolutions of images."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.names = graph, _Names(graph)
        self.types = shapes_of(graph)
        self.constants = dict(graph.constants)

    def rewritten(self) -> Graph:
        nodes: list[Node] = []
        for node in self.graph.nodes:
            nodes += self.parts(node) or [node]
        return dataclasses.replace(self.graph, nodes=nodes, constants=self.constants)

    def parts(self, node: Node) -> list[Node] | None:
        if node.operator != _CONVOLUTION:
            return None
        x, weight, bias, stride, padding, dilation, transposed, _, groups = node.arguments
        if not isinstance(x, Reference) or not isinstance(weight, Reference):
            return None
        shape, kernel = self.types[x.name].shape, self.types[weight.name].shape
        if len(shape) != len(kernel) or weight.name not in self.constants:
            return None
        if len(shape) == 3:
            return self.line(node, x, weight)
        if len(shape) != 4:
            return None
        apart = _pair(stride) == kernel[2:] and not any(_pair(padding))
        plain = apart and _pair(dilation) == (1, 1) and groups == 1
        if transposed:
            same = node.type.shape[2:] == tuple(
                size * step for size, step in zip(shape[2:], kernel[2:], strict=True)
            )
            if plain and same:
                return self.grown(node, x, weight, bias)
            return self.spread(node, x, weight, bias)
        if not plain:
            return None
        fits = all(size % step == 0 for size, step in zip(shape[2:], kernel[2:], strict=True))
        if not fits or kernel[2:] == (1, 1):
            return None
        return self.patches(node, x, weight, bias)

    def patches(self, node: Node, x: Reference, weight: Reference, bias: Argument) -> list[Node]:
        """Each place of the result is the product of one patch."""
        batch, channels, height, width = self.types[x.name].shape
        filters, _, h, w = self.types[weight.name].shape
        rows, columns = height // h, width // w
        count, inner = batch * rows * columns, channels * h * w
        chain = _Chain(node, self.names, x)
        chain.add("view.default", (batch, channels, rows, h, columns, w),
                  (batch, channels, rows, h, columns, w))  # fmt: skip
        chain.add("permute.default", (batch, rows, columns, channels, h, w), (0, 2, 4, 1, 3, 5))
        chain.add("view.default", (count, inner), (count, inner))
        matrix = self.constant(weight, (filters, inner), (0, 1, 2, 3), "matrix")
        chain.add("linear.default", (count, filters), matrix, bias)
        chain.add("view.default", (batch, rows, columns, filters), (batch, rows, columns, filters))
        chain.add("permute.default", (batch, filters, rows, columns), _TO_NCHW)
        return chain.ended()

    def grown(self, node: Node, x: Reference, weight: Reference, bias: Argument) -> list[Node]:
        """Each place of the image becomes a patch of the result."""
        batch, channels, height, width = self.types[x.name].shape
        _, filters, h, w = self.types[weight.name].shape
        count, outer = batch * height * width, filters * h * w
        chain = _Chain(node, self.names, x)
        chain.add("permute.default", (batch, height, width, channels), _TO_NHWC)
        chain.add("view.default", (count, channels), (count, channels))
        matrix = self.constant(weight, (outer, channels), (1, 2, 3, 0), "matrix")
        chain.add("linear.default", (count, outer), matrix)
        split = (batch, height, width, filters, h, w)
        chain.add("view.default", split, split)
        order = (0, 3, 1, 4, 2, 5)
        chain.add("permute.default", tuple(split[d] for d in order), order)
        chain.add("view.default", node.type.shape, node.type.shape)
        if isinstance(bias, Reference):
            each = self.constant(bias, (1, filters, 1, 1), (0,), "column")
            chain.add("add.Tensor", node.type.shape, each)
        return chain.ended()

    def line(self, node: Node, x: Reference, weight: Reference) -> list[Node]:
        """A convolution along one dimension is one of images with one row."""
        _, _, bias, stride, padding, dilation, transposed, more, groups = node.arguments
        batch, channels, length = self.types[x.name].shape
        first, second, size = self.types[weight.name].shape
        matrix = self.constant(weight, (first, second, 1, size), (0, 1, 2), "image")
        self.types[matrix.name] = self.constants[matrix.name].type
        chain = _Chain(node, self.names, x)
        chain.add("view.default", (batch, channels, 1, length), (batch, channels, 1, length))
        shape = (*node.type.shape[:2], 1, node.type.shape[2])
        sizes = [(one, _pair(given)[1]) for one, given in (
            (1, stride), (0, padding), (1, dilation), (0, more)
        )]  # fmt: skip
        chain.add("convolution.default", shape, matrix, bias, *sizes[:3], transposed, sizes[3],
                  groups)  # fmt: skip
        chain.add("view.default", node.type.shape, node.type.shape)
        self.types |= {one.name: one.type for one in chain.made}
        nodes = chain.ended()
        return [part for one in nodes for part in self.parts(one) or [one]]

    def spread(
        self, node: Node, x: Reference, weight: Reference, bias: Argument
    ) -> list[Node] | None:
        """A transposed convolution is one of the image with zeros between its elements."""
        groups = node.arguments[8]
        if not isinstance(groups, int):
            return None
        (sh, sw), (ph, pw), (dh, dw), (oh, ow) = (_pair(node.arguments[at]) for at in (3, 4, 5, 7))
        batch, channels, height, width = self.types[x.name].shape
        _, outer, h, w = self.types[weight.name].shape
        found = self.constants[weight.name]
        apart = found.data.reshape(groups, channels // groups, outer, h, w)[..., ::-1, ::-1]
        turned = apart.transpose(0, 2, 1, 3, 4).reshape(groups * outer, channels // groups, h, w)
        name = self.names.new(f"{weight.name}_turned")
        kind = TensorType(tuple(turned.shape), found.type.dtype)
        self.constants[name] = Constant(kind, np.ascontiguousarray(turned))
        chain = _Chain(node, self.names, x)
        split = (batch, channels, height, 1, width, 1)
        chain.add("view.default", split, split)
        wide = (batch, channels, height, sh, width, sw)
        chain.add("constant_pad_nd.default", wide, (0, sw - 1, 0, 0, 0, sh - 1))
        flat = (batch, channels, height * sh, width * sw)
        chain.add("view.default", flat, flat)
        left, top = dw * (w - 1) - pw, dh * (h - 1) - ph
        right, bottom = left + ow - (sw - 1), top + oh - (sh - 1)
        padded = (batch, channels, flat[2] + top + bottom, flat[3] + left + right)
        chain.add("constant_pad_nd.default", padded, (left, right, top, bottom))
        chain.add("convolution.default", node.type.shape, Reference(name), bias, (1, 1), (0, 0),
                  (dh, dw), False, (0, 0), groups)  # fmt: skip
        return chain.ended()

    def constant(
        self, source: Reference, shape: tuple[int, ...], order: tuple[int, ...], kind: str
    ) -> Reference:
        """Add a constant: another one with its dimensions in another order and another shape."""
        found = self.constants[source.name]
        name = self.names.new(f"{source.name}_{kind}")
        data = np.ascontiguousarray(found.data.transpose(order)).reshape(shape)
        self.constants[name] = Constant(TensorType(shape, found.type.dtype), data)
        return Reference(name)


def _pair(given: Argument) -> tuple[int, int]:
    assert isinstance(given, tuple)
    numbers = [one for one in given if isinstance(one, int)]
    return (numbers[0], numbers[-1])


# --- attention ------------------------------------------------------------------------------


def _with_attention(
    graph: Graph, precision: Computation
) -> tuple[Graph, dict[str, AttentionProduct]]:
    """Replace attention by operations; what has no fast products stays."""
    names, types = _Names(graph), shapes_of(graph)
    tracer = ViewTracer(
        {node.name: node for node in graph.nodes},
        {n: kind.shape for n, kind in types.items() if n in {*graph.inputs, *graph.constants}},
    )
    nodes: list[Node] = []
    found: dict[str, AttentionProduct] = {}
    for node in graph.nodes:
        product = None
        if node.operator == _ATTENTION:
            product = _attention(node, tracer, types, precision)
        if product is None:
            nodes.append(node)
            continue
        batch, heads, rows, width = product.q.shape
        name = names.new(f"{node.name}_rows")
        found[name] = product
        kind = TensorType((batch, rows, heads, width), node.type.dtype)
        reads = tuple(Reference(view.base) for view in product.places)
        nodes.append(dataclasses.replace(_node(node, name, "", reads, kind), operator=ATTENTION))
        order = TensorType((batch, heads, rows, width), node.type.dtype)
        chain = _Chain(node, names, Reference(name))
        chain.add("permute.default", order.shape, (0, 2, 1, 3))
        if node.type.shape != order.shape:
            chain.add("view.default", node.type.shape, node.type.shape)
        nodes += chain.ended()
    return dataclasses.replace(graph, nodes=nodes), found


def _attention(
    node: Node, tracer: ViewTracer, types: Mapping[str, TensorType], precision: Computation
) -> AttentionProduct | None:
    q, k, v, *rest = node.arguments
    names = ("attn_mask", "dropout_p", "is_causal")
    given = dict(zip(names, rest, strict=False)) | dict(node.keywords)
    if given.get("dropout_p"):
        return None
    dtype = node.type.dtype
    exact = precision is Computation.F32
    if dtype not in ("float16", "bfloat16") and (dtype != "float32" or exact):
        return None
    views = [_rows(argument, tracer, types) for argument in (q, k, v)]
    query, key, value = views
    if query is None or key is None or value is None:
        return None
    width = query.shape[-1]
    shared = bool(given.get("enable_gqa")) and query.shape[1] % key.shape[1] == 0
    if query.shape[0] != key.shape[0] or (query.shape[1] != key.shape[1] and not shared):
        return None
    if value.shape != key.shape or width > _LARGEST_WIDTH:
        return None
    mask, mask_dtype = given.get("attn_mask"), ""
    seen = None
    if isinstance(mask, Reference):
        seen = _broadcast(tracer.view(mask.name), (*query.shape[:3], key.shape[2]))
        mask_dtype = types[mask.name].dtype
        if seen is None or (mask_dtype != "bool" and not mask_dtype.startswith(("f", "bf"))):
            return None
    scale = given.get("scale")
    factor = float(scale) if isinstance(scale, int | float) else 1 / math.sqrt(width)
    return AttentionProduct(
        query, key, value, seen, dtype, mask_dtype, bool(given.get("is_causal")), factor
    )


def _rows(
    argument: Argument, tracer: ViewTracer, types: Mapping[str, TensorType]
) -> StridedView | None:
    """Where the rows of each head lie."""
    if not isinstance(argument, Reference):
        return None
    view = tracer.view(argument.name)
    if view.strides[-1] != 1:
        shape = types[argument.name].shape
        view = StridedView(argument.name, shape, row_major(shape))
    if len(view.shape) not in (3, 4):
        return None
    if len(view.shape) == 4:
        return view
    shape, strides = view.shape, view.strides
    return StridedView(view.base, (shape[0], 1, *shape[1:]), (strides[0], 0, *strides[1:]),
                       view.offset)  # fmt: skip


def _broadcast(view: StridedView, shape: tuple[int, ...]) -> StridedView | None:
    """Repeat a view along dimensions of one element, and along those that it does not have."""
    missing = len(shape) - len(view.shape)
    if missing < 0:
        return None
    sizes, strides = (*(1,) * missing, *view.shape), (*(0,) * missing, *view.strides)
    if any(have not in (1, want) for have, want in zip(sizes, shape, strict=True)):
        return None
    wide = tuple(
        stride if have == want and have != 1 else 0
        for have, want, stride in zip(sizes, shape, strides, strict=True)
    )
    return StridedView(view.base, shape, wide, view.offset)


# --- images ---------------------------------------------------------------------------------


class _ChannelsLast:
    """Lets convolutions read and write images with their channels last."""

    def __init__(self, graph: Graph, products: Mapping[str, GemmProduct | ConvolutionProduct]):
        self.graph, self.names = graph, _Names(graph)
        self.products = dict(products)
        self.types = shapes_of(graph)
        self.constants = dict(graph.constants)
        self.turned: dict[str, Reference] = {}

    def rewritten(self) -> tuple[Graph, dict[str, GemmProduct | ConvolutionProduct]]:
        nodes: list[Node] = []
        for node in self.graph.nodes:
            product = self.products.get(node.name)
            if isinstance(product, ConvolutionProduct) and self.is_plain(node, product):
                del self.products[node.name]
                nodes += self.parts(node, product)
            else:
                nodes.append(node)
        made = dataclasses.replace(self.graph, nodes=nodes, constants=self.constants)
        return made, self.products

    def is_plain(self, node: Node, product: ConvolutionProduct) -> bool:
        """Tell whether all that it reads are whole values, and the weights are constant."""
        image = (product.batch, product.channels, *product.size)
        added = product.c is None or self.is_whole(product.c, node.type.shape)
        return (
            product.weight.value in self.constants
            and not product.weight.offset
            and self.is_whole(product.image, image)
            and added
        )

    def is_whole(self, place: Place, shape: tuple[int, ...]) -> bool:
        return not place.offset and self.types[place.value].shape == shape

    def parts(self, node: Node, product: ConvolutionProduct) -> Iterator[Node]:
        image = yield from self.channels_last(node, product.image)
        addend = None
        if product.c is not None:
            addend = yield from self.channels_last(node, product.c)
        batch, filters, height, width = node.type.shape
        weight = self.weight(product)
        padded = self.types[weight].shape[-1] * product.groups
        if padded > product.channels:
            shape = (*self.types[image].shape[:-1], padded)
            kind = TensorType(shape, node.type.dtype)
            name = self.names.new(f"{node.name}_padded")
            self.types[name] = kind
            more = padded - product.channels
            yield _node(node, name, "constant_pad_nd.default", (Reference(image), (0, more)), kind)
            image = name
        made = dataclasses.replace(
            product, image=Place(image), weight=Place(weight), channels=padded,
            c=None if addend is None else Place(addend), layout=ImageLayout.NHWC,
        )  # fmt: skip
        name = self.names.new(f"{node.name}_last")
        matrices = _as_matrices(made)
        self.products[name] = matrices or made
        kind = TensorType((batch, height, width, filters), node.type.dtype)
        self.types[name] = kind
        reads = tuple(Reference(place.value) for place in self.products[name].places)
        operator = CONVOLUTION if matrices is None else GEMM
        yield dataclasses.replace(_node(node, name, "", reads, kind), operator=operator)
        self.turned[node.name] = Reference(name)
        yield _node(node, node.name, "permute.default", (Reference(name), _TO_NCHW), node.type)

    def channels_last(self, node: Node, place: Place) -> Generator[Node, None, str]:
        """The name of a value with its channels last."""
        found = self.turned.get(place.value)
        if found is None:
            kind = self.types[place.value]
            shape = tuple(kind.shape[d] for d in _TO_NHWC)
            name = self.names.new(f"{place.value}_last")
            found = self.turned[place.value] = Reference(name)
            self.types[name] = TensorType(shape, kind.dtype)
            arguments = (Reference(place.value), _TO_NHWC)
            yield _node(node, name, "permute.default", arguments, self.types[name])
        return found.name

    def weight(self, product: ConvolutionProduct) -> str:
        """The name of the weights with their channels last, and as many as loads need."""
        source = self.constants[product.weight.value]
        data = np.ascontiguousarray(source.data.transpose(0, 2, 3, 1))
        channels = data.shape[-1]
        step = 16 // source.data.itemsize
        if product.groups == 1 and channels < step:
            data = np.pad(data, ((0, 0), (0, 0), (0, 0), (0, step - channels)))
        name = f"{product.weight.value}_last"
        if name not in self.constants:
            self.names.new(name)
        self.types[name] = TensorType(tuple(data.shape), source.type.dtype)
        self.constants[name] = Constant(self.types[name], data)
        return name


def _as_matrices(product: ConvolutionProduct) -> GemmProduct | None:
    """A convolution with a kernel of one element as a product; None if it is not one."""
    if product.kernel != (1, 1) or product.stride != (1, 1) or product.padding != (0, 0):
        return None
    if product.groups != 1:
        return None
    m, k, n = product.batch * math.prod(product.size), product.channels, product.filters
    return GemmProduct(
        Place(product.image.value, 0, False, k), Place(product.weight.value, 0, True, k), m, n, k,
        1, product.dtype, product.compute, beta=0.0 if product.c is None else 1.0,
        c=None if product.c is None else Place(product.c.value, 0, False, n, m * n),
        bias=product.bias, activation=product.activation,
    )  # fmt: skip
