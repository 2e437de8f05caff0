"""PyTorch's exporter; `load` here is the only place that imports torch.

`torch.export` follows one call of a module and gives a graph of ATen operators without Python. Its
own decompositions then replace composite operators by about two hundred. Attention is kept whole,
since the decomposition for processors is a library call.

Source: https://docs.pytorch.org/docs/stable/export.html, torch 2.13.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from dandelion.arrays import Array, declared_dtype
from dandelion.data import SetSpec
from dandelion.errors import BackendUnavailable, InvalidFunction, InvalidInput, Problem
from dandelion.errors.misfits import named_type
from dandelion.export.torch_graph import (
    GETITEM,
    ITEM_BYTES,
    Argument,
    Constant,
    DType,
    Graph,
    Node,
    Reference,
    TensorType,
)
from dandelion.export.torch_problems import (
    assigned,
    check_mode,
    failure,
    line_of,
    quiet,
    refused,
)

_WHOLE = "aten.scaled_dot_product_attention.default"
_IGNORED = frozenset({"device", "layout", "pin_memory", "memory_format", "non_blocking"})


def load() -> Any:
    """Import torch.

    Raises:
        BackendUnavailable: it is not installed.
    """
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        remedy = "pip install 'dandelion-engine[export]'"
        raise BackendUnavailable("torch", str(error), remedy) from error


def graph_of(
    module: object,
    examples: Sequence[object],
    outputs: Sequence[str] | None = None,
    inputs: Sequence[str] | None = None,
) -> Graph:
    """Follow one call of a module.

    Args:
        module: a `torch.nn.Module` in evaluation mode, or a program of `torch.export`.
        examples: arguments of the call; tensors, or nested lists and dicts of them.
        outputs: names of the tensors that the call returns, in order.
        inputs: names of the tensors among the arguments, in order.

    Raises:
        InvalidInput: it is not a module, is in training mode, or the names do not fit.
        InvalidFunction: torch cannot follow the call, or it does what a function cannot do.
        BackendUnavailable: torch is not installed.
    """
    torch = load()
    program = _program(torch, module, tuple(examples))
    with quiet():  # torch warns of its own deprecated calls
        program = program.run_decompositions(dict(_decompositions()))
    problems = list(refused(torch, program))
    if problems:
        raise InvalidFunction(tuple(problems))
    return _Reader(torch, program, inputs).graph(outputs)


@functools.cache
def _decompositions() -> Mapping[Any, Any]:
    """torch's own table, without the operators that rules take whole; to make it takes a second."""
    table = load().export.default_decompositions()
    return {operator: how for operator, how in table.items() if str(operator) != _WHOLE}


def _program(torch: Any, module: object, examples: tuple[object, ...]) -> Any:
    if isinstance(module, torch.export.ExportedProgram):
        return module
    if not isinstance(module, torch.nn.Module):
        message = f"{named_type(module)} is not a torch.nn.Module"
        raise InvalidInput("module", message, "pass a module or a torch.export.ExportedProgram")
    check_mode(module)
    # torch takes arguments that are one object, or a tensor of the module, for the same value.
    examples = torch.utils._pytree.tree_map_only(torch.Tensor, _copied, examples)
    with quiet() as caught, torch.no_grad():
        try:
            program = torch.export.export(module, examples)
        except Exception as error:  # whatever the module or torch raises is about this module
            raise InvalidFunction((failure(torch, module, error),)) from error
    lost = tuple(assigned(module, caught))
    if lost:
        raise InvalidFunction(lost)
    return program


def _copied(tensor: Any) -> Any:
    return tensor.detach().clone()


