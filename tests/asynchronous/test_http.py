"""Asynchronous invocations over HTTP, with one frontend and with two."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from dandelion.asynchronous.failures import KeyReused
from dandelion.errors import InvalidInput
from dandelion.frontend.async_client import AsyncClient
from dandelion.frontend.client import Client
from dandelion.testing import wait_until
from tests.asynchronous.http_client import SETS, TIMEOUT_S, Answer, Served, served


@pytest.fixture(scope="module", params=[1, 2], ids=["one", "two"])
def here(request: pytest.FixtureRequest) -> Iterator[Served]:
    with served(request.param) as found:
        yield found


def test_an_invocation_is_accepted_and_gives_the_synchronous_result(here: Served) -> None:
    answer = here.submit("echo")
    assert answer.status == 202
    assert answer.headers["preference-applied"] == "respond-async"
    assert answer.headers["location"] == f"../invocations/{answer.json['id']}"
    place = answer.place
    assert answer.json["state"] in ("waiting", "running", "succeeded")
    result = here.ask("GET", f"{place}/result?wait_s=20")
    json = {"Content-Type": "application/json"}
    synchronous = here.ask("POST", "/v1/invoke/echo", SETS, json)
    old, new = synchronous.json["id"].encode(), answer.json["id"].encode()
    assert (result.status, result.body) == (200, synchronous.body.replace(old, new))
    assert result.headers["dandelion-invocation"] == answer.json["id"]
    described = here.ask("GET", place).json
    assert described["state"] == "succeeded"
    assert described["attempts"] == 1
    assert described["created"] <= described["started"] <= described["ended"] < described["expires"]


@pytest.mark.parametrize("accept", ["application/msgpack", "application/octet-stream"])
def test_the_result_is_in_the_negotiated_form(here: Served, accept: str) -> None:
    place = here.submitted("echo")
    result = here.ask("GET", f"{place}/result?wait_s=20", headers={"Accept": accept})
    assert result.headers["content-type"] == accept
    given = {"Content-Type": "application/json", "Accept": accept}
    synchronous = here.ask("POST", "/v1/invoke/echo", SETS, given)
    ids = (s.headers["dandelion-invocation"].encode() for s in (synchronous, result))
    old, new = ids
    if accept == "application/msgpack":
        old, new = msgspec.msgpack.encode(old.decode()), msgspec.msgpack.encode(new.decode())
    assert result.body == synchronous.body.replace(old, new)
    assert here.ask("GET", f"{place}/result", headers={"Accept": "image/png"}).status == 406


def test_a_large_result_and_large_inputs(here: Served) -> None:
    body = bytes(range(256)) * 12_000
    raw = {"Content-Type": "application/octet-stream", "Prefer": "respond-async"}
    answer = here.ask("POST", "/v1/invoke/echo", body, raw)
    accept = {"Accept": "application/octet-stream"}
    place = answer.place
    assert here.ask("GET", f"{place}/result?wait_s=20", headers=accept).body == body


def test_no_result_yet_and_cancelling(here: Served) -> None:
    place = here.submitted("wait")
    assert here.gate.entered()
    early = here.ask("GET", f"{place}/result")
    assert (early.status, early.kind) == (409, "NotEnded")
    assert here.ask("GET", f"{place}?wait_s=0.05").json["state"] in ("waiting", "running")
    assert here.ask("DELETE", place).status == 202
    ended = here.ask("GET", f"{place}?wait_s=20").json
    assert ended["state"] == "cancelled"
    assert here.gate.was_cancelled()
    assert here.ask("GET", f"{place}/result").kind == "Cancelled"
    forgotten = here.ask("DELETE", place)
    assert (forgotten.status, forgotten.json["state"]) == (200, "cancelled")
    assert here.ask("GET", place).status == 404
    assert here.ask("DELETE", place).kind == "Unknown"


def test_a_failure_has_its_problem_and_status(here: Served) -> None:
    place = here.submitted("fails", b'{"sets": {"x": "hello"}}')
    result = here.ask("GET", f"{place}/result?wait_s=20")
    assert (result.status, result.kind) == (422, "Raised")
    described = here.ask("GET", place).json
    assert described["state"] == "failed"
    assert described["error"]["status"] == 422
    assert described["error"]["error"]["type"] == "ApplicationFailed"
    assert msgspec.json.decode(result.body)["instance"] == described["id"]


def test_a_wait_answers_synchronously_if_it_is_long_enough(here: Served) -> None:
    answer = here.submit("echo", Prefer="respond-async, wait=20")
    assert answer.status == 200
    assert answer.json["sets"]["b"][0]["text"] == "hello"
    assert answer.headers["preference-applied"] == "respond-async, wait=20"
    assert here.ask("GET", answer.place).json["state"] == "succeeded"
    failed = here.submit("fail", Prefer="respond-async, wait=20")
    assert (failed.status, failed.kind) == (422, "Raised")
    late = here.submit("wait", Prefer="wait=1, respond-async")
    here.gate.open()
    assert (late.status, late.json["state"]) == (202, "running")
    assert here.submit("echo", Prefer="wait=5").status == 200  # synchronous
    assert here.submit("echo", Prefer="return=minimal").status == 200


def test_preferences_in_several_lines_are_one_list(here: Served) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", here.port, timeout=TIMEOUT_S)
    with contextlib.closing(connection):
        connection.putrequest("POST", "/v1/invoke/echo")
        given = {"Content-Type": "application/json", "Content-Length": str(len(SETS))}
        lines = [*given.items(), ("Prefer", "respond-async"), ("Prefer", "wait=20")]
        for name, value in [*lines, ("Accept", "application/json"), ("Accept", "text/html")]:
            connection.putheader(name, value)
        connection.endheaders(SETS)
        response = connection.getresponse()
        assert response.status == 200, response.read()
        assert response.headers["preference-applied"] == "respond-async, wait=20"


def test_what_does_not_fit_is_refused_at_once(here: Served) -> None:
    assert here.submit("ecko").kind == "Unknown"
    assert here.submit("echo", b'{"sets": {}}').kind == "InvalidInput"
    assert here.submit("echo", b"{").status == 400
    assert here.submit("echo", Idempotency_Key="a b").kind == "InvalidInput"
    assert here.submit("echo", Idempotency_Key="k" * 300).kind == "InvalidInput"
    refused = here.submit("echo", Dandelion_Callback="https://hooks.example.org/")
    assert (refused.status, refused.kind) == (400, "InvalidInput")
    for path in ("?wait_s=61", "?wait_s=x", "?wait_s=nan", "?wait=1"):
        assert here.ask("GET", f"/v1/invocations/{'0' * 32}{path}").status == 400, path
    for path in ("?state=done", "?limit=0", "?limit=1001", "?after=x", "?page=1"):
        assert here.ask("GET", f"/v1/invocations{path}").status == 400, path
    for id_ in ("0" * 32, "..%2f..%2fetc", "x" * 5000):
        assert here.ask("GET", f"/v1/invocations/{id_}").status == 404


def test_a_key_gives_the_first_invocation(here: Served) -> None:
    first = here.submit("echo", Idempotency_Key="order-7")
    again = here.submit("echo", Idempotency_Key="order-7")
    assert first.json["id"] == again.json["id"]
    other = here.submit("echo", b'{"sets": {"a": "other"}}', Idempotency_Key="order-7")
    assert (other.status, other.kind) == (422, "KeyReused")
    here.ask("GET", f"{first.place}?wait_s=20")
    here.ask("DELETE", first.place)
    assert here.submit("echo", Idempotency_Key="order-7").json["id"] != first.json["id"]


def counted(here: Served) -> int:
    totals = here.node.totals(tenant="default")
    return sum(one.succeeded for one in totals if one.name == "echo")


def test_a_synchronous_request_with_a_key_is_carried_out_once(here: Served) -> None:
    def ask(name: str, key: str, body: bytes = SETS, **headers: str) -> Answer:
        given = {"Idempotency-Key": key, "Content-Type": "application/json", **headers}
        return here.ask("POST", f"/v1/invoke/{name}", body, given)

    before = counted(here)
    first, again = ask("echo", "buy-1"), ask("echo", "buy-1")
    plain = here.ask("POST", "/v1/invoke/echo", SETS, {"Content-Type": "application/json"})
    assert (first.status, first.json["sets"]) == (200, plain.json["sets"])
    assert again.body == first.body
    id_ = first.headers["dandelion-invocation"]
    assert first.json["id"] == again.headers["dandelion-invocation"] == id_
    assert counted(here) == before + 2, "one with the key, and one without"
    raw = ask("echo", "buy-1", Accept="application/octet-stream")
    assert raw.body == b"hello"
    other = ask("echo", "buy-1", b'{"sets": {"a": "other"}}')
    assert (other.status, other.kind) == (422, "KeyReused")
    assert ask("twice", "buy-1", b'{"sets": {"x": "hello"}}').kind == "KeyReused"
    late = here.submit("echo", Idempotency_Key="buy-1")
    assert (late.status, late.json["id"]) == (202, id_)
    for wrong in ("two words", ""):
        assert ask("echo", wrong).status == 400
    failed = [ask("fail", "buy-2") for _ in range(2)]
    assert [(one.status, one.kind) for one in failed] == [(422, "Raised")] * 2
    assert failed[0].headers["dandelion-invocation"] == failed[1].headers["dandelion-invocation"]


def test_a_callback_of_an_invocation_that_is_not_kept_is_refused(here: Served) -> None:
    before = counted(here)
    headers = {"Content-Type": "application/json", "Dandelion-Callback": "http://127.0.0.1/x"}
    refused = here.ask("POST", "/v1/invoke/echo", SETS, headers)
    assert (refused.status, refused.kind) == (400, "InvalidInput")
    assert "send Prefer: respond-async or an Idempotency-Key" in refused.json["detail"]
    assert counted(here) == before


def test_a_stream_ends_with_its_connection_in_http_1_0(here: Served) -> None:
    location = here.submit("echo").place
    here.ask("GET", f"{location}?wait_s=20")
    with socket.create_connection(("127.0.0.1", here.port), TIMEOUT_S) as old:
        head = f"GET {location}/events HTTP/1.0\r\nHost: localhost\r\nConnection: keep-alive"
        old.sendall(f"{head}\r\n\r\n".encode())
        response, _, body = b"".join(iter(lambda: old.recv(65536), b"")).partition(b"\r\n\r\n")
    assert response.startswith(b"HTTP/1.1 200")
    assert b"transfer-encoding" not in response, "it is not part of HTTP/1.0"
    assert b"connection: close" in response
    assert body.startswith((b"id:", b"event:", b"retry:", b"data:", b":")), body[:80]
    assert body.endswith(b"\n\n")


def test_a_repetition_waits_for_the_first_request(here: Served) -> None:
    given = {"Idempotency-Key": "slow-1", "Content-Type": "application/json"}
    with socket.create_connection(("127.0.0.1", here.port), TIMEOUT_S) as left:
        lines = [f"{name}: {value}" for name, value in given.items()]
        head = ["POST /v1/invoke/wait HTTP/1.1", "Host: localhost", *lines]
        left.sendall("\r\n".join([*head, f"Content-Length: {len(SETS)}", "", ""]).encode() + SETS)
        assert here.gate.entered()
    with ThreadPoolExecutor(2) as pool:
        repeated = [pool.submit(here.ask, "POST", "/v1/invoke/wait", SETS, given) for _ in range(2)]
        wait_until(lambda: here.node.info().running == 1)
        here.gate.open()
        answers = [one.result(TIMEOUT_S) for one in repeated]
    assert [one.status for one in answers] == [200, 200]
    assert answers[0].body == answers[1].body
    assert here.ask("GET", "/v1/invocations").json["invocations"][0]["attempts"] == 1


def test_a_wait_that_is_no_number_is_refused(here: Served) -> None:
    with Client(f"http://127.0.0.1:{here.port}") as client:
        handle = client.submit("wait", a="x")
        with pytest.raises(InvalidInput, match="timeout_s"):  # it would never be over
            handle.result(float("nan"))
        here.gate.open()
        assert handle.result(20)["b"].text() == "x"


def test_clients_repeat_a_call_with_a_key(here: Served) -> None:
    url = f"http://127.0.0.1:{here.port}"
    with Client(url) as client:
        calls = [client.invoke_sets("echo", {"a": "x"}, idempotency_key="c-1") for _ in range(2)]
        assert calls[0].id == calls[1].id
        assert calls[1].sets["b"].text() == "x"
        with pytest.raises(KeyReused):
            client.invoke("echo", a="y", idempotency_key="c-1")
        with pytest.raises(InvalidInput, match="idempotency_key"):
            client.invoke("echo", a="y", idempotency_key="two words")

    async def ask() -> str:
        async with AsyncClient(url) as client:
            assert (await client.invoke("echo", a="x", idempotency_key="c-1")).b.text() == "x"
            return (await client.invoke_sets("echo", {"a": "x"}, idempotency_key="c-1")).id

    assert asyncio.run(ask()) == calls[0].id
