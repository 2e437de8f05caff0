"""The engine: a fresh instance for each call.

The compiler confines a function: every memory access is checked or cannot leave the instance's
range, jumps stay within its code, and it imports nothing. Two mechanisms limit its time: fuel,
counted alike on every machine, enforces the CPU limit; the epoch enforces the deadline. In a node,
the engine runs in a process of its own without rights (`.confine`), which holds if all this fails.
"""

from __future__ import annotations

import ctypes
import struct
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dandelion.driver import Call, Engine, InstanceSets
from dandelion.errors import (
    Cancelled,
    DandelionError,
    EngineDied,
    Faulted,
    InvalidFunction,
    OutOfMemory,
    TimedOut,
)
from dandelion.function import Digest, Function, Limits

from ..native.outputs import OutputReader
from ..native.structures import NOT_EXITED, WASM, Inputs, align, lay_out, system_data
from . import compiler, module
from .interrupt import Interrupt
from .programs import WasmPrograms

if TYPE_CHECKING:
    import wasmtime

FUEL_PER_CPU_S = 4_000_000_000
"""About one unit for each instruction; more than a current processor executes in a second."""

EXIT_OUT_OF_MEMORY = 259

_ADDRESS_LIMIT = 2**32
_TABLE_ELEMENTS, _TABLES = 100_000, 4
_MODULES = 64
_FAULTS = {
    "STACK_OVERFLOW": "stack overflow",
    "MEMORY_OUT_OF_BOUNDS": "memory access out of bounds",
    "TABLE_OUT_OF_BOUNDS": "table access out of bounds",
    "INDIRECT_CALL_TO_NULL": "call of an empty table entry",
    "BAD_SIGNATURE": "call of a function of another type",
    "INTEGER_OVERFLOW": "integer overflow",
    "INTEGER_DIVISION_BY_ZERO": "integer division by zero",
    "BAD_CONVERSION_TO_INTEGER": "a float out of range for the integer type",
    "UNREACHABLE": "an unreachable instruction was executed",
}


@dataclass(frozen=True, slots=True)
class _Loaded:
    facts: module.WasmModule
    compiled: wasmtime.Module


class _Memory:
    """An instance's memory after its run; implements `..native.outputs.Memory`."""

    lowest = 0

    def __init__(self, memory: wasmtime.Memory, store: wasmtime.Store) -> None:
        self.end = memory.data_len(store)
        self._address = ctypes.addressof(memory.data_ptr(store).contents) if self.end else 0

    def view(self, address: int, size_bytes: int) -> memoryview:
        """View a part; valid until the memory grows or the store is closed."""
        assert 0 <= address <= self.end - size_bytes
        return memoryview((ctypes.c_char * size_bytes).from_address(self._address + address)).cast(
            "B"
        )

    def read(self, address: int, size_bytes: int) -> bytes:
        assert 0 <= address <= self.end - size_bytes
        return ctypes.string_at(self._address + address, size_bytes)

    def read_into(self, address: int, target: memoryview) -> None:
        target[:] = self.view(address, len(target))


