"""The documents themselves, and how sets and names are given in them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import msgspec

from dandelion.contents import ContentLike, ItemContentLike
from dandelion.data import SetSpec
from dandelion.errors import InvalidInput, nearest
from dandelion.errors.misfits import misfit_text
from dandelion.function import Batching, Digest, Limits
from dandelion.sizes import parse_size

if TYPE_CHECKING:
    from dandelion.dataflow.dsl_sets import ApplicationHandle

SetLike: TypeAlias = SetSpec | str


GivenLimits: TypeAlias = Limits | Mapping[str, float | str] | None
"""Limits of a function as users give them."""


def limits_of(given: GivenLimits, where: str) -> Limits:
    """Make limits of their fields; sizes may be texts with a unit.

    Raises:
        InvalidInput: at `where`: a field is unknown, with the nearest name, or its value is wrong.
    """
    if isinstance(given, Limits):
        return given
    known = Limits.__struct_fields__
    for name in given or ():
        if name not in known:
            close = nearest(name, known) or next((k for k in known if k.startswith(name)), None)
            hint = f"did you mean '{close}'?" if close else f"the limits are {', '.join(known)}"
            raise InvalidInput(where, f"no limit '{name}'", hint)
    values = {
        name: parse_size(f"{where}.{name}", value)
        if isinstance(value, str) and name.endswith("_bytes")
        else value
        for name, value in (given or {}).items()
    }
    try:
        return msgspec.convert(values, Limits)
    except msgspec.ValidationError as error:
        raise InvalidInput(where, misfit_text(error)) from None


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

    @property
    def formats(self) -> frozenset[str]:
        """Formats of the code objects of all functions."""
        return frozenset(code.format for function in self.functions for code in function.code)


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
