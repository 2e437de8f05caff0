"""Values as text: three digits and a unit that fits, the same in tables, pictures and pages.

Times are written from ns to hours, sizes with binary and rates with decimal prefixes. A value that
was not measured, or is not a number, is a dash. Text of saved results is cleaned of control
characters here, since neither a terminal nor an SVG may get them.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping

from ..records import Metric, Row, Unit

NOTHING = "–"
"""Written for a missing value."""

_STEPS: dict[Unit, tuple[tuple[float, str], ...]] = {
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
    """Write a value of the records with three significant digits and its unit: ``1.64 ms``."""
    if value is None or not math.isfinite(value):
        return NOTHING
    rounded = float(f"{value:.3g}")
    divisor, name = _step(abs(value if unit is Unit.BYTES else rounded), unit)
    whole = unit in _COUNTED and divisor == 1 and value == int(value)
    return _plain(value if whole else float(f"{value / divisor:.3g}")) + name


def number(value: float | str, unit: Unit) -> str:
    """Write an x, which is a number or a word."""
    return clean(value) if isinstance(value, str) else figure(value, unit)


def spread(row: Row, metric: Metric) -> str:
    """Write a metric's value, with its spread where the row has one: ``1.64 ms (1.6–1.7)``."""
    return with_ends(row.values.get(metric.key), bounds(row.values, metric.key), metric.unit)


def with_ends(value: float | None, ends: tuple[float, float] | None, unit: Unit) -> str:
    """Write a value, and the ends of its spread in the same unit."""
    text = figure(value, unit)
    if ends is None or value is None or not math.isfinite(value):
        return text
    divisor, _ = _step(abs(float(f"{value:.3g}")), unit)
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
    spaced = (" " if c.isspace() else c for c in text)
    return "".join("\N{REPLACEMENT CHARACTER}" if _unprintable(c) else c for c in spaced)


def shortened(text: str, characters: int) -> str:
    """Give clean text of at most so many characters; an ellipsis stands for what is cut."""
    text = clean(text)
    return text if len(text) <= characters else text[: characters - 1].rstrip() + "…"


def _unprintable(character: str) -> bool:
    kind = unicodedata.category(character)
    return kind in ("Cc", "Cs", "Cn", "Cf")


def _step(size: float, unit: Unit) -> tuple[float, str]:
    steps = _STEPS[unit]
    if size == 0:
        start, name = next(step for step in steps if step[0] >= 1)
    else:
        start, name = [r for r in steps if r[0] <= size][-1] if size >= steps[0][0] else steps[0]
    return _DIVISORS.get(name, start), name


def _plain(value: float) -> str:
    size = abs(value)
    if size >= 1e9 or 0 < size < 1e-4:
        return f"{value:.2e}"
    if value == int(value):
        return f"{int(value):,}".replace(",", "\N{NARROW NO-BREAK SPACE}")
    return f"{value:.6f}".rstrip("0").rstrip(".")
