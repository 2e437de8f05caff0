"""The records of a blueprint: the parts of a GPU function and the launches of its kernels.

A `GpuConfig` lists modules (files with kernels), the kernels in them and one `ExecutionBlueprint`:
the buffers of a call and the launches that use them. A blueprint has no host code, only data, so it
can be checked and planned without a device.

Sizes are small expressions over constants, buffer sizes and integers of the inputs. So the memory
and launches of a call are known from its inputs, before it runs.
"""

from __future__ import annotations

import enum
from typing import TypeAlias

import msgspec


class _Record(msgspec.Struct, frozen=True, tag=True):
    """A record of the blueprint; the tag is the name of its class."""


# --- sizes ----------------------------------------------------------------------------------


class Absolute(_Record, frozen=True):
    """A constant."""

    value: int


class Sizeof(_Record, frozen=True):
    """The size of a buffer in bytes."""

    buffer: str


class FromInput(_Record, frozen=True):
    """The idx-th signed 64-bit little-endian integer of an input, counted from zero."""

    bufname: str
    idx: int


class Elements(_Record, frozen=True):
    """The number of whole elements of a type in a buffer."""

    buffer: str
    dtype: ScalarType


class ByBatch(_Record, frozen=True):
    """A constant for each member of the batch: ``value * batch``.

    With `even` it counts for each pair of members, ``value * ceil(batch / 2)``: the original rounds
    the batch up to an even number and then halves it.
    """

    value: int
    even: bool = False


class Add(_Record, frozen=True):
    """A sum of sizes."""

    terms: tuple[Size, ...]


class Mul(_Record, frozen=True):
    """A product of sizes."""

    factors: tuple[Size, ...]


class CeilDiv(_Record, frozen=True):
    """A quotient, rounded up."""

    dividend: Size
    divisor: Size


Size: TypeAlias = Absolute | Sizeof | FromInput | Elements | ByBatch | Add | Mul | CeilDiv


# --- arguments ------------------------------------------------------------------------------


class ScalarType(enum.Enum):
    """Types of kernel arguments that are passed by value, and of buffer elements."""

    I8 = "i8"
    I16 = "i16"
    I32 = "i32"
    I64 = "i64"
    U8 = "u8"
    U16 = "u16"
    U32 = "u32"
    U64 = "u64"
    F16 = "f16"
    F32 = "f32"
    F64 = "f64"

    @property
    def size_bytes(self) -> int:
        """Size of one value in bytes."""
        return int(self.value[1:]) // 8

    @property
    def is_float(self) -> bool:
        """Whether it is a floating-point type."""
        return self.value[0] == "f"

    @property
    def struct_code(self) -> str:
        """Format character of the `struct` module, little-endian."""
        return _STRUCT_CODES[self.value]


_STRUCT_CODES = {
    "i8": "<b",
    "i16": "<h",
    "i32": "<i",
    "i64": "<q",
    "u8": "<B",
    "u16": "<H",
    "u32": "<I",
    "u64": "<Q",
    "f16": "<e",
    "f32": "<f",
    "f64": "<d",
}


class Ptr(_Record, frozen=True):
    """The device address of a buffer."""

    buffer: str


class Scalar(_Record, frozen=True):
    """A number by value.

    The historical ``Sizeof`` is ``Scalar(U64, Sizeof(name))`` and ``Constant`` is
    ``Scalar(I64, number)``.

    Attributes:
        dtype: type of the kernel's parameter.
        value: a number, or for integer types a size; a plain number instead of an `Absolute`.
    """

    dtype: ScalarType
    value: int | float | Size


class Raw(_Record, frozen=True):
    """Bytes by value, for parameters of struct types."""

    data: bytes


Argument: TypeAlias = Ptr | Scalar | Raw


# --- control flow ---------------------------------------------------------------------------


class LaunchConfig(_Record, frozen=True):
    """The seven numbers of a launch: blocks, threads of a block, bytes of dynamic local memory."""

    grid_dim_x: Size = Absolute(1)
    grid_dim_y: Size = Absolute(1)
    grid_dim_z: Size = Absolute(1)
    block_dim_x: Size = Absolute(1)
    block_dim_y: Size = Absolute(1)
    block_dim_z: Size = Absolute(1)
    shared_mem_bytes: Size = Absolute(0)


