"""Convolutions of a graph with channels last, as libraries read images fastest.

A convolution with a kernel of one element is then a product of matrices, with all that follows it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Generator, Iterator, Mapping

import numpy as np

from dandelion.blueprint import ImageLayout
from dandelion.export.aten import CONVOLUTION, GEMM
from dandelion.export.graph_chains import Names, node_like
from dandelion.export.product_records import ConvolutionProduct, GemmProduct, Place
from dandelion.export.torch_graph import Constant, Graph, Node, Reference, TensorType, shapes_of

_TO_NHWC, _TO_NCHW = (0, 2, 3, 1), (0, 3, 1, 2)


class ChannelsLast:
    """Lets convolutions read and write images with their channels last."""

    def __init__(self, graph: Graph, products: Mapping[str, GemmProduct | ConvolutionProduct]):
        self.graph, self.names = graph, Names(graph)
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
            yield node_like(
                node, name, "constant_pad_nd.default", (Reference(image), (0, more)), kind
            )
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
        yield dataclasses.replace(node_like(node, name, "", reads, kind), operator=operator)
        self.turned[node.name] = Reference(name)
        yield node_like(node, node.name, "permute.default", (Reference(name), _TO_NCHW), node.type)

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
            yield node_like(node, name, "permute.default", arguments, self.types[name])
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
