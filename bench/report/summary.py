"""The first page: machines, the budget line by line, the papers' claims, what was not measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from ..records import Budget, Claim, Outcome
from ..sheets import Column
from ..tables import VERDICTS
from ..units import clean
from .markup import Markup, element, joined, table
from .places import anchor, place_of, places_of

T = TypeVar("T")

_CLASSES = {True: "good", False: "bad", None: "unknown"}
_SIGNS = {True: "✓", False: "✗", None: "?"}


def summary(outcomes: Sequence[Outcome], left_out: int) -> Markup:
    """Make the summary.

    Args:
        outcomes: that the page shows.
        left_out: how many older or quick ones it does not show.
    """
    return element(
        "section",
        element("h2", "Summary"),
        _tiles(outcomes),
        _machines(outcomes),
        _budgets(outcomes),
        _claims(outcomes),
        _not_measured(outcomes),
        _left_out(left_out),
        id="summary",
    )


def verdict(holds: bool | None, words: str) -> Markup:
    """Make a label that says by word and sign, not by colour alone, how something ended."""
    sign = element("span", _SIGNS[holds], aria_hidden="true")
    return element("span", sign, " ", words, class_=f"verdict {_CLASSES[holds]}")


def kept_or_not(budget: Budget) -> Markup:
    """Label a line of the budget."""
    return verdict(budget.passes, "pass" if budget.passes else "fail")


def holds_or_not(claim: Claim) -> Markup:
    """Label a claim."""
    return verdict(claim.holds, VERDICTS[claim.holds])


def _tiles(outcomes: Sequence[Outcome]) -> Markup:
    tiles = []
    for place in places_of(outcomes):
        here = [o for o in outcomes if place_of(o) == place]
        budgets = [b for o in here for b in o.found.budgets]
        claims = [c.holds for o in here for c in o.found.claims]
        quick = sum(o.quick for o in here)
        kept = sum(b.passes for b in budgets)
        minutes = sum(o.duration_s for o in here) / 60
        lines = [
            element("h3", place),
            _count(kept, len(budgets), "lines of the budget kept", len(budgets) - kept),
            _count(claims.count(True), len(claims), "claims of papers hold", claims.count(False)),
            element("p", f"{len(here)} experiments in {minutes:.1f} min"),
        ]  # fmt: skip
        if claims.count(False) or claims.count(None):
            others = f"{claims.count(False)} do not, {claims.count(None)} cannot be told here"
            lines.insert(3, element("p", others, class_="faint"))
        if quick:
            words = "1 QUICK RUN" if quick == 1 else f"{quick} QUICK RUNS"
            lines.append(element("p", words, class_="flag"))
        tiles.append(element("div", *lines, class_="tile"))
    return element("div", *tiles, class_="tiles")


def _count(good: int, of: int, words: str, bad: int) -> Markup:
    if not of:
        return Markup("")
    number = element("strong", f"{good} of {of}")
    return element("p", number, f" {words}", class_="count part" if bad else "count good")


def _machines(outcomes: Sequence[Outcome]) -> Markup:
    places = places_of(outcomes)
    facts: dict[str, dict[str, list[str]]] = {}
    for outcome in outcomes:
        told = {
            **outcome.machine,
            "backend": outcome.backend,
            "commit": outcome.commit,
            "measured": outcome.date[:10],
        }
        for key, value in told.items():
            values = facts.setdefault(key, {}).setdefault(place_of(outcome), [])
            if value and value not in values:
                values.append(value)
    last = ["backend", "commit", "measured"]
    keys = [k for k in facts if k not in last] + [k for k in last if k in facts]
    rows = [[k, *(", ".join(sorted(facts[k].get(p, []))) for p in places)] for k in keys]
    return _titled("Machines", _by_place(["", *places], rows) if rows else "")


def _budgets(outcomes: Sequence[Outcome]) -> Markup:
    places = places_of(outcomes)
    lines = _gathered(outcomes, lambda o: o.found.budgets, lambda b: (b.path, b.limit))
    rows = [
        [_link(found[0][0], path), limit, *_cells(found, places, _budget_cell)]
        for (path, limit), found in lines.items()
    ]
    empty = element("p", "No experiment here has a line of the budget.")
    return _titled("Budget", _by_place(["path", "limit", *places], rows) if rows else empty)


def _claims(outcomes: Sequence[Outcome]) -> Markup:
    places = places_of(outcomes)
    lines = _gathered(outcomes, lambda o: o.found.claims, lambda c: (c.source, c.says))
    rows = [
        [_link(found[0][0], says), source, *_cells(found, places, _claim_cell)]
        for (source, says), found in lines.items()
    ]
    empty = element("p", "No experiment here repeats a claim of a paper.")
    titles = ["the paper says", "source", *(f"measured on {p}" for p in places)]
    return _titled("Claims of the papers", _by_place(titles, rows) if rows else empty)


def _budget_cell(outcome: Outcome, budget: Budget) -> Markup:
    why = element("small", budget.why) if budget.why else ""
    return element("div", kept_or_not(budget), " ", budget.measured, _labels(outcome), why)


def _claim_cell(outcome: Outcome, claim: Claim) -> Markup:
    return element("div", holds_or_not(claim), " ", claim.measured, _labels(outcome))


def _labels(outcome: Outcome) -> Markup:
    labels = [word for word, is_so in (("quick", outcome.quick), ("scaled", outcome.found.scaled))
              if is_so]  # fmt: skip
    return joined(element("span", label, class_="label") for label in labels)


def _not_measured(outcomes: Sequence[Outcome]) -> Markup:
    rows = [
        [_link(o, o.experiment), place_of(o), skip.what, skip.reason]
        for o in outcomes
        for skip in o.found.skips
    ]
    if not rows:
        return Markup("")
    titles = ("experiment", "machine", "what", "why")
    columns = [Column(title, False) for title in titles]
    head = element("summary", f"{len(rows)} things were not measured")
    return element("details", head, table(columns, rows), class_="skips")


def _left_out(count: int) -> Markup:
    if not count:
        return Markup("")
    runs = "1 outcome is" if count == 1 else f"{count} outcomes are"
    return element("p", f"{runs} not shown, since a newer or a full one of the same is.")


def _gathered(
    outcomes: Sequence[Outcome],
    parts: Callable[[Outcome], Iterable[T]],
    key: Callable[[T], tuple[str, str]],
) -> dict[tuple[str, str], list[tuple[Outcome, T]]]:
    lines: dict[tuple[str, str], list[tuple[Outcome, T]]] = {}
    for outcome in outcomes:
        for part in parts(outcome):
            lines.setdefault(key(part), []).append((outcome, part))
    return lines


def _cells(
    found: Sequence[tuple[Outcome, T]],
    places: Sequence[str],
    cell: Callable[[Outcome, T], Markup],
) -> list[Markup]:
    nothing = element("span", "not measured", class_="faint")
    return [
        joined(cell(o, part) for o, part in found if place_of(o) == place) or nothing
        for place in places
    ]


def _link(outcome: Outcome, text: str) -> Markup:
    return element("a", text or "unnamed", href=f"#{anchor(outcome.experiment)}")


def _titled(title: str, content: str) -> Markup:
    return joined([element("h3", title), content])


def _by_place(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Markup:
    return table([Column(clean(title), False) for title in titles], rows, class_="wide")
