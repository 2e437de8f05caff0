"""Operators of ATen one by one, and random graphs of them, against torch in double precision."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

pytest.importorskip("torch", reason="the extra 'export' is not installed")
pytest.importorskip("tinygrad", reason="the extra 'export' is not installed")

import torch
from torch.nn import functional

from dandelion.node import Node
from tests.torch_calls import SETTINGS, compared, largest_error

ERROR = 1e-5
X = torch.linspace(-2.5, 2.5, 60).reshape(3, 4, 5)
P = X.abs() + 0.1
U = X / 3
N = torch.arange(60).reshape(3, 4, 5) - 17
IMAGE = torch.randn(2, 4, 9, 10, generator=torch.Generator().manual_seed(1))
WEIGHT = torch.randn(6, 4, 3, 3, generator=torch.Generator().manual_seed(2))

Case = tuple[Callable[..., Any], tuple[Any, ...]]
POINTWISE: dict[str, Case] = {
    **{
        name: (getattr(torch, name), (X,))
        for name in (
            *("abs", "neg", "exp", "exp2", "expm1", "sin", "cos", "tanh", "sinh", "cosh", "atan"),
            *("sigmoid", "erf", "relu", "floor", "ceil", "trunc", "round", "sign", "isnan"),
            *("square", "asinh", "logical_not"),
        )
    },
    **{
        name: (getattr(torch, name), (P,))
        for name in ("log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal")
    },
    **{name: (getattr(torch, name), (U,)) for name in ("asin", "acos", "atanh", "tan")},
    **{
        name: (getattr(functional, name), (X,))
        for name in (
            *("silu", "gelu", "hardswish", "hardsigmoid", "hardtanh", "leaky_relu", "elu", "selu"),
            *("softplus", "mish", "logsigmoid", "softsign", "relu6", "celu", "tanhshrink"),
        )
    },
    "gelu_tanh": (lambda x: functional.gelu(x, approximate="tanh"), (X,)),
    "add_alpha": (lambda x, y: torch.add(x, y, alpha=2), (X, P)),
    "sub_alpha": (lambda x, y: torch.sub(x, y, alpha=3), (X, P)),
    "rsub": (lambda x: 2 - x, (X,)),
    "div": (lambda x, y: x / y, (X, P)),
    "div_floor": (lambda x, y: torch.div(x, y, rounding_mode="floor"), (X, P)),
    "div_trunc": (lambda x, y: torch.div(x, y, rounding_mode="trunc"), (N, N + 100)),
    "div_integers": (lambda x: x / 7, (N,)),
    "floor_divide": (lambda x: x // 7, (N,)),
    "remainder": (lambda x: x % 7, (N,)),
    "remainder_floats": (lambda x, y: torch.remainder(x, y), (X, P)),
    "fmod": (lambda x: torch.fmod(x, 7), (N,)),
    "pow": (lambda x: x**3 + x**2, (X,)),
    "pow_half": (lambda x: x**0.5 + x**-1.5, (P,)),
    "pow_tensor": (torch.pow, (P, X)),
    "pow_scalar": (lambda x: 2.5**x, (X,)),
    "maximum": (torch.maximum, (X, 1 - P)),
    "minimum": (torch.minimum, (X, 1 - P)),
    "clamp": (lambda x: x.clamp(-1, 1.5), (X,)),
    "clamp_integers": (lambda x: x.clamp(min=3), (N,)),
    "atan2": (torch.atan2, (X, X.flip(0))),
    "compare": (lambda x, y: (x < y) | (x >= 1) & ~(y == 0.1) ^ (x != y), (X, P)),
    "compare_types": (lambda x, y: x > y, (N, X * 10)),
    "bits": (lambda x: (x & 12) | (x ^ 5), (N,)),
    "where": (lambda x: torch.where(x > 0, x, -1.0), (X,)),
    "masked_fill": (lambda x: x.masked_fill(x > 1, -math.inf), (X,)),
    "cast": (lambda x: x.to(torch.int32) + x.bool(), (X,)),
    "integer_types": (lambda x: x.to(torch.int8).to(torch.int64) * 3, (N,)),
    "unsigned": (lambda x: x.to(torch.uint8).to(torch.float32) / 2, (N + 20,)),
    "mixed": (lambda x, i: x * i + i.float() * 0.5, (X, N)),
    "lerp": (lambda x, y: torch.lerp(x, y, 0.3), (X, P)),
    "addcmul": (lambda x, y: torch.addcmul(x, y, y, value=0.5), (X, P)),
    "scalar_tensor": (lambda x, s: x * s, (X, torch.tensor(1.5))),
}
SHAPE: dict[str, Case] = {
    "permute": (lambda x: x.permute(2, 0, 1), (X,)),
    "transpose": (lambda x: x.transpose(0, 2) * 2, (X,)),
    "flip": (lambda x: x.flip(0, 2), (X,)),
    "slice": (lambda x: x[1:, ::2, -3:-1], (X,)),
    "select": (lambda x: x[:, -1], (X,)),
    "stack": (lambda x, y: torch.stack([x, y, x], 1), (X, P)),
    "cat": (lambda x, y: torch.cat([x, y[:, :2], x], 1), (X, P)),
    "cat_types": (lambda x, i: torch.cat([x, i]), (X, N)),
    "split": (lambda x: tuple(x.split([1, 3], 1)), (X,)),
    "chunk": (lambda x: [c * 2 for c in x.chunk(3, 2)], (X,)),
    "unbind": (lambda x: sum(x.unbind(1)), (X,)),
    "roll": (lambda x: x.roll((1, 2), (0, 2)) + x.roll(3), (X,)),
    "repeat": (lambda x: x.repeat(2, 1, 1, 3), (X,)),
    "repeat_interleave": (lambda x: x.repeat_interleave(2, 1), (X,)),
    "pad": (lambda x: functional.pad(x, (1, 2, 0, 1), value=0.5), (X,)),
    "pad_negative": (lambda x: functional.pad(x, (-1, 2)), (X,)),
    "pad_reflect": (lambda x: functional.pad(x, (2, 1, 1, 2), mode="reflect"), (IMAGE,)),
    "unfold": (lambda x: x.unfold(2, 3, 2), (X,)),
    "tril": (lambda x: x.tril(1) + x.triu(-1), (X,)),
    "index": (lambda x, i: x[i] + x[:, i % 4].mean(), (X, torch.tensor([2, 0, 1]))),
    "index_two": (lambda x, i: x[i, i + 1], (X, torch.tensor([2, 0, 1]))),
    "index_select": (lambda x, i: x.index_select(2, i), (X, torch.tensor([4, 0]))),
    "gather": (lambda x, i: x.gather(2, i), (X, (N % 5).abs())),
    "scatter": (lambda x, i: x.scatter(2, i[:, :, :1], 9.0), (X, (N % 5).abs())),
    "slice_scatter": (lambda x, y: torch.slice_scatter(x, y[:, :2], 1, 1, 3), (X, P)),
    "select_scatter": (lambda x, y: torch.select_scatter(x, y[:, 0], 1, 2), (X, P)),
    "embedding": (lambda i, w: functional.embedding(i, w), ((N % 6).abs(), X.reshape(6, 10))),
    "one_hot": (lambda i: functional.one_hot(i, 6).float(), ((N % 6).abs(),)),
    "arange": (lambda x: x + torch.arange(0, 10, 2) + torch.full((5,), 0.5), (X,)),
    "eye": (lambda x: x[:, :3, :3] + torch.eye(3), (X,)),
    "expand": (lambda x: x[:, :1].expand(3, 7, 5) + 1, (X,)),
    "pixel_shuffle": (lambda x: functional.pixel_shuffle(x, 2), (IMAGE,)),
    "same_twice": (lambda x: (x * 2, (x * 2).flatten(), x), (X,)),
    "one_element": (lambda x: (x.permute(1, 0), x.flip(0), x.expand(1, 1)), (X[:1, :1, 0],)),
    "part_of_input": (lambda x: (x.flip(0), x[1:].flip(1).flip(1), x[2:]), (X,)),
    "part_of_value": (lambda x: (x @ x.transpose(1, 2))[1:], (X,)),
    "input_only": (lambda x: (x.reshape(12, 5), x + 0), (X,)),
}
LAYERS: dict[str, Case] = {
    "sum": (lambda x: (x.sum(), x.sum(1), x.sum((0, 2), keepdim=True)), (X,)),
    "sum_integers": (lambda x: (x.sum(), x.bool().sum(1)), (N,)),
    "mean": (lambda x: (x.mean(), x.mean(-1)), (X,)),
    "prod": (lambda x: x.prod(1), (X,)),
    "extremes": (lambda x: (x.amax(1), x.amin((0, 1)), x.max(), x.min()), (X,)),
    "max_dim": (lambda x: (*x.max(1), *x.min(2, keepdim=True)), (X.sin(),)),
    "argmax": (lambda x: (x.argmax(1), x.argmin(), x.argmax(-1, keepdim=True)), (X.sin(),)),
    "any_all": (lambda x: ((x > 2).any(1), (x > -2).all(), (x > 0).all(0)), (X,)),
    "var": (lambda x: (x.var(1), x.std((0, 2), correction=0), *torch.var_mean(x, 2)), (X,)),
    "norm": (lambda x: (x.norm(dim=1), functional.normalize(x, dim=2)), (X,)),
    "logsumexp": (lambda x: x.logsumexp(1), (X,)),
    "softmax": (lambda x: (x.softmax(1), x.log_softmax(-1)), (X * 10,)),
    "cumsum": (lambda x: x.cumsum(1), (X,)),
    "topk": (lambda x: x.topk(2, 2), (X.sin(),)),
    "sort": (lambda x: x.sort(1, descending=True), (X.sin(),)),
    "einsum": (lambda x, y: torch.einsum("aij,akj->ik", x, y), (X, P)),
    "matmul": (lambda x, y: x @ y.transpose(1, 2), (X, P)),
    "addmm": (lambda b, x, y: torch.addmm(b, x, y.T, beta=0.5, alpha=2), (X[0, :, :4], X[0], P[0])),
    "dot": (lambda x: x.dot(x) + (x.reshape(6, 10) @ x[:10]).sum(), (X.flatten(),)),
    "layer_norm": (lambda x, w: functional.layer_norm(x, (5,), w, w), (X, P[0, 0])),
    "group_norm": (lambda x: functional.group_norm(x, 2), (IMAGE,)),
    "instance_norm": (lambda x: functional.instance_norm(x), (IMAGE,)),
    "rms_norm": (lambda x: functional.rms_norm(x, (5,)), (X,)),
    "conv": (lambda x, w: functional.conv2d(x, w, stride=2, padding=1), (IMAGE, WEIGHT)),
    "conv_dilated": (lambda x, w: functional.conv2d(x, w, dilation=(2, 3)), (IMAGE, WEIGHT)),
    "conv_groups": (
        lambda x, w: functional.conv2d(x, w, groups=4, padding="same"),
        (IMAGE, WEIGHT[:4, :1].repeat(2, 1, 1, 1)),
    ),
    "conv_one": (
        lambda x, w: functional.conv1d(x, w, padding=2),
        (IMAGE[:, :, 0], WEIGHT[:, :, 0]),
    ),
    "conv_three": (
        lambda x, w: functional.conv3d(x[None], w[None]),
        (IMAGE, WEIGHT[:2, :2].permute(1, 0, 2, 3)),
    ),
    "conv_unbatched": (lambda x, w: functional.conv2d(x, w), (IMAGE[0], WEIGHT)),
    "conv_transposed": (
        lambda x, w: functional.conv_transpose2d(x, w, stride=2, padding=1, output_padding=1),
        (IMAGE, WEIGHT[:4]),
    ),
    "max_pool": (lambda x: functional.max_pool2d(x, 3, 2, 1, ceil_mode=True), (IMAGE,)),
    "max_pool_one": (lambda x: functional.max_pool1d(x, 2), (IMAGE[0],)),
    "avg_pool": (lambda x: functional.avg_pool2d(x, 3, 2, 1), (IMAGE,)),
    "avg_pool_inside": (
        lambda x: functional.avg_pool2d(x, 2, padding=1, count_include_pad=False),
        (IMAGE,),
    ),
    "adaptive_pool": (lambda x: functional.adaptive_avg_pool2d(x, (3, 4)), (IMAGE,)),
    "nearest": (lambda x: functional.interpolate(x, scale_factor=2), (IMAGE,)),
    "bilinear": (lambda x: functional.interpolate(x, (12, 7), mode="bilinear"), (IMAGE,)),
    "bilinear_corners": (
        lambda x: functional.interpolate(x, (12, 7), mode="bilinear", align_corners=True),
        (IMAGE,),
    ),
    "attention": (
        lambda q: functional.scaled_dot_product_attention(q, q, q, is_causal=True),
        (IMAGE,),
    ),
    "attention_mask": (
        lambda q, m: functional.scaled_dot_product_attention(q, q, q, m, scale=0.2),
        (IMAGE, torch.arange(81).reshape(9, 9) % 4 != 1),
    ),
    "attention_bias": (
        lambda q, m: functional.scaled_dot_product_attention(q, q, q, m),
        (IMAGE, torch.arange(81).reshape(9, 9) * 0.01),
    ),
}


GROUP = 12
"""Cases of one function; a function for each case would take minutes."""


class Cases(torch.nn.Module):
    """Several cases as one module; the inputs of all, and the results of all, in order."""

    def __init__(self, cases: list[Case]) -> None:
        super().__init__()
        self.cases = cases

    def forward(self, *tensors: Any) -> Any:
        given = iter(tensors)
        results = []
        for apply, examples in self.cases:
            results.append(apply(*(next(given) for _ in examples)))
        return tuple(results)


def groups(cases: dict[str, Case]) -> list[Any]:
    names = list(cases)
    parts = [names[at : at + GROUP] for at in range(0, len(names), GROUP)]
    return [pytest.param({n: cases[n] for n in part}, id="-".join(part)) for part in parts]


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with Node(SETTINGS) as made:
        yield made


def check(node: Node, module: torch.nn.Module, examples: tuple[Any, ...]) -> None:
    made, report, found = compared(node, module.eval(), examples)
    wanted = torch.utils._pytree.tree_leaves(module(*examples))
    for (name, array), tensor in zip(found.items(), wanted, strict=True):
        assert array.shape == tuple(tensor.shape), name
        assert array.dtype.name == str(tensor.dtype).removeprefix("torch.")
    assert max(report.errors.values()) <= ERROR, report.errors
    assert len(report.errors) == len(made.outputs)


@pytest.mark.parametrize("cases", [*groups(POINTWISE), *groups(SHAPE), *groups(LAYERS)])
def test_operators(node: Node, cases: dict[str, Case]) -> None:
    examples = tuple(tensor for _, given in cases.values() for tensor in given)
    check(node, Cases(list(cases.values())), examples)


# --- random graphs ------------------------------------------------------------------------------

UNARY = [torch.sin, torch.tanh, torch.relu, torch.neg, lambda x: x * 0.5 + 1, torch.sigmoid]
BINARY = [torch.add, torch.mul, torch.sub, torch.maximum, lambda x, y: x / (y.abs() + 1)]
REDUCE = ["sum", "mean", "amax", "softmax"]


class Program(torch.nn.Module):
    """Steps of a random program; each appends a tensor, and the last ones are returned."""

    def __init__(self, draw: Any) -> None:
        super().__init__()
        rank = draw(st.integers(1, 3))
        self.shape = tuple(draw(st.integers(1, 6)) for _ in range(rank))
        self.dtypes = draw(
            st.lists(st.sampled_from([torch.float32, torch.int64]), min_size=1, max_size=2)
        )
        kinds = st.sampled_from(["unary", "binary", "permute", "slice", "reduce", "flip", "matmul"])
        self.steps = [
            (
                draw(kinds),
                draw(st.integers(0, 99)),
                draw(st.integers(0, 99)),
                draw(st.integers(0, 9)),
            )
            for _ in range(draw(st.integers(1, 6)))
        ]

    def examples(self) -> tuple[Any, ...]:
        generator = torch.Generator().manual_seed(3)
        return tuple(
            (torch.randn(self.shape, generator=generator) * 3).to(dtype) for dtype in self.dtypes
        )

    def forward(self, *inputs: Any) -> Any:
        values = [x.float() if x.dtype == torch.int64 else x for x in inputs]
        for kind, first, second, choice in self.steps:
            x, y = values[first % len(values)], values[second % len(values)]
            values.append(self.step(kind, x, y, choice))
        return tuple(values[len(inputs) :][-2:])

    def step(self, kind: str, x: Any, y: Any, choice: int) -> Any:
        dimension = choice % x.dim() if x.dim() else 0
        match kind:
            case "binary" if x.shape == y.shape:
                return BINARY[choice % len(BINARY)](x, y)
            case "binary" if x.dim() and y.dim() and x.dim() == y.dim():
                small = y[tuple(slice(0, 1) for _ in range(y.dim()))]
                return BINARY[choice % len(BINARY)](x, small)
            case "permute" if x.dim() > 1:
                return x.transpose(dimension, (dimension + 1) % x.dim())
            case "slice" if x.dim() and x.shape[dimension] > 1:
                return x.narrow(dimension, 1, x.shape[dimension] - 1)
            case "flip" if x.dim():
                return x.flip(dimension)
            case "reduce" if x.dim():
                name = REDUCE[choice % len(REDUCE)]
                return x.softmax(dimension) if name == "softmax" else getattr(x, name)(dimension)
            case "matmul" if x.dim() > 1:
                return x @ x.transpose(-1, -2) * 0.1
        return UNARY[choice % len(UNARY)](x)


@settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],  # an export takes about a second, so shrinking would take minutes
    suppress_health_check=list(HealthCheck),
)
@given(st.data())
def test_random_program(node: Node, data: st.DataObject) -> None:
    program = Program(data.draw)
    note(f"{program.shape} {program.dtypes} {program.steps}")
    assert largest_error(node, program.eval(), program.examples()) <= ERROR
