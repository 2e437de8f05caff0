"""The page's files, and the activity that it reads."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dandelion.frontend.docs_page import DOCS_PAGE
from dandelion.frontend.page import FILES
from dandelion.frontend.stream_places import PLACES
from dandelion.testing import wait_until
from dandelion.tokens.file import write_tokens

from .guarded import RECORDS, Guarded, guarded, token
from .served import function


@pytest.fixture(scope="module", params=[1, 2], ids=["in the node", "processes"])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Guarded]:
    with guarded(tmp_path_factory.mktemp("page"), request.param) as opened:
        for tenant in ("acme", "beta"):
            opened.node.register(
                function("echo", ("a",), ("b",)),
                function("fail", ("a",), ("b",), fail="ValueError: no"),
                tenant=tenant,
            )
        yield opened


def activity(served: Guarded, query: str = "", caller: str = "acme") -> dict[str, Any]:
    answer = served.ask("GET", f"/v1/activity{query}", caller)
    assert answer.status == 200
    found: dict[str, Any] = json.loads(answer.body)
    return found


def invoke(served: Guarded, name: str, caller: str = "acme") -> int:
    return served.ask("POST", f"/v1/invoke/{name}", caller, b"x").status


def test_files_are_public_and_their_policy_is_strict(served: Guarded) -> None:
    index = served.ask("GET", "/")
    assert index.status == 200
    names = re.findall(rb'(?:href|src)="(page/[^"]+)"', index.body)
    assert names
    answers = [index, *(served.ask("GET", f"/{name.decode()}") for name in names)]
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert answer.status == 200
        assert "script-src 'self'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
    for name in ("nothing.js", "..%2fpage.css", "%2e%2e", "__init__.py"):
        assert served.ask("GET", f"/page/{name}", "acme").status == 404


def test_no_file_has_inline_code_or_another_host() -> None:
    for path in FILES.iterdir():
        text = path.read_text()
        assert "innerHTML" not in text, path
        assert not re.search(r"https?://(?!www\.w3\.org/)", text), path
        if path.suffix == ".html":
            assert not re.search(r"<script(?![^>]*src=)|\son\w+=|style=", text), path


def test_all_addresses_are_relative() -> None:
    """A proxy may serve the node below a path."""
    texts = [DOCS_PAGE.decode(), *(path.read_text() for path in FILES.iterdir())]
    for text in texts:
        assert not re.search(r"""["'`(=]/[a-z]""", text)


def test_activity_is_that_of_the_tenant(served: Guarded) -> None:
    before = activity(served)["cursor"]
    assert invoke(served, "echo") == 200
    assert invoke(served, "fail") == 422
    assert invoke(served, "echo", "beta") == 200
    wait_until(lambda: activity(served)["cursor"] == before + 2)
    found = activity(served, f"?after={before}")
    assert [(one["name"], one["outcome"] == "ok") for one in found["invocations"]] == [
        ("fail", False),
        ("echo", True),
    ]
    assert {one["name"] for one in found["functions"]} == {"echo", "fail"}
    failed = activity(served, f"?after={before}&failed=true&name=fail")["invocations"]
    assert "no" in failed[0]["message"]
    beta = activity(served, caller="beta")
    assert {one["id"] for one in beta["invocations"]}.isdisjoint(
        one["id"] for one in found["invocations"]
    )


@pytest.mark.parametrize(
    "query", ["?after=-1", "?after=x", "?limit=0", "?limit=1001", "?failed=maybe", "?nam=x"]
)
def test_wrong_queries_are_refused(served: Guarded, query: str) -> None:
    answer = served.ask("GET", f"/v1/activity{query}", "acme")
    assert (answer.status, answer.kind) == (400, "InvalidInput")


class Events:
    """A stream of events."""

    def __init__(self, served: Guarded, caller: str = "acme", after: str = "0") -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=20)
        headers = {"Authorization": f"Bearer {token(caller)}"}
        self._connection.request("GET", f"/v1/activity/events?after={after}", headers=headers)
        self.response = self._connection.getresponse()

    def next(self) -> dict[str, Any]:
        """Read one event."""
        while not (line := self.response.readline()).startswith(b"data: "):
            assert line, "the stream ended"
        found: dict[str, Any] = json.loads(line[6:])
        return found

    def close(self) -> None:
        """Leave."""
        self.response.close()
        self._connection.close()


def test_events_tell_what_is_new(served: Guarded) -> None:
    with closing(Events(served)) as events:
        assert events.response.headers["content-type"] == "text/event-stream"
        cursor = events.next()["cursor"]
        assert invoke(served, "echo") == 200
        found = events.next()
        assert [one["number"] for one in found["invocations"]] == [cursor + 1]


def test_a_stream_ends_when_its_token_is_removed(tmp_path: Path) -> None:
    with guarded(tmp_path, 1) as served:
        served.node.register(function("echo", ("a",), ("b",)), tenant="acme")
        with closing(Events(served)) as events:
            events.next()
            write_tokens(served.tokens, [r for r in RECORDS if r.name != "acme"])
            wait_until(lambda: served.ask("GET", "/v1/functions", "acme").status == 401, 20)
            assert invoke(served, "echo", "only-invoke") == 200
            assert events.response.read() == b"\n", "it shows what happened since"


def test_streams_are_limited(served: Guarded) -> None:
    if served.node.settings.frontends > 1:
        pytest.skip("each process has its own limit")
    streams = [Events(served, after="9007199254740991") for _ in range(PLACES * 2 // 3)]
    try:
        for one in streams:
            one.next()
        assert served.ask("GET", "/v1/activity/events", "acme").status == 429
    finally:
        for one in streams:
            one.close()
    wait_until(lambda: served.ask("GET", "/v1/activity/events?after=x", "acme").status == 400)


def test_a_server_that_drains_ends_its_streams(tmp_path: Path) -> None:
    with guarded(tmp_path, 1) as opened:
        events = Events(opened, "default")
        events.next()
    assert events.response.read().strip() in (b"", b": nothing new")
    events.close()


def test_a_head_request_ends_no_matter_how_long_the_stream_is(served: Guarded) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=20)
    with closing(connection):
        for path in ("/v1/activity/events", "/v1/logs?follow=true", "/v1/activity"):
            given = {"Authorization": f"Bearer {token('acme')}"}
            connection.request("HEAD", path, headers=given)
            response = connection.getresponse()
            assert (response.status, response.read()) == (200, b""), path
