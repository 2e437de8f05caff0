"""What does a fresh sandbox for every call cost?

A function that passes one small item on, as native code, as WebAssembly and in Python; in-process,
on one engine, call after call, and from two engines at once. Beside them: the null backend (the
floor), a call that finds no sandbox waiting, and the memory of one that waits.
"""

from __future__ import annotations

import importlib
import itertools
import os
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from dandelion.bench.measure import Sample, keep_name, report, summed_up

from dandelion.data import SetSpec, item_set
from dandelion.driver import Call, Driver, Engine, load_driver
from dandelion.errors import BackendUnavailable
from dandelion.function import CodeObject, Function, FunctionSpec, digest_of
from dandelion.memory import HeapDomain

COUNT = 1000
BUDGETS = {"native": "<= 250 us", "wasm": "<= 120 us"}
FORMATS = {"null": "null", "native": "elf", "wasm": "wasm", "process": "python"}
_ids = itertools.count(1)


def native_code() -> bytes:
    """Write an executable by hand, since a benchmark needs no compiler: its output is its input.

    The code copies the address of the input buffers to that of the output buffers, the last index
    of the input sets to that of the output sets, sets the exit code to 0 and exits.
    """
    base, system = 0x20000, 0x30000
    code = bytes.fromhex(
        "bb00000300"  # mov ebx, system
        "488b4338 48894340"  # output buffers = input buffers
        "488b4b20 488b5330"  # rcx = input sets, rdx = output sets
        "48c7421000000000"  # first of the first output set = 0
        "488b4128 48894228"  # first of the last = that of the last input set
        "c70300000000"  # exit code = 0
        "31ff b8e7000000 0f05"  # exit_group(0)
    )
    names = b"\0__dandelion_system_data\0"
    pack = struct.pack
    symbols = bytes(24) + pack("<IBBHQQ", 1, 0x11, 0, 1, system, 72)
    at_code, at_names = 0x100, 0x100 + len(code)
    at_symbols = at_names + len(names)
    at_sections = at_symbols + len(symbols)
    header = pack("<4sBBBB8xHHIQQQIHHHHHH", b"\x7fELF", 2, 1, 1, 0, 2, 62, 1, base + at_code, 64,
                  at_sections, 0, 64, 56, 2, 64, 3, 0)  # fmt: skip
    segments = pack("<IIQQQQQQ", 1, 5, 0, base, base, at_names, at_names, 4096)
    segments += pack("<IIQQQQQQ", 1, 6, 0, system, system, 0, 4096, 4096)
    sections = bytes(64)
    sections += pack("<IIQQQQIIQQ", 0, 3, 0, 0, at_names, len(names), 0, 0, 1, 0)
    sections += pack("<IIQQQQIIQQ", 0, 2, 0, 0, at_symbols, len(symbols), 1, 1, 8, 24)
    return (header + segments).ljust(at_code, b"\0") + code + names + symbols + sections


WASM_TEXT = """(module
    (memory (export "memory") 1)
    (global (export "__dandelion_system_data") i32 (i32.const 1024))
    (func (export "run")
        (i32.store (i32.const 1056) (i32.load (i32.const 1052)))
        (i32.store offset=8 (i32.load (i32.const 1048)) (i32.const 0))
        (i32.store offset=20 (i32.load (i32.const 1048))
            (i32.load offset=20 (i32.load (i32.const 1040))))
        (i32.store (i32.const 1024) (i32.const 0))))
"""


def wasm_code() -> bytes:
    """Assemble the same as a module."""
    return bytes(importlib.import_module("wasmtime").wat2wasm(WASM_TEXT))


SOURCES: dict[str, Callable[[], bytes]] = {
    "null": lambda: b"",
    "native": native_code,
    "wasm": wasm_code,
    "process": lambda: b"def f(x):\n    return x\n",
}


def function(backend: str) -> Function:
    """Make the function for a backend."""
    main = SOURCES[backend]()
    options = {"entry": "f"} if backend == "process" else {}
    code = CodeObject(FORMATS[backend], digest_of(main), options=options)
    spec = FunctionSpec("Echo", (SetSpec("x"),), (SetSpec("y"),), code=(code,))
    return Function(spec, code, main)


