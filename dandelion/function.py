"""Records of a function: its sets, its limits, its code objects.

A function has one or more **code objects**, alternatives that compute the same result on different
backends. A code object has a *format*, and a driver lists the formats that it runs. So neither the
catalogue nor the dispatcher refers to a backend by name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NewType, TypeVar, cast

import msgspec

from dandelion.arrays import Shape
from dandelion.data import Bytes, ItemSet, SetSpec
from dandelion.limits import MIB as MIB
from dandelion.limits import Limits as Limits
from dandelion.markup import heading, page, table

Digest = NewType("Digest", str)
"""Lower-case hexadecimal SHA-256 of a blob."""


def digest_of(data: Bytes) -> Digest:
    """Return the digest of a blob."""
    return Digest(hashlib.sha256(data).hexdigest())


_T = TypeVar("_T")


def as_tuple(given: Iterable[_T]) -> tuple[_T, ...]:
    """Return names, or declarations of sets, as a tuple; one text alone is one of them."""
    return (cast("_T", given),) if isinstance(given, str) else tuple(given)


BATCH_CALLS = 1024
"""Most calls that are joined."""


class Batching(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How calls of a function that wait for an engine are run as one.

    The items of some input sets are put one after the other, along their first dimension, and the
    items of all output sets are divided in the same proportion. So every output must have one row
    for each row of an input, which depends on that row only. Calls of one tenant are joined if all
    other inputs are equal and each set has one item.

    Attributes:
        inputs: names of the input sets that are joined.
        calls: how many calls are joined at most.
        wait_s: how long a call waits for others while an engine is free; with 0 it waits for those
            that arrive in the same turn of the node's loop.
        rows: how many rows joined calls have together at most, where a function has such a bound;
            the sets in `inputs` then declare a shape. None for any number.
    """

    inputs: tuple[str, ...]
    calls: int = 32
    wait_s: float = 0.0
    rows: int | None = None

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "inputs", as_tuple(self.inputs))


