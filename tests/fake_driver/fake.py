"""FIXTURE. The fake device as scenarios see it: counts, failures on demand, engines on it."""

from __future__ import annotations

import ctypes
import gc
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from dandelion.backends.cuda import CudaDevice
from dandelion.backends.gpu.compiling import CodeCache
from dandelion.backends.gpu.constants import WeightsLimit
from dandelion.backends.gpu.cudalike import CudaLikeDevice
from dandelion.backends.gpu.sequential import SequentialEngine
from dandelion.backends.hip import HipDevice

import dandelion.blueprint as bp
from dandelion.data import Item, ItemSet, SetSpec
from dandelion.driver import Call, InstanceSets
from dandelion.function import CodeObject, Function, FunctionSpec, StaticItem, digest_of
from dandelion.memory import SharedDomain
from dandelion.testing import StoppedCall, Tracked

KINDS = (
    "memory", "module", "stream", "graph", "executable", "event", "registered", "reserved",
    "physical", "mapped", "context", "program",
)  # fmt: skip
POOL_BYTES = 1 << 20
ARENA_BYTES = 16 << 20
LONG_NS = 10**9
"""Calls are not cut into parts, however busy this machine is."""


class Fake:
    """A fake device in this process.

    Args:
        kind: ``cuda`` or ``hip``.
        library: with the functions of ``core.c``.
        cache: folder for compiled sources.
        operations: the library of products, with the functions of ``cublaslt.c``.
        convolutions: the library of convolutions, with the functions of ``cudnn.c`` or
            ``miopen.c``.

    Attributes:
        counts: the device reports what is alive, and fails on demand.
    """

    counts = True

    def __init__(
        self,
        kind: str,
        library: ctypes.CDLL,
        cache: Path,
        operations: ctypes.CDLL | None = None,
        convolutions: ctypes.CDLL | None = None,
    ) -> None:
        self.kind = kind
        self.operations: Any = operations
        self.convolutions: Any = convolutions
        if convolutions is not None:
            for name in ("fake_dnn_live", "fake_dnn_calls", "fake_dnn_launched"):
                getattr(convolutions, name).restype = ctypes.c_long
            convolutions.fake_dnn_fail.argtypes = [ctypes.c_long]
        if operations is not None:
            for name in ("fake_lt_live", "fake_lt_calls", "fake_lt_launched"):
                getattr(operations, name).restype = ctypes.c_long
            operations.fake_lt_fail.argtypes = [ctypes.c_long]
            operations.fake_lt_need.argtypes = [ctypes.c_size_t]
        self.library = library
        self.cache = CodeCache(cache)
        for name in ("fake_calls", "fake_live", "fake_leaked", "fake_graph"):
            getattr(library, name).restype = ctypes.c_long
        library.fake_failed.restype = ctypes.c_char_p
        library.fake_fail.argtypes = [ctypes.c_long, ctypes.c_int]
        library.fake_set_memory.argtypes = [ctypes.c_size_t]
        self.reset()

    @property
    def arch(self) -> str:
        """The architecture of the device."""
        return "sm_90" if self.kind == "cuda" else "gfx90a"

    def reset(self) -> None:
        """Reset to the state of a new process."""
        self.library.fake_reset()
        self.library.fake_set_arch(self.arch.encode())
        if self.operations is not None:
            self.operations.fake_lt_reset()
        if self.convolutions is not None:
            self.convolutions.fake_dnn_reset()
        if self.kind == "hip":
            self.library.fake_retain()  # HIP retains its device once in a process

    def device(self, cache: CodeCache | None = None) -> CudaLikeDevice:
        """Make the backend's device."""
        made = CudaDevice if self.kind == "cuda" else HipDevice
        return made(0, cache or self.cache)

    def calls(self) -> int:
        """How many calls of the driver there were."""
        return int(self.library.fake_calls())

    def fail(self, after: int, code: int) -> None:
        """Make the call after this many fail with a code; -1 for none."""
        self.library.fake_fail(after, code)

    def graph(self) -> tuple[int, int, int, int]:
        """Describe the graph that was captured last.

        Returns:
            The numbers of its operations, of their dependencies, of operations without any, and of
            operations on its longest path.
        """
        nodes, edges, roots, path = (int(self.library.fake_graph(i)) for i in range(4))
        return nodes, edges, roots, path

    def failed(self) -> str:
        """The function that failed on demand."""
        return str(self.library.fake_failed().decode())

    def live(self) -> dict[str, int]:
        """The number of live objects, by kind."""
        counts = {name: self.library.fake_live(i) for i, name in enumerate(KINDS)}
        if self.kind == "hip":
            counts["context"] = 0
        return {name: count for name, count in counts.items() if count}

    def nothing_left(self) -> None:
        """Assert that everything was released, and before the context was.

        A device that broke gives nothing back, as a real one does not; that goes with the process.
        """
        if self.library.fake_broken():
            return
        assert self.live() == {}, self.live()
        if self.operations is not None:
            assert [self.operations.fake_lt_live(kind) for kind in range(4)] == [0, 0, 0, 0]
        if self.convolutions is not None:
            assert [self.convolutions.fake_dnn_live(kind) for kind in range(2)] == [0, 0]
        assert self.library.fake_leaked() == 0


