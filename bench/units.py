"""Figures for people: three digits and a unit that fits, the same in tables, pictures and pages.

Records hold microseconds, bytes and 1/s (see `dandelion.bench.records`). Times and sizes of memory
are written as engineers read them: ns to hours, binary units of bytes, decimal ones of rates. What
was not measured, or is no number, is a dash. Text that comes from a file is cleaned of control
characters here too, once, since neither a terminal nor an SVG may see them.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping

from .records import Metric, Row, Unit

NOTHING = "–"
"""Stands for a value that is not there."""

_LADDERS: dict[Unit, tuple[tuple[float, str], ...]] = {
    Unit.US: (
        (1e-3, " ns"), (1.0, " µs"), (1e3, " ms"), (1e6, " s"), (6e8, " min"), (3.6e10, " h"),
    ),
    Unit.PER_SECOND: ((1.0, "/s"), (1e3, " k/s"), (1e6, " M/s"), (1e9, " G/s")),
    Unit.BYTES: (
        (1.0, " B"), (2.0**10, " KiB"), (2.0**20, " MiB"), (2.0**30, " GiB"), (2.0**40, " TiB"),
    ),
    Unit.BYTES_PER_SECOND: (
        (1.0, " B/s"), (1e3, " kB/s"), (1e6, " MB/s"), (1e9, " GB/s"), (1e12, " TB/s"),
    ),
    Unit.RATIO: ((1.0, "x"),),
    Unit.COUNT: ((1.0, ""), (1e6, " M"), (1e9, " G")),
}  # fmt: skip
_DIVISORS = {" min": 6e7, " h": 3.6e9}  # these begin at ten of them
_COUNTED = (Unit.COUNT, Unit.BYTES)  # written in full below the first prefix


def figure(value: float | None, unit: Unit) -> str:
    """Write a value with three significant digits and a unit that fits: ``1.64 ms``.

    Args:
        value: in the unit of the records; None or a number that is not finite gives a dash.
        unit: of the value.
    """
    if value is None or not math.isfinite(value):
        return NOTHING
    rounded = float(f"{value:.3g}")
    divisor, name = _rung(abs(value if unit is Unit.BYTES else rounded), unit)
    whole = unit in _COUNTED and divisor == 1 and value == int(value)
    return _plain(value if whole else float(f"{value / divisor:.3g}")) + name


def number(value: float | str, unit: Unit) -> str:
    """Write an x, which is a number or a word."""
    return clean(value) if isinstance(value, str) else figure(value, unit)


def spread(row: Row, metric: Metric) -> str:
    """Write a metric's value, with its spread where the row has one: ``1.64 ms (1.6–1.7)``.

    The spread of metric ``KEY`` are the values ``KEY_low`` and ``KEY_high``.
    """
    return with_ends(row.values.get(metric.key), bounds(row.values, metric.key), metric.unit)


def with_ends(value: float | None, ends: tuple[float, float] | None, unit: Unit) -> str:
    """Write a value and the ends of its spread, which are in the unit that is written for it."""
    text = figure(value, unit)
    if ends is None or value is None or not math.isfinite(value):
        return text
    divisor, _ = _rung(abs(float(f"{value:.3g}")), unit)
    low, high = (_plain(float(f"{end / divisor:.3g}")) for end in ends)
    return f"{text} ({low}–{high})"


def bounds(values: Mapping[str, float], key: str) -> tuple[float, float] | None:
    """Give the lower and upper end of a metric's spread, where both were measured."""
    low, high = values.get(f"{key}_low"), values.get(f"{key}_high")
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return None
    return low, high


def clean(text: str) -> str:
    """Give text as `printable` does, on one line, without spaces at its ends."""
    return printable(" ".join(text.split()))


def printable(text: str) -> str:
    """Give text with its control, format and surrogate characters replaced."""
    kept = (" " if c.isspace() else c for c in text)
    return "".join("\N{REPLACEMENT CHARACTER}" if _unprintable(c) else c for c in kept)


def shortened(text: str, characters: int) -> str:
    """Give clean text of at most so many characters; an ellipsis stands for what is cut."""
    text = clean(text)
    return text if len(text) <= characters else text[: characters - 1].rstrip() + "…"


def _unprintable(character: str) -> bool:
    kind = unicodedata.category(character)
    return kind in ("Cc", "Cs", "Cn", "Cf")


def _rung(size: float, unit: Unit) -> tuple[float, str]:
    ladder = _LADDERS[unit]
    if size == 0:
        start, name = next(rung for rung in ladder if rung[0] >= 1)
    else:
        start, name = [r for r in ladder if r[0] <= size][-1] if size >= ladder[0][0] else ladder[0]
    return _DIVISORS.get(name, start), name


def _plain(value: float) -> str:
    size = abs(value)
    if size >= 1e9 or 0 < size < 1e-4:
        return f"{value:.2e}"
    if value == int(value):
        return f"{int(value):,}".replace(",", "\N{NARROW NO-BREAK SPACE}")
    return f"{value:.6f}".rstrip("0").rstrip(".")
