"""Builds Python functions and calls for the tests of the process backend."""

from __future__ import annotations

import itertools
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dandelion.backends.process.cores import ProcessDriver
from dandelion.backends.process.engine import ProcessEngine

from dandelion.data import ItemSet, SetSpec
from dandelion.documents import set_spec
from dandelion.driver import Call, InstanceSets
from dandelion.function import CodeObject, Function, FunctionSpec, Limits, digest_of
from dandelion.memory import HeapDomain, MemoryDomain
from dandelion.set_values import item_set

_ids = itertools.count(1)


def function(
    source: str,
    *,
    inputs: tuple[SetSpec | str, ...] = ("x",),
    outputs: tuple[SetSpec | str, ...] = ("y",),
    imports: str = "",
    entry: str = "f",
    **limits: Any,
) -> Function:
    """Make a function from the text of a module."""
    main = textwrap.dedent(source).encode()
    options = {"entry": entry} | ({"imports": imports} if imports else {})
    code = CodeObject("python", digest_of(main), options=options)
    spec = FunctionSpec(
        "probe",
        tuple(map(set_spec, inputs)),
        tuple(map(set_spec, outputs)),
        code=(code,),
        limits=Limits(**({"wall_s": 20.0} | limits)),
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


def run(engine: ProcessEngine, fn: Function, *values: Any, **how: Any) -> InstanceSets:
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
def process_engine(ahead: int = 2) -> Iterator[ProcessEngine]:
    """Yield an engine of its own driver, and close it."""
    driver = ProcessDriver(ahead)
    engine = driver.factory().engine("0")
    try:
        yield engine
    finally:
        engine.close()
        driver.checker().close()
