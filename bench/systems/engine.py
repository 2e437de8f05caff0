"""A GPU engine without a node: what the engine itself adds to bare work.

Inputs lie in an arena, as a node's do. `HeldCall.call` is what an engine process does from getting
a call to having its outputs; `HeldCall.settle` is what it does between calls.
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
from dandelion.driver import Call, InstanceSets, Sharing, load_driver
from dandelion.function import CodeObject, Function, FunctionSpec, StaticItem, digest_of
from dandelion.memory import SharedDomain, Transfers
from dandelion.node.remote import Answer, RemoteEngine, Sent
from dandelion.settings import Settings

from ..closing import Closing
from .bare import TICK

_OPTIONS = {"cuda": {"pool_bytes": "4G", "weights": "1G"}, "hip": {"pool_bytes": "4G"}}
_SMALL = {"pool_bytes": "256M"}
_DEADLINE_S = 60

WEIGH = """
#include "dandelion.h"
KERNEL void weigh(GLOBAL const i32 *w, GLOBAL const i32 *x, GLOBAL i32 *y)
{
    y[GLOBAL_ID(0)] = w[GLOBAL_ID(0)] + x[GLOBAL_ID(0)];
}
"""


class LocalEngine(Closing):
    """An engine in this process; use it with ``with``.

    Args:
        backend: ``cuda``, ``hip`` or ``opencl``.
        arena_bytes: for the data of calls.

    Attributes:
        engine: it.
        domain: the arena.

    Raises:
        BackendUnavailable: the device cannot be used.
    """

    def __init__(self, backend: str, arena_bytes: int = 512 << 20) -> None:
        self.domain = SharedDomain(arena_bytes)
        try:
            driver = load_driver(backend)
            assert isinstance(driver, GpuDriver)
            driver.configure(_OPTIONS.get(backend, _SMALL))
            factory = driver.factory()
            factory.attach(self.domain.map)
            self.engine = factory.sequential("0")
        except BaseException:
            self.domain.close()
            raise
        self._number = 0

    def held(self, document: FunctionDocument, given: Mapping[str, bytes]) -> HeldCall:
        """Make a call that can be made again and again, with its inputs in the arena.

        Args:
            document: of the function.
            given: the bytes of each input set that is not static.
        """
        return HeldCall(self, *prepared(self.domain, document, given))

    def call(self, function: Function, sets: tuple[ItemSet, ...]) -> InstanceSets:
        """Run a call to its outputs."""
        self._number += 1
        deadline = time.monotonic_ns() + _DEADLINE_S * 10**9
        outputs: InstanceSets = self.engine.run(
            Call(self._number, function, sets, self.domain, deadline)
        )
        return outputs

    def settle(self) -> None:
        """Zero what the last call used, and wait until it is."""
        self.engine.clean_up()
        self.engine.device.synchronize()
        self.domain.recycle()

    def close(self) -> None:
        """Give the device back. May be called twice."""
        self.engine.close()
        self.domain.close()


class EngineProcess(Closing):
    """An engine in a process of its own, as a node has it, without the node; use it with ``with``.

    Args:
        backend: ``cuda``, ``hip`` or ``opencl``.
        workers: 0 for a sequential engine, else one of so many workers that share the device.

    Raises:
        BackendUnavailable: the device cannot be used.
    """

    def __init__(self, backend: str, workers: int, arena_bytes: int = 512 << 20) -> None:
        self.domain = SharedDomain(arena_bytes)
        options = {**_OPTIONS.get(backend, _SMALL), "workers": str(workers)}
        self._driver = load_driver(backend)
        self._driver.configure(options)
        self._sharing = self._driver.sharing().share("0") if workers else Sharing()
        role = {"role": "worker"} if workers else {}
        self.engine = RemoteEngine(
            (backend,),
            "0",
            {backend: {**options, **role}},
            self._sharing.environment,
            (self._driver,),
            self.domain,
            Transfers(),
            *Settings().spins_us,
        )
        self._number = 0
        try:
            self.engine.start()
        except BaseException:
            self.close()
            raise

    def held(self, document: FunctionDocument, given: Mapping[str, bytes]) -> HeldCall:
        """Make a call that can be made again and again; see `LocalEngine.held`."""
        return HeldCall(self, *prepared(self.domain, document, given))

    def call(self, function: Function, sets: tuple[ItemSet, ...]) -> InstanceSets:
        """Run a call to its outputs, the way a node's caller does that looks for the answer."""
        self._number += 1
        deadline = time.monotonic_ns() + _DEADLINE_S * 10**9
        call = Call(self._number, function, sets, self.domain, deadline)
        planner = self._driver.planner()
        call.demand = planner.demand(function, sets) if planner is not None else None
        engine = self.engine
        if engine.begin(call) is not Sent.ALL:  # the first one: the function is not there yet
            outputs: InstanceSets = engine.run(call)
            return outputs
        while (found := engine.take(call)) is Answer.NOT_YET and time.monotonic_ns() < deadline:
            pass
        return engine.finish(call) if isinstance(found, Answer) else found

    def settle(self) -> None:
        """Zero what was let go; the process zeroes its device by itself."""
        self.domain.recycle()

    def close(self) -> None:
        """End the process. May be called twice."""
        self.engine.close()
        self._sharing.close()
        self.domain.close()


