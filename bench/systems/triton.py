"""NVIDIA's Triton Inference Server as a peer, where its program is on the PATH.

A model is a folder of the server's repository: a description, ``config.pbtxt``, and a folder for
its version, with ``model.py`` if the backend for Python runs it, or empty if it is an *ensemble*,
whose steps are other models with tensors that go from one to the next. The repository here is a
temporary one. The server loads what it is started with before it listens, and more when asked.

Requests follow the second protocol of KServe over HTTP, with the extension for binary tensors: a
body is a JSON object, and after it the raw bytes of the tensors that it names, in its order. The
header ``inference-header-content-length`` says how long the JSON is; an answer is built likewise.

Source: the server's documents on the model repository, ensemble models, the backend for Python,
the model repository extension and the binary tensor data extension.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import shutil
import socket
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..connection import Connection, Refused
from ..load import HttpRequest
from ..load_connection import Message
from . import names
from .servers import ServerFailed, ServerProcess

PROGRAM = "tritonserver"
REMEDY = (
    "run this harness in NVIDIA's Triton container, after pip install torch dandelion-engine there"
)
FAILURES = (ServerFailed, Refused, OSError, ValueError, http.client.HTTPException)
"""What an adapter of the server raises when it cannot take part."""

Action = Callable[[], object]
_START_S = 180.0
_ANSWER_S = 60.0
_CHECK_S = 0.02
_MODEL_S = 120  # its default ends a model that imports PyTorch from a cold disk
_EXIT_S = 5

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
    among the packages of the Python that runs this.
    """
    path = list(dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib")))
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


class TritonServer(ServerProcess):
    """A running server with a repository of its own; use it with ``with``.

    Args:
        models: that it loads before it listens.
        wait_s: how long that may take.

    Raises:
        ServerFailed: it is not installed, it ended, or it is not ready in time.
    """

    def __init__(self, models: Sequence[Model], wait_s: float = _START_S) -> None:
        program = shutil.which(PROGRAM)
        if program is None:
            raise ServerFailed(names.TRITON, f"there is no {PROGRAM} on the PATH")
        self._folder = tempfile.TemporaryDirectory(prefix="triton-")
        self._repository = Path(self._folder.name)
        for model in models:
            model.write(self._repository)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port: int = free.getsockname()[1]
        command = [program, *_options(self._repository, port), *map(_loads, models)]
        super().__init__(names.TRITON, command, port=port, wait_s=wait_s)

    def _wait(self, port: int | None, deadline: float) -> int:
        """Wait also until it says that it is ready, for it may listen before."""
        found = super()._wait(port, deadline)
        while not _ready(found):
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise ServerFailed(self.name, "it does not become ready", self.tail())
            time.sleep(_CHECK_S)
        return found

    def load(self, model: Model) -> None:
        """Load a further model, or the same anew.

        Raises:
            ServerFailed: it refuses.
            OSError, http.client.HTTPException: it does not answer.
        """
        model.write(self._repository)
        status, said = _ask(self.port, "POST", f"/v2/repository/models/{model.name}/load", b"{}")
        if status != 200:
            why = f"it does not load '{model.name}': {said[:200].decode(errors='replace')}"
            raise ServerFailed(self.name, why)

    def close(self) -> None:
        """End it and remove its repository. May be called twice."""
        super().close()
        self._folder.cleanup()


def _options(repository: Path, port: int) -> list[str]:
    return [
        f"--model-repository={repository}",
        "--model-control-mode=explicit",
        "--http-address=127.0.0.1",
        f"--http-port={port}",
        "--allow-grpc=false",
        "--allow-metrics=false",
        "--log-verbose=0",
        f"--backend-config=python,stub-timeout-seconds={_MODEL_S}",
        f"--exit-timeout-secs={_EXIT_S}",
    ]


def _loads(model: Model) -> str:
    return f"--load-model={model.name}"


def _ready(port: int) -> bool:
    try:
        return _ask(port, "GET", "/v2/health/ready")[0] == 200
    except (OSError, http.client.HTTPException):
        return False


def _ask(port: int, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_ANSWER_S)
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def inference(model: Model, data: bytes) -> HttpRequest:
    """Write the request for one inference, with all outputs as raw bytes.

    Args:
        model: that is asked.
        data: of its input.
    """
    entry = model.entry
    described = {
        "name": entry.name,
        "shape": entry.shape,
        "datatype": entry.datatype,
        "parameters": {"binary_data_size": len(data)},
    }
    head = json.dumps({"inputs": [described], "parameters": {"binary_data_output": True}}).encode()
    headers = (("inference-header-content-length", str(len(head))),)
    return HttpRequest(f"/v2/models/{model.name}/infer", head + data, headers=headers)


def outputs(reply: bytes) -> dict[str, bytes]:
    """Read the body of an answer: the bytes of each output.

    The JSON ends where its object does, so the header with its length is not needed.

    Raises:
        ValueError: it is no answer with raw bytes, or they are too few or too many.
    """
    text = reply.decode("latin-1")  # a character for each byte, so that places are the same
    described, at = json.JSONDecoder().raw_decode(text)
    found = {}
    try:
        for output in described["outputs"]:
            size = int(output["parameters"]["binary_data_size"])
            found[output["name"]] = reply[at : at + size]
            at += size
    except (KeyError, TypeError) as error:
        raise ValueError(f"no answer with raw bytes: {described}") from error
    if at != len(reply):
        raise ValueError(f"the outputs take {at} bytes of an answer of {len(reply)}")
    return found


def network_logits(port: int, request: HttpRequest) -> bytes:
    """Ask for an inference of the network, as the load generator does, and give the logits.

    Raises:
        ValueError: the server refuses, or answers something else.
    """
    with Connection(port) as connection:
        try:
            reply = connection.ask(Message(request).of(0))
        except Refused as error:
            raise ValueError(str(error)) from error
    found = outputs(bytes(reply))
    if "logits" not in found:
        raise ValueError(f"it gives {sorted(found)}")
    return found["logits"]


class TritonEnsembles:
    """No-op steps as ensembles, over one kept connection; a peer of the dispatcher.

    Each core has an instance of the step. An ensemble is described and loaded when it is asked for.

    Raises:
        FAILURES: the server does not come up, or an ensemble of one step does not work.
    """

    name = names.TRITON

    def __init__(self) -> None:
        self._no_op = no_op(len(os.sched_getaffinity(0)))
        with contextlib.ExitStack() as stack:
            self._server = TritonServer([self._no_op])
            stack.callback(self._server.close)
            self._connection = stack.enter_context(Connection(self._server.port))
            self._call(chain_of(self._no_op, 1))  # whatever it lacks is told now
            self._open = stack.pop_all()

    def chain(self, length: int) -> Action | None:
        """Give a call of an ensemble of so many steps; None if the server refuses it."""
        return self._call_if_loaded(chain_of(self._no_op, length))

    def fan(self, width: int) -> Action | None:
        """Give a call of an ensemble of so many independent steps; None if it is refused."""
        return self._call_if_loaded(fan_of(self._no_op, width))

    def _call_if_loaded(self, model: Model) -> Action | None:
        try:
            return self._call(model)
        except FAILURES:
            return None

    def _call(self, model: Model) -> Action:
        self._server.load(model)
        message = Message(inference(model, b"x")).of(0)
        found = outputs(bytes(self._connection.ask(message)))
        if found != {tensor.name: b"x" for tensor in model.results}:
            raise ServerFailed(self.name, f"'{model.name}' gives a wrong result")
        return lambda: self._connection.ask(message)

    def close(self) -> None:
        """End the server. May be called twice."""
        self._open.close()
