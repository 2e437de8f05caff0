"""A kernel that makes given system calls, and hosts that run it with and without confinement.

The function `SCRIPT` gets a list of calls and a piece of memory, and gives what each call returned
and that memory. It has inline assembly, which registration refuses, so hosts are started here with
that check taken out: the next layer of protection must stop the attack.
"""

from __future__ import annotations

import struct
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import pytest
from dandelion.backends.gpu.confined import ConfinedEngine
from dandelion.backends.gpu.host_template import HostTemplate
from dandelion.backends.opencl import OpenClDriver

from dandelion.confinement.syscalls import native
from dandelion.data import Item, ItemSet, SetSpec
from dandelion.driver import Call, load_driver
from dandelion.errors import BackendUnavailable
from dandelion.function import CodeObject, Function, FunctionSpec, Limits, digest_of
from dandelion.memory import HeapDomain

NUMBERS = MappingProxyType(native().numbers)
FAR_NS = 60 * 10**9
CALL_WORDS = 8
EXIT_IF_ZERO = -1  # instead of a system call: exit if the call before it returned 0

SOURCE = r"""
#undef __asm__
static long call(long n, long a, long b, long c, long d, long e, long f)
{
    long result;
    __asm__ volatile("movq %5, %%r10; movq %6, %%r8; movq %7, %%r9; syscall"
        : "=a"(result) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(d), "r"(e), "r"(f)
        : "rcx", "r8", "r9", "r10", "r11", "memory");
    return result;
}

__kernel void attack(__global long *script, __global char *memory, __global long *results,
                     ulong bytes)
{
    ulong count = bytes / 64;
    for (ulong i = 0; i < count; i++) {
        __global long *words = script + 8 * i;
        long arguments[6];
        for (int at = 0; at < 6; at++) {
            arguments[at] = words[1 + at];
            if (words[7] >> at & 1)
                arguments[at] += (long)memory;
            if (words[7] >> (at + 8) & 1)
                arguments[at] = results[words[1 + at]];
        }
        if (words[0] == -1) {
            if (results[i - 1] == 0)
                call(231, 0, 0, 0, 0, 0, 0);
            continue;
        }
        results[i] = call(words[0], arguments[0], arguments[1], arguments[2], arguments[3],
                          arguments[4], arguments[5]);
    }
}
"""

BLUEPRINT = """{
  "modules": {"attack": "attack.cl"}, "kernels": {"attack": "attack"},
  "blueprint": {"inputs": ["script", "memory"],
    "buffers": {"results": {"Sizeof": "script"}}, "outputs": ["results", "memory"],
    "control_flow": [{"ExecKernel": ["attack", [{"Ptr": "script"}, {"Ptr": "memory"},
      {"Ptr": "results"}, {"Sizeof": "script"}], {}]}]}
}"""


@dataclass(frozen=True)
class At:
    """An argument that is an address in the memory of the attack."""

    offset: int


@dataclass(frozen=True)
class Result:
    """An argument that an earlier call of the attack returned."""

    index: int


Word = int | At | Result
Script = list[tuple[int | str, *tuple[Word, ...]]]


def packed(script: Script) -> bytes:
    """Write a script as the kernel reads it."""
    parts = []
    for name, *words in script:
        number = NUMBERS[name] if isinstance(name, str) else name
        plain, flags = [0] * 6, 0
        for index, word in enumerate(words):
            if isinstance(word, At):
                plain[index], flags = word.offset, flags | 1 << index
            elif isinstance(word, Result):
                plain[index], flags = word.index, flags | 1 << index + 8
            else:
                plain[index] = word
        parts.append(struct.pack("<8q", number, *plain, flags))
    return b"".join(parts)