class Caller:
    """Calls one function on one engine of its own."""

    def __init__(self, driver: Driver, backend: str, resource: str) -> None:
        engine = driver.engine(resource)
        assert isinstance(engine, Engine)
        self.engine = engine
        self.function = function(backend)
        driver.check(self.function)
        self._domain = HeapDomain(1 << 24)
        self._inputs = (item_set("x", b"hello"),)

    def call(self) -> float:
        """Make one call; give its time in microseconds, without what may wait until after it."""
        deadline = time.monotonic_ns() + 10**10
        call = Call(next(_ids), self.function, self._inputs, self._domain, deadline)
        start = time.perf_counter_ns()
        (result,) = self.engine.run(call)
        took = time.perf_counter_ns() - start
        assert result is not None
        assert result.bytes() == b"hello"
        self.engine.settle()
        return took / 1e3

    def calls(self, count: int) -> list[float]:
        """Make calls one after the other."""
        return [self.call() for _ in range(count)]


def measure(backend: str) -> list[Sample]:
    """Time a backend's calls on one engine and on two at once."""
    driver = load_driver(backend)
    resources = [r.name for r in driver.probe()]
    callers = [Caller(driver, backend, (resources * 2)[at]) for at in range(2)]
    budget = BUDGETS.get(backend, "")
    try:
        first = callers[0].call()
        callers[0].calls(200)
        start = time.perf_counter_ns()
        one = callers[0].calls(COUNT)
        whole = (time.perf_counter_ns() - start) / 1e3 / COUNT
        both = _at_once(callers)
        return [
            summed_up(f"{backend}: a call", one, budget=budget),
            summed_up(f"{backend}: a call, with what waits until after it", [whole]),
            summed_up(f"{backend}: a call, two engines at once", both),
            summed_up(f"{backend}: the first call", [first]),
        ]
    finally:
        for caller in callers:
            caller.engine.close()


def _at_once(callers: list[Caller]) -> list[float]:
    timings: list[float] = []
    threads = [
        threading.Thread(target=lambda c=c: timings.extend(c.calls(COUNT // 2))) for c in callers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return timings


def without_a_pool(count: int = 300) -> Sample:
    """Time native calls that find no sandbox waiting: one is forked while they wait."""
    cores = importlib.import_module("dandelion.backends.native.cores")
    caller = Caller(cores.NativeDriver(ahead=1), "native", "0")
    timings = []
    try:
        for _ in range(count):
            ready = caller.engine._ready  # type: ignore[attr-defined]  # there is no public way
            if ready is not None:
                caller.engine._ready = None  # type: ignore[attr-defined]
                caller.engine._nursery.replace(ready)  # type: ignore[attr-defined]
            timings.append(caller.call())
    finally:
        caller.engine.close()
    return summed_up("native: a call that finds no sandbox ready", timings)


def memory() -> dict[str, int]:
    """Memory of their own that zygotes and waiting sandboxes have, in KiB, the middle of each."""
    found: dict[str, list[int]] = {}
    for backend in ("native", "process"):
        driver = load_driver(backend)
        caller = Caller(driver, backend, driver.probe()[0].name)
        try:
            caller.calls(3)
            for zygote in _children(os.getpid()):
                found.setdefault(f"{backend}: zygote", []).append(_private_kib(zygote))
                for child in _children(zygote):
                    if size := _private_kib(child):
                        found.setdefault(f"{backend}: waiting", []).append(size)
        finally:
            caller.engine.close()
    return {name: sorted(sizes)[len(sizes) // 2] for name, sizes in found.items()}


def _children(pid: int) -> list[int]:
    paths = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(p) for path in paths for p in path.read_text().split()]


def _private_kib(pid: int) -> int:
    """Pages of its own, and its page tables; zero if it has ended."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (ProcessLookupError, FileNotFoundError):
        return 0
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    lines = [line for line in rollup if line.startswith("Private_")]
    lines += [line for line in status if line.startswith("VmPTE")]
    return sum(int(line.split()[1]) for line in lines)


def main() -> None:
    """Run and print."""
    samples: list[Sample] = []
    for backend in SOURCES:
        try:
            samples += measure(backend)
        except BackendUnavailable as error:
            print(error, file=sys.stderr)
    samples.append(without_a_pool())
    report("sandbox", "what does a fresh sandbox for every call cost?", samples, keep_name())
    for name, kib in memory().items():
        print(f"{name}: {kib} KiB of its own")


if __name__ == "__main__":
    main()
