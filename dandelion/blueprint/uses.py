"""What a blueprint does with its buffers: which are written, and which integers sizes read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

from dandelion.blueprint.numbers import launch_numbers
from dandelion.blueprint.operation_parts import sizes
from dandelion.blueprint.records import (
    Access,
    Action,
    Add,
    Candidates,
    CeilDiv,
    Choose,
    Conv2d,
    CopyBuffer,
    ExecKernel,
    FromInput,
    Gemm,
    GpuConfig,
    Kernel,
    Mul,
    Ptr,
    Repeat,
    RepeatWhile,
    Scalar,
    Size,
    ZeroBuffer,
    inner_lists,
)
from dandelion.blueprint.signatures import signatures
from dandelion.data import Bytes

_TEXT_PROBE_BYTES = 1024
_Number: TypeAlias = int | float


def symbol_of(kernel: Kernel) -> str:
    """Name of a kernel in its module."""
    return kernel.symbol or kernel.name


def with_access(config: GpuConfig, files: Mapping[str, Bytes]) -> GpuConfig:
    """Fill in what kernels do with their parameters where a source shows it and it is not declared.

    A pointer to const is only read; of any other pointer nothing is known.
    """
    found: dict[tuple[str, str], tuple[Access, ...]] = {}
    for module in config.modules:
        for code in module.code:
            data = files.get(code.path)
            if data is not None and _is_text(data):
                text = bytes(data).decode(errors="replace")
                for name, signature in signatures(text).items():
                    found.setdefault((module.name, name), signature.access)
    kernels = tuple(
        Kernel(k.name, k.module, k.symbol, k.access or found.get((k.module, symbol_of(k)), ()))
        for k in config.kernels
    )
    return GpuConfig(config.modules, kernels, config.blueprint)


def _is_text(data: Bytes) -> bool:
    return b"\0" not in bytes(data[:_TEXT_PROBE_BYTES])


def written_buffers(config: GpuConfig) -> set[str]:
    """Find the buffers that a blueprint may write to, all its outputs, and all that it pads.

    Words that are read from the device count as outputs.

    Where nothing is known of a kernel's parameter, as with binaries, the blueprint's word counts:
    `weights` are constant.

    Args:
        config: with all that is known of its kernels' parameters, see `with_access`.
    """
    body = config.blueprint
    access = {k.name: k.access for k in config.kernels}
    weights, written = frozenset(body.weights), {*body.outputs, *body.present_if.values()}

    def launch(action: ExecKernel) -> None:
        ways = access[action.kernel]
        for index, argument in enumerate(action.args):
            if isinstance(argument, Ptr):
                known = index < len(ways)
                constant = argument.buffer in weights
                if ways[index] is not Access.READ if known else not constant:
                    written.add(argument.buffer)

    def look(actions: tuple[Action, ...]) -> None:
        for action in actions:
            match action:
                case Choose(_, cases):
                    written.update(*(case.padded for case in cases))  # with zeros
                case RepeatWhile(word=word):
                    written.add(word)
                case CopyBuffer(target, _):
                    written.add(target)
                case ZeroBuffer(buffer):
                    written.add(buffer)
                case Gemm() | Conv2d():
                    written.add(action.out.buffer)
                case ExecKernel():
                    launch(action)
            for _, inner in inner_lists(action):
                look(inner)

    look(body.control_flow)
    return written


def optional_kernels(config: GpuConfig) -> set[str]:
    """Names of the kernels that only alternatives of candidates launch, not all of them."""
    inside: set[str] = set()

    def needed(actions: tuple[Action, ...]) -> set[str]:
        found: set[str] = set()
        for action in actions:
            match action:
                case ExecKernel(kernel=kernel):
                    found.add(kernel)
                case Candidates(alternatives):
                    each = [needed(one) for one in alternatives]
                    inside.update(*each)
                    found |= set.intersection(*each)
                case _:
                    found.update(*(needed(inner) for _, inner in inner_lists(action)))
        return found

    always = needed(config.blueprint.control_flow)
    return inside - always


def integers_read(config: GpuConfig) -> tuple[FromInput, ...]:
    """List the integers that a blueprint reads, each once."""
    return _integers(size for size, _ in _sizes_in(config))


def integers_planned(config: GpuConfig) -> tuple[FromInput, ...]:
    """List the integers that plans of a blueprint depend on, each once.

    One that only goes to kernels by value changes nothing but that value.
    """
    return _integers(size for size, by_value in _sizes_in(config) if not by_value)


def integers_open(config: GpuConfig) -> tuple[FromInput, ...]:
    """List the integers that a blueprint reads and its plans do not depend on, each once."""
    planned = integers_planned(config)
    return tuple(integer for integer in integers_read(config) if integer not in planned)


def integers_in(size: Size) -> Iterator[FromInput]:
    """Give the integers that a size itself reads, not those of the buffers that it names."""
    match size:
        case FromInput():
            yield size
        case Add(parts) | Mul(parts):
            for part in parts:
                yield from integers_in(part)
        case CeilDiv(dividend, divisor):
            yield from integers_in(dividend)
            yield from integers_in(divisor)


def _integers(found: Iterable[Size]) -> tuple[FromInput, ...]:
    return tuple(dict.fromkeys(integer for size in found for integer in integers_in(size)))


def _sizes_in(config: GpuConfig) -> Iterator[tuple[Size, bool]]:
    """Give each size of a blueprint, and whether it is an argument by value."""
    body = config.blueprint
    for size in (body.batch, *body.buffers.values()):
        yield size, False
    yield from _sizes_of(body.control_flow)


def _sizes_of(actions: tuple[Action, ...]) -> Iterator[tuple[Size, bool]]:
    for action in actions:
        for _, inner in inner_lists(action):
            yield from _sizes_of(inner)
        match action:
            case Repeat() | RepeatWhile():
                yield action.times, False
            case Choose(chosen, cases):
                padded = (size for case in cases for size in case.padded.values())
                yield from ((size, False) for size in (*chosen, *padded))
            case Gemm() | Conv2d():
                yield from ((size, False) for _, size, _, _ in sizes(action))
            case ExecKernel():
                yield from ((size, False) for _, size, _, _ in launch_numbers(action.launch))
                for argument in action.args:
                    if isinstance(argument, Ptr):
                        yield argument.offset, False
                    elif isinstance(argument, Scalar) and not isinstance(argument.value, _Number):
                        yield argument.value, True
