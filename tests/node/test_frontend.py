"""The HTTP frontend on a real server and a real node."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import urllib.parse
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dandelion.errors import InvalidInput
from dandelion.frontend import invocations
from dandelion.frontend.app import App
from dandelion.frontend.asgi import Message
from dandelion.frontend.docs_page import DOCS_PAGE
from dandelion.frontend.listener import bind
from dandelion.tokens import ANONYMOUS
from tests.node.served import SETTINGS
from tests.node.served_frontend import JSON, RAW, Served, given_served

served = pytest.fixture(scope="module", params=["in the node", "processes"])(given_served)

MSGPACK = {"Content-Type": "application/msgpack"}


def test_json(served: Served) -> None:
    reply = served.invoke("echo", {"a": "text"})
    assert reply["sets"] == {"b": [{"name": "a", "key": 0, "text": "text"}]}
    assert served.node.trace(reply["id"]) is not None


def test_composition_and_empty_sets(served: Served) -> None:
    assert len(served.invoke("twice", {"x": ["p", "q"]})["sets"]["y"]) == 2
    assert served.invoke("echo", {"a": None})["sets"] == {"b": None}


def test_numbers_keep_dtype_and_shape(served: Served) -> None:
    reply = served.invoke("matrix", {"m": [[1, 2], [3, 4]]})
    assert reply["sets"]["m"][0]["numbers"] == [[1, 2], [3, 4]]
    assert reply["types"] == {"m": {"dtype": "float32", "shape": [-1, 2]}}


def test_fixed_sets_are_not_given(served: Served) -> None:
    assert served.invoke("fixed", {"a": "x"})["sets"]["w"][0]["text"] == "weights"
    assert served.invoke("fixed", {"a": "x", "w": "y"})["error"]["fields"]["where"] == "sets.w"


@pytest.mark.parametrize("size", [0, 1, 5000, 70_000, 3_000_000])
def test_raw_bytes_of_any_size(served: Served, size: int) -> None:
    data = os.urandom(size)
    status, headers, body = served.ask("POST", "/v1/invoke/echo", data, RAW)
    assert (status, headers["content-type"]) == (200, "application/octet-stream")
    assert body == data
    assert headers["dandelion-invocation"]
    del body
    assert not served.leaks()


@pytest.mark.parametrize("size", [10, 3_000_000])
def test_chunked_bodies(served: Served, size: int) -> None:
    data = os.urandom(size)
    pieces = [data[i : i + 100_000] for i in range(0, size, 100_000)]
    assert served.ask("POST", "/v1/invoke/echo", iter(pieces), RAW)[2] == data


def test_raw_bytes_to_one_of_two_sets(served: Served) -> None:
    assert served.ask("POST", "/v1/invoke/pair?set=right", b"R", RAW)[2] == b"R"
    problem = served.problem("POST", "/v1/invoke/pair", b"R", **RAW)
    assert "?set=" in problem["hint"]
    problem = served.problem("POST", "/v1/invoke/pair?set=rigth", b"R", **RAW)
    assert problem["hint"] == "did you mean 'right'?"


def test_msgpack(served: Served) -> None:
    items = [
        {"name": "y", "key": 0, "data": b""},
        {"name": "../x", "key": 7, "data": os.urandom(100_000)},
    ]
    body = msgspec.msgpack.encode({"sets": {"a": items}})
    status, headers, data = served.ask("POST", "/v1/invoke/echo", body, MSGPACK)
    assert (status, headers["content-type"]) == (200, "application/msgpack")
    reply = msgspec.msgpack.decode(data)
    assert reply["sets"]["b"] == items


def test_form(served: Served) -> None:
    body = (
        b'--B\r\nContent-Disposition: form-data; name="a"; filename="p.txt"\r\n\r\nfirst\r\n'
        b'--B\r\nContent-Disposition: form-data; name="a"; filename="q.txt"\r\n\r\n'
        + b"x" * 200_000
        + b"\r\n--B--\r\n"
    )
    headers = {"Content-Type": "multipart/form-data; boundary=B"}
    status, _, data = served.ask("POST", "/v1/invoke/echo", body, headers)
    assert status == 200
    sets = json.loads(data)["sets"]
    assert [(i["name"], len(i["text"])) for i in sets["b"]] == [("p.txt", 5), ("q.txt", 200_000)]


def test_forms_with_other_boundaries_are_alike() -> None:
    """Most clients draw a new one for each request."""

    def head(content_type: bytes) -> object:
        asked: Any = SimpleNamespace(
            headers={b"content-type": content_type}, grant=ANONYMOUS, path="/v1/invoke/f",
            raw_query=b"",
        )  # fmt: skip
        return invocations._head(asked)

    assert head(b"multipart/form-data; boundary=A") == head(b"multipart/form-data; boundary=B")
    assert head(b"multipart/form-data; boundary=A") != head(b"application/json")
    assert head(b"application/json; a=b") != head(b"application/json")


def test_accept(served: Served) -> None:
    body = json.dumps({"sets": {"a": "x"}})
    for accept, media_type in (
        ("application/msgpack", "application/msgpack"),
        ("application/octet-stream", "application/octet-stream"),
        ("text/html, */*;q=0.1", "application/json"),
    ):
        _, headers, _ = served.ask("POST", "/v1/invoke/echo", body, JSON | {"Accept": accept})
        assert headers["content-type"] == media_type
    assert served.problem("POST", "/v1/invoke/echo", body, **JSON, accept="text/html")[
        "type"
    ].endswith("NotAcceptable")


def test_raw_bytes_for_many_items_fall_back_or_fail(served: Served) -> None:
    _, headers, _ = served.ask("POST", "/v1/invoke/many", b"x", RAW)
    assert headers["content-type"] == "application/json"
    problem = served.problem("POST", "/v1/invoke/many", b"x", **RAW, accept=RAW["Content-Type"])
    assert problem["status"] == 406


def test_traceparent_is_echoed_if_it_is_one(served: Served) -> None:
    body = json.dumps({"sets": {"a": "x"}})
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    _, headers, _ = served.ask("POST", "/v1/invoke/echo", body, JSON | {"traceparent": parent})
    assert headers["traceparent"] == parent
    for bad in ("00-" + "0" * 32 + "-b7ad6b7169203331-01", "x", ""):
        _, headers, _ = served.ask("POST", "/v1/invoke/echo", body, JSON | {"traceparent": bad})
        assert "traceparent" not in headers


def test_expect_100_continue(served: Served) -> None:
    request = (
        b"POST /v1/invoke/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n"
        b"Connection: close\r\nExpect: 100-continue\r\n\r\nx"
    )
    assert served.raw(request).startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")


def test_keep_alive_and_pipelining(served: Served) -> None:
    one = b"POST /v1/invoke/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\n%d"
    last = one.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    answer = served.raw(one % 1 + one % 2 + last % 3)
    assert [part[:1] for part in answer.split(b"\r\n\r\n")[1:]] == [b"1", b"2", b"3"]


def test_register_describe_list_remove(served: Served) -> None:
    document = {
        "functions": [
            {"name": "extra", "inputs": ["a: int8[2]"], "outputs": ["b"], "code": [NULL]},
        ],
        "libraries": {"kernels/x.cl": {"data": base64.b64encode(b"\0\1").decode()}},
    }
    status, _, data = served.ask("POST", "/v1/register", json.dumps(document), JSON)
    assert status == 200
    found = {(r["kind"], r["name"]): r["version"] for r in json.loads(data)["registered"]}
    assert found[("function", "extra")] == 1
    description = json.loads(served.ask("GET", "/v1/functions/extra")[2])
    assert description["inputs"] == [{"name": "a", "dtype": "int8", "shape": [2]}]
    assert description["versions"] == [1]
    names = [f["name"] for f in json.loads(served.ask("GET", "/v1/functions")[2])["functions"]]
    assert {"extra", "echo"} <= set(names)
    library = urllib.parse.quote("kernels/x.cl", safe="")
    for path in (f"/v1/libraries/{library}", "/v1/libraries/kernels/x.cl"):
        assert json.loads(served.ask("GET", path)[2])["record"]["size_bytes"] == 2
    assert served.ask("DELETE", f"/v1/libraries/{library}")[0] == 200
    removed = json.loads(served.ask("DELETE", "/v1/functions/extra?version=1")[2])["removed"]
    assert [(r["name"], r["version"]) for r in removed] == [("extra", 1)]
    assert served.ask("GET", "/v1/functions/extra")[0] == 404


def test_several_records_are_removed_together(served: Served) -> None:
    def remove(*records: object) -> tuple[int, Any]:
        body = json.dumps({"records": records})
        status, _, data = served.ask("POST", "/v1/remove", body, JSON)
        return status, json.loads(data)

    names = ("one", "two")
    functions = [{"name": n, "inputs": ["a"], "outputs": ["b"], "code": [NULL]} for n in names]
    document = {
        "functions": functions,
        "compositions": ["composition both(a) => (b) { one(a = all a) => (b = b); }"],
    }
    assert served.ask("POST", "/v1/register", json.dumps(document), JSON)[0] == 200
    one, two, both = (
        {"kind": kind, "name": name}
        for kind, name in (("function", "one"), ("function", "two"), ("composition", "both"))
    )
    status, problem = remove(two, one)
    assert (status, problem["type"].rpartition(":")[2]) == (409, "Conflict")
    status, problem = remove(two, {**one, "version": 7})
    assert (status, problem["type"].rpartition(":")[2]) == (404, "Unknown")
    assert served.ask("GET", "/v1/functions/two")[0] == 200, "all or nothing"
    for wrong in ({"kind": "thing", "name": "one"}, {"kind": "function"}, 1):
        status, problem = remove(two, wrong)
        assert (status, problem["type"].rpartition(":")[2]) == (400, "InvalidInput"), wrong
        assert "records[1]" in problem["detail"]
    status, answer = remove(one, two, both)
    assert status == 200
    assert [(r["kind"], r["name"]) for r in answer["removed"]] == [
        (r["kind"], r["name"]) for r in (one, two, both)
    ]
    assert served.ask("GET", "/v1/functions/two")[0] == 404


NULL = {"format": "null"}


def test_a_new_version_is_used_at_once(served: Served) -> None:
    for number, sets in enumerate((["a"], ["a", "z"]), 1):
        grows = {"name": "grows", "inputs": sets, "outputs": ["b"], "code": [NULL]}
        document = {"functions": [grows]}
        assert served.ask("POST", "/v1/register", json.dumps(document), JSON)[0] == 200
        reply = served.invoke("grows", dict.fromkeys(sets, "x"))
        assert reply["sets"]["b"], number
    assert served.invoke("grows", {"a": "x"}, "?version=1")["sets"]["b"]


@pytest.mark.parametrize(
    ("format_", "media_type", "start"),
    [
        ("svg", "image/svg+xml", b"<svg"),
        ("mermaid", "text/vnd.mermaid; charset=utf-8", b"flowchart"),
        ("json", "application/json", b"{"),
        ("text", "text/plain; charset=utf-8", b"function echo"),
    ],
)
def test_graphs(served: Served, format_: str, media_type: str, start: bytes) -> None:
    path = f"/v1/compositions/twice/graph?format={format_}"
    status, headers, body = served.ask("GET", path)
    assert (status, headers["content-type"]) == (200, media_type)
    assert body.lstrip().startswith(start)


def test_looking(served: Served) -> None:
    assert served.ask("GET", "/healthz")[0] == 200
    assert json.loads(served.ask("GET", "/readyz")[2]) == {"ready": True}
    engines = json.loads(served.ask("GET", "/v1/engines")[2])["engines"]
    assert {e["backend"] for e in engines} == {"null", "gate"}
    _, headers, body = served.ask("GET", "/metrics")
    assert b"dandelion_invocations_total" in body
    assert headers["content-type"].startswith("text/plain")
    id_ = served.invoke("twice", {"x": "y"})["id"]
    trace = json.loads(served.ask("GET", f"/v1/traces/{id_}")[2])
    assert trace


def test_head(served: Served) -> None:
    status, headers, body = served.ask("HEAD", "/healthz")
    assert (status, body) == (200, b"")
    assert int(headers["content-length"]) > 0
    both = b"HEAD /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    both += b"HEAD /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    answers = served.raw(both).split(b"\r\n\r\n")
    assert [answer[:15] for answer in answers] == [b"HTTP/1.1 200 OK", b"HTTP/1.1 200 OK", b""]


def test_openapi_describes_every_route(served: Served) -> None:
    document = json.loads(served.ask("GET", "/openapi.json")[2])
    assert document["openapi"].startswith("3.1")
    for path, methods in document["paths"].items():
        for method in methods:
            name = path.replace("{name}", "echo").replace("{id}", "x")
            # with a wrong query, since streams have no end
            status, _, data = served.ask(method.upper(), f"{name}?unknown=", b"{", JSON)
            assert status != 405, path
            assert b"NoRoute" not in data, path
    references = set(_references(document))
    assert references <= {f"#/components/schemas/{n}" for n in document["components"]["schemas"]}


def _references(part: object) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"]
        for value in part.values():
            yield from _references(value)
    elif isinstance(part, list):
        for value in part:
            yield from _references(value)


def test_docs_need_no_network(served: Served) -> None:
    _, headers, body = served.ask("GET", "/docs")
    assert body == DOCS_PAGE
    assert b"http:" not in body
    assert b"https:" not in body
    assert "default-src 'self'" in headers["content-security-policy"]


async def plain_asgi(app: App, body: bytes, headers: list[tuple[bytes, bytes]]) -> list[Message]:
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/v1/invoke/echo", "headers": headers}
    await app({**scope, "query_string": b""}, receive, send)
    return sent


@pytest.mark.parametrize("size", [3, 100_000])
def test_plain_asgi_gives_the_same_reply(served: Served, size: int) -> None:
    body = msgspec.msgpack.encode({"sets": {"a": b"x" * size}})
    headers = [(b"content-type", b"application/msgpack"), (b"host", b"localhost")]
    start, *parts = asyncio.run(plain_asgi(App(served.node), body, headers))
    _, wire_headers, wire_body = served.ask("POST", "/v1/invoke/echo", body, MSGPACK)
    got = msgspec.msgpack.decode(b"".join(part["body"] for part in parts))
    expected = msgspec.msgpack.decode(wire_body)
    assert got["sets"] == expected["sets"]
    assert {name.decode() for name, _ in start["headers"]} == set(wire_headers)
    assert [part.get("more_body", False) for part in parts] == [True] * (len(parts) - 1) + [False]


def test_a_taken_port_is_said_to_be_taken(served: Served) -> None:
    with pytest.raises(InvalidInput, match="in use"):
        bind("127.0.0.1", served.port, SETTINGS)
    with pytest.raises(InvalidInput):
        bind("no.such.host.invalid", 0, SETTINGS)


ROUTES = [
    "/v1/invoke/echo",
    "/v1/invoke/matrix",
    "/v1/invoke/pair?set=left",
    "/v1/register",
    "/v1/functions",
    "/v1/functions/echo",
    "/v1/compositions/twice/graph",
    "/v1/libraries/lib%2Fk.cl",
    "/v1/traces/x",
    "/v1/engines",
    "/v1/capacity?function=echo",
    "/healthz",
    "/metrics",
    "/openapi.json",
]


MEDIA = [
    "application/json",
    "application/msgpack",
    "application/octet-stream",
    "multipart/form-data; boundary=B",
    "text/vnd.dandelion",
    "",
]


SEEDS = [
    b'{"sets": {"a": [{"name": "n", "key": 1, "data": "QUJD"}], "m": [[1, 2]]}}',
    msgspec.msgpack.encode({"sets": {"a": [{"name": "n", "data": b"1"}], "m": [[1, 2]]}}),
    b'--B\r\nContent-Disposition: form-data; name="a"\r\n\r\nx\r\n--B--\r\n',
    b'{"functions": [{"name": "f", "code": [{"format": "null"}]}], "libraries": {"l": "x"}}',
    b"function echo(a) => (b); composition c(a) => (b) { echo(a = all a) => (b = b); }",
]


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Random bytes, or a good body with some bytes changed."""
    if draw(st.booleans()):
        return draw(st.binary(max_size=200))
    body = bytearray(draw(st.sampled_from(SEEDS)))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(body)))
        body[at : at + draw(st.integers(0, 4))] = draw(st.binary(max_size=4))
    return bytes(body)


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    method=st.sampled_from(["POST", "GET", "DELETE", "PUT"]),
    route=st.sampled_from(ROUTES) | st.text(st.characters(codec="ascii"), max_size=30),
    media=st.sampled_from(MEDIA),
    body=bodies(),
    more=st.dictionaries(
        st.sampled_from(["Accept", "Dandelion-Deadline", "traceparent", "Content-Encoding"]),
        st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20),
    ),
)
def test_random_requests_get_an_answer_below_500(
    served: Served, method: str, route: str, media: str, body: bytes, more: dict[str, str]
) -> None:
    if method == "DELETE":
        route = route.replace("echo", "gone")  # keep what the other tests use
    path = route if route in ROUTES else "/" + urllib.parse.quote(route, safe="/?&=%")
    status, headers, data = served.ask(method, path, body, {**more, "Content-Type": media})
    assert status < 500
    if status >= 400 and headers["content-type"] == "application/problem+json":
        assert json.loads(data)["status"] == status


@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(start=st.sampled_from(["", "POST /v1/invoke/echo HTTP/1.1\r\n"]), rest=st.binary())
def test_random_bytes_on_the_socket_leave_the_server_standing(
    served: Served, start: str, rest: bytes
) -> None:
    answer = served.raw(start.encode() + rest, leave=True)
    assert not answer.startswith(b"HTTP/1.1 5")
    assert served.ask("GET", "/healthz")[0] == 200
