"""Values of a call of a Python function: arguments from input sets, output sets from results.

A function with annotations gets Python values and returns them. What an annotation says is written
down as a short text, a **kind**, when the function is described; annotations themselves are never
evaluated outside of the user's program. The sandbox reads the kinds and converts. A function
without kinds is called with its sets, and this module is not used.

A kind is ``[list:|iter:|named:]NAME[/PARAMETER][?|=]``:

================ =====================================================================
``set``          the `ItemSet` as it is
``item``         an `Item`
``str``          UTF-8 text
``bytes``        the bytes; ``memoryview`` views them
``array``        a numpy array, ``array/float32`` of that element type
``dict, list``   a JSON object, a JSON array; ``list`` alone is one item
``struct/NAME``  a class of the function's module, in JSON
``int float``    a number: text, JSON or an array with one element; also ``bool``
``list:KIND``    all items of the set, in a list; ``iter:KIND`` yields them, and ``named:KIND``
                 is a dict by their names
================ =====================================================================

With ``?`` an absent set is None, with ``=`` the parameter's default. Without either an absent set
is an error, except that a list or a dict by names is empty.

This module is loaded in every sandbox, so it imports little.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import msgspec
import numpy as np

from dandelion.arrays import kind_of, same_dtype, text_of
from dandelion.data import Item, ItemSet
from dandelion.errors.misfits import misfit_text, named_type
from dandelion.json_values import json_bytes

NAMES = ("set", "item", "str", "bytes", "memoryview", "array", "dict", "list", "struct",
         "int", "float", "bool")  # fmt: skip
FILES = "_files"
"""Static input set with the attached files of a function; it is no argument of the function."""

_KIND = re.compile(
    rf"(?P<several>list:|iter:|named:|)(?P<name>{'|'.join(NAMES)})"
    r"(/(?P<parameter>[A-Za-z_<>][A-Za-z0-9_.]{0,127}))?(?P<absent>[?=]|)\Z"
)
_LABEL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_. -]{0,127}\Z")
_SHOWN = 40


class InputMismatch(TypeError):
    """An input is not what the function's annotation says."""


class OutputMismatch(TypeError):
    """A result is not what the function's annotation says."""