class _Reader:
    """Reads a program's graph into records."""

    def __init__(self, torch: Any, program: Any, inputs: Sequence[str] | None) -> None:
        self.torch = torch
        self.program = program
        self.renamed = self.labelled(inputs)
        self.kinds = torch.export.graph_signature.InputKind
        self.problems: list[Problem] = []
        self.values: dict[str, Argument] = {}  # placeholders that are plain numbers

    def labelled(self, labels: Sequence[str] | None) -> dict[str, str]:
        """New names, by those that torch gave: of the inputs, and of what has one of these."""
        if labels is None:
            return {}
        kind = self.torch.export.graph_signature.InputKind.USER_INPUT
        nodes = {n.name: n for n in self.program.graph.nodes}
        found = [s.arg.name for s in self.program.graph_signature.input_specs if s.kind == kind]
        tensors = [n for n in found if isinstance(nodes[n].meta.get("val"), self.torch.Tensor)]
        if len(labels) != len(tensors) or len(set(labels)) != len(labels):
            message = f"the call has {len(tensors)} tensors, and the names are {list(labels)}"
            raise InvalidInput("inputs", message, "give each a name of its own")
        taken = {*nodes, *labels}
        renamed = {}
        for label in labels:
            if label in nodes and label not in tensors:
                free = (name for n in itertools.count() if (name := f"{label}_{n}") not in taken)
                renamed[label] = next(free)
                taken.add(renamed[label])
        return renamed | dict(zip(tensors, labels, strict=True))

    def graph(self, names: Sequence[str] | None) -> Graph:
        inputs: dict[str, TensorType] = {}
        constants: dict[str, Constant] = {}
        placeholders = {n.name: n for n in self.program.graph.nodes if n.op == "placeholder"}
        for spec in self.program.graph_signature.input_specs:
            name = spec.arg.name
            if spec.kind == self.kinds.USER_INPUT:
                self.user_input(spec.arg, placeholders[name], inputs)
            else:
                name = self.renamed.get(name, name)
                constants[name] = self.constant(spec, name)
        calls = [n for n in self.program.graph.nodes if n.op == "call_function"]
        nodes = [made for n in calls if (made := self.node(n)) is not None]
        for n in self.program.graph.nodes:
            if n.op not in ("placeholder", "call_function", "output"):
                message = f"'{n.op}' is not supported"
                self.problems.append(Problem("operator", message, line_of(self.torch, n)))
        if self.problems:
            raise InvalidFunction(tuple(self.problems))
        return Graph(inputs, constants, nodes, self.outputs(names))

    def user_input(self, argument: Any, node: Any, inputs: dict[str, TensorType]) -> None:
        value = node.meta.get("val")
        if isinstance(value, self.torch.Tensor):
            name = self.renamed.get(argument.name, argument.name)
            inputs[name] = self.type(value, f"input {name}")
        else:
            self.values[argument.name] = value if isinstance(value, int | float | str) else None

    def constant(self, spec: Any, name: str) -> Constant:
        program = self.program
        target = spec.target
        found = program.state_dict.get(target)
        if found is None:
            found = program.constants.get(target)
        if not isinstance(found, self.torch.Tensor):
            message = f"'{target}' is {named_type(found)}, not a tensor"
            self.problems.append(Problem("constant", message, target))
            return Constant(TensorType((0,), "float32"), np.empty(0, np.float32))
        return Constant(self.type(found, target), _array(self.torch, found))

    def type(self, tensor: Any, where: str) -> TensorType:
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in ITEM_BYTES:
            message = f"element type {dtype} is not supported"
            expected = f"one of {', '.join(ITEM_BYTES)}"
            self.problems.append(Problem("dtype", message, where, expected=expected))
            dtype = "float32"
        return TensorType(tuple(int(size) for size in tensor.shape), dtype)

    def node(self, node: Any) -> Node | None:
        place = line_of(self.torch, node)
        arguments = tuple(self.argument(a, node) for a in node.args)
        given = {k: v for k, v in node.kwargs.items() if k not in _IGNORED}
        keywords = {k: self.argument(v, node) for k, v in given.items()}
        name = GETITEM if node.target is operator.getitem else str(node.target)
        value = node.meta.get("val")
        if value is None:  # an assertion, or a comment of the exporter
            return None
        single = isinstance(value, self.torch.Tensor)
        if not single and not isinstance(value, list | tuple):
            message = f"'{name}' gives {named_type(value)}, which is only known in a call"
            self.problems.append(Problem("dynamic-value", message, place))
            return None
        values = [value] if single else list(value)
        used = {user.args[1] for user in node.users} if not single else {0}
        if not used:
            return None
        types = tuple(
            self.type(one, place) if at in used else None for at, one in enumerate(values)
        )
        operand = self.operand((*node.args, *node.kwargs.values()))
        label = self.renamed.get(node.name, node.name)
        return Node(label, name, arguments, keywords, types, single, operand, place, _part(node))

    def argument(self, value: Any, node: Any) -> Argument:
        torch = self.torch
        match value:
            case torch.fx.Node():
                name = value.name
                if name in self.values:
                    return self.values[name]
                return Reference(self.renamed.get(name, name))
            case torch.dtype():
                return DType(str(value).removeprefix("torch."))
            case list() | tuple():
                return tuple(self.argument(one, node) for one in value)
            case None | bool() | int() | float() | str():
                return value
            case torch.device() | torch.layout() | torch.memory_format():
                return None
        message = f"'{node.target}' has an argument of type {type(value).__name__}"
        self.problems.append(Problem("argument", message, line_of(self.torch, node)))
        return None

    def operand(self, arguments: Iterable[Any]) -> str:
        """The type that torch computes an operator in; empty if no operand is a tensor."""
        torch = self.torch
        values = [a.meta.get("val") if isinstance(a, torch.fx.Node) else a for a in arguments]
        tensors = [v for v in values if isinstance(v, torch.Tensor)]
        numbers = [v for v in values if isinstance(v, bool | int | float)]
        if not tensors:
            return ""
        found = tensors[0]
        for other in (*tensors[1:], *numbers):
            promoted = torch.result_type(found, other)
            dimensions = max(found.dim(), other.dim() if isinstance(other, torch.Tensor) else 0)
            found = torch.empty((1,) * dimensions, dtype=promoted, device="meta")
        return str(found.dtype).removeprefix("torch.")

    def outputs(self, names: Sequence[str] | None) -> Mapping[str, str]:
        output = next(n for n in self.program.graph.nodes if n.op == "output")
        values = list(output.args[0])
        if any(not isinstance(one, self.torch.fx.Node) for one in values):
            message = "it returns values that are not tensors"
            raise InvalidInput("module", message, "return tensors only")
        labels = list(names) if names is not None else self.labels(len(values))
        if len(labels) != len(values) or len(set(labels)) != len(labels):
            message = f"the module returns {len(values)} tensors, and the names are {labels}"
            raise InvalidInput("outputs", message, "give each a name of its own")
        found = (self.renamed.get(one.name, one.name) for one in values)
        return dict(zip(labels, found, strict=True))

    def labels(self, count: int) -> list[str]:
        """Name outputs: by the keys of a dict that the module returns, or by number."""
        tree = self.program.call_spec.out_spec
        found = self.torch.utils._pytree.tree_unflatten([str(i) for i in range(count)], tree)
        if isinstance(found, dict) and sorted(found.values()) == sorted(map(str, range(count))):
            ordered = sorted(found.items(), key=lambda pair: int(pair[1]))
            return [str(key) for key, _ in ordered]
        return ["output"] if count == 1 else [f"output_{i}" for i in range(count)]


