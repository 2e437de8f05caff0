"""The host device: a device for tests whose kernels are Python functions over numpy arrays.

A module for it is a file whose name ends in ``.host`` and whose lines name functions that were
given to the device. A kernel gets its launch and its arguments, pointers as writable arrays of
bytes, and runs when it is launched; with `lazy` it runs when a caller waits, as on a real device.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from dandelion.blueprint.operation_calls import operand_calls
from dandelion.data import Bytes
from dandelion.errors import DeviceFault, InternalError, InvalidBlueprint, Problem

from .device import Abilities, Device, Handle, Properties, Protection
from .forks import Forks
from .lowering import Library, Lowering
from .plan import Copy, Launch, LibraryCall, Pointer, Zero
from .source import CodeFormat, LoadedCode

Memory: TypeAlias = npt.NDArray[np.uint8]
HostKernel: TypeAlias = Callable[..., None]
"""Called with the launch, then each argument: bytes for a value, a byte array for a pointer."""


@dataclass(frozen=True, slots=True)
class _Module:
    kernels: Mapping[str, HostKernel]


@dataclass(slots=True, eq=False)
class _Protected:
    data: Memory
    protection: Protection = Protection.WRITE

    def view(self, pointer: Pointer) -> Memory:
        """What a kernel gets now."""
        if self.protection is Protection.NONE:
            raise ValueError("this memory is closed")
        part = self.data[pointer.offset_bytes : pointer.offset_bytes + pointer.size_bytes]
        part.flags.writeable = self.protection is Protection.WRITE
        return part


@dataclass(slots=True, eq=False)
class _Launch:
    """A launch that is prepared; its arguments may change."""

    kernel: HostKernel
    launch: Launch
    memory: Memory
    constants: _Protected | None

    def __call__(self) -> None:
        self.kernel(self.launch, *map(self._argument, self.launch.args))

    def _argument(self, argument: Pointer | bytes) -> Any:
        if not isinstance(argument, Pointer):
            return argument
        if argument.constant:
            assert self.constants is not None
            return self.constants.view(argument)
        return self.memory[argument.offset_bytes : argument.offset_bytes + argument.size_bytes]


@dataclass(slots=True, eq=False)
class _Graph:
    """What is launched, by its place among what was captured."""

    work: dict[int, Callable[[], None]]
    changing: frozenset[int]


def _as_it_is(prepared: Handle) -> Callable[[], None]:
    """Give the work of a launch with the arguments that it has now."""
    if isinstance(prepared, _Launch):
        return replace(prepared)
    assert callable(prepared)
    return prepared


class HostDevice(Device):
    """Runs Python functions as kernels.

    Args:
        kernels: functions by the name that modules give.
        memory_bytes: how much the pool may have.
        lazy: do nothing until a caller waits.
        graphs: offer graphs.
        protects: offer protected memory.
        library: carries out library operations; by default they are templates, which it cannot run.
        lanes: how many launches of a graph run side by side. Here they run one by one, and of
            those that may run the last one first, so that a missing dependency shows.

    Attributes:
        forked: the forks of each graph that has some, in the order of capture.
    """

    backend: ClassVar[str] = "host"
    formats: ClassVar[tuple[str, ...]] = (CodeFormat.HOST,)

    def __init__(
        self,
        kernels: Mapping[str, HostKernel],
        memory_bytes: int = 1 << 20,
        *,
        lazy: bool = False,
        graphs: bool = False,
        protects: bool = False,
        lanes: int = 1,
        library: Library | None = None,
    ) -> None:
        super().__init__()
        self._library = library
        self.name = "host:0"
        self.abilities = Abilities(
            graphs=graphs,
            asynchronous=lazy,
            host_visible=True,
            protected_memory=protects,
            graph_lanes=lanes,
        )
        self._kernels = kernels
        self._memory_bytes = memory_bytes
        self._lazy = lazy
        self._pool: Memory | None = None
        self._queue: deque[Callable[[], None]] = deque()
        self._ended = 0  # how much of the work is done
        self._broken: str | None = None
        self.is_open = False
        self.modules = 0
        self.graphs = 0
        self.forked: list[Forks] = []
        self.protected = 0

    def open(self) -> None:
        self.is_open = True

    def close(self) -> None:
        self._queue.clear()
        self._pool = None
        self.pool_bytes = 0
        self.is_open = False

    def properties(self) -> Properties:
        return Properties("Python functions", self._memory_bytes, self._memory_bytes)

    def fault(self) -> str | None:
        return self._broken

    def _do(self, work: Callable[[], None]) -> None:
        self._queue.append(work)
        if not self._lazy:
            self._synchronize()

    def _synchronize(self) -> None:
        self._run(len(self._queue))

    def _run(self, count: int) -> None:
        for _ in range(count):
            work = self._queue.popleft()
            self._ended += 1
            try:
                work()
            except Exception as error:
                self._broken = f"{type(error).__name__}: {error}"
                self._ended += len(self._queue)
                self._queue.clear()
                raise DeviceFault(self.name, "launch", self._broken) from error

    def _memory(self) -> Memory:
        if self._pool is None:
            raise InternalError(f"{self.name}: there is no pool")
        return self._pool

    def _allocate(self, size_bytes: int) -> None:
        if size_bytes > self._memory_bytes:
            raise DeviceFault(self.name, "allocate", f"{size_bytes} bytes of {self._memory_bytes}")
        self._pool = np.full(size_bytes, 0xA5, dtype=np.uint8)  # whatever was there before

    def _free(self) -> None:
        self._pool = None

    def _copy_in(self, offset_bytes: int, data: Bytes) -> None:
        source = np.frombuffer(data, dtype=np.uint8)
        target = self._memory()[offset_bytes : offset_bytes + source.size]
        self._do(lambda: np.copyto(target, source))

    def _copy_out(self, offset_bytes: int, view: memoryview) -> None:
        target = np.frombuffer(view, dtype=np.uint8)
        source = self._memory()[offset_bytes : offset_bytes + target.size]
        self._do(lambda: np.copyto(target, source))

    def _zero(self, offset_bytes: int, size_bytes: int) -> None:
        self._launch([self._prepare_zero(Zero(offset_bytes, size_bytes))])

    def _allocate_protected(self, size_bytes: int) -> Handle:
        self.protected += 1
        return Handle(_Protected(np.zeros(size_bytes, dtype=np.uint8)))

    def _fill_protected(self, memory: Handle, offset_bytes: int, data: Bytes) -> None:
        assert isinstance(memory, _Protected)
        source = np.frombuffer(data, dtype=np.uint8)
        target = memory.data[offset_bytes : offset_bytes + source.size]
        self._do(lambda: np.copyto(target, source))

    def _protect(self, memory: Handle, protection: Protection) -> None:
        assert isinstance(memory, _Protected)
        self._synchronize()
        memory.protection = protection

    def _free_protected(self, memory: Handle) -> None:
        self.protected -= 1

    def _load(self, code: LoadedCode) -> Handle:
        names = code.text.split()
        missing = [n for n in names if n not in self._kernels]
        if missing:
            problem = Problem("unknown-kernel", f"no function '{missing[0]}'", code.name)
            raise InvalidBlueprint((problem,))
        self.modules += 1
        return Handle(_Module({n: self._kernels[n] for n in names}))

    def _unload(self, module: Handle) -> None:
        self.modules -= 1

    def _prepare(
        self, module: Handle, symbol: str, launch: Launch, constants: Handle | None
    ) -> Handle:
        assert isinstance(module, _Module)
        kernel = module.kernels.get(symbol)
        if kernel is None:
            problem = Problem("unknown-kernel", f"no kernel '{symbol}'", f"kernels.{symbol}")
            raise InvalidBlueprint((problem,))
        assert constants is None or isinstance(constants, _Protected)
        return Handle(_Launch(kernel, launch, self._memory(), constants))

    def _set_argument(self, prepared: Handle, index: int, data: bytes) -> None:
        assert isinstance(prepared, _Launch)
        args = list(prepared.launch.args)
        args[index] = data
        prepared.launch = replace(prepared.launch, args=tuple(args))

    def lowering(self) -> Lowering:
        return Lowering(self._library)

    def _prepare_library(self, step: LibraryCall, constants: Handle | None) -> Handle:
        assert self._library is not None

        def address(pointer: Pointer, offset_bytes: int = 0) -> int:
            memory = self._memory()
            if pointer.constant:
                assert isinstance(constants, _Protected)
                memory = constants.data
            return int(memory.ctypes.data) + pointer.offset_bytes + offset_bytes

        fields = dict(operand_calls(step.call))
        addresses = {n: address(p, fields[n].offset_bytes) for n, p in step.operands.items()}
        room = (0, 0)
        if step.workspace is not None:
            room = (address(step.workspace), step.workspace.size_bytes)
        return Handle(self._library.prepare(step.call, addresses, room))

    def _prepare_zero(self, step: Zero) -> Handle:
        part = self._memory()[step.offset_bytes : step.offset_bytes + step.size_bytes]
        return Handle(lambda: part.fill(0))

    def _prepare_copy(self, step: Copy, constants: Handle | None) -> Handle:
        def part(pointer: Pointer) -> Memory:
            memory = self._memory()
            if pointer.constant:
                assert isinstance(constants, _Protected)
                memory = constants.data
            return memory[pointer.offset_bytes : pointer.offset_bytes + pointer.size_bytes]

        target, source = part(step.target), part(step.source)
        return Handle(lambda: np.copyto(target, source))

    def _launch(self, prepared: Iterable[Handle]) -> None:
        for work in prepared:
            self._do(_as_it_is(work))

    def _capture(
        self, prepared: Sequence[Handle], forks: Forks | None, changing: frozenset[int]
    ) -> Handle | None:
        self.graphs += 1
        if forks is not None:
            self.forked.append(forks)
        order = range(len(prepared)) if forks is None else forks.last_first()
        return Handle(_Graph({place: _as_it_is(prepared[place]) for place in order}, changing))

    def _update(self, graph: Handle, changed: Sequence[tuple[int, Handle]]) -> None:
        assert isinstance(graph, _Graph)
        for place, prepared in changed:
            assert place in graph.changing
            graph.work[place] = _as_it_is(prepared)

    def _replay(self, graph: Handle) -> None:
        assert isinstance(graph, _Graph)
        for work in tuple(graph.work.values()):
            self._do(work)

    def _discard(self, prepared: Sequence[Handle], graph: Handle | None) -> None:
        if graph is not None:
            self.graphs -= 1

    def _mark(self) -> Handle | None:
        return Handle(self._ended + len(self._queue))

    def _wait(self, mark: Handle) -> None:
        assert isinstance(mark, int)
        self._run(max(0, mark - self._ended))
