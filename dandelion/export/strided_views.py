"""Views of a graph's values: which elements of a stored value they are, if strides can say so."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dandelion.export.torch_graph import GETITEM, Argument, Node, Reference

_SAME_ORDER = frozenset(
    f"aten.{name}"
    for name in (
        *("view.default", "_unsafe_view.default", "reshape.default", "squeeze.default"),
        *("squeeze.dim", "squeeze.dims", "unsqueeze.default", "flatten.using_ints"),
        *("unflatten.int", "alias.default", "clone.default", "contiguous.default"),
        *("detach.default", "view_copy.default", "squeeze_copy.default", "unsqueeze_copy.default"),
    )
)
"""Operators that give the same elements in the same order, with another shape."""


@dataclass(frozen=True, slots=True)
class StridedView:
    """Elements of a value that lies in memory, row-major.

    Attributes:
        base: its name.
        shape: of the view.
        strides: in elements.
        offset: of the first element, in elements.
    """

    base: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @property
    def is_dense(self) -> bool:
        """Whether it is all elements one after the other from its offset on."""
        return all(
            size == 1 or stride == wanted
            for size, stride, wanted in zip(
                self.shape, self.strides, row_major(self.shape), strict=True
            )
        )

    def swapped(self) -> StridedView:
        """Exchange the last two dimensions."""
        order = [*range(len(self.shape) - 2), len(self.shape) - 1, len(self.shape) - 2]
        return self.permuted(order)

    def permuted(self, order: Sequence[int]) -> StridedView:
        """Put the dimensions in another order."""
        return StridedView(
            self.base,
            tuple(self.shape[d] for d in order),
            tuple(self.strides[d] for d in order),
            self.offset,
        )

    def reshaped(self, shape: tuple[int, ...]) -> StridedView | None:
        """Give the same elements another shape; None if strides cannot say that."""
        if shape == self.shape:
            return self
        if 0 in shape:
            return None
        groups = _groups(self.shape, self.strides)
        strides: list[int] = []
        left = [(size, stride) for size, stride in groups]
        for size in reversed(shape):
            if size == 1:
                strides.append(0)
                continue
            if not left:
                return None
            have, stride = left.pop()
            if have % size:
                return None
            strides.append(stride)
            if have > size:
                left.append((have // size, stride * size))
        if any(size > 1 for size, _ in left):
            return None
        return StridedView(self.base, shape, tuple(reversed(strides)), self.offset)

    def narrowed(self, dimension: int, start: int, length: int, step: int = 1) -> StridedView:
        """Take a range of a dimension."""
        shape, strides = list(self.shape), list(self.strides)
        offset = self.offset + start * strides[dimension]
        shape[dimension], strides[dimension] = length, strides[dimension] * step
        return StridedView(self.base, tuple(shape), tuple(strides), offset)


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of elements that lie one after the other."""
    sizes = [*shape[1:], 1]
    return tuple(itertools.accumulate(reversed(sizes), lambda a, b: a * b))[::-1] if shape else ()


