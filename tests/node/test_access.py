"""Pages of strangers in a browser on the node's machine: what they send, and what becomes of it."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import pytest

from dandelion.errors import InvalidInput
from dandelion.frontend.access import Access
from dandelion.frontend.asgi import Message, Request
from dandelion.frontend.problem import ForeignHost, ForeignOrigin
from dandelion.frontend.server import BackgroundServer
from dandelion.node import Node
from tests.node.served import DOCUMENT, SETTINGS

EVIL = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
FORM = {"Content-Type": "multipart/form-data; boundary=B"}
FORM_BODY = b'--B\r\ncontent-disposition: form-data; name="a"\r\n\r\nx\r\n--B--\r\n'
JSON = {"Content-Type": "application/json"}
TEXT = b"function echo(a) => (b); composition stolen(a) => (b) { echo(a = all a) => (b = b); }"
APP = "https://app.example.org"


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def kind(self) -> str:
        assert self.headers["content-type"] == "application/problem+json"
        return str(json.loads(self.body)["type"].rpartition(":")[2])


@dataclass
class Served:
    node: Node
    port: int

    def ask(
        self, method: str, path: str, headers: dict[str, str], body: bytes | None = None
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        with contextlib.closing(connection):
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            names = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, names, answer.read())


def serve(**settings: object) -> Iterator[Served]:
    with Node(msgspec.structs.replace(SETTINGS, **settings)) as node:
        node.register(msgspec.structs.replace(DOCUMENT, functions=DOCUMENT.functions[:4]))
        with BackgroundServer(node) as server:
            yield Served(node, int(server.url.rpartition(":")[2]))


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    yield from serve()


@pytest.fixture(scope="module")
def listed() -> Iterator[Served]:
    yield from serve(hosts=("node.example.org",), cors_origins=(APP,))


# --- attacks ------------------------------------------------------------------------------------


def test_a_strange_page_cannot_register(served: Served) -> None:
    for kind in ("text/plain", "text/plain;charset=UTF-8", "application/x-www-form-urlencoded", ""):
        answer = served.ask("POST", "/v1/register", EVIL | {"Content-Type": kind}, TEXT)
        assert (answer.status, answer.kind) == (403, "ForeignOrigin")
        plain = served.ask("POST", "/v1/register", {"Content-Type": kind}, TEXT)
        assert (plain.status, plain.kind) == (415, "UnsupportedMedia")
        assert "text/vnd.dandelion" in json.loads(plain.body)["detail"]
    assert not [r for r in served.node.records() if r.name == "stolen"]


def test_a_strange_page_cannot_invoke(served: Served) -> None:
    for foreign in (
        EVIL,
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:3000", "Sec-Fetch-Site": "same-site"},
        {"Origin": "http://127.0.0.1"},
        {"Origin": "file://"},
        {"Origin": "anything"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},
    ):
        answer = served.ask("POST", "/v1/invoke/echo", FORM | foreign, FORM_BODY)
        assert (answer.status, answer.kind) == (403, "ForeignOrigin"), foreign
        assert "access-control-allow-origin" not in answer.headers


def test_a_strange_page_cannot_remove_or_look(served: Served) -> None:
    for method, path in (
        ("DELETE", "/v1/functions/fail"),
        ("GET", "/v1/functions"),
        ("GET", "/v1/engines"),
        ("GET", "/metrics"),
    ):
        assert served.ask(method, path, EVIL).kind == "ForeignOrigin"
        image = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
        assert served.ask(method, path, image).kind == "ForeignOrigin"
        assert served.ask(method, path, {"Host": f"evil.example:{served.port}"}).status == 421
    preflight = EVIL | {"Access-Control-Request-Method": "DELETE"}
    answer = served.ask("OPTIONS", "/v1/functions/fail", preflight)
    assert answer.kind == "ForeignOrigin"
    assert not [name for name in answer.headers if name.startswith("access-control")]
    assert served.ask("GET", "/v1/functions/fail", {}).status == 200


def test_the_host_of_an_absolute_target_counts(served: Served) -> None:
    """In place of the header, which a proxy may not have changed: RFC 9112, 3.2.2."""
    own = f"127.0.0.1:{served.port}"
    for target, host, status in (
        (own, "evil.example", 200),
        (own, own, 200),
        ("evil.example", own, 421),
        (f"evil.example:{served.port}", own, 421),
        (f"{own}@evil.example", own, 421),
    ):
        answer = served.ask("GET", f"http://{target}/v1/functions", {"Host": host})
        assert answer.status == status, (target, host)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example",
        "localhostx", "192.0.2.1", "[2001:db8::1]:80", "0.0.0.0", "127.1", "2130706433",
    ],
)  # fmt: skip
def test_a_rebound_name_is_refused(served: Served, host: str) -> None:
    own = {"Host": host, "Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"}
    for given in (own, {"Host": host}):
        answer = served.ask("POST", "/v1/invoke/echo", FORM | given, FORM_BODY)
        assert (answer.status, answer.kind) == (421, "ForeignHost")


@pytest.mark.parametrize(
    "host",
    ["", " ", "a b", "localhost:x", "localhost@evil.example", "localhost,evil.example", "[::1"],
)
def test_a_malformed_host_is_refused(served: Served, host: str) -> None:
    answer = served.ask("GET", "/v1/functions", {"Host": host})
    assert (answer.status, answer.kind) == (400, "InvalidInput")


def raw(port: int, *lines: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    with contextlib.closing(connection):
        connection.connect()
        connection.sock.sendall("\r\n".join([*lines, "Connection: close", "", ""]).encode())
        response = http.client.HTTPResponse(connection.sock)
        response.begin()
        return response.status


def test_host_is_needed_once(served: Served) -> None:
    assert raw(served.port, "GET /v1/functions HTTP/1.1") == 400
    assert raw(served.port, "GET /v1/functions HTTP/1.0") == 200
    twice = ("Host: localhost", "Host: evil.example")
    assert raw(served.port, "GET /v1/functions HTTP/1.1", *twice) == 400
    assert raw(served.port, "GET /v1/functions HTTP/1.1", *reversed(twice)) == 400
    assert raw(served.port, "GET /v1/functions HTTP/1.0", *reversed(twice)) == 400


# --- who may ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    [
        "localhost", "LocalHost:80", "localhost.", "localhost.:8080", "127.0.0.1", "127.8.8.8:1",
        "[::1]", "[::1]:8080", "[0:0:0:0:0:0:0:1]", "[::ffff:127.0.0.1]", "localhost:",
    ],
)  # fmt: skip
def test_loopback_names_are_the_nodes(served: Served, host: str) -> None:
    answer = served.ask("POST", "/v1/invoke/echo", FORM | {"Host": host}, FORM_BODY)
    assert answer.status == 200


def test_the_nodes_own_pages_may_call(served: Served) -> None:
    for host in ("127.0.0.1", "localhost"):
        own = {"Host": f"{host}:{served.port}", "Origin": f"http://{host}:{served.port}"}
        assert served.ask("POST", "/v1/invoke/echo", FORM | own, FORM_BODY).status == 200
    ended = {"Host": "localhost", "Origin": "https://localhost"}  # TLS that ends at a proxy
    assert served.ask("POST", "/v1/invoke/echo", FORM | ended, FORM_BODY).status == 200
    for site in ("none", "same-origin"):
        assert served.ask("GET", "/v1/functions", {"Sec-Fetch-Site": site}).status == 200


def test_a_link_may_be_followed_but_not_framed(served: Served) -> None:
    followed = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert served.ask("GET", "/docs", followed | {"Sec-Fetch-Dest": "document"}).status == 200
    assert served.ask("GET", "/docs", followed | {"Sec-Fetch-Dest": "iframe"}).status == 403


def test_health_is_told_under_any_name(served: Served) -> None:
    for path in ("/healthz", "/readyz"):
        for given in (EVIL, {"Host": "evil.example"}, {"Host": "a b"}):
            assert served.ask("GET", path, given).status == 200
        assert raw(served.port, f"GET {path} HTTP/1.1") == 200


def test_listed_names_and_pages(listed: Served) -> None:
    by_name = FORM | {"Host": "Node.Example.org:8080"}
    assert listed.ask("POST", "/v1/invoke/echo", by_name, FORM_BODY).status == 200
    other = FORM | {"Host": "other.example.org"}
    assert listed.ask("POST", "/v1/invoke/echo", other, FORM_BODY).status == 421

    page = {"Origin": APP, "Sec-Fetch-Site": "cross-site"}
    for origin in (APP, "https://app.example.org:443", "HTTPS://APP.example.org"):
        answer = listed.ask("POST", "/v1/invoke/echo", FORM | page | {"Origin": origin}, FORM_BODY)
        assert answer.status == 200
        assert answer.headers["access-control-allow-origin"] == origin
        assert answer.headers["vary"] == "origin"
        exposed = answer.headers["access-control-expose-headers"]
        assert {"dandelion-invocation", "dandelion-dtype"} <= set(exposed.split(", "))
    problem = listed.ask("POST", "/v1/invoke/ecko", FORM | page, FORM_BODY)
    assert problem.status == 404
    assert problem.headers["access-control-allow-origin"] == APP  # so that the page can read it
    for origin in ("http://app.example.org", APP + ":8443", APP + ".evil.example", APP + "/"):
        answer = listed.ask("POST", "/v1/invoke/echo", FORM | page | {"Origin": origin}, FORM_BODY)
        assert answer.kind == "ForeignOrigin"
    assert listed.ask("GET", "/v1/functions", {}).headers["vary"] == "origin"


def test_preflights(listed: Served) -> None:
    requested = {"Origin": APP, "Access-Control-Request-Method": "POST"}
    answer = listed.ask("OPTIONS", "/v1/invoke/echo", requested)
    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers["access-control-allow-origin"] == APP
    assert answer.headers["access-control-allow-methods"] == "POST"
    allowed = set(answer.headers["access-control-allow-headers"].split(", "))
    assert {"content-type", "dandelion-dtype", "dandelion-shape"} <= allowed
    named = listed.ask("OPTIONS", "/v1/functions/echo", requested)
    assert named.headers["access-control-allow-methods"] == "GET, DELETE"
    assert listed.ask("OPTIONS", "/nothing", requested).status == 404
    assert listed.ask("OPTIONS", "/v1/invoke/echo", {}).status == 405
    own = {"Origin": f"http://127.0.0.1:{listed.port}", "Access-Control-Request-Method": "POST"}
    assert listed.ask("OPTIONS", "/v1/invoke/echo", own).status == 405


# --- decided without a server -------------------------------------------------------------------


async def _nothing() -> Message:
    raise AssertionError("there is no body to be read")


def check(access: Access, host: str) -> None:
    scope = {"method": "GET", "path": "/", "query_string": b"", "http_version": "1.1"}
    access.check(Request(scope | {"headers": [(b"host", host.encode())]}, _nothing))


def test_what_is_bound_is_the_nodes_name() -> None:
    access = Access(("node.lan", "192.0.2.7"))
    for host in ("node.lan", "NODE.lan.:80", "192.0.2.7", "[::ffff:192.0.2.7]", "localhost"):
        check(access, host)
    for host in ("192.0.2.8", "lan", "0.0.0.0"):
        with pytest.raises(ForeignHost):
            check(access, host)


@pytest.mark.parametrize("wildcard", ["0.0.0.0", "::"])
def test_bound_everywhere_any_address_is_the_nodes_but_no_name(wildcard: str) -> None:
    access = Access((wildcard,))
    for host in ("192.0.2.7", "[2001:db8::1]:80", "0.0.0.0:8080", "localhost"):
        check(access, host)
    with pytest.raises(ForeignHost):
        check(access, "evil.example")
    check(Access((wildcard,), ("*",)), "any.example")


def test_an_accepted_host_does_not_open_the_door_to_pages() -> None:
    access = Access((), ("*",))
    headers = [(b"host", b"a.example"), (b"origin", b"http://b.example")]
    scope = {"method": "POST", "path": "/", "query_string": b"", "headers": headers}
    with pytest.raises(ForeignOrigin):
        access.check(Request(scope, _nothing))


@pytest.mark.parametrize("host", ["http://a.example", "a.example:80", "", "a b", "a/b", "*.a"])
def test_entries_of_hosts_are_names(host: str) -> None:
    with pytest.raises(InvalidInput, match="hosts"):
        Access((), (host,))


@pytest.mark.parametrize("origin", ["*", "null", "a.example", "https://a.example/", "https://"])
def test_entries_of_cors_origins_are_origins(origin: str) -> None:
    with pytest.raises(InvalidInput, match="cors_origins"):
        Access((), (), (origin,))
