"""Items and sets: what flows along the edges of a composition.

An **item** is a name, a key (unsigned 32-bit) and bytes. A **set** is a named, unordered collection
of items; a set without items does not exist, and is ``None`` wherever a set is expected. Items are
immutable once produced, so passing one on is passing a reference.

Ownership: `Item.data` is ``bytes`` or a read-only ``memoryview``. A view into a memory context
keeps that context alive; the last view that goes returns the context to its domain. Nobody frees by
hand.

Source: data model of the Dandelion paper, section 3; keys and empty sets as in its composition
language.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence, ValuesView
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from dandelion.errors import InvalidInput, nearest

Bytes: TypeAlias = bytes | memoryview
Value: TypeAlias = Any
"""What a caller may give for a set, see `item_set`."""

KEY_LIMIT = 2**32
NAME_LIMIT_BYTES = 255


class SetSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """Declares one input or output set of a function.

    Attributes:
        name: identifier of the set, ``[A-Za-z_][A-Za-z0-9_]*``.
        dtype: numpy name of the element type of every item (``"float32"``), or None for bytes.
        shape: shape of every item in elements, row-major; -1 leaves a dimension open.
        min_bytes: of an input set: what an instance should get of it at least, in bytes, where the
            platform chooses how ``anyEach`` and ``anyKeyed`` spread it.
    """

    name: str
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    min_bytes: int = 0


class Item(msgspec.Struct, frozen=True, gc=False):  # no cycles: the collector need not look
    """One immutable value: a name, a key and its bytes."""

    name: str
    key: int = 0
    data: Bytes = b""

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

    def numpy(
        self, dtype: npt.DTypeLike = np.uint8, shape: tuple[int, ...] = (-1,)
    ) -> npt.NDArray[Any]:
        """View the data as a read-only numpy array, without a copy.

        Args:
            dtype: element type.
            shape: shape in elements, row-major; one dimension may be -1.

        Raises:
            ValueError: the length is no multiple of the element size, or does not fit the shape.
        """
        array = np.frombuffer(self.data, dtype=dtype).reshape(shape)
        array.flags.writeable = False
        return array


class ItemSet(msgspec.Struct, frozen=True):
    """A named collection of at least one item.

    `dtype` and `shape` are those of the declaration, if any; they make `numpy` right by default.
    """

    name: str
    items: tuple[Item, ...]
    dtype: str | None = None
    shape: tuple[int, ...] | None = None

    def __iter__(self) -> Iterator[Item]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Item:
        return self.items[index]

    @property
    def size_bytes(self) -> int:
        """Length of all data together, in bytes."""
        items = self.items
        return items[0].size_bytes if len(items) == 1 else sum([i.size_bytes for i in items])

    def bytes(self) -> bytes:
        """Copy out the data of the only item.

        Raises:
            InvalidInput: the set has more than one item; iterate over it instead.
        """
        return self.only().bytes()

    def text(self) -> str:
        """Decode the only item as UTF-8."""
        return self.only().text()

    def only(self) -> Item:
        """Give the only item of the set.

        Raises:
            InvalidInput: the set has more than one item.
        """
        if len(self.items) != 1:
            raise InvalidInput(f"set {self.name}", f"it has {len(self.items)} items, not one")
        return self.items[0]

    def numpy(
        self, dtype: npt.DTypeLike | None = None, shape: tuple[int, ...] = ()
    ) -> npt.NDArray[Any]:
        """View the only item as a read-only numpy array; see `Item.numpy`.

        Without arguments the declared dtype and shape of the set are used, else flat bytes.
        """
        return self.only().numpy(
            dtype if dtype is not None else (self.dtype or "uint8"),
            shape or (self.shape if self.shape is not None else (-1,)),
        )


class Sets(Mapping[str, ItemSet | None]):
    """The named results of an invocation: ``sets.html``, ``sets["html"]``, or iterate.

    A declared set that stayed empty is None.
    """

    __slots__ = ("_sets",)

    def __init__(self, sets: Mapping[str, ItemSet | None]) -> None:
        self._sets = dict(sets)

    def __getitem__(self, name: str) -> ItemSet | None:
        return self._sets[name]

    def __getattr__(self, name: str) -> Any:
        if name == "_sets":  # a copy under way has none yet
            raise AttributeError(name)
        try:
            return self._sets[name]
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
        """View the sets: every reply asks for them, and a dictionary answers sooner."""
        return self._sets.values()

    def __repr__(self) -> str:
        counts = (f"{n}: {'empty' if s is None else len(s)}" for n, s in self._sets.items())
        return f"Sets({', '.join(counts)})"


def check_item(set_name: str, name: str, key: int) -> None:
    """Refuse item names and keys that the data model does not allow.

    Names are free text, up to 255 bytes of UTF-8 without NUL. They are data, never paths: nothing
    in the platform opens a file by an item's name.

    Raises:
        InvalidInput: the name is too long, has a NUL or is no valid Unicode, or the key is no u32.
    """
    if len(name) <= NAME_LIMIT_BYTES // 4 and name.isascii():  # cheap tests: few names are others
        size = len(name)
    else:
        try:
            size = len(name.encode())
        except UnicodeEncodeError:
            message = "the item's name is not valid Unicode"
            raise InvalidInput(f"sets.{set_name}", message) from None
    if size > NAME_LIMIT_BYTES:
        message = f"an item's name has {size} bytes, at most 255 may be"
        raise InvalidInput(f"sets.{set_name}", message)
    if "\0" in name:
        raise InvalidInput(f"sets.{set_name}", "an item's name has a NUL character")
    if not 0 <= key < KEY_LIMIT:
        raise InvalidInput(f"sets.{set_name}", f"key {key} is outside 0..{KEY_LIMIT - 1}")


def item_set(name: str, value: Value, spec: SetSpec | None = None) -> ItemSet | None:
    """Make a set from what a Python caller has at hand.

    Args:
        name: name of the set.
        value: None (absent); an `ItemSet`; bytes-like, str (UTF-8) or a numpy array or scalar (one
            item, named as the set, key 0); a list of numbers or of such lists (one item, if the set
            declares a dtype); a sequence of any of these or of `Item` (item names "0", "1", ...); a
            mapping from item name to any of these.
        spec: the declaration; numbers are converted to its dtype only if that loses nothing but
            digits of floats.

    Returns:
        The set, or None if there are no items. bytes are referenced, arrays are viewed if they are
        contiguous, else copied.

    Raises:
        InvalidInput: the value is of a type that cannot be an item, or an item does not fit `spec`.
    """
    where = f"sets.{name}"
    if value is None:
        return None
    if isinstance(value, ItemSet):
        items: tuple[Item, ...] = tuple(_sound(where, item) for item in value.items)
    elif isinstance(value, Mapping):
        items = tuple(_item(where, str(k), v, spec) for k, v in value.items())
    elif is_sequence(value) and not is_numbers(value):
        items = tuple(_item(where, str(i), v, spec) for i, v in enumerate(value))
    else:
        items = (_item(where, name, value, spec),)
    return checked(name, items, spec)


def is_sequence(value: Value) -> bool:
    """Tell whether a value stands for several items."""
    return isinstance(value, Sequence | Iterator) and not isinstance(
        value, str | bytes | bytearray | memoryview
    )


def is_numbers(value: Value) -> bool:
    """Tell whether a value is a list of numbers, or of such lists: an array written down."""
    return (
        isinstance(value, list | tuple)
        and bool(value)
        and all(isinstance(v, bool | int | float) or is_numbers(v) for v in value)
    )


def checked(name: str, items: Iterable[Item], spec: SetSpec | None) -> ItemSet | None:
    """Check items against the data model and a declaration, and make a set of them.

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
    for item in items:
        _check_shape(f"sets.{name}", item, spec)
    return ItemSet(name, items, spec.dtype, spec.shape)


