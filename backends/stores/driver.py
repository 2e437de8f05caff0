"""The driver of a backend of stores, its checker and its factory."""

from __future__ import annotations

import abc
import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from dandelion.data import SetSpec
from dandelion.driver import AsyncEngine, Checker, Driver, EngineFactory, Hosting, Resource
from dandelion.errors import BackendUnavailable, InvalidFunction, Problem, nearest
from dandelion.function import CodeObject, Function, FunctionSpec

from .jobs import Operation
from .settings import StoresSettings


def store_function(
    backend: str,
    operation: str,
    name: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    idempotent: bool,
) -> FunctionSpec:
    """Declare a platform function of a backend of stores."""
    return FunctionSpec(
        name,
        inputs=tuple(map(SetSpec, inputs)),
        outputs=tuple(map(SetSpec, outputs)),
        code=(CodeObject(backend, options={"operation": operation}),),
        kind="io",
        idempotent=idempotent,
    )


class StoresChecker(Checker):
    """Checks the option ``operation``, the number of sets, and the kind.

    Args:
        operations: of the backend, by name.
    """

    def __init__(self, operations: Mapping[str, Operation]) -> None:
        self._operations = operations

    def check(self, functions: Sequence[Function]) -> None:
        problems = [problem for function in functions for problem in self._problems(function)]
        if problems:
            raise InvalidFunction(tuple(problems))

    def _problems(self, function: Function) -> list[Problem]:
        spec, options = function.spec, dict(function.code.options)
        name = options.pop("operation", "")
        problems = [
            Problem("unknown-option", f"unknown option '{option}'", f"code.options.{option}")
            for option in options
        ]
        if spec.kind != "io":
            problems.append(
                Problem("not-pure", "it depends on a store", "kind", expected="io", found=spec.kind)
            )
        operation = self._operations.get(name)
        if operation is None:
            return [*problems, self._unknown(name)]
        wanted = len(operation.spec.inputs), len(operation.spec.outputs)
        found = len(spec.inputs), len(spec.outputs)
        if wanted != found:
            sets = f"{', '.join(operation.spec.input_names)} and {operation.spec.output_names}"
            problems.append(
                Problem(
                    "bad-sets",
                    f"operation '{name}' has other sets: {sets}",
                    "inputs, outputs",
                    expected="{} and {} sets".format(*wanted),
                    found="{} and {}".format(*found),
                )
            )
        return problems

    def _unknown(self, name: str) -> Problem:
        known = sorted(self._operations)
        message = f"'{name[:40]}' is not an operation" if name else "no operation is named"
        return Problem(
            "bad-option",
            message,
            "code.options.operation",
            expected=f"one of {', '.join(known)}",
            nearest=nearest(name, known) or "",
        )


class StoresFactory(EngineFactory):
    """Starts engines of one backend.

    Attributes:
        settings: of new engines.
    """

    def __init__(self, driver: StoresDriver, settings: StoresSettings[Any]) -> None:
        self._driver = driver
        self.settings = settings

    def probe(self) -> list[Resource]:
        driver = self._driver
        if driver.library and importlib.util.find_spec(driver.library) is None:
            remedy = f"pip install 'dandelion-engine[{driver.name}]', and options that name stores"
            raise BackendUnavailable(driver.name, f"no module '{driver.library}'", remedy)
        if not self.settings.stores:
            remedy = (
                f"dandelion serve --backends process,{driver.name}"
                f" --options {driver.name}.store.NAME.{driver.first_option}=..."
            )
            raise BackendUnavailable(driver.name, "off, since no store is named", remedy)
        count = len(self.settings.stores)  # tenants see this text, so it names no store
        return [Resource(driver.name, f"{driver.description}, {count} named")]

    def engine(self, resource: str) -> AsyncEngine:
        self.probe()
        return self._driver.make_engine(self.settings)


class StoresDriver(Driver):
    """A backend of stores.

    Attributes:
        library: the module that its engine imports; empty if it needs none.
        first_option: an option that every store has, for the advice how to name one.
        description: of its resource.
        operations: by name.
    """

    hosting: ClassVar[Hosting] = Hosting.LOOP
    library: ClassVar[str] = ""
    first_option: ClassVar[str]
    description: ClassVar[str]
    operations: ClassVar[Mapping[str, Operation]]

    def __init__(self, options: Mapping[str, str] | None = None) -> None:
        self._checker = StoresChecker(self.operations)
        self._factory = StoresFactory(self, self.read_options(options or {}))

    @abc.abstractmethod
    def read_options(self, options: Mapping[str, str]) -> StoresSettings[Any]:
        """Read the operator's options; raises `InvalidInput`."""

    @abc.abstractmethod
    def make_engine(self, settings: StoresSettings[Any]) -> AsyncEngine:
        """Make an engine; the library is there."""

    def configure(self, options: Mapping[str, str]) -> None:
        self._factory.settings = self.read_options(options)

    def checker(self) -> Checker:
        return self._checker

    def factory(self) -> StoresFactory:
        return self._factory


def by_name(*operations: Operation) -> dict[str, Operation]:
    """Return operations by their names."""
    return {operation.name: operation for operation in operations}
