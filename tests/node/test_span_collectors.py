"""Collectors of spans that fail, and settings of the exporter."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import importlib
import logging
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from dandelion.errors import DandelionError, InvalidInput
from dandelion.node import Node, Settings
from dandelion.node import spans as sender
from tests.collector import EXPORT_LIMIT_S, accept, collector
from tests.node.exported_spans import dropped, exported, exporting, until
from tests.processes import children

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "GATHER_S", 0.01)


def never(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.connection.recv(1)  # until the exporter leaves


def garbage(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"\x00\xff this is not HTTP\r\n\r\n" * 10)


def refusal(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.send_response(403, "no\x1b[31m")
    handler.send_header("Content-Length", "0")
    handler.end_headers()


def endless(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(b"x" * 65536)


@pytest.mark.parametrize("answer", [garbage, refusal, never, None])
def test_a_collector_that_fails_is_reported_once(
    gathered: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    answer: Any,
) -> None:
    monkeypatch.setattr(sender, "EXPORT_S", 0.3)
    with collector() as collected, contextlib.ExitStack() as stack:
        url = collected.url
        if answer is None:
            url = "http://127.0.0.1:9"
        else:
            collected.answer = answer
        node = stack.enter_context(exporting(url))
        for count in (1, 2):
            node.invoke("echo", a=b"1")
            until(lambda expected=2 * count: dropped(node) >= expected)
        assert exported(node) == 0
        assert f"dandelion_trace_spans_dropped_total {2 * 2}.0" in node.metrics().decode()
    warnings = [r for r in caplog.records if r.name == "dandelion.traces"]
    assert len(warnings) == 1
    assert url in warnings[0].getMessage()


def test_spans_are_sent_again_when_the_collector_is_back(
    gathered: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "dandelion.traces")
    monkeypatch.setattr(sender, "EXPORT_S", 0.3)
    with collector() as collected, exporting(collected.url) as node:
        collected.answer = refusal
        node.invoke("echo", a=b"1")
        until(lambda: dropped(node) == 2)
        collected.answer = accept
        while not exported(node):  # this machine may be busy for longer than an export may take
            tried = dropped(node)
            node.invoke("echo", a=b"1")
            until(lambda tried=tried: exported(node) or dropped(node) > tried)  # type: ignore[misc]
    assert [r.levelno for r in caplog.records if r.name == "dandelion.traces"] == [
        logging.WARNING,
        logging.INFO,
    ]


def test_a_response_without_end_is_given_up(
    gathered: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "ANSWER_S", 1.0)
    monkeypatch.setattr(sender, "_FIRST_PAUSE_S", 0.01)
    with collector() as collected, exporting(collected.url) as node:
        collected.answer = endless
        node.invoke("echo", a=b"1")
        until(lambda: dropped(node) == 2)
        monkeypatch.setattr(sender, "ANSWER_S", 60.0)  # the next process has to start first
        collected.answer = accept
        node.invoke("echo", a=b"1")
        until(lambda: exported(node) == 2)


def test_a_process_that_dies_is_started_again(
    gathered: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "_FIRST_PAUSE_S", 0.01)
    with collector() as collected:
        before = children()
        with exporting(collected.url) as node:
            node.invoke("echo", a=b"1")
            until(lambda: exported(node) == 2)
            (pid,) = children() - before
            os.kill(pid, signal.SIGKILL)
            node.invoke("echo", a=b"1")
            until(lambda: dropped(node) == 2)
            node.invoke("echo", a=b"1")
            until(lambda: exported(node) == 4)


def test_the_queue_is_bounded_and_drops_are_counted(
    gathered: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "QUEUE_SPANS", 10)
    held, gate = threading.Event(), threading.Event()

    def hold(handler: http.server.BaseHTTPRequestHandler) -> None:
        held.set()
        gate.wait(EXPORT_LIMIT_S)
        accept(handler)

    with collector() as collected, exporting(collected.url) as node:
        collected.answer = hold
        node.invoke("echo", a=b"1")
        assert held.wait(EXPORT_LIMIT_S)
        for _ in range(20):
            node.invoke("echo", a=b"1")
        assert dropped(node) == 2 * 20 - (10 - 2)
        gate.set()
        until(lambda: exported(node) == 10)
    assert len(collected.spans) == 10


@pytest.mark.parametrize("answer", [never, refusal])
def test_closing_is_bounded(gathered: None, monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    monkeypatch.setattr(sender, "CLOSE_S", 0.2)
    with collector() as collected:
        collected.answer = answer
        with exporting(collected.url) as node:
            node.invoke("echo", a=b"1")
            until(lambda: collected.spans)
            node.invoke("echo", a=b"1")
        spans = node._parts.spans
        assert spans is not None
        assert spans.counts().exported + spans.counts().dropped == 4


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("collector:4318", "not a URL"),
        ("ftp://collector", "not a URL"),
        ("http://", "not a URL"),
        ("http://a:99999", "not a URL"),
        ("https://user:s3cret@collector", "user name"),
    ],
)
def test_bad_urls_are_refused(url: str, text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        Node(Settings(otlp_endpoint=url))
    assert refused.value.where == "otlp_endpoint"
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("line", ["s3cret", "a b: s3cret", "a: s3cret\x01", ": s3cret"])
def test_bad_headers_are_refused_without_their_values(tmp_path: Path, line: str) -> None:
    file = tmp_path / "headers"
    file.write_text("ok: 1\n" + line)
    with pytest.raises(InvalidInput) as refused:
        Node(Settings(otlp_endpoint="http://127.0.0.1", otlp_headers=str(file)))
    assert "line 2" in str(refused.value)
    assert "s3cret" not in str(refused.value)


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DandelionError, match=r"dandelion-engine\[otlp\]"):
        Node(Settings(otlp_endpoint="http://127.0.0.1"))
