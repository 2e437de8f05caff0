"""Elementary functions, remainders, powers and shapes of exported modules."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the extra 'export' is not installed")
pytest.importorskip("tinygrad", reason="the extra 'export' is not installed")

import torch
from torch import nn

from dandelion.errors import InvalidFunction
from dandelion.export import torch_function
from dandelion.node import Node
from tests.torch_calls import SETTINGS

SPECIAL = [0.0, 1.0, -1.0, 0.5, -0.5, 1e-30, 1e30, -1e30, math.inf, -math.inf, math.nan]


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with Node(SETTINGS) as made:
        yield made


class Applied(nn.Module):
    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


def exported(node: Node, function: Callable[[Any], Any], x: Any, **options: Any) -> list[Any]:
    """Register a function of one tensor, and call it."""
    node.register(torch_function("applied", Applied(function).eval(), (x,), **options))
    found = node.invoke("applied", x=x.numpy())
    return [found[name].numpy() for name in found]


def spread(low: float, high: float) -> list[float]:
    """Numbers of all sizes between two powers of ten, and their opposites."""
    sizes = 10.0 ** np.random.default_rng(1).uniform(low, high, 200)
    return [*sizes, *-sizes]


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (torch.cos, [1e4, 1e6, 3e7, *spread(-6, 0)]),
        (torch.tan, spread(-6, 0)),
        (torch.atan, [*SPECIAL, *spread(-6, 30)]),
        (torch.asin, [*SPECIAL, *spread(-6, 0)]),
        (torch.acos, [*SPECIAL, *spread(-3, -0.01)]),
        (torch.sinh, [*SPECIAL, *spread(-6, 1.9)]),
        (torch.tanh, [*SPECIAL, *spread(-6, 6)]),
        (torch.asinh, [*SPECIAL, *spread(-6, 30)]),
        (torch.acosh, [*SPECIAL, *(1 + abs(x) for x in spread(-3, 30))]),
        (torch.atanh, [*SPECIAL, *spread(-6, -0.01)]),
        (torch.log1p, [*SPECIAL, *spread(-7, -0.01)]),
        (torch.expm1, [*SPECIAL, *spread(-7, 1.9)]),
        (torch.erf, [*SPECIAL, *spread(-7, 1)]),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_elementary_functions(
    node: Node, function: Callable[[Any], Any], arguments: list[float], dtype: torch.dtype
) -> None:
    x = torch.tensor(arguments, dtype=dtype)
    (found,) = exported(node, function, x)
    np.testing.assert_allclose(found, function(x.double()).float(), rtol=2e-5, atol=0)


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (torch.sign, SPECIAL),
        (torch.round, [*SPECIAL, 1.5, 2.5, -2.5, 8388609.0, -4194305.5]),
        (lambda x: torch.fmod(x, 3.0), [*SPECIAL[:5], 1e9, -7.0, math.inf, math.nan]),
        (lambda x: torch.fmod(x, math.inf), [1.0, -3.0]),
        (lambda x: torch.remainder(x, 0.1), [1.0, 2.0, 3.0, 0.3, 0.7, 1e4, -1.0]),
        (lambda x: torch.remainder(x, math.inf), [1.0, -3.0]),
        (lambda x: torch.remainder(x, -7.5), [*spread(-3, 6), 15.0]),
        (lambda x: torch.floor_divide(x, 0.1), [1.0, 2.0, 3.0, -1.0, 0.3, math.nan]),
        (lambda x: torch.floor_divide(x, 0.0), [1.0, -2.0, 0.0]),
        (lambda x: torch.div(x, -3.5, rounding_mode="trunc"), spread(-3, 4)),
    ],
)
def test_whole_numbers_and_remainders_are_exact(
    node: Node, function: Callable[[Any], Any], arguments: list[float]
) -> None:
    x = torch.tensor(arguments)
    (found,) = exported(node, function, x)
    np.testing.assert_array_equal(found, function(x))


@pytest.mark.parametrize(("y", "x"), [(1e10, 1e-30), (1.0, 1e-38), (math.inf, -1.0), (0.0, -2.0)])
def test_arc_tangents_of_two_numbers(node: Node, y: float, x: float) -> None:
    given = torch.tensor([y, -y, math.nan])
    (found,) = exported(node, lambda one: torch.atan2(one, torch.full_like(one, x)), given)
    wanted = torch.atan2(given, torch.full_like(given, x)).numpy()
    if y == 0.0:
        wanted[1] = math.pi  # the sign of a zero is not read
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64])
def test_powers_of_integers_wrap_as_those_of_torch(node: Node, dtype: torch.dtype) -> None:
    x = torch.tensor([-3, -2, -1, 0, 1, 2, 3, 7, 11, 100]).to(dtype)
    exponents = torch.tensor([0, 1, 2, 3, 4, 5, 7, 9, 60, 100]).to(dtype)
    for function, given in (
        (lambda x: x**exponents, x),
        (lambda x: 3**x, exponents),
        (lambda x: x**3, x),
        (lambda x: x ** torch.tensor([3, 2, 0, 1, 1, 1, 1, 1, 1, 1], dtype=torch.int32), x),
    ):
        (found,) = exported(node, function, given)
        np.testing.assert_array_equal(found, function(given))
    if dtype != torch.uint8:
        (found,) = exported(node, lambda x: x ** (-exponents), x)
        np.testing.assert_array_equal(found, x ** (-exponents))


@pytest.mark.parametrize(
    "function",
    [
        torch.var_mean,
        torch.std_mean,
        lambda x: torch.var_mean(x)[0] + torch.ones(3),
        lambda x: x.max(0)[1],
        lambda x: tuple(x[:1].reshape(()).sort(0)),
        lambda x: x[:1].reshape(()).sum(0),
        lambda x: x[:1].reshape(()).argmax(0),
    ],
)
def test_shapes_of_results(node: Node, function: Callable[[Any], Any]) -> None:
    x = torch.tensor([1.0, 2.0, 3.0, 6.0])
    wanted = function(x)
    found = exported(node, function, x)
    for one, other in zip(found, wanted if isinstance(wanted, tuple) else [wanted], strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=1e-6)


class Centred(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(2, 3)

    def forward(self, x: Any) -> Any:
        found = self.table(x)
        return found - found.mean(0, keepdim=True)


@pytest.mark.parametrize(
    ("module", "dtype", "said"),
    [
        (Applied(lambda x: x.roll(1, 0)), torch.int64, "depends on other rows"),
        (Applied(lambda x: x.roll(1, 0)), torch.bool, "depends on other rows"),
        (Centred(), torch.int64, "depends on other rows"),
        (
            Applied(lambda x: x.squeeze()),
            torch.float32,
            r"shape \[2, 4\] for 2 rows, and \[4\] for one",
        ),
    ],
)
def test_rows_that_are_equal_in_the_example(
    module: nn.Module, dtype: torch.dtype, said: str
) -> None:
    with pytest.raises(InvalidFunction, match=said):
        torch_function("f", module.eval(), (torch.zeros(1, 4, dtype=dtype),), batch=(1, 4))


def test_a_table_of_one_row_has_one_number_only(node: Node) -> None:
    table = nn.Embedding(1, 3).eval()
    example = torch.zeros(1, 2, dtype=torch.int64)
    node.register(torch_function("one", table, (example,), batch=(1, 4)))
    found = node.invoke("one", input=example.numpy())["output"].numpy()
    np.testing.assert_array_equal(found, table(example).detach())


@pytest.mark.parametrize("names", [["add", "y"], ["x", "mul"]])
def test_inputs_may_have_names_of_operators(node: Node, names: list[str]) -> None:
    class Two(nn.Module):
        def forward(self, x: Any, y: Any) -> Any:
            return (x + y) * y

    examples = (torch.ones(3), torch.arange(3.0))
    node.register(torch_function("two", Two().eval(), examples, inputs=names))
    given = {name: one.numpy() for name, one in zip(names, examples, strict=True)}
    np.testing.assert_array_equal(node.invoke("two", **given)["output"].numpy(), [0, 2, 6])


def test_what_the_code_generator_cannot_do_is_an_error_of_the_export() -> None:
    with pytest.raises(InvalidFunction, match=r"aten\.\w*linalg\w+.* is not supported") as caught:
        torch_function("f", Applied(torch.linalg.inv).eval(), (torch.eye(2),))
    assert __file__ in str(caught.value)
    hidden = Applied(lambda x: x.tril(-3).triu(-2).tile(2).chunk(2, 1)[-1])
    with pytest.raises(InvalidFunction, match="tinygrad cannot generate its code"):
        torch_function("f", hidden.eval(), (torch.arange(12).reshape(4, 3),))
