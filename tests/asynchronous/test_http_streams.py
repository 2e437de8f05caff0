"""Asynchronous invocations over HTTP: lists and streams of events."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from dandelion.node import Settings
from dandelion.testing import wait_until
from tests.asynchronous.http_client import TIMEOUT_S, Served, served
from tests.node.frontend_processes import Processes
from tests.node.served import DOCUMENT, SETTINGS, GateDriver


@pytest.fixture(scope="module", params=[1, 2], ids=["one", "two"])
def here(request: pytest.FixtureRequest) -> Iterator[Served]:
    with served(request.param) as found:
        yield found


def test_the_list_is_paged_and_filtered(here: Served) -> None:
    places = [here.submitted("echo") for _ in range(5)]
    places.append(here.submitted("wait"))
    wanted = [place.rpartition("/")[2] for place in places]
    for place in places[:5]:
        here.ask("GET", f"{place}?wait_s=20")
    found: list[str] = []
    after = ""
    while True:
        page = here.ask("GET", f"/v1/invocations?limit=2{after}").json
        found += [one["id"] for one in page["invocations"]]
        if "after" not in page:
            break
        after = f"&after={page['after']}"
    assert found[:6] == wanted[::-1]
    assert len(found) == len(set(found))
    running = here.ask("GET", "/v1/invocations?state=running").json["invocations"]
    here.gate.open()
    assert [one["id"] for one in running] == [wanted[-1]]


def events_of(text: bytes) -> list[tuple[str, str, Any]]:
    """Read a stream: id, kind and data of each event."""
    found = []
    for block in text.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line)
        if "data" in fields:
            found.append((fields["id"], fields["event"], msgspec.json.decode(fields["data"])))
    return found


def test_events_are_streamed_until_the_end(here: Served) -> None:
    place = here.submitted("twice", b'{"sets": {"x": ["one", "two"]}}')
    here.ask("GET", f"{place}?wait_s=20")
    answer = here.ask("GET", f"{place}/events")
    assert answer.headers["content-type"] == "text/event-stream"
    events = events_of(answer.body)
    ended = [data["application"] for _, kind, data in events if kind == "application"]
    assert len(ended) == 2
    [outputs] = [data["outputs"] for _, _, data in events if data.get("outputs")]
    assert outputs == {"y": {"items": 2, "size_bytes": 6}}
    assert [data["state"] for _, kind, data in events if kind == "state"][-1] == "succeeded"
    ids = [id_ for id_, _, _ in events]
    rest = here.ask("GET", f"{place}/events", headers={"Last-Event-ID": ids[1]})
    assert [id_ for id_, _, _ in events_of(rest.body)] == ids[2:]
    nothing = here.ask("GET", f"{place}/events", headers={"Last-Event-ID": ids[-1]})
    assert (nothing.status, nothing.body) == (204, b"")
    unknown = here.ask("GET", f"{place}/events", headers={"Last-Event-ID": "0-7"})
    assert [id_ for id_, _, _ in events_of(unknown.body)] == ids
    json = here.ask("GET", f"{place}/events?after={ids[0]}", headers={"Accept": "application/json"})
    assert [event["id"] for event in json.json["events"]] == ids[1:]


def test_a_stream_follows_what_happens(here: Served) -> None:
    place = here.submitted("wait")
    found: list[bytes] = []
    running = threading.Event()

    def follow() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", here.port, timeout=TIMEOUT_S)
        with contextlib.closing(connection):
            connection.request("GET", f"{place}/events")
            response = connection.getresponse()
            while chunk := response.read1(65536):
                found.append(chunk)
                if b'"running"' in chunk:
                    running.set()

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        assert running.wait(TIMEOUT_S)
    finally:
        here.gate.open()
        thread.join()
    states = [data["state"] for _, kind, data in events_of(b"".join(found)) if kind == "state"]
    assert states[-2:] == ["running", "succeeded"]


def test_a_client_that_leaves_changes_nothing(here: Served) -> None:
    place = here.submitted("wait")
    for path in (f"{place}/result?wait_s=60", f"{place}/events"):
        connection = http.client.HTTPConnection("127.0.0.1", here.port, timeout=TIMEOUT_S)
        connection.request("GET", path)
        wait_until(lambda: sum(here.node._parts.kept.views.watching.values()) == 1)
        connection.close()
        wait_until(lambda: not here.node._parts.kept.views.watching)
    here.gate.open()
    assert here.ask("GET", f"{place}?wait_s=20").json["state"] == "succeeded"


def test_the_head_of_a_stream_does_not_wait(here: Served) -> None:
    place = here.submitted("wait")
    assert here.gate.entered()
    head = here.ask("HEAD", f"{place}/events")
    assert (head.status, head.body) == (200, b"")
    here.gate.open()
    here.ask("GET", f"{place}?wait_s=20")


def test_the_trace_has_the_same_id(here: Served) -> None:
    place = here.submitted("echo")
    here.ask("GET", f"{place}?wait_s=20")
    id_ = place.rpartition("/")[2]
    trace = here.ask("GET", f"/v1/traces/{id_}")
    assert trace.json["otherData"]["invocation"] == id_


@pytest.mark.parametrize("frontends", [1, 2])
def test_a_tenant_has_a_bounded_number_of_streams(frontends: int) -> None:
    with served(frontends, async_watchers=20) as here, contextlib.ExitStack() as opened:
        place = here.submitted("wait")
        assert here.gate.entered()
        watching = here.node._parts.kept.views.watching
        for count in range(1, 21):
            connection = http.client.HTTPConnection("127.0.0.1", here.port, timeout=TIMEOUT_S)
            opened.callback(connection.close)
            connection.request("GET", f"{place}/events")
            wait_until(lambda count=count: watching["default"] == count, TIMEOUT_S)  # type: ignore[misc]
        for path in (f"{place}/events", f"{place}?wait_s=1", f"{place}/result?wait_s=1"):
            refused = here.ask("GET", path)
            assert (refused.status, refused.kind) == (429, "Overloaded"), path
        assert here.ask("GET", place).json["state"] == "running"
        assert here.submit("echo").status == 202
        # It is accepted: with an error the client would repeat it.
        accepted = here.submit("echo", Prefer="respond-async, wait=20")
        assert accepted.status == 202, accepted.body
        assert accepted.headers["preference-applied"] == "respond-async"
        assert here.ask("GET", accepted.place).status == 200
        opened.close()
        wait_until(lambda: not watching, TIMEOUT_S)
        here.gate.open()
        assert here.ask("GET", f"{place}?wait_s=20").json["state"] == "succeeded"


def test_an_invocation_survives_its_frontend() -> None:
    driver = GateDriver()
    changed: Settings = msgspec.structs.replace(SETTINGS, frontends=2)
    with Processes(changed, [driver], 2) as processes:
        processes.node.register(DOCUMENT)
        assert processes.node.wait_ready()
        here = Served(processes.node, processes.port, driver)
        place = here.submitted("wait")
        assert driver.gate.entered()
        old = processes.supervisor.pids
        for pid in old:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: processes.supervisor._are_ready() and _others(processes, old), TIMEOUT_S)
        assert here.ask("GET", place).json["state"] == "running"
        driver.gate.open()
        result = here.ask("GET", f"{place}/result?wait_s=20")
        assert result.json["sets"]["b"][0]["text"] == "hello"


def _others(processes: Processes, old: list[int]) -> bool:
    pids = processes.supervisor.pids
    return len(pids) == len(old) and not set(pids) & set(old)
