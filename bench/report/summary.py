"""The top of the page: machines, budgets, the papers' claims, and what was not measured."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from ..records import Budget, Claim, ExperimentResult
from .markup import Markup, element, joined, table
from .tables import VERDICTS, Column
from .units import clean

T = TypeVar("T")

_CLASSES = {True: "good", False: "bad", None: "unknown"}
_SIGNS = {True: "✓", False: "✗", None: "?"}


def machines_of(results: Sequence[ExperimentResult]) -> list[str]:
    """Give the names of the machines of results, sorted."""
    return sorted({machine_of(o) for o in results})


def machine_of(result: ExperimentResult) -> str:
    """Give the name of a result's machine."""
    return clean(result.machine_name) or "unnamed machine"


def anchor(name: str) -> str:
    """Give an id for an experiment in the page; different names have different ids."""
    plain = re.sub(r"[^A-Za-z0-9]+", "-", name)[:40].strip("-").lower()
    if plain == name:
        return f"experiment-{plain}"
    return f"experiment-{plain}-{zlib.crc32(name.encode(errors='replace')):08x}"


def verdict(part: Budget | Claim) -> Markup:
    """Make a label that has a word and a sign, not a colour alone."""
    if isinstance(part, Budget):
        holds: bool | None = part.passes
        words = "pass" if part.passes else "fail"
    else:
        holds, words = part.holds, VERDICTS[part.holds]
    sign = element("span", _SIGNS[holds], aria_hidden="true")
    return element("span", sign, " ", words, class_=f"verdict {_CLASSES[holds]}")


def summary(results: Sequence[ExperimentResult], left_out: int) -> Markup:
    """Make the summary of the results on a page, which omits `left_out` older or quick ones."""
    tiles = (_tile(name, [o for o in results if machine_of(o) == name]) for name in
             machines_of(results))  # fmt: skip
    return element(
        "section",
        element("h2", "Summary"),
        element("div", *tiles, class_="tiles"),
        _machines(results),
        _verdicts(results, "Budget", ("path", "limit"), "No experiment here has a budget.",
                  lambda o: o.found.budgets, lambda b: (b.path, b.limit)),
        _verdicts(results, "Claims of the papers", ("the paper says", "source"),
                  "No experiment here repeats a claim of a paper.",
                  lambda o: o.found.claims, lambda c: (c.says, c.source)),
        _not_measured(results),
        _left_out(left_out),
        id="summary",
    )  # fmt: skip


def _tile(name: str, here: Sequence[ExperimentResult]) -> Markup:
    budgets = [b for o in here for b in o.found.budgets]
    claims = [c.holds for o in here for c in o.found.claims]
    quick = sum(o.quick for o in here)
    minutes = sum(o.duration_s for o in here) / 60
    lines = [
        element("h3", name),
        _count(sum(b.passes for b in budgets), len(budgets), "budgets met",
               any(not b.passes for b in budgets)),
        _count(claims.count(True), len(claims), "claims of papers hold", False in claims),
    ]  # fmt: skip
    if False in claims or None in claims:
        others = f"{claims.count(False)} do not, {claims.count(None)} cannot be told here"
        lines.append(element("p", others, class_="faint"))
    lines.append(element("p", f"{len(here)} experiments in {minutes:.1f} min"))
    if quick:
        words = "1 QUICK RUN" if quick == 1 else f"{quick} QUICK RUNS"
        lines.append(element("p", words, class_="flag"))
    return element("div", *lines, class_="tile")


def _count(good: int, of: int, words: str, bad: bool) -> Markup:
    if not of:
        return Markup("")
    number = element("strong", f"{good} of {of}")
    return element("p", number, f" {words}", class_="count part" if bad else "count good")


def _machines(results: Sequence[ExperimentResult]) -> Markup:
    names = machines_of(results)
    facts: dict[str, dict[str, list[str]]] = {}
    for result in results:
        told = {
            **result.machine, "backend": result.backend, "commit": result.commit,
            "measured": result.date[:10],
        }  # fmt: skip
        for key, value in told.items():
            values = facts.setdefault(key, {}).setdefault(machine_of(result), [])
            if value and value not in values:
                values.append(value)
    last = ["backend", "commit", "measured"]
    keys = [k for k in facts if k not in last] + [k for k in last if k in facts]
    rows = [[k, *(", ".join(sorted(facts[k].get(p, []))) for p in names)] for k in keys]
    return joined([element("h3", "Machines"), _wide(["", *names], rows) if rows else ""])


def _verdicts(
    results: Sequence[ExperimentResult], title: str, titles: tuple[str, str], empty: str,
    parts: Callable[[ExperimentResult], Iterable[T]], key: Callable[[T], tuple[str, str]],
) -> Markup:  # fmt: skip
    """Make a table with a line for each key, and a column for each machine."""
    names = machines_of(results)
    lines: dict[tuple[str, str], list[tuple[ExperimentResult, T]]] = {}
    for result in results:
        for part in parts(result):
            lines.setdefault(key(part), []).append((result, part))
    nothing = element("span", "not measured", class_="faint")
    rows = [
        [_link(found[0][0], first), second,
         *(joined(_verdict_cell(o, p) for o, p in found if machine_of(o) == name) or nothing
           for name in names)]
        for (first, second), found in lines.items()
    ]  # fmt: skip
    columns = [*titles, *(f"measured on {n}" if title != "Budget" else n for n in names)]
    return joined([element("h3", title), _wide(columns, rows) if rows else element("p", empty)])


def _verdict_cell(result: ExperimentResult, part: object) -> Markup:
    assert isinstance(part, Budget | Claim)
    labels = [word for word, so in (("quick", result.quick), ("scaled", result.found.scaled)) if so]
    marks = joined(element("span", label, class_="label") for label in labels)
    why = element("small", part.why) if isinstance(part, Budget) and part.why else ""
    return element("div", verdict(part), " ", part.measured, marks, why)


def _not_measured(results: Sequence[ExperimentResult]) -> Markup:
    rows = [
        [_link(o, o.experiment), machine_of(o), skip.what, skip.reason]
        for o in results
        for skip in o.found.skips
    ]
    if not rows:
        return Markup("")
    columns = [Column(title) for title in ("experiment", "machine", "what", "why")]
    head = element("summary", f"{len(rows)} things were not measured")
    return element("details", head, table(columns, rows), class_="skips")


def _left_out(count: int) -> Markup:
    if not count:
        return Markup("")
    runs = "1 result is" if count == 1 else f"{count} results are"
    return element("p", f"{runs} not shown, since a newer or a full one of the same is.")


def _link(result: ExperimentResult, text: str) -> Markup:
    return element("a", text or "unnamed", href=f"#{anchor(result.experiment)}")


def _wide(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Markup:
    return table([Column(clean(title)) for title in titles], rows, class_="wide")
