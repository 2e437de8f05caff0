"""The contracts of a backend: `Driver` and `Engine`.

A **driver** belongs to one backend. It tells what is there (`probe`), checks code at registration
without touching a device (`check`), tells from sizes alone what a call will need (`demand`) and
makes engines (`engine`). An **engine** runs one instance of a function at a time: sets in, sets
out. It is plain synchronous code; where it runs is its driver's `hosting`, carried out by the node:

========= ====================================================================================
INLINE    in the dispatcher's own step; for functions that cost less than a thread switch
THREAD    in a thread of the node, one for each engine; the engine itself isolates untrusted code
PROCESS   in a child process that maps the arena; for devices, whose faults end a process
LOOP      many at once on the node's event loop, as coroutines (`AsyncEngine`); for I/O
========= ====================================================================================

A backend is a module or package ``dandelion.backends.NAME`` with a function ``driver() -> Driver``.
Importing it, and calling `driver`, `check`, `prepare` and `demand`, must work without the backend's
heavy library; only `probe` and `engine` may load that. Third parties add a backend by an entry
point of the group ``dandelion.backends``.
"""

from __future__ import annotations

import abc
import enum
import importlib
import importlib.metadata
import importlib.util
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

from dandelion.data import Bytes, ItemSet, Origin, checked
from dandelion.errors import (
    BackendUnavailable,
    BadOutput,
    DandelionError,
    EngineDied,
    InternalError,
    InvalidInput,
    nearest,
)
from dandelion.function import Function, FunctionSpec
from dandelion.memory import ArenaMap, MemoryDomain

InstanceSets: TypeAlias = tuple[ItemSet | None, ...]
"""The sets of one instance, by position of the declaration; None where a set is absent."""


_LEAST_THREADS = 64
"""What a small block counts as: compute units hold a limited number of blocks, too."""


class Hosting(enum.Enum):
    """Where the node runs a driver's engines; see the module's text."""

    INLINE = "inline"
    THREAD = "thread"
    PROCESS = "process"
    LOOP = "loop"


@dataclass(frozen=True, slots=True)
class Resource:
    """Something one or more engines can be started on: a core, a device.

    Attributes:
        name: how the backend calls it, for example ``0`` or ``cpu``; `Driver.engine` understands
        it.
        description: for people, for example ``NVIDIA H200, 141 GB``.
        memory_bytes: memory of its own, 0 if it uses the host's.
        details: facts for ``dandelion doctor``.
    """

    name: str
    description: str
    memory_bytes: int = 0
    details: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Demand:
    """What a call will need, known before it runs.

    Attributes:
        output_bytes: upper bound of all outputs with their alignment; None if only the run tells.
        device_bytes: device memory, without constants that stay there.
        blocks, block_threads: thread blocks of the largest launch, and threads in each of them.
    """

    output_bytes: int | None = None
    device_bytes: int = 0
    blocks: int = 0
    block_threads: int = 0


@dataclass(frozen=True, slots=True)
class Capacity:
    """What an engine has, against the `Demand` of a call.

    Attributes:
        device_bytes: device memory for one call; 0 is no bound.
        blocks: compute units, each of which runs one block or more; 0 is unknown.
        archs: architectures whose code its device runs, best first; empty where there are none.
        unit_threads: threads that a compute unit holds at the same time; 0 is unknown.
    """

    device_bytes: int = 0
    blocks: int = 0
    archs: tuple[str, ...] = ()
    unit_threads: int = 0

    def filled_by(self, demand: Demand) -> bool:
        """Tell whether a call has a launch that fills the device alone."""
        if not self.blocks:
            return False
        together = self.unit_threads // max(demand.block_threads, _LEAST_THREADS)
        return demand.blocks >= self.blocks * max(together, 1)


