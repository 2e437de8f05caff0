"""What annotations say of a function's arguments and results.

They are evaluated here, in the user's program, and written down as kinds; see
`dandelion.call_values`.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Union, get_args, get_origin

import msgspec
import numpy as np

from dandelion import arrays
from dandelion.call_values import CallValues
from dandelion.data import Item, ItemSet, SetSpec
from dandelion.errors import InvalidInput

_PLAIN: dict[Any, str] = {
    str: "str",
    bytes: "bytes",
    memoryview: "memoryview",
    Item: "item",
    int: "int",
    float: "float",
    bool: "bool",
    dict: "dict",
    list: "list",
    np.ndarray: "array",
    ItemSet: "set",
    Any: "set",
    inspect.Parameter.empty: "set",
    Mapping: "dict",
}
_LISTS = (list, tuple, collections.abc.Sequence)
_ITERATORS = (
    *(collections.abc.Iterator, collections.abc.Iterable, collections.abc.Generator),
    types.GeneratorType,
)
_FORMS = {
    "str": "text",
    **dict.fromkeys(("dict", "list", "struct", "int", "float", "bool"), "json"),
}
_KNOWN = (
    "str, bytes, int, float, bool, dict, list, numpy.ndarray, NDArray[...], a dataclass, a "
    "TypedDict, a msgspec.Struct, Item, ItemSet, list[...] or Iterator[...] of these, or one "
    "with '| None'"
)


_ALIASES = 16
"""At most so many are followed, since an alias may stand for itself."""


class UnknownKind(Exception):
    """An annotation says nothing that can be converted."""


class Kinds:
    """Reads the annotations of one function.

    Args:
        function: below its decorators.

    Attributes:
        classes: names, in the function's module, of the classes that its annotations need.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._globals: dict[str, Any] = getattr(function, "__globals__", {})
        self.classes: set[str] = set()

    def of_parameter(self, parameter: inspect.Parameter) -> str:
        """Return the kind of a parameter; ``set`` alone if it is the set as it is.

        Raises:
            InvalidInput: the annotation is of another type.
        """
        kind = self._named(f"parameter '{parameter.name}'", parameter.annotation)
        if parameter.default is not parameter.empty:
            return f"{kind.rstrip('?')}="
        return kind

    def of_results(self, annotation: object, outputs: int | None) -> tuple[str, ...]:
        """Return the kinds of the output sets; empty if results are sets as today.

        Args:
            annotation: after ``->``.
            outputs: how many output sets there are; None for as many as the annotation says.
        """
        found = self._evaluated("the result", annotation)
        if found is None or found is type(None):
            return () if outputs in (None, 0) else ("",) * (outputs if outputs > 1 else 0)
        if get_origin(found) is tuple and Ellipsis not in get_args(found) and outputs != 1:
            parts = get_args(found)
            if outputs is not None and outputs != len(parts):
                message = f"it has {len(parts)} values for {outputs} output sets"
                raise InvalidInput("result", message, "name one output set for each value")
            return tuple(self._result(part) for part in parts)
        if outputs is not None and outputs > 1:
            return (self._of_each(found),) * outputs
        kind = self._result(found)
        return (kind,) if kind else ()

    def _of_each(self, found: object) -> str:
        """Return the kind of the values of a dict of output sets."""
        arguments = get_args(found)
        is_dict = get_origin(found) in (dict, collections.abc.Mapping)
        return self._result(arguments[1]) if is_dict and len(arguments) == 2 else ""

    def _result(self, annotation: object) -> str:
        kind = self._named("the result", annotation).rstrip("?")
        return "" if kind == "set" else kind

    def _named(self, what: str, annotation: object) -> str:
        found = self._evaluated(what, annotation)
        try:
            return self._kind(found)
        except UnknownKind as error:
            raise InvalidInput(what, f"{error} is not an annotation for values", _KNOWN) from None

    def _evaluated(self, what: str, annotation: object) -> object:
        if not isinstance(annotation, str):
            return annotation
        try:
            return eval(annotation, self._globals)  # the user's own text, in the user's program
        except Exception as error:
            message = f"its annotation '{annotation}' cannot be evaluated: {error}"
            raise InvalidInput(what, message, "import its names at the top") from None

    def _kind(self, annotation: Any) -> str:
        annotation = _without_aliases(annotation)
        plain = _PLAIN.get(annotation) if isinstance(annotation, collections.abc.Hashable) else None
        if plain is not None:
            return plain
        if isinstance(annotation, str):
            return self._kind(self._evaluated("annotation", annotation))
        origin, arguments = get_origin(annotation), get_args(annotation)
        if origin in (Union, types.UnionType):
            return self._optional(annotation, arguments)
        if origin is np.ndarray:
            return _array_kind(arguments)
        if origin in (dict, collections.abc.Mapping):
            return self._dict(arguments)
        if origin in _LISTS or origin in _ITERATORS:
            if origin is tuple and arguments[-1:] != (Ellipsis,):
                raise UnknownKind(_shown(annotation))
            several = "iter:" if origin in _ITERATORS else "list:"
            return several + self._element(annotation, arguments)
        if isinstance(annotation, type) and (
            issubclass(annotation, msgspec.Struct)
            or dataclasses.is_dataclass(annotation)
            or typing.is_typeddict(annotation)
        ):
            return f"struct/{self._class(annotation)}"
        raise UnknownKind(_shown(annotation))

    def _dict(self, arguments: tuple[Any, ...]) -> str:
        """Return the kind of a dict: items by name, if JSON cannot express its values."""
        if arguments[0] is not str:
            raise UnknownKind(f"a dict with keys of {_shown(arguments[0])}")
        try:
            kind = self._kind(arguments[1]) if arguments[1] is not Any else ""
        except UnknownKind:
            return "dict"
        name = kind.partition("/")[0]
        return f"named:{kind}" if name in ("bytes", "memoryview", "array", "item") else "dict"

    def _element(self, annotation: object, arguments: tuple[Any, ...]) -> str:
        if not arguments or arguments[0] is Any:
            raise UnknownKind(f"{_shown(annotation)}, without the type of an item,")
        if get_origin(arguments[0]) in _LISTS:
            return "list"  # a JSON array in each item
        kind = self._kind(arguments[0]).rstrip("?")
        return "item" if kind == "set" else kind

    def _optional(self, annotation: object, arguments: tuple[Any, ...]) -> str:
        others = [a for a in arguments if a is not type(None)]
        if len(others) != 1 or len(others) == len(arguments):
            raise UnknownKind(_shown(annotation))
        return f"{self._kind(others[0])}?"

    def _class(self, cls: type) -> str:
        for name in (cls.__name__, *self._globals):
            if self._globals.get(name) is cls:
                self.classes.add(name)
                return name
        raise UnknownKind(f"{_shown(cls)}, which has no name in the function's module,")


