"""Documents: the form in which functions, libraries and compositions are registered.

The same records are the Python API, and the JSON and MessagePack of ``POST /v1/register``. In JSON,
``{"data": "..."}`` is base64 and ``{"text": "..."}`` or a bare string is UTF-8 text; in MessagePack
``data`` is binary.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast, runtime_checkable

import msgspec
import numpy as np

from dandelion.contents import Content as Content
from dandelion.contents import ContentLike as ContentLike
from dandelion.contents import ItemContent as ItemContent
from dandelion.contents import ItemContentLike as ItemContentLike
from dandelion.contents import StaticValue as StaticValue
from dandelion.contents import content as content
from dandelion.contents import item_content as item_content
from dandelion.data import Item, SetSpec, Value, is_json, item_set
from dandelion.errors import InvalidInput
from dandelion.function import Batching, Digest, FunctionSpec, Limits

if TYPE_CHECKING:
    from dandelion.blueprint import Blueprint
    from dandelion.dataflow.dsl_sets import ApplicationHandle

SetLike: TypeAlias = SetSpec | str


@runtime_checkable
class HasText(Protocol):
    """A composition of the Python DSL."""

    def text(self) -> str:
        """Write it in the composition language."""


@runtime_checkable
class HasDocument(Protocol):
    """A decorated function."""

    @property
    def document(self) -> FunctionDocument:
        """Describe it for registration."""


Registrable: TypeAlias = "HasText | HasDocument | RegistrationDocument | FunctionDocument | str"
FunctionLike: TypeAlias = "FunctionDocument | HasDocument"


class CodeDocument(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One code object: its format, its main blob, the files that it refers to, its options.

    Attributes:
        packages: requirements of Python packages, such as ``scipy>=1.13``.
        wheels: SHA-256 of wheels by file name: which versions to take. Empty: the newest that fit.
    """

    format: str
    main: ContentLike = ""
    files: dict[str, ContentLike] = {}
    options: dict[str, str] = {}
    packages: tuple[str, ...] = ()
    wheels: dict[str, Digest] = {}


