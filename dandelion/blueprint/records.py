"""The records of a blueprint: the parts of a GPU function and the launches of its kernels.

A `GpuConfig` lists modules (files with kernels), the kernels in them and one `ExecutionBlueprint`:
the buffers of a call and the launches that use them. A blueprint has no host code, only data, so it
can be checked and planned without a device.

Sizes are in `size_records`, actions that are not kernels of the function in `operation_records`;
this file hands both on.
"""

from __future__ import annotations

import enum
from typing import TypeAlias

import msgspec

from dandelion.blueprint.operation_records import Conv2d as Conv2d
from dandelion.blueprint.operation_records import Gemm as Gemm
from dandelion.blueprint.size_records import MAX_BYTES as MAX_BYTES
from dandelion.blueprint.size_records import Absolute as Absolute
from dandelion.blueprint.size_records import Add as Add
from dandelion.blueprint.size_records import BlueprintRecord
from dandelion.blueprint.size_records import ByBatch as ByBatch
from dandelion.blueprint.size_records import CeilDiv as CeilDiv
from dandelion.blueprint.size_records import Elements as Elements
from dandelion.blueprint.size_records import FromInput as FromInput
from dandelion.blueprint.size_records import Mul as Mul
from dandelion.blueprint.size_records import ScalarType as ScalarType
from dandelion.blueprint.size_records import Size as Size
from dandelion.blueprint.size_records import Sizeof as Sizeof

# --- arguments ------------------------------------------------------------------------------


class Ptr(BlueprintRecord, frozen=True):
    """The device address of a buffer, or of a place in it.

    Attributes:
        buffer: its name.
        offset: from its start, in bytes; it lies inside of the buffer.
    """

    buffer: str
    offset: Size = Absolute(0)


class Scalar(BlueprintRecord, frozen=True):
    """A number by value.

    The historical ``Sizeof`` is ``Scalar(U64, Sizeof(name))`` and ``Constant`` is
    ``Scalar(I64, number)``.

    Attributes:
        dtype: type of the kernel's parameter.
        value: a number, or for integer types a size; a plain number instead of an `Absolute`.
    """

    dtype: ScalarType
    value: int | float | Size


class Raw(BlueprintRecord, frozen=True):
    """Bytes by value, for parameters of struct types."""

    data: bytes


Argument: TypeAlias = Ptr | Scalar | Raw


# --- control flow ---------------------------------------------------------------------------


class LaunchConfig(BlueprintRecord, frozen=True):
    """The seven numbers of a launch: blocks, threads of a block, bytes of dynamic local memory."""

    grid_dim_x: Size = Absolute(1)
    grid_dim_y: Size = Absolute(1)
    grid_dim_z: Size = Absolute(1)
    block_dim_x: Size = Absolute(1)
    block_dim_y: Size = Absolute(1)
    block_dim_z: Size = Absolute(1)
    shared_mem_bytes: Size = Absolute(0)


class ExecKernel(BlueprintRecord, frozen=True):
    """Launch a kernel once."""

    kernel: str
    args: tuple[Argument, ...]
    launch: LaunchConfig


class CopyBuffer(BlueprintRecord, frozen=True):
    """Copy a buffer to another one of the same size."""

    target: str
    source: str


class ZeroBuffer(BlueprintRecord, frozen=True):
    """Zero a buffer."""

    buffer: str


class Repeat(BlueprintRecord, frozen=True):
    """Run actions `times` times."""

    times: Size
    actions: tuple[Action, ...]


class Candidates(BlueprintRecord, frozen=True):
    """Run one of several lists of actions that do the same; the device's engine measures which.

    Attributes:
        alternatives: the lists; the first is run where nothing was measured. None has candidates
            in it.
    """

    alternatives: tuple[tuple[Action, ...], ...]


class Case(BlueprintRecord, frozen=True):
    """One of the choices of a `Choose`.

    Attributes:
        up_to: the largest size for which it is chosen.
        actions: what runs then.
        padded: bytes of memory that buffers have then, at least their size. Behind the data of an
            input are zeros; what lies behind that of an output is not copied out.
    """

    up_to: int
    actions: tuple[Action, ...]
    padded: dict[str, Size] = msgspec.field(default_factory=dict)