def function(
    name: str, source: str = SOURCE, blueprint: str = BLUEPRINT, wall_s: float = 30.0
) -> Function:
    """Make the function of a kernel whose sets are those of the attack."""
    main = blueprint.encode()
    files = {"attack.cl": source.encode()}
    code = CodeObject("blueprint", digest_of(main), {n: digest_of(d) for n, d in files.items()})
    inputs, outputs = ("script", "memory"), ("results", "memory")
    spec = FunctionSpec(
        name,
        tuple(SetSpec(n) for n in inputs),
        tuple(SetSpec(n) for n in outputs),
        code=(code,),
        limits=Limits(wall_s=wall_s),
    )
    return Function(spec, code, main, files)


ATTACK = function("Attack")
_UNCHECKED = (
    "import dandelion.backends.gpu.opencl_device as o; o.checked_source = lambda code: None;"
)
_HOST = "import sys; from dandelion.backends.gpu import kernel_host as h;"
_MAIN = "sys.exit(h.main(sys.argv[1:]))"
_NO_WALL = """
import os
from pathlib import Path
def give_up_rights(loaded, settings):
    os.chdir(settings.folder)
    loaded.runtime.furnish(Path(settings.folder))
    return {}
h.give_up_rights, h.lock = give_up_rights, lambda settings, engine, socket_fd: None
"""
CONFINED = (sys.executable, "-P", "-c", _UNCHECKED + _HOST + _MAIN)
UNCONFINED = (sys.executable, "-P", "-c", _UNCHECKED + _HOST + _NO_WALL + _MAIN)


class Attacker:
    """An engine whose hosts take any kernel."""

    def __init__(self, engine: ConfinedEngine) -> None:
        self.engine = engine
        self.domain = HeapDomain(1 << 26)
        self._number = 0

    def call(self, wanted: Function, script: bytes, memory: bytes, left_ns: int = FAR_NS) -> Call:
        self._number += 1
        inputs = tuple(
            ItemSet(name, (Item("item", 0, data),))
            for name, data in (("script", script), ("memory", memory))
        )
        end_ns = time.monotonic_ns() + left_ns
        return Call(self._number, wanted, inputs, self.domain, end_ns, left_ns / 1e9)

    def run(self, call: Call) -> tuple[bytes, bytes]:
        results, memory = self.engine.run(call)
        self.engine.clean_up()
        assert results is not None
        assert memory is not None
        return results.items[0].bytes(), memory.items[0].bytes()

    def attack(
        self, script: Script, memory: bytes = b"\0", wanted: Function = ATTACK
    ) -> tuple[list[int], bytes]:
        """Return the results of the calls of a script, and the memory afterwards."""
        results, left = self.run(self.call(wanted, packed(script), memory))
        return list(struct.unpack_from(f"<{len(script)}q", results)), left

    @property
    def template(self) -> int:
        """Process id of the template of the hosts."""
        return self.engine._template.pid

    def pid(self, wanted: Function = ATTACK) -> int:
        """Process id of the host of a function."""
        return self.engine.hosts()[wanted.identity]


@contextmanager
def attacker(
    command: tuple[str, ...], processes: int = 4, threads: int = 1, trial_ns: int = 10**15
) -> Iterator[Attacker]:
    """Start an engine. By default functions keep their host: attacks leave traces in it."""
    driver = OpenClDriver()
    driver.configure({"pool_bytes": "16M", "processes": str(processes), "threads": str(threads)})
    runtime = driver.factory().host_runtime()
    assert runtime is not None
    template = HostTemplate(driver.name, driver.options.given, runtime, command)
    engine = ConfinedEngine(driver.options, runtime, "cpu", template, trial_ns)
    try:
        yield Attacker(engine)
    finally:
        engine.close()


def skip_without_opencl() -> None:
    """For fixtures of modules whose tests all need the device."""
    try:
        load_driver("opencl").factory().probe()
    except BackendUnavailable as error:
        pytest.skip(str(error))


def text(*parts: str | Path | bytes) -> tuple[bytes, list[At]]:
    """Put terminated texts into a memory; return it and their offsets."""
    memory, places = b"", []
    for part in parts:
        places.append(At(len(memory)))
        memory += (part if isinstance(part, bytes) else str(part).encode()) + b"\0"
    return memory, places
