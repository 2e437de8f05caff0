"""Items and sets: the data on the edges of a composition.

An **item** is a name, a key (unsigned 32-bit) and bytes; an item made from an array also has an
element type and a shape. A **set** is a named, unordered collection of items; an empty set is
``None`` wherever a set is expected. Items are immutable, so they are passed by reference.

A set may be declared with a type (`SetSpec`). Its items are checked against it wherever they enter
the set: an item of another type is refused, never converted, and plain bytes of the right size get
the declared type.

Ownership: `Item.data` is ``bytes`` or a read-only ``memoryview``. A view into a memory context
keeps that context alive; releasing the last view returns the context to its domain. There is no
explicit free.

Source: data model of the Dandelion paper, section 3; keys and empty sets as in its composition
language.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence, ValuesView
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from dandelion import arrays
from dandelion.arrays import Shape
from dandelion.errors import InvalidInput, nearest
from dandelion.json_values import json_bytes, text_key
from dandelion.markup import Element, heading, page
from dandelion.previews import preview, set_preview

Bytes: TypeAlias = bytes | memoryview
Value: TypeAlias = Any
"""A value that a caller may give for a set, see `item_set`."""

_SINGLE = (bytes, str, np.ndarray)

FORMS = ("", "text", "json", "text[]", "json[]")
"""Forms of sets, see `SetSpec`."""

KEY_LIMIT = 2**32
NAME_LIMIT_BYTES = 255


class SetSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """Declares one input or output set of a function.

    Attributes:
        name: identifier of the set, ``[A-Za-z_][A-Za-z0-9_]*``.
        dtype: numpy name of the element type of every item (``"float32"``), or None for bytes.
        shape: shape of every item in elements, row-major; -1 leaves a dimension open.
        min_bytes: of an input set: smallest amount for one instance, in bytes, where the platform
            chooses how ``anyEach`` and ``anyKeyed`` distribute the set.
        form: what items without a dtype contain: ``text``, ``json``, or unknown (empty). ``json``
            is one JSON value, ``json[]`` one in each item, and so for ``text[]``. It decides how
            Python values become items, and what `ItemSet.value` returns; it is not checked.
        optional: of an input set: a call may leave it out, and it is then absent.
    """

    name: str
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    min_bytes: int = 0
    form: str = ""
    optional: bool = False


class Item(msgspec.Struct, frozen=True, gc=False):  # no cycles, so no garbage collection
    """One immutable value: a name, a key and its bytes.

    Attributes:
        name: free text, up to 255 bytes of UTF-8.
        key: 0 to 2**32 - 1.
        data: the bytes; of an array its elements, row-major.
        dtype: of an array: name of its element type, see `dandelion.arrays`. None for plain bytes.
        shape: of an array: its shape in elements; None stands for one dimension.
    """

    name: str
    key: int = 0
    data: Bytes = b""
    dtype: str | None = None
    shape: Shape | None = None

    @classmethod
    def of(cls, name: str, value: Value, key: int | str = 0) -> Item:
        """Make an item from text, bytes, an array, numbers or a JSON value.

        Args:
            name: of the item.
            value: str (UTF-8), bytes, a dict or None (JSON); all else becomes a numpy array. A
                contiguous array is viewed, another is copied.
            key: a number, or a text, see `text_key`.

        Raises:
            InvalidInput: the elements are neither numbers nor booleans.
        """
        number = text_key(key) if isinstance(key, str) else key
        if isinstance(value, str | bytes | Mapping | None):
            data = value.encode() if isinstance(value, str) else value
            return cls(name, number, data if isinstance(data, bytes) else json_bytes(data))
        made = np.asarray(value)
        dtype = arrays.name_of(made.dtype)
        if dtype is None:
            message = f"arrays of {made.dtype} are not supported"
            raise InvalidInput(f"item '{name}'", message, "give Item(name, key, array.tobytes())")
        return cls(name, number, arrays.bytes_of(made), dtype, made.shape)

    @property
    def size_bytes(self) -> int:
        """Length of the data in bytes."""
        data = self.data
        return data.nbytes if isinstance(data, memoryview) else len(data)

    def bytes(self) -> bytes:
        """Copy the data out as ``bytes`` (no copy if it is ``bytes`` already)."""
        return bytes(self.data)

    def text(self) -> str:
        """Decode the data as UTF-8."""
        return bytes(self.data).decode()

    def json(self) -> Any:
        """Read the data as JSON; an array gives its numbers, in nested lists.

        Raises:
            ValueError: it is not valid JSON.
        """
        if self.dtype is not None:
            return self.numpy().tolist()
        try:
            return msgspec.json.decode(self.data)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValueError(f"item '{self.name}' is not valid JSON: {error}") from None

    def value(self, form: str = "") -> Any:
        """Return an array, a number for an array without dimensions, or what `form` says.

        Args:
            form: of the item's set, see `SetSpec`; items without a dtype and form are bytes.
        """
        if self.dtype is not None:
            array = self.numpy()
            return array[()] if array.ndim == 0 else array
        kind = form.removesuffix("[]")
        return self.json() if kind == "json" else self.text() if kind == "text" else self.bytes()

    def _repr_html_(self) -> str:
        return page(heading("item", self.name), preview(self.data, self.dtype, self.shape))

    def numpy(
        self, dtype: npt.DTypeLike | None = None, shape: tuple[int, ...] | None = None
    ) -> npt.NDArray[Any]:
        """View the data as a read-only numpy array, without a copy.

        Args:
            dtype: element type; by default that of the item, ``uint8`` for plain bytes.
            shape: shape in elements, row-major; one dimension may be -1. By default that of the
                item, or one dimension if `dtype` is given.

        Raises:
            ValueError: the length is not a multiple of the element size, or does not fit the shape.
        """
        if shape is None:
            shape = (-1,) if dtype is not None or self.shape is None else self.shape
        element = dtype if dtype is not None else (self.dtype or np.uint8)
        array = np.frombuffer(self.data, dtype=element).reshape(shape)
        array.flags.writeable = False
        return array


class Origin(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The item that an instance was made for; outputs without a name take its name.

    Attributes:
        name: of that item; None if the instance was made for all items of a key.
        key: of that item, or those items.
    """

    name: str | None
    key: int