class CallValues(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How a Python function is called; the option ``values`` of its code object, as JSON.

    Attributes:
        inputs: kinds of parameters, by input set. Others get their `ItemSet`, or None.
        outputs: kinds of the output sets, in order; empty if results are not converted.
        file: name of the user's file, for tracebacks.
    """

    inputs: dict[str, str] = {}
    outputs: tuple[str, ...] = ()
    file: str = ""

    def __post_init__(self) -> None:
        for kind in (*self.inputs.values(), *self.outputs):
            if kind and _KIND.match(kind) is None:
                raise ValueError(f"{kind!r:.60} is not a kind of value")
        if self.file and _LABEL.match(self.file) is None:
            raise ValueError(f"{self.file!r:.60} is not a file name")


_decoder = msgspec.json.Decoder(CallValues)


def read_call_values(text: str) -> CallValues:
    """Read the option ``values``.

    Raises:
        ValueError: it is not such a record.
    """
    try:
        return _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ValueError(str(error)) from None


class _Kind:
    """A kind that was read: how one item or value is converted."""

    __slots__ = ("absent", "name", "parameter", "several", "text")

    def __init__(self, text: str) -> None:
        found = _KIND.match(text)
        assert found is not None, "checked by CallValues"
        self.text = text.rstrip("?=")
        self.several: str = found["several"]
        self.name: str = found["name"]
        self.parameter: str = found["parameter"] or ""
        self.absent: str = found["absent"]


# --- arguments --------------------------------------------------------------------------------


def arguments(
    kinds: Mapping[str, str], inputs: Mapping[str, ItemSet | None], module: object
) -> dict[str, Any]:
    """Convert input sets to arguments.

    Args:
        kinds: by input set.
        inputs: the sets by name; None if absent.
        module: the function's module, which has the classes of ``struct`` kinds.

    Raises:
        InputMismatch: an input is of another type; it names set, item, and both types.
    """
    found: dict[str, Any] = {}
    for name, given in inputs.items():
        if name == FILES:
            continue
        text = kinds.get(name)
        if text is None:
            found[name] = given
            continue
        kind = _Kind(text)
        if given is None and kind.absent == "=":
            continue
        found[name] = _argument(name, given, kind, module)
    return found


def _argument(name: str, given: ItemSet | None, kind: _Kind, module: object) -> Any:
    if given is None and (kind.absent == "?" or kind.name == "set"):
        return None
    if given is not None and kind.name == "set":
        return given
    convert = _reader(name, kind, module)
    if kind.several:
        items = given.items if given is not None else ()
        if kind.several == "named:":
            return {item.name: convert(item) for item in items}
        values = (convert(item) for item in items)
        return values if kind.several == "iter:" else list(values)
    if given is None:
        message = f"input set '{name}' is absent, expected {_shown(kind)}"
        raise InputMismatch(f"{message}; annotate it with '| None' or give a default if it may be")
    if len(given.items) != 1:
        wanted = _shown(kind).removeprefix("an ").removeprefix("a ")
        message = f"input set '{name}' has {len(given.items)} items, expected one {wanted}"
        raise InputMismatch(f"{message}; annotate it with 'list[...]' to get all items")
    return convert(given.items[0])


def _reader(set_name: str, kind: _Kind, module: object) -> Callable[[Item], Any]:
    """Make the function that converts one item."""
    if kind.name == "struct":
        cls = _class(kind.parameter, module)
        return lambda item: _structure(set_name, item, kind, cls)
    read = _READERS[kind.name]
    return lambda item: read(set_name, item, kind)


def _class(name: str, module: object) -> Any:
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _mismatch(set_name: str, item: Item, kind: _Kind, why: str = "") -> NoReturn:
    message = f"input set '{set_name}', item '{item.name}': expected {_shown(kind)}"
    raise InputMismatch(f"{message}, found {_found(item)}{f'; {why}' if why else ''}") from None


def _shown(kind: _Kind) -> str:
    name = kind.parameter if kind.name == "struct" else kind.name
    if kind.name == "array":
        return f"an array of {kind.parameter}" if kind.parameter else "an array"
    return {"dict": "a JSON object", "list": "a JSON array"}.get(name, name)


def _found(item: Item) -> str:
    if item.dtype is not None:
        return f"an array {text_of(item.dtype, item.shape)}"
    try:
        text = bytes(item.data[: 4 * _SHOWN]).decode()
    except UnicodeDecodeError:
        return f"{item.size_bytes} bytes that are not text"
    cut = len(text) > _SHOWN or item.size_bytes > 4 * _SHOWN
    return f"{text[:_SHOWN]!r}{'...' if cut else ''}"


def _item(set_name: str, item: Item, kind: _Kind) -> Item:
    return item


def _text(set_name: str, item: Item, kind: _Kind) -> str:
    if item.dtype is not None:
        _mismatch(set_name, item, kind)
    try:
        return item.text()
    except UnicodeDecodeError:
        _mismatch(set_name, item, kind)


def _bytes(set_name: str, item: Item, kind: _Kind) -> bytes:
    return item.bytes()


def _view(set_name: str, item: Item, kind: _Kind) -> memoryview:
    return memoryview(item.data)


def _array(set_name: str, item: Item, kind: _Kind) -> Any:
    if item.dtype is None:
        hint = "give an array, or annotate the parameter with bytes and use numpy.frombuffer"
        _mismatch(set_name, item, kind, hint)
    if kind.parameter and not same_dtype(item.dtype, kind.parameter):
        _mismatch(set_name, item, kind, f"convert it: array.astype('{kind.parameter}')")
    return item.numpy()


def _json(set_name: str, item: Item, kind: _Kind) -> Any:
    """Read a JSON object or array; an array of numbers is a JSON array as well."""
    try:
        value = item.json()
    except ValueError:
        _mismatch(set_name, item, kind)
    if type(value) is not (dict if kind.name == "dict" else list):
        _mismatch(set_name, item, kind)
    return value


def _structure(set_name: str, item: Item, kind: _Kind, cls: type) -> Any:
    try:
        return msgspec.json.decode(item.data, type=cls)
    except msgspec.ValidationError as error:
        _mismatch(set_name, item, kind, misfit_text(error))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        _mismatch(set_name, item, kind, str(error))


_ONE_ITEM = "a list of numbers is one item; give {name: number, ...} for an item of each"


def _number(set_name: str, item: Item, kind: _Kind) -> int | float:
    value: Any
    if item.dtype is not None:
        array = item.numpy()
        allowed = "biu" if kind.name == "int" else "biuf"
        if array.size != 1 or kind_of(array.dtype) not in allowed:
            _mismatch(set_name, item, kind)
        value = array.reshape(())[()].item()
    else:
        try:
            value = item.text()
        except UnicodeDecodeError:
            _mismatch(set_name, item, kind)
    try:
        return int(value) if kind.name == "int" else float(value)
    except (ValueError, OverflowError):
        many = isinstance(value, str) and value.startswith("[")
        _mismatch(set_name, item, kind, _ONE_ITEM if many else "")


def _truth(set_name: str, item: Item, kind: _Kind) -> bool:
    if item.dtype is not None:
        array = item.numpy()
        if array.size == 1 and array.dtype.kind == "b":
            return bool(array.reshape(())[()])
    else:
        found = {b"true": True, b"True": True, b"false": False, b"False": False}.get(item.bytes())
        if found is not None:
            return found
    _mismatch(set_name, item, kind)


_READERS: dict[str, Callable[[str, Item, _Kind], Any]] = {
    "item": _item,
    "str": _text,
    "bytes": _bytes,
    "memoryview": _view,
    "array": _array,
    "dict": _json,
    "list": _json,
    "int": _number,
    "float": _number,
    "bool": _truth,
}


# --- results ----------------------------------------------------------------------------------


def results(kinds: tuple[str, ...], names: list[str], returned: Any) -> dict[str, Any]:
    """Convert what a function returned to values that `dandelion.set_values.item_set` takes.

    With one output set, the value is its content. With several, it is a dict by name, or a tuple
    in the order of the output sets.

    Raises:
        OutputMismatch: a value is not of the annotated type; it names the set and both types.
    """
    if len(names) == 1:
        found = {names[0]: returned}
    elif isinstance(returned, tuple):
        if len(returned) != len(names):
            message = f"a tuple of {len(returned)} values was returned for {len(names)} output sets"
            raise OutputMismatch(f"{message}: {', '.join(names)}")
        found = dict(zip(names, returned, strict=True))
    elif isinstance(returned, Mapping):
        found = dict(returned)
    else:
        message = f"{named_type(returned)} was returned"
        raise OutputMismatch(f"{message}; return a dict or a tuple with {', '.join(names)}")
    wanted = dict(zip(names, kinds, strict=False))
    return {name: _result(name, value, wanted.get(name, "")) for name, value in found.items()}


def _result(name: str, value: Any, text: str) -> Any:
    if not text or value is None or isinstance(value, ItemSet):
        return value
    kind = _Kind(text)
    if not kind.several:
        return _written(name, value, kind)
    if isinstance(value, Mapping):
        return {key: _written(name, v, kind) for key, v in value.items()}
    if isinstance(value, str | bytes | np.ndarray) or not hasattr(value, "__iter__"):
        _refuse(name, value, f"several values of {_shown(kind)}")
    written: Iterator[Any] = (_written(name, v, kind) for v in value)
    return list(written)


def _written(name: str, value: Any, kind: _Kind) -> Any:
    if isinstance(value, Item) or kind.name in ("set", "item"):
        return value
    if isinstance(value, np.generic) and kind.name in ("int", "float", "bool"):
        value = value.item()
    accepted = _ACCEPTED.get(kind.name, object)
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind.name == "int"):
        _refuse(name, value, _shown(kind))
    if kind.name == "float":
        return repr(float(value))
    if kind.name in ("dict", "list"):
        parts = value.values() if kind.name == "dict" else value
        if any(isinstance(part, Item) for part in parts):
            whole = "dict[str, Item]" if kind.name == "dict" else "list[Item]"
            _refuse(name, value, _shown(kind), f"it has items; annotate it with {whole}")
    if kind.name in ("dict", "list", "struct", "int", "bool"):
        try:
            return json_bytes(value)
        except (TypeError, ValueError, RecursionError) as error:
            _refuse(name, value, f"{_shown(kind)}, in JSON", str(error))
    if kind.name == "array" and kind.parameter:
        found = np.asarray(value).dtype
        if found != np.dtype(kind.parameter):
            raise OutputMismatch(
                f"output set '{name}': expected {_shown(kind)}, found an array of {found}; "
                f"convert it: array.astype('{kind.parameter}')"
            )
    return value


def _refuse(name: str, value: Any, expected: str, why: str = "") -> NoReturn:
    message = f"output set '{name}': expected {expected}, found {type(value).__name__}"
    raise OutputMismatch(f"{message}; {why}" if why else message) from None


_ACCEPTED: dict[str, Any] = {
    "str": str,
    "bytes": bytes | bytearray | memoryview,
    "memoryview": bytes | bytearray | memoryview,
    "array": np.ndarray | np.generic,
    "dict": Mapping,
    "list": list | tuple,
    "int": int,
    "float": int | float,
    "bool": bool,
}
