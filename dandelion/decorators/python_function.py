"""The decorator ``@dandelion.function``.

A decorated function is three things. Called in a program, it is the function itself, for tests.
Called in a function under ``@composition``, it is applied. Given to ``register``, its source and
what it uses are captured (`dandelion.capture`) and registered under its name.

Annotations say what arguments and results are (`.annotations`). What they say is only read when the
function is first applied or registered, so they may name what is defined further down.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import msgspec

from dandelion.attached_files import attached
from dandelion.call_values import FILES, arguments
from dandelion.capture import Captured, Roles, capture, place_of
from dandelion.contents import file_bytes
from dandelion.data import ItemSet, SetSpec, Value
from dandelion.dataflow.draft import is_drafting, user_place
from dandelion.dataflow.dsl import RESULT, FunctionHandle, composition
from dandelion.dataflow.graph import Declaration
from dandelion.decorators.annotations import (
    Kinds,
    call_values,
    needs_an_item,
    output_spec_of,
    spec_of,
)
from dandelion.documents import (
    CodeDocument,
    FunctionDocument,
    GivenLimits,
    ItemContent,
    SetLike,
    limits_of,
    set_spec,
    static_contents,
)
from dandelion.errors import InvalidFunction, InvalidInput, Problem
from dandelion.errors.misfits import named_type
from dandelion.function import Batching, Limits, as_tuple
from dandelion.markup import clipped, element, heading, page, table
from dandelion.set_values import item_set

_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class PythonFunction(FunctionHandle):
    """A decorated function.

    Attributes:
        function: what is below the decorator.
    """

    def __init__(self, function: Callable[..., Any], options: FunctionOptions) -> None:
        self.function = function
        self._options = options
        self._classes: set[str] = set()
        self._parameters = _parameters(function)
        outputs = _output_specs(function, self._kinds_reader(), options.outputs)
        self._outputs = outputs
        self._check_static()
        names = [p.name for p in self._parameters]
        inputs = (*names, *([FILES] if options.files else []))
        name = options.name or function.__name__
        declared = Declaration(name, tuple(inputs), tuple(s.name for s in outputs), user_place())
        super().__init__(declared, self, (*options.static, *options.secrets, FILES))
        functools.update_wrapper(self, function, updated=())

    def __call__(self, /, *given: Any, **sets: Any) -> Any:
        """Apply it in a composition; elsewhere call the function itself, with plain values."""
        if is_drafting():
            return self._apply(given, sets)
        with attached(self._files()):
            result = self.function(*given, **{**self._static_arguments(), **sets})
            return list(result) if inspect.isgenerator(result) else result

    @property
    def document(self) -> FunctionDocument:
        """Describe the function, with the sources of what it uses now.

        Raises:
            InvalidFunction: something that it uses cannot be captured, or an annotation is not
                understood; with the line.
        """
        options = self._options
        captured = self._captured()
        values = call_values(self._kinds, self._result_kinds, captured.label)
        specs = [spec_of(SetSpec(name), kind) for name, kind in self._kinds.items()]
        files = self._files()
        static = static_contents(options.static, specs)
        if files:
            specs.append(SetSpec(FILES))
            static[FILES] = {name: ItemContent(data=data) for name, data in files.items()}
        return FunctionDocument(
            self.name,
            tuple(specs),
            tuple(self._completed_outputs()),
            static,
            options.limits,
            (_code(captured, options, msgspec.json.encode(values).decode()),),
            options.cache,
            options.batching,
            dict(options.secrets),
        )

    @property
    def source(self) -> str:
        """The captured source of its module: what is sent for registration."""
        return self._captured().text

    def _captured(self) -> Captured:
        kinds = self._kinds, self._result_kinds
        assert kinds is not None, "reading the kinds finds the classes that they need"
        return capture(self.function, self._options.include, _ROLES, sorted(self._classes))

    @functools.cached_property
    def _kinds(self) -> dict[str, str]:
        reader = self._kinds_reader()
        with _located(self.function):
            found = {p.name: reader.of_parameter(p) for p in self._parameters}
        self._classes |= reader.classes
        return found

    @functools.cached_property
    def _result_kinds(self) -> tuple[str, ...]:
        reader = self._kinds_reader()
        with _located(self.function):
            found = reader.of_results(_returns(self.function), len(self._outputs))
        if not found and len(self._outputs) > 1:
            found = ("",) * len(self._outputs)
        self._classes |= reader.classes
        return found

    def _kinds_reader(self) -> Kinds:
        return Kinds(inspect.unwrap(self.function))

    def _completed_outputs(self) -> list[SetSpec]:
        kinds = self._result_kinds or ("",) * len(self._outputs)
        return [output_spec_of(s, kind) for s, kind in zip(self._outputs, kinds, strict=True)]

    def _may_be_absent(self, name: str) -> bool:
        return self._kinds.get(name, "").endswith(("?", "="))

    def _has_to_be_bound(self, name: str) -> bool:
        return needs_an_item(self._kinds[name])

    def _files(self) -> dict[str, bytes]:
        given = self._options.files
        return {n: file_bytes(f"{self.name}.files.{n}", f) for n, f in given.items()}

    def _static_arguments(self) -> dict[str, Any]:
        """Return the values of static sets, as a call in a sandbox has them."""
        static = self._options.static
        if not static:
            return {}
        sets: dict[str, ItemSet | None] = {}
        for name, value in static.items():
            spec = spec_of(SetSpec(name), self._kinds[name])
            sets[name] = item_set(name, value, spec)
        kinds = {name: self._kinds[name] for name in static if self._kinds[name] != "set"}
        module = inspect.getmodule(self.function)
        return arguments(kinds, sets, module)

    def _check_static(self) -> None:
        names = [p.name for p in self._parameters]
        for name in (*self._options.static, *self._options.secrets):
            if name not in names:
                message = f"fixed set '{name}' is not a parameter of '{self.function.__name__}'"
                raise _problem(
                    self.function, "unknown-set", message, f"parameters are {', '.join(names)}"
                )

    def __repr__(self) -> str:
        return f"<function {self._signature}>"

    def _repr_html_(self) -> str:
        options = self._options
        fixed = {
            **dict.fromkeys(options.static, "fixed"),
            **dict.fromkeys(options.secrets, "secret"),
        }
        sets = [(name, fixed.get(name, "input"), kind) for name, kind in self._kinds.items()]
        kinds = self._result_kinds or ("",) * len(self._outputs)
        sets += [(s.name, "output", kind) for s, kind in zip(self._outputs, kinds, strict=True)]
        text = inspect.getdoc(self.function)
        return page(
            heading("function", self.name, ", ".join(options.packages)),
            None if text is None else element("div", clipped(text)),
            table(("set", "role", "kind"), sets),
        )


@dataclass(frozen=True, slots=True)
class FunctionOptions:
    """The arguments of the decorator; see `function`."""

    outputs: tuple[SetLike, ...] | None
    name: str | None
    imports: tuple[str, ...]
    include: tuple[Any, ...]
    files: dict[str, Any]
    static: dict[str, Any]
    limits: Limits
    cache: bool
    batching: Batching | None
    secrets: dict[str, str]
    packages: tuple[str, ...]


def _code(captured: Captured, given: FunctionOptions, values: str) -> CodeDocument:
    options = {"entry": captured.entry, "values": values}
    if given.imports:
        options["imports"] = ",".join(given.imports)
    if captured.uses:
        options["uses"] = ",".join(captured.uses)
    return CodeDocument(
        "python", captured.text, dict(captured.files), options, packages=given.packages
    )


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    if not inspect.isfunction(inspect.unwrap(function)):
        message = f"{named_type(function)} is not a function"
        raise InvalidInput("function", message, "put the decorator above a def")
    found = list(inspect.signature(function).parameters.values())
    for parameter in found:
        if parameter.kind not in _BY_NAME:
            message = f"parameter '{parameter}' cannot be an input set"
            raise _problem(function, "bad-parameter", message, "write it without * and **")
        if parameter.name == FILES:
            message = f"the name '{FILES}' is reserved"
            raise _problem(function, "bad-parameter", message, "rename the parameter")
    if inspect.iscoroutinefunction(inspect.unwrap(function)):
        raise _problem(function, "async-entry", "the function must not be async", "remove async")
    return found


def _returns(function: Callable[..., Any]) -> object:
    return inspect.signature(function).return_annotation


def _output_specs(
    function: Callable[..., Any], reader: Kinds, given: tuple[SetLike, ...] | None
) -> tuple[SetSpec, ...]:
    """Return the declared outputs, or the one that the annotation allows."""
    if given is not None:
        return tuple(map(set_spec, given))
    annotation = _returns(function)
    if annotation in (None, type(None), "None"):
        return ()
    text = annotation if isinstance(annotation, str) else str(annotation)
    if text.startswith(("tuple[", "Tuple[", "typing.Tuple[")) and "..." not in text:
        message = "a function that returns several values has to name its output sets"
        raise _problem(function, "no-outputs", message, 'add outputs=["first", "second"]')
    return (SetSpec(RESULT),)


class _located:  # noqa: N801  # used like a function
    """Give errors about annotations the place of the function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, InvalidInput):
            message = f"{error.where}: {error.message}"
            raise _problem(self._function, "bad-annotation", message, error.hint) from None


