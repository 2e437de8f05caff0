"""The static check: all mistakes of a blueprint that do not depend on its inputs.

Names must be known, numbers in range, launches bounded, files present, and arguments must fit the
kernel's parameters, as far as its source or its declared access shows them. What depends on a
call's inputs is checked by the plan of that call, with the same messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice

from dandelion.blueprint.check_arguments import argument_problems
from dandelion.blueprint.check_candidates import candidate_problems
from dandelion.blueprint.check_cycles import cycle_problems
from dandelion.blueprint.check_operations import operation_problems
from dandelion.blueprint.check_words import word_problems
from dandelion.blueprint.document import MOST_PROBLEMS
from dandelion.blueprint.launch_counts import launches
from dandelion.blueprint.numbers import constant, launch_numbers, pack
from dandelion.blueprint.operation_parts import Operation, operands, sizes
from dandelion.blueprint.reading import read_config
from dandelion.blueprint.records import (
    BLOCK_THREADS,
    MAX_BYTES,
    MAX_DEPTH,
    MAX_LAUNCHES,
    SHARED_LIMIT_BYTES,
    Absolute,
    Action,
    Add,
    Argument,
    ByBatch,
    Candidates,
    CeilDiv,
    Choose,
    Conv2d,
    CopyBuffer,
    Elements,
    ExecKernel,
    FromInput,
    Gemm,
    GpuConfig,
    Kernel,
    LaunchConfig,
    Mul,
    Ptr,
    Raw,
    RepeatWhile,
    Size,
    Sizeof,
    ZeroBuffer,
)
from dandelion.blueprint.signatures import KernelSignature, signatures
from dandelion.data import Bytes
from dandelion.errors import InvalidBlueprint, Problem, nearest

Files = Collection[str] | Mapping[str, Bytes]
"""Names of the present files; if their bytes are given, sources are checked too."""

_RAW_LIMIT_BYTES = 4096  # CUDA's limit for all parameters of a kernel
_SOURCES = (".cl", ".cu", ".hip", ".c", ".cpp", ".h")


def parse_blueprint(
    data: bytes | bytearray | memoryview | str, files: Files | None = None
) -> GpuConfig:
    """Read a blueprint in any of its spellings and check it.

    Args:
        data: JSON.
        files: names of the present files, best with their bytes; None leaves them unchecked.

    Raises:
        InvalidBlueprint: with all problems at once.
    """
    config, found = read_config(data)
    problems = list(found)
    if not any(p.code == "json" for p in problems):
        # a placeholder for an unreadable part is not another mistake
        unread = {p.where for p in problems if p.code != "missing-field"}
        inside = tuple(f"{where}{sign}" for where in unread for sign in ".[")
        checked = check_blueprint(config, files)
        problems += [p for p in checked if p.where not in unread and not p.where.startswith(inside)]
    if problems:
        raise InvalidBlueprint(tuple(problems))
    return config


def check_blueprint(config: GpuConfig, files: Files | None = None) -> list[Problem]:
    """List the mistakes of a blueprint that do not depend on its inputs; see `Files`.

    They are `MOST_PROBLEMS` at most.
    """
    return list(islice(_Checker(config, files).run(), MOST_PROBLEMS))


class _Checker:
    def __init__(self, config: GpuConfig, files: Files | None) -> None:
        self.config = config
        self.files = files
        self.body = config.blueprint
        self.inputs = (*self.body.inputs, *self.body.weights)
        self.buffers = {*self.inputs, *self.body.buffers}
        self.kernels = {k.name: k for k in config.kernels}
        self.sources = self._sources()
        self.signatures = dict(self._signatures())

    def run(self) -> Iterator[Problem]:
        yield from self.modules()
        yield from self.names()
        yield from cycle_problems(self.body.buffers, self.body.batch)
        for name, size in self.body.buffers.items():
            where = f"blueprint.buffers.{name}"
            yield from self.size(where, size, smallest=1, largest=MAX_BYTES)
        yield from self.size("blueprint.batch", self.body.batch, smallest=1, largest=MAX_LAUNCHES)
        yield from self.actions("blueprint.control_flow", self.body.control_flow, 1, 0)
        count = launches(self.body.control_flow)
        if count > MAX_LAUNCHES:
            message = f"{count} launches are more than {MAX_LAUNCHES}"
            yield Problem("too-many-launches", message, "blueprint.control_flow")

    # modules and kernels

    def modules(self) -> Iterator[Problem]:
        yield from _doubles("modules", "module", [m.name for m in self.config.modules])
        yield from _doubles("kernels", "kernel", [k.name for k in self.config.kernels])
        if not self.config.modules and self.config.kernels:
            yield Problem("missing", "there is no module", "modules")
        for module in self.config.modules:
            where = f"modules.{module.name}"
            if not module.code:
                yield Problem("missing", "it has no file", where)
            for code in module.code:
                if self.files is not None and code.path not in self.files:
                    close = nearest(code.path, self.files) or ""
                    yield Problem("unknown-file", f"no file '{code.path}'", where, nearest=close)
                shared = Absolute(code.shared_mem_bytes or 0)
                yield from self.size(f"{where}.shared_mem_bytes", shared, 0, SHARED_LIMIT_BYTES)
        known = [m.name for m in self.config.modules]
        for kernel in self.config.kernels:
            where = f"kernels.{kernel.name}"
            if kernel.module not in known:
                yield _unknown("module", kernel.module, known, where)
            elif self.sources[kernel.module] and kernel.name not in self.signatures:
                yield from self._symbol(kernel, where)

    def _symbol(self, kernel: Kernel, where: str) -> Iterator[Problem]:
        found = self.sources[kernel.module]
        known = {name for by_name in found for name in by_name}
        close = nearest(kernel.symbol or kernel.name, known)
        if known and all(found) and close is not None:
            yield _unknown("kernel", kernel.symbol or kernel.name, known, where)

    def _sources(self) -> dict[str, list[dict[str, KernelSignature]]]:
        """Return the signatures in the source files of each module; each file is read once."""
        found: dict[str, list[dict[str, KernelSignature]]] = {
            m.name: [] for m in self.config.modules
        }
        if not isinstance(self.files, Mapping):
            return found
        read: dict[str, dict[str, KernelSignature]] = {}
        for module in self.config.modules:
            for path in (code.path for code in module.code):
                if path not in self.files or not path.endswith(_SOURCES):
                    continue
                if path not in read:
                    read[path] = signatures(bytes(self.files[path]).decode(errors="replace"))
                found[module.name].append(read[path])
        return found

    def _signatures(self) -> Iterator[tuple[str, KernelSignature]]:
        for kernel in self.config.kernels:
            for found in self.sources.get(kernel.module, ()):
                if (kernel.symbol or kernel.name) in found:
                    yield kernel.name, found[kernel.symbol or kernel.name]
                    break

    # names

    def names(self) -> Iterator[Problem]:
        where = "blueprint.inputs"
        yield from _doubles(where, "input", self.inputs)
        yield from _doubles("blueprint.outputs", "output", self.body.outputs)
        for name in self.inputs:
            if name in self.body.buffers:
                message = f"'{name}' is already an input"
                yield Problem("duplicate", message, f"blueprint.buffers.{name}")
        for index, name in enumerate(self.body.outputs):
            yield from self.buffer(f"blueprint.outputs[{index}]", name)
        for name, word in self.body.present_if.items():
            where = f"blueprint.present_if.{name}"
            if name not in self.body.outputs:
                yield _unknown("output", name, self.body.outputs, where)
            yield from self.word(where, word)

    def word(self, where: str, name: str) -> Iterator[Problem]:
        """Check the name of a buffer that begins with a word."""
        yield from self.buffer(where, name)
        yield from word_problems(where, name, self.body)

    def buffer(self, where: str, name: str) -> Iterator[Problem]:
        if name not in self.buffers:
            yield _unknown("buffer", name, self.buffers, where)

    # sizes

    def size(
        self, where: str, size: Size, smallest: int, largest: int, depth: int = 0
    ) -> Iterator[Problem]:
        """Check names and constants in a size; `smallest` and `largest` bound a plain constant."""
        match size:
            case Absolute(value) | ByBatch(value):
                if not smallest <= value <= largest:
                    kind = "negative" if value < 0 else "out-of-range"
                    expected = f"{smallest}..{largest}"
                    yield Problem(kind, f"{value} is out of range", where, expected=expected)
            case Sizeof(buffer) | Elements(buffer):
                yield from self.buffer(where, buffer)
            case FromInput(bufname, idx):
                if bufname not in self.inputs:
                    yield _unknown("input", bufname, self.inputs, f"{where}.bufname")
                if not 0 <= idx < MAX_BYTES // 8:
                    yield Problem("negative", f"the index {idx} is negative", f"{where}.idx")
            case Add(parts) | Mul(parts):
                yield from self.parts(where, parts, depth)
            case CeilDiv(dividend, divisor):
                yield from self.parts(where, (dividend, divisor), depth)
                if divisor == Absolute(0):
                    yield Problem("division-by-zero", "the divisor is zero", where)
        if isinstance(size, Add | Mul | CeilDiv):
            total = constant(size)
            if total is not None and not smallest <= total <= largest:
                expected = f"{smallest}..{largest}"
                yield Problem("out-of-range", f"its value is {total}", where, expected=expected)

    def parts(self, where: str, parts: Iterable[Size], depth: int) -> Iterator[Problem]:
        if depth > MAX_DEPTH:
            yield Problem("depth", f"arithmetic is nested more than {MAX_DEPTH} deep", where)
            return
        for index, part in enumerate(parts):
            yield from self.size(f"{where}[{index}]", part, -MAX_BYTES, MAX_BYTES, depth + 1)

    # control flow

    def actions(
        self, where: str, actions: tuple[Action, ...], times: int, depth: int
    ) -> Iterator[Problem]:
        if depth > MAX_DEPTH:
            yield Problem(
                "depth", f"repeats and choices are nested more than {MAX_DEPTH} deep", where
            )
            return
        for index, action in enumerate(actions):
            at = f"{where}[{index}]"
            if isinstance(action, ExecKernel):
                yield from self.exec_kernel(at, action)
                continue
            if isinstance(action, CopyBuffer):
                yield from self.copy_buffer(at, action)
                continue
            if isinstance(action, ZeroBuffer):
                yield from self.buffer(at, action.buffer)
                continue
            if isinstance(action, Gemm | Conv2d):
                yield from self.operation(at, action)
                continue
            if isinstance(action, Candidates):
                yield from candidate_problems(at, action)
                for number, one in enumerate(action.alternatives):
                    yield from self.actions(f"{at}[{number}]", one, times, depth + 1)
                continue
            if isinstance(action, Choose):
                yield from self.choose(at, action, times, depth)
                continue
            smallest = 0
            if isinstance(action, RepeatWhile):
                smallest = 1
                yield from self.word(f"{at}.word", action.word)
            yield from self.size(f"{at}.times", action.times, smallest, MAX_LAUNCHES)
            yield from self.actions(f"{at}.actions", action.actions, times, depth + 1)

    def choose(self, where: str, action: Choose, times: int, depth: int) -> Iterator[Problem]:
        for index, size in enumerate(action.sizes):
            yield from self.size(f"{where}.sizes[{index}]", size, 0, MAX_BYTES)
        if not action.sizes or not action.cases:
            yield Problem("missing", "there is nothing to choose from", where)
        least = 0
        for index, case in enumerate(action.cases):
            at = f"{where}.cases[{index}]"
            yield from self.size(f"{at}.up_to", Absolute(case.up_to), least, MAX_BYTES)
            least = case.up_to + 1
            for name, size in case.padded.items():
                yield from self.buffer(f"{at}.padded.{name}", name)
                yield from self.size(f"{at}.padded.{name}", size, 0, MAX_BYTES)
                if name in self.body.weights:
                    message = f"'{name}' is constant, so it cannot be padded"
                    yield Problem("weight", message, f"{at}.padded.{name}")
            yield from self.actions(f"{at}.actions", case.actions, times, depth + 1)

    def exec_kernel(self, where: str, action: ExecKernel) -> Iterator[Problem]:
        kernel = self.kernels.get(action.kernel)
        if kernel is None:
            yield _unknown("kernel", action.kernel, self.kernels, f"{where}.kernel")
        else:
            known = self.signatures.get(kernel.name)
            yield from argument_problems(where, kernel, known, action.args)
        for index, argument in enumerate(action.args):
            yield from self.argument(f"{where}.args[{index}]", argument)
        yield from self.launch(f"{where}.launch", action.launch)

    def copy_buffer(self, where: str, action: CopyBuffer) -> Iterator[Problem]:
        yield from self.buffer(f"{where}.target", action.target)
        yield from self.buffer(f"{where}.source", action.source)
        if action.target == action.source:
            yield Problem("duplicate", f"'{action.target}' is copied to itself", where)

    def operation(self, where: str, action: Operation) -> Iterator[Problem]:
        for field, operand in operands(action):
            yield from self.buffer(f"{where}.{field}", operand.buffer)
        sound = True
        for field, size, smallest, largest in sizes(action):
            for problem in self.size(f"{where}.{field}", size, smallest, largest):
                sound = False
                yield problem
        yield from operation_problems(where, action, self.body.buffers, sound)

    def argument(self, where: str, argument: Argument) -> Iterator[Problem]:
        if isinstance(argument, Ptr):
            yield from self.buffer(where, argument.buffer)
            yield from self.size(f"{where}.offset", argument.offset, 0, MAX_BYTES)
        elif isinstance(argument, Raw):
            if not 0 < len(argument.data) <= _RAW_LIMIT_BYTES:
                found = f"{len(argument.data)} bytes"
                yield Problem("out-of-range", "too many bytes by value", where, found=found)
        elif isinstance(argument.value, int | float):
            if pack(argument, argument.value) is None:
                message = f"{argument.value} is not a valid {argument.dtype.value}"
                yield Problem("out-of-range", message, where)
        else:
            yield from self.size(where, argument.value, -MAX_BYTES, MAX_BYTES)

    def launch(self, where: str, launch: LaunchConfig) -> Iterator[Problem]:
        for name, size, smallest, largest in launch_numbers(launch):
            yield from self.size(f"{where}.{name}", size, smallest, largest)
        sizes = (launch.block_dim_x, launch.block_dim_y, launch.block_dim_z)
        block = [constant(size) for size in sizes]
        threads = 1
        for number in block:
            threads *= max(number or 1, 1)
        if threads > BLOCK_THREADS and all(n is None or n <= BLOCK_THREADS for n in block):
            message = f"a block of {threads} threads"
            yield Problem("out-of-range", message, where, expected=f"at most {BLOCK_THREADS}")


def _doubles(where: str, kind: str, names: Iterable[str]) -> Iterator[Problem]:
    for name, count in Counter(names).items():
        if count > 1:
            yield Problem("duplicate", f"{kind} '{name}' is given {count} times", where)


def _unknown(kind: str, name: str, known: Collection[str], where: str) -> Problem:
    close = nearest(name, known) or ""
    expected = "" if close or len(known) > 12 else " or ".join(sorted(known))
    return Problem(
        f"unknown-{kind}", f"no {kind} '{name}'", where, expected=expected, nearest=close
    )
