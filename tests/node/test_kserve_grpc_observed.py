"""Calls over gRPC in the access log and in traces."""

from __future__ import annotations

import contextlib
import http.server
import json
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from dandelion.frontend_process.grpc_frontend.calls import _client
from dandelion.node import spans as sender
from dandelion.testing import wait_until
from dandelion.tokens.file import write_tokens
from tests.collector import accept, collector
from tests.node.kserve_requests import INFER, ONE, given, request_of

from .guarded import RECORDS, token
from .kserve_served import KSERVE, KServed, kserved
from .test_spans import PARENT, SPAN, TRACE, of_name

PATH = "/inference.GRPCInferenceService/"


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_bytes().splitlines()]


@contextlib.contextmanager
def logged(folder: Path, **settings: Any) -> Iterator[tuple[KServed, Path]]:
    file = folder / "access.log"
    with kserved(1, with_grpc=True, access_log=str(file), **settings) as served:
        yield served, file


def test_calls_and_requests_of_streams_are_lines(tmp_path: Path) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with (
        logged(tmp_path) as (served, file),
        contextlib.closing(triton.InferenceServerClient(served.grpc_address)) as client,
    ):
        with grpc.insecure_channel(served.grpc_address) as channel:
            _, call = channel.unary_unary(INFER).with_call(
                request_of("INT8", [1], [b"1"]).SerializeToString(),
                timeout=20,
                metadata=[("traceparent", PARENT)],
            )
            trailer = dict(call.trailing_metadata())
        with pytest.raises(InferenceServerException):
            client.infer("ecko", [given("a", ONE, "INT8")])
        with pytest.raises(InferenceServerException):
            client.infer("fail", [given("a", ONE, "INT8")])
        client.start_stream(lambda result, error: answers.put((result, error)))
        for name in ("echo", "ecko"):
            client.async_stream_infer(name, [given("a", ONE, "INT8")])
        assert [answers.get(timeout=20)[1] is None for _ in range(2)] == [True, False]
        client.stop_stream()
        with grpc.insecure_channel(served.grpc_address) as channel, pytest.raises(grpc.RpcError):
            channel.unary_unary(f"{PATH}Nothing")(b"", timeout=20)
        assert client.is_server_live()
        wait_until(lambda: len(file.read_bytes().splitlines()) == 7)
    first, unknown, failed, good, bad, missing, live = lines_of(file)
    assert first == {
        "time": first["time"],
        "method": "POST",
        "path": f"{PATH}ModelInfer",
        "status": 200,
        "grpc_status": "OK",
        "bytes_in": first["bytes_in"],
        "bytes_out": first["bytes_out"],
        "duration_s": first["duration_s"],
        "tenant": "default",
        "token": "-",
        "peer": first["peer"],
        "invocation": first["invocation"],
        "trace_id": TRACE,
        "user_agent": first["user_agent"],
    }
    assert first["invocation"] == trailer["dandelion-invocation"]
    assert trailer["traceparent"] == PARENT, "without export it is forwarded"
    assert first["user_agent"].startswith("grpc-")
    assert first["peer"].startswith("127.0.0.1:")
    assert min(first["bytes_in"], first["bytes_out"], first["duration_s"]) > 0
    assert (unknown["status"], unknown["grpc_status"]) == (404, "NOT_FOUND")
    assert "invocation" not in unknown
    assert (failed["status"], failed["grpc_status"]) == (422, "UNKNOWN")
    assert failed["invocation"] not in ("", first["invocation"])
    assert {line["path"] for line in (good, bad)} == {f"{PATH}ModelStreamInfer"}
    assert {line["grpc_status"] for line in (good, bad)} == {"OK", "NOT_FOUND"}
    assert (missing["path"], missing["grpc_status"]) == (f"{PATH}Nothing", "UNIMPLEMENTED")
    assert (live["path"], live["status"]) == (f"{PATH}ServerLive", 200)


def test_callers_that_are_refused_and_that_leave_are_lines(tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    write_tokens(path, RECORDS)
    with (
        logged(tmp_path, tokens=str(path)) as (served, file),
        grpc.insecure_channel(served.grpc_address) as channel,
    ):
        infer = channel.unary_unary(INFER)
        message = request_of("INT8", [1], [b"1"]).SerializeToString()
        for caller in (None, "only-read"):
            metadata = [("authorization", f"Bearer {token(caller)}")] if caller else []
            with pytest.raises(grpc.RpcError):
                infer(message, timeout=20, metadata=metadata)
        waiting = request_of("INT8", [1], [b"1"])
        waiting.model_name = "wait"
        metadata = [("authorization", f"Bearer {token('default')}")]
        call = infer.future(waiting.SerializeToString(), timeout=20, metadata=metadata)
        wait_until(lambda: served.node.info().running == 1)
        call.cancel()
        wait_until(lambda: len(file.read_bytes().splitlines()) == 3)
    unknown, without_right, left = lines_of(file)
    assert (unknown["status"], unknown["grpc_status"]) == (401, "UNAUTHENTICATED")
    assert not {"token", "tenant"} & unknown.keys()
    assert (without_right["status"], without_right["grpc_status"]) == (403, "PERMISSION_DENIED")
    assert (without_right["token"], without_right["tenant"]) == ("only-read", "acme")
    assert (left["status"], left["grpc_status"]) == (499, "CANCELLED")


@pytest.mark.parametrize(
    ("peer", "client"),
    [
        ("ipv4:192.0.2.1:5000", ("192.0.2.1", 5000)),
        ("ipv6:%5B2001:db8::1%5D:5000", ("2001:db8::1", 5000)),
        ("ipv6:[::1]:5", ("::1", 5)),
        ("unix:/a/b", None),
        ("", None),
    ],
)
def test_peers_are_read(peer: str, client: tuple[str, int] | None) -> None:
    assert _client(peer) == client


def test_the_context_goes_through_the_invocation_to_io_functions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sender, "GATHER_S", 0.01)
    heard: list[dict[str, str]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heard.append({k.lower(): v for k, v in self.headers.items()})
            accept(self)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server, collector() as collected:
        serving = threading.Thread(target=server.serve_forever, args=(0.02,))
        serving.start()
        text = f"GET http://127.0.0.1:{server.server_address[1]}/ HTTP/1.1\n"
        request = request_of("BYTES", [1], bytes_contents=[text.encode()])
        request.model_name, request.inputs[0].name = "HTTP", "requests"
        settings: dict[str, Any] = {
            "backends": (*KSERVE.backends, "http"),
            "options": {"http": {"allow": "127.0.0.0/8"}},
            "otlp_endpoint": collected.url,
        }
        with (
            kserved(1, with_grpc=True, **settings) as served,
            grpc.insecure_channel(served.grpc_address) as channel,
        ):
            metadata = [("traceparent", PARENT), ("tracestate", "a=1")]
            _, call = channel.unary_unary(INFER).with_call(
                request.SerializeToString(), timeout=20, metadata=metadata
            )
            trailer = dict(call.trailing_metadata())
            spans = collected.wait(2)
        server.shutdown()
        serving.join()
    assert trailer["dandelion-invocation"]
    assert heard[0]["tracestate"] == "a=1"
    (root,) = of_name(spans, "invoke HTTP")
    (io_call,) = of_name(spans, "HTTP")
    assert root.parent_span_id.hex() == SPAN
    assert io_call.parent_span_id == root.span_id
    assert trailer["traceparent"] == f"00-{TRACE}-{root.span_id.hex()}-01"
    assert heard[0]["traceparent"] == f"00-{TRACE}-{io_call.span_id.hex()}-01"
