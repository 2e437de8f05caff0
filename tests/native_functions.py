"""Builds native and WebAssembly functions, and calls, for the tests."""

from __future__ import annotations

import functools
import itertools
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dandelion.backends.native as native
import pytest

from dandelion.data import ItemSet, SetSpec
from dandelion.documents import set_spec
from dandelion.driver import Call, Engine, InstanceSets, load_driver
from dandelion.function import CodeObject, Function, FunctionSpec, Limits, digest_of
from dandelion.memory import HeapDomain, MemoryDomain
from dandelion.set_values import item_set

SOURCES = Path(__file__).parent / "native"
HEADERS = Path(native.__file__).parent
MIB = 1024 * 1024
FLAGS = """
    -O2 -static -nostdlib -ffreestanding -fno-stack-protector -fno-pie -no-pie -fcf-protection=none
    -fno-asynchronous-unwind-tables -Wall -Wextra -Wno-unused-function -Wno-infinite-recursion
    -Wno-array-bounds -Wl,--build-id=none
"""

_ids = itertools.count(1)


def compiler() -> str:
    """Find the machine's C compiler, or skip the test."""
    found = shutil.which("cc")
    if found is None:
        pytest.skip("there is no C compiler (cc)")
    return found


def build(source: Path, *flags: str) -> bytes:
    """Build a native function."""
    cc = compiler()
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "function"
        command = [cc, *FLAGS.split(), *flags, f"-I{HEADERS}", str(source), "-o", str(made)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return made.read_bytes()


@functools.cache
def built(name: str) -> bytes:
    """Build one of the sources beside this file, once."""
    return build(SOURCES / name)


def function(
    main: bytes,
    *,
    kind: str = "elf",
    inputs: tuple[SetSpec | str, ...] = ("x", "z"),
    outputs: tuple[SetSpec | str, ...] = ("y",),
    context_bytes: int = 0,
    **limits: Any,
) -> Function:
    """Make a function from an executable or a module."""
    options = {"context_bytes": str(context_bytes)} if context_bytes else {}
    code = CodeObject(kind, digest_of(main), options=options)
    spec = FunctionSpec(
        "probe",
        tuple(map(set_spec, inputs)),
        tuple(map(set_spec, outputs)),
        code=(code,),
        limits=Limits(**({"wall_s": 20.0, "memory_bytes": 32 * MIB} | limits)),
    )
    return Function(spec, code, main)


def call_of(
    fn: Function, *values: Any, domain: MemoryDomain | None = None, left_s: float = 30.0
) -> Call:
    """Make a call with one value for each input set."""
    padded = values + (None,) * (len(fn.spec.inputs) - len(values))
    inputs = tuple(item_set(s.name, v, s) for s, v in zip(fn.spec.inputs, padded, strict=True))
    deadline = time.monotonic_ns() + int(left_s * 1e9)
    return Call(next(_ids), fn, inputs, domain or HeapDomain(1 << 30), deadline, left_s)


def run(engine: Engine, fn: Function, *values: Any, **how: Any) -> InstanceSets:
    """Run a function to its end, as a node does."""
    try:
        return engine.run(call_of(fn, *values, **how))
    finally:
        engine.clean_up()


def first(outputs: InstanceSets) -> ItemSet:
    """Return the first output set, which must not be empty."""
    assert outputs[0] is not None
    return outputs[0]


@contextmanager
def engine_of(backend: str, **options: str) -> Iterator[Engine]:
    """Yield an engine of its own driver, and close it."""
    driver = load_driver(backend)
    driver.configure(options)
    engine = driver.factory().engine("0")
    assert isinstance(engine, Engine)
    try:
        yield engine
    finally:
        engine.close()
        driver.checker().close()