def _check_shape(where: str, item: Item, spec: SetSpec) -> None:
    element_bytes = np.dtype(spec.dtype).itemsize
    count, rest = divmod(item.size_bytes, element_bytes)
    if rest:
        raise InvalidInput(
            where,
            f"item '{item.name}' has {item.size_bytes} bytes, no multiple of {spec.dtype}",
        )
    if spec.shape is None:
        return
    fixed = 1
    for size in spec.shape:
        fixed *= size if size >= 0 else 1
    is_open = any(size < 0 for size in spec.shape)
    fits = (fixed and count % fixed == 0) if is_open else count == fixed
    if not fits:
        wanted = "x".join("?" if n < 0 else str(n) for n in spec.shape)
        raise InvalidInput(
            where,
            f"item '{item.name}' has {count} elements of {spec.dtype}, declared is {wanted}",
        )


def _item(where: str, name: str, value: Value, spec: SetSpec | None) -> Item:
    if isinstance(value, Item):
        return _sound(where, value)
    if isinstance(value, bytes):
        return Item(name, 0, value)
    if isinstance(value, str):
        return Item(name, 0, value.encode())
    if isinstance(value, np.ndarray | np.generic):
        return Item(name, 0, _array_bytes(where, np.asarray(value), spec))
    if isinstance(value, bytearray | memoryview):
        return Item(name, 0, _flat(value))
    if isinstance(value, bool | int | float | Sequence) and spec is not None and spec.dtype:
        try:
            return Item(name, 0, _array_bytes(where, np.asarray(value), spec))
        except (TypeError, ValueError) as error:
            raise InvalidInput(where, f"item '{name}' is no {spec.dtype} array: {error}") from None
    raise InvalidInput(
        where,
        f"item '{name}' is a {type(value).__name__}",
        "give bytes, str, a numpy array, an Item, or a list or dict of these",
    )


