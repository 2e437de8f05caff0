"""A Triton kernel as a function: compiled for each target, with its launch in a blueprint."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from dandelion.arrays import dtype_named
from dandelion.blueprint import Access, Blueprint, Buffer, Code, Expression, Ptr
from dandelion.blueprint.builder import SizeLike, size_of
from dandelion.data import SetSpec
from dandelion.documents import FunctionDocument, SetLike, StaticValue, gpu_function, set_spec
from dandelion.errors import InvalidFunction, InvalidInput, Problem
from dandelion.export.memory_access import accesses
from dandelion.export.targets import Target, target_named
from dandelion.export.triton_arguments import (
    ArgumentLike,
    KernelArguments,
    kernel_arguments,
)
from dandelion.export.triton_binding import (
    CompiledKernel,
    TritonKernel,
    compile_kernel,
    kernel_of,
    refuse_options,
)
from dandelion.function import Batching, Limits

Grid: TypeAlias = Sequence[SizeLike] | SizeLike
GridLike: TypeAlias = Grid | Callable[[Mapping[str, object]], Grid]
BufferSize: TypeAlias = SizeLike | Buffer | str

_WARP_THREADS = 32  # of `num_warps`, on every target
_NULL = 0
_SCRATCH = "global_scratch"


def triton_function(
    name: str,
    kernel: object,
    *,
    inputs: Iterable[SetLike],
    outputs: Iterable[SetLike],
    grid: GridLike,
    arguments: Mapping[str, ArgumentLike] | None = None,
    constants: Mapping[str, object] | None = None,
    sizes: Mapping[str, BufferSize] | None = None,
    targets: Iterable[str] = ("sm_90", "gfx942"),
    num_warps: int = 4,
    num_stages: int | Mapping[str, int] | None = None,
    options: Mapping[str, object] | None = None,
    config: object = None,
    static: Mapping[str, Mapping[str, StaticValue]] | None = None,
    limits: Limits | None = None,
    batching: Batching | None = None,
) -> FunctionDocument:
    """Compile a Triton kernel and describe it as a GPU function. No GPU is needed.

    The document has a blueprint with one launch and a binary for each target. It needs no Triton
    where it runs. Access to buffers is derived from the kernel: sets that it only reads may stay
    on the device if they are static.

    Args:
        name: registered name.
        kernel: a function decorated with `triton.jit`.
        inputs, outputs: sets with their element types, ``"x: float32"``. A set that is both is
            changed in place.
        grid: blocks in up to three dimensions: integers, or sizes of `dandelion.blueprint`, or a
            function that gives them for the kernel's constants.
        arguments: by parameter. A set or buffer by name is a pointer; an integer is an i32 (i64
            if it is large), a size an i32, a float an f32, unless the parameter's annotation or
            `dandelion.blueprint.scalar` says otherwise. A parameter with the name of a set may
            be left out.
        constants: values of `tl.constexpr` parameters.
        sizes: sizes of output sets in bytes, or the set that is as large; sets of a declared
            shape need none. Further names are temporary buffers.
        targets: architectures, each with a binary.
        num_warps: threads of a block divided by 32, on every target.
        num_stages: depth of pipelines, for all targets or by target; by default the compiler's.
        options: further options of the compiler. An option that it does not know for a target
            is ignored there.
        config: a `triton.Config`: constants and options, for a kernel with `triton.autotune`.
        static: items of input sets that are fixed now, by set and item name.
        limits: what one instance may use.
        batching: how waiting calls are joined.

    Raises:
        InvalidInput: a kernel, argument, size, option or target is not valid.
        InvalidFunction: the kernel does not compile, or needs what a blueprint does not have.
        InvalidBlueprint: the launch is not valid.
        BackendUnavailable: Triton is not installed.
    """
    found, settings = kernel_of(kernel, config)
    meta = {p.name for p in found.parameters}
    fixed = {**{n: v for n, v in settings.items() if n in meta}, **(constants or {})}
    chosen = {"num_warps": num_warps, **{n: v for n, v in settings.items() if n not in meta}}
    chosen |= _further(options or {})
    refuse_options(chosen)
    wanted = [target_named(arch) for arch in dict.fromkeys(targets)]
    _refuse_unknown(num_stages, wanted)
    ins, outs = tuple(map(set_spec, inputs)), tuple(map(set_spec, outputs))
    sets = {spec.name: spec for spec in (*outs, *ins)}
    bound = kernel_arguments(found.parameters, arguments or {}, fixed, sets, sizes or ())
    made = {
        target: compile_kernel(
            found, bound.signature, bound.constants, bound.aligned, target,
            _options(chosen, num_stages, target),
        )
        for target in wanted
    }  # fmt: skip
    _check(found, made)
    ways = _accesses(bound, made, outs)
    layout = _Layout(ins, outs, sizes or {}, static or {})
    dimensions = grid({**bound.constants}) if callable(grid) else grid
    text, files = layout.blueprint(found, bound, ways, made, dimensions)
    return gpu_function(
        name, text, inputs=ins, outputs=outs, files=files, static=static, limits=limits,
        batching=batching,
    )  # fmt: skip


def _further(options: Mapping[str, object]) -> Mapping[str, object]:
    for name in ("num_warps", "num_stages"):
        if name in options:
            raise InvalidInput(f"options.{name}", "it is an argument of triton_function")
    return options


def _refuse_unknown(num_stages: int | Mapping[str, int] | None, targets: list[Target]) -> None:
    """Refuse a number of stages for an architecture that is no target."""
    known = [target.arch for target in targets]
    for arch in num_stages if isinstance(num_stages, Mapping) else ():
        if arch not in known:
            hint = f"the targets are {', '.join(known)}"
            raise InvalidInput(f"num_stages.{arch}", f"no target '{arch}'", hint)


def _options(
    chosen: Mapping[str, object], num_stages: int | Mapping[str, int] | None, target: Target
) -> dict[str, object]:
    """Options of the compiler for one target."""
    options = {"enable_fp_fusion": True, **chosen}
    stages = num_stages.get(target.arch) if isinstance(num_stages, Mapping) else num_stages
    if stages is not None:
        options["num_stages"] = stages
    warps = options["num_warps"]
    if not isinstance(warps, int) or warps < 1 or warps & (warps - 1):
        raise InvalidInput("num_warps", f"{warps!r} is not a power of two")
    threads = warps * _WARP_THREADS
    if threads < target.warp_threads:
        message = f"{threads} threads are less than the {target.warp_threads} of a wavefront"
        hint = f"use {target.warp_threads // _WARP_THREADS}, or leave out {target.arch}"
        raise InvalidInput("num_warps", f"{message} on {target.arch}", hint)
    return {**options, "num_warps": threads // target.warp_threads}


def _check(kernel: TritonKernel, made: Mapping[Target, CompiledKernel]) -> None:
    """Refuse binaries that one launch cannot serve, or that their device cannot run."""
    if not made:
        raise InvalidInput("targets", "there is none", "name at least one, such as sm_90")
    problems = []
    threads = {found.threads for found in made.values()}
    where = f"kernel {kernel.name}"
    if len(threads) > 1:
        shown = ", ".join(f"{t.arch}: {found.threads}" for t, found in made.items())
        message = "its targets need different numbers of threads"
        expected = "a function for each target"
        problems.append(Problem("launch", message, where, expected=expected, found=shown))
    for target, found in made.items():
        limit = target.shared_limit_bytes
        if limit is not None and found.shared_bytes > limit:
            message = f"it needs {found.shared_bytes} bytes of shared memory on {target.arch}"
            expected = f"at most {limit}: smaller blocks, or a lower num_stages for {target.arch}"
            problems.append(Problem("launch", message, where, expected=expected))
    if problems:
        raise InvalidFunction(tuple(problems))


def _accesses(
    bound: KernelArguments, made: Mapping[Target, CompiledKernel], outputs: Iterable[SetSpec]
) -> list[Access]:
    """Access to each argument of the launch, without those to scratch memory."""
    by_target = [accesses(found.operations, len(bound.passed)) for found in made.values()]
    ways = []
    written = set()
    for index, argument in enumerate(bound.passed.values()):
        read_only = all(found[index] is Access.READ for found in by_target)
        way = Access.READ if read_only else Access.BOTH
        if isinstance(argument, Ptr) and not read_only:
            written.add(argument.buffer)
        ways.append(way if isinstance(argument, Ptr) else Access.VALUE)
    for output in outputs:
        if output.name not in written:
            hint = "pass it to the parameter that the kernel stores to"
            raise InvalidInput(f"outputs.{output.name}", "the kernel never writes to it", hint)
    return ways


class _Layout:
    """The buffers of the function."""

    def __init__(
        self,
        inputs: Sequence[SetSpec],
        outputs: Sequence[SetSpec],
        sizes: Mapping[str, BufferSize],
        static: Iterable[str],
    ) -> None:
        self.inputs = [spec.name for spec in inputs]
        self.outputs = outputs
        self.sizes = sizes
        self.static = frozenset(static)
        for name in sizes:
            if name in self.inputs:
                raise InvalidInput(f"sizes.{name}", "an input has the size of its item")

    def size(self, spec: SetSpec) -> BufferSize:
        """Size of an output that is no input."""
        if spec.name in self.sizes:
            return self.sizes[spec.name]
        if spec.dtype is None or spec.shape is None or -1 in spec.shape:
            hint = f"give sizes={{'{spec.name}': ...}} in bytes, or declare its shape"
            raise InvalidInput(f"outputs.{spec.name}", "its size is not known", hint)
        where = f"outputs.{spec.name}"
        return math.prod(spec.shape) * dtype_named(where, spec.dtype).itemsize

    def blueprint(
        self,
        kernel: TritonKernel,
        bound: KernelArguments,
        ways: Sequence[Access],
        made: Mapping[Target, CompiledKernel],
        grid: Grid,
    ) -> tuple[str, dict[str, bytes]]:
        """Write the blueprint, and name its files."""
        files = {f"{kernel.name}.{t.arch}.{t.suffix}": found.code for t, found in made.items()}
        shared = [found.shared_bytes for found in made.values()]
        same = shared[0] if len(set(shared)) == 1 else None
        codes = [
            Code(path, target.backend, target.arch, size if same is None else None)
            for path, target, size in zip(files, made, shared, strict=True)
        ]
        constant = [n for n in self.inputs if n in self.static]
        varying = [n for n in self.inputs if n not in self.static]
        names = [spec.name for spec in self.outputs]
        built = Blueprint(varying, weights=constant, outputs=names, modules={kernel.name: codes})
        for spec in self.outputs:
            if spec.name not in self.inputs:
                _buffer(built, spec.name, self.size(spec))
        for name, size in self.sizes.items():
            if name not in names:
                _buffer(built, name, size)
        blocks = [grid] if isinstance(grid, Expression | int) else list(grid)
        first = next(iter(made.values()))
        scratch = self.scratch(built, max(f.scratch_bytes for f in made.values()), blocks)
        access = [*(way.value for way in ways), "value" if scratch == _NULL else "both", "value"]
        built.kernel(kernel.name, symbol=_symbol(kernel, made), access=access)
        arguments = [*bound.passed.values(), scratch, _NULL]
        built.launch(
            kernel.name, arguments, grid=blocks, block=first.threads, shared_mem_bytes=same or 0
        )
        return built.json(), files

    def scratch(self, built: Blueprint, block_bytes: int, grid: Sequence[SizeLike]) -> Buffer | int:
        """Memory that Triton's launcher would allocate for each block, or a null pointer."""
        if not block_bytes:
            return _NULL
        name = _SCRATCH
        while name in (*self.inputs, *self.sizes, *(spec.name for spec in self.outputs)):
            name += "_"
        size = Expression(size_of(block_bytes))
        for blocks in grid:
            size = size * blocks
        return built.buffer(name, size, temporary=True)


def _buffer(built: Blueprint, name: str, size: BufferSize) -> None:
    if isinstance(size, str | Buffer):
        built.buffer(name, like=size)
    else:
        built.buffer(name, size)


def _symbol(kernel: TritonKernel, made: Mapping[Target, CompiledKernel]) -> str:
    symbols = {found.symbol for found in made.values()}
    if len(symbols) > 1:
        where = f"kernel {kernel.name}"
        raise InvalidFunction((Problem("compile", f"it has the names {symbols}", where),))
    symbol = symbols.pop()
    return "" if symbol == kernel.name else symbol
