"""NVIDIA's Triton Inference Server as a peer, where it is installed (see `triton_install`).

A server has a temporary repository of models. A model is a folder with a description,
``config.pbtxt``, and a folder for its version, with ``model.py`` if the backend for Python runs it,
or empty if it is an *ensemble* of other models. The backend for Python leaves regions of shared
memory when it is killed, so they get a name of ours and are removed at the end.

Requests follow the second protocol of KServe over HTTP, with the extension for binary tensors: a
body is a JSON object, and after it the raw bytes of the tensors that it names, in its order. The
header ``inference-header-content-length`` says how long the JSON is; an answer is built likewise.

Source: the server's documents on the model repository, ensemble models, the backend for Python, and
the model repository and binary tensor data extensions.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import math
import os
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import dandelion

from ..http_client import BlockingConnection, HttpFailed, fetch
from ..load import HttpRequest
from ..load_connection import EncodedRequest
from ..processes import ServerFailed, ServerProcess, free_port
from . import names
from .triton_install import TritonMissing, find_triton

FAILURES = (
    ServerFailed, TritonMissing, HttpFailed, OSError, ValueError, http.client.HTTPException,
)  # fmt: skip
"""What is raised if the server cannot take part."""

_START_S = 180.0
_CHECK_S = 0.02
_MODEL_S = 120  # the default ends a model that imports PyTorch from a cold disk
_SHARED = Path("/dev/shm")
_EMPTY = (
    "an output is empty; likely its backend for Python was built for NumPy before 2, and models "
    "have a later one: pip install 'numpy<2' where they run"
)
_PROGRAM = """\
import sys

import numpy as np
import triton_python_backend_utils as triton

sys.path += {path!r}


class TritonPythonModel:
    def initialize(self, args):
        {initialize}

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        value = triton.get_input_tensor_by_name(request, "{entry}").as_numpy()
        return triton.InferenceResponse([triton.Tensor("{result}", {expression})])
"""


@dataclass(frozen=True, slots=True)
class TritonTensor:
    """An input or output of a model; the datatype is of the protocol, like "FP32"."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    def config(self) -> str:
        """Describe it."""
        shape = ", ".join(map(str, self.shape))
        return f'{{ name: "{self.name}" data_type: TYPE_{self.datatype} dims: [ {shape} ] }}'


@dataclass(frozen=True, slots=True)
class TritonModel:
    """A model of a repository.

    Attributes:
        entry, results: its input and its outputs.
        program: text of its ``model.py``; empty for an ensemble.
        instances: processes that run the program.
        steps: of an ensemble: the model that is called, which tensor of the ensemble is its input,
            and which its output.
    """

    name: str
    entry: TritonTensor
    results: tuple[TritonTensor, ...]
    program: str = ""
    instances: int = 1
    steps: tuple[tuple[TritonModel, str, str], ...] = ()

    def config(self) -> str:
        """Write its ``config.pbtxt``."""
        lines = [f'name: "{self.name}"', "max_batch_size: 0"]
        lines += [_entries("input", [self.entry.config()])]
        lines += [_entries("output", [tensor.config() for tensor in self.results])]
        if self.steps:
            steps = _entries("step", [_step(*step) for step in self.steps])
            lines += ['platform: "ensemble"', f"ensemble_scheduling {{\n{steps}\n}}"]
        else:
            group = f"{{ kind: KIND_CPU count: {self.instances} }}"  # the program finds its device
            lines += ['backend: "python"', _entries("instance_group", [group])]
        return "\n".join(lines) + "\n"

    def write(self, repository: Path) -> None:
        """Write its folder."""
        version = repository / self.name / "1"
        version.mkdir(parents=True, exist_ok=True)
        (repository / self.name / "config.pbtxt").write_text(self.config())
        if self.program:
            (version / "model.py").write_text(self.program)


def _entries(name: str, entries: Iterable[str]) -> str:
    return f"{name} [\n" + ",\n".join(f"  {entry}" for entry in entries) + "\n]"


def _step(model: TritonModel, source: str, target: str) -> str:
    entry, result = model.entry.name, model.results[0].name
    return (
        f'{{ model_name: "{model.name}" model_version: -1 '
        f'input_map {{ key: "{entry}" value: "{source}" }} '
        f'output_map {{ key: "{result}" value: "{target}" }} }}'
    )


