"""Triton's compiler, and the only file that imports it.

`triton.compile` needs no GPU if it is given a target. What it makes is a binary for that target and
metadata for the launcher: threads, shared memory, scratch memory. The kernel's parameters are those
of the Python function that are not constants, and then two pointers: to global scratch memory and
to scratch memory of the profiler.

Source: triton 3.6, ``triton/compiler/compiler.py`` and ``triton/backends/*/driver.py``.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dandelion.errors import BackendUnavailable, InvalidFunction, InvalidInput, Problem
from dandelion.errors.misfits import named_type
from dandelion.export.memory_access import Operation
from dandelion.export.targets import Target

VERSION = "3.6"
"""The only version: intermediate code, metadata and parameters differ between versions."""

ALIGNMENT = 16
"""Pointers and integers that are known to be multiples of it are loaded and stored as vectors."""

_VARIABLE = re.compile(r"^\.global [^;={]*?(?P<name>[\w$]+)(\[\d*\])?( = [^;]*)?;\n", re.MULTILINE)
_REFUSED = {
    "num_ctas": "clusters of blocks are not supported; leave it out, each block runs by itself",
    "launch_cooperative_grid": "a launch cannot wait for all of its blocks; use two kernels",
    "launch_pdl": "the platform orders launches itself; leave it out",
    "instrumentation_mode": "instrumented kernels need the memory of Triton's own launcher",
    "ir_override": "the kernel must be compiled from its source; leave it out",
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a Triton kernel.

    Attributes:
        name: in the Python function.
        constant: it is annotated ``tl.constexpr``.
        type: Triton's name of its annotated type (``i64``, ``fp32``, ``*fp16``), or empty.
        has_default, default: its default value.
        specialize: Triton may compile for the value 1.
        align: Triton may compile for multiples of `ALIGNMENT`.
    """

    name: str
    constant: bool
    type: str
    has_default: bool
    default: object
    specialize: bool
    align: bool


@dataclass(frozen=True, slots=True)
class TritonKernel:
    """A kernel before it is compiled.

    Attributes:
        name: of its Python function, and of its symbol in binaries.
        parameters: in order.
        function: Triton's object.
    """

    name: str
    parameters: tuple[Parameter, ...]
    function: Any


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """A kernel's binary for one target, and what its launcher must know.

    Attributes:
        code: a cubin or an AMD code object.
        symbol: name of the kernel in it.
        threads: of a block.
        shared_bytes: dynamic shared memory of a block.
        scratch_bytes: global scratch memory for each block.
        operations: its intermediate code.
    """

    code: bytes
    symbol: str
    threads: int
    shared_bytes: int
    scratch_bytes: int
    operations: tuple[Operation, ...]


def load() -> Any:
    """Import Triton.

    Raises:
        BackendUnavailable: it is not installed, or in another version.
    """
    remedy = "pip install 'dandelion-engine[export]'"
    try:
        triton: Any = importlib.import_module("triton")
    except ImportError as error:
        raise BackendUnavailable("triton", str(error), remedy) from error
    found = str(triton.__version__)
    if not found.startswith(f"{VERSION}."):
        missing = f"version {found} is installed, version {VERSION} is needed"
        raise BackendUnavailable("triton", missing, remedy)
    return triton


def kernel_of(kernel: object, config: object = None) -> tuple[TritonKernel, dict[str, Any]]:
    """Look at a user's kernel.

    Args:
        kernel: decorated with `triton.jit`; with `triton.autotune` too if `config` is given.
        config: a `triton.Config`.

    Returns:
        The kernel, and the compiler's options and constants of `config`.

    Raises:
        InvalidInput: it is something else, or was decorated with more.
        BackendUnavailable: Triton is not installed.
    """
    load()
    runtime = importlib.import_module("triton.runtime")
    found: Any = kernel
    if isinstance(found, runtime.Heuristics):
        hint = "pass the undecorated kernel, 'kernel.fn', and its values in 'constants'"
        raise InvalidInput("kernel", "it is decorated with triton.heuristics", hint)
    if isinstance(found, runtime.Autotuner):
        if config is None:
            hint = "choose one: config=kernel.configs[0], or kernel.fn with 'constants'"
            raise InvalidInput("kernel", "it is decorated with triton.autotune", hint)
        found = found.fn
    if not isinstance(found, runtime.JITFunction):
        message = f"{named_type(found)} is not a Triton kernel"
        raise InvalidInput("kernel", message, "decorate the function with triton.jit")
    parameters = tuple(map(_parameter, found.params))
    return TritonKernel(found.__name__, parameters, found), _settings(config)


def _parameter(param: Any) -> Parameter:
    default = param.default if param.has_default else None
    align = not (param.do_not_specialize or param.do_not_specialize_on_alignment)
    return Parameter(
        param.name, bool(param.is_constexpr), str(param.annotation_type), bool(param.has_default),
        default, not param.do_not_specialize, align,
    )  # fmt: skip


def _settings(config: Any) -> dict[str, Any]:
    if config is None:
        return {}
    if config.pre_hook is not None:
        hint = "buffers are zero at the start of a call; remove it if that is what it does"
        raise InvalidInput("config", "it has a pre_hook, which is host code", hint)
    return dict(config.all_kwargs())


