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

from collections.abc import Iterator, Mapping, ValuesView
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
"""A value that a caller may give for a set, see `dandelion.set_values.item_set`."""

FORMS = ("", "text", "json", "[]", "text[]", "json[]")
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
            is one JSON value, ``json[]`` one in each item, and so for ``text[]``; ``[]`` is several
            arrays or other items. It decides how Python values become items, and what
            `ItemSet.value` returns; it is not checked.
        optional: of an input set: a call may leave it out, and it is then absent.
    """

    name: str
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    min_bytes: int = 0
    form: str = ""
    optional: bool = False

    @property
    def type_text(self) -> str:
        """What its items are, for users: ``float32[2, ?]``, ``text``, ``JSON, several``."""
        if self.dtype is not None:
            kind = arrays.text_of(self.dtype, self.shape)
        else:
            form = self.form.removesuffix("[]")
            kind = _FORM_TEXTS.get(form, form)
        return f"{kind}, several" if self.form.endswith("[]") else kind


_FORM_TEXTS = {"": "bytes", "text": "text", "json": "JSON"}


def text_data(where: str, text: str) -> bytes:
    """Return a text in UTF-8.

    Raises:
        InvalidInput: it is not valid Unicode, such as half of a pair of surrogates.
    """
    try:
        return text.encode()
    except UnicodeEncodeError:
        message = f"the text {text[:40]!a} is not valid Unicode"
        raise InvalidInput(where, message, "give bytes: text.encode(errors=...)") from None


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
            InvalidInput: the elements are neither numbers nor booleans, lists have different
                lengths, or a text is not valid Unicode.
        """
        number = text_key(key) if isinstance(key, str) else key
        if isinstance(value, str | bytes | Mapping | None):
            data = text_data(f"item '{name}'", value) if isinstance(value, str) else value
            return cls(name, number, data if isinstance(data, bytes) else json_bytes(data))
        try:
            made = arrays.of_lists(value)
        except ValueError as error:
            raise InvalidInput(f"item '{name}'", f"not an array: {error}") from None
        dtype = arrays.name_of(made.dtype)
        if dtype is None:
            message = f"arrays of {made.dtype} are not supported"
            raise InvalidInput(f"item '{name}'", message, "give Item(name, key, array.tobytes())")
        return cls(name, number, arrays.bytes_of(made), dtype, made.shape)

    def __reduce__(self) -> tuple[Any, ...]:
        # For pickle and deepcopy, which do not accept views: the copy owns its bytes.
        return Item, (self.name, self.key, bytes(self.data), self.dtype, self.shape)

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
        if kind == "json" and self.size_bytes <= 4 and (name := self.bytes()) in _NOT_IN_JSON:
            return float(name)
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


_NOT_IN_JSON = frozenset({b"nan", b"inf", b"-inf"})
"""What functions that return a float may return, and JSON has no numbers for."""


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

        Raises:
            InvalidInput: the set has more than one item, or is JSON or text, whose bytes are asked
                for with a `dtype`.
        """
        item = self.only()
        if dtype is None and item.dtype is None and self.form in ("json", "text"):
            named = "text" if self.form == "text" else "JSON"
            hint = "use .value(); for its bytes, name a type: .numpy('uint8')"
            raise InvalidInput(f"set {self.name}", f"it is {named}, not an array", hint)
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