def triton_network() -> TritonModel:
    """Describe PyPlover's network: an image [8, 8] in, 10 logits out.

    It imports this package and PyTorch in the server's own Python. Where that lacks one, it looks
    where this package is, which may be a checkout, and at the packages of the Python that runs
    this.
    """
    here = str(Path(dandelion.__file__).resolve().parent.parent)
    packages = [sysconfig.get_path(kind) for kind in ("purelib", "platlib")]
    program = _PROGRAM.format(
        path=list(dict.fromkeys([here, *packages])), entry="image", result="logits",
        initialize="from dandelion.bench.systems.torch_network import Network\n"
                   "        self.network = Network()",
        expression="np.frombuffer(self.network(value.tobytes()), np.float32).copy()",
    )  # fmt: skip
    image, logits = TritonTensor("image", "FP32", (8, 8)), TritonTensor("logits", "FP32", (10,))
    return TritonModel("network", image, (logits,), program)


def _byte(name: str) -> TritonTensor:
    return TritonTensor(name, "UINT8", (1,))


def no_op_model(instances: int = 1) -> TritonModel:
    """Describe a step whose output is its input, a byte."""
    program = _PROGRAM.format(
        path=[], entry="a", result="b", initialize="pass", expression="value"
    )  # fmt: skip
    return TritonModel("no_op", _byte("a"), (_byte("b"),), program, instances)


def identity_model(name: str, size_bytes: int) -> TritonModel:
    """Describe a model ``name(x) -> (y)`` whose output is its input, bytes of one size."""
    program = _PROGRAM.format(
        path=[], entry="x", result="y", initialize="pass", expression="value"
    )  # fmt: skip
    entry, result = (TritonTensor(n, "UINT8", (size_bytes,)) for n in ("x", "y"))
    return TritonModel(name, entry, (result,), program)


def chain_of(model: TritonModel, length: int) -> TritonModel:
    """Describe an ensemble of steps in a chain."""
    tensors = [f"s{i}" for i in range(length + 1)]
    steps = tuple((model, *pair) for pair in itertools.pairwise(tensors))
    return TritonModel(f"chain_{length}", _byte("s0"), (_byte(tensors[-1]),), steps=steps)


def fan_of(model: TritonModel, width: int) -> TritonModel:
    """Describe an ensemble of independent steps, all of whose results are its own."""
    results = tuple(_byte(f"y{i}") for i in range(width))
    steps = tuple((model, "x", result.name) for result in results)
    return TritonModel(f"fan_{width}", _byte("x"), results, steps=steps)


class TritonServer(ServerProcess):
    """A running server with its own repository; use it with ``with``.

    Args:
        models: that it loads before it listens.
        wait_s: how long that may take.

    Raises:
        TritonMissing: it is not installed.
        ServerFailed: it ended, or it is not ready in time.
    """

    def __init__(self, models: Sequence[TritonModel], wait_s: float = _START_S) -> None:
        install = find_triton()
        self._folder = tempfile.TemporaryDirectory(prefix="triton-")
        folder = Path(self._folder.name)
        self._regions = folder.name
        self._repository = folder / "models"
        for model in models:
            model.write(self._repository)
        port = free_port()
        command = [
            *install.command(folder),
            f"--model-repository={self._repository}",
            "--model-control-mode=explicit",
            "--http-address=127.0.0.1",
            f"--http-port={port}",
            "--allow-grpc=false",
            "--allow-metrics=false",
            "--log-verbose=0",
            "--disable-auto-complete-config",  # everything is described
            f"--backend-config=python,stub-timeout-seconds={_MODEL_S}",
            f"--backend-config=python,shm-region-prefix-name={self._regions}",
            "--exit-timeout-secs=5",
            *(f"--load-model={model.name}" for model in models),
        ]
        super().__init__(names.TRITON, command, port=port, wait_s=wait_s)

    def _wait(self, port: int | None, deadline: float) -> int:
        """Wait also until it is ready, since it may listen before."""
        found = super()._wait(port, deadline)
        ready = HttpRequest("/v2/health/ready", method="GET")
        while True:
            with contextlib.suppress(HttpFailed, OSError, http.client.HTTPException):
                fetch(found, ready)
                return found
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise ServerFailed(self.name, "it does not become ready", self.tail())
            time.sleep(_CHECK_S)

    def load(self, model: TritonModel) -> None:
        """Load a further model, or the same again.

        Raises:
            ServerFailed: it refuses.
            OSError, http.client.HTTPException: it does not answer.
        """
        model.write(self._repository)
        try:
            fetch(self.port, HttpRequest(f"/v2/repository/models/{model.name}/load", b"{}"))
        except HttpFailed as error:
            raise ServerFailed(self.name, f"it does not load '{model.name}': {error}") from None

    def tail(self) -> str:
        """Give why it ended, if it wrote that, or else the end of what it wrote."""
        wrote = super().tail()
        _, found, why = wrote.rpartition("\nerror: ")
        return why.partition("\n")[0] if found else wrote

    def close(self) -> None:
        super().close()
        for region in _SHARED.glob(f"{self._regions}*"):
            region.unlink(missing_ok=True)
        self._folder.cleanup()


