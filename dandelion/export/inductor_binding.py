"""Inductor, torch's compiler, as a maker of Triton kernels.

Inductor lowers a graph to loops, fuses them, and writes a kernel in Triton's language for each
group. Then it describes the program that would call them: a list of "lines", such as an allocation
or a call. This file takes these lines instead of the program. Memory is not reused and nothing is
changed in place, so each buffer is written by the calls that make it, and only read after.

Source: torch 2.11, ``torch/_inductor/graph.py`` and ``codegen/wrapper.py``; private names, so one
version is supported.
"""

from __future__ import annotations

import ast
import importlib
import math
import warnings
from collections.abc import Sequence
from typing import Any
from unittest import mock

from dandelion.errors import BackendUnavailable, DandelionError, InvalidFunction, Problem
from dandelion.export import torch_binding
from dandelion.export.faked_device import faked
from dandelion.export.fx_graph import TracedGraph, product_operator, traced
from dandelion.export.peak_records import FusedCall, FusedGraph, Place, ProductCall
from dandelion.export.targets import Target
from dandelion.export.torch_graph import Graph

VERSION = "2.11"
"""The only version: what Inductor describes, and how, differs between versions."""

_CONFIG = {
    "allow_buffer_reuse": False,
    "inplace_buffers": False,
    "assert_indirect_indexing": False,
    "size_asserts": False,
    "nan_asserts": False,
    "fx_graph_cache": False,
    "autotune_local_cache": False,
    "compile_threads": 1,
    "layout_optimization": False,
    "comprehensive_padding": False,
    "keep_output_stride": False,
    "triton.unique_kernel_names": True,
    "triton.autotune_pointwise": True,
    "triton.cooperative_reductions": False,
    "triton.enable_pdl": False,
    "max_autotune": False,
}
_IGNORED = frozenset(
    {
        "str",
        "NullLine",
        "CommentLine",
        "FreeLine",
        "FreeIfNotReusedLine",
        "EnterDeviceContextManagerLine",
    }
    | {
        "UnbackedSymbolDefsLine",
        "ExitDeviceContextManagerLine",
        "EnterSubgraphLine",
        "ExitSubgraphLine",
        "LineContext",
    }
)
_NOWHERE = Place("")


def load() -> Any:
    """Import torch with Inductor.

    Raises:
        BackendUnavailable: it is not installed, or in another version.
    """
    torch = torch_binding.load()
    found = str(torch.__version__)
    if not found.startswith(f"{VERSION}."):
        missing = f"version {found} is installed; the route 'peak' needs version {VERSION}"
        raise BackendUnavailable("torch", missing, f"pip install 'torch=={VERSION}.*'")
    for name in ("graph", "debug", "decomposition", "config", "codegen.wrapper", "virtualized"):
        importlib.import_module(f"torch._inductor.{name}")
    importlib.import_module("torch.fx.experimental.proxy_tensor")
    return torch


def fused(graph: Graph, target: Target) -> FusedGraph:
    """Let Inductor make kernels.

    Args:
        graph: see `dandelion.export.peak_graph`.
        target: the architecture that the kernels are for.

    Raises:
        InvalidFunction: an operator has no kernel, with its line; or Inductor fails.
        BackendUnavailable: torch is not installed, or in another version.
    """
    torch = load()
    inductor = torch._inductor
    with warnings.catch_warnings(), inductor.config.patch(_CONFIG), faked(torch, target) as device:
        warnings.simplefilter("ignore")
        try:
            given = traced(torch, graph, device)
            return _fused(torch, given, graph)
        except DandelionError:
            raise
        except Exception as error:  # the compiler raises errors of every class
            message = f"{type(error).__name__}: {str(error).strip()[:500]}"
            problem = Problem("inductor", message, "module", expected="what Inductor compiles")
            raise InvalidFunction((problem,)) from error


def _fused(torch: Any, given: TracedGraph, graph: Graph) -> FusedGraph:
    inductor = torch._inductor
    recorder = _recorder(inductor)
    lowering = inductor.graph.GraphLowering(
        given.module, example_inputs=given.examples, is_inference=True, fx_wrapper=True
    )
    virtual = inductor.virtualized.V
    fake = torch._subclasses.FakeTensorMode()
    choose = mock.patch.object(
        inductor.graph, "get_wrapper_codegen_for_device", return_value=recorder
    )
    debug = inductor.debug.DebugContext()
    with choose, virtual.set_graph_handler(lowering), virtual.set_fake_mode(fake), debug:
        try:
            lowering.run(*given.examples)
            lowering.codegen()
        except Exception as error:  # the compiler raises errors of every class
            raise _failed(lowering, error) from error
        reader = _Lines(torch, lowering, given)
        return reader.read(recorder.lines_of, list(graph.outputs))


def _failed(lowering: Any, error: Exception) -> InvalidFunction:
    """The compiler's failure, with the line of the operator that it was at."""
    node = getattr(lowering, "current_node", None)
    place, _, operator = str(node.meta.get("stack_trace") or "" if node else "").partition("\n")
    message = f"Inductor cannot compile {operator or 'it'}: {type(error).__name__}"
    found = str(error).strip().partition("\n")[0][:300]
    return InvalidFunction((Problem("inductor", message, place or "module", found=found),))


def _recorder(inductor: Any) -> Any:
    """A class for Inductor that keeps the lines of the program, and writes no program."""
    wrapper = inductor.codegen.wrapper.PythonWrapperCodegen

    class Recorder(wrapper):  # type: ignore[misc, valid-type]  # a class of torch
        supports_caching = False
        lines_of: Sequence[Any] = ()

        @staticmethod
        def create(*_: Any) -> Any:
            return Recorder()

        def write_header(self) -> None:
            """There is no program."""

        def _generate(self, is_inference: bool) -> tuple[None, None]:
            self.run_wrapper_ir_passes(is_inference)
            Recorder.lines_of = list(self.lines)
            return None, None

    return Recorder


