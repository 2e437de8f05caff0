"""A stand-in for NVIDIA's Triton Inference Server, as strict as the server with what it is given.

It is run as a program. It takes the server's options, reads the repository, runs models for Python
through the interface that the server gives them, with a small PyTorch of its own, follows the steps
of ensembles, and speaks the protocol. As with the server:

- Models see the packages of their environment, but neither PYTHONPATH nor an editable install.
- Tensors of an ensemble come in an order of its own, and its answer names one parameter many times.
- It is not ready while a model failed to load, and what it refuses has one of several types.
- Each model for Python has a region of shared memory, which stays if the program is killed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import sys
import types
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

FLAW = "STAND_IN_FLAW"
"""Variable that says what is wrong with it: "ends", "unready", "wrong" or "empty"."""
LONGEST = 50
"""Steps of an ensemble that it takes, which is fewer than the server does."""
SHARED = Path("/dev/shm")
PARTS = ("triton_python_backend_stub", "libtriton_python.so", "triton_python_backend_utils.py")
_GIVEN = {  # options that must have these values
    "model-control-mode": "explicit",
    "http-address": "127.0.0.1",
    "allow-grpc": "false",
    "allow-metrics": "false",
    "log-verbose": "0",
}
_TYPES: dict[str, np.dtype[Any]] = {
    "TYPE_FP32": np.dtype(np.float32),
    "TYPE_UINT8": np.dtype(np.uint8),
}
_LIBRARIES = "LD_LIBRARY_PATH"
_GIVEN_LIBRARIES = "STAND_IN_LIBRARIES"
_JSON = "application/json"
_TEXT = "text/plain"
_BYTES = "application/octet-stream"
_SEQUENCE = '"sequence_id":0,"sequence_start":false,"sequence_end":false'


def script(packages: str) -> str:
    """Write a program of the shell that runs it, with these packages and nothing else."""
    start = (
        f"import sys, runpy; sys.path.append({packages!r}); "
        f"runpy.run_path({__file__!r}, run_name='__main__')"
    )
    libraries = os.environ.get(_LIBRARIES, "")  # those of the made-up environment are none
    return (
        f'#!/bin/sh\nexport {_GIVEN_LIBRARIES}="${_LIBRARIES}" {_LIBRARIES}="{libraries}"\n'
        f'exec "{sys.executable}" -I -S -c "{start}" "$@"\n'
    )


# --- descriptions of models ---------------------------------------------------------------------


def parsed(text: str) -> dict[str, Any]:
    """Read the text format of protocol buffers, as far as descriptions of models use it."""
    tokens = re.findall(r'"[^"]*"|[\[\]{}:,]|[\w.+-]+|\S', text)
    message, at = _message_at(tokens, 0, "")
    assert at == len(tokens), f"'{tokens[at]}' is too much"
    return message


def _message_at(tokens: list[str], at: int, end: str) -> tuple[dict[str, Any], int]:
    message: dict[str, Any] = {}
    while at < len(tokens) and tokens[at] != end:
        key = tokens[at]
        assert re.fullmatch(r"[a-z_]+", key), key
        assert key not in message, f"{key} comes twice"
        at += 1
        if tokens[at] == ":":
            at += 1
        message[key], at = _value_at(tokens, at)
    return message, at


def _value_at(tokens: list[str], at: int) -> tuple[Any, int]:
    token = tokens[at]
    if token == "{":
        message, at = _message_at(tokens, at + 1, "}")
        assert tokens[at] == "}"
        return message, at + 1
    if token == "[":
        found: list[Any] = []
        while tokens[at] != "]":
            value, at = _value_at(tokens, at + 1)
            found.append(value)
            assert tokens[at] in ",]"
        return found, at + 1
    if token[0] == '"':
        return token[1:-1], at + 1
    return (int(token) if re.fullmatch(r"-?\d+", token) else token), at + 1


# --- what programs of models import -------------------------------------------------------------


class Utils(types.ModuleType):
    """The names of the server's own module."""

    @dataclass
    class Tensor:
        name_: str
        value: np.ndarray[Any, Any]

        def name(self) -> str:
            return self.name_

        def as_numpy(self) -> np.ndarray[Any, Any]:
            return self.value

    @dataclass
    class InferenceResponse:
        output_tensors: list[Any]

    @dataclass
    class InferenceRequest:
        tensors: list[Any]

    @staticmethod
    def get_input_tensor_by_name(request: Any, name: str) -> Any:
        return next((t for t in request.tensors if t.name() == name), None)