class ExecKernel(_Record, frozen=True):
    """Launch a kernel once."""

    kernel: str
    args: tuple[Argument, ...]
    launch: LaunchConfig


class CopyBuffer(_Record, frozen=True):
    """Copy a buffer to another one of the same size."""

    target: str
    source: str


class ZeroBuffer(_Record, frozen=True):
    """Zero a buffer."""

    buffer: str


class Repeat(_Record, frozen=True):
    """Run actions `times` times."""

    times: Size
    actions: tuple[Action, ...]


Action: TypeAlias = ExecKernel | CopyBuffer | ZeroBuffer | Repeat


class ExecutionBlueprint(_Record, frozen=True):
    """Buffers and launches of one call.

    Attributes:
        inputs: buffers that are copied in, each as large as its item.
        weights: inputs that are constant between calls.
        buffers: further buffers and their sizes in bytes; they are zeroed at the start of a call.
        outputs: buffers that are copied out, which may include inputs.
        control_flow: the launches, in order.
        batch: the factor of `ByBatch`.
    """

    inputs: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    buffers: dict[str, Size] = {}
    outputs: tuple[str, ...] = ()
    control_flow: tuple[Action, ...] = ()
    batch: Size = Absolute(1)


# --- code -----------------------------------------------------------------------------------


class Access(enum.Enum):
    """A kernel's access to a parameter.

    WRITE guarantees that earlier content is never read, so the buffer may reuse the memory of
    another one.
    """

    READ = "read"
    WRITE = "write"
    BOTH = "both"
    VALUE = "value"


class Code(_Record, frozen=True):
    """One file that can serve as a module.

    Attributes:
        path: name of one of the function's files, or of a registered library.
        backend: the backend that can load it; empty if its name or its text shows it.
        arch: the architecture that it was built for (``sm_90``, ``gfx90a``); empty for any.
        shared_mem_bytes: dynamic local memory of each launch of its kernels, in bytes, instead of
            the number in the launch; None keeps that number. Binaries that a compiler made for
            different architectures need different amounts.
    """

    path: str
    backend: str = ""
    arch: str = ""
    shared_mem_bytes: int | None = None


class Module(_Record, frozen=True):
    """Kernels that are loaded together; `code` lists alternatives, best first."""

    name: str
    code: tuple[Code, ...]


class Kernel(_Record, frozen=True):
    """A kernel of a module.

    Attributes:
        name: its name in the control flow.
        module: name of its module.
        symbol: its name in the module; empty if that is `name`.
        access: its access to each parameter; empty if not declared.
    """

    name: str
    module: str
    symbol: str = ""
    access: tuple[Access, ...] = ()


class GpuConfig(_Record, frozen=True):
    """A GPU function: modules, kernels and a blueprint. All spellings result in this record."""

    modules: tuple[Module, ...]
    kernels: tuple[Kernel, ...]
    blueprint: ExecutionBlueprint

    @property
    def paths(self) -> tuple[str, ...]:
        """Names of all files, each once, in order."""
        return tuple(dict.fromkeys(c.path for m in self.modules for c in m.code))


MAX_LAUNCHES = 1_000_000
"""Bound on the launches of one call, repeats unrolled."""

MAX_BYTES = 2**46
"""Bound on any size in bytes, larger than the memory of any device."""

MAX_DEPTH = 16
"""Bound on nested repeats, and on nested arithmetic."""

GRID_LIMITS = (2**31 - 1, 65535, 65535)
"""Bounds on the blocks of a launch by dimension, those of CUDA and HIP."""

BLOCK_LIMITS = (1024, 1024, 64)
"""Bounds on the threads of a block by dimension."""

BLOCK_THREADS = 1024
"""Bound on the threads of a block."""

SHARED_LIMIT_BYTES = 2**20
"""Bound on dynamic local memory that no device exceeds."""
