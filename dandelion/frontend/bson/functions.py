"""A function that a client of the original registers, as a registration document.

The engine types ``Process`` and ``Kvm`` are executables of the backend `native`. The context has
the size that the client gives, rounded up to whole MiB as in the original; it is also the limit of
the function's memory.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dandelion.data import SetSpec
from dandelion.documents import CodeDocument, Content, FunctionDocument, ItemContent
from dandelion.errors import InvalidInput
from dandelion.frontend.asgi import clipped, did_you_mean
from dandelion.frontend.bson.names import INPUT_NAMES, OUTPUT_NAMES, identifier_of, set_names
from dandelion.frontend.bson.requests import FunctionRequest
from dandelion.function import MIB, Limits

ENGINE_TYPES = ("Process", "Kvm")


def function_document(request: FunctionRequest) -> FunctionDocument:
    """Make the document of a function.

    Raises:
        InvalidInput: the engine type is not supported, or a part does not fit.
    """
    if request.engine_type not in ENGINE_TYPES:
        hint = did_you_mean(request.engine_type, ENGINE_TYPES) or "send Process or Kvm"
        message = f"'{clipped(request.engine_type)}' is not supported"
        raise InvalidInput("engine_type", message, hint)
    given = [one.name for one in request.inputs]
    inputs, outputs = set_names(given, "input"), set_names(request.outputs, "output")
    if len(request.minima) > len(inputs):
        message = f"it has {len(request.minima)} entries for {len(inputs)} input sets"
        raise InvalidInput("min_set_bytes", message)
    minima = (*request.minima, *[0] * (len(inputs) - len(request.minima)))
    size = max(-(-request.context_bytes // MIB), 1) * MIB
    options = {"context_bytes": str(size)}
    if list(inputs) != given:
        options[INPUT_NAMES] = _json(given)
    if outputs != request.outputs:
        options[OUTPUT_NAMES] = _json(request.outputs)
    return FunctionDocument(
        identifier_of(request.name),
        tuple(SetSpec(name, min_bytes=least) for name, least in zip(inputs, minima, strict=True)),
        outputs,
        static=_static(request, inputs),
        limits=Limits(memory_bytes=size),
        code=(CodeDocument("elf", Content(data=request.contents[0]), options=options),),
    )


def _static(request: FunctionRequest, inputs: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    contents = iter(request.contents[1:])
    static: dict[str, dict[str, Any]] = {}
    for name, declared in zip(inputs, request.inputs, strict=True):
        items: dict[str, ItemContent] = {}
        for item in declared.items:
            if item in items:
                message = f"set '{clipped(declared.name)}' has item '{clipped(item)}' twice"
                raise InvalidInput("input_sets", message, "give each fixed item another name")
            items[item] = ItemContent(data=next(contents))
        if items:
            static[name] = items
    return static


def _json(names: object) -> str:
    return msgspec.json.encode(names).decode()
