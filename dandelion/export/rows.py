"""The rows of a module's tensors: examples of other sizes, and whether rows are independent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dandelion.arrays import Array, Shape
from dandelion.errors import InvalidFunction, InvalidInput, Problem
from dandelion.export.report import relative_error
from dandelion.export.torch_binding import load

_ERROR = 1e-3
_NARROW_ERROR = 0.1  # with 16 bits
_CHECKED = 2
_ANY_ROWS = "a module that can be called with any number of rows"


def with_rows(examples: Sequence[object], rows: int) -> tuple[object, ...]:
    """Repeat the first row of each tensor among example arguments.

    Raises:
        InvalidInput: a tensor has no rows.
    """
    torch = load()

    def repeated(value: object) -> object:
        if not isinstance(value, torch.Tensor):
            return value
        found: Any = value
        if not found.dim() or not found.shape[0]:
            message = f"an example of shape {list(found.shape)} has no rows"
            raise InvalidInput("batch", message, "give each tensor the batch as first dimension")
        return found[:1].expand(rows, *found.shape[1:]).clone()

    made: tuple[object, ...] = torch.utils._pytree.tree_map(repeated, tuple(examples))
    return made


def check_rows(module: object, examples: Sequence[object]) -> None:
    """Compare a call of several rows with calls of one row each, on random numbers.

    Raises:
        InvalidFunction: a row of a result depends on other rows.
        InvalidInput: it is no module that can be called with another batch.
    """
    torch = load()
    if not isinstance(module, torch.nn.Module):
        message = "the shapes of a torch.export.ExportedProgram are fixed"
        raise InvalidInput("batch", message, "pass the module itself")
    leaves, tree = torch.utils._pytree.tree_flatten(with_rows(examples, _CHECKED))
    noisy = [_noisy(torch, leaf, at, _drawn) for at, leaf in enumerate(leaves)]
    halves = (torch.float16, torch.bfloat16)
    narrow = any(getattr(leaf, "dtype", None) in halves for leaf in leaves)

    def results(values: list[Any]) -> list[Array]:
        called: Any = module
        try:
            with torch.no_grad():
                found = called(*torch.utils._pytree.tree_unflatten(values, tree))
        except Exception as error:  # whatever the module raises is about this batch
            message = f"{type(error).__name__}: {error}".partition("\n")[0][:500]
            problem = Problem("batch", message, type(module).__name__, expected=_ANY_ROWS)
            raise InvalidFunction((problem,)) from error
        tensors = torch.utils._pytree.tree_leaves(found)
        return [np.array(one.detach().cpu().double().numpy()) for one in tensors]

    try:
        together = results(noisy)
    except InvalidFunction:  # perhaps it takes none of these integers; its own it does take
        noisy = [_noisy(torch, leaf, at, _rolled) for at, leaf in enumerate(leaves)]
        together = results(noisy)
    for row in range(_CHECKED):
        alone = results([leaf[row : row + 1] if _is_tensor(leaf) else leaf for leaf in noisy])
        for at, (whole, single) in enumerate(zip(together, alone, strict=True)):
            if whole.shape[:1] != (_CHECKED,):
                raise InvalidFunction((_without_rows(module, at, whole.shape),))
            if whole.shape[1:] != single.shape[1:] or single.shape[:1] != (1,):
                raise InvalidFunction((_another_shape(module, at, whole.shape, single.shape),))
            error = relative_error(whole[row : row + 1], single)
            if error > (_NARROW_ERROR if narrow else _ERROR):
                message = f"a row of result {at} depends on other rows, by {error:.2g} of its size"
                where, expected = type(module).__name__, "rows that are independent"
                raise InvalidFunction((Problem("batch", message, where, expected=expected),))


def _without_rows(module: object, at: int, shape: Shape) -> Problem:
    message = f"result {at} of a call with {_CHECKED} rows has shape {list(shape)}"
    expected = f"the rows as the first dimension, [{_CHECKED}, ...]"
    return Problem("batch", message, type(module).__name__, expected=expected)


def _another_shape(module: object, at: int, many: Shape, one: Shape) -> Problem:
    message = f"result {at} has shape {list(many)} for {_CHECKED} rows, and {list(one)} for one"
    return Problem("batch", message, type(module).__name__, expected=f"{[1, *many[1:]]} for one")


def _is_tensor(value: object) -> bool:
    return isinstance(value, load().Tensor)


def _noisy(torch: Any, value: Any, seed: int, integers: Callable[[Any, int], Array]) -> Any:
    """Make the rows of a tensor different, by noise or by other integers."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.is_floating_point():
        noise = torch.randn(value.shape, generator=torch.Generator().manual_seed(seed))
        return (value.cpu() + noise).to(value.dtype).to(value.device)
    made = integers(value.cpu().numpy(), seed)
    return torch.from_numpy(made).to(value.device)


def _drawn(values: Array, seed: int) -> Array:
    """Draw other integers, or booleans, from those that are there, 0 and 1."""
    numbers = np.unique(np.append(values, [0, 1])).astype(values.dtype)
    made = np.random.default_rng(seed).choice(numbers, values.shape)
    first, second = made[0].ravel(), made[1].ravel()
    if first.size and (first == second).all():
        made.reshape(len(made), -1)[1, 0] = numbers[numbers != first[0]][0]
    return made


def _rolled(values: Array, _: int) -> Array:
    """Put the integers of each row in another order."""
    return np.stack([np.roll(row, at) for at, row in enumerate(values)])
