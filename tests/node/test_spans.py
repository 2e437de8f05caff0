"""Spans of invocations: trees, times and outcomes at a collector, and collectors that fail."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import importlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dandelion.documents import RegistrationDocument
from dandelion.errors import DandelionError, Overloaded
from dandelion.frontend.server import BackgroundServer
from dandelion.node import Node, Settings
from dandelion.node import spans as sender
from dandelion.settings import TenantSettings
from dandelion.trace_context import TraceContext
from tests.collector import EXPORT_LIMIT_S, accept, attributes_of, collector
from tests.node.exported_spans import dropped, exported, exporting, until
from tests.node.frontend_processes import Processes
from tests.node.served import GateDriver, function

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


PARENT = f"00-{TRACE}-{SPAN}-01"


ERROR = 2
SERVER = 2
process = importlib.import_module("dandelion.backends.process")


pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "GATHER_S", 0.01)


def of_name(spans: list[Any], name: str) -> list[Any]:
    return [span for span in spans if span.name == name]


def test_the_tree_of_a_composition(gathered: None) -> None:
    before_ns = time.time_ns()
    with collector() as collected, exporting(collected.url) as node:
        result = node.invoke_sets(
            "twice", {"x": _set(2)}, trace_context=TraceContext.of(TRACE, SPAN, 1, "a=1")
        )
        spans = collected.wait(4)
        assert until(lambda: exported(node)) == 4
    after_ns = time.time_ns()
    (root,) = of_name(spans, "invoke twice")
    assert root.trace_id.hex() == TRACE
    assert root.parent_span_id.hex() == SPAN
    assert root.kind == SERVER
    assert root.trace_state == "a=1"
    assert root.status.code == 0
    assert attributes_of(root) == {
        "dandelion.name": "twice",
        "dandelion.tenant": "default",
        "dandelion.outcome": "ok",
        "dandelion.invocation": result.id,
    }
    calls = [span for span in spans if span is not root]
    found = [attributes_of(call) for call in calls]
    assert sorted((a["dandelion.application"], a["dandelion.instance"]) for a in found) == [
        ("echo", 0),
        ("echo#2", 0),
        ("echo#2", 1),
    ]
    assert {a["dandelion.engine"] for a in found} == {"null"}
    assert {a["dandelion.attempt"] for a in found} == {1}
    assert len({span.span_id for span in spans}) == 4
    for call in calls:
        assert call.trace_id == root.trace_id
        assert call.parent_span_id == root.span_id
        assert call.trace_state == "a=1"
        times = (before_ns, root.start_time_unix_nano, call.start_time_unix_nano)
        times += (call.end_time_unix_nano, root.end_time_unix_nano, after_ns)
        assert list(times) == sorted(times)


def _set(count: int) -> Any:
    from dandelion.set_values import item_set

    return item_set("x", [b"%d" % n for n in range(count)])


def test_errors_have_a_status_with_their_type(gathered: None) -> None:
    with collector() as collected, exporting(collected.url) as node:
        with pytest.raises(DandelionError) as failed:
            node.invoke("fails", x=b"1")
        spans = collected.wait(2)
    (root,) = of_name(spans, "invoke fails")
    (call,) = of_name(spans, "fail")
    assert root.status.code == call.status.code == ERROR
    assert root.status.message == type(failed.value).__name__ == "ApplicationFailed"
    assert attributes_of(root)["error.type"] == attributes_of(root)["dandelion.outcome"]
    assert call.status.message == attributes_of(call)["error.type"] == "Raised"
    assert not root.parent_span_id


def test_a_refused_invocation_is_a_span(gathered: None) -> None:
    tenants = {"default": TenantSettings(invocations=1)}
    gate = GateDriver()
    with collector() as collected, exporting(collected.url, gate, tenants=tenants) as node:
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(node.invoke, "wait", a=b"1")
            assert gate.gate.entered()
            with pytest.raises(Overloaded):
                node.invoke("echo", a=b"1")
            gate.gate.open(1)
            running.result()
        spans = collected.wait(3)
    refused = [span for span in spans if span.status.code == ERROR]
    assert [span.name for span in refused] == ["invoke echo"]
    assert attributes_of(refused[0])["dandelion.outcome"] == "Overloaded"


def test_time_in_the_queue_and_stages_are_events(gathered: None) -> None:
    settings = {"backends": ("process",), "engines": {"process": 1}}
    with collector() as collected, exporting(collected.url, **settings) as node:
        code = "def f(x):\n    return x"
        node.register(
            RegistrationDocument(functions=(function("f", ("x",), ("y",), "python", code),))
        )
        node.register(
            "function f(x) => (y); composition several(x) => (y) { f(x = each x) => (y = y); }"
        )
        node.invoke("several", x=[b"1", b"2", b"3"])
        spans = collected.wait(4)
    calls = of_name(spans, "f")
    queued = [c for c in calls if any(e.name == "started" for e in c.events)]
    assert queued, "one engine, three calls"
    for call in calls:
        events = {e.name: e for e in call.events}
        assert {"sandbox", "run", "outputs"} <= events.keys()
        for event in call.events:
            assert call.start_time_unix_nano <= event.time_unix_nano <= call.end_time_unix_nano
        assert attributes_of(events["run"])["dandelion.duration_ns"] > 0
    for call in queued:
        (started,) = (e for e in call.events if e.name == "started")
        waited_ns = started.time_unix_nano - call.start_time_unix_nano
        assert attributes_of(started)["dandelion.queue_ns"] == waited_ns > 0


def test_the_service_is_named_by_the_environment(
    gathered: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "shop")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test,a=b")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "from-environment=e")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    file = tmp_path / "headers"
    file.write_text("# credentials\nAuthorization: Bearer s3cret\n\nx-scope = a\n")
    with collector() as collected, exporting(collected.url, otlp_headers=str(file)) as node:
        node.invoke("echo", a=b"1")
        collected.wait(2)
    assert collected.resources[0]["service.name"] == "shop"
    assert collected.resources[0]["deployment.environment"] == "test"
    assert collected.headers[0]["authorization"] == "Bearer s3cret"
    assert collected.headers[0]["x-scope"] == "a"
    assert collected.headers[0]["content-encoding"] == "gzip"


def test_the_service_is_dandelion_by_default(gathered: None) -> None:
    with collector() as collected, exporting(collected.url + "/v1/traces") as node:
        node.invoke("echo", a=b"1")
        collected.wait(2)
    assert collected.resources[0]["service.name"] == "dandelion"


def test_only_sampled_traces_are_exported(gathered: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "CLOSE_S", EXPORT_LIMIT_S)
    with collector() as collected, exporting(collected.url, otlp_ratio=0.0) as node:
        node.invoke("echo", a=b"1")
        node.invoke("echo", a=b"1", trace_context=TraceContext.of(TRACE, SPAN, 0))
        node.invoke("echo", a=b"1", trace_context=TraceContext.of(TRACE, "1" * 16, 1))
    assert len(collected.spans) == 2, "closing sends what is left"
    assert of_name(collected.spans, "invoke echo")[0].parent_span_id.hex() == "1" * 16


def test_an_invocation_keeps_a_bounded_number_of_calls(
    gathered: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dandelion.traces.EVENT_LIMIT", 2)
    with collector() as collected, exporting(collected.url) as node:
        node.invoke("twice", x=[b"1", b"2", b"3"])
        collected.wait(3)
        assert dropped(node) == 2
    (root,) = of_name(collected.spans, "invoke twice")
    assert attributes_of(root)["dandelion.calls_left_out"] == 2


@pytest.mark.parametrize("frontends", [1, 2])
def test_requests_and_responses_carry_the_context(gathered: None, frontends: int) -> None:
    with collector() as collected, contextlib.ExitStack() as stack:
        settings = Settings(
            backends=("null",), arena_bytes=16 << 20, otlp_endpoint=collected.url, otlp_ratio=1e-15
        )
        if frontends == 1:
            node = stack.enter_context(Node(settings))
            url = stack.enter_context(BackgroundServer(node)).url
            port = int(url.rpartition(":")[2])
        else:
            processes = stack.enter_context(Processes(settings, [], frontends))
            node, port = processes.node, processes.port
        node.register(
            RegistrationDocument(
                functions=(
                    function("echo", ("a",), ("b",)),
                    function("fail", ("a",), ("b",), fail="ValueError: no"),
                )
            )
        )
        answered = {name: _post(port, name, PARENT, "a=1") for name in ("echo", "fail")}
        unsampled = _post(port, "echo", PARENT[:-1] + "0")
        fresh = _post(port, "echo", "00-nonsense")
        spans = collected.wait(4)
        for name, (_, returned) in answered.items():
            (root,) = of_name(spans, f"invoke {name}")
            assert returned == f"00-{TRACE}-{root.span_id.hex()}-01"
            assert root.parent_span_id.hex() == SPAN
            assert root.trace_state == "a=1"
        assert answered["fail"][0] == 422
        assert unsampled[1].endswith("-00")
        assert fresh[1].split("-")[1] != TRACE
        assert fresh[1].endswith("-02"), "the trace id is random, and the trace is not recorded"


def _post(port: int, name: str, parent: str, state: str = "") -> tuple[int, str]:
    headers = {"Content-Type": "application/json", "traceparent": parent}
    if state:
        headers["tracestate"] = state
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
        connection.request("POST", f"/v1/invoke/{name}", '{"sets": {"a": "1"}}', headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status, answer.headers["traceparent"]


@pytest.mark.parametrize("exports", [True, False])
def test_io_functions_send_the_context_of_their_call(gathered: None, exports: bool) -> None:
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
        request = f"GET http://127.0.0.1:{server.server_address[1]}/ HTTP/1.1\n"
        own = f"traceparent: 00-{'a' * 32}-{'b' * 16}-00\n"
        url = collected.url if exports else ""
        settings = Settings(
            backends=("http",),
            options={"http": {"allow": "127.0.0.0/8"}},
            arena_bytes=16 << 20,
            otlp_endpoint=url,
        )
        with Node(settings) as node:
            context = TraceContext.of(TRACE, SPAN, 1, "a=1")
            for text in (request, request + own):
                node.invoke("HTTP", requests=text.encode(), trace_context=context)
            if exports:
                collected.wait(4)
            node.invoke("HTTP", requests=request.encode())
        server.shutdown()
        serving.join()
    sent = f"00-{TRACE}-{SPAN}-01"
    if exports:
        first = min(of_name(collected.spans, "HTTP"), key=lambda span: span.start_time_unix_nano)
        sent = f"00-{TRACE}-{first.span_id.hex()}-01"
    assert heard[0]["traceparent"] == sent
    assert heard[0]["tracestate"] == "a=1"
    assert heard[1]["traceparent"] == own[13:-1]
    assert "tracestate" not in heard[1]
    assert ("traceparent" in heard[2]) == exports
