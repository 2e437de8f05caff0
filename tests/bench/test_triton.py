"""Triton as a peer, against a stand-in for its server that is as strict with what it is given.

The stand-in is this file, run as a program: it takes the server's options, reads the repository,
runs models for Python through the interface that the server gives them, with a small PyTorch of its
own, follows the steps of ensembles, and speaks the protocol.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import re
import sys
import tempfile
import types
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import msgspec
import numpy as np
import pytest
from dandelion.bench.experiment import Bench
from dandelion.bench.load import HttpRequest, closed_loop
from dandelion.bench.records import Skip
from dandelion.bench.systems import names, peers_dispatch
from dandelion.bench.systems.peers_serving import Entry, entries, running
from dandelion.bench.systems.plover_chains import network, vector_addition
from dandelion.bench.systems.servers import ServerFailed, ServerProcess
from dandelion.bench.systems.triton import (
    PROGRAM,
    REMEDY,
    TritonEnsembles,
    TritonServer,
    inference,
    outputs,
)
from dandelion.bench.systems.triton_models import no_op

FLAW = "STAND_IN_FLAW"
GIVEN = {  # options that must have these values
    "model-control-mode": "explicit",
    "http-address": "127.0.0.1",
    "allow-grpc": "false",
    "allow-metrics": "false",
    "log-verbose": "0",
}
LONGEST = 50  # steps of an ensemble that the stand-in takes
TYPES: dict[str, np.dtype[Any]] = {
    "TYPE_FP32": np.dtype(np.float32),
    "TYPE_UINT8": np.dtype(np.uint8),
}
ABSENT = Skip(names.TRITON, f"not installed: no {PROGRAM} on the PATH; {REMEDY}")


# --- the stand-in -------------------------------------------------------------------------------


def parsed(text: str) -> dict[str, Any]:
    """Read the text format of protocol buffers, as far as descriptions of models use it."""
    tokens = re.findall(r'"[^"]*"|[\[\]{}:,]|[\w.+-]+|\S', text)
    message, at = message_at(tokens, 0, "")
    assert at == len(tokens), f"'{tokens[at]}' is too much"
    return message


def message_at(tokens: list[str], at: int, end: str) -> tuple[dict[str, Any], int]:
    message: dict[str, Any] = {}
    while at < len(tokens) and tokens[at] != end:
        key = tokens[at]
        assert re.fullmatch(r"[a-z_]+", key), key
        assert key not in message, f"{key} comes twice"
        at += 1
        if tokens[at] == ":":
            at += 1
        message[key], at = value_at(tokens, at)
    return message, at


def value_at(tokens: list[str], at: int) -> tuple[Any, int]:
    token = tokens[at]
    if token == "{":
        message, at = message_at(tokens, at + 1, "}")
        assert tokens[at] == "}"
        return message, at + 1
    if token == "[":
        found: list[Any] = []
        while tokens[at] != "]":
            value, at = value_at(tokens, at + 1)
            found.append(value)
            assert tokens[at] in ",]"
        return found, at + 1
    if token[0] == '"':
        return token[1:-1], at + 1
    return (int(token) if re.fullmatch(r"-?\d+", token) else token), at + 1


class Utils(types.ModuleType):
    """What models import: the names of the server's own module."""

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


def conv2d(x: Array, filters: Array, bias: Array, padding: int) -> Array:
    side = filters.shape[-1]
    padded = np.pad(x.a[0, 0], padding)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (side, side))
    maps = np.einsum("xykl,fkl->fxy", windows, filters.a[:, 0])
    return Array((maps + bias.a[:, None, None])[None])