class ItemSet(msgspec.Struct, frozen=True):
    """A named collection of at least one item.

    `dtype` and `shape` are those of the declaration, if any; the items were checked against it.
    `form` is that of the declaration, in results of an invocation only; see `SetSpec`.
    """

    name: str
    items: tuple[Item, ...]
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    form: str = ""

    def __iter__(self) -> Iterator[Item]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Item:
        return self.items[index]

    def with_form(self, form: str) -> ItemSet:
        """Return the same set with this form."""
        if form == self.form:
            return self
        return ItemSet(self.name, self.items, self.dtype, self.shape, form)

    @property
    def size_bytes(self) -> int:
        """Size of all data, in bytes."""
        size = 0
        for item in self.items:
            data = item.data
            size += len(data) if type(data) is bytes else item.size_bytes
        return size

    def bytes(self) -> bytes:
        """Copy out the data of the only item.

        Raises:
            InvalidInput: the set has more than one item; iterate over it instead.
        """
        return self.only().bytes()

    def text(self) -> str:
        """Decode the only item as UTF-8."""
        return self.only().text()

    def json(self) -> Any:
        """Read the only item as JSON; see `Item.json`."""
        return self.only().json()

    def value(self) -> Any:
        """Return the set as a Python value, as the function that made it returned it.

        Arrays are numpy arrays, or numbers if they have no dimensions. Other items are what the
        declaration of the set says: JSON values, text, else bytes. A set that was declared as
        several values, or that has several items, is a list.
        """
        if len(self.items) == 1 and not self.form.endswith("[]"):
            return self.items[0].value(self.form)
        return [item.value(self.form) for item in self.items]

    def _repr_html_(self) -> str:
        return page(self.element())

    def element(self) -> Element:
        """Show the set for notebooks."""
        return set_preview(self.name, self.items, self.form)

    def only(self) -> Item:
        """Return the only item of the set.

        Raises:
            InvalidInput: the set has more than one item.
        """
        if len(self.items) != 1:
            raise InvalidInput(f"set {self.name}", f"it has {len(self.items)} items, not one")
        return self.items[0]

    def numpy(
        self, dtype: npt.DTypeLike | None = None, shape: tuple[int, ...] | None = None
    ) -> npt.NDArray[Any]:
        """View the only item as a read-only numpy array; see `Item.numpy`.

        Arguments that are not given come from the set's declaration, else from the item.
        """
        item = self.only()
        if self.dtype is None:
            return item.numpy(dtype, shape)
        if shape is None:
            shape = self.shape if dtype is not None or item.shape is None else item.shape
        return item.numpy(dtype if dtype is not None else self.dtype, shape)