class Real(Fake):
    """A real device, for scenarios without counts and failures.

    Args:
        kind: ``cuda`` or ``hip``; HIP over NVIDIA's driver, see ``hip_on_cuda.c``.
        cache: folder for compiled sources.
    """

    counts = False
    operations: Any = None
    convolutions: Any = None

    def __init__(self, kind: str, cache: Path) -> None:
        self.kind = kind
        self.cache = CodeCache(cache)

    @property
    def arch(self) -> str:
        device = self.device()
        device.open()
        try:
            return device.properties().archs[0]
        finally:
            device.close()

    def reset(self) -> None:
        """Nothing: each scenario has a process of its own."""

    def live(self) -> dict[str, int]:
        return {}

    def nothing_left(self) -> None:
        """A real device has no counts."""


class Runner:
    """An engine on a device; the data of its calls is in an arena."""

    def __init__(
        self,
        fake: Fake,
        pool_bytes: int = POOL_BYTES,
        weights: WeightsLimit | None = None,
        cache: CodeCache | None = None,
        part_ns: int = LONG_NS,
        arena_bytes: int = ARENA_BYTES,
        shares_constants: bool = False,
    ) -> None:
        self.arena = SharedDomain(arena_bytes)
        self.domain = Tracked(self.arena)
        limit = WeightsLimit(64 << 20) if weights is None else weights
        self.engine = SequentialEngine(
            fake.device(cache),
            pool_bytes,
            self.arena.map,
            weights=limit,
            part_ns=part_ns,
            shares_constants=shares_constants,
        )
        self.number = 0

    def one(self, name: str, value: npt.NDArray[Any] | bytes) -> ItemSet:
        """A set with one item, in the arena."""
        data = value if isinstance(value, bytes) else np.ascontiguousarray(value).tobytes()
        view = self.arena.acquire(len(data)).write(0, data) if data else data
        return ItemSet(name, (Item("item", 0, view),))

    def run(
        self,
        function: Function,
        *inputs: ItemSet | None,
        keep: bool = True,
        kind: Callable[..., Call] = Call,
    ) -> InstanceSets:
        """Run a call, and clean up.

        Args:
            function: that is called.
            inputs: of the call.
            keep: its constants stay.
            kind: makes the call.
        """
        self.number += 1
        deadline = time.monotonic_ns() + 60 * 10**9
        call = kind(self.number, function, inputs, self.domain, deadline, keep_constants=keep)
        outputs = self.engine.run(call)
        self.engine.clean_up()
        return outputs

    def run_stopped(self, function: Function, looks: int, *values: npt.NDArray[Any]) -> None:
        """Run a call that is cancelled after this many checks."""
        inputs = [self.one(s.name, v) for s, v in zip(function.spec.inputs, values, strict=True)]
        deadline = time.monotonic_ns() + 60 * 10**9
        call = Call(0, function, tuple(inputs), self.domain, deadline)
        self.engine.run(StoppedCall.like(call, looks))

    def close(self) -> None:
        """Close the engine; no context of its calls may be alive."""
        self.engine.close()
        self.nothing_alive()

    def nothing_alive(self) -> None:
        """Assert that no context of the calls is alive."""
        if self.domain.alive:
            gc.collect()  # in cycles, perhaps
        assert self.domain.alive == []


def function(
    blueprint: bp.Blueprint | dict[str, Any],
    files: Mapping[str, bytes],
    outputs: tuple[str, ...] = ("y",),
    static: Mapping[str, bytes] | None = None,
    name: str = "F",
) -> Function:
    """Make a function as a node makes it."""
    if isinstance(blueprint, bp.Blueprint):
        main = blueprint.json().encode()
        config = blueprint.build()
        inputs = (*config.blueprint.inputs, *config.blueprint.weights)
    else:
        main = json.dumps(blueprint).encode()
        body = blueprint["blueprint"]
        inputs = (*body["inputs"], *body.get("weights", ()))
    code = CodeObject("blueprint", digest_of(main), {n: digest_of(d) for n, d in files.items()})
    fixed = {n: (StaticItem("w", digest_of(d)),) for n, d in (static or {}).items()}
    spec = FunctionSpec(
        name, tuple(map(SetSpec, inputs)), tuple(map(SetSpec, outputs)), fixed, (code,)
    )
    return Function(spec, code, main, files)


def numbers(outputs: InstanceSets, dtype: npt.DTypeLike = np.int32) -> npt.NDArray[Any]:
    """The only output as an array of its own."""
    assert outputs[0] is not None
    return outputs[0].numpy(dtype).copy()
