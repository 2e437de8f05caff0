"""One inference, whether it came over HTTP or gRPC: tensors in, tensors out.

`InferenceCall` is what both protocols read from a request. A tensor's data is in the request, or in
a region of shared memory; that is copied to the arena first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dandelion.data import Bytes
from dandelion.errors import InvalidInput
from dandelion.frontend.asgi import clipped, did_you_mean
from dandelion.frontend.codecs import SetMap
from dandelion.frontend.conversion.converter import Converter
from dandelion.frontend.conversion.costs import ITEMS
from dandelion.frontend.kserve.datatypes import BYTES
from dandelion.frontend.kserve.models import Model, Models
from dandelion.frontend.kserve.tensors import InputTensor, OutputTensor, sets_of, tensors_of
from dandelion.frontend.service import ServedResult, Service
from dandelion.priority import PRIORITY_LIMIT
from dandelion.shared_regions import SharedRegion, named_region
from dandelion.trace_context import InvocationSpan

REGION = "shared_memory_region"
REGION_OFFSET = "shared_memory_offset"
REGION_SIZE = "shared_memory_byte_size"
_MICROSECONDS = 1e6
_SEQUENCE = ("sequence_id", "sequence_start", "sequence_end")


@dataclass(frozen=True, slots=True)
class Place:
    """A part of a region of shared memory: offset within it and size, in bytes."""

    region: str
    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class GivenTensor:
    """A tensor of a request; its data in binary form, or where it lies."""

    name: str
    datatype: str
    shape: Sequence[int]
    data: Bytes | Place


@dataclass(frozen=True, slots=True)
class WantedOutput:
    """An output that the client wants.

    Attributes:
        place: where it is to be written; None if it is to be in the response.
    """

    name: str
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class InferenceCall:
    """A request.

    Attributes:
        parameters: of the request.
        wanted: the outputs, in this order; None for all.
        deadline_s: of the transport, in seconds.
    """

    name: str
    version: str
    inputs: list[GivenTensor]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    wanted: list[WantedOutput] | None = None
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True)
class InferenceResult:
    """The result of a call.

    Attributes:
        model: what was invoked.
        invocation: its id.
        outputs: in the order that the client wants.
        places: the outputs that were written to shared memory, by name.
    """

    model: Model
    invocation: str
    outputs: list[OutputTensor]
    places: dict[str, Place]


class Inferences:
    """Runs inferences.

    Args:
        node: runs the invocations.
        converter: its threads do what takes some milliseconds.
        models: finds what is invoked.
    """

    def __init__(self, node: Service, converter: Converter, models: Models) -> None:
        self._node = node
        self._converter = converter
        self._models = models

    async def infer(
        self,
        call: InferenceCall,
        tenant: str,
        on_wait: Callable[[], None] | None = None,
        trace_context: InvocationSpan | None = None,
    ) -> InferenceResult:
        """Run one.

        Args:
            call: the request; its inputs are freed as soon as they are sent.
            tenant: the caller.
            on_wait: called before this waits for the result.
            trace_context: the span that the request has begun.

        Raises:
            Unknown, InvalidInput: the request does not fit, or names what is not there.
            NotAcceptable: the result cannot be written as tensors.
            DandelionError: as of an invocation.
        """
        model = await self._models.find(tenant, call.name, call.version)
        wanted = _wanted(call.wanted, model)
        regions: list[SharedRegion] = []
        if _uses_regions(call.inputs, wanted):
            regions = await asyncio.to_thread(self._node.regions, tenant=tenant)
            for output in wanted:
                if output.place is not None:
                    named_region(regions, output.place.region)
        priority, deadline_s = _priority(call.parameters), _deadline_s(call)
        tensors = [await self._input(given, regions) for given in call.inputs]
        call.inputs.clear()
        sets, is_batch = await self._sets(tensors, model)
        del tensors
        outcome = await self._node.invoke_sets_async(
            model.name,
            sets,
            version=model.asked_version,
            deadline_s=deadline_s,
            priority=priority,
            tenant=tenant,
            on_wait=on_wait,
            trace_context=trace_context,
        )
        del sets  # free the memory of the inputs before the response is written
        names = [output.name for output in wanted]
        outputs = tensors_of(outcome.sets, model.outputs, names, is_batch)
        return await self._result(model, outcome, outputs, wanted, regions)

    async def _sets(self, tensors: list[InputTensor], model: Model) -> tuple[SetMap, bool]:
        limit = self._node.settings.items_limit
        if any(len(t.data) > ITEMS and t.datatype == BYTES for t in tensors):
            return await self._converter.elsewhere(
                lambda: sets_of(tensors, model.inputs, model.static, limit)
            )
        return sets_of(tensors, model.inputs, model.static, limit)

    async def _input(self, given: GivenTensor, regions: list[SharedRegion]) -> InputTensor:
        data = given.data
        if isinstance(data, Place):
            region = named_region(regions, data.region)
            data = await asyncio.to_thread(
                region.read, self._node.acquire_to_fill, data.offset, data.size_bytes
            )
        return InputTensor(given.name, given.datatype, given.shape, data)

    async def _result(
        self,
        model: Model,
        outcome: ServedResult,
        outputs: list[OutputTensor],
        wanted: list[WantedOutput],
        regions: list[SharedRegion],
    ) -> InferenceResult:
        places: dict[str, Place] = {}
        for output, requested in zip(outputs, wanted, strict=True):
            if requested.place is None:
                continue
            size = output.size_bytes
            if size > requested.place.size_bytes:
                message = f"it has {size} bytes, and {requested.place.size_bytes} are given for it"
                raise InvalidInput(f"outputs.{output.name}", message, f"set {REGION_SIZE}")
            region = named_region(regions, requested.place.region)
            await asyncio.to_thread(region.write, output.binary(), requested.place.offset)
            places[output.name] = Place(requested.place.region, requested.place.offset, size)
        return InferenceResult(model, outcome.id, outputs, places)


def place_of(where: str, parameters: Mapping[str, Any]) -> Place | None:
    """Read from the parameters of a tensor where in shared memory it lies.

    Raises:
        InvalidInput: a parameter is not a number, or the size is missing.
    """
    if REGION not in parameters:
        return None
    name = parameters[REGION]
    if not isinstance(name, str):
        raise InvalidInput(f"{where}.{REGION}", "it is not a text")
    size = count_of(where, parameters, REGION_SIZE)
    if size is None:
        raise InvalidInput(where, f"the parameter {REGION_SIZE} is missing")
    return Place(name, count_of(where, parameters, REGION_OFFSET) or 0, size)


def count_of(where: str, parameters: Mapping[str, Any], name: str) -> int | None:
    """Read a parameter that is a number of bytes or a count; None if it is not there.

    Raises:
        InvalidInput: it is not a number from 0 on.
    """
    value = parameters.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**62:
        raise InvalidInput(f"{where}.{name}", f"{clipped(repr(value))} is not a number from 0 on")
    return value


def _uses_regions(inputs: list[GivenTensor], wanted: list[WantedOutput]) -> bool:
    return any(isinstance(given.data, Place) for given in inputs) or any(
        output.place is not None for output in wanted
    )


def _wanted(given: list[WantedOutput] | None, model: Model) -> list[WantedOutput]:
    if not given:
        return [WantedOutput(name) for name in model.outputs]
    seen: set[str] = set()
    for output in given:
        name = output.name
        if name not in model.outputs:
            hint = did_you_mean(name, model.outputs)
            hint = hint or f"outputs are: {', '.join(model.outputs) or 'none'}"
            raise InvalidInput(f"outputs.{clipped(name)}", "no such output", hint)
        if name in seen:
            raise InvalidInput(f"outputs.{name}", "the output is requested twice")
        seen.add(name)
    return given


def _priority(parameters: Mapping[str, Any]) -> int:
    """Convert a priority: here the highest number is first, there 1 is, and 0 is the default."""
    for name in _SEQUENCE:
        if parameters.get(name):
            message = "a model has no state, so requests do not form sequences"
            raise InvalidInput(f"parameters.{name}", message)
    given = count_of("parameters", parameters, "priority")
    return max(PRIORITY_LIMIT + 1 - given, -PRIORITY_LIMIT) if given else 0


def _deadline_s(call: InferenceCall) -> float | None:
    """Give the earlier one of the transport's deadline and the parameter `timeout`."""
    given = count_of("parameters", call.parameters, "timeout")
    if not given:
        return call.deadline_s
    timeout_s = given / _MICROSECONDS
    return timeout_s if call.deadline_s is None else min(timeout_s, call.deadline_s)