def _problem(
    function: Callable[..., Any], code: str, message: str, hint: str = ""
) -> InvalidFunction:
    file, line = place_of(function)
    return InvalidFunction((Problem(code, message, f"{file}:{line}", line, hint=hint),))


@overload
def function(given: Callable[..., Any], /) -> PythonFunction: ...


@overload
def function(
    *,
    outputs: Iterable[SetLike] | str | None = None,
    name: str | None = None,
    imports: Iterable[str] = (),
    include: Iterable[object] = (),
    files: Mapping[str, bytes | Path] | None = None,
    static: Mapping[str, Value] | None = None,
    limits: GivenLimits = None,
    cache: bool = False,
    batching: Batching | None = None,
    secrets: Mapping[str, str] | Iterable[str] | None = None,
    packages: Iterable[str] | str = (),
) -> Callable[[Callable[..., Any]], PythonFunction]: ...


def function(
    given: Callable[..., Any] | None = None,
    /,
    *,
    outputs: Iterable[SetLike] | str | None = None,
    name: str | None = None,
    imports: Iterable[str] = (),
    include: Iterable[object] = (),
    files: Mapping[str, bytes | Path] | None = None,
    static: Mapping[str, Value] | None = None,
    limits: GivenLimits = None,
    cache: bool = False,
    batching: Batching | None = None,
    secrets: Mapping[str, str] | Iterable[str] | None = None,
    packages: Iterable[str] | str = (),
) -> PythonFunction | Callable[[Callable[..., Any]], PythonFunction]:
    """Make a function of a program a compute function; see ``docs/python-functions.md``.

    Args:
        given: the function under the decorator.
        outputs: output sets; by default one, `RESULT`.
        name: registered name; by default that of the function.
        imports: further modules that sandboxes have to load, for example parts that a package
            loads on first use. Imports of the source need no declaration.
        include: functions, classes and modules that the source does not show.
        files: content or path of files that the function reads as ``dandelion.files[name]``.
        static: values of parameters that are fixed at registration.
        limits: what one instance may use; a `Limits` or its fields, sizes also as ``"128MiB"``.
        cache: keep results by the content of the inputs.
        batching: how waiting calls are joined.
        secrets: names of secrets of the node, by the parameter that each fills; a list if both
            have the same name. In a test, give the parameter.
        packages: requirements of Python packages, such as ``scipy>=1.13``. The node prepares them
            at registration; this program needs them only where it calls the function itself.

    Raises:
        InvalidFunction, InvalidInput: it is no function that can be one; with its line.
    """
    sets = (outputs,) if isinstance(outputs, str | SetSpec) else outputs
    options = FunctionOptions(
        None if sets is None else tuple(sets),
        name,
        as_tuple(imports),
        tuple(include),
        dict(files or {}),
        dict(static or {}),
        limits_of(limits, f"{user_place()}: limits"),
        cache,
        batching,
        _secrets(secrets),
        as_tuple(packages),
    )
    if given is None:
        return lambda below: PythonFunction(below, options)
    return PythonFunction(given, options)


def _secrets(given: Mapping[str, str] | Iterable[str] | None) -> dict[str, str]:
    if isinstance(given, Mapping):
        return dict(given)
    return {name: name for name in as_tuple(given or ())}


_ROLES = Roles((function,), (composition,))
