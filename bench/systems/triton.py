"""NVIDIA's Triton Inference Server as a peer, where it is installed (see `triton_install`).

Its repository of models (see `triton_models`) is a temporary one here. The server loads what it is
started with before it listens, and more when asked. Its backend for Python keeps a region of shared
memory for each model that runs there. It leaves them when it is killed, so they have a name of ours
and are removed at the end.

Requests follow the second protocol of KServe over HTTP, with the extension for binary tensors: a
body is a JSON object, and after it the raw bytes of the tensors that it names, in its order. The
header ``inference-header-content-length`` says how long the JSON is; an answer is built likewise.

Source: the server's documents on the model repository extension and the binary tensor data
extension.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import os
import socket
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ..connection import Connection, Refused
from ..load import HttpRequest
from ..load_connection import Message
from . import names
from .servers import ServerFailed, ServerProcess
from .triton_install import TritonMissing, find_triton
from .triton_models import Model, chain_of, fan_of, no_op

FAILURES = (
    ServerFailed,
    TritonMissing,
    Refused,
    OSError,
    ValueError,
    http.client.HTTPException,
)
"""What an adapter of the server raises when it cannot take part."""

Action = Callable[[], object]
_START_S = 180.0
_ANSWER_S = 60.0
_CHECK_S = 0.02
_MODEL_S = 120  # its default ends a model that imports PyTorch from a cold disk
_EXIT_S = 5
_SHARED = Path("/dev/shm")
_EMPTY = (
    "an output is empty; likely its backend for Python was built for NumPy before 2, and models "
    "have a later one: pip install 'numpy<2' where they run"
)


class TritonServer(ServerProcess):
    """A running server with a repository of its own; use it with ``with``.

    Args:
        models: that it loads before it listens.
        wait_s: how long that may take.

    Raises:
        TritonMissing: it is not installed.
        ServerFailed: it ended, or it is not ready in time.
    """

    def __init__(self, models: Sequence[Model], wait_s: float = _START_S) -> None:
        install = find_triton()
        self._folder = tempfile.TemporaryDirectory(prefix="triton-")
        folder = Path(self._folder.name)
        self._regions = folder.name
        self._repository = folder / "models"
        for model in models:
            model.write(self._repository)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port: int = free.getsockname()[1]
        super().__init__(
            names.TRITON,
            [*install.command(folder), *self._options(port), *map(_loads, models)],
            port=port,
            wait_s=wait_s,
        )

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

    def tail(self) -> str:
        """Give why it ended, if it wrote that, or else the end of what it wrote."""
        wrote = super().tail()
        _, told, why = wrote.rpartition("\nerror: ")
        return why.partition("\n")[0] if told else wrote

    def close(self) -> None:
        """End it and remove its repository. May be called twice."""
        super().close()
        for region in _SHARED.glob(f"{self._regions}*"):
            region.unlink(missing_ok=True)
        self._folder.cleanup()

    def _options(self, port: int) -> list[str]:
        return [
            f"--model-repository={self._repository}",
            "--model-control-mode=explicit",
            "--http-address=127.0.0.1",
            f"--http-port={port}",
            "--allow-grpc=false",
            "--allow-metrics=false",
            "--log-verbose=0",
            "--disable-auto-complete-config",  # all is described
            f"--backend-config=python,stub-timeout-seconds={_MODEL_S}",
            f"--backend-config=python,shm-region-prefix-name={self._regions}",
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
        ValueError: it is no answer with raw bytes, or they are none, too few or too many.
    """
    text = reply.decode("latin-1")  # a character for each byte, so that places are the same
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