def next_name(name: str) -> str:
    """Name an output set that was given the name of an input set.

    In the composition language a set has one name, so these are two sets with two names. Python
    finds the output under the given name as well; so what is repeated can call a set the same
    before and after a step.
    """
    return f"next_{name}"


class Sets(Mapping[str, ItemSet | None]):
    """The named results of an invocation: ``sets.html``, ``sets["html"]``, or iterate.

    An empty declared set is None. An output set that has the name of an input set is registered
    under its `next_name`, and found under both names.
    """

    __slots__ = ("_sets",)

    def __init__(self, sets: Mapping[str, ItemSet | None]) -> None:
        self._sets = dict(sets)

    def __getitem__(self, name: str) -> ItemSet | None:
        sets = self._sets
        if name not in sets and next_name(name) in sets:
            return sets[next_name(name)]
        return sets[name]

    def __getattr__(self, name: str) -> Any:
        if name == "_sets":  # not set yet while a copy is made
            raise AttributeError(name)
        try:
            return self[name]
        except KeyError:
            close = nearest(name, self._sets)
            hint = f"; did you mean '{close}'?" if close else ""
            raise AttributeError(
                f"no set '{name}'; there are {', '.join(self._sets) or 'none'}{hint}"
            ) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._sets)

    def __len__(self) -> int:
        return len(self._sets)

    def values(self) -> ValuesView[ItemSet | None]:
        """View the sets; every reply needs them, and a dictionary's view is faster."""
        return self._sets.values()

    def _repr_html_(self) -> str:
        return page(*elements_of(self))  # no method, since sets may have its name

    def __repr__(self) -> str:
        counts = (f"{n}: {'empty' if s is None else len(s)}" for n, s in self._sets.items())
        return f"Sets({', '.join(counts)})"


def elements_of(sets: Mapping[str, ItemSet | None]) -> list[Element]:
    """Show sets for notebooks."""
    return [
        heading("set", name, "empty") if found is None else found.element()
        for name, found in sets.items()
    ]


def check_item(set_name: str, name: str, key: int) -> None:
    """Refuse item names and keys that the data model does not allow.

    Names are free text, up to 255 bytes of UTF-8 without NUL. They are data, never paths: nothing
    in the platform opens a file by an item's name.

    Raises:
        InvalidInput: the name is too long, has a NUL or is not valid Unicode; the key is not a u32.
    """
    if len(name) > NAME_LIMIT_BYTES or not name.isascii():  # else its bytes are its characters
        try:
            size = len(name.encode())
        except UnicodeEncodeError:
            message = "the item's name is not valid Unicode"
            raise InvalidInput(f"sets.{set_name}", message) from None
        if size > NAME_LIMIT_BYTES:
            message = f"an item's name has {size} bytes, more than 255"
            raise InvalidInput(f"sets.{set_name}", message)
    if "\0" in name:
        raise InvalidInput(f"sets.{set_name}", "an item's name has a NUL character")
    if not 0 <= key < KEY_LIMIT:
        raise InvalidInput(f"sets.{set_name}", f"key {key} is outside 0..{KEY_LIMIT - 1}")


def item_set(
    name: str, value: Value, spec: SetSpec | None = None, origin: Origin | None = None
) -> ItemSet | None:
    """Make a set from a Python value.

    Args:
        name: name of the set.
        value: None (absent); an `ItemSet`; bytes-like, str (UTF-8) or a numpy array or scalar (one
            item, named as the set, key 0); a number, or a list of numbers or of such lists (one
            item: an array if the set declares a dtype, else JSON); a sequence of any of these or of
            `Item` (item names "0", "1", ...); a mapping from item name to any of these. Within
            sequences and mappings, lists, dicts and None are JSON. If the form of the set is
            ``json``, a list or dict is one item. dataclasses and msgspec's structs are JSON.
        spec: the declaration. An array of another type is refused; Python's numbers, which have no
            type, become an array of the declared one if that loses nothing but digits of floats.
        origin: its key is the key of all items without one. Its name is the name of a single item
            without one; items of a sequence get it with the suffix ".0", ".1", ...

    Returns:
        The set, or None if there are no items. bytes are referenced, arrays are viewed if they are
        contiguous, else copied.

    Raises:
        InvalidInput: the value's type is not supported, or an item does not fit `spec`.
    """
    where = f"sets.{name}"
    if value is None:
        return None
    key = origin.key if origin is not None else 0
    named = origin.name if origin is not None else None
    if isinstance(value, ItemSet):
        items = tuple([_sound(where, item) for item in value.items])
        if value.dtype is not None:
            items = tuple([_declared(where, item, value.dtype, value.shape) for item in items])
    elif isinstance(value, _SINGLE) or is_json(value, spec):  # most frequent; the rest is slower
        items = (_item(where, name if named is None else named, key, value, spec),)
    elif isinstance(value, Mapping):
        items = tuple([_item(where, str(k), key, v, spec) for k, v in value.items()])
    elif is_sequence(value) and (has_many(spec) or not is_numbers(value)):
        items = tuple(
            [_item(where, _numbered(named, i), key, v, spec) for i, v in enumerate(value)]
        )
        _check_text_keys(where, value)
    else:
        items = (_item(where, name if named is None else named, key, value, spec),)
    return checked(name, items, spec)


