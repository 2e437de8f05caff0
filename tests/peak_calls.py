"""Graphs of the route ``peak`` computed on the processor: all but the kernels that are compiled.

Operations of ours are computed from what their records say, element by element as they lie in
memory; all other operators by torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional

from dandelion.blueprint import Activation, BiasAxis, ImageLayout
from dandelion.export.fx_graph import Evaluation
from dandelion.export.peak_records import AttentionProduct, PeakProduct
from dandelion.export.product_records import ConvolutionProduct, GemmProduct, Place
from dandelion.export.strided_views import StridedView
from dandelion.export.torch_graph import Graph


def computed(
    graph: Graph, products: Mapping[str, PeakProduct], examples: Sequence[Any]
) -> dict[str, Any]:
    """Compute the outputs of a graph in double precision where it has floats.

    Args:
        graph: see `dandelion.export.peak_graph`; of float32 and integers.
        products: its operations.
        examples: the inputs, in order.
    """
    used = {n for node in graph.nodes for n in node.inputs()} | {*graph.outputs.values()}
    names = [n for n in graph.constants if n in used]
    evaluation = Evaluation(torch, graph, [*graph.inputs, *names], torch.device("cpu"))
    evaluation.product = lambda reads, name, shape: product(products[name], reads).reshape(shape)
    constants = [torch.from_numpy(graph.constants[n].data) for n in names]
    with torch.no_grad():
        results = evaluation.run(*examples, *constants)
    return dict(zip(graph.outputs, results, strict=True))


def product(made: PeakProduct, reads: Sequence[Any]) -> Any:
    """Compute an operation from the values that it reads."""
    reads = [one.contiguous() for one in reads]
    if isinstance(made, AttentionProduct):
        return _attention(made, reads)
    found = {id(place): value for place, value in zip(made.places, reads, strict=True)}

    def dense(place: Place | None, *shape: int) -> Any:
        if place is None:
            return None
        return found[id(place)].reshape(-1)[place.offset :][: torch.Size(shape).numel()].view(shape)

    if isinstance(made, ConvolutionProduct):
        total = _convolution(made, dense)
    else:
        total = _gemm(made, found, dense)
    if made.activation is Activation.RELU:
        return total.relu()
    if made.activation is Activation.GELU_TANH:
        return functional.gelu(total, approximate="tanh")
    return total


def _gemm(made: GemmProduct, found: Mapping[int, Any], dense: Any) -> Any:
    def matrices(place: Place, rows: int, columns: int) -> Any:
        strides = (1, place.ld) if place.transposed else (place.ld, 1)
        flat = found[id(place)].reshape(-1)
        shape = (made.batch, rows, columns)
        return flat.as_strided(shape, (place.batch_stride, *strides), place.offset)

    total = matrices(made.a, made.m, made.k) @ matrices(made.b, made.k, made.n) * made.alpha
    if made.c is not None:
        total = total + made.beta * matrices(made.c, made.m, made.n)
    if made.bias is not None:
        columns = made.bias_axis is BiasAxis.COLUMNS
        total = total + (dense(made.bias, made.n) if columns else dense(made.bias, made.m, 1))
    return total


def _convolution(made: ConvolutionProduct, dense: Any) -> Any:
    inner = made.channels // made.groups
    last = made.layout is ImageLayout.NHWC
    if last:
        image = dense(made.image, made.batch, *made.size, made.channels).permute(0, 3, 1, 2)
        weight = dense(made.weight, made.filters, *made.kernel, inner).permute(0, 3, 1, 2)
    else:
        image = dense(made.image, made.batch, made.channels, *made.size)
        weight = dense(made.weight, made.filters, inner, *made.kernel)
    total = functional.conv2d(
        image, weight, dense(made.bias, made.filters), made.stride, made.padding, made.dilation,
        made.groups,
    )  # fmt: skip
    total = total.permute(0, 2, 3, 1).contiguous() if last else total
    return total if made.c is None else total + dense(made.c, *total.shape)


def _attention(made: AttentionProduct, reads: Sequence[Any]) -> Any:
    def seen(view: StridedView, value: Any) -> Any:
        return value.reshape(-1).as_strided(view.shape, view.strides, view.offset)

    q, k, v, *masks = (seen(view, one) for view, one in zip(made.places, reads, strict=True))
    mask = masks[0] if masks else None
    result = functional.scaled_dot_product_attention(
        q, k, v, mask, is_causal=made.causal, scale=made.scale, enable_gqa=True
    )
    return result.transpose(1, 2).contiguous()