class Choose(BlueprintRecord, frozen=True):
    """Run the actions of the first case whose `up_to` is not less than a size.

    Attributes:
        sizes: one or more, which must be equal, such as the rows of each input.
        cases: with `up_to` in ascending order; there is no case for a larger size.
    """

    sizes: tuple[Size, ...]
    cases: tuple[Case, ...]


class RepeatWhile(BlueprintRecord, frozen=True):
    """Run actions, and again while a word on the device is not zero.

    The word is looked at after each iteration, so there is at least one.

    Attributes:
        times: the largest number of iterations.
        word: a buffer of at least `WORD_BYTES`, which begins with the word.
        actions: of one iteration.
    """

    times: Size
    word: str
    actions: tuple[Action, ...]


Action: TypeAlias = (
    ExecKernel
    | CopyBuffer
    | ZeroBuffer
    | Gemm
    | Conv2d
    | Repeat
    | RepeatWhile
    | Candidates
    | Choose
)


def inner_lists(action: Action) -> list[tuple[str, tuple[Action, ...]]]:
    """Give the lists of actions in an action, each with its place in it."""
    match action:
        case Repeat(_, actions) | RepeatWhile(_, _, actions):
            return [(".actions", actions)]
        case Candidates(alternatives):
            return [(f"[{number}]", one) for number, one in enumerate(alternatives)]
        case Choose(_, cases):
            return [(f".cases[{n}].actions", case.actions) for n, case in enumerate(cases)]
    return []


def contains(actions: tuple[Action, ...], kind: type[Action]) -> bool:
    """Tell whether there is an action of a kind among actions, or in them."""
    return any(
        isinstance(action, kind) or any(contains(inner, kind) for _, inner in inner_lists(action))
        for action in actions
    )


class ExecutionBlueprint(BlueprintRecord, frozen=True):
    """Buffers and launches of one call.

    Attributes:
        inputs: buffers that are copied in, each as large as its item.
        weights: inputs that are constant between calls.
        buffers: further buffers and their sizes in bytes; they are zeroed at the start of a call.
        outputs: buffers that are copied out, which may include inputs.
        control_flow: the launches, in order.
        batch: the factor of `ByBatch`.
        present_if: outputs that are absent if a word is zero at the end of a call, with the buffer
            of at least `WORD_BYTES` that begins with the word.
    """

    inputs: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    buffers: dict[str, Size] = msgspec.field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    control_flow: tuple[Action, ...] = ()
    batch: Size = Absolute(1)
    present_if: dict[str, str] = msgspec.field(default_factory=dict)


# --- code -----------------------------------------------------------------------------------


class Access(enum.Enum):
    """A kernel's access to a parameter.

    WRITE guarantees that earlier content is never read and that all of the buffer is written, so it
    may reuse the memory of another one.
    """

    READ = "read"
    WRITE = "write"
    BOTH = "both"
    VALUE = "value"


class Code(BlueprintRecord, frozen=True):
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


class Module(BlueprintRecord, frozen=True):
    """Kernels that are loaded together; `code` lists alternatives, best first."""

    name: str
    code: tuple[Code, ...]


class Kernel(BlueprintRecord, frozen=True):
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


class GpuConfig(BlueprintRecord, frozen=True):
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

MAX_ALTERNATIVES = 16
"""Bound on the alternatives of candidates."""

WORD_BYTES = 4
"""Size of the words that a call's end and its loops depend on."""

MAX_DEPTH = 16
"""Bound on nested repeats and choices, and on nested arithmetic."""

GRID_LIMITS = (2**31 - 1, 65535, 65535)
"""Bounds on the blocks of a launch by dimension, those of CUDA and HIP."""

BLOCK_LIMITS = (1024, 1024, 64)
"""Bounds on the threads of a block by dimension."""

BLOCK_THREADS = 1024
"""Bound on the threads of a block."""

SHARED_LIMIT_BYTES = 2**20
"""Bound on dynamic local memory that no device exceeds."""
