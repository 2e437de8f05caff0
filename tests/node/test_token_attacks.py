"""Attacks on tokens over HTTP, with 1 and 2 frontends: all get the same refusal."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator

import pytest

from .guarded import RECORDS, Guarded, token, with_secrets

GOOD = token("acme").encode()
CREDENTIALS = {
    "none": b"",
    "empty": b"Authorization:\r\n",
    "no token": b"Authorization: Bearer\r\n",
    "spaces only": b"Authorization:  \t \r\n",
    "no token, a space": b"Authorization: Bearer \r\n",
    "unknown": b"Authorization: Bearer unknown\r\n",
    "expired": b"Authorization: Bearer " + token("expired").encode() + b"\r\n",
    "a part": b"Authorization: Bearer " + GOOD[:-1] + b"\r\n",
    "more": b"Authorization: Bearer " + GOOD + b"x\r\n",
    "padded": b"Authorization: Bearer " + GOOD + b"=\r\n",
    "another case": b"Authorization: Bearer " + GOOD.upper() + b"\r\n",
    "its hash": b"Authorization: Bearer " + RECORDS[1].sha256.encode() + b"\r\n",
    "its name": b"Authorization: Bearer acme\r\n",
    "without a scheme": b"Authorization: " + GOOD + b"\r\n",
    "another scheme": b"Authorization: Basic " + GOOD + b"\r\n",
    "a scheme with a tail": b"Authorization: Bearers " + GOOD + b"\r\n",
    "two spaces": b"Authorization: Bearer  " + GOOD + b"\r\n",
    "a tab": b"Authorization: Bearer\t" + GOOD + b"\r\n",
    "a word behind": b"Authorization: Bearer " + GOOD + b" x\r\n",
    "a list": b"Authorization: Bearer " + GOOD + b", Bearer x\r\n",
    "quoted": b'Authorization: Bearer "' + GOOD + b'"\r\n',
    "two headers, good first": b"Authorization: Bearer " + GOOD + b"\r\nAuthorization: x\r\n",
    "two headers, good last": b"Authorization: Bearer x\r\nAuthorization: Bearer " + GOOD + b"\r\n",
    "twice the same": (b"Authorization: Bearer " + GOOD + b"\r\n") * 2,
    "two headers, two cases": b"authorization: x\r\nAUTHORIZATION: Bearer " + GOOD + b"\r\n",
    "non-ASCII": b"Authorization: Bearer \xc3\xa9\xff" + GOOD + b"\r\n",
    "not UTF-8": b"Authorization: Bearer \xff\xfe\r\n",
    "huge": b"Authorization: Bearer " + b"a" * 60_000 + b"\r\n",
    "good and huge": b"Authorization: Bearer " + GOOD + b"a" * 300 + b"\r\n",
    "another header": b"X-Authorization: Bearer " + GOOD + b"\r\n",
    "a proxy's header": b"Proxy-Authorization: Bearer " + GOOD + b"\r\n",
    "an underscore": b"Authorization_: Bearer " + GOOD + b"\r\n",
    "a cookie": b"Cookie: token=" + GOOD + b"; Authorization=" + GOOD + b"\r\n",
    "a tenant's header": b"X-Tenant: acme\r\nDandelion-Tenant: acme\r\n",
    "forwarded": b"X-Forwarded-For: 127.0.0.1\r\nX-Forwarded-User: acme\r\nX-URL: /healthz\r\n",
    "another method by header": b"X-HTTP-Method-Override: GET\r\nX-Rewrite-URL: /healthz\r\n",
}  # fmt: skip


@pytest.fixture(scope="module", params=[1, 2])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Guarded]:
    with with_secrets(tmp_path_factory.mktemp("tokens"), request.param) as opened:
        yield opened


@pytest.mark.parametrize("how", CREDENTIALS)
def test_invalid_credentials_get_the_same_response(served: Guarded, how: str) -> None:
    expected = served.raw(b"GET /v1/functions HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\n\r\n")
    assert (expected.status, expected.kind) == (401, "Unauthenticated")
    assert expected.headers["www-authenticate"] == "Bearer"
    head = b" HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\n" + CREDENTIALS[how] + b"\r\n"
    for line in (
        b"GET /v1/functions/secret",
        b"GET /v1/functions/none",
        b"DELETE /v1/functions/secret",
        b"GET /v1/traces/x",
        b"GET /metrics",
    ):
        answer = served.raw(line + head)
        assert (answer.status, answer.body, answer.headers) == (
            expected.status,
            expected.body,
            expected.headers,
        )


@pytest.mark.parametrize(
    "header",
    [
        b"Authorization: Bearer %s \r\n\tx\r\n",
        b"Authorization : Bearer %s\r\n",
        b"Authorization: Bearer %s\x00\r\n",
        b"Authorization: Bearer %s\n\tmore\r\n",
        b" Authorization: Bearer %s\r\n",
    ],
)
def test_malformed_headers_are_not_served(served: Guarded, header: bytes) -> None:
    request = b"GET /v1/functions HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\n%s\r\n"
    assert served.raw(request % (header % GOOD)).status in (400, 401)


@pytest.mark.parametrize(
    "header",
    [
        b"Authorization: Bearer %s\r\n",
        b"AUTHORIZATION: bearer %s\r\n",
        b"authorization:BEARER %s\r\n",
        b"Authorization:   Bearer %s  \r\n",
    ],
)
def test_valid_spellings_are_served(served: Guarded, header: bytes) -> None:
    request = b"GET /v1/functions HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\n%s\r\n"
    answer = served.raw(request % (header % GOOD))
    assert answer.status == 200
    assert b'"secret"' in answer.body


PATHS = [
    "//v1/functions", "/v1//functions", "/v1/functions/", "/V1/functions", "/v1/functions%2F",
    "/%2e%2e/v1/functions", "/healthz/../v1/functions", "/healthz/%2e%2e/v1/functions",
    "/healthz/", "/healthz%00", "/healthz;/v1/functions", "/healthzx", "/readyz/../metrics",
    "/docs/../metrics", "/docs/", "/openapi.json/x", "/metrics/", "/metrics%3F", "/v1/healthz",
    "/v1/functions?access_token=TOKEN", "/v1/functions?token=TOKEN", "/none",
    "/v1/functions?authorization=Bearer%20TOKEN", "/v1/functions/healthz",
    "/v1/traces/../functions",
    "/v1/traces/%2e%2e/functions/secret", "/v1/invoke/../functions", "/v1/invoke/" + "x" * 500,
    "/.well-known/x", "/v1/functions/..%2f..%2fhealthz", "/v1", "//", "*", "/v1/functions#/healthz",
]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "POST", "DELETE", "PUT", "TRACE"])
def test_no_path_and_method_goes_around_the_token(served: Guarded, method: str, path: str) -> None:
    expected = served.ask("GET", "/v1/functions").body
    line = f"{method} {path.replace('TOKEN', token('acme'))} HTTP/1.1\r\n"
    answer = served.raw(line.encode() + b"Host: HOST\r\nConnection: close\r\n\r\n")
    assert answer.status in (400, 401)
    if answer.status == 401:
        assert answer.body == (b"" if method == "HEAD" else expected)


def test_paths_of_other_tenants_are_not_reached_with_a_token(served: Guarded) -> None:
    for path in PATHS:
        if "TOKEN" in path or path == "*":
            continue
        line = f"GET {path} HTTP/1.1\r\nAuthorization: Bearer {token('beta')}\r\n"
        answer = served.raw(line.encode() + b"Host: HOST\r\nConnection: close\r\n\r\n")
        assert b"secret" not in answer.body.replace(b"/functions/secret", b"")
        assert b"dandelion_invocations" not in answer.body


def test_an_absolute_request_target_does_not_change_the_path(served: Guarded) -> None:
    tail = b" HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\n\r\n"
    assert served.raw(b"GET http://HOST/v1/functions" + tail).status == 401
    assert served.raw(b"GET http://HOST/healthz" + tail).status == 200


def test_http_1_0_needs_a_token(served: Guarded) -> None:
    assert served.raw(b"GET /v1/functions HTTP/1.0\r\n\r\n").status == 401


def test_a_token_holds_for_one_request_of_a_connection(served: Guarded) -> None:
    head = b"GET /v1/functions HTTP/1.1\r\nHost: HOST\r\n"
    with_token = head + b"Authorization: Bearer " + GOOD + b"\r\n\r\n"
    both = with_token + head + b"Connection: close\r\n\r\n"
    with socket.create_connection(("127.0.0.1", served.port), 20) as connection:
        connection.sendall(both.replace(b"HOST", b"127.0.0.1:%d" % served.port))
        received = b""
        while piece := connection.recv(65536):
            received += piece
    assert re.findall(rb"HTTP/1\.1 (\d+)", received) == [b"200", b"401"]


def test_a_preflight_says_nothing_about_names(served: Guarded) -> None:
    headers = {"Origin": "https://app.example.org", "Access-Control-Request-Method": "GET"}
    hidden = served.ask("OPTIONS", "/v1/functions/secret", headers=headers)
    missing = served.ask("OPTIONS", "/v1/functions/nothing", headers=headers)
    assert hidden == missing
    assert hidden.status == 200
    assert "authorization" in hidden.headers["access-control-allow-headers"]
    foreign = headers | {"Origin": "https://evil.example"}
    assert served.ask("OPTIONS", "/v1/functions/secret", headers=foreign).status == 403
    page = {"Origin": "https://app.example.org"}
    assert served.ask("GET", "/v1/functions", headers=page).status == 401


def test_the_body_of_a_refused_request_is_not_read(served: Guarded) -> None:
    head = b"POST /v1/invoke/echo HTTP/1.1\r\nHost: HOST\r\nContent-Length: 8000000\r\n\r\n"
    before = served.node.info().arena
    answer = served.raw(head)
    assert answer.status == 401
    assert answer.headers["connection"] == "close"
    assert served.node.info().arena.used_bytes == before.used_bytes


def test_a_token_is_in_no_response(served: Guarded) -> None:
    for path in ("/v1/functions", "/metrics", "/v1/engines", "/v1/capacity", "/none"):
        answer = served.ask("GET", path, "acme")
        assert GOOD not in answer.body
        assert RECORDS[1].sha256.encode() not in answer.body