def _sound(where: str, item: Item) -> Item:
    """Bring an item that a caller made to the form that the platform counts on."""
    if not isinstance(item, Item):
        raise InvalidInput(where, f"a {type(item).__name__} stands where an Item belongs")
    data: object = item.data
    if not isinstance(item.name, str):
        raise InvalidInput(where, f"an item's name is a {type(item.name).__name__}")
    if not isinstance(data, bytes | bytearray | memoryview):
        kind = type(data).__name__
        raise InvalidInput(where, f"item '{item.name}' has data of type {kind}", "give bytes")
    try:
        key = operator.index(item.key)
    except TypeError:
        raise InvalidInput(where, f"item '{item.name}' has key {item.key!r}") from None
    flat = data if isinstance(data, bytes) else _flat(data)
    return item if flat is item.data and key is item.key else Item(item.name, key, flat)


def _flat(data: bytearray | memoryview) -> Bytes:
    view = data if isinstance(data, memoryview) else memoryview(data)
    if not view.c_contiguous:
        return view.tobytes()
    if view.format != "B" or view.ndim != 1:
        view = view.cast("B")
    return view if view.readonly else view.toreadonly()


def _array_bytes(where: str, array: npt.NDArray[Any], spec: SetSpec | None) -> Bytes:
    if spec is not None and spec.dtype is not None and array.dtype != np.dtype(spec.dtype):
        array = _converted(where, array, np.dtype(spec.dtype))
    contiguous = np.ascontiguousarray(array)
    if contiguous.dtype.hasobject:
        raise InvalidInput(where, "an array of Python objects has no bytes")
    return contiguous.reshape(-1).view(np.uint8).data.toreadonly()


def _converted(where: str, array: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Convert numbers if that loses nothing; floats may be rounded to shorter floats."""
    if dtype.kind == "c" and np.can_cast(array.dtype, dtype):
        return array.astype(dtype)
    if array.dtype.kind in "biuf" and dtype.kind in "biuf":
        with np.errstate(all="ignore"):
            converted = array.astype(dtype)
            back = converted.astype(array.dtype)
        if array.dtype.kind == dtype.kind == "f":
            same = np.array_equal(np.isfinite(array), np.isfinite(converted))
        else:  # both, since a number may wrap around and come back
            same = np.array_equal(array, converted) and np.array_equal(array, back)
        if same:
            return converted
    raise InvalidInput(where, f"an array of {array.dtype} does not fit {dtype}")