@dataclass
class Array:
    """A tensor of a PyTorch that knows no more than the network needs."""

    a: np.ndarray[Any, Any]

    def to(self, device: str) -> Array:
        assert device == "cpu"
        return self

    def cpu(self) -> Array:
        return self

    def numpy(self) -> np.ndarray[Any, Any]:
        return self.a

    def view(self, *shape: int) -> Array:
        return Array(self.a.reshape(shape))

    def unsqueeze(self, at: int) -> Array:
        return Array(np.expand_dims(self.a, at))

    def flatten(self, start: int) -> Array:
        return Array(self.a.reshape(*self.a.shape[:start], -1))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.a.shape)


def _conv2d(x: Array, filters: Array, bias: Array, padding: int) -> Array:
    side = filters.shape[-1]
    padded = np.pad(x.a[0, 0], padding)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (side, side))
    maps = np.einsum("xykl,fkl->fxy", windows, filters.a[:, 0])
    return Array((maps + bias.a[:, None, None])[None])


def _max_pool2d(x: Array, side: int) -> Array:
    n, maps, rows, columns = x.shape
    parts = x.a.reshape(n, maps, rows // side, side, columns // side, side)
    return Array(parts.max((3, 5)))


def small_torch() -> Any:
    """Make a module with what the network needs of PyTorch."""
    functional = types.SimpleNamespace(
        conv2d=_conv2d, max_pool2d=_max_pool2d, linear=lambda x, w, b: Array(x.a @ w.a.T + b.a)
    )
    torch: Any = types.ModuleType("torch")
    torch.float32 = np.float32
    torch.cuda = types.SimpleNamespace(is_available=lambda: False)
    torch.nn = types.SimpleNamespace(functional=functional)
    torch.inference_mode = contextlib.nullcontext
    torch.from_numpy = Array
    torch.frombuffer = lambda data, dtype: Array(np.frombuffer(data, dtype))
    torch.relu = lambda x: Array(np.maximum(x.a, 0))
    return torch


# --- the server ---------------------------------------------------------------------------------


class Repository:
    """The models that are loaded, checked against their descriptions.

    Attributes:
        failed: models that did not load when they were last asked for.
    """

    def __init__(self, folder: Path, regions: str) -> None:
        self._folder = folder
        self._regions = regions
        self._shared: dict[str, Path] = {}
        self._configs: dict[str, dict[str, Any]] = {}
        self._programs: dict[str, Any] = {}
        self.counts: dict[str, int] = {}
        self.failed: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._configs

    def has(self, name: str) -> bool:
        """Tell whether a model is described."""
        return (self._folder / name / "config.pbtxt").is_file()

    def load(self, name: str) -> None:
        """Load a model, or load it anew."""
        self.failed.add(name)
        config = parsed((self._folder / name / "config.pbtxt").read_text())
        assert config["name"] == name
        assert config["max_batch_size"] == 0
        version = self._folder / name / "1"
        if config.get("platform") == "ensemble":
            assert not list(version.iterdir())
            self._check_steps(config)
        else:
            assert config["backend"] == "python"
            (group,) = config["instance_group"]
            assert group["kind"] == "KIND_CPU"
            assert group["count"] >= 1
            self._share(name)
            self._programs[name] = _program(name, version / "model.py")
        self._configs[name] = config
        self.counts[name] = 0
        self.failed.remove(name)

    def _share(self, name: str) -> None:
        if name not in self._shared:
            self._shared[name] = SHARED / f"{self._regions}{uuid.uuid4()}"
            self._shared[name].touch(exist_ok=False)

    def close(self) -> None:
        """Remove its regions of shared memory."""
        for region in self._shared.values():
            region.unlink()

    def _check_steps(self, config: dict[str, Any]) -> None:
        steps = config["ensemble_scheduling"]["step"]
        assert len(steps) <= LONGEST, "too many steps"
        made = [t["name"] for t in config["input"]] + [s["output_map"]["value"] for s in steps]
        assert len(set(made)) == len(made), "a tensor is made twice"
        assert {s["input_map"]["value"] for s in steps} <= set(made)
        assert {t["name"] for t in config["output"]} <= set(made)
        for step in steps:
            called = self._configs[step["model_name"]]
            assert step["model_version"] == -1
            assert step["input_map"]["key"] == called["input"][0]["name"]
            assert step["output_map"]["key"] == called["output"][0]["name"]

    def is_ensemble(self, name: str) -> bool:
        """Tell whether a model is one of steps."""
        return name not in self._programs

    def infer(self, name: str, given: dict[str, Any]) -> dict[str, Any]:
        """Run a model."""
        config = self._configs[name]
        _check_tensors(config["input"], given)
        self.counts[name] += 1
        if name in self._programs:
            request = Utils.InferenceRequest([Utils.Tensor(*pair) for pair in given.items()])
            (response,) = self._programs[name].execute([request])
            found = {t.name(): t.as_numpy() for t in response.output_tensors}
        else:
            found = self._follow(config["ensemble_scheduling"]["step"], given)
            found = {t["name"]: found[t["name"]] for t in reversed(config["output"])}
        _check_tensors(config["output"], found)
        return found

    def _follow(self, steps: list[dict[str, Any]], given: dict[str, Any]) -> dict[str, Any]:
        tensors, left = dict(given), list(steps)
        while left:
            step = next(s for s in left if s["input_map"]["value"] in tensors)
            left.remove(step)
            inner = {step["input_map"]["key"]: tensors[step["input_map"]["value"]]}
            back = self.infer(step["model_name"], inner)
            tensors[step["output_map"]["value"]] = back[step["output_map"]["key"]]
        return tensors


def _program(name: str, path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"model_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    program = module.TritonPythonModel()
    if hasattr(program, "initialize"):
        program.initialize({"model_name": name, "model_version": "1"})
    return program


def _check_tensors(described: list[dict[str, Any]], tensors: dict[str, Any]) -> None:
    assert {d["name"] for d in described} == tensors.keys()
    for d in described:
        tensor = tensors[d["name"]]
        assert tensor.dtype == _TYPES[d["data_type"]], d
        assert list(tensor.shape) == d["dims"], (d, tensor.shape)


def _answer(repository: Repository, name: str, body: bytes, head_bytes: int) -> tuple[bytes, int]:
    """Answer an inference: the body, and how long the JSON in it is."""
    head, at = json.loads(body[:head_bytes]), head_bytes
    given = {}
    for d in head["inputs"]:
        size = d["parameters"]["binary_data_size"]
        dtype = _TYPES[f"TYPE_{d['datatype']}"]
        given[d["name"]] = np.frombuffer(body[at : at + size], dtype).reshape(d["shape"])
        at += size
    assert at == len(body), "unexpected additional input data"
    assert head["parameters"] == {"binary_data_output": True}
    found = repository.infer(name, given)
    if os.environ.get(FLAW) == "wrong":
        found = {name: value + 1 for name, value in found.items()}
    raw = {name: value.tobytes() for name, value in found.items()}
    if os.environ.get(FLAW) == "empty":
        raw = dict.fromkeys(raw, b"")
    outputs = [
        {"name": name, "datatype": {"f": "FP32", "u": "UINT8"}[value.dtype.kind],
         "shape": value.shape, "parameters": {"binary_data_size": len(raw[name])}}
        for name, value in found.items()
    ]  # fmt: skip
    described = json.dumps(outputs, separators=(",", ":"))
    further = ",".join([_SEQUENCE] * len(found))
    parameters = f'"parameters":{{{further}}},' if repository.is_ensemble(name) else ""
    text = f'{{"model_name":"{name}","model_version":"1",{parameters}"outputs":{described}}}'
    return text.encode() + b"".join(raw.values()), len(text)


class Handler(BaseHTTPRequestHandler):
    """Speaks the protocol."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # an answer goes out at once
    repository: Repository
    requested = 0

    def do_GET(self) -> None:
        if self.path == "/v2/health/ready":
            type(self).requested += 1  # it listens before it is ready
            ready = type(self).requested > 1 and os.environ.get(FLAW) != "unready"
            self._reply(200 if ready and not self.repository.failed else 400, _TEXT)
            return
        name = self.path.split("/")[3]
        assert self.path == f"/v2/models/{name}/stats"
        count = self.repository.counts[name]
        said = json.dumps({"model_stats": [{"name": name, "inference_count": count}]})
        self._reply(200, _JSON, said.encode())

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        parts = self.path.split("/")[1:]
        if parts[:3] == ["v2", "repository", "models"] and parts[4:] == ["load"]:
            self._load(parts[3])
        elif (parts[:2], parts[3:]) == (["v2", "models"], ["infer"]):
            self._infer(parts[2], body)
        else:
            self._refuse(404, _TEXT, "Not Found")

    def _load(self, name: str) -> None:
        if not self.repository.has(name):
            self._refuse(500, _JSON, f"failed to load '{name}', failed to poll from repository")
            return
        try:
            self.repository.load(name)
        except Exception as error:  # whatever its program does
            self._refuse(400, _JSON, f"load failed for model '{name}': {error!r}\n\nAt:\n  it\n")
            return
        self._reply(200, _JSON)

    def _infer(self, name: str, body: bytes) -> None:
        length = int(self.headers.get("inference-header-content-length", len(body)))
        if name not in self.repository:
            self._refuse(404, _TEXT, f"Request for unknown model: '{name}' is not found")
        elif length > len(body):
            self._refuse(400, _TEXT, "inference header size should be in range")
        else:
            try:
                reply, head_bytes = _answer(self.repository, name, body, length)
            except json.JSONDecodeError as error:
                self._refuse(500, _JSON, f"failed to parse the request JSON buffer: {error}")
            except Exception as error:  # whatever its program does
                self._refuse(400, _JSON, repr(error))
            else:
                self._reply(200, _BYTES, reply, head_bytes)

    def _refuse(self, status: int, content_type: str, why: str) -> None:
        self._reply(status, content_type, json.dumps({"error": why}).encode())

    def _reply(
        self, status: int, content_type: str, body: bytes = b"", head_bytes: int = 0
    ) -> None:
        self.send_response_only(status)
        self.send_header("Content-Type", content_type)
        if head_bytes:
            self.send_header("Inference-Header-Content-Length", str(head_bytes))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, form: str, *values: object) -> None:
        """Say nothing."""


# --- the program --------------------------------------------------------------------------------


def _options() -> argparse.Namespace:
    options = argparse.ArgumentParser(allow_abbrev=False)
    options.add_argument("--model-repository", type=Path, required=True)
    options.add_argument("--load-model", action="append", default=[])
    options.add_argument("--http-port", type=int, required=True)
    options.add_argument("--exit-timeout-secs", type=int)
    options.add_argument("--disable-auto-complete-config", action="store_true")
    options.add_argument("--backend-directory", type=Path)
    options.add_argument("--backend-config", type=_of_the_backend, action="append", default=[])
    for name, value in _GIVEN.items():
        options.add_argument(f"--{name}", choices=[value], required=True)
    return options.parse_args()


def _of_the_backend(option: str) -> tuple[str, str]:
    backend, _, setting = option.partition(",")
    key, _, value = setting.partition("=")
    if backend != "python" or not value:
        raise ValueError(option)
    if key == "stub-timeout-seconds":
        int(value)
    elif key != "shm-region-prefix-name":
        raise ValueError(option)
    return key, value


def _check_parts(folder: Path) -> None:
    """Fail as the server does if it cannot start the stub, or as the stub does."""
    for part in PARTS:
        assert (folder / "python" / part).is_file(), f"no {part}"
    assert os.access(folder / "python" / PARTS[0], os.X_OK), "the stub is not executable"
    python = shutil.which("python3")
    assert python is not None
    (packages,) = Path(python).parent.parent.glob("lib/python3.*/site-packages")
    library = f"lib{packages.parent.name}.so.1.0"
    folders = os.environ[_GIVEN_LIBRARIES].split(os.pathsep)
    assert any((Path(folder) / library).is_file() for folder in folders), f"no {library}"


@contextlib.contextmanager
def _repository(given: argparse.Namespace) -> Iterator[Repository]:
    regions = dict(given.backend_config).get("shm-region-prefix-name", "triton_python_backend")
    repository = Repository(given.model_repository, regions)
    try:
        for name in given.load_model:
            repository.load(name)
        yield repository
    finally:
        repository.close()


def main() -> None:
    """Serve until SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    given = _options()
    if given.backend_directory is not None:
        _check_parts(given.backend_directory)
    if os.environ.get(FLAW) == "ends":
        sys.exit("| exit_timeout | 5 |\nerror: creating server: failed to load\n\nAt:\n  it\n;")
    sys.modules["triton_python_backend_utils"] = Utils("triton_python_backend_utils")
    sys.modules["torch"] = small_torch()
    with _repository(given) as repository:
        Handler.repository = repository
        ThreadingHTTPServer(("127.0.0.1", given.http_port), Handler).serve_forever()


if __name__ == "__main__":
    main()