def _array(torch: Any, tensor: Any) -> Array:
    plain = tensor.detach().cpu().contiguous()
    if plain.dtype == torch.bfloat16:
        bits = np.array(plain.view(torch.int16).numpy(), copy=True)
        return bits.view(declared_dtype("bfloat16"))
    return np.array(plain.numpy(), copy=True)


def constant_of(tensor: Any) -> Constant:
    """A tensor with its values as a constant."""
    kind = TensorType(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
    return Constant(kind, _array(load(), tensor))


def _part(node: Any) -> str:
    stack = node.meta.get("nn_module_stack") or {}
    paths = [entry[0] for entry in stack.values()]
    return str(paths[-1]) if paths else ""


def reference_outputs(
    module: object, examples: Sequence[object], names: Sequence[str]
) -> dict[str, Array]:
    """Run a module in double precision on the processor.

    It is its graph that runs, with each conversion to a shorter type made one to double precision.

    Args:
        module, examples: as for `graph_of`.
        names: of the tensors that it returns.
    """
    torch = load()
    program = _program(torch, module, tuple(examples))
    narrow = (torch.float16, torch.bfloat16, torch.float32)

    def wide(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return value.double()
        return value

    body = program.graph_module
    for node in body.graph.nodes:
        node.args = torch.fx.node.map_aggregate(node.args, lambda one: _widened(torch, one, narrow))
        node.kwargs = torch.fx.node.map_aggregate(
            node.kwargs, lambda one: _widened(torch, one, narrow)
        )
    given = iter(torch.utils._pytree.tree_leaves(tuple(examples)))
    kinds = torch.export.graph_signature.InputKind
    values = []
    for spec in program.graph_signature.input_specs:
        if spec.kind == kinds.USER_INPUT:
            values.append(wide(next(given)))
        else:
            found = program.state_dict.get(spec.target)
            values.append(wide(program.constants[spec.target] if found is None else found))
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # that of tensors which the module makes
    try:
        with torch.no_grad():
            results = torch.fx.Interpreter(body).run(*values)
    finally:
        torch.set_default_dtype(before)
    return {name: _array(torch, one) for name, one in zip(names, results, strict=True)}


def _widened(torch: Any, value: Any, narrow: tuple[Any, ...]) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value in narrow else value


def example_arrays(examples: Sequence[object], names: Sequence[str]) -> dict[str, Array]:
    """The tensors among example arguments as arrays, by the names of the inputs."""
    torch = load()
    leaves = torch.utils._pytree.tree_leaves(tuple(examples))
    tensors = [one for one in leaves if isinstance(one, torch.Tensor)]
    return {name: _array(torch, one) for name, one in zip(names, tensors, strict=True)}


def is_module(value: object) -> bool:
    """Tell whether `graph_of` takes it."""
    torch = load()
    return isinstance(value, torch.nn.Module | torch.export.ExportedProgram)


def example_tensors(specs: Sequence[SetSpec]) -> tuple[object, ...]:
    """Make tensors of given types: random normal numbers, zeros for integers, true for booleans.

    Args:
        specs: each with an element type and a fixed shape.
    """
    torch = load()
    made = []
    for spec in specs:
        dtype, shape = getattr(torch, spec.dtype or ""), spec.shape or ()
        if dtype.is_floating_point:
            made.append(torch.randn(shape).to(dtype))
        else:
            made.append(torch.full(shape, dtype == torch.bool, dtype=dtype))
    return tuple(made)
