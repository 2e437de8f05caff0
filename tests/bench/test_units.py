"""Figures for people."""

import math

import pytest
from dandelion.bench.records import Metric, Row, Unit
from dandelion.bench.report.units import NOTHING, clean, figure, shortened, spread
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0, Unit.US, "0 µs"),
        (0.25, Unit.US, "250 ns"),
        (18.24, Unit.US, "18.2 µs"),
        (999.4, Unit.US, "999 µs"),
        (999.6, Unit.US, "1 ms"),
        (1536.0, Unit.US, "1.54 ms"),
        (2.5e6, Unit.US, "2.5 s"),
        (6.6e8, Unit.US, "11 min"),
        (3.6e10, Unit.US, "10 h"),
        (-2500.0, Unit.US, "-2.5 ms"),
        (1023.0, Unit.BYTES, "1\u202f023 B"),
        (1024.0, Unit.BYTES, "1 KiB"),
        (1.5 * 2**30, Unit.BYTES, "1.5 GiB"),
        (55.3e9, Unit.BYTES_PER_SECOND, "55.3 GB/s"),
        (1640.0, Unit.PER_SECOND, "1.64 k/s"),
        (1.641, Unit.RATIO, "1.64x"),
        (123456.0, Unit.COUNT, "123\u202f456"),
        (2.5, Unit.COUNT, "2.5"),
        (None, Unit.US, NOTHING),
        (math.nan, Unit.US, NOTHING),
        (math.inf, Unit.BYTES, NOTHING),
    ],
)
def test_figures_have_three_digits_and_a_unit_that_fits(
    value: float | None, unit: Unit, text: str
) -> None:
    assert figure(value, unit) == text


@given(st.floats(), st.sampled_from(Unit))
def test_every_number_can_be_written(value: float, unit: Unit) -> None:
    text = figure(value, unit)
    assert text
    assert len(text) < 20


def test_a_spread_is_in_the_unit_of_its_value() -> None:
    metric = Metric("p50", "median", Unit.US)
    row = Row("s", "", {"p50": 1000.0, "p50_low": 950.0, "p50_high": 1100.0})
    assert spread(row, metric) == "1 ms (0.95–1.1)"
    assert spread(Row("s", "", {"p50": 1000.0, "p50_low": 950.0}), metric) == "1 ms"
    assert spread(Row("s", "", {"p50_low": 1.0, "p50_high": 2.0}), metric) == NOTHING


@given(st.text())
def test_clean_text_is_one_line_that_a_terminal_and_an_svg_may_see(text: str) -> None:
    cleaned = clean(text)
    assert all(c.isprintable() or c == " " or ord(c) > 0x7F for c in cleaned)
    assert "\x1b" not in cleaned
    assert len(cleaned.splitlines()) <= 1
    cleaned.encode()


def test_long_text_is_cut_to_its_room() -> None:
    assert shortened("dedicated, graph", 40) == "dedicated, graph"
    assert shortened("dedicated, graph", 10) == "dedicated…"
    assert len(shortened("x" * 100, 10)) == 10
