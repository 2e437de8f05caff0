"""Calls of store functions on an engine, without a node, for tests."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import os
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from pathlib import Path
from typing import Any

import msgspec

from dandelion.data import Item, ItemSet
from dandelion.driver import AsyncEngine, Call, Driver, InstanceSets
from dandelion.function import Function, Limits
from dandelion.memory import HeapDomain, MemoryDomain

MIB = 1024 * 1024
Items = Mapping[str, bytes | str] | list[Item]


def run(scenario: Coroutine[Any, Any, None]) -> None:
    """Run a scenario; what it leaves open is a warning, and so a failure."""
    asyncio.run(scenario)
    gc.collect()


def store_driver(backend: str, **options: str) -> Driver:
    """Make a driver; options of the store ``s`` have names such as ``s_bucket``."""
    named = {
        f"store.{name.replace('_', '.', 1)}" if name[1:2] == "_" else name: text
        for name, text in options.items()
    }
    made: Driver = importlib.import_module(f"dandelion.backends.{backend}").driver(named)
    return made


@contextlib.asynccontextmanager
async def store_engine(backend: str, **options: str) -> AsyncIterator[AsyncEngine]:
    """Run an engine; afterwards no task of it may be left."""
    made = store_driver(backend, **options).factory().engine(backend)
    assert isinstance(made, AsyncEngine)
    before = asyncio.all_tasks()
    try:
        yield made
    finally:
        await made.close()
    assert asyncio.all_tasks() <= before


def items(given: Items) -> tuple[Item, ...]:
    if isinstance(given, list):
        return tuple(given)
    named = given.items()
    return tuple(Item(n, 0, v.encode() if isinstance(v, str) else v) for n, v in named)


def store_call(
    backend: str,
    name: str,
    *sets: Items | None,
    domain: MemoryDomain | None = None,
    limits: Limits | None = None,
    seconds: float = 20.0,
    tenant: str = "default",
) -> Call:
    """Make a call of a platform function."""
    module = importlib.import_module(f"dandelion.backends.{backend}")
    spec = next(f for f in module.driver().platform_functions if f.name == name)
    spec = msgspec.structs.replace(spec, limits=limits or Limits())
    inputs = tuple(
        ItemSet(declared.name, items(given)) if given else None
        for declared, given in zip(spec.inputs, sets, strict=True)
    )
    return Call(
        1,
        Function(spec, spec.code[0]),
        inputs,
        domain or HeapDomain(256 * MIB),
        time.monotonic_ns() + int(seconds * 1e9),
        seconds,
        tenant=tenant,
    )


def texts(outputs: InstanceSets, position: int = 0) -> dict[str, bytes]:
    """Return an output set as a dictionary."""
    found = outputs[position]
    return {} if found is None else {item.name: bytes(item.data) for item in found}


async def contexts(domain: MemoryDomain) -> int:
    """Count the contexts of a domain that are in use, once threads have released theirs."""
    for _ in range(100):
        await asyncio.sleep(0)  # the loop's current step may still refer to a result
        gc.collect()  # tracebacks of errors that a test has caught refer to frames with contexts
        if not domain.stats().contexts:
            break
        await asyncio.sleep(0.01)  # a thread refers to the error of its task until it waits again
    return domain.stats().contexts


def descriptors() -> int:
    """Count the open descriptors of this process."""
    return len(list(Path(f"/proc/{os.getpid()}/fd").iterdir()))
