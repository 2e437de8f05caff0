"""Arguments of a Triton kernel: their types for the compiler, and their form in a blueprint."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from dandelion.arrays import dtype_named
from dandelion.blueprint import (
    Absolute,
    Add,
    Argument,
    Buffer,
    Expression,
    Mul,
    Ptr,
    Scalar,
    ScalarType,
    Size,
)
from dandelion.data import SetSpec
from dandelion.errors import InvalidInput, nearest
from dandelion.errors.misfits import named_type
from dandelion.export.triton_binding import ALIGNMENT, Parameter

CONSTANT = "constexpr"
_NUMPY = {
    "bool": "i1",
    **{
        f"{sign}int{bits}": f"{sign or 'i'}{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
    },
    **{f"float{bits}": f"fp{bits}" for bits in (16, 32, 64)},
    "bfloat16": "bf16",
}
_SCALARS = {
    **{kind.value: kind for kind in ScalarType if not kind.is_float},
    **{f"fp{kind.value[1:]}": kind for kind in ScalarType if kind.is_float},
    "i1": ScalarType.U8,
    "u1": ScalarType.U8,
}


@dataclass(frozen=True, slots=True)
class Pointer:
    """A pointer to a buffer, for element types that sets do not have.

    Attributes:
        buffer: name of an input or output set, or of a further buffer in `sizes`.
        dtype: Triton's name of the element type: ``fp32``, ``fp8e4nv``.
    """

    buffer: str
    dtype: str


ArgumentLike: TypeAlias = str | Buffer | Pointer | Expression | Scalar | int | float | bool
"""A set or buffer by name, a size that is known when the inputs are known, or a number."""


@dataclass(frozen=True, slots=True)
class KernelArguments:
    """What the kernel gets.

    Attributes:
        signature: the type of each parameter, constants included, as Triton names it.
        constants: values of the parameters that are compiled in.
        aligned: parameters that are multiples of `ALIGNMENT` in every call.
        passed: the arguments of the launch, by parameter, in order.
    """

    signature: Mapping[str, str]
    constants: Mapping[str, object]
    aligned: tuple[str, ...]
    passed: Mapping[str, Argument]


def kernel_arguments(
    parameters: Iterable[Parameter],
    arguments: Mapping[str, ArgumentLike],
    constants: Mapping[str, object],
    sets: Mapping[str, SetSpec],
    buffers: Iterable[str],
) -> KernelArguments:
    """Bind each parameter of a kernel.

    Args:
        parameters: of the kernel.
        arguments: by parameter; a parameter with the name of a set is that set by default.
        constants: by parameter.
        sets: the function's sets by name; their types are those of pointers to them.
        buffers: names of further buffers.

    Raises:
        InvalidInput: a parameter has no value, or one that a blueprint cannot express.
    """
    known = list(parameters)
    for name in (*arguments, *constants):
        if name not in [p.name for p in known]:
            close = nearest(name, [p.name for p in known])
            hint = f"did you mean '{close}'?" if close else ""
            raise InvalidInput(f"arguments.{name}", f"the kernel has no parameter '{name}'", hint)
    binder = _Binder(sets, frozenset(buffers))
    for parameter in known:
        binder.bind(parameter, arguments, constants)
    return KernelArguments(binder.signature, binder.constants, tuple(binder.aligned), binder.passed)


class _Binder:
    def __init__(self, sets: Mapping[str, SetSpec], buffers: frozenset[str]) -> None:
        self.sets = sets
        self.buffers = buffers
        self.signature: dict[str, str] = {}
        self.constants: dict[str, object] = {}
        self.aligned: list[str] = []
        self.passed: dict[str, Argument] = {}

    def bind(
        self,
        parameter: Parameter,
        arguments: Mapping[str, ArgumentLike],
        constants: Mapping[str, object],
    ) -> None:
        name = parameter.name
        if name in constants:
            if name in arguments:
                raise InvalidInput(f"constants.{name}", "it is in 'arguments' too; give one")
            self.constant(name, constants[name])
        elif parameter.constant and name in arguments:
            hint = "give it in 'constants'"
            raise InvalidInput(f"arguments.{name}", "the parameter is tl.constexpr", hint)
        elif name in arguments:
            self.argument(parameter, arguments[name])
        elif name in self.sets and not parameter.constant:
            self.argument(parameter, name)
        elif parameter.has_default:
            self.constant(name, parameter.default)
        else:
            where = "constants" if parameter.constant else "arguments"
            raise InvalidInput(f"{where}.{name}", "the parameter has no value", f"give {where}")

    def constant(self, name: str, value: object) -> None:
        self.signature[name] = CONSTANT
        self.constants[name] = value

    def argument(self, parameter: Parameter, value: ArgumentLike) -> None:
        match value:
            case str() | Buffer() | Pointer():
                self.pointer(parameter, value)
            case Expression():
                self.expression(parameter, value.size)
            case Scalar():
                self.set_type(parameter, value)
            case bool() | int() | float():
                self.number(parameter, value)
            case _:
                self.refuse(parameter.name, value)

    def refuse(self, name: str, value: object) -> None:
        kind = type(value).__name__
        hint = "give the name of a set, a number, a size of dandelion.blueprint, or Pointer"
        if value is None:
            hint = "give None in 'constants'"
        if "TensorDescriptor" in kind:
            hint = "pass the set and call tl.make_tensor_descriptor in the kernel"
        raise InvalidInput(f"arguments.{name}", f"{named_type(value)} cannot be an argument", hint)

    def pointer(self, parameter: Parameter, value: str | Buffer | Pointer) -> None:
        where = f"arguments.{parameter.name}"
        name = value if isinstance(value, str) else ""
        name = value.buffer if isinstance(value, Pointer) else name
        name = value.name if isinstance(value, Buffer) else name
        known = {*self.sets, *self.buffers}
        if name not in known:
            close = nearest(name, known)
            hint = f"did you mean '{close}'?" if close else f"use one of {', '.join(sorted(known))}"
            raise InvalidInput(where, f"no set '{name}'", hint)
        if parameter.type and not parameter.type.startswith("*"):
            raise InvalidInput(
                where, f"the parameter is declared {parameter.type}", "give a number"
            )
        declared = f"*{value.dtype}" if isinstance(value, Pointer) else parameter.type
        self.signature[parameter.name] = declared or f"*{self.element(where, name)}"
        self.passed[parameter.name] = Ptr(name)
        if parameter.align:
            self.aligned.append(parameter.name)

    def element(self, where: str, name: str) -> str:
        """The type of the elements of a set, as Triton names it."""
        dtype = self.sets[name].dtype if name in self.sets else None
        hint = f"write the set as '{name}: float32', or pass Pointer('{name}', 'fp32')"
        if dtype is None:
            raise InvalidInput(where, f"'{name}' has no element type", hint)
        found = _NUMPY.get(dtype_named(where, dtype).name)
        if found is None:
            raise InvalidInput(where, f"Triton has no type {dtype}", hint)
        return found

    def expression(self, parameter: Parameter, size: Size) -> None:
        kind = self.declared(parameter) or ScalarType.I32
        if kind.is_float:
            where = f"arguments.{parameter.name}"
            raise InvalidInput(where, "a size is an integer", f"the parameter is {parameter.type}")
        value = size.value if isinstance(size, Absolute) else size
        self.set_type(parameter, Scalar(kind, value))

    def number(self, parameter: Parameter, value: bool | int | float) -> None:
        if isinstance(value, bool):
            self.signature[parameter.name] = parameter.type or "i1"
            kind = self.declared(parameter) or ScalarType.U8
            self.passed[parameter.name] = Scalar(kind, int(value))
        elif isinstance(value, float):
            self.set_type(parameter, Scalar(self.declared(parameter) or ScalarType.F32, value))
        elif value == 1 and parameter.specialize and not parameter.type:
            self.constant(parameter.name, 1)  # a stride of 1 shows that loads are contiguous
        else:
            small = -(2**31) <= value < 2**31
            kind = self.declared(parameter) or (ScalarType.I32 if small else ScalarType.I64)
            self.set_type(parameter, Scalar(kind, float(value) if kind.is_float else value))

    def declared(self, parameter: Parameter) -> ScalarType | None:
        """The type that the parameter is annotated with."""
        if not parameter.type:
            return None
        found = _SCALARS.get(parameter.type)
        if found is None:
            where = f"arguments.{parameter.name}"
            hint = "make it an input, or a constant"
            raise InvalidInput(where, f"blueprints have no numbers of type {parameter.type}", hint)
        return found

    def set_type(self, parameter: Parameter, value: Scalar) -> None:
        declared = self.declared(parameter)
        if declared not in (None, value.dtype):
            message = (
                f"the parameter is declared {parameter.type}, the argument {value.dtype.value}"
            )
            raise InvalidInput(f"arguments.{parameter.name}", message)
        names = {kind: name for name, kind in _SCALARS.items() if name not in ("i1", "u1")}
        self.signature[parameter.name] = parameter.type or names[value.dtype]
        self.passed[parameter.name] = value
        size = value.value
        if parameter.align and not isinstance(size, float):
            factor = abs(size) if isinstance(size, int) else factor_of(size)
            if factor % ALIGNMENT == 0:
                self.aligned.append(parameter.name)


def factor_of(size: Size) -> int:
    """A number that divides a size whatever the inputs are; 0 if the size is always 0."""
    match size:
        case Absolute(value):
            return abs(value)
        case Add(terms):
            return math.gcd(*map(factor_of, terms))
        case Mul(factors):
            return math.prod(map(factor_of, factors))
    return 1
