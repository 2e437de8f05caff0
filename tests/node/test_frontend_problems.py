"""Requests that go wrong over HTTP: statuses, limits, and clients that leave."""

from __future__ import annotations

import contextlib
import json
import threading
from typing import Any

import pytest

from tests.node.served import SETTINGS
from tests.node.served_frontend import JSON, RAW, Served, given_served

served = pytest.fixture(scope="module", params=["in the node", "processes"])(given_served)


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", "/nothing", 404, "NoRoute"),
        ("GET", "/v1/", 404, "NoRoute"),
        ("GET", "/v1/functions/", 404, "NoRoute"),
        ("GET", "/v1/functions/nothing", 404, "Unknown"),
        ("GET", "/v1/functions/twice", 404, "Unknown"),
        ("GET", "/v1/compositions/echo", 404, "Unknown"),
        ("GET", "/v1/functions/echo?version=2", 404, "Unknown"),
        ("GET", "/v1/functions/echo?version=x", 400, "InvalidInput"),
        ("GET", "/v1/functions/echo?version=0", 400, "InvalidInput"),
        ("GET", "/v1/functions/echo?verzion=1", 400, "InvalidInput"),
        ("GET", "/v1/functions/" + "n" * 5000, 404, "Unknown"),
        ("DELETE", "/v1/functions/nothing", 404, "Unknown"),
        ("DELETE", "/v1/functions/echo", 409, "Conflict"),
        ("GET", "/v1/traces/nothing", 404, "Unknown"),
        ("GET", "/v1/compositions/echo/graph", 404, "Unknown"),
        ("GET", "/v1/compositions/twice/graph?format=png", 400, "InvalidInput"),
        ("GET", "/v1/invoke/echo", 405, "MethodNotAllowed"),
        ("PUT", "/v1/register", 405, "MethodNotAllowed"),
        ("PATCH", "/healthz", 405, "MethodNotAllowed"),
        ("POST", "/v1/invoke/ecko", 404, "Unknown"),
        ("POST", "/v1/invoke/" + "n" * 5000, 404, "Unknown"),
        ("POST", "/v1/invoke/echo?version=7", 404, "Unknown"),
        ("POST", "/v1/invoke/echo?deadline_s=-1", 400, "InvalidInput"),
        ("POST", "/v1/invoke/echo?deadline_s=nan", 400, "InvalidInput"),
        ("POST", "/v1/invoke/echo?deadline=1", 400, "InvalidInput"),
        ("POST", "/v1/invoke/echo?priority=high", 400, "InvalidInput"),
        ("POST", "/v1/register", 415, "UnsupportedMedia"),
    ],
)
def test_wrong_requests(served: Served, method: str, path: str, status: int, kind: str) -> None:
    problem = served.problem(method, path)
    assert (problem["status"], problem["type"]) == (status, f"urn:dandelion:error:{kind}")


def test_numbers_that_are_too_large_are_refused(served: Served) -> None:
    """Messages between the processes have integers of 64 bits."""
    code = {"format": "null", "main": {"text": "x"}}
    document = {
        "functions": [
            {
                "name": "z",
                "inputs": ["a"],
                "outputs": ["b"],
                "limits": {"memory_bytes": 1 << 64},
                "code": [code],
            }
        ]
    }
    for _ in range(10):  # more than a frontend has threads
        problem = served.problem("POST", "/v1/register", json.dumps(document).encode(), **JSON)
        assert problem["status"] == 400
    assert served.problem("GET", f"/v1/functions/echo?version={1 << 64}")["status"] in (400, 404)
    assert served.ask("GET", "/v1/functions")[0] == 200


def test_methods_that_are_allowed_are_named(served: Served) -> None:
    _, headers, _ = served.ask("PUT", "/v1/functions/echo")
    assert headers["allow"] == "GET, DELETE"


def test_a_repeated_parameter_is_named(served: Served) -> None:
    """Of every route that has parameters."""
    paths = json.loads(served.ask("GET", "/openapi.json")[2])["paths"]
    tried = set()
    for path, methods in paths.items():
        for method, operation in methods.items():
            for given in operation.get("parameters", ()):
                if given["in"] != "query":
                    continue
                name = given["name"]
                target = path.replace("{name}", "echo").replace("{id}", "0" * 32)
                query = f"?{name}=1&{name}=1"
                problem = served.problem(method.upper(), target + query, b"x", **RAW)
                assert problem["status"] == 400, (path, problem)
                assert problem["error"]["fields"]["where"] == f"query.{name}"
                tried.add(name)
    expected = {"version", "deadline_s", "priority", "set", "wait_s", "after", "limit", "format"}
    assert expected <= tried


def test_near_names(served: Served) -> None:
    assert served.problem("POST", "/v1/invoke/ecko")["hint"] == "did you mean 'echo'?"
    assert served.problem("GET", "/v1/regsiter")["hint"] == "did you mean '/v1/register'?"
    problem = served.invoke("pair", {"left": "x", "rihgt": "y"})
    assert problem["hint"] == "did you mean 'right'?"


