"""A plan for notebooks: where buffers lie in the pool, and the launches with their numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from dandelion.markup import Element, code, element, heading, page, table
from dandelion.sizes import size_text

from .layout import Slot

_WIDTH = 480.0
StepRow = tuple[str, Sequence[int], Sequence[int], int]
"""What a step is, its blocks, the threads of a block, and bytes: local memory, or its size."""


class Drawn(Protocol):
    """What of a plan is drawn; see `dandelion.backends.gpu.plan.Plan`."""

    @property
    def slots(self) -> Mapping[str, Slot]: ...
    @property
    def outputs(self) -> Mapping[str, Slot]: ...
    @property
    def launches(self) -> int: ...
    @property
    def used_bytes(self) -> int: ...


def plan_html(plan: Drawn, steps: Iterable[StepRow]) -> str:
    """Show a plan."""
    words = (f"{plan.launches} launches", f"{size_text(plan.used_bytes)} of the pool")
    whole = max(plan.used_bytes, 1)
    slots = sorted(plan.slots.items(), key=lambda slot: slot[1].offset_bytes)
    rows = [
        (
            name,
            "output" if name in plan.outputs else "",
            slot.offset_bytes,
            size_text(slot.size_bytes),
            _place(slot.offset_bytes / whole, slot.size_bytes / whole),
        )
        for name, slot in slots
    ]
    shown = (
        (code(name), _three(blocks), _three(threads), size_text(size_bytes) if size_bytes else "")
        for name, blocks, threads, size_bytes in steps
    )
    return page(
        heading("plan", "", *words),
        table(("buffer", "role", "offset", "size", "place"), rows),
        table(("step", "blocks", "threads", "memory"), shown),
    )


def _place(start: float, part: float) -> Element:
    """Draw which part of the pool a buffer has."""
    left, width = start * _WIDTH, max(1.0, part * _WIDTH)
    return element(
        "svg",
        element("rect", x=0, y=0, width=_WIDTH, height=10, fill="currentColor", fill_opacity=0.1),
        element("rect", x=f"{left:.2f}", y=0, width=f"{width:.2f}", height=10, fill="#4c8bf5"),
        viewBox=f"0 0 {_WIDTH:g} 10",
        width=f"{_WIDTH / 2:g}",
        height=10,
    )


def _three(sizes: Sequence[int]) -> str:
    return " × ".join(map(str, sizes)).removesuffix(" × 1").removesuffix(" × 1")
