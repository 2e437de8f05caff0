"""Compositions compiled for execution: names become small integers.

A `CompositionPlan` is immutable and shared by all invocations of a version. Sets have ids; for each
set the plan lists the applications that wait for it. A nested composition is a plan in a plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, Union

from dandelion.data import ItemSet, SetSpec
from dandelion.dataflow.graph import (
    Application,
    AttemptsClause,
    CatchClause,
    Composition,
    RepeatClause,
    Sharding,
    application_ids,
)
from dandelion.dataflow.sharding import Group, groups_of
from dandelion.errors import DandelionError
from dandelion.failures import Kinds, Purity, kinds_of, may_succeed
from dandelion.function import FunctionSpec

_ORIGINS = (Sharding.EACH, Sharding.KEYED)

Target: TypeAlias = Union[FunctionSpec, "CompositionPlan"]
"""The function or composition of an application."""


@dataclass(frozen=True, slots=True, eq=False)
class RepeatPlan:
    """How an application is repeated, by numbers.

    Attributes:
        times: largest number of iterations.
        until: position of the output whose absence ends the loop, or None.
        feedback: pairs of positions: an input, and the output that replaces it.
        dropped: ids of the sets that only the first iteration needs.
    """

    times: int
    until: int | None
    feedback: tuple[tuple[int, int], ...]
    dropped: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class FailurePlan:
    """What becomes of the instances of an application that fail.

    Attributes:
        attempts: how often an instance is run in total.
        backoff_s: pause after the first attempt, in seconds.
        retried: classes of errors after which it is run again; None for those that are safe.
        purity: of the target.
        errors: id of the errors set, if failures are caught.
        caught: classes of errors that are caught.
    """

    attempts: int
    backoff_s: float
    retried: Kinds | None
    purity: Purity
    errors: int | None
    caught: Kinds

    def tries_again(self, error: DandelionError, attempt: int) -> bool:
        """Tell whether an instance is run again.

        Args:
            error: the first one of its failure.
            attempt: which attempt failed, from 1.
        """
        if attempt >= self.attempts:
            return False
        if self.retried is None:
            return may_succeed(error, self.purity)
        return isinstance(error, self.retried)


@dataclass(frozen=True, slots=True, eq=False)
class ApplicationPlan:
    """One application, by numbers.

    Attributes:
        id: name for errors and traces, unique within the composition.
        index: position within the composition.
        target: the function or the nested composition.
        sources: for each input set of the target the id of the bound set, or None.
        required: positions whose absence skips the application.
        groups: the sharding, see `dandelion.dataflow.sharding`.
        produced: for each output set of the target the id of the set it becomes, or None.
        needs: ids of the distinct sets that must be known before it can run.
        waits: the number of these sets.
        kept_sets: those that it needs until its last iteration has merged.
        output_names: names of the target's outputs.
        formats: formats of a function's code objects, best first; empty for a composition.
        is_single: every bound set is sharded ``all``, so there is one instance.
        repeat: how it is repeated, if it is.
        origins: positions of the sets that instances are made for: those sharded ``each``, then
            those sharded ``keyed``, with whether it is ``each``.
        parts: what is run in place of a function that was made of several, if it fails or if one
            of its sets is absent. Its inputs are `part_inputs`.
        part_inputs: for each input of `parts` the position of that set.
        failures: how failed instances are handled; None if the invocation fails with them.
    """

    id: str
    index: int
    target: Target
    sources: tuple[int | None, ...]
    required: tuple[int, ...]
    groups: tuple[Group, ...]
    produced: tuple[int | None, ...]
    needs: tuple[int, ...]
    waits: int
    kept_sets: tuple[int, ...]
    output_names: tuple[str, ...]
    formats: tuple[str, ...]
    is_single: bool
    repeat: RepeatPlan | None = None
    origins: tuple[tuple[int, bool], ...] = ()
    parts: CompositionPlan | None = None
    part_inputs: tuple[int, ...] = ()
    failures: FailurePlan | None = None

    def shares_out(self, at: int) -> bool:
        """Tell whether each instance gets a part of the set at a position."""
        sharded = (group for group in self.groups if group.sharding is not Sharding.ALL)
        return any(at in group.positions for group in sharded)


@dataclass(frozen=True, slots=True, eq=False)
class CompositionPlan:
    """A composition, by numbers.

    Attributes:
        name: of the composition.
        inputs: declared input sets; set id i is input i.
        output_names: names of the output sets.
        outputs: ids of the output sets.
        set_count: number of set ids.
        applications: in the order of the text.
        consumers: for each set id the applications that wait for it, the last one first.
        uses: for each set id the number of its consumers, and one more if it is an output.
        readers: for each input set the formats of the functions that take all of it unchanged.
        is_call: made for a call of one function by its name.
        output_forms: forms of the outputs, see `SetSpec`; empty if none has one.
        is_pure: it applies compute functions only, also in its compositions.
    """

    name: str
    inputs: tuple[SetSpec, ...]
    output_names: tuple[str, ...]
    outputs: tuple[int, ...]
    set_count: int
    applications: tuple[ApplicationPlan, ...]
    consumers: tuple[tuple[int, ...], ...]
    uses: tuple[int, ...]
    readers: tuple[frozenset[str], ...]
    is_call: bool = False
    output_forms: tuple[str, ...] = ()
    is_pure: bool = True

    def named(self, outputs: Sequence[ItemSet | None]) -> dict[str, ItemSet | None]:
        """Return the output sets of an invocation by name, with their forms."""
        if self.output_forms:
            pairs = zip(outputs, self.output_forms, strict=True)
            outputs = [s and s.with_form(form) for s, form in pairs]
        return dict(zip(self.output_names, outputs, strict=True))


def compile_composition(
    composition: Composition,
    find: Callable[[str], Target],
    names: Sequence[str] = (),
    parts: Sequence[CompositionPlan | None] = (),
) -> CompositionPlan:
    """Compile a valid composition.

    Args:
        composition: it has passed `dandelion.dataflow.validate`.
        find: returns the function or the compiled composition of a name.
        names: of its applications; by default those of `application_ids`.
        parts: of each application, see `ApplicationPlan.parts`; by default none has any.
    """
    ids: dict[str, int] = {}
    for name in (*composition.inputs, *composition.outputs):
        ids.setdefault(name, len(ids))
    for application in composition.applications:
        for target, _ in application.targets():
            ids.setdefault(target, len(ids))
    applications = tuple(
        _with_parts(
            _compile_application(index, name, application, find(application.function), ids),
            application,
            parts[index] if parts else None,
        )
        for index, (name, application) in enumerate(
            zip(names or application_ids(composition), composition.applications, strict=True)
        )
    )
    consumers: list[list[int]] = [[] for _ in ids]
    for plan in applications:
        for set_id in plan.needs:
            consumers[set_id].append(plan.index)
    outputs = tuple(ids[name] for name in composition.outputs)
    return CompositionPlan(
        composition.name,
        tuple(_input_spec(name, ids[name], applications) for name in composition.inputs),
        composition.outputs,
        outputs,
        len(ids),
        applications,
        tuple(tuple(reversed(c)) for c in consumers),
        tuple(len(c) + (at in outputs) for at, c in enumerate(consumers)),
        tuple(_readers(set_id, applications) for set_id in range(len(composition.inputs))),
        output_forms=_output_forms(outputs, applications),
        is_pure=all(_purity(plan.target) is Purity.PURE for plan in applications),
    )


def direct_plan(function: FunctionSpec) -> CompositionPlan:
    """Make the plan for a call of a function by name: all its sets, no sharding, one instance."""
    given = [s for s in function.inputs if s.name not in function.fixed]
    ids = {s.name: at for at, s in enumerate(given)}
    sources = tuple(ids.get(s.name) for s in function.inputs)
    outputs = tuple(range(len(given), len(given) + len(function.outputs)))
    shardings = [None if source is None else Sharding.ALL for source in sources]
    application = ApplicationPlan(
        function.name,
        0,
        function,
        sources,
        (),
        groups_of(shardings),
        outputs,
        tuple(range(len(given))),
        len(given),
        tuple(range(len(given))),
        function.output_names,
        _formats(function),
        True,
    )
    set_count = len(given) + len(outputs)
    return CompositionPlan(
        function.name,
        tuple(given),
        function.output_names,
        outputs,
        set_count,
        (application,),
        tuple((0,) if i < len(given) else () for i in range(set_count)),
        (1,) * set_count,
        (frozenset(application.formats),) * len(given),
        is_call=True,
        output_forms=_output_forms(outputs, (application,)),
    )


def _output_forms(
    outputs: Sequence[int], applications: Sequence[ApplicationPlan]
) -> tuple[str, ...]:
    """Return the forms of outputs, as their producers declare them.

    Several instances give several items, so the form of a set is then that of several values.
    """
    forms: dict[int, str] = {}
    for application in applications:
        target = application.target
        if isinstance(target, FunctionSpec):
            declared: Sequence[str] = [s.form for s in target.outputs]
        else:
            declared = target.output_forms or [""] * len(target.outputs)
        for set_id, form in zip(application.produced, declared, strict=True):
            if set_id is not None and (form or not application.is_single):
                forms[set_id] = form if application.is_single else _form_of_several(form)
        failures = application.failures
        if failures is not None and failures.errors is not None:
            forms[failures.errors] = "json" if application.is_single else "json[]"
    return tuple(forms.get(set_id, "") for set_id in outputs) if forms else ()


def _form_of_several(form: str) -> str:
    """Return the form of a set with several values, each of which is of a form."""
    return form if form.endswith("[]") else f"{form}[]"


def _readers(set_id: int, applications: Sequence[ApplicationPlan]) -> frozenset[str]:
    found: set[str] = set()
    for application in (a for a in applications if a.is_single):
        found.update(application.formats if set_id in application.sources else ())
        if isinstance(application.target, CompositionPlan):
            inside = zip(application.sources, application.target.readers, strict=True)
            found.update(*(readers for source, readers in inside if source == set_id))
    return frozenset(found)


def _formats(target: Target) -> tuple[str, ...]:
    return tuple(c.format for c in target.code) if isinstance(target, FunctionSpec) else ()


def _compile_application(
    index: int, name: str, application: Application, target: Target, ids: dict[str, int]
) -> ApplicationPlan:
    inputs = tuple(s.name for s in target.inputs)
    outputs = target.output_names
    bound = {binding.parameter: binding for binding in application.bindings}
    sources = tuple(ids[bound[p].source] if p in bound else None for p in inputs)
    shardings = [bound[p].sharding if p in bound else None for p in inputs]
    join = application.join
    joined: Sequence[int] = [inputs.index(p) for p in join.order] if join is not None else ()
    strategies = join.strategies if join is not None else ()
    minima = tuple(s.min_bytes for s in target.inputs)
    needs = tuple(sorted({s for s in sources if s is not None}))
    repeat = _compile_repeat(application.repeat, inputs, outputs)
    fed = {parameter for parameter, _ in repeat.feedback} if repeat else set()
    kept_sets = tuple(
        sorted({s for at, s in enumerate(sources) if s is not None and at not in fed})
    )
    if repeat is not None:
        repeat = replace(repeat, dropped=tuple(s for s in needs if s not in kept_sets))
    produced = {returned.output: ids[returned.target] for returned in application.returns}
    return ApplicationPlan(
        name,
        index,
        target,
        sources,
        tuple(at for at, p in enumerate(inputs) if p in bound and not bound[p].optional),
        groups_of(shardings, joined if strategies else (), strategies, minima),
        tuple(produced.get(name) for name in outputs),
        needs,
        len(needs),
        kept_sets,
        outputs,
        _formats(target),
        all(s in (None, Sharding.ALL) for s in shardings),
        repeat,
        tuple((at, s is Sharding.EACH) for s in _ORIGINS for at in _at(shardings, s)),
        failures=_compile_failures(application.attempts, application.catch, target, ids),
    )


def _with_parts(
    plan: ApplicationPlan, application: Application, parts: CompositionPlan | None
) -> ApplicationPlan:
    if parts is None:
        return plan
    sources = [b.source for b in application.bindings]
    inputs = tuple(sources.index(declared.name) for declared in parts.inputs)
    return replace(plan, parts=parts, part_inputs=inputs)


def _at(shardings: Sequence[Sharding | None], wanted: Sharding) -> list[int]:
    return [at for at, sharding in enumerate(shardings) if sharding is wanted]


def _compile_repeat(
    repeat: RepeatClause | None, inputs: Sequence[str], outputs: Sequence[str]
) -> RepeatPlan | None:
    if repeat is None:
        return None
    until = None if repeat.until is None else outputs.index(repeat.until)
    feedback = [(inputs.index(f.parameter), outputs.index(f.output)) for f in repeat.feedback]
    return RepeatPlan(repeat.times, until, tuple(feedback), ())


def _compile_failures(
    attempts: AttemptsClause | None,
    catch: CatchClause | None,
    target: Target,
    ids: dict[str, int],
) -> FailurePlan | None:
    if attempts is None and catch is None:
        return None
    retried = kinds_of(attempts.kinds) if attempts is not None and attempts.kinds else None
    return FailurePlan(
        1 if attempts is None else attempts.times,
        0.0 if attempts is None else attempts.backoff_s,
        retried,
        _purity(target),
        None if catch is None else ids[catch.target],
        () if catch is None else kinds_of(catch.kinds),
    )


def _purity(target: Target) -> Purity:
    if isinstance(target, CompositionPlan):
        return Purity.PURE if target.is_pure else Purity.MIXED
    return Purity.PURE if target.kind == "compute" else Purity.IO


def _input_spec(name: str, set_id: int, applications: Sequence[ApplicationPlan]) -> SetSpec:
    """Return the spec of an input; it has what all its consumers declare in the same way."""
    users = [
        (spec, at in application.required, application.shares_out(at))
        for application in applications
        for at, spec in enumerate(application.target.inputs)
        if application.sources[at] == set_id
    ]
    found = {(spec.dtype, spec.shape) for spec, _, _ in users}
    dtype, shape = found.pop() if len(found) == 1 else (None, None)
    forms = {
        _form_of_several(spec.form) if spec.form and shared else spec.form
        for spec, _, shared in users
    }
    form = forms.pop() if len(forms) == 1 else ""
    optional = bool(users) and all(spec.optional and not needed for spec, needed, _ in users)
    return SetSpec(name, dtype, shape, form=form, optional=optional)
