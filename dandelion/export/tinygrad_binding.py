"""tinygrad as a generator of code; only this file and `tinygrad_loading` use it.

Tensors of its device NULL describe a computation. Its scheduler divides that into kernels, and its
code generator optimises each by rules of thumb and renders C. Nothing runs, and no device is
opened. The names used here are not a stable interface, so one version is pinned.

Source: tinygrad 0.14, ``tinygrad/tensor.py`` (linear_with_vars), ``tinygrad/codegen/__init__.py``
(to_program), ``tinygrad/renderer/cstyle.py`` (CStyleLanguage).
"""

from __future__ import annotations

import contextlib
import importlib
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from dandelion.blueprint import Access
from dandelion.errors import InvalidFunction, Problem
from dandelion.export import dialect
from dandelion.export.aten import RULES, NotSupported, Rule, Step, Tensor
from dandelion.export.kernels import (
    Dimensions,
    KernelLaunch,
    Kernels,
    KernelSource,
    OperationLaunch,
    in_blocks,
)
from dandelion.export.launch_order import in_order
from dandelion.export.product_records import Product
from dandelion.export.stored_values import stored
from dandelion.export.tinygrad_loading import load as load_tinygrad
from dandelion.export.torch_graph import (
    GETITEM,
    Argument,
    DType,
    Graph,
    Node,
    Reference,
    TensorType,
)
from dandelion.progress import ShowProgress, no_progress

_DEVICE = "NULL"
_MEMORY = frozenset({"BUFFER", "PARAM"})
_CONTEXT = {
    "DEV": "NULL:OPENCL",
    "NO_MEMORY_PLANNER": 1,
    "DEBUG": 0,
    "BEAM": 0,
    "NOOPT": 0,
    "VIZ": 0,
    "PROFILE": 0,
    "SPEC": 0,
    "IMAGE": 0,
    "WINO": 0,
    "TRACEMETA": 0,
    "TRANSCENDENTAL": 1,
}
_HALVES = ("float16", "bfloat16")
_OTHER_FORM = "the same computation in another form, for example without masks that hide everything"


def kernels_of(
    graph: Graph,
    threads: bool = True,
    products: Mapping[str, Product] | None = None,
    show: ShowProgress = no_progress,
) -> Kernels:
    """Generate the kernels of a model.

    Args:
        graph: all of whose operators are in the table, or are library operations.
        products: the library operations, by the name of the node.
        threads: optimise for devices whose blocks have many threads; otherwise each block is one
            thread that computes more, which suits processors.
        show: is told how many kernels are generated.

    Raises:
        InvalidFunction: an operator is not supported with its arguments.
        BackendUnavailable: tinygrad is not installed.
    """
    tinygrad = load_tinygrad()
    with tinygrad.Context(**_CONTEXT, NOLOCALS=int(not threads)):
        copied: set[str] = set()
        while True:
            values = _Values(tinygrad, graph, products or {}, copied)
            outputs = values.outputs(copied)
            first, *rest = (tensor for tensor, _ in outputs.values())
            with _generating():
                made = first.linear_with_vars(*rest, *values.operands.values())[0]
            shared = values.shared(outputs)
            assert not shared & copied, shared
            if not shared:
                return _Reader(tinygrad, graph, values, outputs).kernels(made, show)
            copied |= shared


@contextlib.contextmanager
def _generating() -> Iterator[None]:
    """Report what the code generator raises: it is about this model, and not the user's call."""
    try:
        yield
    except Exception as error:
        message = f"tinygrad cannot generate its code: {type(error).__name__}: {error}"
        problem = Problem("code-generator", message[:500], "module", expected=_OTHER_FORM)
        raise InvalidFunction((problem,)) from error


