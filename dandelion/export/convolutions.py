"""Convolutions of a graph as products of matrices, or at least as plain convolutions of images.

- One whose kernels lie beside each other, such as that of patches, is a product.
- So is a transposed one of that kind. Another transposed one is a convolution of the image with
  zeros between its elements.
- One along a single dimension is one of images with one row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from dandelion.export.graph_chains import Chain, Names, pair_of
from dandelion.export.torch_graph import (
    Argument,
    Constant,
    Graph,
    Node,
    Reference,
    TensorType,
    shapes_of,
)

_CONVOLUTION = "aten.convolution.default"
_TO_NHWC, _TO_NCHW = (0, 2, 3, 1), (0, 3, 1, 2)


def is_depthwise(node: Node, types: Mapping[str, TensorType]) -> bool:
    """Tell whether a convolution multiplies each channel with a kernel of its own."""
    if node.operator != _CONVOLUTION or node.arguments[6]:
        return False
    weight, groups = node.arguments[1], node.arguments[8]
    if not isinstance(weight, Reference):
        return False
    shape = types[weight.name].shape
    return len(shape) == 4 and shape[1] == 1 and groups == shape[0] != 1


class Convolutions:
    """Writes convolutions as products of matrices, or at least as convolutions of images."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.names = graph, Names(graph)
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
        apart = pair_of(stride) == kernel[2:] and not any(pair_of(padding))
        plain = apart and pair_of(dilation) == (1, 1) and groups == 1
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
        chain = Chain(node, self.names, x)
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
        chain = Chain(node, self.names, x)
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
        chain = Chain(node, self.names, x)
        chain.add("view.default", (batch, channels, 1, length), (batch, channels, 1, length))
        shape = (*node.type.shape[:2], 1, node.type.shape[2])
        sizes = [(one, pair_of(given)[1]) for one, given in (
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
        (sh, sw), (ph, pw), (dh, dw), (oh, ow) = (
            pair_of(node.arguments[at]) for at in (3, 4, 5, 7)
        )
        batch, channels, height, width = self.types[x.name].shape
        _, outer, h, w = self.types[weight.name].shape
        found = self.constants[weight.name]
        apart = found.data.reshape(groups, channels // groups, outer, h, w)[..., ::-1, ::-1]
        turned = apart.transpose(0, 2, 1, 3, 4).reshape(groups * outer, channels // groups, h, w)
        name = self.names.new(f"{weight.name}_turned")
        kind = TensorType(tuple(turned.shape), found.type.dtype)
        self.constants[name] = Constant(kind, np.ascontiguousarray(turned))
        chain = Chain(node, self.names, x)
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
