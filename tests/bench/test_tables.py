"""What an experiment found, in a terminal."""

import io

import msgspec
import pytest
from dandelion.bench.records import Axis, ExperimentResult, Metric, Panel, Plot, Row, Unit
from dandelion.bench.report.tables import print_result, ratio_to_baseline, table_of
from rich.console import Console

from tests.bench.made_results import (
    P50,
    bars_panel,
    empty_panel,
    hostile_result,
    result,
    stacked_panel,
    sweep_panel,
    table_panel,
)


def printed(found: ExperimentResult) -> str:
    console = Console(file=io.StringIO(), width=160, force_terminal=True, color_system=None)
    print_result(found, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def titles(panel: Panel) -> list[str]:
    return [column.title for column in table_of(panel).columns]


def test_a_sheet_has_columns_for_what_was_measured_only() -> None:
    assert titles(sweep_panel()) == [
        "system", "offered load", "median latency", "p99 latency", "achieved",
        "against dedicated", "samples", "note",
    ][:7]  # fmt: skip
    assert titles(bars_panel())[:2] == ["way", "system"]
    assert titles(table_panel()) == ["system", "median latency", "ratio", "size", "samples"]


def test_notes_and_errors_have_columns_where_there_are_some() -> None:
    row = Row("s", "", {"p50": 1.0}, errors=2, note="client was the bottleneck")
    panel = Panel("k", "t", Axis("x"), (P50,), (row,), Plot.TABLE)
    sheet = table_of(panel)
    assert sheet.rows == (("s", "1 µs", "2", "client was the bottleneck"),)


def test_stages_have_a_total() -> None:
    sheet = table_of(stacked_panel())
    total = [c.title for c in sheet.columns].index("total")
    assert [row[total] for row in sheet.rows] == ["7.54 ms", "467 µs", "416 µs"]


def test_ratios_are_made_at_the_same_x() -> None:
    panel = sweep_panel()
    by_place = {(r.system, r.x): r for r in panel.rows}
    ratio = ratio_to_baseline(panel, by_place["dandelion sequential", 100.0])
    ours, theirs = (by_place[s, 100.0].values["p50"] for s in ("dandelion sequential", "dedicated"))
    assert ratio == pytest.approx(ours / theirs)
    assert ratio_to_baseline(panel, by_place["dedicated", 100.0]) is None


def test_a_baseline_with_one_x_is_that_of_all_and_zero_is_none() -> None:
    rows = (Row("bare", "once", {"p50": 2.0}), Row("ours", "a", {"p50": 5.0}))
    panel = Panel("k", "t", Axis("x"), (P50,), rows, Plot.BARS, "bare")
    assert ratio_to_baseline(panel, rows[1]) == 2.5
    zero = msgspec.structs.replace(panel, rows=(Row("bare", "a", {"p50": 0.0}), rows[1]))
    assert ratio_to_baseline(zero, rows[1]) is None
    missing = msgspec.structs.replace(panel, rows=(Row("bare", "a", {}), rows[1]))
    assert ratio_to_baseline(missing, rows[1]) is None


def test_ratios_show_the_spread_that_was_measured() -> None:
    values = {"p50": 3.0, "ratio_low": 1.4, "ratio_high": 1.6}
    rows = (Row("bare", "", {"p50": 2.0}), Row("ours", "", values))
    panel = Panel("k", "t", Axis(""), (P50,), rows, Plot.TABLE, "bare")
    assert table_of(panel).rows[1][-1] == "1.5x (1.4–1.6)"


def test_everything_found_is_printed() -> None:
    panels = [sweep_panel(), bars_panel(), stacked_panel(), table_panel(), empty_panel()]
    text = printed(result(panels=panels, machine_name="epyc", quick=True))
    for expected in (
        "QUICK RUN", "SCALED: 64 x 64", "fig-5-1", "411 µs", "1.63x", "nothing was measured",
        "holds", "does not hold", "cannot tell", "pass", "FAIL", "two cores", "Ray actors",
        "pip install ray", "Rates are offered by one generator.", "epyc", "c2feb7e+",
    ):  # fmt: skip
        assert expected in text, expected


def test_full_runs_are_not_called_quick_or_scaled() -> None:
    text = printed(result())
    assert "QUICK" not in text
    assert "SCALED" not in text


def test_names_are_no_markup_and_no_control_sequences() -> None:
    text = printed(hostile_result())
    assert "\x1b[31m" not in text
    assert "\x00" not in text
    assert "[bold]b[/bold]" in text


def test_a_metric_of_another_kind_is_not_added_to_the_stages() -> None:
    panel = stacked_panel()
    calls = Metric("calls", "calls", Unit.COUNT)
    rows = tuple(msgspec.structs.replace(r, values=r.values | {"calls": 1e9}) for r in panel.rows)
    changed = msgspec.structs.replace(panel, metrics=(*panel.metrics, calls), rows=rows)
    sheet = table_of(changed)
    assert "7.54 ms" in sheet.rows[0]
