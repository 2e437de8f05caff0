"""Devices that wrap a device: failures on demand. Tests of what survives a failure use them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dandelion.data import Bytes
from dandelion.errors import DeviceFault

from .device import Device, Handle, Properties, Protection, Variables
from .forks import Forks
from .plan import Copy, Launch, Zero
from .source import LoadedCode


class FailingDevice(Device):
    """Passes everything on, but makes one call fail.

    Attributes:
        left: how many more calls succeed before one fails; negative for never. Opening, closing
            and questions do not count.
        calls: how many calls counted so far.
    """

    def __init__(self, inner: Device, left: int = -1) -> None:
        super().__init__()
        self.inner = inner
        self.left = left
        self.calls = 0
        self.name = inner.name
        self.backend = inner.backend  # type: ignore[misc]  # that of whatever is wrapped
        self.formats = inner.formats  # type: ignore[misc]  # likewise
        self.abilities = inner.abilities

    def _count(self, operation: str) -> None:
        self.calls += 1
        self.left -= 1
        if self.left == -1:
            raise DeviceFault(self.name, operation, "it was to fail")

    def open(self) -> None:
        self.inner.open()

    def close(self) -> None:
        self.pool_bytes = 0
        self.inner.close()

    def properties(self) -> Properties:
        return self.inner.properties()

    def fault(self) -> str | None:
        return self.inner.fault()

    def _allocate(self, size_bytes: int) -> None:
        self._count("allocate")
        self.inner.allocate(size_bytes)

    def _free(self) -> None:
        self.inner.free()

    def _register(self, address: int, size_bytes: int) -> None:
        self._count("register")
        self.inner.register(address, size_bytes)

    def _copy_in(self, offset_bytes: int, data: Bytes) -> None:
        self._count("copy_in")
        self.inner.copy_in(offset_bytes, data)

    def _copy_out(self, offset_bytes: int, view: memoryview) -> None:
        self._count("copy_out")
        self.inner.copy_out(offset_bytes, view)

    def _zero(self, offset_bytes: int, size_bytes: int) -> None:
        self._count("zero")
        self.inner.zero(offset_bytes, size_bytes)

    def _allocate_protected(self, size_bytes: int) -> Handle:
        self._count("allocate_protected")
        return self.inner.allocate_protected(size_bytes)

    def _fill_protected(self, memory: Handle, offset_bytes: int, data: Bytes) -> None:
        self._count("fill_protected")
        self.inner.fill_protected(memory, offset_bytes, data)

    def _protect(self, memory: Handle, protection: Protection) -> None:
        self._count("protect")
        self.inner.protect(memory, protection)

    def _free_protected(self, memory: Handle) -> None:
        self.inner.free_protected(memory)

    def _export_protected(self, memory: Handle) -> int:
        self._count("export_protected")
        return self.inner.export_protected(memory)

    def _import_protected(self, descriptor: int, size_bytes: int) -> Handle:
        self._count("import_protected")
        return self.inner.import_protected(descriptor, size_bytes)

    def _load(self, code: LoadedCode) -> Handle:
        self._count("load")
        return self.inner.load(code)

    def _unload(self, module: Handle) -> None:
        self.inner.unload(module)

    def _variables(self, module: Handle) -> Variables:
        return self.inner.variables(module)

    def _restore(self, module: Handle) -> None:
        self._count("restore")
        self.inner.restore(module)

    def _prepare(
        self, module: Handle, symbol: str, launch: Launch, constants: Handle | None
    ) -> Handle:
        self._count("prepare")
        return self.inner.prepare(module, symbol, launch, constants)

    def _prepare_zero(self, step: Zero) -> Handle:
        self._count("prepare")
        return self.inner.prepare_zero(step)

    def _prepare_copy(self, step: Copy, constants: Handle | None) -> Handle:
        self._count("prepare")
        return self.inner.prepare_copy(step, constants)

    def _launch(self, prepared: Iterable[Handle]) -> None:
        self._count("launch")
        self.inner.launch(prepared)

    def _set_argument(self, prepared: Handle, index: int, data: bytes) -> None:
        self._count("set_argument")
        self.inner.set_argument(prepared, index, data)

    def _capture(
        self, prepared: Sequence[Handle], forks: Forks | None, changing: frozenset[int]
    ) -> Handle | None:
        self._count("capture")
        return self.inner.capture(prepared, forks, changing)

    def _update(self, graph: Handle, changed: Sequence[tuple[int, Handle]]) -> None:
        self._count("update")
        self.inner.update(graph, changed)

    def _replay(self, graph: Handle) -> None:
        self._count("replay")
        self.inner.replay(graph)

    def _discard(self, prepared: Sequence[Handle], graph: Handle | None) -> None:
        self.inner.discard(prepared, graph)

    def _mark(self) -> Handle | None:
        self._count("mark")
        return self.inner.mark()

    def _wait(self, mark: Handle) -> None:
        self._count("wait")
        self.inner.wait(mark)

    def _synchronize(self) -> None:
        self._count("synchronize")
        self.inner.synchronize()
