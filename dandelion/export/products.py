"""Products and convolutions of a graph as library operations of a blueprint.

`with_products` replaces operators by nodes of two operators of its own, `GEMM` and `CONVOLUTION`.
Such a node reads values as they lie in memory: a transposed or sliced matrix is the same memory
with other strides. What follows and a library does at the same time becomes part of the node: a
bias, a sum with another value, ReLU, and GELU by tanh, if nothing else uses the value before it.

Small products stay as they are: their kernels do more at a time than one library operation.
Attention becomes two products, and masks and softmax between them.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter

from dandelion.blueprint import Activation, Computation, ElementType, ImageLayout
from dandelion.export.aten import CONVOLUTION, CONVOLUTION_LAST, GEMM
from dandelion.export.attention import without_attention
from dandelion.export.channels_last import channels_last
from dandelion.export.product_records import (
    TYPES,
    ConvolutionProduct,
    GemmProduct,
    Place,
    Product,
)
from dandelion.export.strided_views import StridedView, ViewTracer
from dandelion.export.torch_graph import Argument, Graph, Node, Reference, TensorType

LEAST_PRODUCTS = 1 << 16
"""Multiplications of an operator that becomes a library operation."""

_CONVOLUTION = "aten.convolution.default"
_SHAPES_ONLY = frozenset(
    {"aten.view.default", "aten._unsafe_view.default", "aten.reshape.default", "aten.alias.default"}
)


def with_products(
    graph: Graph,
    precision: Computation,
    *,
    for_gpu: bool = False,
    least: int | None = None,
    least_channels: int | None = None,
) -> tuple[Graph, dict[str, Product]]:
    """Replace operators by library operations.

    Args:
        graph: whose operators are in the table.
        precision: how products of float32 are computed.
        for_gpu: put channels last where tensor cores compute convolutions.
        least: multiplications of an operator that becomes a library operation; by default
            `LEAST_PRODUCTS`.
        least_channels: convolutions with groups become library operations too, if each has so many
            channels; by default they do not.

    Returns:
        The graph, and the operation of each new node by the node's name.
    """
    least = LEAST_PRODUCTS if least is None else least
    if for_gpu:
        rewriter = _Rewriter(graph, precision, least, least_channels)
        graph = channels_last(graph, rewriter.suits_tensor_cores)
    graph = dataclasses.replace(graph, nodes=without_attention(graph, least))
    return _Rewriter(graph, precision, least, least_channels).rewritten()


class _Rewriter:
    def __init__(
        self, graph: Graph, precision: Computation, least: int, least_channels: int | None
    ) -> None:
        self.graph = graph
        self.precision = precision
        self.least = least
        self.least_channels = least_channels
        self.nodes = {node.name: node for node in graph.nodes}
        types = {**graph.inputs, **{n: c.type for n, c in graph.constants.items()}}
        self.types: dict[str, TensorType] = types
        self.tracer = ViewTracer(self.nodes, {name: kind.shape for name, kind in types.items()})
        self.users: dict[str, list[Node]] = {}
        for node in graph.nodes:
            for name in dict.fromkeys(node.inputs()):
                self.users.setdefault(name, []).append(node)
        self.uses = Counter(name for node in graph.nodes for name in node.inputs())
        self.uses.update(graph.outputs.values())
        self.claimed: set[str] = set()  # what follows one operation is not part of another

    def rewritten(self) -> tuple[Graph, dict[str, Product]]:
        products: dict[str, Product] = {}
        replaced: dict[str, Node] = {}
        dropped: set[str] = set()
        for node in self.graph.nodes:
            found = None if node.name in dropped else self.product(node)
            if found is None:
                continue
            last, product, passed = self.extended(node, found)
            operator = GEMM if isinstance(product, GemmProduct) else CONVOLUTION
            reads = tuple(Reference(place.value) for place in product.places)
            replaced[last.name] = dataclasses.replace(
                last, operator=operator, arguments=reads, keywords={}, results=(last.type,),
                operand=last.type.dtype, place=node.place, part=node.part,
            )  # fmt: skip
            products[last.name] = product
            dropped |= passed
        kept = [replaced.get(n.name, n) for n in self.graph.nodes if n.name not in dropped]
        return dataclasses.replace(self.graph, nodes=kept), products

    # what an operator multiplies

    def product(self, node: Node) -> Product | None:
        """The operation of a node; None if it stays as it is."""
        kind = node.operator
        if kind in (_CONVOLUTION, CONVOLUTION_LAST):
            return self.convolution(node)
        arguments = node.arguments
        if kind in ("aten.mm.default", "aten.bmm.default", "aten.matmul.default"):
            return self.gemm(node, arguments[0], arguments[1])
        if kind == "aten.linear.default":
            made = self.gemm(node, arguments[0], arguments[1], swap=True)
            bias = arguments[2] if len(arguments) > 2 else None
            return made if made is None or bias is None else self.added(made, bias, 1.0, node)
        if kind in ("aten.addmm.default", "aten.baddbmm.default"):
            made = self.gemm(node, arguments[1], arguments[2])
            beta, alpha = node.keywords.get("beta", 1), node.keywords.get("alpha", 1)
            if made is None or not _is_number(beta) or not _is_number(alpha):
                return None
            made = dataclasses.replace(made, alpha=float(alpha))  # type: ignore[arg-type]  # a number
            if beta == 0:
                return made
            return self.added(made, arguments[0], float(beta), node)  # type: ignore[arg-type]  # likewise
        if kind == GEMM:  # of attention
            scale = node.keywords.get("alpha", 1.0)
            made = self.gemm(node, arguments[0], arguments[1], bool(node.keywords.get("swap")))
            if made is None or not _is_number(scale):
                return None
            return dataclasses.replace(made, alpha=float(scale))  # type: ignore[arg-type]  # a number
        return None

    def gemm(self, node: Node, x: Argument, y: Argument, swap: bool = False) -> GemmProduct | None:
        dtype = node.type.dtype
        if not self.are_of(dtype, x, y):
            return None
        left, right = self.view(x), self.view(y)
        if swap and len(right.shape) >= 2:
            right = right.swapped()
        if len(left.shape) < 2 or len(right.shape) < 2:
            return None
        if len(right.shape) == 2 and len(left.shape) > 2:
            flat = left.reshaped((math.prod(left.shape[:-1]), left.shape[-1]))
            left = self.stored(x, (math.prod(left.shape[:-1]), left.shape[-1]), flat)
        if left.shape[:-2] != right.shape[:-2]:
            return None
        *batches, m, k = left.shape
        n, batch = right.shape[-1], math.prod(batches)
        must = node.operator == GEMM
        if not m * n * k * batch or (m * n * k * batch < self.least and not must):
            return None
        a = _matrix(left) or self.dense(x, (batch, m, k))
        b = _matrix(right) or self.dense(y, (batch, n, k) if swap else (batch, k, n), swap)
        return GemmProduct(a, b, m, n, k, batch, TYPES[dtype], self.compute(dtype))

    def convolution(self, node: Node) -> ConvolutionProduct | None:
        x, weight, bias, *rest = node.arguments
        stride, padding, dilation, transposed, _, groups = rest
        if transposed or not self.are_of(node.type.dtype, x, weight):
            return None
        image, kernel = self.view(x), self.view(weight)
        least = self.least_channels
        if groups != 1 and (least is None or kernel.shape[1] < least):
            return None
        if len(kernel.shape) != 4 or len(image.shape) != 4:
            return None
        layout = ImageLayout.NHWC if node.operator == CONVOLUTION_LAST else ImageLayout.NCHW
        order = (0, 3, 1, 2) if layout is ImageLayout.NHWC else (0, 1, 2, 3)
        batch, channels, height, width = (image.shape[d] for d in order)
        filters, _, *window = (kernel.shape[d] for d in order)
        strides, around, steps = (_pair(given) for given in (stride, padding, dilation))
        if math.prod(node.type.shape) * math.prod(kernel.shape[1:]) < self.least:
            return None
        assert isinstance(groups, int)
        dtype = node.type.dtype
        made = ConvolutionProduct(
            self.place(x, image), self.place(weight, kernel), batch, channels, filters,
            (height, width), (window[0], window[1]), strides, around, steps,
            TYPES[dtype], self.compute(dtype), groups=groups, layout=layout,
        )  # fmt: skip
        if bias is None:
            return made
        if not self.are_of(dtype, bias):
            return None
        return dataclasses.replace(made, bias=self.place(bias, self.view(bias)))

    def suits_tensor_cores(self, node: Node) -> bool:
        """Tell whether a convolution becomes an operation that tensor cores can compute."""
        made = self.convolution(node) if node.operator == _CONVOLUTION else None
        wide = (ElementType.F32, ElementType.F64)
        return made is not None and (
            made.dtype not in wide or made.compute not in (Computation.F32, Computation.F64)
        )

    def compute(self, dtype: str) -> Computation:
        if dtype == "float64":
            return Computation.F64
        return self.precision if dtype == "float32" else Computation.F32

    # where operands lie

    def view(self, argument: Argument) -> StridedView:
        assert isinstance(argument, Reference)
        return self.tracer.view(argument.name)

    def dtype(self, name: str) -> str:
        node = self.nodes.get(name)
        return self.types[name].dtype if node is None else node.type.dtype

    def are_of(self, dtype: str, *arguments: Argument) -> bool:
        """Tell whether all are tensors of an element type that products have."""
        return dtype in TYPES and all(
            isinstance(a, Reference) and self.dtype(a.name) == dtype for a in arguments
        )

    def place(self, argument: Argument, view: StridedView) -> Place:
        """Where a dense value lies; the value itself, if it is a view that is not dense."""
        if view.is_dense:
            return Place(view.base, view.offset)
        assert isinstance(argument, Reference)
        return Place(argument.name)

    def stored(
        self, argument: Argument, shape: tuple[int, ...], view: StridedView | None
    ) -> StridedView:
        """A view, or, where strides cannot say it, the value itself stored."""
        assert isinstance(argument, Reference)
        if view is not None:
            return view
        return StridedView(argument.name, shape, (shape[1], 1))

    def dense(self, argument: Argument, shape: tuple[int, int, int], flip: bool = False) -> Place:
        """Where a matrix lies once its value is stored."""
        assert isinstance(argument, Reference)
        return Place(argument.name, 0, flip, shape[2], shape[1] * shape[2])

    # what follows

    def extended(self, node: Node, product: Product) -> tuple[Node, Product, set[str]]:
        """Take in what follows: the last node, the operation, and the nodes that are gone."""
        last, passed = node, set[str]()
        at, skipped = node, set[str]()
        while self.uses[at.name] == 1 and at.name in self.users:
            (user,) = self.users[at.name]
            if user.name in self.claimed:
                break
            skipped = {*skipped, at.name}
            if user.operator in _SHAPES_ONLY:
                at = user
                continue
            found = self.taken(product, user, at.name)
            if found is None:
                break
            product, last, at = found, user, user
            passed |= skipped
            skipped = set()
            self.claimed |= {*passed, last.name}
            if product.activation is not Activation.NONE:
                break
        return last, product, passed

    def taken(self, product: Product, user: Node, before: str) -> Product | None:
        """The operation with an operator that follows it; None if that is not possible."""
        if user.type.dtype not in TYPES or TYPES[user.type.dtype] is not product.dtype:
            return None
        if user.operator == "aten.relu.default":
            return dataclasses.replace(product, activation=Activation.RELU)
        if user.operator == "aten.gelu.default":
            if user.keywords.get("approximate") == "tanh":
                return dataclasses.replace(product, activation=Activation.GELU_TANH)
            return None
        if user.operator != "aten.add.Tensor" or user.keywords.get("alpha", 1) != 1:
            return None
        x, y = user.arguments[:2]
        other = y if isinstance(x, Reference) and x.name == before else x
        if not isinstance(other, Reference) or other.name == before:
            return None
        if isinstance(product, GemmProduct):
            return self.added(product, other, 1.0, user)
        if product.c is not None or not self.are_of(user.type.dtype, other):
            return None
        view = self.view(other)
        if view.shape != user.type.shape or not view.is_dense:
            return None
        return dataclasses.replace(product, c=Place(view.base, view.offset))

    def added(
        self, product: GemmProduct, other: Argument, beta: float, node: Node
    ) -> GemmProduct | None:
        """Add a bias or a matrix to a product; None if it is neither."""
        if not self.are_of(node.type.dtype, other):
            return None
        view = self.view(other)
        sizes = [size for size in view.shape if size != 1]
        last = node.type.shape[-1] if node.type.shape else 1
        if (
            product.bias is None
            and beta == 1
            and sizes == [product.n]
            and last == product.n
            and view.shape[-1:] == (product.n,)
            and view.strides[-1] == 1
        ):
            return dataclasses.replace(product, bias=Place(view.base, view.offset))
        whole = math.prod(view.shape) == product.batch * product.m * product.n
        if product.c is not None or not whole or view.shape != node.type.shape:
            return None
        if not view.is_dense:
            return None
        ld, stride = product.n, product.m * product.n
        c = Place(view.base, view.offset, False, ld, stride)
        return dataclasses.replace(product, c=c, beta=beta)


def _is_number(value: Argument) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _pair(given: Argument) -> tuple[int, int]:
    assert isinstance(given, tuple)
    numbers = [one for one in given if isinstance(one, int)]
    return (numbers[0], numbers[-1])


def _matrix(view: StridedView) -> Place | None:
    """A view as matrices of a batch; None if they do not lie as an operation can read them."""
    *batches, rows, columns = view.shape
    *apart, row, column = view.strides
    flat = StridedView(view.base, tuple(batches), tuple(apart)).reshaped((math.prod(batches),))
    if flat is None:
        return None
    stride = flat.strides[0] if flat.shape[0] > 1 else 0
    for transposed, (long, lines), (along, between) in (
        (False, (columns, rows), (column, row)),
        (True, (rows, columns), (row, column)),
    ):
        ld = between if lines > 1 else long
        if (along == 1 or long == 1) and ld >= long:
            return Place(view.base, view.offset, transposed, ld, stride)
    return None
