"""The HTTP function against servers on this machine: format, limits, allowed addresses."""

from __future__ import annotations

import base64
import subprocess
import sys

import pytest
from aiohttp import web

from dandelion.data import Item
from dandelion.driver import AsyncEngine, Hosting, load_driver
from dandelion.errors import (
    InvalidFunction,
    InvalidInput,
    RequestFailed,
    RequestInterrupted,
    RequestRefused,
)
from dandelion.function import CodeObject, Function, FunctionSpec
from tests.http_sites import (
    LOCAL,
    OK,
    a_call,
    engine,
    get,
    http,
    only,
    raw,
    run,
    site,
)


def fields(head: bytes) -> dict[str, str]:
    return dict(line.split(":", 1) for line in head.decode().splitlines()[1:])


def test_the_headers_item_is_written_byte_for_byte() -> None:
    async def scenario() -> None:
        answer = b"HTTP/1.1 200 Fine\r\nX-One: a  b\r\nX-ONE:c\r\nContent-Length: 2\r\n\r\nok"
        async with raw(answer) as server, engine() as e:
            outputs = await e.run(a_call(Item("page", 7, get(server.url + "/x?y=1"))))
        assert only(outputs) == (b"HTTP/1.1 200 OK\nx-one:a  b\nx-one:c\ncontent-length:2\n", b"ok")
        for out, name in zip(outputs, ("headers", "bodies"), strict=True):
            assert out is not None
            assert (out.name, out[0].name, out[0].key) == (name, "page", 7)
        assert server.requests[0].startswith(b"GET /x?y=1 HTTP/1.1\r\n")

    run(scenario())


def test_only_what_the_item_says_is_sent() -> None:
    async def scenario() -> None:
        async with raw(OK) as server, engine() as e:
            item = get(server.url, "x-a: 1", "x-b:2", "X-A:3", "accept:text/html", "x-c: käse")
            await e.run(a_call(item))
        lines = server.requests[0].decode().splitlines()
        host = server.url.removeprefix("http://")
        assert lines[0] == "GET / HTTP/1.1"
        assert sorted(lines[1:-1]) == sorted(
            [f"Host: {host}", "x-a: 1", "x-b: 2", "x-a: 3", "accept: text/html", "x-c: käse"]
        )

    run(scenario())


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("version", ["HTTP/1.0", "HTTP/1.1", "HTTP/2.0"])
def test_lines_may_end_either_way(end: str, version: str) -> None:
    async def scenario() -> None:
        async with raw(OK) as server, engine() as e:
            item = f"POST {server.url} {version}{end}a:b{end}{end}\r\n\n body".encode()
            await e.run(a_call(item))
            assert b"a: b\r\n" in server.requests[0]
            assert b"Content-Length: 8\r\n" in server.requests[0]

    run(scenario())


@pytest.mark.parametrize("tail", ["", "\n", "\na:b", "\na:b\n", "\na:b\n\n"])
def test_an_item_may_end_after_any_line(tail: str) -> None:
    async def scenario() -> None:
        async with raw(OK) as server, engine() as e:
            assert (
                only(await e.run(a_call(f"GET {server.url} HTTP/1.1{tail}".encode())))[1] == b"ok"
            )

    run(scenario())


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "LOCK"])
@pytest.mark.parametrize("body", [b"", b"a\n\r\n\0\xff", b"z" * 400_000])
def test_any_method_and_body(method: str, body: bytes) -> None:
    async def handler(request: web.Request) -> web.Response:
        sent = await request.read()
        assert request.headers.get("Transfer-Encoding") is None
        return web.Response(body=request.method.encode() + b" " + sent)

    async def scenario() -> None:
        async with site(handler) as url, engine() as e:
            item = memoryview(get(url, method=method, body=body))
            assert only(await e.run(a_call(Item("r", 0, item))))[1] == method.encode() + b" " + body

    run(scenario())


def test_head_has_headers_and_an_empty_body() -> None:
    async def scenario() -> None:
        answer = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"
        async with raw(answer) as server, engine() as e:
            head, body = only(await e.run(a_call(get(server.url, method="HEAD"))))
        assert fields(head)["content-length"] == "1000000"
        assert body == b""

    run(scenario())


@pytest.mark.parametrize(
    ("status", "phrase"),
    [
        (200, "OK"),
        (204, "No Content"),
        (404, "Not Found"),
        (299, ""),
        (304, "Not Modified"),
        (500, "Internal Server Error"),
    ],
)
def test_any_status_is_a_success(status: int, phrase: str) -> None:
    async def scenario() -> None:
        answer = f"HTTP/1.1 {status} Whatever\r\nContent-Length: 0\r\n\r\n".encode()
        async with raw(answer) as server, engine() as e:
            head, body = only(await e.run(a_call(get(server.url))))
        assert head.splitlines()[0].decode() == f"HTTP/1.1 {status} {phrase}"
        assert body == b""

    run(scenario())