@dataclass(frozen=True, slots=True)
class Sharing:
    """How several engine processes, the workers, share one resource.

    Attributes:
        environment: of the workers' processes.
        concurrent: whether they really run at the same time, or take turns.
        shared_fate: whether a fault of one ends the calls of all.
        description: for people.
        close: ends what was started for them, such as a daemon.
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    concurrent: bool = False
    shared_fate: bool = False
    description: str = "processes that take turns"
    close: Callable[[], None] = lambda: None


@dataclass(slots=True)
class Call:
    """One instance, as an engine sees it.

    Attributes:
        id: unique within the node.
        function: code and static facts.
        inputs: sets by position of ``function.spec.inputs``; absent ones are None.
        domain: where the engine acquires contexts for its outputs.
        deadline_ns: on `time.monotonic_ns`; the engine ends the call with `TimedOut` after it.
        limit_s: the wall-clock limit that led to the deadline, for error messages.
        stages: an engine writes here how long its stages took, in nanoseconds, by name.
        demand: what the driver said that the call will need, if somebody asked it already.
        latest_ns: when its invocation ends, on `time.monotonic_ns`; a call that waits for its
            engine has its limit from when it begins, but not beyond this. 0 is the deadline.
        origin: the item that it is made for, if it is made for one.
    """

    id: int
    function: Function
    inputs: InstanceSets
    domain: MemoryDomain
    deadline_ns: int
    limit_s: float = 60.0
    stages: dict[str, int] = field(default_factory=dict)
    demand: Demand | None = None
    latest_ns: int = 0
    origin: Origin | None = None

    def begins(self, now_ns: int) -> None:
        """Count its limit from now."""
        self.deadline_ns = min(self.latest_ns or self.deadline_ns, now_ns + int(self.limit_s * 1e9))

    def left_s(self) -> float:
        """Seconds until the deadline, not below zero."""
        return max(0.0, (self.deadline_ns - time.monotonic_ns()) / 1e9)


class Engine(abc.ABC):
    """Runs one instance at a time, on one resource. Used by one thread at a time, but for `cancel`.

    Attributes:
        name: for errors, metrics and traces, for example ``opencl:0``.
        capacity: what it has.
        workers: how many further engines should share its resource.
        spare: a process should wait, prepared by `Driver.warm`, to take its place when it is lost.
        lost: it can no longer work; see `recover`.
    """

    name: str
    capacity = Capacity()
    workers = 0
    spare = False
    lost = False

    def run(self, call: Call) -> InstanceSets:
        """Run an instance to its end.

        Returns:
            Output sets by position of ``call.function.spec.outputs``; None where empty. Their data
            lies in contexts of ``call.domain``, or is small and on the heap.

        Raises:
            DandelionError: of the family that says whose fault it is. Anything else that `_run`
                raises becomes an `InternalError`.
        """
        try:
            if call.function.typed:
                call.inputs = check_inputs(call.function, call.inputs)
            outputs = self._run(call)
            return check_outputs(call.function.spec, outputs)
        except DandelionError:
            raise
        except Exception as error:
            raise InternalError(f"{self.name}: {type(error).__name__}: {error}") from error

    @abc.abstractmethod
    def _run(self, call: Call) -> InstanceSets: ...

    def cancel(self, call_id: int) -> bool:
        """Ask, from another thread, that a running call ends soon. False if it cannot be done."""
        return False

    def settle(self) -> None:
        """Do what may wait until a call's outputs are handed over, such as zeroing."""

    def recover(self) -> None:
        """Make a lost engine work again; may take seconds.

        Raises:
            EngineDied: it cannot; whoever uses it needs another.
        """
        raise EngineDied(self.name, "it cannot be used any more in this process")

    def forget(self, function: Function) -> None:
        """Drop what was cached for a function that is no longer registered."""

    @abc.abstractmethod
    def close(self) -> None:
        """Give back everything: children, device memory, descriptors. May be called twice."""


class AsyncEngine(abc.ABC):
    """Runs many instances at once on an event loop. Trusted platform code only."""

    name: str

    async def run(self, call: Call) -> InstanceSets:
        """Run an instance to its end, as `Engine.run`; cancelling the coroutine cancels it."""
        try:
            if call.function.typed:
                call.inputs = check_inputs(call.function, call.inputs)
            outputs = await self._run(call)
            return check_outputs(call.function.spec, outputs)
        except DandelionError:
            raise
        except Exception as error:
            raise InternalError(f"{self.name}: {type(error).__name__}: {error}") from error

    @abc.abstractmethod
    async def _run(self, call: Call) -> InstanceSets: ...

    @abc.abstractmethod
    async def close(self) -> None:
        """Close connections and sessions."""