def max_pool2d(x: Array, side: int) -> Array:
    n, maps, rows, columns = x.shape
    parts = x.a.reshape(n, maps, rows // side, side, columns // side, side)
    return Array(parts.max((3, 5)))


def small_torch() -> Any:
    functional = types.SimpleNamespace(
        conv2d=conv2d,
        max_pool2d=max_pool2d,
        linear=lambda x, w, b: Array(x.a @ w.a.T + b.a),
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


class Repository:
    """The models that are loaded, checked against their descriptions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.configs: dict[str, dict[str, Any]] = {}
        self.programs: dict[str, Any] = {}
        self.counts: dict[str, int] = {}

    def load(self, name: str) -> None:
        config = parsed((self.folder / name / "config.pbtxt").read_text())
        assert config["name"] == name
        assert config["max_batch_size"] == 0
        version = self.folder / name / "1"
        if config.get("platform") == "ensemble":
            assert not list(version.iterdir())
            self.check_steps(config)
        else:
            assert config["backend"] == "python"
            (group,) = config["instance_group"]
            assert group["kind"] == "KIND_CPU"
            assert group["count"] >= 1
            self.programs[name] = self.program(name, version / "model.py")
        self.configs[name] = config
        self.counts[name] = 0

    def check_steps(self, config: dict[str, Any]) -> None:
        steps = config["ensemble_scheduling"]["step"]
        assert len(steps) <= LONGEST, "too many steps"
        made = [t["name"] for t in config["input"]] + [s["output_map"]["value"] for s in steps]
        assert len(set(made)) == len(made), "a tensor is made twice"
        assert {s["input_map"]["value"] for s in steps} <= set(made)
        assert {t["name"] for t in config["output"]} <= set(made)
        for step in steps:
            called = self.configs[step["model_name"]]
            assert step["model_version"] == -1
            assert step["input_map"]["key"] == called["input"][0]["name"]
            assert step["output_map"]["key"] == called["output"][0]["name"]

    def program(self, name: str, path: Path) -> Any:
        spec = importlib.util.spec_from_file_location(f"model_{name}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        program = module.TritonPythonModel()
        if hasattr(program, "initialize"):
            program.initialize({"model_name": name, "model_version": "1"})
        return program

    def infer(self, name: str, given: dict[str, Any]) -> dict[str, Any]:
        config = self.configs[name]
        check_tensors(config["input"], given)
        self.counts[name] += 1
        if name in self.programs:
            request = Utils.InferenceRequest([Utils.Tensor(*pair) for pair in given.items()])
            (response,) = self.programs[name].execute([request])
            found = {t.name(): t.as_numpy() for t in response.output_tensors}
        else:
            found = self.follow(config["ensemble_scheduling"]["step"], given)
            found = {t["name"]: found[t["name"]] for t in config["output"]}
        check_tensors(config["output"], found)
        return found

    def follow(self, steps: list[dict[str, Any]], given: dict[str, Any]) -> dict[str, Any]:
        tensors, left = dict(given), list(steps)
        while left:
            step = next(s for s in left if s["input_map"]["value"] in tensors)
            left.remove(step)
            inner = {step["input_map"]["key"]: tensors[step["input_map"]["value"]]}
            back = self.infer(step["model_name"], inner)
            tensors[step["output_map"]["value"]] = back[step["output_map"]["key"]]
        return tensors


def check_tensors(described: list[dict[str, Any]], tensors: dict[str, Any]) -> None:
    assert {d["name"] for d in described} == tensors.keys()
    for d in described:
        tensor = tensors[d["name"]]
        assert tensor.dtype == TYPES[d["data_type"]], d
        assert list(tensor.shape) == d["dims"], (d, tensor.shape)


def answer(repository: Repository, name: str, body: bytes, head_bytes: int) -> tuple[bytes, int]:
    """Answer an inference: the body, and how long the JSON in it is."""
    head, at = json.loads(body[:head_bytes]), head_bytes
    given = {}
    for d in head["inputs"]:
        size = d["parameters"]["binary_data_size"]
        dtype = TYPES[f"TYPE_{d['datatype']}"]
        given[d["name"]] = np.frombuffer(body[at : at + size], dtype).reshape(d["shape"])
        at += size
    assert at == len(body)
    assert head["parameters"] == {"binary_data_output": True}
    found = repository.infer(name, given)
    if os.environ.get(FLAW) == "wrong":
        found = {name: value + 1 for name, value in found.items()}
    described = [
        {"name": name, "datatype": {"f": "FP32", "u": "UINT8"}[value.dtype.kind],
         "shape": value.shape, "parameters": {"binary_data_size": value.nbytes}}
        for name, value in found.items()
    ]  # fmt: skip
    text = json.dumps({"model_name": name, "model_version": "1", "outputs": described}).encode()
    return text + b"".join(value.tobytes() for value in found.values()), len(text)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # an answer goes out at once
    repository: Repository
    asked = 0

    def do_GET(self) -> None:
        if self.path == "/v2/health/ready":
            type(self).asked += 1  # it listens before it is ready
            ready = type(self).asked > 1 and os.environ.get(FLAW) != "unready"
            self.reply(200 if ready else 400, b"")
            return
        name = self.path.split("/")[3]
        assert self.path == f"/v2/models/{name}/stats"
        count = self.repository.counts[name]
        self.reply(200, json.dumps({"model_stats": [{"inference_count": count}]}).encode())

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        parts = self.path.split("/")[1:]
        try:
            if parts[:3] == ["v2", "repository", "models"] and parts[4:] == ["load"]:
                self.repository.load(parts[3])
                self.reply(200, b"")
                return
            assert (parts[:2], parts[3:]) == (["v2", "models"], ["infer"])
            length = int(self.headers["inference-header-content-length"])
            reply, head_bytes = answer(self.repository, parts[2], body, length)
            self.reply(200, reply, head_bytes)
        except Exception as error:  # a server answers whatever a model does
            self.reply(400, json.dumps({"error": repr(error)}).encode())

    def reply(self, status: int, body: bytes, head_bytes: int = 0) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if head_bytes:
            self.send_header("Inference-Header-Content-Length", str(head_bytes))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, form: str, *values: object) -> None:
        pass


def of_a_backend(option: str) -> str:
    if not re.fullmatch(r"python,stub-timeout-seconds=\d+", option):
        raise ValueError(option)
    return option


def stand_in() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--model-repository", type=Path, required=True)
    options.add_argument("--load-model", action="append", default=[])
    options.add_argument("--http-port", type=int, required=True)
    options.add_argument("--exit-timeout-secs", type=int)
    options.add_argument("--backend-config", type=of_a_backend)
    for name, value in GIVEN.items():
        options.add_argument(f"--{name}", choices=[value], required=True)
    given = options.parse_args()
    sys.modules["triton_python_backend_utils"] = Utils("triton_python_backend_utils")
    sys.modules["torch"] = small_torch()
    Handler.repository = Repository(given.model_repository)
    for name in given.load_model:
        Handler.repository.load(name)
    ThreadingHTTPServer(("127.0.0.1", given.http_port), Handler).serve_forever()


# --- tests --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the stand-in; its folder is given."""
    folder = tmp_path_factory.mktemp("bin")
    script = folder / PROGRAM
    ends = f'test "${FLAW}" = ends && echo "failed to load all models" >&2 && exit 1\n'
    script.write_text(f'#!/bin/sh\n{ends}exec "{sys.executable}" "{__file__}" "$@"\n')
    script.chmod(0o755)
    return folder


@pytest.fixture
def repositories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the folder where repositories are written."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def installed(program: Path, repositories: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put the stand-in on the PATH; the folder where repositories are written is given."""
    monkeypatch.setenv("PATH", f"{program}{os.pathsep}{os.environ['PATH']}")
    return repositories


@pytest.fixture
def absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.fixture
def no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_dispatch, "_installed", lambda name: False)


def triton() -> Entry:
    return next(e for e in entries(Bench(backend="opencl"), network()) if e.name == names.TRITON)


def lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def as_sent(port: int, request: HttpRequest) -> Request:
    """Write the load generator's request for another client."""
    headers = {"content-type": request.content_type, **dict(request.headers)}
    return Request(f"http://127.0.0.1:{port}{request.path}", request.body, headers)


def steps_run(server: ServerProcess) -> int:
    with urlopen(f"http://127.0.0.1:{server.port}/v2/models/no_op/stats", timeout=10) as said:
        return int(json.load(said)["model_stats"][0]["inference_count"])


@pytest.mark.usefixtures("absent", "no_others")
def test_without_the_program_it_is_skipped_everywhere() -> None:
    skips: list[Skip] = []
    with running(triton(), network(), skips) as found:
        assert found is None
    with peers_dispatch.peers(False, skips) as others:
        assert others == []
    assert [skip for skip in skips if skip.what == names.TRITON] == [ABSENT, ABSENT]
    with pytest.raises(ServerFailed, match=PROGRAM):
        TritonServer([no_op()])


def test_the_network_is_served_and_another_answer_is_wrong(installed: Path) -> None:
    skips: list[Skip] = []
    with running(triton(), network(), skips) as found:
        assert found is not None, skips
        server, request = found
        assert lives(server.pid)
        assert len(list(installed.glob("triton-*/network/1/model.py"))) == 1
        with urlopen(as_sent(server.port, request), timeout=10) as said:
            right = said.read()
        expecting = msgspec.structs.replace(request, expect=right)
        load = closed_loop(server.port, expecting, callers=2, seconds=0.1, warm_up_s=0.0)
        assert load.count > 0
        assert load.errors == {}
        same = replace(triton(), start=lambda: contextlib.nullcontext(server))
        with running(same, vector_addition(), skips) as wrong:
            assert wrong is None
    assert skips == [Skip(names.TRITON, "it gives a wrong result")]
    assert not lives(server.pid)
    assert list(installed.glob("triton-*")) == []


@pytest.mark.usefixtures("no_others")
def test_ensembles_run_every_step(installed: Path) -> None:
    skips: list[Skip] = []
    with peers_dispatch.peers(False, skips) as found:
        (peer,) = found
        assert isinstance(peer, TritonEnsembles)
        server = peer._server
        chain, fan = peer.chain(7), peer.fan(5)
        assert chain is not None
        assert fan is not None
        before = steps_run(server)
        assert outputs(bytes(chain())) == {"s7": b"x"}
        assert steps_run(server) == before + 7
        assert outputs(bytes(fan())) == {f"y{i}": b"x" for i in range(5)}
        assert steps_run(server) == before + 12
        assert peer.chain(LONGEST + 1) is None
        assert peer.chain(7) is not None  # described and loaded anew
    assert [skip.what for skip in skips] == ["Dask", "Ray"]
    assert not lives(server.pid)
    assert list(installed.glob("triton-*")) == []


@pytest.mark.usefixtures("no_others")
@pytest.mark.parametrize(
    ("flaw", "reason"), [("ends", "failed to load"), ("wrong", "wrong result")]
)
def test_one_that_does_not_work_is_skipped(
    installed: Path, monkeypatch: pytest.MonkeyPatch, flaw: str, reason: str
) -> None:
    monkeypatch.setenv(FLAW, flaw)
    skips: list[Skip] = []
    with peers_dispatch.peers(False, skips) as found:
        assert found == []
    assert skips[-1].what == names.TRITON
    assert reason in skips[-1].reason
    assert list(installed.glob("triton-*")) == []


def test_a_quick_run_starts_none(
    installed: Path, no_others: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    skips: list[Skip] = []
    with peers_dispatch.peers(True, skips) as found:
        assert found == []
    assert "--quick" in skips[-1].reason


def test_one_that_is_never_ready_is_ended(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FLAW, "unready")
    ended: list[int] = []
    stop = TritonServer.stop

    def stop_and_tell(server: TritonServer) -> None:
        stop(server)
        ended.append(server.pid)

    monkeypatch.setattr(TritonServer, "stop", stop_and_tell)
    with pytest.raises(ServerFailed):
        TritonServer([no_op()], wait_s=0.9)
    assert ended
    assert not lives(ended[0])
    assert list(installed.glob("triton-*")) == []


def test_a_request_is_json_and_then_raw_bytes() -> None:
    request = inference(no_op(), b"x")
    ((name, length),) = request.headers
    head = json.loads(request.body[: int(length)])
    assert name == "inference-header-content-length"
    assert request.body[int(length) :] == b"x"
    assert request.path == "/v2/models/no_op/infer"
    assert head["inputs"] == [
        {"name": "a", "shape": [1], "datatype": "UINT8", "parameters": {"binary_data_size": 1}}
    ]


def reply(*sizes: object) -> bytes:
    described = [
        {"name": f"y{i}", "parameters": {"binary_data_size": size}} for i, size in enumerate(sizes)
    ]
    return json.dumps({"model_name": "ü}", "outputs": described}, ensure_ascii=False).encode()


def test_outputs_are_cut_from_an_answer() -> None:
    assert outputs(reply(2, 0, 3) + b"ab{}\xff") == {"y0": b"ab", "y1": b"", "y2": b"{}\xff"}


@pytest.mark.parametrize(
    "bad",
    [b"", b"none", b"[]", b"{}", b'{"outputs": [{"name": "y", "data": [1]}]}', reply(2) + b"a",
     reply(2) + b"abc", reply(None)],
)  # fmt: skip
def test_an_answer_of_another_form_is_refused(bad: bytes) -> None:
    with pytest.raises(ValueError):
        outputs(bad)


if __name__ == "__main__":
    stand_in()
