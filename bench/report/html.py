"""One static page with everything that was measured: a summary, then every experiment.

The page is a single file without network access and scripts, so it can be mailed, printed and
archived. Several machines stand side by side and are never compared with each other. The same
results give the same page, byte for byte; all dates in it are those of the results.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from dandelion.errors import BackendUnavailable

from ..experiment import GROUPS
from ..records import ExperimentResult, Findings, Panel, Plot
from .markup import Markup, element, escaped, joined, table
from .plots import inline_svg
from .summary import anchor, machine_of, machines_of, summary, verdict
from .tables import Column, table_of, warnings_of
from .units import clean, shortened

_TITLE = "Dandelion: what was measured"
_OPEN_ROWS = 12  # a table with more is closed at first


def write_page(results: Sequence[ExperimentResult], path: Path) -> None:
    """Write the report; without matplotlib it has tables only and says so.

    Args:
        results: of any experiments and machines. Of several results of an experiment on one machine
            and backend, the newest full one is shown, or the newest quick one.
        path: of the HTML file; its folder is made if it is not there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(results), encoding="utf-8")


def page(results: Sequence[ExperimentResult]) -> str:
    """Give the report as the text of an HTML file; see `write_page`."""
    shown = _newest(results)
    names = dict.fromkeys([*GROUPS, *sorted(o.group for o in shown)])
    groups = [g for g in names if any(o.group == g for o in shown)]
    body = joined([
        element("a", "Skip to the summary", href="#summary", class_="skip-link"),
        element("header", element("h1", _TITLE), element("p", _introduction(shown))),
        _contents(shown, groups),
        element("main", summary(shown, left_out=len(results) - len(shown)),
                *(_group(name, shown) for name in groups)),
    ])  # fmt: skip
    wide = "several" if len(machines_of(shown)) > 1 else ""
    document = element("html", _head(), "\n", element("body", body, class_=wide), lang="en")
    return f"<!doctype html>\n{document}\n"


def _newest(results: Sequence[ExperimentResult]) -> list[ExperimentResult]:
    """Give one result of each experiment, machine and backend, in the order of experiments."""
    best: dict[tuple[str, str, str], ExperimentResult] = {}
    for result in sorted(results, key=lambda o: (not o.quick, o.date)):
        best[result.experiment, result.machine_name, result.backend] = result
    ordered = sorted(best.values(), key=lambda o: (o.machine_name, o.backend))
    return sorted(ordered, key=lambda o: _natural(o.experiment))


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """Order names by the numbers in them: fig-5-2 before fig-5-10."""
    parts = re.findall(r"\d+|\D+", name)
    digits = [p.isascii() and p.isdigit() for p in parts]
    return [(d, int(p[:18]) if d else 0, p) for d, p in zip(digits, parts, strict=True)]


def _head() -> Markup:
    style = Path(__file__).with_name("style.css").read_text(encoding="utf-8")
    return Markup(
        '<head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{_TITLE}</title><style>{style}</style></head>"
    )


def _introduction(results: Sequence[ExperimentResult]) -> str:
    if not results:
        return "There are no results yet."
    names = ", ".join(dict.fromkeys(o.machine_name for o in results))
    days = sorted(o.date[:10] for o in results)
    when = days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
    count = len({o.experiment for o in results})
    experiments = "1 experiment" if count == 1 else f"{count} experiments"
    return (
        f"{experiments} on {names}, measured {when}. Within an experiment all systems ran in turns "
        "on one machine; values of different machines stand side by side, but cannot be compared."
    )


def _contents(results: Sequence[ExperimentResult], groups: Sequence[str]) -> Markup:
    entries = [element("li", element("a", "Summary", href="#summary"))]
    for group in groups:
        names = dict.fromkeys(o.experiment for o in results if o.group == group)
        links = (element("li", element("a", n, href=f"#{anchor(n)}")) for n in names)
        entries.append(element("li", element("span", group), element("ul", *links)))
    return element("nav", element("ul", *entries), aria_label="Contents")