class FunctionDocument(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A function to be registered; the fields are those of `dandelion.function.FunctionSpec`.

    In a function under ``@composition`` it is applied by calling it.
    """

    name: str
    inputs: tuple[SetLike, ...] = ()
    outputs: tuple[SetLike, ...] = ()
    static: dict[str, dict[str, ItemContentLike]] = {}
    limits: Limits = Limits()
    code: tuple[CodeDocument, ...] = ()
    cache: bool = False
    batching: Batching | None = None
    secrets: dict[str, str] = {}

    def __call__(self, /, *given: Any, **sets: Any) -> ApplicationHandle:
        """Apply it in a composition; see `dandelion.dataflow.dsl.FunctionHandle`."""
        # Loaded here, so that clients do not load the libraries of compositions.
        dsl = importlib.import_module("dandelion.dataflow.dsl")
        found: ApplicationHandle = dsl.handle_of(self)(*given, **sets)
        return found


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


class PlannedChange(msgspec.Struct, frozen=True):
    """What a registration would do to one name.

    Attributes:
        kind, name: function, composition or library.
        version: that it would have.
        change: ``new``, ``changed`` or ``same``.
        breaking: what callers would have to change; empty if nothing.
    """

    kind: str
    name: str
    version: int
    change: str
    breaking: tuple[str, ...] = ()


class Registered(msgspec.Struct, frozen=True):
    """One registered record: its kind (function, composition, library), name and version."""

    kind: str
    name: str
    version: int


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
    static: Mapping[str, Value] | None = None,
    cache: bool = False,
    batching: Batching | None = None,
    secrets: Mapping[str, str] | None = None,
    packages: Iterable[str] = (),
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
        static: input sets that are fixed now: a value, or values by item name.
        cache: keep results by the content of the inputs.
        batching: how waiting calls are joined.
        secrets: names of secrets of the node, by the input set that each fills.
        packages: requirements of Python packages that the node prepares at registration.
    """
    inputs = None if inputs is None else tuple(inputs)
    if callable(source):
        text = textwrap.dedent(inspect.getsource(source))
        entry = entry or source.__name__
        if inputs is None:
            inputs = tuple(inspect.signature(source).parameters)
    else:
        text = source.read_text() if isinstance(source, Path) else source
    name = name or entry
    if name is None:
        raise InvalidInput("name", "a function given as text needs a name", "give name=...")
    options = {"entry": entry or name}
    if imports:
        options["imports"] = ",".join(imports)
    return FunctionDocument(
        name=name,
        inputs=tuple(inputs or ()),
        outputs=tuple(outputs),
        static=static_contents(static, inputs or ()),
        limits=limits or Limits(),
        code=(CodeDocument("python", text, options=options, packages=as_texts(packages)),),
        cache=cache,
        batching=batching,
        secrets=dict(secrets or {}),
    )


class Named(Protocol):
    """Something with the name under which it is registered: a handle, a document, a record."""

    @property
    def name(self) -> str:
        """The registered name."""


def name_of(named: str | Named) -> str:
    """Return the name of what is invoked, which is given by name or as it was registered.

    Raises:
        InvalidInput: it has no name.
    """
    if isinstance(named, str):
        return named
    name = getattr(named, "name", None)
    if isinstance(name, str):
        return name
    hint = "give a name, or a function with @dandelion.function, or a composition"
    message = f"a value of type {type(named).__name__} has no registered name"
    raise InvalidInput("name", message, hint)


def as_texts(given: Iterable[str] | str) -> tuple[str, ...]:
    """Return texts as a tuple; one text alone is one of them."""
    return (given,) if isinstance(given, str) else tuple(given)


def gpu_function(
    name: str,
    blueprint: str | bytes | Path | Blueprint,
    *,
    inputs: Iterable[SetLike],
    outputs: Iterable[SetLike],
    files: Mapping[str, ContentLike | bytes | Path],
    static: Mapping[str, Value] | None = None,
    limits: Limits | None = None,
    batching: Batching | None = None,
) -> FunctionDocument:
    """Describe a GPU function: a blueprint and the files with its kernels.

    Args:
        name: registered name.
        blueprint: JSON text of the blueprint, its path, or a builder.
        inputs: input sets; their names are those of the blueprint's inputs and weights.
        outputs: output sets; their names are those of the blueprint's outputs.
        files: kernel sources and binaries by the name that the blueprint uses for them.
        static: weights and other inputs that are fixed now: a value, or values by item name.
        limits: what one instance may use.
        batching: how waiting calls are joined.
    """
    inputs = tuple(inputs)
    if not isinstance(blueprint, str | bytes | Path):
        blueprint = blueprint.json()
    main = blueprint.read_bytes() if isinstance(blueprint, Path) else blueprint
    read = {n: f.read_bytes() if isinstance(f, Path) else f for n, f in files.items()}
    return FunctionDocument(
        name=name,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        static=static_contents(static, inputs or ()),
        limits=limits or Limits(),
        code=(CodeDocument("blueprint", content(main), {n: content(f) for n, f in read.items()}),),
        batching=batching,
    )


def static_contents(
    given: Mapping[str, Value] | None, sets: Iterable[SetLike] = ()
) -> dict[str, dict[str, ItemContentLike]]:
    """Describe fixed input sets.

    Args:
        given: a value of each set, as callers give them; see `dandelion.data.item_set`. Values may
            be `ItemContent`. Keys are not kept.
        sets: declarations, by which Python numbers become arrays.

    Raises:
        InvalidInput: a value cannot be an item.
    """
    specs = {spec.name: spec for spec in map(set_spec, sets)}
    return {
        name: _static_set(name, value, specs.get(name)) for name, value in (given or {}).items()
    }


def _static_set(name: str, value: Value, spec: SetSpec | None) -> dict[str, ItemContentLike]:
    named = value if isinstance(value, Mapping) and not is_json(value, spec) else {name: value}
    if all(isinstance(v, str | bytes | Content | np.ndarray | np.generic) for v in named.values()):
        return {str(item): item_content(v) for item, v in named.items()}
    made = item_set(name, value, spec)
    return {item.name: _as_content(item) for item in (made.items if made is not None else ())}


def _as_content(item: Item) -> ItemContent:
    return ItemContent(data=item.bytes(), dtype=item.dtype, shape=item.shape)


def collect(
    things: Iterable[Registrable],
    functions: Iterable[FunctionLike] = (),
    libraries: Mapping[str, ContentLike | bytes | Path] | None = None,
) -> RegistrationDocument:
    """Collect everything to register into one document.

    A composition includes the functions that it applies as objects. A function of the same name
    that is given explicitly is taken instead.

    Args:
        things: compositions of the DSL, texts in the composition language, functions, documents.
        functions: further functions.
        libraries: code objects by name: text, bytes, or the path of a file.

    Raises:
        InvalidInput: a value is none of these, or two documents have a library of the same name
            and different content.
        InvalidFunction: the source of a decorated function cannot be captured.
    """
    found = _Collected()
    for name, library in (libraries or {}).items():
        _add(found.code, name, library.read_bytes() if isinstance(library, Path) else library)
    for function in functions:
        found.add_function(function)
    for thing in things:
        found.add(thing)
    return found.document()


@dataclass(slots=True)
class _Collected:
    """What is to be registered."""

    functions: list[FunctionDocument] = field(default_factory=list)
    compositions: list[str] = field(default_factory=list)
    code: dict[str, Content] = field(default_factory=dict)
    applied: list[object] = field(default_factory=list)
    seen: list[object] = field(default_factory=list)

    def add(self, thing: object) -> None:
        if isinstance(thing, RegistrationDocument):
            self.functions += thing.functions
            self.compositions += thing.compositions
            for name, library in thing.libraries.items():
                _add(self.code, name, library)
        elif isinstance(thing, str):
            self.compositions.append(thing)
        elif isinstance(thing, HasText):
            self.compositions.append(thing.text())
            self.applied += getattr(thing, "sources", ())
        else:
            self.add_function(thing)

    def add_function(self, thing: object) -> None:
        if any(thing is one for one in self.seen):
            return
        self.seen.append(thing)
        if isinstance(thing, FunctionDocument):
            self.functions.append(thing)
        elif hasattr(type(thing), "document"):
            self.functions.append(cast(HasDocument, thing).document)
        elif sources := getattr(thing, "sources", ()):  # a handle that was made of a document
            for source in sources:
                self.add_function(source)
        else:
            raise _cannot_register(thing)

    def document(self) -> RegistrationDocument:
        names = {function.name for function in self.functions}
        applied: dict[str, object] = {}
        for thing in self.applied:
            name = getattr(thing, "name", "")
            if name in names or isinstance(thing, FunctionSpec):
                continue
            if applied.setdefault(name, thing) is not thing:
                message = f"two functions that are applied have the name '{name}'"
                raise InvalidInput("register", message, "give one of them another name=")
            self.add_function(thing)
        return RegistrationDocument(
            tuple(self.functions), dict(self.code), tuple(self.compositions)
        )


def _cannot_register(thing: object) -> InvalidInput:
    """Make the error with the line of the program that registers."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("dandelion."):
        frame = frame.f_back
    where = "register" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
    hint = "give decorated functions, compositions, documents, or texts of the language"
    if inspect.isfunction(thing):
        hint = f"put @dandelion.function above '{thing.__name__}'"
    elif isinstance(thing, list | tuple | set):
        hint = "give its members one by one: register(*things)"
    elif hasattr(thing, "declaration"):
        hint = "it is only declared; register the function itself"
    elif type(thing).__name__ == "Blueprint":
        hint = "make a function of it: dandelion.gpu_function(name, blueprint, ...)"
    return InvalidInput(where, f"a {type(thing).__name__} cannot be registered", hint)


def _add(code: dict[str, Content], name: str, value: ContentLike | bytes) -> None:
    made = content(value)
    if name in code and code[name].bytes() != made.bytes():
        message = "it is given twice, with different content"
        raise InvalidInput(f"libraries.{name}", message, "give one of them another name")
    code[name] = made
