"""The functions of a vendor's binding, under one set of names.

CUDA's driver interface and HIP have the same functions with other names, so the device that both
share (`.cudalike`) calls them through this table; ``cuda.py`` and ``hip.py`` fill it in, and what
they fill in is all that differs. As in both bindings every function gives a tuple that begins with
an error code; the codes have the same numbers in both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from dandelion.blueprint.operation_calls import OperationCall

from .lowering import Library

Function: TypeAlias = Callable[..., tuple[Any, ...]]  # a foreign function: types end here

OUT_OF_MEMORY = 2
NO_BINARY = frozenset({200, 209, 218, 222})
"""The module is none, or for another device: invalid image, no binary, invalid or too new PTX."""

BROKEN = frozenset(
    {46, 53, 214, 220, 226, 401, 700, 702, 709, 710}
    | {714, 715, 716, 717, 718, 719, 721, 805, 806, 810, 999}
)
"""After these a process can do nothing more with its device: faults of kernels (illegal address,
assertion, illegal instruction, misaligned address, ...), broken memory, a lost MPS server."""


@dataclass(frozen=True, slots=True)
class Attributes:
    """Keys of the facts about devices and kernels that are asked for."""

    compute_units: Any
    unit_threads: Any
    block_threads: Any
    grid: tuple[Any, Any, Any]
    shared_bytes: Any
    shared_most_bytes: Any
    virtual_memory: Any
    kernel_threads: Any
    kernel_shared_bytes: Any
    kernel_dynamic_bytes: Any
    exports_memory: Any = None


@dataclass(frozen=True, slots=True)
class Compiler:
    """The vendor's compiler of sources at run time.

    Attributes:
        load: gives the binding, which is heavy; the others take it.
        prefix: of its functions' names.
        code: ends the names of the functions that give the binary.
        options: for an architecture.
        headers: options that show it the toolkit's headers; they change nothing else.
        reference: of a program, in the form that the function that destroys it takes.
    """

    load: Callable[[], Any]
    prefix: str
    code: str
    options: Callable[[str], tuple[bytes, ...]]
    headers: Callable[[], tuple[bytes, ...]]
    reference: Callable[[Any], Any]


Way: TypeAlias = Callable[[Sequence[int]], None]
"""Launches an operation; takes the addresses of its memory."""


class Trials(Protocol):
    """Measures ways to compute an operation on a device, and keeps which is the fastest.

    A key is a text with all that the answer depends on, beside the device.
    """

    def left_s(self) -> float:
        """Seconds that measuring may still take for the call that is planned."""
        ...

    def known(self, key: str) -> int | None:
        """Give the number of the fastest way, if that was measured before."""
        ...

    def fastest(self, key: str, sizes: Sequence[int], ways: Mapping[int, Way]) -> int:
        """Measure which way is the fastest; give its number.

        Args:
            key: of the operation.
            sizes: of the memory that each way is given, in bytes.
            ways: by number, those expected fastest first; at least one.
        """
        ...


@dataclass(frozen=True, slots=True)
class LibrarySite:
    """Where a library works.

    Attributes:
        name: of the device, for errors.
        stream: where operations are launched.
        trials: on the device.
    """

    name: str
    stream: Any
    trials: Trials


def _missing(*_: Any) -> tuple[Any, ...]:
    raise NotImplementedError("the binding's table has no such function")


@dataclass(frozen=True, slots=True)
class Calls:
    """The functions; arguments and results as in the CUDA driver interface unless it says more."""

    # what is there
    initialize: Function
    count: Function
    device_name: Function  # (ordinal) -> text
    total_memory: Function
    archs: Function  # (ordinal) -> names of architectures, best first
    device_attribute: Function
    memory_info: Function  # () -> free, total
    attributes: Attributes
    describe: Callable[[Any], str]
    version: Function
    # the process's reference to a device: (ordinal)
    retain: Function
    release: Function
    set_heap_limit: Function  # (bytes): the heap of malloc in kernels
    set_print_limit: Function  # (bytes): the queue of printf in kernels
    # memory
    pointer: Callable[[int], Any]
    allocate: Function
    free: Function
    host_register: Function
    host_unregister: Function
    copy_in: Function
    copy_out: Function
    copy_within: Function  # (target, source, bytes, stream)
    fill: Function
    # memory in mappings of its own; see `.cudalike_protected`
    granularity: Function  # (ordinal) -> bytes
    reserve: Function  # (bytes) -> address
    unreserve: Function
    create: Function  # (bytes, ordinal, other processes may map it) -> handle
    destroy: Function
    map: Function  # (address, bytes, handle)
    unmap: Function
    protect: Function  # (address, bytes, ordinal, protection)
    # code
    load_module: Function  # (bytes) -> module; a log in the place of the module where it failed
    unload_module: Function
    get_kernel: Function
    kernel_attribute: Function  # (attribute, kernel) -> number
    set_kernel_attribute: Function
    parameter: Callable[..., tuple[Any, ...]] | None  # (kernel, index) -> offset, bytes
    # work
    create_stream: Function
    destroy_stream: Function
    wait_event: Function  # (stream, event): the stream's next work waits for what was recorded
    synchronize: Function  # (stream)
    launch: Function
    begin_capture: Function
    end_capture: Function
    instantiate: Function  # (graph) -> executable graph
    upload: Function
    replay: Function
    destroy_graph: Function
    destroy_executable: Function
    create_event: Function
    record: Function
    wait: Function
    destroy_event: Function
    compiler: Compiler
    # kernels of graphs with other arguments
    last_captured: Function  # (stream) -> the node of what it captured last
    node: Function  # (arguments of `launch`) -> parameters of a node
    set_node: Function  # (executable graph, node, parameters)
    # of modules whose variables `.code_info` can list
    get_variable: Function = _missing  # (module, name) -> address, bytes
    # memory that other processes map, where `Attributes.exports_memory` says so
    exported: Function = _missing  # (handle) -> descriptor
    imported: Function = _missing  # (descriptor) -> handle
    # the library of each kind of operation, if it is installed
    libraries: Mapping[type[OperationCall], Callable[[LibrarySite], Library | None]] = field(
        default_factory=dict
    )
