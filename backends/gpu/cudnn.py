"""Convolutions by cuDNN, for `.cudalike`.

For each shape, the graph of the convolution and its epilogue is made once (`.cudnn_graph`). cuDNN
proposes engines for it, and a few of them become execution plans, of which the fastest on this
device is kept; see `.timed_library`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from dandelion.blueprint.operation_calls import ConvolutionCall
from dandelion.errors import DeviceFault

from .calls import LibrarySite
from .cublaslt_binding import Binding
from .cudalike_library import PreparedOperation
from .cudnn_binding import Attribute, Kind, ValueType, status_text
from .cudnn_graph import NUMBERS, Descriptors, engines, int64, is_known, operations, pointers
from .timed_library import WORKSPACE_BYTES, LibraryShape, LibraryWay, TimedLibrary


class Cudnn(TimedLibrary):
    """The library on the current device.

    Args:
        binding: loaded.
        site: where convolutions are launched and timed.

    Raises:
        DeviceFault: the library refuses this device.
    """

    def __init__(self, binding: Binding, site: LibrarySite) -> None:
        super().__init__(site, f"cudnn {binding.version}")
        self._library = binding.library
        self._stream = 0
        self.handle: Any = ctypes.c_void_p()
        self.do("open", self._library.cudnnCreate(ctypes.byref(self.handle)))

    def _has(self, call: ConvolutionCall) -> bool:
        return is_known(call)

    def _shape(self, call: ConvolutionCall) -> LibraryShape:
        return _Graph(self, call)

    def launch(self, plan: Any, pack: Any, stream: Any) -> tuple[int]:
        """Launch an execution plan with a pack of addresses."""
        number = int(stream)
        if number != self._stream:
            self.do("stream", self._library.cudnnSetStream(self.handle, number))
            self._stream = number
        self.do("convolution", self._library.cudnnBackendExecute(self.handle, plan, pack))
        return (0,)

    @property
    def stream(self) -> Any:
        """Where convolutions are launched."""
        return self._site.stream

    def descriptors(self) -> Descriptors:
        """Make room for descriptors that are destroyed together."""
        return Descriptors(self._library, self.do)

    def do(self, operation: str, status: int) -> None:
        """Raise `DeviceFault` if a status is a failure."""
        if status:
            text = status_text(self._library, status)
            raise DeviceFault(self._site.name, f"cuDNN {operation.lower()}", text)

    def _close(self) -> None:
        handle, self.handle = self.handle, None
        if handle is not None:
            self._library.cudnnDestroy(handle)


class _Graph(LibraryShape):
    """The graph of a convolution.

    Raises:
        DeviceFault: the library does not know such a graph.
    """

    def __init__(self, library: Cudnn, call: ConvolutionCall) -> None:
        self._library = library
        self._call = call
        self._made = library.descriptors()
        try:
            self._graph = operations(call, library.handle, self._made)
        except DeviceFault:
            self._made.close()
            raise

    def ways(self) -> Iterator[tuple[int, Callable[[], LibraryWay | None]]]:
        for number, config in enumerate(engines(self._call, self._graph, self._made)):
            yield number, lambda config=config: self._plan(config)  # type: ignore[misc]  # a bound default

    def _plan(self, config: Any) -> LibraryWay | None:
        """Make the plan of an engine; None if it does not work or needs too much memory."""
        own = self._library.descriptors()
        try:
            plan = own.made(
                Kind.PLAN,
                [
                    (Attribute.PLAN_HANDLE, ValueType.HANDLE, pointers([self._library.handle])),
                    (Attribute.PLAN_CONFIG, ValueType.DESCRIPTOR, pointers([config])),
                ],
            )
            (needed,) = own.numbers(
                plan, Attribute.PLAN_WORKSPACE_BYTES, ValueType.INT64, 1, ctypes.c_int64
            )
        except DeviceFault:
            needed = WORKSPACE_BYTES + 1  # the engine does not have this shape
        if needed > WORKSPACE_BYTES:
            own.close()
            return None
        return _ExecutionPlan(self._library, plan, needed, own)

    def close(self) -> None:
        self._made.close()


class _ExecutionPlan(LibraryWay):
    """How an engine computes a graph.

    Args:
        library: whose plan it is.
        plan: its descriptor.
        workspace_bytes: that it needs.
        own: has the descriptor.
    """

    def __init__(self, library: Cudnn, plan: Any, workspace_bytes: int, own: Descriptors) -> None:
        self.workspace_bytes = workspace_bytes
        self._library = library
        self._plan = plan
        self._own = own

    def prepare(
        self, addresses: Mapping[str, int], workspace: tuple[int, int]
    ) -> PreparedOperation:
        numbers = [NUMBERS[name] for name in addresses]
        places = pointers(list(addresses.values()))
        own = self._library.descriptors()
        try:
            pack = own.made(
                Kind.VARIANT_PACK,
                [
                    (Attribute.PACK_NUMBERS, ValueType.INT64, int64(*numbers)),
                    (Attribute.PACK_POINTERS, ValueType.POINTER, places),
                    (Attribute.PACK_WORKSPACE, ValueType.POINTER, pointers([workspace[0]])),
                ],
            )
        except DeviceFault:
            own.close()
            raise
        arguments = (self._plan, pack, self._library.stream)
        return PreparedOperation(self._library.launch, arguments, (own, self), own.close)

    def close(self) -> None:
        self._own.close()
