"""The device that CUDA and HIP share: one context, one pool, one stream.

All work is asynchronous on one stream, which keeps its order; within a graph launches may run side
by side (`.cudalike_graphs`). A launch is prepared once: its arguments are packed in memory of
their own, and launching is one call of the binding. Copies take host buffers as they are, so they
need no preparation.

Protected memory lies in mappings of its own, made with the virtual memory functions. Kernels can
read and write it until `protect` says otherwise; the device enforces that.

Errors: a code in `.calls.BROKEN` breaks the device for good; out of memory is `DeviceFull`; all
others are a `DeviceFault` after which the device still works. Each resource is on a list until it
is released, and `close` releases the rest, whether or not one of these steps fails.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, cast

from mypy_extensions import mypyc_attr

from dandelion.data import Bytes
from dandelion.errors import BackendUnavailable, DandelionError, DeviceFault, DeviceFull

from .calls import BROKEN, OUT_OF_MEMORY, Calls, Compiler, Function, LibrarySite
from .compiling import CodeCache
from .cudalike_code import (
    LoadedModule,
    Prepared,
    PreparedKernel,
    kernel_limits,
    load_module,
    prepare_copy,
    prepare_kernel,
)
from .cudalike_graphs import LANES, CapturedGraph, Graphs
from .cudalike_library import PreparedOperation, libraries, prepare_operation
from .cudalike_marks import Marks
from .cudalike_protected import ProtectedMapping, ProtectedMemory
from .cudalike_trials import DeviceTrials
from .cudalike_variables import first_values
from .device import Abilities, Device, Handle, Properties, Protection, Variables
from .forks import Forks
from .lowering import Libraries, Lowering
from .measurements import Measurements
from .plan import Copy, Launch, LibraryCall, Zero
from .source import LoadedCode

_RESERVE_BYTES = 256 * 2**20
"""Left for modules, stacks of kernels and graphs, besides one part in 32."""
_GRANULE_BYTES = 2**21
_ADDRESSES = 4096
"""How many device addresses are kept ready."""


@mypyc_attr(allow_interpreted_subclasses=True)
class CudaLikeDevice(Device):
    """A device behind a `Calls` table.

    Args:
        ordinal: number of the device.
        cache: keeps what was compiled.
        trusts_protection: offer memory with protection, where the device has virtual memory.
    """

    remedy: ClassVar[str]

    def __init__(
        self, ordinal: int = 0, cache: CodeCache | None = None, trusts_protection: bool = True
    ) -> None:
        super().__init__()
        self.name = f"{self.backend}:{ordinal}"
        self.abilities = Abilities(
            graphs=True, asynchronous=True, registers=True, graph_lanes=LANES
        )
        self._ordinal = ordinal
        self._cache = cache
        self._trusts_protection = trusts_protection
        self._broken: str | None = None
        self._retained = False
        self._stream: Any = None
        self._archs: tuple[str, ...] = ()
        self._pool = 0
        self._addresses: dict[int, Any] = {}
        self._registered: list[int] = []
        self._modules: list[LoadedModule] = []
        self._protected: ProtectedMemory
        self._graphs: Graphs
        self._marks: Marks
        self._library = Libraries({})

    @classmethod
    def calls(cls) -> Calls:
        """Load the binding.

        Raises:
            BackendUnavailable: it is missing.
        """
        raise NotImplementedError

    @classmethod
    def compiler(cls) -> Compiler:
        """Give the vendor's compiler; nothing is loaded."""
        raise NotImplementedError

    # errors

    def _fail(self, operation: str, error: Any) -> DandelionError:
        """Make the error of a code, and remember what breaks the device."""
        text = self._calls.describe(error)
        if int(error) == OUT_OF_MEMORY:
            return DeviceFull(self.name, 0, self.pool_bytes)
        if int(error) in BROKEN:
            self._broken = self._broken or f"{operation}: {text}"
        return DeviceFault(self.name, operation, text)

    def _do(self, operation: str, answer: tuple[Any, ...]) -> Any:
        """Give the result of a call.

        Raises:
            DeviceFull, DeviceFault: it failed.
        """
        if answer[0]:
            raise self._fail(operation, answer[0])
        return answer[1] if len(answer) > 1 else None

    def fault(self) -> str | None:
        return self._broken

    # life

    def open(self) -> None:
        if self._retained:
            return
        self._calls = calls = self.calls()
        self._broken = None
        try:
            self._initialize()
            there = self._do("open", calls.count())
            if self._ordinal >= there:
                known = ", ".join(str(i) for i in range(there)) or "none"
                missing = f"no device '{self._ordinal}'"
                raise BackendUnavailable(self.backend, missing, f"there are {known}")
            self._do("open", calls.retain(self._ordinal))
            self._retained = True
            self._protected = ProtectedMemory(self.name, calls, self._ordinal, self._do, self._undo)
            self._stream = self._do("open", calls.create_stream(1))  # waits for no other stream
            self._protected.stream = self._stream
            self._graphs = Graphs(calls, self._stream, self._do, self._undo)
            self._marks = Marks(calls, self._stream, self._do)
            protects = self._trusts_protection and bool(self._attribute("virtual_memory"))
            key = calls.attributes.exports_memory
            shares = protects and key is not None and bool(self._attribute(key))
            self._protected.exports = shares
            self.abilities = dataclasses.replace(
                self.abilities, protected_memory=protects, shared_memory=shares
            )
            calls.set_heap_limit(0)  # refused where a kernel with malloc ran in this process
            calls.set_print_limit(0)
            self._limits = kernel_limits(calls.attributes, self._attribute)
            self._archs = tuple(self._do("open", calls.archs(self._ordinal)))
            kind = f"{self.backend} {self._do('open', calls.device_name(self._ordinal))}"
            self.measurements = Measurements(kind, self._cache)
            trials = DeviceTrials(
                self.measurements, calls, self._stream, self._graphs, self._do, self._undo,
                lambda: self.trials_until,
            )  # fmt: skip
            self._library = libraries(calls, LibrarySite(self.name, self._stream, trials))
        except (DeviceFault, DeviceFull) as error:
            self.close()
            raise BackendUnavailable(self.backend, str(error), self.remedy) from None
        except BackendUnavailable:
            self.close()
            raise

    def _initialize(self) -> None:
        try:
            answer = self._calls.initialize(0)
        except RuntimeError as error:  # the binding found no library
            raise BackendUnavailable(self.backend, str(error), self.remedy) from None
        self._do("open", answer)

    def _attribute(self, key: Any) -> int:
        wanted = getattr(self._calls.attributes, key) if isinstance(key, str) else key
        return int(self._do("open", self._calls.device_attribute(wanted, self._ordinal)))

    def close(self) -> None:
        if not self._retained:
            return
        calls = self._calls
        if self._stream is not None and self._broken is None:
            self._undo(calls.synchronize, self._stream)
        if self._stream is not None:
            self._graphs.release_all()
        for module in self._modules:
            self._undo(calls.unload_module, module.handle)
        self._protected.close()
        if self._pool:
            self._undo(calls.free, calls.pointer(self._pool))
        for address in self._registered:
            self._undo(calls.host_unregister, address)
        self._library.close()
        if self._stream is not None:
            self._marks.close(self._undo)
            self._graphs.close()
            self._undo(calls.destroy_stream, self._stream)
        self._undo(calls.release, self._ordinal)
        self._forget()

    def _undo(self, call: Function, *arguments: Any) -> None:
        """Call, and once more if it failed; a second failure cannot be helped."""
        if call(*arguments)[0]:
            call(*arguments)

    def _forget(self) -> None:
        self._retained = False
        self._stream = None
        self._pool = 0
        self.pool_bytes = 0
        self._addresses.clear()
        for made in (self._registered, self._modules):
            made.clear()

    def properties(self) -> Properties:
        calls = self._calls
        answer = calls.memory_info()
        self._do("properties", answer)
        free, total = int(answer[1]), int(answer[2])
        reserve = total // 32 + _RESERVE_BYTES
        archs = self._archs
        return Properties(
            self._do("properties", calls.device_name(self._ordinal)),
            memory_bytes=max(total - reserve, total // 2),
            pool_bytes=max(free - reserve, free // 2) // _GRANULE_BYTES * _GRANULE_BYTES,
            compute_units=self._attribute("compute_units"),
            unit_threads=self._attribute("unit_threads"),
            block_threads=self._limits.threads,
            shared_bytes=self._limits.shared_most_bytes,
            archs=archs,
            details={
                "architecture": archs[0] if archs else "unknown",
                "driver": str(self._do("properties", calls.version())),
                "memory": f"{total} bytes, {free} free",
            },
        )

    # memory

    def _allocate(self, size_bytes: int) -> None:
        answer = self._calls.allocate(size_bytes)
        if answer[0] and int(answer[0]) == OUT_OF_MEMORY:
            info = self._calls.memory_info()
            raise DeviceFull(self.name, size_bytes, 0 if info[0] else int(info[1]))
        self._pool = int(self._do("allocate", answer))

    def _free(self) -> None:
        pool, self._pool = self._pool, 0
        self._addresses.clear()
        self._undo(self._calls.free, self._calls.pointer(pool))

    def _register(self, address: int, size_bytes: int) -> None:
        if address in self._registered:
            return
        self._do("register", self._calls.host_register(address, size_bytes, 0))
        self._registered.append(address)

    def _address(self, offset_bytes: int) -> Any:
        found = self._addresses.get(offset_bytes)
        if found is None:
            if len(self._addresses) >= _ADDRESSES:
                self._addresses.clear()
            found = self._calls.pointer(self._pool + offset_bytes)
            self._addresses[offset_bytes] = found
        return found

    def _copy_in(self, offset_bytes: int, data: Bytes) -> None:
        size = data.nbytes if isinstance(data, memoryview) else len(data)
        error = self._calls.copy_in(self._address(offset_bytes), data, size, self._stream)[0]
        if error:
            raise self._fail("copy_in", error)

    def _copy_out(self, offset_bytes: int, view: memoryview) -> None:
        error = self._calls.copy_out(view, self._address(offset_bytes), view.nbytes, self._stream)[
            0
        ]
        if error:
            raise self._fail("copy_out", error)

    def _zero(self, offset_bytes: int, size_bytes: int) -> None:
        error = self._calls.fill(self._address(offset_bytes), 0, size_bytes, self._stream)[0]
        if error:
            raise self._fail("zero", error)

    # memory with protection

    def _allocate_protected(self, size_bytes: int) -> Handle:
        return Handle(self._protected.allocate(size_bytes))

    def _fill_protected(self, memory: Handle, offset_bytes: int, data: Bytes) -> None:
        assert isinstance(memory, ProtectedMapping)
        size = data.nbytes if isinstance(data, memoryview) else len(data)
        target = self._calls.pointer(memory.address + offset_bytes)
        self._do("fill", self._calls.copy_in(target, data, size, self._stream))

    def _protect(self, memory: Handle, protection: Protection) -> None:
        assert isinstance(memory, ProtectedMapping)
        self._protected.protect(memory, protection)

    def _free_protected(self, memory: Handle) -> None:
        assert isinstance(memory, ProtectedMapping)
        self._protected.free(memory)

    def _export_protected(self, memory: Handle) -> int:
        assert isinstance(memory, ProtectedMapping)
        return self._protected.export(memory)

    def _import_protected(self, descriptor: int, size_bytes: int) -> Handle:
        return Handle(self._protected.allocate_from(descriptor, size_bytes))

    # code

    def _load(self, code: LoadedCode) -> Handle:
        calls = self._calls
        module = load_module(calls, code, self.backend, self._archs, self._cache, self._fail)
        if module.info.listed:
            try:
                listed = module.info.listed
                values = first_values(calls, module.handle, listed, self._stream, self._do)
            except BaseException:
                self._undo(calls.unload_module, module.handle)
                raise
            module.first_values = values
        self._modules.append(module)
        return Handle(module)

    def _unload(self, module: Handle) -> None:
        assert isinstance(module, LoadedModule)
        self._modules.remove(module)
        module.first_values = ()
        self._undo(self._calls.unload_module, module.handle)

    def _variables(self, module: Handle) -> Variables:
        assert isinstance(module, LoadedModule)
        if not module.info.variables:
            return Variables.NONE
        return Variables.RESTORED if module.first_values else Variables.UNKNOWN

    def _restore(self, module: Handle) -> None:
        assert isinstance(module, LoadedModule)
        for first in module.first_values:
            data = first.data
            error = self._calls.copy_in(first.address, data, len(data), self._stream)[0]
            if error:
                raise self._fail("restore", error)

    def _prepare(
        self, module: Handle, symbol: str, launch: Launch, constants: Handle | None = None
    ) -> Handle:
        assert isinstance(module, LoadedModule)
        bases = (self._pool, constants.address if isinstance(constants, ProtectedMapping) else 0)
        made = prepare_kernel(
            self._calls, module, symbol, launch, bases, self._limits, self._stream, self._do
        )
        return Handle(made)

    def lowering(self) -> Lowering:
        """With the vendor's libraries, which are loaded when an operation is first planned."""
        return Lowering(self._library)

    def _prepare_library(self, step: LibraryCall, constants: Handle | None) -> Handle:
        kept = constants.address if isinstance(constants, ProtectedMapping) else 0
        return Handle(prepare_operation(self._library, step, (self._pool, kept)))

    def _prepare_zero(self, step: Zero) -> Handle:
        address = self._calls.pointer(self._pool + step.offset_bytes)
        arguments = (address, 0, step.size_bytes, self._stream)
        return Handle(Prepared(self._calls.fill, arguments))

    def _prepare_copy(self, step: Copy, constants: Handle | None) -> Handle:
        kept = constants.address if isinstance(constants, ProtectedMapping) else 0
        return Handle(prepare_copy(self._calls, step, (self._pool, kept), self._stream))

    # work

    def _launch(self, prepared: Iterable[Handle]) -> None:
        for item in prepared:
            assert isinstance(item, Prepared)
            error = item.call(*item.arguments)[0]
            if error:
                raise self._fail("launch", error)

    def _set_argument(self, prepared: Handle, index: int, data: bytes) -> None:
        assert isinstance(prepared, PreparedKernel)
        prepared.set_argument(index, data)

    def _capture(
        self, prepared: Sequence[Handle], forks: Forks | None, changing: frozenset[int]
    ) -> Handle | None:
        launches = cast("Sequence[Prepared]", prepared)
        made = self._graphs.make(launches, forks, changing)
        return None if made is None else Handle(made)

    def _update(self, graph: Handle, changed: Sequence[tuple[int, Handle]]) -> None:
        assert isinstance(graph, CapturedGraph)
        self._graphs.update(graph, (place for place, _ in changed))

    def _replay(self, graph: Handle) -> None:
        assert isinstance(graph, CapturedGraph)
        error = self._calls.replay(graph.executable, self._stream)[0]
        if error:
            raise self._fail("replay", error)

    def _discard(self, prepared: Sequence[Handle], graph: Handle | None) -> None:
        for item in prepared:
            if isinstance(item, PreparedOperation):
                item.release()
        if isinstance(graph, CapturedGraph):
            self._graphs.release(graph)

    def _mark(self) -> Handle | None:
        return Handle(self._marks.mark())

    def _wait(self, mark: Handle) -> None:
        self._marks.wait(mark)

    def _synchronize(self) -> None:
        error = self._calls.synchronize(self._stream)[0]
        if error:
            raise self._fail("synchronize", error)
        self._marks.passed()