class CodeObject(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One way to run a function.

    Attributes:
        format: ``python``, ``blueprint``, ``elf``, ``wasm``, ``null``, ``http``.
        main: digest of the blob that a driver reads first; empty for platform functions.
        files: other blobs by the name that `main` uses for them (kernel sources, modules).
        options: driver-specific settings, for example ``entry`` of a Python function.
        packages: requirements of Python packages, such as ``scipy>=1.13``, sorted.
        wheels: the wheels that they were resolved to at registration, by file name.
    """

    format: str
    main: Digest = Digest("")
    files: dict[str, Digest] = {}
    options: dict[str, str] = {}
    packages: tuple[str, ...] = ()
    wheels: dict[str, Digest] = {}


class StaticItem(msgspec.Struct, frozen=True, array_like=True):
    """An item that is fixed at registration: its name, its bytes by their digest, its type."""

    name: str
    digest: Digest
    dtype: str | None = None
    shape: Shape | None = None


class FunctionSpec(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A registered function: names, sets, limits, code objects.

    Attributes:
        name: identifier, unique among functions and compositions.
        inputs: input sets, in order; order is the position of a set in calls by position.
        outputs: output sets, in order.
        static: items of input sets that are fixed at registration, by set name. A static set has
            priority; callers may not give it.
        code: alternatives, best first.
        limits: what one instance may use.
        secrets: names of secrets of the node, by the input set that each fills. Callers may not
            give these sets either.
        kind: ``compute`` (pure, may be run again) or ``io`` (performed by the platform).
        idempotent: of an io function: to run a call again leaves the world as one run does.
        cache: keep results by the content of the inputs; for compute functions only.
        batching: how waiting calls are joined; None if each is run by itself.
        version: given by the catalogue, from 1 upwards.
    """

    name: str
    inputs: tuple[SetSpec, ...] = ()
    outputs: tuple[SetSpec, ...] = ()
    static: dict[str, tuple[StaticItem, ...]] = {}
    code: tuple[CodeObject, ...] = ()
    limits: Limits = Limits()
    secrets: dict[str, str] = {}
    kind: str = "compute"
    cache: bool = False
    batching: Batching | None = None
    version: int = 0
    idempotent: bool = False

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the input sets, in order."""
        return tuple(s.name for s in self.inputs)

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the output sets, in order."""
        return tuple(s.name for s in self.outputs)

    @property
    def fixed(self) -> tuple[str, ...]:
        """Names of the input sets that callers may not give."""
        return (*self.static, *self.secrets)

    def _repr_html_(self) -> str:
        sets = [(s.name, "input", s.type_text, _given_text(self, s)) for s in self.inputs]
        sets += [(s.name, "output", s.type_text, "") for s in self.outputs]
        codes = [
            (c.format, ", ".join(f"{k}={v}" for k, v in c.options.items() if k != "values"),
             ", ".join(c.packages), ", ".join(c.wheels))
            for c in self.code
        ]  # fmt: skip
        return page(
            heading(f"{self.kind} function", self.name, f"version {self.version or 'none'}"),
            table(("set", "role", "type", "given"), sets),
            table(("format", "options", "packages", "wheels"), codes),
        )

    def blobs(self) -> set[Digest]:
        """Digests of all blobs that this function needs."""
        wanted = {item.digest for items in self.static.values() for item in items}
        for code in self.code:
            wanted.update(code.files.values())
            if code.main:
                wanted.add(code.main)
        return wanted


def _given_text(spec: FunctionSpec, of: SetSpec) -> str:
    if of.name in spec.secrets:
        return "by a secret of the node"
    return "at registration" if of.name in spec.static else "by callers"


class FusedFunction(FunctionSpec, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Functions of a composition that are run as one; it is never registered.

    Attributes:
        parts: names and versions of these functions.
        blueprint: the content of the code object's `main`.
    """

    parts: tuple[tuple[str, int], ...] = ()
    blueprint: bytes = b""

    def plain(self) -> FunctionSpec:
        """Return the record without what only this class has."""
        names = FunctionSpec.__struct_fields__
        return FunctionSpec(**{name: getattr(self, name) for name in names})


@dataclass(frozen=True, slots=True)
class Environment:
    """The prepared Python packages of a function.

    Attributes:
        folder: with the modules; absolute, read-only.
        tenant: whose function it is. Interpreters that have loaded it serve no other tenant.
    """

    folder: str
    tenant: str


@dataclass(slots=True)
class Function:
    """A function with the blobs of one of its code objects; drivers check it, engines run it.

    Attributes:
        spec: the registered record.
        code: the code object that was chosen.
        main: bytes of ``code.main``.
        files: bytes of ``code.files``, by name.
        static: static input sets by name, in memory.
        identity: digest of code and files; equal identity means equal behaviour, and one scope.
        scope: the tenant that shares its constants on devices with no other; empty if it does.
        binary: what the backend's checker made of the code for confined engines; never of a user.
        environment: its Python packages; None if it needs no others than the node's.
        given: positions of the input sets that come with a call, in order.
        typed: positions of the input sets that declare a dtype.
    """

    spec: FunctionSpec
    code: CodeObject
    main: Bytes = b""
    files: Mapping[str, Bytes] = field(default_factory=dict)
    static: Mapping[str, ItemSet] = field(default_factory=dict)
    identity: Digest = Digest("")
    scope: str = ""
    binary: Bytes = b""
    environment: Environment | None = None
    given: tuple[int, ...] = field(init=False)
    typed: tuple[int, ...] = field(init=False)
    _template: list[ItemSet | None] = field(init=False)

    def __post_init__(self) -> None:
        names = self.spec.input_names
        self.given = tuple(i for i, name in enumerate(names) if name not in self.static)
        self.typed = tuple(i for i, s in enumerate(self.spec.inputs) if s.dtype is not None)
        self._template = [self.static.get(name) for name in names]
        if not self.identity:
            content = (self.spec, self.code, self.scope) if self.scope else (self.spec, self.code)
            self.identity = digest_of(msgspec.msgpack.encode(content, order="sorted"))

    def with_static(self, inputs: Sequence[ItemSet | None]) -> tuple[ItemSet | None, ...]:
        """Return the inputs of a call, which has one entry for each set, with the static sets."""
        if not self.static:
            return tuple(inputs)
        whole = self._template.copy()
        for position in self.given:
            whole[position] = inputs[position]
        return tuple(whole)