def _groups(shape: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int]]:
    """Join dimensions that lie in each other without gaps: sizes and strides."""
    found: list[tuple[int, int]] = []
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if found and found[-1][1] == size * stride:
            found[-1] = (found[-1][0] * size, stride)
        else:
            found.append((size, stride))
    return found


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the elements of a view lie, also where no strides can say it.

    Each dimension is a row of smaller ones, each with a size and a stride, the last one counting
    fastest. So dimensions may be joined that are apart in memory, and divided again.

    Attributes:
        base: name of the value.
        dimensions: of the view.
        offset: of the first element, in elements.
    """

    base: str
    dimensions: tuple[tuple[tuple[int, int], ...], ...]
    offset: int = 0

    @staticmethod
    def of(view: StridedView) -> Layout:
        """The layout of a view."""
        pairs = zip(view.shape, view.strides, strict=True)
        return Layout(view.base, tuple(((size, stride),) for size, stride in pairs), view.offset)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the view."""
        return tuple(math.prod(size for size, _ in parts) for parts in self.dimensions)

    def view(self) -> StridedView | None:
        """The same with strides; None if they cannot say it."""
        strides = []
        for parts in self.dimensions:
            found = _groups(*zip(*parts, strict=True)) if parts else []
            if len(found) > 1:
                return None
            strides.append(found[0][1] if found else 0)
        return StridedView(self.base, self.shape, tuple(strides), self.offset)

    def reshaped(self, shape: Sequence[int]) -> Layout | None:
        """Give the same elements another shape; None if sizes do not divide each other."""
        left = [part for parts in self.dimensions for part in parts if part[0] != 1]
        made: list[tuple[tuple[int, int], ...]] = []
        for wanted in reversed(shape):
            parts: list[tuple[int, int]] = []
            need = wanted
            while need > 1:
                if not left:
                    return None
                size, stride = left.pop()
                if size > need:
                    if size % need:
                        return None
                    left.append((size // need, stride * need))
                    size = need
                if need % size:
                    return None
                parts.append((size, stride))
                need //= size
            made.append(tuple(reversed(parts)) or ((1, 0),))
        if left or 0 in shape:
            return None
        return Layout(self.base, tuple(reversed(made)), self.offset)


class ViewTracer:
    """Follows views back to the values that they show.

    Args:
        nodes: of a graph, by name.
        shapes: of its inputs and constants, by name.
    """

    def __init__(self, nodes: Mapping[str, Node], shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._nodes = nodes
        self._shapes = shapes
        self._known: dict[str, StridedView] = {}
        self._layouts: dict[str, Layout] = {}

    def layout(self, name: str) -> Layout:
        """Where the elements of a value lie in the furthest value that it is a view of."""
        found = self._layouts.get(name)
        if found is None:
            found = self._layouts[name] = self._reached(name) or Layout.of(self.view(name))
        return found

    def _reached(self, name: str) -> Layout | None:
        node = self._nodes.get(name)
        if node is None or not node.arguments or not isinstance(node.arguments[0], Reference):
            return None
        if node.operator in _SAME_ORDER:
            return self.layout(node.arguments[0].name).reshaped(node.type.shape)
        if node.operator in ("aten.permute.default", "aten.permute_copy.default"):
            origin, order = self.layout(node.arguments[0].name), node.arguments[1]
            assert isinstance(order, tuple)
            count = len(origin.dimensions)
            moved = tuple(origin.dimensions[d % count] for d in order if isinstance(d, int))
            return Layout(origin.base, moved, origin.offset)
        before = self.layout(node.arguments[0].name).view()
        return self._after(node, before)

    def _after(self, node: Node, before: StridedView | None) -> Layout | None:
        if before is None or node.operator not in _VIEWS:
            return None
        moved = _moved(before, node)
        return None if moved is None or moved.shape != node.type.shape else Layout.of(moved)

    def view(self, name: str) -> StridedView:
        """A value as a view of the furthest value that it can be one of; at least of itself."""
        found = self._known.get(name)
        if found is None:
            node = self._nodes.get(name)
            shape = self._shapes[name] if node is None else node.type.shape
            reached = self._reached(name)
            found = None if reached is None else reached.view()
            if found is None:
                found = None if node is None else self._traced(node)
            if found is None or found.shape != shape:
                found = StridedView(name, shape, row_major(shape))
            self._known[name] = found
        return found

    def _traced(self, node: Node) -> StridedView | None:
        if not node.arguments or not isinstance(node.arguments[0], Reference):
            return None
        source = node.arguments[0].name
        if node.operator == GETITEM:
            return self._part(self._nodes[source], node)
        if node.operator not in _VIEWS and node.operator not in _SAME_ORDER:
            return None
        origin = self.view(source)
        if node.operator in _SAME_ORDER:
            return origin.reshaped(node.type.shape)
        return _moved(origin, node)

    def _part(self, split: Node, node: Node) -> StridedView | None:
        """One of the parts into which a value is split."""
        at = node.arguments[1]
        sizes = split.arguments[1] if len(split.arguments) > 1 else None
        if not isinstance(at, int) or not isinstance(split.arguments[0], Reference):
            return None
        given = _argument(split, 2, "dim", 0)
        dimension = given if isinstance(given, int) else 0
        if split.operator == "aten.split_with_sizes.default" and isinstance(sizes, tuple):
            before = [size for size in sizes[:at] if isinstance(size, int)]
            start = sum(before)
        elif split.operator == "aten.split.Tensor" and isinstance(sizes, int):
            start = at * sizes
        else:
            return None
        origin = self.view(split.arguments[0].name)
        dimension %= len(origin.shape)
        return origin.narrowed(dimension, start, node.type.shape[dimension])


_VIEWS = frozenset(
    f"aten.{name}"
    for name in (
        *("permute.default", "transpose.int", "t.default", "expand.default", "select.int"),
        *("slice.Tensor", "permute_copy.default", "transpose_copy.int"),
    )
)


def _argument(node: Node, at: int, name: str, default: Argument) -> Argument:
    return node.arguments[at] if len(node.arguments) > at else node.keywords.get(name, default)


def _moved(origin: StridedView, node: Node) -> StridedView | None:
    """Apply a view operator that is not only another shape."""
    count = len(origin.shape)
    kind = node.operator.split(".")[1].removesuffix("_copy")
    numbers = [a for a in node.arguments[1:] if isinstance(a, int)]
    if kind == "permute":
        order = node.arguments[1]
        if not isinstance(order, tuple):
            return None
        return origin.permuted([d % count for d in order if isinstance(d, int)])
    if kind in ("t", "transpose"):
        if count < 2:
            return origin
        first, second = (d % count for d in (numbers if kind == "transpose" else (0, 1)))
        order_of = list(range(count))
        order_of[first], order_of[second] = second, first
        return origin.permuted(order_of)
    if kind == "expand":
        shape = node.type.shape
        missing = len(shape) - count
        sizes = (*(1,) * missing, *origin.shape)
        strides = (*(0,) * missing, *origin.strides)
        wide = tuple(
            0 if have == 1 and want != 1 else stride
            for have, want, stride in zip(sizes, shape, strides, strict=True)
        )
        return StridedView(origin.base, shape, wide, origin.offset)
    if kind == "select" and len(numbers) == 2:
        dimension = numbers[0] % count
        index = numbers[1] % origin.shape[dimension]
        found = origin.narrowed(dimension, index, 1)
        keep = [d for d in range(count) if d != dimension]
        return found.permuted([*keep, dimension]).reshaped(node.type.shape)
    if kind == "slice":
        dimension = numbers[0] % count if numbers else 0
        size = origin.shape[dimension]
        start = _argument(node, 2, "start", 0)
        step = _argument(node, 4, "step", 1)
        begin = start if isinstance(start, int) else 0
        begin = min(max(begin + size if begin < 0 else begin, 0), size)
        stride = step if isinstance(step, int) else 1
        return origin.narrowed(dimension, begin, node.type.shape[dimension], stride)
    return None