def inference_request(model: TritonModel, data: bytes) -> HttpRequest:
    """Write the request for one inference on `data`, with all outputs as raw bytes."""
    entry = model.entry
    described = {
        "name": entry.name, "shape": entry.shape, "datatype": entry.datatype,
        "parameters": {"binary_data_size": len(data)},
    }  # fmt: skip
    head = json.dumps({"inputs": [described], "parameters": {"binary_data_output": True}}).encode()
    headers = (("inference-header-content-length", str(len(head))),)
    return HttpRequest(f"/v2/models/{model.name}/infer", head + data, headers=headers)


def inference_outputs(reply: bytes) -> dict[str, bytes]:
    """Read the body of an answer: the bytes of each output.

    The JSON ends where its object does, so the header with its length is not needed.

    Raises:
        ValueError: it is no answer with raw bytes, or they are none, too few or too many.
    """
    text = reply.decode("latin-1")  # one character for each byte, so that places are the same
    described, at = json.JSONDecoder().raw_decode(text)
    found = {}
    try:
        for output in described["outputs"]:
            size = int(output["parameters"]["binary_data_size"])
            if not size and math.prod(output["shape"]):
                raise ValueError(_EMPTY)
            found[output["name"]] = reply[at : at + size]
            at += size
    except (KeyError, TypeError) as error:
        raise ValueError(f"no answer with raw bytes: {described}") from error
    if at != len(reply):
        raise ValueError(f"the outputs take {at} bytes of an answer of {len(reply)}")
    return found


def network_logits(reply: bytes) -> bytes:
    """Read the logits from an answer of `triton_network`.

    Raises:
        ValueError: it has none.
    """
    found = inference_outputs(reply)
    if "logits" not in found:
        raise ValueError(f"the outputs are {sorted(found)}")
    return found["logits"]


class TritonEnsembles:
    """No-op steps as ensembles, over one kept connection; see `StepRunner` in `steps`.

    Each core has an instance of the step. An ensemble is described and loaded when it is needed.

    Raises:
        FAILURES: the server does not start, or an ensemble of one step does not work.
    """

    name = names.TRITON

    def __init__(self) -> None:
        self._no_op = no_op_model(len(os.sched_getaffinity(0)))
        with contextlib.ExitStack() as stack:
            self._server = TritonServer([self._no_op])
            stack.callback(self._server.close)
            self._connection = stack.enter_context(BlockingConnection(self._server.port))
            self._call(chain_of(self._no_op, 1))
            self._open = stack.pop_all()

    def chain(self, length: int) -> Callable[[], object] | None:
        """Give a call of an ensemble of so many steps; None if the server refuses it."""
        return self._call_if_loaded(chain_of(self._no_op, length))

    def fan(self, width: int) -> Callable[[], object] | None:
        """Give a call of an ensemble of so many independent steps; None if it is refused."""
        return self._call_if_loaded(fan_of(self._no_op, width))

    def _call_if_loaded(self, model: TritonModel) -> Callable[[], object] | None:
        try:
            return self._call(model)
        except FAILURES:
            return None

    def _call(self, model: TritonModel) -> Callable[[], object]:
        self._server.load(model)
        request = EncodedRequest(inference_request(model, b"x")).of(0)
        found = inference_outputs(bytes(self._connection.ask(request)))
        if found != {tensor.name: b"x" for tensor in model.results}:
            raise ServerFailed(self.name, f"'{model.name}' gives a wrong result")
        return lambda: self._connection.ask(request)

    def close(self) -> None:
        """End the server. May be called twice."""
        self._open.close()