def _check_text_keys(where: str, value: Value) -> None:
    """Refuse items whose keys are different texts with the same number."""
    texts: dict[int, str] = {}
    for item in value if isinstance(value, list | tuple) else ():
        key: object = item.key if type(item) is Item else None
        if isinstance(key, str) and texts.setdefault(text_key(key), key) != key:
            message = f"keys {texts[text_key(key)]!r} and {key!r} have the same number"
            raise InvalidInput(where, message, "give integer keys, see text_key")


def _numbered(named: str | None, index: int) -> str:
    """Name an element of a sequence; the origin's name is cut if the result is too long."""
    if named is None:
        return str(index)
    end = f".{index}"
    room = NAME_LIMIT_BYTES - len(end)
    if len(named) > room // 4:
        named = named.encode()[:room].decode(errors="ignore")
    return named + end


def has_many(spec: SetSpec | None) -> bool:
    """Tell whether a set is declared to have a value in each item."""
    return spec is not None and spec.form.endswith("[]")


def is_json(value: Value, spec: SetSpec | None) -> bool:
    """Tell whether a list or dict is one JSON value, by the declaration of its set."""
    if spec is None or spec.form != "json" or not isinstance(value, list | tuple | Mapping):
        return False
    parts = value.values() if isinstance(value, Mapping) else value
    return not any(isinstance(part, Item | bytes | np.ndarray) for part in parts)


def is_sequence(value: Value) -> bool:
    """Tell whether a value means several items."""
    return isinstance(value, Sequence | Iterator) and not isinstance(
        value, str | bytes | bytearray | memoryview
    )


def is_numbers(value: Value) -> bool:
    """Tell whether a value is a list of numbers, or of such lists: a literal array."""
    return (
        isinstance(value, list | tuple)
        and bool(value)
        and all(isinstance(v, bool | int | float) or is_numbers(v) for v in value)
    )


def checked(name: str, items: Iterable[Item], spec: SetSpec | None) -> ItemSet | None:
    """Check items against the data model and a declaration, and make a set from them.

    Raises:
        InvalidInput: a name, key, size or shape does not fit; the message names set and item.
    """
    items = tuple(items)
    if not items:
        return None
    for item in items:
        check_item(name, item.name, item.key)
    if spec is None or spec.dtype is None:
        return ItemSet(name, items)
    where, dtype, shape = f"sets.{name}", spec.dtype, spec.shape
    typed = tuple([_declared(where, item, dtype, shape) for item in items])
    return ItemSet(name, typed, dtype, shape)


def _declared(where: str, item: Item, dtype: str, shape: Shape | None) -> Item:
    """Check an item against a declared type; plain bytes become an array of it."""
    own = item.dtype
    if own is not None:
        differs = not arrays.same_dtype(own, dtype)
        if differs or not arrays.fits(item.shape, shape):
            found, wanted = arrays.text_of(own, item.shape), arrays.text_of(dtype, shape)
            message = f"item '{item.name}' is {found}, expected {wanted}"
            hint = f"convert it: array.astype('{dtype}')" if differs else "reshape it"
            raise InvalidInput(where, message, hint)
        if shape is None or item.shape is not None:
            return item
    element = arrays.declared_dtype(dtype)
    count, rest = divmod(item.size_bytes, element.itemsize)
    if rest:
        message = f"item '{item.name}' has {item.size_bytes} bytes, not a multiple of {dtype}"
        raise InvalidInput(where, message)
    try:
        filled = None if shape is None else arrays.filled_shape(shape, count)
    except ValueError:
        message = f"item '{item.name}' has {count} elements of {dtype}"
        raise InvalidInput(where, f"{message}, expected {arrays.text_of(dtype, shape)}") from None
    named = own or arrays.name_of(element)
    return item if named is None else Item(item.name, item.key, item.data, named, filled)


