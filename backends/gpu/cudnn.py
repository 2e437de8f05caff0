"""Convolutions by cuDNN, for `.cudalike`.

For each shape, the graph of the convolution and its epilogue is made once, when a call is planned
(`.cudnn_graph`). cuDNN proposes engines for it, and a few of them become execution plans; the
fastest on this device is kept, see `.cudalike_trials`. All that takes place outside of any capture.
An operation that cuDNN has no engine for is not here: it is tried without its epilogue, and else a
product or a template computes it.

Descriptors are host memory. An execution plan is used by all convolutions of its shape; those that
are used least recently are dropped, unless a prepared convolution uses them.
"""

from __future__ import annotations

import ctypes
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from dandelion.blueprint.operation_calls import ConvolutionCall, OperationCall, operand_calls
from dandelion.errors import DeviceFault

from .calls import LibrarySite
from .cublaslt_binding import Binding
from .cudalike_library import PreparedOperation
from .cudnn_binding import Attribute, Kind, ValueType, status_text
from .cudnn_graph import NUMBERS, Descriptors, engines, int64, is_known, operations, pointers
from .lowering import Library

WORKSPACE_BYTES = 32 << 20
"""Most memory that an engine may need."""
MOST_ENGINES = 6
"""So many engines are tried for each shape."""
PLANNING_S = 1.0
"""After so long no further engine is made ready to be tried: some are compiled for the shape."""
_KNOWN = 1024
_ALIGNMENT_BYTES = 256

Key: TypeAlias = tuple[object, ...]


@dataclass(slots=True, eq=False)
class _ExecutionPlan:
    """How a convolution is computed.

    Attributes:
        handle: of the library.
        workspace_bytes: that it needs.
        graph: the descriptors of its graph.
        own: its own descriptors.
        users: prepared convolutions.
    """

    handle: Any
    workspace_bytes: int
    graph: Descriptors
    own: Descriptors
    users: int = 0


