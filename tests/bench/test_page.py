"""The page on everything that was measured."""

import itertools
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from dandelion.bench.records import ExperimentResult, Findings
from dandelion.bench.report import html
from dandelion.bench.report.html import page, write_page
from dandelion.bench.report.markup import element, joined

from tests.bench.made_results import (
    bars_panel,
    empty_panel,
    hostile_result,
    result,
    stacked_panel,
    sweep_panel,
    table_panel,
)
from tests.bench.test_names import contrast

VOID = {"meta", "br", "img", "link", "hr", "input"}
LOADS = {"src", "srcset", "data", "action", "poster", "background"}


class Read(HTMLParser):
    """Holds a page against the rules of its elements while it is read."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.targets: list[str] = []
        self.attributes: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        assert len(given) == len(attrs), f"an attribute is given twice: {tag} {attrs}"
        self.tags.append(tag)
        self.attributes.append((tag, given))
        if "id" in given:
            self.ids.append(given["id"])
        self.targets += [v for n, v in given.items() if n in ("href", "xlink:href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def outcomes() -> list[ExperimentResult]:
    every = [sweep_panel(), bars_panel(), stacked_panel(), table_panel(), empty_panel()]
    return [
        result("fig-5-1", every),
        result("fig-5-1", [sweep_panel()], machine_name="epyc-2-cores"),
        result("fig-5-10"),
        result("fig-5-2"),
        result("sandboxes", [bars_panel()], group="sandbox", machine_name="epyc", quick=True),
        hostile_result(),
    ]


@pytest.fixture(scope="module")
def text(outcomes: list[ExperimentResult]) -> str:
    return page(outcomes)


@pytest.fixture(scope="module")
def read(text: str) -> Read:
    return Read(text)


def test_the_page_needs_no_network_and_runs_no_script(text: str, read: Read) -> None:
    assert not {"script", "iframe", "link", "object", "embed", "form", "base"} & set(read.tags)
    for tag, attributes in read.attributes:
        assert not LOADS & attributes.keys(), tag
        assert not [name for name in attributes if name.startswith("on")], tag
    assert all(target.startswith("#") for target in read.targets)
    assert "@import" not in text
    assert all(url.startswith("#") for url in re.findall(r"url\(([^)]*)\)", text))


def test_every_link_leads_somewhere_and_every_id_is_one(read: Read) -> None:
    assert len(read.ids) == len(set(read.ids))
    assert {target[1:] for target in read.targets} <= set(read.ids)
    assert len(read.targets) > 10


def test_pictures_tables_and_headings_can_be_read_without_seeing(read: Read) -> None:
    pictures = [a for tag, a in read.attributes if tag == "svg"]
    assert len(pictures) >= 6
    assert all(p["role"] == "img" and len(p["aria-label"]) > 40 for p in pictures)
    heads = [a for tag, a in read.attributes if tag == "th"]
    assert heads
    assert all(a.get("scope") in ("col", "row") for a in heads)
    assert ("html", {"lang": "en"}) in read.attributes
    levels = [int(tag[1]) for tag in read.tags if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    steps = itertools.pairwise(levels)
    assert all(after - before <= 1 for before, after in steps)


def test_everything_found_is_in_the_page(read: Read) -> None:
    for expected in (
        "hot GPU call, sequential engine, over bare", "<= +25 µs", "+18.2 µs", "pass", "fail",
        "two cores", "A dedicated server has 30 % less latency.", "holds", "does not hold",
        "cannot tell", "one core only", "Ray actors", "pip install ray", "Nothing was measured.",
        "Rates are offered by one generator.", "Xeon 8481C", "EPYC 7B13", "c2feb7e+", "2025-11-20",
        "411 µs", "1.63x", "130 µs (124–139)",
    ):  # fmt: skip
        assert expected in read.text, expected


def test_quick_and_scaled_figures_are_flagged_where_they_stand() -> None:
    panels = [table_panel()]
    full = page([result(panels=panels)])
    quick = page([result(panels=panels, machine_name="epyc", quick=True)])
    assert "QUICK RUN: the figures are only indications." in quick
    assert "SCALED: 64 x 64 instead of 128 x 128, on processors" in quick
    assert quick.count('class="label"') == 2 * 5  # at two budget lines and three claims
    assert 'class="flag"' not in full
    assert 'class="label"' not in full


def test_machines_stand_side_by_side_in_each_experiment(text: str) -> None:
    start = text.index('<section class="experiment" id="experiment-fig-5-1">')
    section = text[start : text.index('<section class="experiment"', start + 1)]
    assert section.count("<article>") == 2
    assert "<h4>epyc-2-cores (opencl)" in section
    assert "<h4>h200 (cuda)" in section


def test_experiments_are_in_the_order_of_groups_and_numbers(read: Read) -> None:
    ids = [i for i in read.ids if i.startswith("experiment-fig")]
    order = [i for i in ids if re.fullmatch(r"experiment-fig-5-\d+", i)]
    assert order == ["experiment-fig-5-1", "experiment-fig-5-2", "experiment-fig-5-10"]
    assert read.ids.index("experiment-sandboxes") < read.ids.index("experiment-fig-5-1")


def test_the_newest_full_result_is_shown_and_the_rest_counted() -> None:
    panels = [table_panel()]
    runs = [
        msgspec.structs.replace(result(panels=panels, quick=quick, date=date), commit=commit)
        for quick, date, commit in (
            (True, "2025-11-22T00:00:00Z", "quickrun"),
            (False, "2025-11-21T00:00:00Z", "newfull"),
            (False, "2025-11-20T00:00:00Z", "oldfull"),
        )
    ]
    for order in (runs, runs[::-1]):
        text = page(order)
        assert "newfull" in text
        assert "oldfull" not in text
        assert "quickrun" not in text
        assert "2 results are not shown" in text


def test_the_page_is_the_same_each_time_and_in_any_order() -> None:
    some = [result(panels=[stacked_panel()]), result("b", [bars_panel()], machine_name="epyc")]
    assert page(some) == page(some) == page(some[::-1])


def test_a_page_of_nothing_is_a_page(tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.html"
    write_page([], path)
    assert "no results" in Read(path.read_text()).text
    skipped = msgspec.structs.replace(result(), found=Findings(()))
    Read(page([skipped]))


def test_without_matplotlib_the_tables_remain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    text = page([result()])
    assert "<svg" not in text
    assert "dandelion-engine[bench]" in text
    assert "411 µs" in text


def test_text_is_escaped_wherever_it_stands() -> None:
    assert element("p", "<b>", title='"<>') == '<p title="&quot;&lt;&gt;">&lt;b&gt;</p>'
    assert joined(["<", element("i", "&")]) == "&lt;<i>&amp;</i>"
    assert element("details", open=True, class_="") == "<details open></details>"


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_the_page_has_contrast_in_light_and_dark(scheme: int) -> None:
    style = (Path(html.__file__).parent / "style.css").read_text()
    block = re.findall(r":root \{(.*?)\}", style, re.DOTALL)[scheme]
    colours = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", block))
    for text in ("ink", "faint", "link", "good", "bad"):
        for back in ("paper", "back"):
            assert contrast(colours[text], colours[back]) >= 4.5, (text, back)
    for text in ("good", "bad", "unknown", "flag"):
        assert contrast(colours[text], colours[f"{text}-back"]) >= 4.5, text
