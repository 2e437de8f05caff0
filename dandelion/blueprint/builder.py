"""Building blueprints in Python: the same records as those of the JSON.

::

    bp = Blueprint(inputs=["cfg", "A"], modules=["matmul.cl"])
    B = bp.buffer("B", like="A")
    bp.launch("matmul", [bp.A, sizeof(bp.A), B], grid=(bp.cfg[0], bp.cfg[0]), block=(32, 32))
    bp.build()
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import SupportsIndex, TypeAlias

from dandelion.blueprint.builder_groups import Alternatives, Choice, collected
from dandelion.blueprint.builder_operations import OperationBuilder
from dandelion.blueprint.builder_sizes import Buffer as Buffer
from dandelion.blueprint.builder_sizes import Expression as Expression
from dandelion.blueprint.builder_sizes import SizeLike as SizeLike
from dandelion.blueprint.builder_sizes import by_batch as by_batch
from dandelion.blueprint.builder_sizes import ceil_div as ceil_div
from dandelion.blueprint.builder_sizes import scalar as scalar
from dandelion.blueprint.builder_sizes import size_of as size_of
from dandelion.blueprint.builder_sizes import sizeof as sizeof
from dandelion.blueprint.check import check_blueprint
from dandelion.blueprint.html import blueprint_element
from dandelion.blueprint.operation_records import BufferPart
from dandelion.blueprint.printing import Spelling, print_blueprint
from dandelion.blueprint.records import (
    Absolute,
    Access,
    Action,
    Argument,
    Candidates,
    Choose,
    Code,
    CopyBuffer,
    ExecKernel,
    ExecutionBlueprint,
    GpuConfig,
    Kernel,
    LaunchConfig,
    Module,
    Ptr,
    Raw,
    Repeat,
    RepeatWhile,
    Scalar,
    ScalarType,
    Size,
    Sizeof,
    ZeroBuffer,
)
from dandelion.errors import InvalidBlueprint, InvalidInput, nearest
from dandelion.function import as_tuple
from dandelion.markup import page

ArgumentLike: TypeAlias = Buffer | BufferPart | Expression | int | Ptr | Scalar | Raw
CodeLike: TypeAlias = Code | str


class Blueprint(OperationBuilder):
    """Collects buffers and launches; `build` returns the records, `json` the text.

    Buffers are attributes (``bp.A``), or items (``bp["A"]``) where a method has that name.

    Args:
        inputs: names of the buffers that are copied in.
        weights: names of constant inputs.
        outputs: names of the buffers that are copied out; by default all that `buffer` adds and
            that are not temporary.
        modules: files with kernels: paths, or alternatives for several backends by module name.
        batch: the factor of `by_batch`.
    """

    def __init__(
        self,
        inputs: Iterable[str],
        *,
        weights: Iterable[str] = (),
        outputs: Iterable[str] | None = None,
        modules: Iterable[str] | Mapping[str, CodeLike | Sequence[CodeLike]] = (),
        batch: SizeLike = 1,
    ) -> None:
        self._inputs = as_tuple(inputs)
        self._weights = as_tuple(weights)
        self._outputs = None if outputs is None else as_tuple(outputs)
        self._modules = _modules(modules)
        self._batch = size_of(batch)
        self._buffers: dict[str, Size] = {}
        self._temporary: set[str] = set()
        self._present_if: dict[str, str] = {}
        self._kernels: dict[str, Kernel] = {}
        self._levels: list[list[Action]] = [[]]

    def __getitem__(self, name: str) -> Buffer:
        known = (*self._inputs, *self._weights, *self._buffers)
        if name not in known:
            close = nearest(name, known)
            hint = f"did you mean '{close}'?" if close else f"use one of {', '.join(known)}"
            raise InvalidInput("blueprint", f"no buffer '{name}'", hint)
        return Buffer(name)

    def __getattr__(self, name: str) -> Buffer:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self[name]
        except InvalidInput as error:
            raise AttributeError(str(error)) from None

    def buffer(
        self,
        name: str,
        size: SizeLike | None = None,
        *,
        like: Buffer | str | None = None,
        temporary: bool = False,
    ) -> Buffer:
        """Add a buffer that is zeroed at the start of a call.

        Args:
            name: its name, and that of the output set if it is an output.
            size: in bytes.
            like: a buffer of the same size; give this or `size`.
            temporary: it is not an output by default.
        """
        if isinstance(size, Buffer):
            hint = f"write like=b.{size.name} for its size, or sizeof(b.{size.name})"
            raise InvalidInput(f"buffer {name}", "'size' is a buffer", hint)
        if (size is None) == (like is None):
            raise InvalidInput(f"buffer {name}", "give exactly one of 'size' and 'like'")
        if like is not None:
            self._buffers[name] = Sizeof(like if isinstance(like, str) else like.name)
        elif size is not None:
            self._buffers[name] = size_of(size)
        if temporary:
            self._temporary.add(name)
        return Buffer(name)

    def kernel(
        self, name: str, *, module: str = "", symbol: str = "", access: Iterable[str] = ()
    ) -> None:
        """Declare a kernel: its module, and its access to its parameters.

        Args:
            name: the name for `launch`.
            module: name of its module; the only one by default.
            symbol: its name in the module, if different.
            access: ``read``, ``write`` (writes all, never reads earlier content), ``both`` or
                ``value`` for each parameter.
        """
        ways = tuple(Access(a) for a in access)
        self._kernels[name] = Kernel(name, module or self._only_module(name), symbol, ways)

    def launch(
        self,
        kernel: str,
        args: Sequence[ArgumentLike],
        *,
        grid: Sequence[SizeLike] | SizeLike = 1,
        block: Sequence[SizeLike] | SizeLike = 1,
        shared_mem_bytes: SizeLike = 0,
    ) -> None:
        """Launch a kernel.

        Args:
            kernel: its name; a kernel that was not declared is in the only module.
            args: buffers (pointers), ``sizeof(...)`` (u64), other sizes and ints (i64), or
                `part` (a place in a buffer), `scalar` and `Raw`.
            grid: blocks in up to three dimensions.
            block: threads of a block in up to three dimensions.
            shared_mem_bytes: dynamic local memory.
        """
        if kernel not in self._kernels:
            self.kernel(kernel)
        config = LaunchConfig(
            *_three("grid", grid), *_three("block", block), size_of(shared_mem_bytes)
        )
        try:
            given = tuple(_argument(a) for a in args)
        except InvalidInput as error:
            raise InvalidInput(f"kernel {kernel}", error.message, error.hint) from None
        self._levels[-1].append(ExecKernel(kernel, given, config))

    def _add(self, action: Action) -> None:
        self._levels[-1].append(action)

    def copy(self, target: Buffer, source: Buffer) -> None:
        """Copy a buffer to another one of the same size."""
        self._levels[-1].append(CopyBuffer(target.name, source.name))

    def zero(self, buffer: Buffer) -> None:
        """Zero a buffer; all that `buffer` adds begin with zeros anyway."""
        self._levels[-1].append(ZeroBuffer(buffer.name))

    @contextlib.contextmanager
    def repeat(self, times: SizeLike) -> Iterator[None]:
        """Repeat the launches inside the ``with`` block."""
        with collected(self._levels) as actions:
            yield
        self._add(Repeat(size_of(times), tuple(actions)))

    @contextlib.contextmanager
    def repeat_while(self, word: Buffer, *, at_most: SizeLike) -> Iterator[None]:
        """Repeat the launches inside the ``with`` block while a word is not zero.

        Args:
            word: a buffer that begins with the word, an unsigned number of 32 bits. It is looked
                at after each iteration.
            at_most: the largest number of iterations.
        """
        with collected(self._levels) as actions:
            yield
        self._add(RepeatWhile(size_of(at_most), word.name, tuple(actions)))

    def present_if(self, output: Buffer, word: Buffer) -> None:
        """Leave an output out if a word is zero at the end of the call.

        Args:
            output: which; the set is empty then.
            word: a buffer that begins with the word, an unsigned number of 32 bits.
        """
        self._present_if[output.name] = word.name

    @contextlib.contextmanager
    def candidates(self) -> Iterator[Alternatives]:
        """Run one of several groups of launches that do the same, the one measured fastest.

        Each group is given by `Alternatives.alternative`, the one to run without a measurement
        first.
        """
        made = Alternatives(self._levels)
        yield made
        self._add(Candidates(tuple(made.groups)))

    @contextlib.contextmanager
    def choose(self, *sizes: SizeLike) -> Iterator[Choice]:
        """Run the launches of one of several cases; see `Choice.case`.

        Args:
            sizes: by which the case is chosen; if there are several, they must be equal.
        """
        choice = Choice(self._levels)
        yield choice
        self._add(Choose(tuple(map(size_of, sizes)), tuple(choice.cases)))

    def build(self) -> GpuConfig:
        """Return the records.

        Raises:
            InvalidBlueprint: with all problems at once.
        """
        outputs = self._outputs
        if outputs is None:
            outputs = tuple(n for n in self._buffers if n not in self._temporary)
        body = ExecutionBlueprint(
            self._inputs,
            self._weights,
            dict(self._buffers),
            outputs,
            tuple(self._levels[0]),
            self._batch,
            dict(self._present_if),
        )
        config = GpuConfig(self._modules, tuple(self._kernels.values()), body)
        problems = check_blueprint(config)
        if problems:
            raise InvalidBlueprint(tuple(problems))
        return config

    def _repr_html_(self) -> str:
        return page(blueprint_element(self.build()))

    def json(self, spelling: Spelling = Spelling.CANONICAL) -> str:
        """Return the text of the blueprint; see `build` and `print_blueprint`."""
        return print_blueprint(self.build(), spelling)

    def _only_module(self, kernel: str) -> str:
        if len(self._modules) != 1:
            names = ", ".join(m.name for m in self._modules)
            raise InvalidInput(
                f"kernel {kernel}",
                "its module is ambiguous" if names else "the blueprint has no module",
                f"name one of: {names}" if names else 'give Blueprint(..., modules=["kernels.c"])',
            )
        return self._modules[0].name


def _modules(
    given: Iterable[str] | Mapping[str, CodeLike | Sequence[CodeLike]],
) -> tuple[Module, ...]:
    if not isinstance(given, Mapping):
        return tuple(Module(path, (Code(path),)) for path in as_tuple(given))
    return tuple(Module(name, _codes(codes)) for name, codes in given.items())


def _codes(given: CodeLike | Sequence[CodeLike]) -> tuple[Code, ...]:
    codes = [given] if isinstance(given, Code | str) else given
    return tuple(Code(c) if isinstance(c, str) else c for c in codes)


def _three(what: str, given: Sequence[SizeLike] | SizeLike) -> tuple[Size, Size, Size]:
    if isinstance(given, Buffer):
        size_of(given)  # says that it is none
    values = list(given) if isinstance(given, Iterable) else [given]
    if not 1 <= len(values) <= 3:
        raise InvalidInput(what, f"{len(values)} dimensions instead of one to three")
    x, y, z = [size_of(v) for v in (*values, 1, 1)[:3]]
    return x, y, z


def _argument(given: ArgumentLike) -> Argument:
    if isinstance(given, Buffer):
        return Ptr(given.name)
    if isinstance(given, BufferPart):
        return Ptr(given.buffer, given.offset)
    if isinstance(given, Expression):
        size = given.size
        if isinstance(size, Absolute):
            return Scalar(ScalarType.I64, size.value)
        return Scalar(ScalarType.U64 if isinstance(size, Sizeof) else ScalarType.I64, size)
    if isinstance(given, Ptr | Scalar | Raw):
        return given
    if isinstance(given, SupportsIndex):
        return Scalar(ScalarType.I64, operator.index(given))
    hint = "give buffers, integers, sizes, scalar('f32', 0.5) or Raw(bytes)"
    if callable(given):
        hint = "the builder has a method of this name: write b['name'] for the buffer"
    raise InvalidInput(
        "argument", f"{given!r:.60} ({type(given).__name__}) is no argument of a kernel", hint
    )