class _Lines:
    """Reads the lines of a program."""

    def __init__(self, torch: Any, lowering: Any, given: TracedGraph) -> None:
        self.torch, self.lowering = torch, lowering
        self.operator = product_operator(torch)
        self.places: dict[str, Place] = {}
        self.sources: dict[str, str] = {}
        self.buffers: dict[str, int] = {}
        self.calls: list[FusedCall | ProductCall] = []
        self.problems: list[Problem] = []
        self.pending: dict[str, tuple[str, tuple[Place, ...]]] = {}
        placeholders = [n.name for n in given.module.graph.nodes if n.op == "placeholder"]
        for name, value in zip(placeholders, given.given, strict=True):
            self.places[name] = Place(value)

    def read(self, lines: Sequence[Any], outputs: Sequence[str]) -> FusedGraph:
        constants = {}
        for name, value in self.lowering.constants.items():
            constants[name] = torch_binding.constant_of(value)
            self.places[name] = Place(name)
        for line in lines:
            self.line(line)
        if self.problems:
            raise InvalidFunction(tuple(dict.fromkeys(self.problems)))
        found = [self.place(node) for node in self.lowering.graph_outputs]
        return FusedGraph(
            self.sources,
            self.calls,
            self.buffers,
            constants,
            dict(zip(outputs, found, strict=True)),
        )

    def line(self, line: Any) -> None:
        match type(line).__name__:
            case "KernelDefinitionLine":
                self.sources[line.kernel_name] = _source(line.kernel_body)
            case "AllocateLine":
                self.allocate(line.node)
            case "ReinterpretLine":
                at = self.found(line.node.get_name())
                view = line.layout.view if hasattr(line.layout, "view") else None
                layout = line.layout if view is None else view.get_layout()
                self.places[line.reused_as.get_name()] = _moved(at, layout)
            case "KernelCallLine":
                self.kernel(line)
            case "ExternKernelAllocLine" | "ExternKernelOutLine":
                self.operation(line.node)
            case "MultiOutputLine":
                self.result(line)
            case name if name not in _IGNORED:
                self.refuse(
                    getattr(line, "node", None), f"it needs '{name}' of Inductor's programs"
                )

    def result(self, line: Any) -> None:
        """What an operation writes; those that were refused have no place."""
        if line.arg_name not in self.pending:
            return
        product, reads = self.pending.pop(line.arg_name)
        self.allocate(self.lowering.name_to_buffer[line.result_name])
        self.calls.append(ProductCall(product, reads, line.result_name))

    def found(self, name: str) -> Place:
        """The place of a value; none if its operator was refused."""
        return self.places.get(name, _NOWHERE) if self.problems else self.places[name]

    def allocate(self, node: Any) -> None:
        name = node.get_name()
        self.buffers[name] = _size_bytes(node)
        self.places[name] = Place(name)

    def kernel(self, line: Any) -> None:
        if not line.triton:
            self.refuse(None, f"kernel {line.kernel_name} is not one of Triton")
            return
        names = list(line.triton_meta["signature"])
        arguments: dict[str, Place | int] = {}
        for name, given in zip(names, line.call_args, strict=False):
            arguments[name] = self.found(given) if isinstance(given, str) else int(given)
        self.calls.append(FusedCall(line.kernel_name, arguments))

    def operation(self, node: Any) -> None:
        if getattr(node, "op_overload", None) is not self.operator:
            self.refuse(node, "it has no kernel in Triton")
            return
        name = next(one for one in node.constant_args if isinstance(one, str))
        self.pending[node.get_name()] = name, tuple(self.place(one) for one in node.inputs)

    def place(self, node: Any) -> Place:
        """Where a value lies that the program reads."""
        while hasattr(node, "data") and type(node).__name__ in ("TensorBox", "StorageBox"):
            node = node.data
        at = self.found(node.get_name())
        if type(node).__name__ == "ReinterpretView":
            at = _moved(at, node.layout)
        return at

    def refuse(self, node: Any, message: str) -> None:
        traces = [one.meta.get("stack_trace", "") for one in (getattr(node, "origins", None) or ())]
        place, _, operator = next((t for t in traces if t), "module").partition("\n")
        named = operator or str(getattr(node, "op_overload", None) or type(node).__name__)
        self.problems.append(
            Problem("unsupported-operator", f"operator {named} is not supported: {message}", place)
        )


def _source(body: str) -> str:
    """The text of a kernel, which Inductor's program has as a string."""
    called = ast.parse(body.strip()).body[0]
    assert isinstance(called, ast.Expr)
    assert isinstance(called.value, ast.Call)
    text = ast.literal_eval(called.value.args[1])
    assert isinstance(text, str)
    return text


def _moved(place: Place, layout: Any) -> Place:
    offset = place.offset_bytes + int(layout.offset) * layout.dtype.itemsize
    return Place(place.buffer, offset)


def _size_bytes(node: Any) -> int:
    """Bytes from the first to the last element."""
    sizes, strides = [int(s) for s in node.get_size()], None
    if hasattr(node, "get_stride"):
        strides = [int(s) for s in node.get_stride()]
    if 0 in sizes:
        return 0
    elements = (
        math.prod(sizes)
        if strides is None
        else 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    )
    return int(elements * node.get_dtype().itemsize)
