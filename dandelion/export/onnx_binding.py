"""Models in ONNX as PyTorch modules, and the only file that imports onnx and onnx2torch.

onnx2torch makes a module with a part for each node. torch.export cannot follow it where a shape is
computed as a tensor, as exporters of ONNX do all the time. So its operators are recorded while it
runs once, on example inputs: what depends on the inputs becomes a node, and everything else, all
shapes among it, is a constant. A number that depends on values of the inputs is refused.

Source: https://onnx.ai/onnx, onnx 1.19; https://github.com/ENOT-AutoDL/onnx2torch, 1.5.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dandelion.data import SetSpec
from dandelion.errors import BackendUnavailable, InvalidFunction, InvalidInput, Problem
from dandelion.export.torch_binding import example_tensors, load
from dandelion.export.torch_problems import quiet

_VALUES = ("aten._local_scalar_dense.default", "aten.nonzero.default", "aten.is_nonzero.default")


def onnx_module(
    path: Path, inputs: Sequence[SetSpec] = ()
) -> tuple[object, tuple[object, ...], tuple[str, ...], tuple[str, ...]]:
    """Read a model.

    Args:
        path: of a file in ONNX.
        inputs: types of its inputs with fixed shapes; by default those in the file.

    Returns:
        A `torch.nn.Module`, example inputs, and names of the inputs and the outputs.

    Raises:
        InvalidInput: the file is no model, or shapes of its inputs are not fixed.
        InvalidFunction: an operator is not supported, or control flow depends on values.
        BackendUnavailable: onnx or onnx2torch is not installed.
    """
    onnx, onnx2torch, torch = _load("onnx"), _load("onnx2torch"), load()
    try:
        model = onnx.load(str(path))
        onnx.checker.check_model(model)
    except Exception as error:  # protobuf and onnx have no common class of errors
        message = f"it cannot be read as ONNX: {_first_line(error)}"
        raise InvalidInput(str(path), message) from error
    constants = {constant.name for constant in model.graph.initializer}
    given = [value for value in model.graph.input if value.name not in constants]
    specs = tuple(inputs) or tuple(_spec(onnx, path, value) for value in given)
    if len(specs) != len(given):
        message = f"the model has {len(given)} inputs, and {len(specs)} types are given"
        raise InvalidInput("--inputs", message)
    examples = example_tensors(specs)
    try:
        module = onnx2torch.convert(model).eval()
    except NotImplementedError as error:
        problem = Problem("unsupported-operator", _first_line(error), str(path))
        raise InvalidFunction((problem,)) from error
    recorded = _recorded(torch, module, examples, str(path))
    names = tuple(_identifier(value.name) for value in given)
    outputs = tuple(_identifier(value.name) for value in model.graph.output)
    return recorded, examples, names, outputs


def _load(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        remedy = "pip install 'dandelion-engine[onnx]'"
        raise BackendUnavailable(name, str(error), remedy) from error


def _spec(onnx: Any, path: Path, value: Any) -> SetSpec:
    """The declared type of an input."""
    tensor = value.type.tensor_type
    dtype = str(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    shape = tuple(size.dim_value for size in tensor.shape.dim)
    if any(size < 1 for size in shape):
        shown = [size.dim_param or size.dim_value or "?" for size in tensor.shape.dim]
        message = f"input '{value.name}' has the shape {shown}"
        raise InvalidInput(str(path), message, "give --inputs with fixed shapes")
    return SetSpec(_identifier(value.name), dtype, shape)


def _identifier(name: str) -> str:
    made = "".join(letter if letter.isalnum() else "_" for letter in name)
    return made if made[:1].isalpha() else f"x{made}"


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0][:500]


def _recorded(torch: Any, module: Any, examples: tuple[object, ...], path: str) -> object:
    """Run a module once, and record the operators that depend on its inputs."""
    mode_of = importlib.import_module("torch.utils._python_dispatch").TorchDispatchMode
    recorder = _Recorder(torch, path)
    inputs = [recorder.placeholder(one) for one in examples]

    def dispatch(
        _: object, function: Any, types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        return recorder.call(function, args, dict(kwargs or {}))

    mode = type("Recording", (mode_of,), {"__torch_dispatch__": dispatch})

    def run_node(interpreter: object, node: Any) -> Any:
        return recorder.run_node(interpreter, node)

    interpreter = type("Named", (torch.fx.Interpreter,), {"run_node": run_node})
    with quiet(), torch.no_grad(), mode():
        try:
            results = interpreter(module).run(*inputs)
        except InvalidFunction:
            raise
        except Exception as error:  # whatever a part of the module raises
            problem = Problem("onnx", f"{recorder.part}: {_first_line(error)}", path)
            raise InvalidFunction((problem,)) from error
    return recorder.module(results)


class _Recorder:
    """Builds a graph of ATen operators.

    Attributes:
        part: the node of the model that runs.
    """

    def __init__(self, torch: Any, path: str) -> None:
        self.part = ""
        self._torch = torch
        self._path = path
        self._graph = torch.fx.Graph()
        self._root = torch.nn.Module()
        self._nodes: dict[int, Any] = {}  # of tensors that depend on inputs, by their id
        self._constants: dict[int, Any] = {}
        self._kept: list[Any] = []  # so that no id is used again

    def placeholder(self, example: object) -> object:
        """Add an input."""
        self._enter(example, self._graph.placeholder(f"input_{len(self._kept)}"))
        return example

    def run_node(self, interpreter: Any, node: Any) -> Any:
        """Run a node of the model."""
        self.part = str(node.target if node.op == "call_module" else node.name)
        return self._torch.fx.Interpreter.run_node(interpreter, node)

    def call(self, function: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """Run an operator, and record it if it depends on an input."""
        leaves = self._torch.utils._pytree.tree_leaves((args, kwargs))
        depends = any(id(leaf) in self._nodes for leaf in leaves)
        if depends and str(function) in _VALUES:
            message = f"{self.part}: a number or a shape depends on values of the inputs"
            raise InvalidFunction((Problem("dynamic-value", message, self._path),))
        result = function(*args, **kwargs)
        if depends:
            node = self._graph.call_function(function, self._lifted(args), self._lifted(kwargs))
            self._result(result, node)
        return result

    def _result(self, result: Any, node: Any) -> None:
        if isinstance(result, list | tuple):
            getitem = importlib.import_module("operator").getitem
            for at, one in enumerate(result):
                self._enter(one, self._graph.call_function(getitem, (node, at)))
        else:
            self._enter(result, node)

    def _enter(self, tensor: object, node: Any) -> None:
        self._kept.append(tensor)
        self._nodes[id(tensor)] = node

    def _lifted(self, values: Any) -> Any:
        """Replace tensors by nodes; what does not depend on inputs becomes a constant."""

        def one(value: Any) -> Any:
            if not isinstance(value, self._torch.Tensor):
                return value
            if id(value) in self._nodes:
                return self._nodes[id(value)]
            if id(value) not in self._constants:
                name = f"constant_{len(self._constants)}"
                self._root.register_buffer(name, value.detach().clone())
                self._kept.append(value)
                self._constants[id(value)] = self._graph.get_attr(name)
            return self._constants[id(value)]

        return self._torch.utils._pytree.tree_map(one, values)

    def module(self, results: Any) -> object:
        """Finish the graph."""
        self._graph.output(self._lifted(results))
        made = self._torch.fx.GraphModule(self._root, self._graph)
        made.graph.eliminate_dead_code()
        made.recompile()
        return made.eval()
