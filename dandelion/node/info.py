"""Records about a node and what is registered, for people and programs."""

from __future__ import annotations

from dataclasses import dataclass, field

from dandelion.capacity import ClusterInfo, CoresCapacity, TenantCapacity, WorkersCapacity
from dandelion.data import SetSpec
from dandelion.dispatcher import CompositionPlan
from dandelion.executors import Executor
from dandelion.function import FunctionSpec
from dandelion.memory import DomainStats, TransferCounts
from dandelion.node.cache import CacheCounts
from dandelion.node.observer import InvocationCounts
from dandelion.node.spans import SpanCounts
from dandelion.scheduler.counts import ConstantsCounts, FlowCounts


@dataclass(frozen=True, slots=True)
class Signature:
    """What a function or composition takes and gives.

    Attributes:
        name, kind, version: ``kind`` is ``function`` or ``composition``.
        inputs: sets that a caller gives, in order; static ones are not among them.
        outputs: sets that come back, in order.
        static: names of sets that are fixed at registration.
    """

    name: str
    kind: str
    version: int
    inputs: tuple[SetSpec, ...]
    outputs: tuple[SetSpec, ...]
    static: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """An engine, as ``dandelion doctor`` and ``GET /v1/engines`` show it."""

    name: str
    backend: str
    resource: str
    description: str
    state: str
    reason: str
    busy: int
    calls: int
    failures: int
    busy_s: float = 0.0


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A snapshot of a node, of which metrics are made.

    Attributes:
        invocations: what became of them, by tenant.
        running: invocations under way.
        waiting: calls that wait for an engine.
        functions: what became of calls, by tenant and function.
        queued: calls that wait, by tenant and function.
        engines: all of them.
        arena, transfers, cache: of the node.
        functions_bytes: code and constants of functions in memory, by tenant.
        longest_turn_s: the longest time that the scheduler kept the node's loop.
        tenants: what each uses.
        constants: those that were copied to devices.
        workers: of devices where the node chooses how many run.
        paused: instances that wait before they are run again.
        spans: what became of those to be exported; None if there are none.
        lines_dropped: of the access log.
        cluster: what the node knows of its cluster; None if it is in none.
        cores: how compute and I/O engines divide cores; None if they do not.
    """

    invocations: dict[str, InvocationCounts]
    running: int
    waiting: int
    functions: dict[tuple[str, str], FlowCounts]
    queued: dict[tuple[str, str], int]
    engines: tuple[EngineInfo, ...]
    arena: DomainStats
    transfers: TransferCounts
    cache: CacheCounts
    functions_bytes: dict[str, int]
    longest_turn_s: float
    tenants: tuple[TenantCapacity, ...] = ()
    constants: ConstantsCounts = field(default_factory=ConstantsCounts)
    workers: tuple[WorkersCapacity, ...] = ()
    paused: int = 0
    spans: SpanCounts | None = None
    lines_dropped: int = 0
    cluster: ClusterInfo | None = None
    cores: CoresCapacity | None = None


_ERRORS = SetSpec("errors")


def output_specs(
    plan: CompositionPlan, known: dict[int, tuple[SetSpec, ...]] | None = None
) -> tuple[SetSpec, ...]:
    """Give the outputs of a plan with the dtype, shape and form that their producers declare.

    Args:
        plan: whose outputs.
        known: those of plans inside of it, by id: each is looked into once.
    """
    inner: dict[int, tuple[SetSpec, ...]] = {} if known is None else known
    found = dict(enumerate(plan.inputs))
    for application in plan.applications:
        target = application.target
        if isinstance(target, FunctionSpec):
            declared = target.outputs
        else:
            if id(target) not in inner:
                inner[id(target)] = output_specs(target, inner)
            declared = inner[id(target)]
        made = zip(application.produced, declared, strict=True)
        found.update({set_id: spec for set_id, spec in made if set_id is not None})
        if application.failures is not None and application.failures.errors is not None:
            found[application.failures.errors] = _ERRORS
    pairs = zip(plan.output_names, (found[set_id] for set_id in plan.outputs), strict=True)
    forms = plan.output_forms or ("",) * len(plan.outputs)
    return tuple(
        SetSpec(name, spec.dtype, spec.shape, form=form)
        for (name, spec), form in zip(pairs, forms, strict=True)
    )


def engine_info(executor: Executor) -> EngineInfo:
    """Describe an engine."""
    engine, started = executor.engine, executor.info
    return EngineInfo(
        started.name,
        started.backend,
        started.resource,
        started.description,
        engine.phase.value,
        str(engine.error) if engine.error is not None else "",
        len(engine.sent),
        engine.calls,
        engine.failures,
        engine.busy_ns / 1e9,
    )