def _group(name: str, results: Sequence[ExperimentResult]) -> Markup:
    """Make the section of a group of experiments."""
    here = [o for o in results if o.group == name]
    question = GROUPS.get(name, "")
    sections = [
        _experiment([o for o in here if o.experiment == experiment], machines_of(results))
        for experiment in dict.fromkeys(o.experiment for o in here)
    ]
    asks = element("p", question, class_="asks") if question else ""
    return element("section", element("h2", name or "other"), asks, *sections, class_="group")


def _experiment(results: Sequence[ExperimentResult], machines: Sequence[str]) -> Markup:
    """Make the section of an experiment: its question, then each machine's result."""
    first = results[0]
    source = f"Repeats {first.source}. " if first.source else ""
    missing = [m for m in machines if m not in {machine_of(o) for o in results}]
    absent = f"Not run on {', '.join(missing)}." if missing else ""
    return element(
        "section",
        element("h3", first.experiment),
        element("p", first.question, class_="question"),
        element("p", source, absent, class_="faint") if source or absent else "",
        element("div", *(_article(o) for o in results), class_="machines"),
        class_="experiment",
        id=anchor(first.experiment),
    )


def _article(result: ExperimentResult) -> Markup:
    backend = f" ({result.backend})" if result.backend else ""
    panels = (_panel(result, panel, i) for i, panel in enumerate(result.found.panels))
    origin = f"commit {result.commit or 'unknown'}, {result.date}, {result.duration_s:.1f} s"
    return element(
        "article",
        element("h4", machine_of(result) + backend, " ", element("small", origin)),
        *(element("p", warning, class_="flag") for warning in warnings_of(result)),
        element("div", *panels, class_="panels"),
        *_verdicts(result.found),
    )


def _panel(result: ExperimentResult, panel: Panel, index: int) -> Markup:
    caption = element("figcaption", panel.title or panel.key)
    if not panel.rows:
        return element("figure", caption, element("p", "Nothing was measured.", class_="faint"))
    name = f"{anchor(result.experiment)}-{anchor(machine_of(result) + result.backend)}-{index}"
    picture = _picture(panel, name)
    cells = table_of(panel)
    content = table(cells.columns, cells.rows, class_="figures")
    if picture:
        rows = "1 row" if len(cells.rows) == 1 else f"{len(cells.rows)} rows"
        head = element("summary", f"Figures ({rows})")
        content = element("details", head, content, open=len(cells.rows) <= _OPEN_ROWS)
    return element("figure", caption, picture, content)


def _picture(panel: Panel, name: str) -> Markup:
    looks = {Plot.LINES: "Line chart", Plot.BARS: "Bar chart", Plot.STACKED: "Stacked bars"}
    drawn = ", ".join(clean(m.name) for m in panel.metrics if m.drawn)
    systems = ", ".join(dict.fromkeys(shortened(r.system, 60) for r in panel.rows))
    label = (
        f"{looks.get(panel.look, 'Chart')}: {clean(panel.title)}. Shows {drawn} over "
        f"{clean(panel.x.name) or 'systems'} for {systems}. The table below has all figures."
    )
    try:
        return Markup(inline_svg(panel, name, escaped(label)))
    except BackendUnavailable as unavailable:
        reason = f"No picture: {unavailable.missing}; {unavailable.remedy}."
        return element("p", reason, class_="faint") if panel.look is not Plot.TABLE else Markup("")


def _verdicts(found: Findings) -> list[Markup]:
    """Make the claims, budgets, skips and notes of a result."""
    claims = [
        [joined([c.says, element("small", c.source)]), c.measured, verdict(c)] for c in found.claims
    ]
    budgets = [
        [
            joined([b.path, element("small", b.why) if b.why else ""]),
            b.limit,
            b.measured,
            verdict(b),
        ]
        for b in found.budgets
    ]
    skips = [element("li", element("strong", s.what), f": {s.reason}") for s in found.skips]
    parts = []
    for title, titles, rows in (
        ("Claims", ("the paper says", "measured here", "verdict"), claims),
        ("Budget", ("path", "limit", "measured", "verdict"), budgets),
    ):
        if rows:
            parts += [element("h5", title), table(map(Column, titles), rows, class_="words")]
    for title, items in (
        ("Not measured", skips),
        ("Notes", [element("li", note) for note in found.notes]),
    ):
        if items:
            parts += [element("h5", title), element("ul", *items)]
    return parts
