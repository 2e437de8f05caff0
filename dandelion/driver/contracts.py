"""The contracts of a backend, except its engines.

A `Driver` describes one backend. It takes the settings and returns these objects, each made once
with those settings:

============= ================================================================================
Checker       checks and prepares code at registration, without a device
Planner       computes the demand of a call from sizes
EngineFactory lists resources and starts engines, in the process that runs the engines
DeviceSharing prepares a device for several engine processes
============= ================================================================================

A backend is a module with a function ``driver() -> Driver``, named by an entry point of the group
``dandelion.backends``. Importing it, making the driver and using its checker and planner must work
without the backend's heavy library. Only the factory may load that.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from dandelion.data import Bytes
from dandelion.driver.checks import InstanceSets
from dandelion.driver.engine import AsyncEngine, Engine
from dandelion.driver.records import Demand, Hosting, Resource, Sharing
from dandelion.errors import BackendUnavailable, InvalidInput
from dandelion.function import Function, FunctionSpec
from dandelion.memory import ArenaMap


class Checker:
    """Checks code at registration. This one accepts everything.

    Used in the node's process by any thread. It uses no device and runs no user code; its methods
    may take long.

    Attributes:
        takes_packages: whether code objects may name Python packages.
    """

    takes_packages: ClassVar[bool] = False

    def check(self, functions: Sequence[Function]) -> None:
        """Refuse code that could never run. All functions belong to one registration.

        Raises:
            InvalidFunction, InvalidBlueprint: with all problems of at least one function.
        """

    def references(self, main: Bytes) -> tuple[str, ...]:
        """List the files that a code object's main blob refers to, such as a blueprint's modules.

        Registration looks for each among the code object's own files, then among the libraries.

        Raises:
            InvalidFunction, InvalidBlueprint: the blob cannot be read.
        """
        return ()

    def prepare(self, function: Function, archs: tuple[str, ...]) -> None:
        """Compile code that passed `check`, so that the first call need not.

        A failure that is not the function's fault is ignored; the first call then compiles.

        Args:
            function: without its static sets.
            archs: `Capacity.archs` of a running engine.

        Raises:
            InvalidBlueprint: with a problem ``no-code`` if no code fits such a device.
            InvalidFunction: the code for the device does not compile.
        """

    def binary(self, function: Function) -> Bytes:
        """Give what confined engines run instead of the code, which they cannot compile.

        Called in a thread of the node, before an engine gets the function.

        Raises:
            InvalidFunction, BackendUnavailable, EngineDied, Cancelled: it cannot be compiled.
        """
        return b""

    def close(self) -> None:
        """Stop whatever `check`, `prepare` and `binary` have started, such as processes.

        The checker may be used again and then restarts it. May be called twice.
        """


class Planner(abc.ABC):
    """Computes the demand of calls. Used in the process of the engine, and by the node."""

    @abc.abstractmethod
    def reads(self, function: Function) -> tuple[tuple[int, int], ...]:
        """List the integers in the inputs that the demand depends on.

        Otherwise it depends only on the sizes of the non-static inputs.

        Returns:
            For each integer (8 bytes, little-endian, signed) the position of its non-static input
            set and the offset in the set's only item, in bytes.

        Raises:
            InvalidBlueprint: the code cannot be read.
        """

    @abc.abstractmethod
    def demand(self, function: Function, inputs: InstanceSets) -> Demand:
        """Compute the demand of a call.

        Args:
            function: with its static sets.
            inputs: all sets by position, static ones included.

        Raises:
            InvalidInput, InvalidBlueprint: the inputs do not fit the code.
        """


class EngineFactory(abc.ABC):
    """Starts engines, in the process that runs them. It may load the backend's heavy library."""

    @abc.abstractmethod
    def probe(self) -> list[Resource]:
        """List the resources that engines can be started on, best first.

        Raises:
            BackendUnavailable: says what is missing and how to get it.
        """

    def attach(self, arena: ArenaMap) -> None:
        """Take the arena for the data of calls, for example to pin it for a device."""

    def warm(self, resource: str) -> None:
        """Prepare for `engine`, without taking resources from running engines.

        Raises:
            BackendUnavailable: the resource is missing or cannot be used.
        """

    def prepare_failover(self, device_bytes: int) -> None:
        """Make the next engine start quickly, since it replaces a lost one.

        Args:
            device_bytes: memory that the lost engine had for a call, and may still hold for a
                while; 0 if unknown.
        """

    def confine(
        self, engine: Engine, channel: int, start_threads: Callable[[], None]
    ) -> Mapping[str, str]:
        """Give up all rights of this process that running functions does not need.

        Called once in each process with the hosting CONFINED, before it gets code or data of users.

        Args:
            engine: from now on the only thing that this process runs.
            channel: descriptor of the socket to the node, which stays usable.
            start_threads: starts the last threads of the process. Rights that belong to a thread
                are given up before, the right to start threads after it.

        Returns:
            What is enforced, by subject, as readable text.

        Raises:
            BackendUnavailable: something that is required is not possible here.
        """
        raise BackendUnavailable(engine.name, "its backend does not confine processes")

    @abc.abstractmethod
    def engine(self, resource: str) -> Engine | AsyncEngine:
        """Start an engine, in the process and thread where it will run.

        Raises:
            BackendUnavailable: the resource is missing or cannot be used.
        """


class DeviceSharing:
    """Prepares a device for several engine processes. With this class they take turns."""

    def share(self, resource: str) -> Sharing:
        """Start services of the processes, such as a daemon; called in the node's process."""
        return Sharing()


_ACCEPTS_ALL = Checker()
_TURNS = DeviceSharing()


class Driver(abc.ABC):
    """One backend. Cheap to make; only its factory may load heavy libraries.

    Attributes:
        name: the backend's name.
        formats: formats of code objects that its engines run.
        hosting: where its engines run.
        platform_functions: functions that the backend provides, such as ``HTTP``.
        uses_blas: whether engines in processes may compute with numpy's BLAS; else it has one
            thread there, so that they start with less work.
    """

    name: ClassVar[str]
    formats: ClassVar[frozenset[str]]
    hosting: ClassVar[Hosting]
    platform_functions: ClassVar[tuple[FunctionSpec, ...]] = ()
    uses_blas: ClassVar[bool] = True

    def configure(self, options: Mapping[str, str]) -> None:
        """Take the backend's settings; called once, before other methods. By default it has none.

        Raises:
            InvalidInput: a setting is unknown or has a bad value.
        """
        for name in options:
            where = f"options.{self.name}.{name}"
            raise InvalidInput(where, f"backend '{self.name}' has no options", "remove this option")

    def checker(self) -> Checker:
        """Return the checker; by default it accepts everything."""
        return _ACCEPTS_ALL

    def planner(self) -> Planner | None:
        """Return the planner; None if every call fits every engine."""
        return None

    @abc.abstractmethod
    def factory(self) -> EngineFactory:
        """Return the engine factory."""

    def sharing(self) -> DeviceSharing:
        """Return the sharing of devices between processes; by default these take turns."""
        return _TURNS