def test_strange_header_bytes_come_through() -> None:
    async def scenario() -> None:
        answer = b"HTTP/1.0 200 OK\r\nx:\xff\xfe k\xc3\xa4se\r\nContent-Length: 0\r\n\r\n"
        async with raw(answer) as server, engine() as e:
            head, _ = only(await e.run(a_call(get(server.url))))
        assert head == b"HTTP/1.0 200 OK\nx:\xff\xfe k\xc3\xa4se\ncontent-length:0\n"

    run(scenario())


def test_compressed_bodies_are_not_decoded() -> None:
    async def scenario() -> None:
        answer = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\n\x1f\x8bzz"
        async with raw(answer) as server, engine() as e:
            assert only(await e.run(a_call(get(server.url))))[1] == b"\x1f\x8bzz"
        assert b"accept-encoding" not in server.requests[0].lower()

    run(scenario())


def test_signed_urls_are_not_touched() -> None:
    async def scenario() -> None:
        target = "/a%2Fb/%7e?sig=%2B+%2f~&x=a%20b"
        async with raw(OK) as server, engine() as e:
            await e.run(a_call(get(server.url + target)))
        assert server.requests[0].split()[1].decode() == target

    run(scenario())


@pytest.mark.parametrize(
    ("given", "pair"),
    [
        ("a:b", b"a:b"),
        ("a", b"a:"),
        (":b", b":b"),
        ("a%40:b%3a:c", b"a@:b::c"),
        ("üß:日", "üß:日".encode()),
        ("%ff:", b"\xff:"),
    ],
)
def test_users_in_urls_are_sent_as_authorization(given: str, pair: bytes) -> None:
    async def scenario() -> None:
        async with raw(OK) as server, engine() as e:
            await e.run(a_call(get(server.url.replace("//", f"//{given}@"))))
        lines = server.requests[0].splitlines()
        assert lines[0] == b"GET / HTTP/1.1"
        assert b"authorization: Basic " + base64.b64encode(pair) in lines

    run(scenario())


def test_no_requests_give_no_responses() -> None:
    async def scenario() -> None:
        async with engine() as e:
            assert await e.run(a_call()) == (None, None)

    run(scenario())


@pytest.mark.parametrize(
    "item",
    [
        b"",
        b"\n\n",
        b"GET",
        b"GET http://127.0.0.1/",
        b"GET http://127.0.0.1/ HTTP/4.0",
        b"GET http://127.0.0.1/ http/1.1",
        b"G(T http://127.0.0.1/ HTTP/1.1",
        b"CONNECT http://127.0.0.1/ HTTP/1.1",
        b"\xff http://127.0.0.1/ HTTP/1.1",
        b"GET /path HTTP/1.1",
        b"GET 127.0.0.1:80/x HTTP/1.1",
        b"GET ftp://127.0.0.1/ HTTP/1.1",
        b"GET file:///etc/passwd HTTP/1.1",
        b"GET http:///x HTTP/1.1",
        b"GET http://127.0.0.1:99999/ HTTP/1.1",
        b"GET http://a%3Ab:c@127.0.0.1/ HTTP/1.1",
        b"GET http://a:b%0A@127.0.0.1/ HTTP/1.1",
        b"GET http://a:b@127.0.0.1/ HTTP/1.1\nauthorization: Bearer c\n\n",
        b"GET http://[::1/ HTTP/1.1",
        b"GET http://127.0.0.1/ HTTP/1.1\nno colon\n\n",
        b"GET http://127.0.0.1/ HTTP/1.1\n:empty name\n\n",
        b"GET http://127.0.0.1/ HTTP/1.1\nbad name:x\n\n",
        b"GET http://127.0.0.1/ HTTP/1.1\nn\xc3\xa4me:x\n\n",
        b"GET http://127.0.0.1/ HTTP/1.1\nname:a\0b\n\n",
        b"GET http://127.0.0.1/ HTTP/1.1\nname:a\rInjected: b\n\n",
        b"GET http://127.0.0.1/ HTTP/1.1\nname:\xff\n\n",
        b"POST http://127.0.0.1/ HTTP/1.1\ncontent-length:3\n\nfour",
        b"POST http://127.0.0.1/ HTTP/1.1\ntransfer-encoding: chunked\n\n0\r\n\r\n",
        b"GET http://127.0.0.1/ HTTP/1.1\nhost: a\nHost: b\n\n",
        b"GET http://127.0.0.1/ HTTP/1.1\nhost: a\nx: y\nhost: a\n\n",
        b"GET http://127.0.0.1/ HTTP/1.1\nx:" + b"y" * 70_000 + b"\n\n",
        b"GET http://127.0.0.1/ HTTP/1.1\n" + b"x:y\n" * 20_000 + b"\n\n",
    ],
)
def test_malformed_items_are_named(item: bytes) -> None:
    async def scenario() -> None:
        async with engine() as e:
            with pytest.raises(RequestFailed) as caught:
                await e.run(a_call(Item("broken", 0, item)))
        assert (caught.value.function, caught.value.item) == ("HTTP", "broken")
        assert "connect" not in caught.value.message  # it never connected

    run(scenario())