class WasmEngine(Engine):
    """Runs WebAssembly functions.

    Args:
        name: for errors, metrics and traces.
        programs: compiled modules; shared by all engines of the driver.
    """

    def __init__(self, name: str, programs: WasmPrograms) -> None:
        self.name = name
        self._programs = programs
        self._engine = compiler.new_engine()
        self._interrupt = Interrupt(self._engine, f"interrupt-{name}")
        self._interrupt.start()
        self._modules: OrderedDict[Digest, _Loaded] = OrderedDict()
        self._lock = threading.Lock()
        self._call_id: int | None = None
        self._cancelled = False
        self._closed = False
        self._used: wasmtime.Store | None = None

    def _run(self, call: Call) -> InstanceSets:
        with self._lock:
            if self._closed:
                raise EngineDied(self.name, "it was closed")
            self._call_id = call.id
            self._cancelled = False
        try:
            return self._run_one(call)
        finally:
            with self._lock:
                self._call_id = None

    def _run_one(self, call: Call) -> InstanceSets:
        import wasmtime

        spec = call.function.spec
        started = time.monotonic_ns()
        own_deadline = started + int(spec.limits.wall_s * 1e9)
        deadline = min(call.deadline_ns, own_deadline)
        loaded = self._load(call.function)
        store = self._used = wasmtime.Store(self._engine)
        limit = _limit_bytes(call, loaded.facts)
        store.set_limits(limit, _TABLE_ELEMENTS, instances=1, tables=_TABLES, memories=1)
        store.set_fuel(_fuel(spec.limits))
        self._interrupt.arm(store, deadline)
        try:
            instance = wasmtime.Instance(store, loaded.compiled, ())
            exports = instance.exports(store)
            memory, entry = exports[module.MEMORY], exports[module.ENTRY]
            assert isinstance(memory, wasmtime.Memory)
            assert isinstance(entry, wasmtime.Func)
            self._write_inputs(call, loaded.facts, memory, store, limit)
            ready = time.monotonic_ns()
            trap = self._enter(entry, store)
        except wasmtime.Trap as error:
            raise Faulted(spec.name, _fault(error)) from None
        except wasmtime.WasmtimeError as error:
            raise _refusal(spec.name, error, limit) from None
        finally:
            self._interrupt.disarm()
        ran = time.monotonic_ns()
        if self._cancelled:
            raise Cancelled("while it ran")
        limit_s = spec.limits.wall_s if deadline == own_deadline else call.limit_s
        outputs = self._outputs(call, loaded.facts, _Memory(memory, store), trap, limit, limit_s)
        call.stages["instance"] = ready - started
        call.stages["run"] = ran - ready
        call.stages["outputs"] = time.monotonic_ns() - ran
        return outputs

    def _enter(self, entry: wasmtime.Func, store: wasmtime.Store) -> wasmtime.Trap | None:
        import wasmtime

        with self._lock:
            if self._cancelled:
                raise Cancelled("before it ran")
        try:
            entry(store)
        except wasmtime.Trap as trap:
            return trap
        return None

    def _load(self, function: Function) -> _Loaded:
        import wasmtime

        found = self._modules.get(function.identity)
        if found is not None:
            self._modules.move_to_end(function.identity)
            return found
        facts, problems = module.read(function.main, function.spec.limits.memory_bytes)
        if facts is None:
            raise InvalidFunction(tuple(problems))
        made = function.binary or self._programs.compiled(function.main)
        loaded = _Loaded(facts, wasmtime.Module.deserialize(self._engine, bytes(made)))
        self._modules[function.identity] = loaded
        if len(self._modules) > _MODULES:
            self._modules.popitem(last=False)
        return loaded

    def _write_inputs(
        self,
        call: Call,
        facts: module.WasmModule,
        memory: wasmtime.Memory,
        store: wasmtime.Store,
        limit: int,
    ) -> None:
        spec = call.function.spec
        start = align(memory.data_len(store))
        try:
            inputs = lay_out(WASM, start, call.inputs, spec.input_names, spec.output_names)
        except struct.error:  # addresses of more than 32 bits
            raise OutOfMemory(spec.name, limit) from None
        _grow(memory, store, inputs, spec.name, limit)
        whole = _Memory(memory, store)
        target = whole.view(start, inputs.size_bytes)
        at = 0
        for part in inputs.parts:
            target[at : at + len(part)] = part
            at += len(part)
        heap = (align(start + inputs.size_bytes), whole.end)
        data = system_data(WASM, inputs, heap, len(call.inputs), len(spec.outputs))
        whole.view(facts.system_data, len(data))[:] = data

    def _outputs(
        self,
        call: Call,
        facts: module.WasmModule,
        memory: _Memory,
        trap: wasmtime.Trap | None,
        limit: int,
        limit_s: float,
    ) -> InstanceSets:
        spec = call.function.spec
        code = trap.trap_code.name if trap is not None and trap.trap_code is not None else ""
        if code == "INTERRUPT":
            raise TimedOut(spec.name, "wall", limit_s)
        if code == "OUT_OF_FUEL":
            raise TimedOut(spec.name, "cpu", spec.limits.cpu_s)
        reader = OutputReader(WASM, memory, spec)
        data = reader.system_data(facts.system_data)
        left = code == "UNREACHABLE" and data.exit_code != NOT_EXITED
        if trap is not None and not left:
            raise Faulted(spec.name, _fault(trap))
        if data.exit_code == EXIT_OUT_OF_MEMORY:
            raise OutOfMemory(spec.name, limit)
        return reader.result(data, call)

    def compiled(self, main: bytes) -> bytes:
        """Compile a trusted module in this process."""
        import wasmtime

        return bytes(wasmtime.Module(self._engine, main).serialize())

    def start_interrupt(self) -> None:
        """Start the engine's thread again."""
        self._interrupt.start()

    def end_interrupt(self) -> None:
        """End the engine's thread until it is started again; meanwhile there are no calls."""
        self._interrupt.close()

    def clean_up(self) -> None:
        used, self._used = self._used, None
        if used is not None:
            used.close()

    def forget(self, function: Function) -> None:
        self._modules.pop(function.identity, None)

    def cancel(self, call_id: int) -> bool:
        with self._lock:
            if self._call_id != call_id:
                return False
            self._cancelled = True
        self._interrupt.stop()
        return True

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            running = self._call_id
        if running is not None:
            self.cancel(running)
        self._interrupt.close()


def _limit_bytes(call: Call, facts: module.WasmModule) -> int:
    """Return the memory limit of the instance: its own memory and its inputs."""
    inputs = sum(s.size_bytes for s in call.inputs if s is not None)
    return min(call.function.spec.limits.memory_bytes + align(inputs, module.PAGE), _ADDRESS_LIMIT)


def _fuel(limits: Limits) -> int:
    return min(int(limits.cpu_s * FUEL_PER_CPU_S) + 1, 2**63)


def _grow(
    memory: wasmtime.Memory, store: wasmtime.Store, inputs: Inputs, name: str, limit: int
) -> None:
    import wasmtime

    try:
        memory.grow(store, -(-inputs.size_bytes // module.PAGE))
    except wasmtime.WasmtimeError:
        raise OutOfMemory(name, limit) from None


def _refusal(name: str, error: wasmtime.WasmtimeError, limit: int) -> DandelionError:
    text = str(error).splitlines()[0] if str(error) else "it cannot be instantiated"
    if "memory" in text:
        return OutOfMemory(name, limit)
    return Faulted(name, text[:200])


def _fault(trap: wasmtime.Trap) -> str:
    code = trap.trap_code
    text = _FAULTS.get(code.name, code.name.lower().replace("_", " ")) if code else "a trap"
    frames = trap.frames
    return f"{text} at offset {frames[0].module_offset:#x}" if frames else text