def _without_aliases(annotation: Any) -> Any:
    """Replace a type alias by what it stands for.

    NumPy's `NDArray` is one from version 2.5 on.
    """
    for _ in range(_ALIASES):
        origin = get_origin(annotation)
        if hasattr(origin, "__value__"):
            annotation = origin.__value__[get_args(annotation)]
        elif origin is None and hasattr(annotation, "__value__"):
            annotation = annotation.__value__
        else:
            break
    return annotation


def _array_kind(arguments: tuple[Any, ...]) -> str:
    element = get_args(arguments[1])[:1] if len(arguments) > 1 else ()
    if not element or not isinstance(element[0], type):
        return "array"
    if not issubclass(element[0], np.generic) or element[0] in _ABSTRACT:
        return "array"
    name = arrays.name_of(np.dtype(element[0]))
    if name is None:
        raise UnknownKind(f"an array of {_shown(element[0])}")
    return f"array/{name}"


_ABSTRACT = frozenset(
    {np.generic, np.number, np.integer, np.signedinteger, np.unsignedinteger, np.inexact}
    | {np.floating, np.complexfloating, np.flexible, np.character}
)
"""Element types of numpy that stand for several."""


def _shown(annotation: object) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


_MANY = ("list:", "iter:", "named:")
"""What kinds of several values begin with."""


def spec_of(spec: SetSpec, kind: str) -> SetSpec:
    """Complete the declaration of a set by the kind of its values."""
    many = kind.startswith(_MANY)
    name, _, parameter = kind.rstrip("?=").rpartition(":")[2].partition("/")
    form = _FORMS.get(name, "")
    found = msgspec.structs.replace(
        spec,
        form=f"{form}[]" if form and many else form,
        optional=kind.endswith(("?", "=")),
    )
    if name == "array" and parameter and spec.dtype is None:
        return msgspec.structs.replace(found, dtype=parameter)
    return found if spec.dtype is None else msgspec.structs.replace(found, form="")


def output_spec_of(spec: SetSpec, kind: str) -> SetSpec:
    """Complete the declaration of an output set; several values are a list, also of arrays."""
    made = spec_of(spec, kind)
    if kind.startswith(_MANY) and not made.form:
        return msgspec.structs.replace(made, form="[]")
    return made


def needs_an_item(kind: str) -> bool:
    """Tell whether an absent set is an error for a parameter of this kind."""
    return kind != "set" and not kind.startswith(_MANY) and not kind.endswith(("?", "="))


def call_values(kinds: Mapping[str, str], outputs: tuple[str, ...], label: str) -> CallValues:
    """Make the record of a function's kinds."""
    return CallValues({n: k for n, k in kinds.items() if k != "set"}, outputs, label)
