"""The contract of a device: what CUDA, HIP, OpenCL and the host device for tests implement.

A device owns one buffer pool and one in-order queue (a stream). Everything between `open` and
`close` happens in one thread. Offsets are bytes from the start of the pool; they are checked here,
once, so that a `_method` below can rely on them.

Order and time: `copy_in`, `launch`, `replay`, `zero` and `copy_out` are done in the order in which
they were called. Where a device is `asynchronous` they may return before they are done: memory
that was handed over must stay alive until `synchronize`, or `wait` for a later `mark`, returned.

Failure: a method raises `DeviceFault`. If a kernel broke the device for good, `fault` says what
happened; the device then accepts nothing but `close`.

========== ====================================================================================
life       `open`, `close`, `properties`, `fault`
memory     `allocate`, `free`, `register`, `copy_in`, `copy_out`, `zero`
protected  `allocate_protected`, `fill_protected`, `protect`, `free_protected`: memory beside the
           pool that keeps its content; `export_protected`, `import_protected`: shared with
           other processes
code       `load`, `unload`, `variables`, `restore`, `prepare`, `prepare_zero`, `prepare_copy`,
           `lowering`, `prepare_library`
work       `launch`, `set_argument`, `capture`, `update`, `replay`, `discard`, `mark`, `wait`,
           `synchronize`
========== ====================================================================================
"""

from __future__ import annotations

import abc
import math
from collections.abc import Collection, Iterable, Sequence
from typing import ClassVar, NewType

from mypy_extensions import mypyc_attr

from dandelion.data import Bytes
from dandelion.errors import DeviceFault, InternalError

from .device_facts import Abilities as Abilities
from .device_facts import Properties as Properties
from .device_facts import Protection as Protection
from .device_facts import Variables as Variables
from .forks import Forks
from .lowering import Lowering
from .measurements import Measurements
from .plan import Copy, Launch, LibraryCall, Pointer, Zero
from .source import LoadedCode

