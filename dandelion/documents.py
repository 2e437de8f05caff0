"""Documents: the form in which functions, libraries and compositions are registered.

The same records are the Python API, and the JSON and MessagePack of ``POST /v1/register``. In JSON,
``{"data": "..."}`` is base64 and ``{"text": "..."}`` or a bare string is UTF-8 text; in MessagePack
``data`` is binary.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import msgspec
import numpy as np

from dandelion.arrays import Array, Shape, checked_type
from dandelion.data import Bytes, Item, SetSpec
from dandelion.errors import InvalidInput
from dandelion.function import Batching, Limits

_Binary: TypeAlias = bytes  # in the class below, ``bytes`` is the method


class Content(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Bytes in a document: exactly one of `text` (UTF-8) and `data` (binary, base64 in JSON)."""

    text: str | None = None
    data: _Binary | None = None

    def __post_init__(self) -> None:
        if (self.text is None) == (self.data is None):
            raise ValueError("give exactly one of 'text' and 'data'")

    def bytes(self) -> bytes:
        """Return the content as bytes."""
        return self.data if self.data is not None else (self.text or "").encode()


class ItemContent(Content, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The content of an item; of an array with `dtype` and `shape`, see `dandelion.data.Item`."""

    dtype: str | None = None
    shape: Shape | None = None

    def item(self, name: str) -> Item:
        """Make the item.

        Raises:
            InvalidInput: the content is not of that type.
        """
        data = self.bytes()
        kind = checked_type(f"item '{name}'", self.dtype, self.shape, len(data))
        return Item(name, 0, data, *kind)


ContentLike: TypeAlias = Content | str
ItemContentLike: TypeAlias = ItemContent | str
StaticValue: TypeAlias = ContentLike | bytes | Array
SetLike: TypeAlias = SetSpec | str


@runtime_checkable
class HasText(Protocol):
    """A composition of the Python DSL."""

    def text(self) -> str:
        """Write it in the composition language."""


Registrable: TypeAlias = "HasText | RegistrationDocument | FunctionDocument | str"


class CodeDocument(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One code object: its format, its main blob, the files that it refers to, its options."""

    format: str
    main: ContentLike = ""
    files: dict[str, ContentLike] = {}
    options: dict[str, str] = {}


class FunctionDocument(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A function to be registered; the fields are those of `dandelion.function.FunctionSpec`."""

    name: str
    inputs: tuple[SetLike, ...] = ()
    outputs: tuple[SetLike, ...] = ()
    static: dict[str, dict[str, ItemContentLike]] = {}
    limits: Limits = Limits()
    code: tuple[CodeDocument, ...] = ()
    cache: bool = False
    batching: Batching | None = None
    secrets: dict[str, str] = {}


class RegistrationDocument(
    msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Records that are registered together, all or nothing.

    Attributes:
        functions: new functions or new versions.
        libraries: code objects by the name under which blueprints refer to them.
        compositions: texts in the composition language, each with one or more compositions.
    """

    functions: tuple[FunctionDocument, ...] = ()
    libraries: dict[str, ContentLike] = {}
    compositions: tuple[str, ...] = ()


class Registered(msgspec.Struct, frozen=True):
    """One registered record: its kind (function, composition, library), name and version."""

    kind: str
    name: str
    version: int


def content(value: ContentLike | Bytes | bytearray) -> Content:
    """Wrap text or bytes as `Content`."""
    if isinstance(value, Content):
        return value
    return Content(text=value) if isinstance(value, str) else Content(data=bytes(value))


def item_content(value: StaticValue) -> ItemContent:
    """Wrap text, bytes or an array as `ItemContent`.

    Raises:
        InvalidInput: the elements of the array are neither numbers nor booleans.
    """
    if isinstance(value, ItemContent):
        return value
    if isinstance(value, np.ndarray | np.generic):
        item = Item.of("", value)
        return ItemContent(data=item.bytes(), dtype=item.dtype, shape=item.shape)
    made = content(value)
    return ItemContent(made.text, made.data)


def set_spec(value: SetLike) -> SetSpec:
    """Read ``"name"``, ``"name: dtype"`` or ``"name: dtype[2, 3]"``; ``?`` leaves a dimension open.

    Raises:
        InvalidInput: the text does not have that form.
    """
    if isinstance(value, SetSpec):
        return value
    name, _, rest = (part.strip() for part in value.partition(":"))
    if not rest:
        return SetSpec(name)
    dtype, bracket, dimensions = rest.partition("[")
    if not bracket:
        return SetSpec(name, dtype.strip())
    try:
        if not dimensions.endswith("]"):
            raise ValueError("']' is missing")
        sizes = [d.strip() for d in dimensions[:-1].split(",") if d.strip()]
        shape = tuple(-1 if size == "?" else int(size) for size in sizes)
    except ValueError as error:
        raise InvalidInput(f"set '{value}'", str(error), "write name: float32[28, 28]") from None
    return SetSpec(name, dtype.strip(), shape)


def python_function(
    source: Callable[..., Any] | str | Path,
    *,
    inputs: Iterable[SetLike] | None = None,
    outputs: Iterable[SetLike],
    name: str | None = None,
    entry: str | None = None,
    imports: Iterable[str] = (),
    limits: Limits | None = None,
    static: Mapping[str, Mapping[str, StaticValue]] | None = None,
    cache: bool = False,
    batching: Batching | None = None,
    secrets: Mapping[str, str] | None = None,
) -> FunctionDocument:
    """Describe a Python compute function.

    It gets one `dandelion.ItemSet` (or None) for each input set, by keyword, and returns a
    dict from output set to anything that `dandelion.data.item_set` takes; for a single output set
    the value alone is enough.

    Args:
        source: a function (its own source is taken, so it must import what it needs inside its
            body), the text of a module, or the path of one.
        inputs: input sets; by default the parameters of `source` if that is a function.
        outputs: output sets.
        name: registered name; by default that of the function.
        entry: name of the function within the module; by default `name`.
        imports: modules that the sandbox must have loaded before it is locked, such as ``numpy``.
        limits: what one instance may use.
        static: items of input sets that are fixed now, by set and item name: text, bytes, arrays.
        cache: keep results by the content of the inputs.
        batching: how waiting calls are joined.
        secrets: names of secrets of the node, by the input set that each fills.
    """
    if callable(source):
        text = textwrap.dedent(inspect.getsource(source))
        entry = entry or source.__name__
        if inputs is None:
            inputs = list(inspect.signature(source).parameters)
    else:
        text = source.read_text() if isinstance(source, Path) else source
    name = name or entry
    if name is None:
        raise InvalidInput("name", "a function given as text needs a name")
    options = {"entry": entry or name}
    if imports:
        options["imports"] = ",".join(imports)
    return FunctionDocument(
        name=name,
        inputs=tuple(inputs or ()),
        outputs=tuple(outputs),
        static=_static(static),
        limits=limits or Limits(),
        code=(CodeDocument("python", text, options=options),),
        cache=cache,
        batching=batching,
        secrets=dict(secrets or {}),
    )


def gpu_function(
    name: str,
    blueprint: str | bytes | Path,
    *,
    inputs: Iterable[SetLike],
    outputs: Iterable[SetLike],
    files: Mapping[str, ContentLike | bytes | Path],
    static: Mapping[str, Mapping[str, StaticValue]] | None = None,
    limits: Limits | None = None,
    batching: Batching | None = None,
) -> FunctionDocument:
    """Describe a GPU function: a blueprint and the files with its kernels.

    Args:
        name: registered name.
        blueprint: JSON text of the blueprint, or its path.
        inputs: input sets; their names are those of the blueprint's inputs and weights.
        outputs: output sets; their names are those of the blueprint's outputs.
        files: kernel sources and binaries by the name that the blueprint uses for them.
        static: weights and other inputs that are fixed now, by set and item name: text, bytes,
            arrays.
        limits: what one instance may use.
        batching: how waiting calls are joined.
    """
    main = blueprint.read_bytes() if isinstance(blueprint, Path) else blueprint
    read = {n: f.read_bytes() if isinstance(f, Path) else f for n, f in files.items()}
    return FunctionDocument(
        name=name,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        static=_static(static),
        limits=limits or Limits(),
        code=(CodeDocument("blueprint", content(main), {n: content(f) for n, f in read.items()}),),
        batching=batching,
    )


def _static(
    given: Mapping[str, Mapping[str, StaticValue]] | None,
) -> dict[str, dict[str, ItemContentLike]]:
    return {s: {n: item_content(v) for n, v in items.items()} for s, items in (given or {}).items()}


def collect(
    things: Iterable[Registrable],
    functions: Iterable[FunctionDocument] = (),
    libraries: Mapping[str, ContentLike | bytes | Path] | None = None,
) -> RegistrationDocument:
    """Collect everything to register into one document.

    Args:
        things: compositions of the DSL, texts in the composition language, functions, documents.
        functions: further functions.
        libraries: code objects by name: text, bytes, or the path of a file.

    Raises:
        InvalidInput: a value is none of these, or two documents have a library of the same name
            and different content.
    """
    compositions: list[str] = []
    found = list(functions)
    code: dict[str, Content] = {}
    for name, library in (libraries or {}).items():
        _add(code, name, library.read_bytes() if isinstance(library, Path) else library)
    for thing in things:
        if isinstance(thing, RegistrationDocument):
            found += thing.functions
            compositions += thing.compositions
            for name, library in thing.libraries.items():
                _add(code, name, library)
        elif isinstance(thing, FunctionDocument):
            found.append(thing)
        elif isinstance(thing, str):
            compositions.append(thing)
        elif isinstance(thing, HasText):
            compositions.append(thing.text())
        else:
            raise InvalidInput("register", f"a {type(thing).__name__} cannot be registered")
    return RegistrationDocument(tuple(found), dict(code), tuple(compositions))


def _add(code: dict[str, Content], name: str, value: ContentLike | bytes) -> None:
    made = content(value)
    if name in code and code[name].bytes() != made.bytes():
        raise InvalidInput(f"libraries.{name}", "it is given twice, with different content")
    code[name] = made
