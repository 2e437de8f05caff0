"""Models of NVIDIA's Triton Inference Server, as folders of its repository.

A folder holds a description, ``config.pbtxt``, and a folder for its version, with ``model.py`` if
the backend for Python runs it, or empty if it is an *ensemble*, whose steps are other models with
tensors that go from one to the next.

Source: the server's documents on the model repository, ensemble models and the backend for Python.
"""

from __future__ import annotations

import itertools
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import dandelion

_NETWORK_PROGRAM = '''\
"""PyPlover's network in PyTorch, the same that all peers serve."""

import sys

import numpy as np
import triton_python_backend_utils as triton

sys.path += {path!r}
from dandelion.bench.systems.peer_network import Network


class TritonPythonModel:
    def initialize(self, args):
        self.network = Network()

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        image = triton.get_input_tensor_by_name(request, "image").as_numpy()
        logits = np.frombuffer(self.network(image.tobytes()), np.float32).copy()
        return triton.InferenceResponse([triton.Tensor("logits", logits)])
'''
_NO_OP_PROGRAM = '''\
"""The step that gives what it got."""

import triton_python_backend_utils as triton


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        value = triton.get_input_tensor_by_name(request, "a").as_numpy()
        return triton.InferenceResponse([triton.Tensor("b", value)])
'''


@dataclass(frozen=True, slots=True)
class Tensor:
    """What goes into a model or comes out of it.

    Attributes:
        name: in its model.
        datatype: of the protocol, like "FP32".
        shape: all of its dimensions.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]

    def config(self) -> str:
        """Describe it."""
        shape = ", ".join(map(str, self.shape))
        return f'{{ name: "{self.name}" data_type: TYPE_{self.datatype} dims: [ {shape} ] }}'


@dataclass(frozen=True, slots=True)
class Step:
    """A step of an ensemble.

    Attributes:
        model: that is called, with one input and one output.
        source, target: tensors of the ensemble, that its input is and its output becomes.
    """

    model: Model
    source: str
    target: str

    def config(self) -> str:
        """Describe it."""
        to, back = self.model.entry.name, self.model.results[0].name
        return (
            f'{{ model_name: "{self.model.name}" model_version: -1 '
            f'input_map {{ key: "{to}" value: "{self.source}" }} '
            f'output_map {{ key: "{back}" value: "{self.target}" }} }}'
        )


@dataclass(frozen=True, slots=True)
class Model:
    """A model of a repository.

    Attributes:
        name: of its folder.
        entry: its input.
        results: its outputs.
        program: text of its ``model.py``; empty for an ensemble.
        instances: processes that run the program.
        steps: of an ensemble.
    """

    name: str
    entry: Tensor
    results: tuple[Tensor, ...]
    program: str = ""
    instances: int = 1
    steps: tuple[Step, ...] = ()

    def config(self) -> str:
        """Write its ``config.pbtxt``."""
        lines = [f'name: "{self.name}"', "max_batch_size: 0"]
        lines += [_list("input", [self.entry.config()])]
        lines += [_list("output", [tensor.config() for tensor in self.results])]
        if self.steps:
            steps = _list("step", [step.config() for step in self.steps])
            lines += ['platform: "ensemble"', f"ensemble_scheduling {{\n{steps}\n}}"]
        else:
            group = f"{{ kind: KIND_CPU count: {self.instances} }}"  # the program finds its device
            lines += ['backend: "python"', _list("instance_group", [group])]
        return "\n".join(lines) + "\n"

    def write(self, repository: Path) -> None:
        """Write its folder."""
        version = repository / self.name / "1"
        version.mkdir(parents=True, exist_ok=True)
        (repository / self.name / "config.pbtxt").write_text(self.config())
        if self.program:
            (version / "model.py").write_text(self.program)


def _list(name: str, entries: Iterable[str]) -> str:
    return f"{name} [\n" + ",\n".join(f"  {entry}" for entry in entries) + "\n]"


def network() -> Model:
    """Describe the network: an image [8, 8] in, 10 logits out.

    It imports this package and PyTorch in the server's own Python. Where that lacks one, it looks
    where this package lies, which may be a checkout, and among the packages of the Python that runs
    this.
    """
    here = str(Path(dandelion.__file__).resolve().parent.parent)
    packages = [sysconfig.get_path(kind) for kind in ("purelib", "platlib")]
    path = list(dict.fromkeys([here, *packages]))
    image, logits = Tensor("image", "FP32", (8, 8)), Tensor("logits", "FP32", (10,))
    return Model("network", image, (logits,), _NETWORK_PROGRAM.format(path=path))


def no_op(instances: int = 1) -> Model:
    """Describe the step that gives the byte that it got."""
    return Model("no_op", _byte("a"), (_byte("b"),), _NO_OP_PROGRAM, instances)


def chain_of(model: Model, length: int) -> Model:
    """Describe an ensemble of so many steps, each with what the one before gave."""
    tensors = [f"s{i}" for i in range(length + 1)]
    steps = tuple(Step(model, *pair) for pair in itertools.pairwise(tensors))
    return Model(f"chain_{length}", _byte("s0"), (_byte(tensors[-1]),), steps=steps)


def fan_of(model: Model, width: int) -> Model:
    """Describe an ensemble of so many independent steps, all of whose results are its own."""
    results = tuple(_byte(f"y{i}") for i in range(width))
    steps = tuple(Step(model, "x", result.name) for result in results)
    return Model(f"fan_{width}", _byte("x"), results, steps=steps)


def _byte(name: str) -> Tensor:
    return Tensor(name, "UINT8", (1,))