def test_the_driver_describes_itself() -> None:
    driver = load_driver("http")
    assert driver.hosting is Hosting.LOOP
    assert driver.formats == {"http"}
    spec, whole = driver.platform_functions
    assert (spec.name, spec.input_names, spec.output_names, spec.kind) == (
        "HTTP", ("requests",), ("headers", "bodies"), "io"
    )  # fmt: skip
    assert (whole.name, whole.input_names, whole.output_names, whole.kind) == (
        "HTTP_RESPONSE", ("request",), ("response", "body"), "io"
    )  # fmt: skip
    (resource,) = driver.factory().probe()
    driver.checker().check([Function(one, one.code[0]) for one in (spec, whole)])

    async def scenario() -> None:
        made = driver.factory().engine(resource.name)
        assert isinstance(made, AsyncEngine)
        await made.close()
        await made.close()

    run(scenario())


def test_settings_reach_the_engine() -> None:
    driver = http.driver({"concurrency": "3"})
    assert driver.factory().settings.concurrency == 3
    driver.configure(LOCAL)

    async def scenario() -> None:
        made = driver.factory().engine("http")
        async with raw(OK) as server:
            assert only(await made.run(a_call(get(server.url))))[1] == b"ok"
            await made.close()

    run(scenario())


@pytest.mark.parametrize(
    "options",
    [{"alow": "x"}, {"allow": "10.0.0.0/99"}, {"allow": "a b"}, {"public": "maybe"},
     {"concurrency": "0"}, {"concurrency": "many"}, {"connect_s": "-1"}, {"connect_s": "nan"},
     {"retries": "-1"}, {"redirects": "1.5"}],
)  # fmt: skip
def test_bad_settings_are_named(options: dict[str, str]) -> None:
    with pytest.raises(InvalidInput) as caught:
        http.driver(options)
    assert caught.value.where == f"options.http.{next(iter(options))}"


def test_functions_of_another_shape_are_refused() -> None:
    code = CodeObject("http", options={"speed": "fast"})
    spec = FunctionSpec("H", http.HTTP.inputs, http.HTTP.inputs, code=(code,))
    with pytest.raises(InvalidFunction) as caught:
        http.driver().checker().check([Function(spec, code)])
    found = [problem.where for problem in caught.value.problems]
    assert found == ["inputs, outputs", "kind", "code.options.speed"]


def test_the_driver_loads_nothing_heavy() -> None:
    script = (
        "import sys; from dandelion.driver import load_driver;"
        "load_driver('http').platform_functions;"
        "sys.exit('aiohttp' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


@pytest.mark.parametrize(
    ("request_", "kind", "transient"),
    [
        (b"nonsense", RequestRefused, False),
        (get("http://10.0.0.1/"), RequestRefused, False),
        (get("http://127.0.0.1:1/"), RequestInterrupted, True),
        (get("{closes}"), RequestInterrupted, True),
        (get("{nonsense}"), RequestFailed, False),
        (get("{loop}"), RequestFailed, False),
        (get("{short}"), RequestInterrupted, True),
    ],
)
def test_failures_say_whether_they_are_transient(
    request_: bytes, kind: type[RequestFailed], transient: bool
) -> None:
    answers = {
        "closes": b"",
        "nonsense": b"nonsense\r\n\r\n",
        "loop": b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n",
        "short": b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort",
    }

    async def scenario() -> None:
        name = next((n for n in answers if n.encode() in request_), "closes")
        async with raw(*[answers[name]] * 20) as server, engine() as e:
            text = request_.replace(b"{%s}" % name.encode(), server.url.encode() + b"/")
            with pytest.raises(RequestFailed) as caught:
                await e.run(a_call(text))
            assert (type(caught.value), caught.value.transient) == (kind, transient)
            assert caught.value.item == "r0"

    run(scenario())
