"""What a node tells about itself and what is registered: records for people and programs."""

from __future__ import annotations

from dataclasses import dataclass

from dandelion.data import SetSpec
from dandelion.dispatcher import CompositionPlan
from dandelion.function import FunctionSpec
from dandelion.node.hosts import EngineHost


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


def output_specs(
    plan: CompositionPlan, known: dict[int, tuple[SetSpec, ...]] | None = None
) -> tuple[SetSpec, ...]:
    """Give the outputs of a plan with the dtype and shape that their producers declare.

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
    pairs = zip(plan.output_names, (found[set_id] for set_id in plan.outputs), strict=True)
    return tuple(SetSpec(name, spec.dtype, spec.shape) for name, spec in pairs)


def engine_info(host: EngineHost) -> EngineInfo:
    """Describe a host."""
    facts = host.facts
    return EngineInfo(
        facts.name,
        facts.backend,
        facts.resource,
        facts.description,
        host.state.value,
        str(host.error) if host.error is not None else "",
        host.busy,
        facts.counts.calls,
        facts.counts.failures,
    )
