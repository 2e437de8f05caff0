"""Models: the functions and compositions of a tenant.

An input set is an input, an output set an output. Everything here waits for the node, so it is
called in threads, apart from `Models.known`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from dandelion.catalog import CompositionRecord, Record
from dandelion.data import SetSpec
from dandelion.errors import InvalidInput, Unknown
from dandelion.frontend.asgi import NAME_LIMIT, clipped
from dandelion.frontend.kserve.datatypes import tensor_type
from dandelion.frontend.kserve.documents import (
    ConfigTensor,
    Duration,
    IndexEntry,
    InferenceStatistics,
    ModelConfig,
    ModelMetadata,
    ModelStatistics,
    TensorMetadata,
)
from dandelion.frontend.kserve.errors import Unsupported
from dandelion.frontend.service import Service
from dandelion.function import FunctionSpec
from dandelion.invocation_totals import InvocationTotals

_KINDS: dict[str, type[Record]] = {"function": FunctionSpec, "composition": CompositionRecord}
_KNOWN_LIMIT = 4096
BACKEND = "dandelion"


@dataclass(frozen=True, slots=True)
class Model:
    """A function or composition in one version.

    Attributes:
        name, version: of it.
        asked_version: that of the request; None is the newest.
        kind: ``function`` or ``composition``.
        inputs: sets that a caller gives, by name.
        outputs: sets that come back, by name.
        static: input sets that are fixed at registration.
    """

    name: str
    version: int
    asked_version: int | None
    kind: str
    inputs: dict[str, SetSpec]
    outputs: dict[str, SetSpec]
    static: tuple[str, ...]

    @property
    def platform(self) -> str:
        """What kind of model it is, for clients."""
        return f"{BACKEND}_{self.kind}"


class Models:
    """Finds models, and remembers them until the catalogue changes.

    Args:
        node: has the catalogue.
    """

    def __init__(self, node: Service) -> None:
        self._node = node
        self._generation = node.generation
        self._known: dict[tuple[str, str, str], Model] = {}

    async def find(self, tenant: str, name: str, version: str) -> Model:
        """Find a model; the text of the version may be empty.

        Raises:
            Unknown: with the nearest name.
            InvalidInput: the version is no number.
        """
        generation = self._node.generation
        if generation != self._generation or len(self._known) > _KNOWN_LIMIT:
            self._known.clear()
            self._generation = generation
        key = tenant, name, version
        model = self._known.get(key)
        if model is None:
            model = await asyncio.to_thread(self._find, tenant, name, version)
            if generation == self._generation:
                self._known[key] = model
        return model

    def _find(self, tenant: str, name: str, version: str) -> Model:
        if len(name) > NAME_LIMIT:
            raise Unknown("model", clipped(name))
        number = read_version(version)
        found = self._node.signature(name, number, tenant=tenant)
        return Model(
            name,
            found.version,
            number,
            found.kind,
            {spec.name: spec for spec in found.inputs},
            {spec.name: spec for spec in found.outputs},
            found.static,
        )

    def metadata(self, tenant: str, model: Model) -> ModelMetadata:
        """Describe a model."""
        versions = self._node.versions(_KINDS[model.kind], model.name, tenant=tenant)
        return ModelMetadata(
            model.name,
            tuple(map(str, versions or [model.version])),
            model.platform,
            _described(model.inputs.values()),
            _described(model.outputs.values()),
        )

    def index(self, tenant: str) -> list[IndexEntry]:
        """List all models in their newest versions."""
        state, reason = ("READY", "") if self._node.ready() else ("UNAVAILABLE", "engines start")
        return [
            IndexEntry(record.name, str(record.version), state, reason)
            for record in self._node.records(tenant=tenant)
            if isinstance(record, FunctionSpec | CompositionRecord)
        ]

    def statistics(self, tenant: str, model: Model | None = None) -> list[ModelStatistics]:
        """Count the invocations of one model or of all, of all versions together.

        Raises:
            Unsupported: one version is asked for.
        """
        if model is not None and model.asked_version is not None:
            hint = "leave out the version"
            raise Unsupported("statistics are kept for all versions together", hint)
        totals = {one.name: one for one in self._node.totals(tenant=tenant)}
        names = [model.name] if model is not None else [e.name for e in self.index(tenant)]
        return [_statistics(totals.get(name) or InvocationTotals(name)) for name in names]


def _statistics(totals: InvocationTotals) -> ModelStatistics:
    success = Duration(totals.succeeded, totals.succeeded_ns)
    fail = Duration(totals.failed, totals.failed_ns)
    return ModelStatistics(
        totals.name, totals.last_ms, totals.succeeded, InferenceStatistics(success, fail)
    )


def config_of(model: Model) -> ModelConfig:
    """Describe a model as the configuration of a model repository does."""
    return ModelConfig(
        model.name,
        model.platform,
        BACKEND,
        0,
        tuple(_configured(spec, optional=spec.optional) for spec in model.inputs.values()),
        tuple(map(_configured, model.outputs.values())),
    )


def read_version(text: str) -> int | None:
    """Read a version; an empty text is the newest.

    Raises:
        InvalidInput: it is not a positive integer.
    """
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text)):
        raise InvalidInput("version", f"'{clipped(text)}' is not a positive integer")
    return int(text)


def _described(specs: Iterable[SetSpec]) -> tuple[TensorMetadata, ...]:
    return tuple(TensorMetadata(spec.name, *tensor_type(spec)) for spec in specs)


def _configured(spec: SetSpec, *, optional: bool = False) -> ConfigTensor:
    datatype, shape = tensor_type(spec)
    return ConfigTensor(spec.name, _config_type(datatype), shape, optional)


def _config_type(datatype: str) -> str:
    return "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"
