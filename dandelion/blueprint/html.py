"""A blueprint for notebooks: its buffers with their sizes, and its launches in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dandelion.blueprint.operation_parts import Operation, operands
from dandelion.blueprint.operation_records import Conv2d, Gemm
from dandelion.blueprint.records import (
    Absolute,
    Action,
    Add,
    Argument,
    ByBatch,
    Candidates,
    CeilDiv,
    Choose,
    CopyBuffer,
    Elements,
    ExecKernel,
    ExecutionBlueprint,
    FromInput,
    GpuConfig,
    Mul,
    Ptr,
    Raw,
    Repeat,
    RepeatWhile,
    Size,
    Sizeof,
    ZeroBuffer,
)
from dandelion.markup import Element, clipped, code, element, heading, table

_INDENT = "  "


def blueprint_element(config: GpuConfig) -> Element:
    """Show a blueprint for notebooks."""
    body = config.blueprint
    counted = f"{len(body.control_flow)} steps, {len(config.modules)} modules"
    kernels = ", ".join(kernel.name for kernel in config.kernels)
    return element(
        "div",
        heading("blueprint", kernels, counted),
        table(("buffer", "role", "bytes"), _buffers(body)),
        table(("step", "blocks", "threads", "arguments"), _steps(body.control_flow, "")),
    )


def _buffers(body: ExecutionBlueprint) -> Iterator[tuple[str, str, str]]:
    for name in body.inputs:
        yield name, "input, output" if name in body.outputs else "input", "as its item"
    for name in body.weights:
        yield name, "weight", "as its item"
    for name, size in body.buffers.items():
        yield name, "output" if name in body.outputs else "temporary", size_expression(size)


def _steps(actions: Sequence[Action], indent: str) -> Iterator[tuple[Element, str, str, Element]]:
    for action in actions:
        match action:
            case ExecKernel(kernel=kernel, args=args, launch=launch):
                blocks = (launch.grid_dim_x, launch.grid_dim_y, launch.grid_dim_z)
                threads = (launch.block_dim_x, launch.block_dim_y, launch.block_dim_z)
                shown = clipped(", ".join(map(_argument, args)))
                yield code(indent + kernel), _three(blocks), _three(threads), code(shown)
            case CopyBuffer(target=target, source=source):
                yield code(f"{indent}copy"), "", "", code(f"{target} = {source}")
            case ZeroBuffer(buffer=buffer):
                yield code(f"{indent}zero"), "", "", code(buffer)
            case Gemm() | Conv2d():
                yield code(f"{indent}{type(action).__name__}"), "", "", code(_operation(action))
            case Choose(sizes=sizes, cases=cases):
                for case in cases:
                    condition = f"{size_expression(sizes[0])} up to {case.up_to}"
                    yield code(f"{indent}{condition}"), "", "", code("")
                    yield from _steps(case.actions, indent + _INDENT)
            case Repeat(times=times, actions=inner):
                yield code(f"{indent}{size_expression(times)} times"), "", "", code("")
                yield from _steps(inner, indent + _INDENT)
            case Candidates(alternatives=alternatives):
                for number, one in enumerate(alternatives):
                    label = "or" if number else "the fastest of"
                    yield code(f"{indent}{label}"), "", "", code("")
                    yield from _steps(one, indent + _INDENT)
            case RepeatWhile(times=times, word=word, actions=inner):
                most = f"{indent}up to {size_expression(times)} times"
                yield code(most), "", "", code(f"while {word}")
                yield from _steps(inner, indent + _INDENT)


def _operation(action: Operation) -> str:
    """Write the result, the operands and the type of a library operation."""
    *given, (_, out) = operands(action)
    extents = (action.m, action.n, action.k) if isinstance(action, Gemm) else action.kernel
    shown = " × ".join(map(size_expression, extents))
    names = ", ".join(operand.buffer for _, operand in given)
    return clipped(f"{out.buffer} = {names}; {shown}, {action.dtype.value}")


def _three(sizes: Sequence[Size]) -> str:
    """Write up to three dimensions, without those at the end that are one."""
    shown = [size_expression(size) for size in sizes]
    while len(shown) > 1 and shown[-1] == "1":
        shown.pop()
    return " × ".join(shown)


def _argument(argument: Argument) -> str:
    match argument:
        case Ptr(buffer=buffer, offset=offset):
            return buffer if offset == Absolute(0) else f"{buffer} + {size_expression(offset)}"
        case Raw(data=data):
            return f"{len(data)} bytes"
        case _:
            value = argument.value
            shown = f"{value}" if isinstance(value, int | float) else size_expression(value)
            return f"{argument.dtype.value} {shown}"


def size_expression(size: Size) -> str:
    """Write a size as a formula."""
    match size:
        case Absolute(value=value):
            return str(value)
        case Sizeof(buffer=buffer):
            return f"sizeof({buffer})"
        case FromInput(bufname=name, idx=at):
            return f"{name}[{at}]"
        case Elements(buffer=buffer, dtype=dtype):
            return f"elements({buffer}, {dtype.value})"
        case ByBatch(value=value, even=even):
            return f"{value} * {'pairs of the batch' if even else 'batch'}"
        case Add(terms=terms):
            return f"({' + '.join(map(size_expression, terms))})"
        case Mul(factors=factors):
            return " * ".join(map(size_expression, factors))
        case CeilDiv(dividend=dividend, divisor=divisor):
            return f"ceil({size_expression(dividend)} / {size_expression(divisor)})"