class Cudnn(Library):
    """The library on the current device.

    Args:
        binding: loaded.
        site: where convolutions are launched and timed.

    Raises:
        DeviceFault: the library refuses this device.
    """

    def __init__(self, binding: Binding, site: LibrarySite) -> None:
        self._library = binding.library
        self._version = binding.version
        self._site = site
        self._stream = 0
        self._known: OrderedDict[Key, _ExecutionPlan | None] = OrderedDict()
        self._live: set[Descriptors] = set()
        self._handle: Any = ctypes.c_void_p()
        self._do("open", self._library.cudnnCreate(ctypes.byref(self._handle)))

    def workspace_bytes(self, call: OperationCall) -> int | None:
        found = self._plan(call) if isinstance(call, ConvolutionCall) else None
        return None if found is None else found.workspace_bytes

    def prepare(
        self, call: OperationCall, addresses: Mapping[str, int], workspace: tuple[int, int]
    ) -> PreparedOperation:
        assert isinstance(call, ConvolutionCall), "the library has nothing else"
        found = self._plan(call)
        assert found is not None, "the plan asked for it"
        own = self._descriptors()
        try:
            pack = self._pack(own, addresses, workspace[0])
        except DeviceFault:
            self._release(own)
            raise
        found.users += 1

        def release() -> None:
            if own in self._live:
                self._release(own)
                found.users -= 1

        arguments = (found.handle, pack, self._site.stream)
        return PreparedOperation(self._launch, arguments, (own, found), release)

    def _launch(self, plan: Any, pack: Any, stream: Any) -> tuple[int]:
        number = int(stream)
        if number != self._stream:
            self._do("stream", self._library.cudnnSetStream(self._handle, number))
            self._stream = number
        self._do("convolution", self._library.cudnnBackendExecute(self._handle, plan, pack))
        return (0,)

    def _pack(self, own: Descriptors, addresses: Mapping[str, int], workspace: int) -> Any:
        numbers = [NUMBERS[name] for name in addresses]
        return own.made(
            Kind.VARIANT_PACK,
            [
                (Attribute.PACK_NUMBERS, ValueType.INT64, int64(*numbers)),
                (Attribute.PACK_POINTERS, ValueType.POINTER, pointers(list(addresses.values()))),
                (Attribute.PACK_WORKSPACE, ValueType.POINTER, pointers([workspace])),
            ],
        )

    # plans

    def _plan(self, call: ConvolutionCall) -> _ExecutionPlan | None:
        key = _key(call)
        if key not in self._known:
            self._known[key] = self._chosen(call, key) if is_known(call) else None
            self._trim()
        self._known.move_to_end(key)
        return self._known[key]

    def _chosen(self, call: ConvolutionCall, key: Key) -> _ExecutionPlan | None:
        """Make the plan of the engine that is fastest; None if there is no engine."""
        graph = self._descriptors()
        try:
            made = operations(call, self._handle, graph)
            best = self._fastest(call, made, graph, f"cudnn {self._version} {key}")
        except DeviceFault:
            best = None  # it does not know such a convolution
        if best is None:
            self._release(graph)
        return best

    def _fastest(
        self, call: ConvolutionCall, made: Any, graph: Descriptors, key: str
    ) -> _ExecutionPlan | None:
        trials = self._site.trials
        known = trials.known(key)
        if known is not None:
            plans = self._plans(call, made, graph, only=known)
            if plans:
                return plans[known]
        plans = self._plans(call, made, graph)
        if not plans:
            return None
        parts = dict(operand_calls(call))
        item = call.dtype.size_bytes
        offsets = {name: part.offset_bytes % _ALIGNMENT_BYTES for name, part in parts.items()}
        sizes = [offsets[name] + part.elements * item for name, part in parts.items()]
        sizes.append(max(plan.workspace_bytes for plan in plans.values()))
        ways = {number: self._way(plan, offsets) for number, plan in plans.items()}
        best = plans[trials.fastest(key, sizes, ways)]
        for plan in plans.values():
            if plan is not best:
                self._release(plan.own)
        return best

    def _plans(
        self, call: ConvolutionCall, made: Any, graph: Descriptors, only: int | None = None
    ) -> dict[int, _ExecutionPlan]:
        """Make plans of the engines that work, by their number; or of one engine alone."""
        plans: dict[int, _ExecutionPlan] = {}
        began = time.monotonic()
        for number, config in enumerate(engines(call, made, graph)):
            plan = self._made(config, graph) if only in (None, number) else None
            if plan is not None:
                plans[number] = plan
            if number == only or len(plans) == MOST_ENGINES:
                break
            if plans and time.monotonic() - began > PLANNING_S:
                break
        return plans

    def _made(self, config: Any, graph: Descriptors) -> _ExecutionPlan | None:
        """Make the plan of an engine; None if it does not work or needs too much memory."""
        own = self._descriptors()
        try:
            plan = own.made(
                Kind.PLAN,
                [
                    (Attribute.PLAN_HANDLE, ValueType.HANDLE, pointers([self._handle])),
                    (Attribute.PLAN_CONFIG, ValueType.DESCRIPTOR, pointers([config])),
                ],
            )
            (needed,) = own.numbers(
                plan, Attribute.PLAN_WORKSPACE_BYTES, ValueType.INT64, 1, ctypes.c_int64
            )
        except DeviceFault:
            needed = WORKSPACE_BYTES + 1  # the engine does not have this shape
        if needed > WORKSPACE_BYTES:
            self._release(own)
            return None
        return _ExecutionPlan(plan, needed, graph, own)

    def _way(
        self, plan: _ExecutionPlan, offsets: Mapping[str, int]
    ) -> Callable[[Sequence[int]], None]:
        def launch(addresses: Sequence[int]) -> None:
            own = self._descriptors()
            try:
                places = zip(offsets.items(), addresses, strict=False)  # the workspace is last
                at = {name: address + offset for (name, offset), address in places}
                pack = self._pack(own, at, addresses[-1])
                self._launch(plan.handle, pack, self._site.stream)
            finally:
                self._release(own)

        return launch

    def _trim(self) -> None:
        """Drop plans that are used least recently."""
        spare = len(self._known) - _KNOWN
        if spare > 0:
            idle = [k for k, plan in self._known.items() if plan is None or not plan.users]
            for key in idle[:spare]:
                gone = self._known.pop(key)
                if gone is not None:
                    self._release(gone.own)
                    self._release(gone.graph)

    # descriptors

    def _descriptors(self) -> Descriptors:
        made = Descriptors(self._library, self._do)
        self._live.add(made)
        return made

    def _release(self, descriptors: Descriptors) -> None:
        self._live.discard(descriptors)
        descriptors.close()

    def _do(self, operation: str, status: int) -> None:
        if status:
            text = status_text(self._library, status)
            raise DeviceFault(self._site.name, f"cuDNN {operation.lower()}", text)

    def close(self) -> None:
        for descriptors in tuple(self._live):
            self._release(descriptors)
        self._known.clear()
        handle, self._handle = self._handle, None
        if handle is not None:
            self._library.cudnnDestroy(handle)


def _key(call: ConvolutionCall) -> Key:
    """All that a plan depends on."""
    parts = tuple(
        (name, part.offset_bytes % _ALIGNMENT_BYTES) for name, part in operand_calls(call)
    )
    in_place = call.addend is not None and call.addend.buffer == call.out.buffer
    return (
        call.batch, call.channels, call.filters, call.size, call.kernel, call.stride,
        call.padding, call.dilation, call.groups, call.layout.value, call.dtype.value,
        call.compute.value, call.activation.value, parts, in_place,
    )  # fmt: skip