def test_missing_sets(served: Served) -> None:
    problem = served.invoke("pair", {"left": "x"})
    assert problem["error"]["fields"]["where"] == "sets.right"


def test_media_types(served: Served) -> None:
    problem = served.problem("POST", "/v1/invoke/echo", b"x", Content_Type="text/html")
    assert problem["status"] == 415
    problem = served.problem("POST", "/v1/invoke/echo", b"x", Content_Encoding="gzip")
    assert problem["status"] == 415


def test_a_failed_application_has_the_status_of_its_cause(served: Served) -> None:
    problem = served.invoke("fails", {"x": "y"})
    assert (problem["status"], problem["type"]) == (422, "urn:dandelion:error:Raised")
    assert problem["error"]["type"] == "ApplicationFailed"
    assert problem["error"]["cause"]["fields"]["exception"] == "ValueError: no"


def test_bad_registrations(served: Served) -> None:
    for body, where in (
        (b"{", "body"),
        (b"[]", "body"),
        (b'{"functions": [{"name": 3}]}', "functions[0].name"),
        (b'{"functions": [{"name": "f", "kode": []}]}', "functions[0]"),
        (b'{"libraries": {"l": {"data": "*"}}}', "libraries[...].data"),
        (b"\xff", "body"),
        (b"[" * 50_000, "body"),
    ):
        problem = served.problem("POST", "/v1/register", body, **JSON)
        assert problem["error"]["fields"]["where"] == where
    text = b"composition c(a) => (b) {\n  echoo(a = all a) => (b = b);\n}"
    problem = served.problem("POST", "/v1/register", text, content_type="text/vnd.dandelion")
    assert problem["type"].endswith("InvalidComposition")
    assert problem["problems"][0]["line"] == 2


@pytest.mark.parametrize("over", [1, 20 << 20])
def test_bodies_over_the_limit(served: Served, over: int) -> None:
    size = SETTINGS.body_limit_bytes + over
    headers = RAW | {"Content-Length": str(size)}
    with contextlib.closing(served.connect()) as connection:
        connection.putrequest("POST", "/v1/invoke/echo")
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        if over == 1:
            connection.send(bytes(size))
        answer = connection.getresponse()
        problem = json.loads(answer.read())
        assert answer.status == 413
        assert problem["error"]["fields"]["limit_bytes"] == SETTINGS.body_limit_bytes
        assert answer.getheader("connection") == "close"
    assert not served.leaks()


def test_chunked_bodies_over_the_limit(served: Served) -> None:
    pieces = (bytes(1 << 20) for _ in range(10))
    status, _, _ = served.ask("POST", "/v1/invoke/echo", pieces, RAW)
    assert status == 413
    assert not served.leaks()


def test_a_body_that_breaks_off(served: Served) -> None:
    head = b"POST /v1/invoke/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500000\r\n\r\n"
    served.raw(head + bytes(200_000), leave=True)
    assert served.invoke("echo", {"a": "still there"})["sets"]["b"]


def test_deadline(served: Served) -> None:
    problem = served.invoke("wait", {"a": "x"}, "?deadline_s=0.05")
    assert served.gate.gate.entered()
    assert (problem["status"], problem["error"]["fields"]) == (504, {"deadline_s": 0.05})
    problem = served.invoke("wait", {"a": "x"}, Dandelion_Deadline="0.05")
    assert problem["status"] == 504
    assert served.gate.gate.entered()
    for _ in range(2):
        assert served.gate.gate.was_cancelled()


def test_a_client_that_leaves_cancels_its_invocation(served: Served) -> None:
    connection = served.connect()
    connection.request("POST", "/v1/invoke/wait", b"x" * 100_000, RAW)
    assert served.gate.gate.entered()
    connection.close()
    assert served.gate.gate.was_cancelled()
    assert served.invoke("echo", {"a": "still there"})["sets"]["b"]


def test_a_slow_invocation_is_answered(served: Served) -> None:
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(served.invoke("wait", {"a": "late"})))
    thread.start()
    assert served.gate.gate.entered()
    assert served.ask("GET", "/healthz")[0] == 200  # the server goes on meanwhile
    served.gate.gate.open()
    thread.join(20)
    assert answers[0]["sets"]["b"][0]["text"] == "late"


def test_a_bug_is_a_problem_and_no_dropped_connection(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> bytes:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(served.node, "metrics", broken)
    problem = served.problem("GET", "/metrics")
    assert (problem["status"], problem["error"]["type"]) == (500, "InternalError")
    served.gate.gate.open()
    problem = served.invoke("bug", {"a": "x"})
    assert served.gate.gate.entered()
    assert (problem["status"], problem["error"]["type"]) == (500, "InternalError")