def prepared(
    domain: SharedDomain, document: FunctionDocument, given: Mapping[str, bytes]
) -> tuple[Function, tuple[ItemSet, ...]]:
    """Make a function of its document, and lay its inputs, static ones too, into an arena."""
    values = dict(given)
    for name, items in document.static.items():
        (values[name],) = (content(item).bytes() for item in items.values())
    sets = {}
    for name, value in values.items():
        view = domain.acquire(len(value)).write(0, value)
        sets[name] = ItemSet(name, (Item(name, 0, view),))
    static = {name: sets[name] for name in document.static}
    function = function_of(document, static)
    return function, tuple(sets[name] for name in function.spec.input_names)


class HeldCall:
    """A call with its inputs in the arena.

    Attributes:
        outputs: of the last call, until `settle`.
    """

    def __init__(
        self, local: LocalEngine | EngineProcess, function: Function, sets: tuple[ItemSet, ...]
    ) -> None:
        self._local = local
        self._function = function
        self._sets = sets
        self.outputs: InstanceSets = ()

    def call(self) -> None:
        """Run it to its outputs."""
        self.outputs = self._local.call(self._function, self._sets)

    def settle(self) -> None:
        """Do what a node does between calls, to its end: let the outputs go, zero what was used."""
        self.outputs = ()
        self._local.settle()

    def call_and_settle(self) -> None:
        """Run it, and zero before anything else is done."""
        self.call()
        self._local.engine.clean_up()

    def forget(self) -> None:
        """Drop all that the engine knows of the function."""
        self._local.engine.forget(self._function)

    def result(self, dtype: Any) -> Any:
        """View the first output of the last call."""
        assert self.outputs[0] is not None
        return self.outputs[0].numpy(dtype, (-1,))


def function_of(
    document: FunctionDocument, sets: Mapping[str, ItemSet] = MappingProxyType({})
) -> Function:
    """Make the function of a document as a node does.

    Args:
        document: of the function.
        sets: its static sets; those that are missing are to be given with each call.
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
    made = CodeObject(code.format, digest_of(main), digests)
    inputs = tuple(map(set_spec, document.inputs))
    outputs = tuple(map(set_spec, document.outputs))
    spec = FunctionSpec(document.name, inputs, outputs, static, (made,))
    return Function(spec, made, main, files, sets)


def ticks(times: int) -> FunctionDocument:
    """Describe a function that does what `ticks_work` does, with one blueprint."""
    b = bp.Blueprint(inputs=["x"], outputs=["x"], modules={"t": "tick.c"})
    with b.repeat(times):
        b.launch("tick", [b.x], grid=1, block=32)
    files = {"tick.c": TICK}
    return gpu_function(f"ticks_{times}", b.json(), inputs=["x"], outputs=["x"], files=files)


def weighed(name: str, weights: bytes, fixed: bool) -> FunctionDocument:
    """Describe ``y = w + x`` on int32, with the weights static or given with each call.

    Args:
        name: of the function.
        weights: of `fixed` functions.
        fixed: whether they are static.
    """
    b = bp.Blueprint(inputs=["x"], weights=["w"], outputs=["y"], modules={"k": "weigh.c"})
    b.launch("weigh", [b.w, b.x, b.buffer("y", like="x")], grid=1, block=1024)
    static = {"w": {"w": weights}} if fixed else None
    files = {"weigh.c": WEIGH}
    inputs = ["x", "w"]
    return gpu_function(name, b.json(), inputs=inputs, outputs=["y"], files=files, static=static)
