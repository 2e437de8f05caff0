"""One static page on everything that was measured: summary first, then every experiment.

The page is a single file that asks the network for nothing and runs no script, so it can be mailed,
printed and kept. It shows several machines side by side, under their names: figures of different
machines are never set against each other, only looked at together. The same outcomes give the same
page, byte for byte; all dates in it are of the outcomes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..experiment import GROUPS
from ..records import Outcome
from .markup import Markup, element, joined
from .places import anchor, chosen, places_of
from .sections import group_section
from .summary import summary

__all__ = ["page", "write"]

_TITLE = "Dandelion: what was measured"


def write(outcomes: Sequence[Outcome], path: Path) -> None:
    """Write the report.

    Where matplotlib is not installed, the report has tables only and says so.

    Args:
        outcomes: of any experiments and machines. Of several outcomes of an experiment on one
            machine and backend, the newest full one is shown, or the newest quick one.
        path: of the HTML file; its folder is made if it is not there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(outcomes), encoding="utf-8")


def page(outcomes: Sequence[Outcome]) -> str:
    """Give the report as the text of an HTML file; see `write`."""
    kept = chosen(outcomes)
    groups = [g for g in _groups(kept) if any(o.group == g for o in kept)]
    body = joined([
        element("a", "Skip to the summary", href="#summary", class_="skip-link"),
        element("header", element("h1", _TITLE), element("p", _introduction(kept))),
        _contents(kept, groups),
        element(
            "main",
            summary(kept, left_out=len(outcomes) - len(kept)),
            *(_group(name, kept) for name in groups),
        ),
    ])  # fmt: skip
    wide = "several" if len(places_of(kept)) > 1 else ""
    document = element("html", _head(), "\n", element("body", body, class_=wide), lang="en")
    return f"<!doctype html>\n{document}\n"


def _group(name: str, outcomes: Sequence[Outcome]) -> Markup:
    here = [o for o in outcomes if o.group == name]
    return group_section(name, GROUPS.get(name, ""), here, places_of(outcomes))


def _head() -> Markup:
    style = Path(__file__).with_name("style.css").read_text(encoding="utf-8")
    return Markup(
        '<head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{_TITLE}</title><style>{style}</style></head>"
    )


def _introduction(outcomes: Sequence[Outcome]) -> str:
    if not outcomes:
        return "There are no outcomes yet."
    names = ", ".join(dict.fromkeys(o.machine_name for o in outcomes))
    days = sorted(o.date[:10] for o in outcomes)
    when = days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
    count = len({o.experiment for o in outcomes})
    experiments = "1 experiment" if count == 1 else f"{count} experiments"
    return (
        f"{experiments} on {names}, measured {when}. Within an experiment all systems ran in turns "
        "on one machine; figures of different machines stand side by side only to be looked at."
    )


def _contents(outcomes: Sequence[Outcome], groups: Sequence[str]) -> Markup:
    entries = [element("li", element("a", "Summary", href="#summary"))]
    for group in groups:
        names = dict.fromkeys(o.experiment for o in outcomes if o.group == group)
        links = (element("li", element("a", n, href=f"#{anchor(n)}")) for n in names)
        entries.append(element("li", element("span", group), element("ul", *links)))
    return element("nav", element("ul", *entries), aria_label="Contents")


def _groups(outcomes: Sequence[Outcome]) -> list[str]:
    return list(dict.fromkeys([*GROUPS, *sorted(o.group for o in outcomes)]))
