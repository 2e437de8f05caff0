"""Mistakes in the declaration of a function: names, sets, limits, batching, secrets."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np

from dandelion.arrays import DTYPES, kind_of
from dandelion.data import FORMS, SetSpec
from dandelion.documents import FunctionDocument, item_content, set_spec
from dandelion.errors import DandelionError, InvalidFunction, InvalidInput, Problem, nearest
from dandelion.function import BATCH_CALLS, Limits
from dandelion.set_values import checked

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}\Z")
LARGEST = 2**53
"""Limit of sizes in bytes, counts and seconds, which every codec can represent."""
_DIMENSIONS = 32
_BATCH_WAIT_S = 10.0
_NO_SECRETS = frozenset({"blueprint"})
"""Formats whose static sets may stay on a device that tenants share."""


def check_declaration(
    where: str, document: FunctionDocument, caps: Limits, secrets: Callable[[], Sequence[str]]
) -> None:
    """Check everything of a function but its code.

    Args:
        where: the place of the function, for errors.
        document: the function.
        caps: the operator's largest limits.
        secrets: lists the names of the tenant's secrets.

    Raises:
        InvalidFunction: all mistakes.
    """
    problems = [
        *_declaration_problems(where, document),
        *_limit_problems(f"{where}: limits", document.limits, caps),
        *_batching_problems(f"{where}: batching", document),
        *_secret_problems(f"{where}: secrets", document, secrets),
    ]
    if problems:
        raise InvalidFunction(tuple(problems))
    _check_static(where, document)


def _declaration_problems(where: str, document: FunctionDocument) -> Iterator[Problem]:
    if not _IDENTIFIER.match(document.name):
        yield Problem("bad-name", f"'{document.name}' is not a valid identifier", where,
                      expected="a letter or _, then letters, digits, _")  # fmt: skip
    for role, sets in (("inputs", document.inputs), ("outputs", document.outputs)):
        seen: set[str] = set()
        for index, given in enumerate(sets):
            place = f"{where}: {role}[{index}]"
            try:
                spec = set_spec(given)
            except DandelionError as error:
                yield Problem("bad-set", str(error), place)
                continue
            yield from _set_problems(place, spec, seen)
            yield from _minimum_problems(place, role, spec)
            seen.add(spec.name)
    inputs = [s.name for s in map(_lenient, document.inputs) if s is not None]
    for name, items in document.static.items():
        if name not in inputs:
            yield Problem("unknown-set", f"static set '{name}' is not an input set",
                          f"{where}: static", nearest=nearest(name, inputs) or "")  # fmt: skip
        elif not items:
            yield Problem("empty-set", f"static set '{name}' has no items", f"{where}: static")
    if not document.code:
        yield Problem("no-code", "there is no code object", f"{where}: code")


def _limit_problems(where: str, limits: Limits, caps: Limits) -> Iterator[Problem]:
    for name, value in msgspec.structs.asdict(limits).items():
        cap = getattr(caps, name)
        if not 0 < value <= LARGEST:  # also false for infinity and not-a-number
            yield Problem("bad-limit", f"{name} is {value}", where,
                          expected=f"> 0, at most {LARGEST}")  # fmt: skip
        elif value > cap and value != getattr(Limits(), name):
            yield Problem("over-cap", f"{name} is {value}", where,
                          expected=f"at most {cap}, the node's setting max_{name}")  # fmt: skip


def _batching_problems(where: str, document: FunctionDocument) -> Iterator[Problem]:
    batching = document.batching
    if batching is None:
        return
    inputs = {s.name: s for s in map(_lenient, document.inputs) if s is not None}
    outputs = [s for s in map(_lenient, document.outputs) if s is not None]
    if not batching.inputs:
        yield Problem("no-set", "no input set is joined", where)
    if not document.outputs:
        yield Problem("no-set", "the function has no output set to be divided", where)
    for name in batching.inputs:
        if name not in inputs:
            yield Problem("unknown-set", f"'{name}' is not an input set", where,
                          nearest=nearest(name, inputs) or "")  # fmt: skip
        elif name in document.static:
            yield Problem("static-set", f"'{name}' is fixed at registration", where)
    joined = [inputs[name] for name in dict.fromkeys(batching.inputs) if name in inputs]
    for spec in [*joined, *outputs]:
        if spec.shape is not None and spec.shape[:1] != (-1,):
            shape = "[" + ", ".join("?" if n == -1 else str(n) for n in spec.shape) + "]"
            yield Problem("bad-shape", f"set '{spec.name}' is declared as {shape}", where,
                          expected="an open first dimension: [?, ...]")  # fmt: skip
        elif spec.shape is None and batching.rows is not None and spec in joined:
            yield Problem("bad-shape", f"set '{spec.name}' declares no shape", where,
                          expected="a shape, such as [?, 3], since rows are counted")  # fmt: skip
    if batching.rows is not None and batching.rows < 1:
        yield Problem("bad-limit", f"rows is {batching.rows}", where,
                      expected="at least 1")  # fmt: skip
    if not 2 <= batching.calls <= BATCH_CALLS:
        yield Problem("bad-limit", f"calls is {batching.calls}", where,
                      expected=f"2 to {BATCH_CALLS}")  # fmt: skip
    if not 0 <= batching.wait_s <= _BATCH_WAIT_S:  # also false for not-a-number
        yield Problem("bad-limit", f"wait_s is {batching.wait_s}", where,
                      expected=f"0 to {_BATCH_WAIT_S} seconds")  # fmt: skip


def _secret_problems(
    where: str, document: FunctionDocument, secrets: Callable[[], Sequence[str]]
) -> Iterator[Problem]:
    if not document.secrets:
        return
    inputs = [s.name for s in map(_lenient, document.inputs) if s is not None]
    known = secrets()
    for set_name, name in document.secrets.items():
        if set_name not in inputs:
            yield Problem("unknown-set", f"'{set_name}' is not an input set", where,
                          nearest=nearest(set_name, inputs) or "")  # fmt: skip
        elif set_name in document.static:
            yield Problem("static-secret", f"set '{set_name}' is also static", where)
        elif name not in known:
            message = f"this tenant has no secret '{name}'"
            listed = ", ".join(known) or (
                "a secret of the file that the setting 'secrets' (DANDELION_SECRETS) names, in the "
                "table of this tenant"
            )
            yield Problem("unknown-secret", message, where, expected=listed,
                          nearest=nearest(name, known) or "")  # fmt: skip
    if document.cache:
        message = "results that depend on a secret are not kept"
        yield Problem("cached-secret", message, where, expected="cache = false")
    for code in document.code:
        if code.format in _NO_SECRETS:
            message = f"functions of the format '{code.format}' get no secrets"
            yield Problem("shared-secret", message, where)


def _check_static(where: str, document: FunctionDocument) -> None:
    """Check static items against the data model and the declaration of their set."""
    for spec in map(set_spec, document.inputs):
        fixed = document.static.get(spec.name, {})
        try:
            checked(spec.name, [item_content(v).item(n) for n, v in fixed.items()], spec)
        except InvalidInput as error:
            problem = Problem("bad-static", str(error), f"{where}: static")
            raise InvalidFunction((problem,)) from None


def _lenient(given: SetSpec | str) -> SetSpec | None:
    try:
        return set_spec(given)
    except DandelionError:
        return None


def _minimum_problems(where: str, role: str, spec: SetSpec) -> Iterator[Problem]:
    if role == "outputs" and spec.min_bytes:
        message = f"output set '{spec.name}' has a minimum; only input sets can have one"
        yield Problem("bad-minimum", message, where)
    elif spec.min_bytes < 0:
        message = f"min_bytes of set '{spec.name}' is {spec.min_bytes}"
        yield Problem("bad-minimum", message, where, expected=">= 0")


def _set_problems(where: str, spec: SetSpec, seen: set[str]) -> Iterator[Problem]:
    if not _IDENTIFIER.match(spec.name):
        yield Problem("bad-name", f"'{spec.name}' is not a valid identifier", where)
    if spec.name in seen:
        yield Problem("duplicate-set", f"set '{spec.name}' is declared twice", where)
    if spec.form not in FORMS:
        yield Problem("bad-form", f"'{spec.form:.40}' is not a form of values", where,
                      expected=", ".join(FORMS[1:]))  # fmt: skip
    if spec.dtype is None:
        if spec.shape is not None:
            yield Problem("bad-shape", "a shape needs a dtype", where)
        return
    try:
        dtype = np.dtype(spec.dtype)
    except (TypeError, ValueError, SyntaxError):  # numpy parses names with a grammar of its own
        yield Problem("bad-dtype", f"'{spec.dtype:.40}' is not a numpy type", where,
                      expected="int64, float32, ...",
                      nearest=nearest(spec.dtype, DTYPES) or "")  # fmt: skip
        return
    if kind_of(dtype) not in "biufc" or not dtype.isnative:
        yield Problem("bad-dtype", f"'{spec.dtype}' is not a native number type", where)
    sizes = spec.shape or ()
    if any(n == 0 or n < -1 for n in sizes) or sum(n == -1 for n in sizes) > 1:
        text = ", ".join("?" if n == -1 else str(n) for n in sizes)
        yield Problem("bad-shape", f"shape [{text}]", where,
                      expected="positive sizes, at most one open ('?', or -1)")  # fmt: skip
    elif len(sizes) > _DIMENSIONS or abs(math.prod(sizes)) * dtype.itemsize > LARGEST:
        yield Problem("bad-shape", "the shape is too large", where,
                      expected=f"at most {_DIMENSIONS} dimensions, {LARGEST} bytes")  # fmt: skip