class _Tensors:
    """Constructors for rules, see `dandelion.export.aten.Tensors`."""

    def __init__(self, tinygrad: Any) -> None:
        self.tinygrad = tinygrad

    def type(self, dtype: str) -> Any:
        return getattr(self.tinygrad.dtypes, dtype)

    def full(self, shape: Sequence[int], value: float, dtype: str) -> Tensor:
        return self.tinygrad.Tensor.full(tuple(shape), value, dtype=self.type(dtype), buffer=False)

    def arange(self, count: int, dtype: str) -> Tensor:
        return self.tinygrad.Tensor.arange(count, dtype=self.type(dtype))

    def cast(self, tensor: Tensor, dtype: str) -> Tensor:
        return tensor.cast(self.type(dtype))

    def bits(self, tensor: Tensor, dtype: str) -> Tensor:
        return tensor.bitcast(self.type(dtype))

    def cat(self, tensors: Sequence[Tensor], dimension: int) -> Tensor:
        return tensors[0].cat(*tensors[1:], dim=dimension) if len(tensors) > 1 else tensors[0]

    def store(self, tensor: Tensor) -> Tensor:
        return tensor.contiguous()


class _Values:
    """The values of a graph as tensors."""

    def __init__(
        self,
        tinygrad: Any,
        graph: Graph,
        products: Mapping[str, Product],
        copied: Collection[str],
    ) -> None:
        self.tensors = _Tensors(tinygrad)
        self.graph = graph
        self.products = products
        self.copied = copied
        self.results: dict[str, Tensor] = {}  # of library operations
        self.operands: dict[str, Tensor] = {}  # what they read, as it lies in memory
        self.given: dict[str, Tensor] = {}  # inputs and constants, as kernels read them
        self.values: dict[str, Any] = {}
        for name, found in graph.inputs.items():
            self.give(name, found)
        for name, constant in graph.constants.items():
            self.give(name, constant.type)
        self.nodes = {node.name: node for node in graph.nodes}
        self.kept = stored(graph)
        for node in graph.nodes:
            if node.name in products:
                self.values[node.name] = [self.result(node)]
                continue
            made = self.apply(node)
            if node.name in self.kept:
                made = [None if one is None else one.contiguous() for one in made]
            self.values[node.name] = made

    def give(self, name: str, found: TensorType) -> None:
        tinygrad = self.tensors.tinygrad
        dtype = self.tensors.type(_memory(found.dtype))
        tensor = tinygrad.Tensor.empty(*found.shape, dtype=dtype, device=_DEVICE)
        self.given[name] = tensor
        self.values[name] = [tensor != 0 if found.dtype == "bool" else tensor]

    def result(self, node: Node) -> Tensor:
        """Memory that a library operation will fill; what it reads must lie in memory."""
        for place in self.products[node.name].places:
            if place.value not in self.operands:
                self.operands[place.value] = self.operand(place.value)
        dtype = self.tensors.type(node.type.dtype)
        made = self.tensors.tinygrad.Tensor.empty(*node.type.shape, dtype=dtype, device=_DEVICE)
        self.results[node.name] = made
        return made

    def operand(self, name: str) -> Tensor:
        if name in self.results:
            return self.results[name]
        if name in self.given and _name(self.given[name]) == _name(self.values[name][0]):
            return self.given[name]
        tensor = self.values[name][0]
        node = self.nodes.get(name)
        source = node.arguments[0] if node is not None and node.operator == GETITEM else None
        stored = isinstance(source, Reference) and source.name in self.kept
        if f"operand {name}" in self.copied or _is_constant(tensor):
            return tensor.clone()
        return tensor if stored or name in self.kept else tensor.contiguous()

    def apply(self, node: Node) -> list[Tensor | None]:
        if node.operator == GETITEM:
            return [self.item(node)]
        rule = RULES[node.operator]
        step = Step(self.tensors, node)
        arguments = [self.value(a, node, rule) for a in node.arguments]
        keywords = {k: self.value(a, node, rule) for k, a in node.keywords.items()}
        try:
            made = rule.apply(step, *arguments, **keywords)
        except NotSupported as error:
            raise InvalidFunction((_problem(node, str(error)),)) from error
        except Exception as error:  # an argument that the rule or tinygrad does not know
            message = f"these arguments: {type(error).__name__}: {error}"
            raise InvalidFunction((_problem(node, message),)) from error
        results = list(made) if isinstance(made, list | tuple) else [made]
        return [self.checked(one, node, at) for at, one in enumerate(results)]

    def checked(self, tensor: Tensor | None, node: Node, at: int) -> Tensor | None:
        if tensor is None:
            return None
        wanted = node.results[at] if at < len(node.results) else None
        if wanted is None:
            return None
        if tuple(tensor.shape) != wanted.shape:
            message = f"these arguments: the result has shape {tuple(tensor.shape)}"
            raise InvalidFunction((_problem(node, f"{message}, not {wanted.shape}"),))
        return self.tensors.cast(tensor, wanted.dtype)

    def item(self, node: Node) -> Tensor:
        source, at = node.arguments
        assert isinstance(source, Reference)
        assert isinstance(at, int)
        found = self.values[source.name][at]
        if found is None:
            message = f"use of its result {at}"
            raise InvalidFunction((_problem(self.nodes[source.name], message),))
        return found

    def value(self, argument: Argument, node: Node, rule: Rule) -> Any:
        match argument:
            case Reference():
                tensor = self.values[argument.name][0]
                return self.promoted(tensor, node) if rule.promote else tensor
            case DType():
                return argument.name
            case tuple():
                return [self.value(one, node, rule) for one in argument]
        return argument

    def promoted(self, tensor: Tensor, node: Node) -> Tensor:
        """Convert an operand to the type that the operator computes in."""
        dtype = node.operand
        result = node.type.dtype
        if not dtype.startswith(("float", "bfloat")) and result.startswith(("float", "bfloat")):
            dtype = result
        return self.tensors.cast(tensor, "float32" if dtype in _HALVES else dtype)

    def outputs(self, copied: Collection[str]) -> dict[str, tuple[Tensor, TensorType]]:
        """The results; those of `copied` are copied to memory of their own."""
        made = {}
        for label, name in self.graph.outputs.items():
            tensor = self.values[name][0]
            kind = TensorType(tuple(tensor.shape), _name(tensor))
            tensor = self.tensors.cast(tensor, _memory(kind.dtype))
            is_copied = label in copied or _is_constant(tensor)
            made[label] = (tensor.clone() if is_copied else tensor.contiguous(), kind)
        return made

    def shared(self, outputs: Mapping[str, tuple[Tensor, TensorType]]) -> set[str]:
        """Results that have no memory of their own: views of inputs, or parts of other values."""
        taken = {tensor.uop.buf_uop for tensor in self.given.values()}
        found = set()
        for label, (tensor, kind) in outputs.items():
            buffer = tensor.uop.buf_uop
            if buffer in taken or buffer.max_numel() != kind.elements:
                found.add(label)
            taken.add(buffer)
        for name, tensor in self.operands.items():
            elements = math.prod(tensor.shape)
            if tensor.uop.buf_uop.max_numel() != elements:
                found.add(f"operand {name}")
        return found


