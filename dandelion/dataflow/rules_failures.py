"""Static rules of the clauses `attempts` and `catch` of an application."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from dandelion.dataflow.graph import Application, AttemptsClause, CatchClause, SourcePosition
from dandelion.dataflow.rules_clauses import SHOWN_LIMIT
from dandelion.dataflow.rules_names import meant, problem, repeated
from dandelion.errors import Problem
from dandelion.failures import ATTEMPTS_LIMIT, KINDS, PAUSE_LIMIT_S

_NOT_OF_AN_INSTANCE = frozenset(
    ("Cancelled", "DeadlineExceeded", "InternalError", "NoEngine", "BackendUnavailable")
)
_SHOWN_S = 1e9  # longer pauses are not written out


def attempts_problems(application: Application, attempts: AttemptsClause) -> Iterator[Problem]:
    """Report the problems of an `attempts` clause."""
    times, place = attempts.times, attempts.place
    if not 1 <= times <= ATTEMPTS_LIMIT:
        said = str(times) if abs(times) < SHOWN_LIMIT else "a number far beyond"
        message = f"an instance of '{application.function}' cannot be run that often"
        rule = f"1 to {ATTEMPTS_LIMIT} attempts"
        yield problem("attempts-range", message, place, expected=rule, found=said)
    if not _is_pause(attempts.backoff_s):
        message = f"'{application.function}' cannot be tried again after this pause"
        rule = f"0 to {PAUSE_LIMIT_S:g} seconds, in whole milliseconds"
        given, short = attempts.backoff_s, f"{attempts.backoff_s:g}"
        said = "far more" if abs(given) >= _SHOWN_S else short
        if abs(given) < _SHOWN_S and float(short) != given:
            said = str(given)
        yield problem("backoff-range", message, place, expected=rule, found=said)
    yield from _kind_problems(attempts.kinds, place)


def catch_problems(catch: CatchClause) -> Iterator[Problem]:
    """Report the problems of a `catch` clause; those of its set are found with all others."""
    return _kind_problems(catch.kinds, catch.place)


def _is_pause(seconds: float) -> bool:
    """Tell whether it is in range, and a number of whole milliseconds."""
    in_range = math.isfinite(seconds) and 0 <= seconds <= PAUSE_LIMIT_S
    return in_range and round(seconds, 3) == seconds


def _kind_problems(kinds: Sequence[str], place: SourcePosition) -> Iterator[Problem]:
    for kind in dict.fromkeys(kinds):
        if kind in _NOT_OF_AN_INSTANCE:
            message = f"'{kind}' is not the error of one instance, so the invocation fails with it"
            yield problem("unknown-kind", message, place, expected=_expected())
        elif kind not in KINDS:
            message = f"there is no kind of error '{kind[:60]}' that can be handled"
            near = meant(kind, KINDS)
            rule = "" if near else _expected()
            yield problem("unknown-kind", message, place, expected=rule, nearest=near)
    for twice in repeated(kinds):
        message = f"the kind of error '{twice[:60]}' is named twice; name it once"
        yield problem("duplicate-kind", message, place)


def _expected() -> str:
    return ", ".join(KINDS)
