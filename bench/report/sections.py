"""An experiment in the page: its question, then what each machine found, side by side."""

from __future__ import annotations

from collections.abc import Sequence

from dandelion.errors import BackendUnavailable

from ..plots import inline_svg
from ..records import Look, Outcome, Panel
from ..sheets import Column, sheet_of
from ..tables import warnings_of
from ..units import clean, shortened
from .markup import Markup, element, escaped, joined, table
from .places import anchor, place_of
from .summary import holds_or_not, kept_or_not

_OPEN_ROWS = 12  # a table with more is closed at first


def group_section(
    group: str, question: str, outcomes: Sequence[Outcome], places: Sequence[str]
) -> Markup:
    """Make the section of a group of experiments.

    Args:
        group: its name.
        question: what it asks; may be empty.
        outcomes: of the group, in order; those of one experiment follow each other.
        places: all machines of the page.
    """
    names = list(dict.fromkeys(o.experiment for o in outcomes))
    sections = [
        _experiment([o for o in outcomes if o.experiment == name], places) for name in names
    ]
    asks = element("p", question, class_="asks") if question else ""
    return element("section", element("h2", group or "other"), asks, *sections, class_="group")


def _experiment(outcomes: Sequence[Outcome], places: Sequence[str]) -> Markup:
    first = outcomes[0]
    source = f"Repeats {first.source}. " if first.source else ""
    missing = [p for p in places if p not in {place_of(o) for o in outcomes}]
    absent = f"Not run on {', '.join(missing)}." if missing else ""
    remark = element("p", source, absent, class_="faint") if source or absent else ""
    return element(
        "section",
        element("h3", first.experiment),
        element("p", first.question, class_="question"),
        remark,
        element("div", *(_article(o) for o in outcomes), class_="machines"),
        class_="experiment",
        id=anchor(first.experiment),
    )


def _article(outcome: Outcome) -> Markup:
    backend = f" ({outcome.backend})" if outcome.backend else ""
    panels = (_panel(outcome, panel, i) for i, panel in enumerate(outcome.found.panels))
    origin = f"commit {outcome.commit or 'unknown'}, {outcome.date}, {outcome.duration_s:.1f} s"
    return element(
        "article",
        element("h4", place_of(outcome) + backend, " ", element("small", origin)),
        *(element("p", warning, class_="flag") for warning in warnings_of(outcome)),
        element("div", *panels, class_="panels"),
        _claims(outcome),
        _budgets(outcome),
        _skips(outcome),
        _notes(outcome),
    )


def _panel(outcome: Outcome, panel: Panel, index: int) -> Markup:
    title = panel.title or panel.key
    if not panel.rows:
        caption = element("figcaption", title)
        return element("figure", caption, element("p", "Nothing was measured.", class_="faint"))
    name = f"{anchor(outcome.experiment)}-{anchor(place_of(outcome) + outcome.backend)}-{index}"
    picture = _picture(panel, name)
    return element("figure", element("figcaption", title), picture, _figures(panel, bool(picture)))


def _picture(panel: Panel, name: str) -> Markup:
    try:
        return Markup(inline_svg(panel, name, escaped(_description(panel))))
    except BackendUnavailable as unavailable:
        said = f"No picture: {unavailable.missing}; {unavailable.remedy}."
        return element("p", said, class_="faint") if panel.look is not Look.TABLE else Markup("")


def _description(panel: Panel) -> str:
    looks = {Look.LINES: "Line chart", Look.BARS: "Bar chart", Look.STACKED: "Stacked bars"}
    drawn = ", ".join(clean(m.name) for m in panel.metrics if m.drawn)
    systems = ", ".join(dict.fromkeys(shortened(r.system, 60) for r in panel.rows))
    return (
        f"{looks.get(panel.look, 'Chart')}: {clean(panel.title)}. Shows {drawn} over "
        f"{clean(panel.x.name) or 'systems'} for {systems}. The table below has all figures."
    )


def _figures(panel: Panel, has_picture: bool) -> Markup:
    sheet = sheet_of(panel)
    content = table(sheet.columns, sheet.rows, class_="figures")
    if not has_picture:
        return content
    rows = "1 row" if len(sheet.rows) == 1 else f"{len(sheet.rows)} rows"
    head = element("summary", f"Figures ({rows})")
    return element("details", head, content, open=len(sheet.rows) <= _OPEN_ROWS)


def _claims(outcome: Outcome) -> Markup:
    if not outcome.found.claims:
        return Markup("")
    columns = [Column(t, False) for t in ("the paper says", "measured here", "verdict")]
    rows = [
        [joined([c.says, element("small", c.source)]), c.measured, holds_or_not(c)]
        for c in outcome.found.claims
    ]
    return joined([element("h5", "Claims"), table(columns, rows, class_="words")])


def _budgets(outcome: Outcome) -> Markup:
    if not outcome.found.budgets:
        return Markup("")
    columns = [Column(t, False) for t in ("path", "limit", "measured", "verdict")]
    rows = [
        [joined([b.path, element("small", b.why) if b.why else ""]), b.limit, b.measured,
         kept_or_not(b)]
        for b in outcome.found.budgets
    ]  # fmt: skip
    return joined([element("h5", "Budget"), table(columns, rows, class_="words")])


def _skips(outcome: Outcome) -> Markup:
    if not outcome.found.skips:
        return Markup("")
    items = (
        element("li", element("strong", skip.what), f": {skip.reason}")
        for skip in outcome.found.skips
    )
    return joined([element("h5", "Not measured"), element("ul", *items)])


def _notes(outcome: Outcome) -> Markup:
    if not outcome.found.notes:
        return Markup("")
    items = (element("li", note) for note in outcome.found.notes)
    return joined([element("h5", "Notes"), element("ul", *items)])
