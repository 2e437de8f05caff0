"""Engines in this process, without a node: what an engine itself adds to bare work.

A call's inputs are prepared beforehand, so it can be made repeatedly. `PreparedCall.call` is what
an engine process does from receiving a call to having its outputs; `PreparedCall.clean_up` is what
it does between calls.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from dandelion.backends.gpu.driver import GpuDriver

import dandelion.blueprint as bp
from dandelion.data import Item, ItemSet
from dandelion.documents import FunctionDocument, content, gpu_function, set_spec
from dandelion.driver import Call, Driver, Engine, InstanceSets, load_driver
from dandelion.function import CodeObject, Function, FunctionSpec, StaticItem, digest_of
from dandelion.memory import HeapDomain, SharedDomain

from ..processes import Closeable
from .bare import TICK

GPU_OPTIONS = {"cuda": {"pool_bytes": "4G", "weights": "1G"}, "hip": {"pool_bytes": "4G"}}
_SMALL = {"pool_bytes": "256M"}
_DEADLINE_NS = 60 * 10**9
_WEIGH = """
#include "dandelion.h"
KERNEL void weigh(GLOBAL const i32 *w, GLOBAL const i32 *x, GLOBAL i32 *y)
{
    y[GLOBAL_ID(0)] = w[GLOBAL_ID(0)] + x[GLOBAL_ID(0)];
}
"""


class PreparedCall:
    """A call of a function on an engine.

    Attributes:
        outputs: of the last call, until `clean_up`.
    """

    def __init__(
        self,
        engine: Any,  # Engine, and for GPUs SequentialEngine, whose device is used too
        domain: SharedDomain | HeapDomain,
        function: Function,
        sets: tuple[ItemSet, ...],
    ) -> None:
        self.engine = engine
        self.outputs: InstanceSets = ()
        self._domain = domain
        self._function = function
        self._sets = sets
        self._number = 0

    def call(self) -> None:
        """Make the call."""
        self._number += 1
        deadline = time.monotonic_ns() + _DEADLINE_NS
        call = Call(self._number, self._function, self._sets, self._domain, deadline)
        self.outputs = self.engine.run(call)

    def clean_up(self) -> None:
        """Do what a node does between calls: release the outputs, and zero what was used."""
        self.outputs = ()
        self.engine.clean_up()
        if isinstance(self._domain, SharedDomain):  # of a GPU
            self.engine.device.synchronize()
            self._domain.recycle()

    def call_and_clean_up(self) -> None:
        """Make the call, and enqueue zeroing before anything else is done."""
        self.call()
        self.engine.clean_up()

    def forget(self) -> None:
        """Drop everything that the engine has loaded of the function."""
        self.engine.forget(self._function)

    def result(self, dtype: Any) -> Any:  # of numpy
        """View the first output of the last call."""
        assert self.outputs[0] is not None
        return self.outputs[0].numpy(dtype, (-1,))


class LocalGpuEngine(Closeable):
    """The sequential engine of the first device of a backend, and an arena.

    Raises:
        BackendUnavailable: the device cannot be used.
    """

    def __init__(
        self, backend: str, arena_bytes: int = 512 << 20, pool_bytes: int | None = None
    ) -> None:
        self.domain = SharedDomain(arena_bytes)
        try:
            driver = load_driver(backend)
            assert isinstance(driver, GpuDriver)
            options = GPU_OPTIONS.get(backend, _SMALL)
            driver.configure({"pool_bytes": str(pool_bytes)} if pool_bytes else options)
            factory = driver.factory()
            factory.attach(self.domain.map)
            self.resource = factory.probe()[0]
            self.engine = factory.sequential(self.resource.name)
        except BaseException:
            self.domain.close()
            raise

    def prepared(self, document: FunctionDocument, given: Mapping[str, bytes]) -> PreparedCall:
        """Prepare a call, with its inputs in the arena.

        Args:
            given: the bytes of each input set that is not static.
        """
        values = dict(given)
        for name, items in document.static.items():
            (values[name],) = (content(item).bytes() for item in items.values())
        sets = {}
        for name, value in values.items():
            view = self.domain.acquire(len(value)).write(0, value)
            sets[name] = ItemSet(name, (Item(name, 0, view),))
        function = function_of(document, {name: sets[name] for name in document.static})
        ordered = tuple(sets[name] for name in function.spec.input_names)
        return PreparedCall(self.engine, self.domain, function, ordered)

    def close(self) -> None:
        self.engine.close()
        self.domain.close()


def local_call(
    driver: Driver, resource: str, document: FunctionDocument, given: Mapping[str, bytes]
) -> PreparedCall:
    """Prepare a call on an engine of this process for processors, with its inputs on the heap."""
    function = function_of(document)
    driver.checker().check([function])
    engine = driver.factory().engine(resource)
    assert isinstance(engine, Engine)
    sets = tuple(ItemSet(name, (Item("", 0, data),)) for name, data in given.items())
    return PreparedCall(engine, HeapDomain(1 << 24), function, sets)


def function_of(
    document: FunctionDocument, sets: Mapping[str, ItemSet] = MappingProxyType({})
) -> Function:
    """Make the function of a document with one code object, as a node does.

    Args:
        sets: its static sets; those that are missing have to be given with each call.
    """
    (code,) = document.code
    main = content(code.main).bytes()
    files = {name: content(file).bytes() for name, file in code.files.items()}
    static = {
        name: tuple(
            StaticItem(item, digest_of(content(value).bytes())) for item, value in items.items()
        )
        for name, items in document.static.items()
    }
    digests = {name: digest_of(data) for name, data in files.items()}
    made = CodeObject(code.format, digest_of(main), digests, code.options)
    inputs, outputs = (tuple(map(set_spec, s)) for s in (document.inputs, document.outputs))
    spec = FunctionSpec(
        document.name, inputs, outputs, static, (made,), limits=document.limits
    )  # fmt: skip
    return Function(spec, made, main, files, sets)


def ticks(times: int) -> FunctionDocument:
    """Describe a function that does what `ticks_work` does, with one blueprint."""
    b = bp.Blueprint(inputs=["x"], outputs=["x"], modules={"t": "tick.c"})
    with b.repeat(times):
        b.launch("tick", [b.x], grid=1, block=32)
    files = {"tick.c": TICK}
    return gpu_function(f"ticks_{times}", b.json(), inputs=["x"], outputs=["x"], files=files)


def weighed(name: str, weights: bytes, fixed: bool) -> FunctionDocument:
    """Describe ``y = w + x`` on int32, with the weights static or given with each call."""
    b = bp.Blueprint(inputs=["x"], weights=["w"], outputs=["y"], modules={"k": "weigh.c"})
    b.launch("weigh", [b.w, b.x, b.buffer("y", like="x")], grid=1, block=1024)
    static = {"w": {"w": weights}} if fixed else None
    files, inputs = {"weigh.c": _WEIGH}, ["x", "w"]
    return gpu_function(name, b.json(), inputs=inputs, outputs=["y"], files=files, static=static)