class Driver(abc.ABC):
    """One backend. Cheap to make; see the module's text for what may load heavy libraries.

    Attributes:
        name: the backend's name.
        formats: formats of code objects that its engines run.
        hosting: where its engines run.
    """

    name: ClassVar[str]
    formats: ClassVar[frozenset[str]]
    hosting: ClassVar[Hosting]

    def configure(self, options: Mapping[str, str]) -> None:
        """Take the backend's settings; called once, before everything else. There are none here.

        Raises:
            InvalidInput: a setting is unknown or has a bad value.
        """
        for name in options:
            where = f"options.{self.name}.{name}"
            raise InvalidInput(where, f"backend '{self.name}' has no options", "leave it out")

    def attach(self, arena: ArenaMap) -> None:
        """Learn of the arena that calls' data will lie in, for example to pin it for a device."""

    @abc.abstractmethod
    def probe(self) -> list[Resource]:
        """List the resources that engines can be started on, best first.

        Raises:
            BackendUnavailable: with what is missing and how to get it.
        """

    def check(self, function: Function) -> None:
        """Refuse code that could never run. No device is touched, no user code is run.

        Called in the node's process, by any thread; may take long.

        Raises:
            InvalidFunction, InvalidBlueprint: with all problems at once.
        """

    def check_all(self, functions: Sequence[Function]) -> None:
        """Check the functions of one registration, as `check` does each of them.

        Raises:
            InvalidFunction, InvalidBlueprint: with the problems of one of them at least.
        """
        for function in functions:
            self.check(function)

    def close(self) -> None:
        """End what `check` and `prepare` have started, such as processes.

        The driver may be used again afterwards, and then starts it again. May be called twice.
        """

    def prepare(self, function: Function, archs: tuple[str, ...]) -> None:
        """Do at registration what a first call would have to do: compile.

        Called in the node's process, by any thread, for code that passed `check`; may take long.
        What cannot be done here without being the function's fault is left to the first call.

        Args:
            function: without its static sets.
            archs: `Capacity.archs` of an engine that is up.

        Raises:
            InvalidBlueprint: with a problem ``no-code`` if nothing of it fits such a device.
            InvalidFunction: it claims to fit, and does not compile.
        """

    def references(self, main: Bytes) -> tuple[str, ...]:
        """Name the files that a code object's main blob refers to, such as a blueprint's modules.

        Registration finds each among the code object's own files, else among the libraries.

        Raises:
            InvalidFunction, InvalidBlueprint: the blob cannot be read.
        """
        return ()

    def demand(self, function: Function, inputs: InstanceSets) -> Demand:
        """Tell what a call will need, from the code and the inputs' sizes.

        Raises:
            InvalidInput, InvalidBlueprint: the inputs do not fit the code.
        """
        return Demand()

    def warm(self, resource: str) -> None:
        """Do what `engine` will need and what takes nothing from engines that run already.

        Raises:
            BackendUnavailable: the resource is not there or cannot be used.
        """

    def hurry(self, device_bytes: int) -> None:
        """The next engine is wanted at once, to replace a lost one; it may catch up later.

        Args:
            device_bytes: memory that the lost one had for a call, and may still hold for a while;
                0 if that is not known.
        """

    @abc.abstractmethod
    def engine(self, resource: str) -> Engine | AsyncEngine:
        """Start an engine, in the process and thread where it will run.

        Raises:
            BackendUnavailable: the resource is not there or cannot be used.
        """

    def share(self, resource: str) -> Sharing:
        """Prepare that several engine processes share a resource; called in the node's process."""
        return Sharing()

    def functions(self) -> tuple[FunctionSpec, ...]:
        """Platform functions that this backend provides, such as ``HTTP``."""
        return ()


def check_inputs(function: Function, inputs: InstanceSets) -> InstanceSets:
    """Hold inputs against the types that their sets declare.

    What a caller gives has been held against them already, and its sets say so; what another
    function gives has not, unless its output set declares the same.

    Raises:
        InvalidInput: an item is of another type or size; the message names set and item.
    """
    result = list(inputs)
    for at in function.typed:
        declared, given = function.spec.inputs[at], inputs[at]
        if given is None or (given.dtype == declared.dtype and given.shape == declared.shape):
            continue
        result[at] = checked(declared.name, given.items, declared)
    return tuple(result)


def check_outputs(spec: FunctionSpec, outputs: InstanceSets) -> InstanceSets:
    """Hold outputs against declaration and limits.

    Raises:
        BadOutput: wrong number of sets, or names, keys, sizes or counts that are not allowed.
    """
    if len(outputs) != len(spec.outputs):
        raise BadOutput(spec.name, f"{len(outputs)} sets instead of {len(spec.outputs)}")
    count = size = 0
    result: list[ItemSet | None] = []
    for declared, given in zip(spec.outputs, outputs, strict=True):
        if given is None or not given.items:
            result.append(None)
            continue
        count += len(given.items)
        size += given.size_bytes
        try:
            result.append(checked(declared.name, given.items, declared))
        except InvalidInput as error:
            raise BadOutput(spec.name, str(error)) from None
    if count > spec.limits.output_items:
        raise BadOutput(spec.name, f"{count} items are more than {spec.limits.output_items}")
    if size > spec.limits.output_bytes:
        raise BadOutput(spec.name, f"{size} bytes are more than {spec.limits.output_bytes}")
    return tuple(result)


def backend_names() -> list[str]:
    """List the names of the backends that are installed, working or not."""
    found = {p.name for p in importlib.metadata.entry_points(group="dandelion.backends")}
    return sorted(found | {"cuda", "hip", "http", "native", "null", "opencl", "process", "wasm"})


def load_driver(name: str) -> Driver:
    """Load a backend by name.

    Raises:
        InvalidInput: there is no such backend.
        BackendUnavailable: it is installed, but something that it imports is not.
    """
    points = {p.name: p for p in importlib.metadata.entry_points(group="dandelion.backends")}
    module_name = points[name].value if name in points else f"dandelion.backends.{name}"
    if name not in points and not _is_module(name, module_name):
        raise unknown_backend("backends", name)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise BackendUnavailable(name, f"no module '{error.name}'") from None
    make: Callable[[], Driver] | None = getattr(module, "driver", None)
    if not callable(make):  # a module that backends share
        raise unknown_backend("backends", name)
    return make()


def unknown_backend(where: str, name: str) -> InvalidInput:
    """Give the error for a name that no installed backend has, with the nearest one.

    Args:
        where: the setting that names it.
        name: as it is written there.
    """
    known = backend_names()
    close = nearest(name, known)
    hint = f"did you mean '{close}'?" if close else f"there are {', '.join(known)}"
    return InvalidInput(where, f"there is no backend '{name}'", hint)


def _is_module(name: str, module_name: str) -> bool:
    return name.isidentifier() and importlib.util.find_spec(module_name) is not None