def _item(where: str, name: str, key: int, value: Value, spec: SetSpec | None) -> Item:
    if isinstance(value, Item):
        return _sound(where, value)
    if isinstance(value, bytes):
        return Item(name, key, value)
    if isinstance(value, str):
        return Item(name, key, value.encode())
    if isinstance(value, np.ndarray | np.generic):
        return _array(where, name, key, np.asarray(value), spec)
    if isinstance(value, bytearray | memoryview):
        return Item(name, key, _flat(value))
    declared = spec is not None and spec.dtype is not None
    if not declared and _may_be_json(value):
        try:
            return Item(name, key, json_bytes(value))
        except (TypeError, ValueError, RecursionError, OverflowError) as error:
            raise InvalidInput(where, f"item '{name}' cannot be written as JSON: {error}") from None
    if isinstance(value, bool | int | float | Sequence) and spec is not None and spec.dtype:
        try:
            array = arrays.of_numbers(where, value, arrays.declared_dtype(spec.dtype))
            return Item(name, key, arrays.bytes_of(array))
        except (TypeError, ValueError) as error:
            message = f"item '{name}' is not a {spec.dtype} array: {error}"
            raise InvalidInput(where, message) from None
    raise InvalidInput(
        where,
        f"item '{name}' is a {type(value).__name__}",
        "give bytes, str, a numpy array, an Item, a JSON value, or a list or dict of these",
    )


def _may_be_json(value: Value) -> bool:
    if value is None or isinstance(value, bool | int | float | list | tuple | dict):
        return True
    return isinstance(value, msgspec.Struct) or (
        dataclasses.is_dataclass(value) and not isinstance(value, type)
    )


def _array(where: str, name: str, key: int, array: npt.NDArray[Any], spec: SetSpec | None) -> Item:
    dtype = arrays.name_of(array.dtype)
    if dtype is not None:
        return Item(name, key, arrays.bytes_of(array), dtype, array.shape)
    declared = spec.dtype if spec is not None else None
    if declared is not None and arrays.declared_dtype(declared) == array.dtype:
        return Item(name, key, arrays.bytes_of(array))
    message = f"item '{name}' is an array of {array.dtype}"
    expected = "" if declared is None else f", expected {declared}"
    raise InvalidInput(where, message + expected, "give numbers, or its bytes: array.tobytes()")


def _sound(where: str, item: Item) -> Item:
    """Check and normalize an item that a caller made."""
    if not isinstance(item, Item):
        raise InvalidInput(where, f"a {type(item).__name__} instead of an Item")
    data: object = item.data
    if not isinstance(item.name, str):
        raise InvalidInput(where, f"an item's name is a {type(item.name).__name__}")
    if not isinstance(data, bytes | bytearray | memoryview):
        kind = type(data).__name__
        message = f"item '{item.name}' has data of type {kind}"
        raise InvalidInput(where, message, "give bytes, or make it with Item.of(name, value)")
    given: object = item.key
    try:
        key = text_key(given) if isinstance(given, str) else operator.index(item.key)
    except (TypeError, UnicodeEncodeError):
        hint = "give an integer or a text"
        raise InvalidInput(where, f"item '{item.name}' has key {item.key!r}", hint) from None
    flat = data if isinstance(data, bytes) else _flat(data)
    dtype, shape = item.dtype, item.shape
    if dtype is not None or shape is not None:
        path = f"{where}: item '{item.name}'"
        dtype, shape = arrays.checked_type(path, dtype, shape, len(flat))
    if flat is item.data and key is item.key and dtype == item.dtype and shape == item.shape:
        return item
    return Item(item.name, key, flat, dtype, shape)


def _flat(data: bytearray | memoryview) -> Bytes:
    view = data if isinstance(data, memoryview) else memoryview(data)
    if not view.c_contiguous:
        return view.tobytes()
    if view.format != "B" or view.ndim != 1:
        view = view.cast("B")
    return view if view.readonly else view.toreadonly()