def _is_constant(tensor: Tensor) -> bool:
    """Tell whether a value depends on nothing in memory: `contiguous` may then make no kernel."""
    return all(node.op.name not in _MEMORY for node in tensor.uop.toposort())


def _memory(dtype: str) -> str:
    """The type that kernels read and write; a boolean is a byte that is not 0."""
    return "uint8" if dtype == "bool" else dtype


def _name(tensor: Tensor) -> str:
    """torch's name of a tensor's element type."""
    name = str(tensor.dtype).removeprefix("dtypes.")
    short = {"float": "float32", "double": "float64", "half": "float16", "long": "int64"}
    more = {"int": "int32", "short": "int16", "char": "int8", "uchar": "uint8"}
    return {**short, **more}.get(name, name)


def _problem(node: Node, what: str) -> Problem:
    inside = f" in {node.part}" if node.part else ""
    message = f"operator {node.operator}{inside} is not supported with {what}"
    return Problem("unsupported-operator", message, node.place)


class _Reader:
    """Reads a schedule into records."""

    def __init__(
        self,
        tinygrad: Any,
        graph: Graph,
        values: _Values,
        outputs: Mapping[str, tuple[Tensor, TensorType]],
    ) -> None:
        self.graph = graph
        self.values = values
        self.names: dict[Any, str] = {}  # of buffers
        self.outputs = {name: kind for name, (_, kind) in outputs.items()}
        for name, tensor in values.given.items():
            self.names[tensor.uop.buf_uop] = name
        for name, (tensor, _) in outputs.items():
            self.names[tensor.uop.buf_uop] = name
        self.sizes: dict[str, int] = {n: t.size_bytes for n, t in self.outputs.items()}
        self.renderer = dialect.renderer(tinygrad)
        self.sources: dict[tuple[str, tuple[bool, ...]], KernelSource] = {}
        self.operations: list[OperationLaunch] = []
        self.written: list[set[str]] = []  # by each kernel

    def kernels(self, linear: Any, show: ShowProgress) -> Kernels:
        for name, tensor in self.values.results.items():
            self.buffer(tensor.uop.buf_uop)
            self.operations.append(self.operation(name))
        kernels = []
        for at, call in enumerate(linear.src):
            show(at, len(linear.src), "kernels")
            kernels.append(self.launch(call))
        launches = in_order(kernels, self.operations, self.written)
        written = {launch.buffers[0] for launch in launches}
        known = {*written, *self.values.graph.inputs, *self.graph.constants}
        read = {name for one in self.operations for name in one.of.values()}
        assert written >= self.outputs.keys(), self.outputs.keys() - written
        assert known >= read, read - known
        return Kernels(
            list(self.sources.values()),
            launches,
            self.sizes,
            self.values.graph.inputs,
            self.outputs,
        )

    def operation(self, name: str) -> OperationLaunch:
        product = self.values.products[name]
        result = self.buffer(self.values.results[name].uop.buf_uop)
        tensors = self.values.operands
        of = {p.value: self.buffer(tensors[p.value].uop.buf_uop) for p in product.places}
        return OperationLaunch(product, (result, *of.values()), of)

    def launch(self, call: Any) -> KernelLaunch:
        with _generating():
            generate = importlib.import_module("tinygrad.codegen").to_program
            program = generate(call.src[0], self.renderer)
        info = program.arg
        buffers = tuple(self.buffer(call.src[1 + slot].buf_uop) for slot in info.globals)
        outs, ins = set(info.outs), set(info.ins)
        access = tuple(
            Access.READ if slot not in outs else Access.BOTH if slot in ins else Access.WRITE
            for slot in info.globals
        )
        offset = tuple(name in self.graph.constants for name in buffers)
        text = program.src[2].arg
        kernel = self.source(text, access, offset)
        grid, block = _three(info.global_size), _three(info.local_size or (1, 1, 1))
        if block == (1, 1, 1) and "GROUP_ID" not in text:
            grid, block = in_blocks(grid)
        launch = KernelLaunch(kernel, buffers, grid, block)
        ways = zip(buffers, access, strict=True)
        self.written.append({name for name, way in ways if way is not Access.READ})
        return launch

    def buffer(self, buffer: Any) -> str:
        """Name of a buffer; new ones are temporary."""
        if buffer not in self.names:
            number = len(self.sizes) - len(self.outputs)
            name = f"t{number}"
            while name in self.names.values():
                name += "_"
            self.names[buffer] = name
            self.sizes[name] = int(buffer.max_numel()) * int(buffer.dtype.itemsize)
        return self.names[buffer]

    def source(self, text: str, access: tuple[Access, ...], offset: tuple[bool, ...]) -> str:
        """Add a kernel unless it is known; return its name."""
        key = (text, offset)
        if key not in self.sources:
            name = f"kernel_{len(self.sources)}"
            whole = dialect.finished(text, name, access, offset)
            self.sources[key] = KernelSource(name, whole, access, offset)
        return self.sources[key].name


def _three(sizes: Sequence[Any]) -> Dimensions:
    x, y, z = [int(size) for size in (*sizes, 1, 1, 1)[:3]]
    return x, y, z