def refuse_options(options: Mapping[str, object]) -> None:
    """Refuse options of the compiler whose kernels cannot be launched from a blueprint.

    Raises:
        InvalidInput: with the option and what to do instead.
    """
    for name, hint in _REFUSED.items():
        neutral = 1 if name == "num_ctas" else False
        if options.get(name) and options[name] != neutral:
            raise InvalidInput(f"options.{name}", f"{options[name]!r} is not supported", hint)


def compile_kernel(
    kernel: TritonKernel,
    signature: Mapping[str, str],
    constants: Mapping[str, object],
    aligned: Sequence[str],
    target: Target,
    options: Mapping[str, object],
) -> CompiledKernel:
    """Compile a kernel for a target, which needs no device.

    Args:
        kernel: from `kernel_of`.
        signature: Triton's name of the type of each parameter; ``constexpr`` for constants.
        constants: values of the constants.
        aligned: parameters that are always multiples of `ALIGNMENT`.
        target: the architecture.
        options: of Triton's compiler for it.

    Raises:
        InvalidFunction: the kernel does not compile, or needs what blueprints do not have.
    """
    triton = load()
    compiler = importlib.import_module("triton.compiler")
    backends = importlib.import_module("triton.backends.compiler")
    names = [parameter.name for parameter in kernel.parameters]
    attributes = {(names.index(name),): [["tt.divisibility", ALIGNMENT]] for name in aligned}
    where = f"kernel {kernel.name}"
    try:
        source = compiler.ASTSource(kernel.function, dict(signature), dict(constants), attributes)
        gpu = backends.GPUTarget(target.backend, target.number, target.warp_threads)
        with _own_settings(triton):
            made = triton.compile(source, target=gpu, options=dict(options))
        operations = _operations(made.asm["ttir"], gpu)
    except Exception as error:  # the compiler raises errors of every class, also assertions
        message = f"Triton does not compile it for {target.arch}"
        raise InvalidFunction((Problem("compile", message, where, found=str(error)),)) from error
    metadata = made.metadata
    if metadata.profile_scratch_size:
        message = "it was compiled for Triton's profiler, which needs memory of its own launcher"
        raise InvalidFunction((Problem("compile", message, where),))
    return CompiledKernel(
        bytes(made.asm[target.suffix]), str(metadata.name),
        int(metadata.num_warps) * target.warp_threads, int(metadata.shared),
        int(getattr(metadata, "global_scratch_size", 0)), operations,
    )  # fmt: skip


@contextlib.contextmanager
def _own_settings(triton: Any) -> Iterator[None]:
    """Settings of the compiler while it compiles for us; nothing stays in its cache."""
    knobs = triton.knobs
    with contextlib.ExitStack() as stack:
        for part in (knobs.compilation, knobs.runtime, knobs.cache):
            stack.enter_context(part.scope())
        knobs.cache.dir = stack.enter_context(tempfile.TemporaryDirectory())
        knobs.compilation.always_compile = True  # the cache does not know of our stage
        knobs.compilation.disable_line_info = True  # binaries must not have paths of this machine
        knobs.runtime.add_stages_inspection_hook = _with_plain_ptx
        yield


def _with_plain_ptx(*given: Any) -> tuple[str, str] | None:
    """Add a stage of ours to the compiler's; without arguments, the name of that in its cache."""
    if not given:
        return "without unused variables", "1"
    _, stages, *_ = given
    made = stages.get("ptx")
    if made is not None:
        stages["ptx"] = lambda source, metadata: without_unused_variables(made(source, metadata))
    return None


def without_unused_variables(ptx: str) -> str:
    """Remove variables that no kernel refers to from the text of a module.

    NVIDIA's library of mathematics leaves the name of a compiler's option there. A module with
    variables is loaded afresh for each call, since they may carry data to the next one.
    """

    def kept(found: re.Match[str]) -> str:
        return found[0] if ptx.count(found["name"]) > 1 else ""

    return _VARIABLE.sub(kept, ptx)


def _operations(text: str, gpu: Any) -> tuple[Operation, ...]:
    """Read intermediate code; Triton reads it from files only."""
    ir = importlib.import_module("triton._C.libtriton").ir
    backend = importlib.import_module("triton.compiler.compiler").make_backend(gpu)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.ttir"
        path.write_text(text, "utf-8")
        module = ir.parse_mlir_module(str(path), context)
    found: list[Operation] = []
    module.walk(lambda op: found.append(_operation(op)))
    return tuple(found)


def _operation(op: Any) -> Operation:
    operands = tuple(op.get_operand(i).id() for i in range(op.get_num_operands()))
    results = tuple(op.get_result(i).id() for i in range(op.get_num_results()))
    regions = tuple(op.get_region(i).id() for i in range(op.get_num_regions()))
    block = op.get_block()
    if block is None:
        return Operation(op.get_name(), operands, results, regions)
    arguments = tuple(block.get_argument(i).id() for i in range(block.get_num_arguments()))
    region = block.get_parent().id()
    return Operation(op.get_name(), operands, results, regions, block.id(), arguments, region)
