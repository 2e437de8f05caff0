"""Pictures of panels."""

import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import matplotlib as mpl
import msgspec
import pytest
from dandelion.bench.records import Axis, Metric, Panel, Plot, Row, Unit
from dandelion.bench.report.plots import draw, inline_svg
from dandelion.bench.systems.names import style_of

from dandelion.errors import BackendUnavailable
from tests.bench.made_results import (
    P50,
    P99,
    bars_panel,
    empty_panel,
    hostile_panel,
    hostile_result,
    result,
    stacked_panel,
    sweep_panel,
    table_panel,
)

TEXT = "{http://www.w3.org/2000/svg}text"
ROOT = Path(__file__).resolve().parents[2]


def texts(svg: str) -> list[str]:
    return ["".join(node.itertext()) for node in ET.fromstring(svg).iter(TEXT)]


def shown(panel: Panel) -> str:
    return inline_svg(panel, "p", "label")


def test_every_panel_with_a_picture_becomes_an_svg_and_a_png(tmp_path: Path) -> None:
    panels = [sweep_panel(), bars_panel(), stacked_panel(), table_panel(), empty_panel()]
    paths = draw(result(panels=panels), tmp_path / "pictures")
    names = [path.name for path in paths]
    assert names == [
        f"fig-5-1-h200-{key}.{suffix}" for key in ("sweep", "bars", "stages") for suffix in
        ("svg", "png")
    ]  # fmt: skip
    assert all(p.read_bytes().startswith(b"\x89PNG") for p in paths if p.suffix == ".png")
    for path in paths:
        if path.suffix == ".svg":
            ET.fromstring(path.read_text())


def test_a_picture_that_stands_alone_says_what_it_is(tmp_path: Path) -> None:
    found = result(panels=[sweep_panel()], machine_name="epyc", quick=True)
    said = " ".join(texts(draw(found, tmp_path)[0].read_text()))
    for expected in ("Latency against offered load", "epyc", "QUICK RUN", "SCALED SIZES"):
        assert expected in said


def test_lines_have_the_systems_colours_and_a_legend() -> None:
    svg = shown(sweep_panel())
    for system in ("dandelion sequential", "dedicated"):
        assert system in texts(svg)
        assert style_of(system).colour in svg
    assert "p99 latency" in texts(svg)
    assert "100/s" in texts(svg)


def test_points_with_a_note_or_errors_are_marked() -> None:
    def is_marked(note: str, errors: int) -> bool:
        row = Row("a", 1.0, {"p50": 1.0}, note=note, errors=errors)
        labels = texts(shown(Panel("k", "t", Axis("x"), (P50,), (row,))))
        return "with a note, see the table" in labels

    assert is_marked("client was the bottleneck", 0)
    assert is_marked("", 1)
    assert not is_marked("", 0)


def test_bars_are_annotated_with_their_values() -> None:
    labels = texts(shown(bars_panel()))
    assert "130 µs · 351 µs" in labels
    assert labels.count("dandelion wasm") == 3
    assert {"paced, 50/s", "back to back", "empty pool"} <= set(labels)


def test_stages_have_totals_and_a_legend() -> None:
    labels = texts(shown(stacked_panel()))
    assert {"7.54 ms", "467 µs", "416 µs", "load", "compile", "6.2 ms"} <= set(labels)


def test_metrics_that_are_not_drawn_and_values_that_are_missing_leave_no_trace() -> None:
    hidden = Metric("p99", "hidden metric", Unit.US, drawn=False)
    rows = (Row("a", 1.0, {"p50": 1.0, "p99": 7.0}), Row("a", 2.0, {"p99": 7.0}), Row("b", 1.0, {}))
    panel = Panel("k", "t", Axis("x"), (P50, hidden), rows)
    labels = texts(shown(panel))
    assert "a" in labels
    assert "b" not in labels
    assert "hidden metric" not in labels


@pytest.mark.parametrize("look", Plot)
@pytest.mark.parametrize("logarithmic", [True, False])
def test_odd_values_are_drawn_or_left_out_but_never_fail(look: Plot, *, logarithmic: bool) -> None:
    metric = Metric("p50", "median", Unit.US, logarithmic=logarithmic)
    values = [1e-300, 1e300, float("nan"), float("inf"), -5.0, 0.0, 1e-9, 1e15]
    axis = Axis("x", Unit.BYTES, logarithmic=logarithmic)
    for some, x in ((values, None), (values[4:5], 1.0), (values[5:6], "a"), ([3.0, 3.0], "a")):
        rows = tuple(
            Row(f"system {i % 2}", float(i) if x is None else x, {"p50": value})
            for i, value in enumerate(some)
        )
        svg = shown(Panel("k", "t", axis, (metric,), rows, look))
        assert not svg or ET.fromstring(svg) is not None
    assert bool(svg) is (look is not Plot.TABLE)


@pytest.mark.parametrize("look", Plot)
def test_hostile_names_stay_text(look: Plot) -> None:
    panel = hostile_panel(look)
    rows = (*panel.rows, Row("<script>alert(1)</script>$x^2$\x00", "<b>", {"p50": 5.0, "p99": 6.0}))
    svg = shown(msgspec.structs.replace(panel, rows=rows))
    if look is Plot.TABLE:
        assert not svg
        return
    assert "<script" not in svg
    assert "\x00" not in svg
    assert any("<script>" in text for text in texts(svg))


def test_hostile_names_stay_in_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    for path in draw(hostile_result(), folder):
        assert path.parent == folder
        assert path.exists()
    assert list(tmp_path.iterdir()) == [folder]


def test_the_same_result_gives_the_same_bytes_in_any_process(tmp_path: Path) -> None:
    found = result(panels=[sweep_panel(), stacked_panel()])
    here = draw(found, tmp_path / "a")
    saved = tmp_path / "result.json"
    saved.write_bytes(msgspec.json.encode(found))
    program = (
        "import sys, pathlib; from dandelion.bench.records import read_results;"
        "from dandelion.bench.report.plots import draw;"
        "draw(read_results(pathlib.Path(sys.argv[1]))[0], pathlib.Path(sys.argv[2]));"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run(
        [sys.executable, "-c", program, saved, tmp_path / "b"], cwd=ROOT, check=True, timeout=60
    )
    for path in here:
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes(), path.name


def test_ids_of_two_pictures_in_a_page_differ() -> None:
    def ids(name: str) -> set[str]:
        nodes = ET.fromstring(inline_svg(sweep_panel(), name, "x")).iter()
        return {node.attrib["id"] for node in nodes if "id" in node.attrib}

    assert ids("one")
    assert not ids("one") & ids("two")


def test_drawing_leaves_the_settings_of_matplotlib_alone() -> None:
    keys = [key for key in mpl.rcParams if key != "backend"]  # to read it is to choose one
    before = {key: mpl.rcParams[key] for key in keys}
    shown(stacked_panel())
    assert {key: mpl.rcParams[key] for key in keys} == before


def test_without_matplotlib_the_error_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(BackendUnavailable) as caught:
        draw(result(), tmp_path)
    assert "dandelion-engine[bench]" in caught.value.remedy


def test_a_tail_is_drawn_beside_its_median() -> None:
    rows = (Row("a", "x", {"p50": 10.0, "p99": 400.0}), Row("b", "x", {"p50": 20.0}))
    labels = texts(shown(Panel("k", "t", Axis("way"), (P50, P99), rows, Plot.BARS)))
    assert "10 µs · 400 µs" in labels
    assert "20 µs" in labels