Handle = NewType("Handle", object)
"""Something that belongs to the device: a module, a prepared launch, a graph, a mark.

Prepared launches of kernels are hashed, and equal only if they are the same."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Device(abc.ABC):
    """One device; see the module's text.

    Attributes:
        backend: name of its backend, as blueprints write it.
        formats: kinds of code that `load` takes, best first; see `.source.CodeFormat`.
        name: for errors and metrics, ``backend:resource``.
        abilities: what it can do.
        measurements: made on devices of its kind.
        trials_until: the time, of `time.monotonic`, until which operations may be measured.
    """

    backend: ClassVar[str]
    formats: ClassVar[tuple[str, ...]]
    name: str
    abilities: Abilities

    def __init__(self) -> None:
        self.pool_bytes = 0
        self.measurements = Measurements()
        self.trials_until = math.inf

    # life

    @abc.abstractmethod
    def open(self) -> None:
        """Take the device; does nothing if that was done.

        Raises:
            BackendUnavailable: it is not there or cannot be used.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Give everything back. May be called twice, and after a fault."""

    @abc.abstractmethod
    def properties(self) -> Properties:
        """Give facts about the device; it is open."""

    def fault(self) -> str | None:
        """Give what broke the device for good, or None if it works."""
        return None

    # memory

    def allocate(self, size_bytes: int) -> None:
        """Allocate the pool. There is one at a time; what is in it does not matter.

        Raises:
            DeviceFault: the device has not got that much.
        """
        if self.pool_bytes:
            raise InternalError(f"{self.name}: it has a pool already")
        self._allocate(size_bytes)
        self.pool_bytes = size_bytes

    def free(self) -> None:
        """Free the pool, if there is one."""
        if self.pool_bytes:
            self.pool_bytes = 0
            self._free()

    def register(self, address: int, size_bytes: int) -> None:
        """Make copies from and to this host memory faster, until `close`. Never needed.

        Does nothing for an address that is registered.
        """
        if self.abilities.registers:
            self._register(address, size_bytes)

    def copy_in(self, offset_bytes: int, data: Bytes) -> None:
        """Copy host bytes into the pool."""
        size = data.nbytes if isinstance(data, memoryview) else len(data)
        self._inside("copy_in", offset_bytes, size)
        if size:
            self._copy_in(offset_bytes, data)

    def copy_out(self, offset_bytes: int, view: memoryview) -> None:
        """Copy a part of the pool to a writable view of host memory."""
        self._inside("copy_out", offset_bytes, view.nbytes)
        if view.nbytes:
            self._copy_out(offset_bytes, view)

    def zero(self, offset_bytes: int, size_bytes: int) -> None:
        """Zero a part of the pool."""
        self._inside("zero", offset_bytes, size_bytes)
        if size_bytes:
            self._zero(offset_bytes, size_bytes)

    # protected memory, only where `Abilities.protected_memory`

    def allocate_protected(self, size_bytes: int) -> Handle:
        """Allocate memory beside the pool: zeroed, and open for writing until `protect`.

        Raises:
            DeviceFull: there is no room.
        """
        if not self.abilities.protected_memory:
            raise InternalError(f"{self.name}: it has no protected memory")
        return self._allocate_protected(size_bytes)

    def fill_protected(self, memory: Handle, offset_bytes: int, data: Bytes) -> None:
        """Copy host bytes into memory that is open for writing, in the order of the work."""
        size = data.nbytes if isinstance(data, memoryview) else len(data)
        if size:
            self._fill_protected(memory, offset_bytes, data)

    def protect(self, memory: Handle, protection: Protection) -> None:
        """Say what kernels may do with memory from now on; nothing that uses it is in flight."""
        self._protect(memory, protection)

    def free_protected(self, memory: Handle) -> None:
        """Free memory; no launch that points into it is used any more."""
        self._free_protected(memory)

    # protected memory of other processes, only where `Abilities.shared_memory`

    def export_protected(self, memory: Handle) -> int:
        """Return a new descriptor of memory, with which another process can import it."""
        self._requires_shared_memory()
        return self._export_protected(memory)

    def import_protected(self, descriptor: int, size_bytes: int) -> Handle:
        """Map memory of another process, inaccessible until `protect`.

        Args:
            descriptor: of the memory; it stays the caller's.
            size_bytes: that it was allocated with.

        Raises:
            DeviceFault: it cannot be mapped.
        """
        self._requires_shared_memory()
        return self._import_protected(descriptor, size_bytes)

    def _requires_shared_memory(self) -> None:
        if not self.abilities.shared_memory:
            raise InternalError(f"{self.name}: other processes cannot map its memory")

    # code

    def load(self, code: LoadedCode) -> Handle:
        """Load a module, compiling it if it is a source.

        Raises:
            InvalidFunction: it cannot be compiled or loaded; the compiler's words are in it.
        """
        return self._load(code)

    def unload(self, module: Handle) -> None:
        """Unload a module; none of its launches is used any more."""
        self._unload(module)

    def variables(self, module: Handle) -> Variables:
        """Tell whether a module has variables, which keep their values between launches."""
        return self._variables(module)

    def restore(self, module: Handle) -> None:
        """Give a module's variables their first values, in the order of the work.

        Does nothing for a module that was unloaded.

        Args:
            module: with `Variables.RESTORED`.
        """
        self._restore(module)

    def prepare(
        self, module: Handle, symbol: str, launch: Launch, constants: Handle | None = None
    ) -> Handle:
        """Make a launch ready to be given to `launch` many times.

        Args:
            module: with the kernel.
            symbol: of the kernel.
            launch: what is launched.
            constants: the memory that pointers with `Pointer.constant` point into.

        Raises:
            InvalidBlueprint: the module has no such kernel, or it has other parameters, or the
                device cannot launch that.
        """
        for argument in launch.args:
            if isinstance(argument, Pointer) and not argument.constant:
                self._inside("prepare", argument.offset_bytes, argument.size_bytes)
        return self._prepare(module, symbol, launch, constants)

    def prepare_zero(self, step: Zero) -> Handle:
        """Make zeroing a part of the pool ready to be given to `launch`."""
        self._inside("prepare", step.offset_bytes, step.size_bytes)
        return self._prepare_zero(step)

    def prepare_copy(self, step: Copy, constants: Handle | None = None) -> Handle:
        """Make a copy within the device ready to be given to `launch`.

        Args:
            step: what is copied.
            constants: the memory of a source with `Pointer.constant`.
        """
        for part in (step.target, step.source):
            if not part.constant:
                self._inside("prepare", part.offset_bytes, part.size_bytes)
        return self._prepare_copy(step, constants)

    def lowering(self) -> Lowering:
        """How it carries out library operations; it is open. By default with templates."""
        return Lowering(None, self.abilities.host_execution)

    def prepare_library(self, step: LibraryCall, constants: Handle | None = None) -> Handle:
        """Make an operation of the library ready to be given to `launch`, or captured.

        Args:
            step: what the `Library` of `lowering` can do.
            constants: the memory of operands with `Pointer.constant`.
        """
        for part in (*step.operands.values(), *([step.workspace] if step.workspace else [])):
            if not part.constant:
                self._inside("prepare", part.offset_bytes, part.size_bytes)
        return self._prepare_library(step, constants)

    # work

    def launch(self, prepared: Iterable[Handle]) -> None:
        """Launch in order."""
        self._launch(prepared)

    def capture(
        self,
        prepared: Sequence[Handle],
        forks: Forks | None = None,
        changing: Collection[int] = (),
    ) -> Handle | None:
        """Make one graph of launches; None if the device has no such graphs or no room.

        Args:
            prepared: the launches, in an order in which they could be launched one by one.
            forks: which of them may run side by side; None for all in order.
            changing: places of the launches that `update` may be called for.
        """
        if not self.abilities.graphs:
            return None
        if forks is not None and not forks.fit(len(prepared), self.abilities.graph_lanes):
            raise InternalError(f"{self.name}: the forks do not fit {len(prepared)} launches")
        return self._capture(prepared, forks, frozenset(changing))

    def set_argument(self, prepared: Handle, index: int, data: bytes) -> None:
        """Change an argument by value of a prepared launch; graphs stay as they are.

        Args:
            prepared: made by `prepare`.
            index: of the argument.
            data: as many bytes as it had.
        """
        self._set_argument(prepared, index, data)

    def update(self, graph: Handle, changed: Sequence[tuple[int, Handle]]) -> None:
        """Have launches of a graph take the arguments that prepared launches have now.

        Args:
            graph: which.
            changed: places, among those that are `changing`, and the launches captured there.
        """
        self._update(graph, changed)

    def replay(self, graph: Handle) -> None:
        """Launch a graph."""
        self._replay(graph)

    def discard(self, prepared: Sequence[Handle], graph: Handle | None) -> None:
        """Drop launches and their graph, which nothing uses any more."""
        self._discard(prepared, graph)

    def mark(self) -> Handle | None:
        """Give a mark that `wait` can wait for; None where all work is done already."""
        return self._mark() if self.abilities.asynchronous else None

    def wait(self, mark: Handle | None) -> None:
        """Wait until everything before a mark is done."""
        if mark is not None:
            self._wait(mark)

    def synchronize(self) -> None:
        """Wait until everything is done."""
        self._synchronize()

    # what a device implements

    def _prepare_library(self, step: LibraryCall, constants: Handle | None) -> Handle:
        raise InternalError(f"{self.name}: it has no library")

    @abc.abstractmethod
    def _allocate(self, size_bytes: int) -> None: ...

    @abc.abstractmethod
    def _free(self) -> None: ...

    def _register(self, address: int, size_bytes: int) -> None:
        """Only called where `Abilities.registers`."""

    @abc.abstractmethod
    def _copy_in(self, offset_bytes: int, data: Bytes) -> None: ...

    @abc.abstractmethod
    def _copy_out(self, offset_bytes: int, view: memoryview) -> None: ...

    @abc.abstractmethod
    def _zero(self, offset_bytes: int, size_bytes: int) -> None: ...

    def _allocate_protected(self, size_bytes: int) -> Handle:
        raise NotImplementedError

    def _fill_protected(self, memory: Handle, offset_bytes: int, data: Bytes) -> None:
        raise NotImplementedError

    def _protect(self, memory: Handle, protection: Protection) -> None:
        raise NotImplementedError

    def _free_protected(self, memory: Handle) -> None:
        raise NotImplementedError

    def _export_protected(self, memory: Handle) -> int:
        raise NotImplementedError

    def _import_protected(self, descriptor: int, size_bytes: int) -> Handle:
        raise NotImplementedError

    @abc.abstractmethod
    def _load(self, code: LoadedCode) -> Handle: ...

    @abc.abstractmethod
    def _unload(self, module: Handle) -> None: ...

    def _variables(self, module: Handle) -> Variables:
        return Variables.NONE

    def _restore(self, module: Handle) -> None:
        raise InternalError(f"{self.name}: it restores no variables")

    @abc.abstractmethod
    def _prepare(
        self, module: Handle, symbol: str, launch: Launch, constants: Handle | None
    ) -> Handle: ...

    @abc.abstractmethod
    def _prepare_zero(self, step: Zero) -> Handle: ...

    @abc.abstractmethod
    def _prepare_copy(self, step: Copy, constants: Handle | None) -> Handle: ...

    @abc.abstractmethod
    def _launch(self, prepared: Iterable[Handle]) -> None: ...

    @abc.abstractmethod
    def _set_argument(self, prepared: Handle, index: int, data: bytes) -> None: ...

    def _capture(
        self, prepared: Sequence[Handle], forks: Forks | None, changing: frozenset[int]
    ) -> Handle | None:
        """Forks are only given where `Abilities.graph_lanes` says so."""
        return None

    def _update(self, graph: Handle, changed: Sequence[tuple[int, Handle]]) -> None:
        raise InternalError(f"{self.name}: it has no graphs")

    def _replay(self, graph: Handle) -> None:
        raise InternalError(f"{self.name}: it has no graphs")

    def _discard(self, prepared: Sequence[Handle], graph: Handle | None) -> None:
        """Most devices have nothing to do: handles are dropped by their references."""

    def _mark(self) -> Handle | None:
        return None

    def _wait(self, mark: Handle) -> None:
        self._synchronize()

    @abc.abstractmethod
    def _synchronize(self) -> None: ...

    def _inside(self, operation: str, offset_bytes: int, size_bytes: int) -> None:
        end = offset_bytes + size_bytes
        if offset_bytes < 0 or size_bytes < 0 or end > self.pool_bytes:
            what = f"bytes {offset_bytes}..{end} of a pool of {self.pool_bytes}"
            raise DeviceFault(self.name, operation, what)
