"""The null backend: returns at once. It measures the platform, and is an example of a backend.

By default output i is input i, by reference. Two options of the code object change that:
``outputs`` makes this number of small items in every output instead (for fan-out measurements), and
``fail`` fails every call with this message.

Write a backend in five steps, each shown below: name the formats that it runs and where its engines
are hosted (`NullDriver`); refuse code that can never run (`NullChecker`); list resources and start
engines on them (`NullFactory`); turn input sets into output sets (`NullEngine`). Then add the
module to the entry points ``dandelion.backends``. Calls fit every engine, so there is no planner.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from dandelion.data import Item, ItemSet
from dandelion.driver import (
    Call,
    Checker,
    Driver,
    Engine,
    EngineFactory,
    Hosting,
    InstanceSets,
    Resource,
)
from dandelion.errors import InvalidFunction, Problem, Raised, nearest
from dandelion.function import Function

_OPTIONS = ("outputs", "fail")


class NullDriver(Driver):
    """Runs functions of the format ``null`` on the node's loop."""

    name: ClassVar[str] = "null"
    formats: ClassVar[frozenset[str]] = frozenset({"null"})
    hosting: ClassVar[Hosting] = Hosting.INLINE

    def __init__(self) -> None:
        self._checker = NullChecker()
        self._factory = NullFactory()

    def checker(self) -> Checker:
        return self._checker

    def factory(self) -> NullFactory:
        return self._factory


class NullChecker(Checker):
    """Checks the options."""

    def check(self, functions: Sequence[Function]) -> None:
        problems = []
        for function in functions:
            limit = function.spec.limits.output_items
            options = function.code.options.items()
            problems += [p for item in options if (p := _problem(*item, limit))]
        if problems:
            raise InvalidFunction(tuple(problems))


class NullFactory(EngineFactory):
    """Starts engines."""

    def probe(self) -> list[Resource]:
        return [Resource("null", "returns at once")]

    def engine(self, resource: str) -> NullEngine:
        return NullEngine()


class NullEngine(Engine):
    """Returns its inputs, or the outputs that the options define."""

    name = "null"

    def _run(self, call: Call) -> InstanceSets:
        function = call.function
        options = function.code.options
        if "fail" in options:
            raise Raised(function.spec.name, options["fail"])
        if "outputs" in options:
            return _small_items(function, int(options["outputs"]))
        inputs = _with_static(function, call.inputs) if function.static else call.inputs
        count = len(function.spec.outputs)
        if len(inputs) >= count:
            return inputs[:count]
        return inputs + (None,) * (count - len(inputs))

    def close(self) -> None:
        pass


def _problem(option: str, value: str, limit: int) -> Problem | None:
    where = f"code.options.{option}"
    if option not in _OPTIONS:
        close = nearest(option, _OPTIONS) or ""
        return Problem("unknown-option", f"unknown option '{option}'", where, nearest=close)
    if option == "outputs" and not (value.isascii() and value.isdigit()):
        return Problem(
            "bad-option", f"'{value[:12]}' is not a number of items", where, expected="0 or more"
        )
    if option == "outputs" and (len(value) > 9 or int(value) > limit):  # all are made at once
        return Problem("bad-option", f"{value[:12]} items", where, expected=f"at most {limit}")
    return None


def _small_items(function: Function, count: int) -> InstanceSets:
    items = tuple(Item(str(key), key, b"%d" % key) for key in range(count))
    return tuple(ItemSet(s.name, items) if items else None for s in function.spec.outputs)


def _with_static(function: Function, inputs: InstanceSets) -> InstanceSets:
    declared = zip(function.spec.input_names, inputs, strict=True)
    return tuple(function.static.get(name, given) for name, given in declared)


def driver() -> NullDriver:
    """Make the driver of this backend."""
    return NullDriver()
