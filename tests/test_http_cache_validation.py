"""The HTTP cache, RFC 9111: validating, invalidating, directives."""

from __future__ import annotations

import importlib

import pytest
from aiohttp import web
from yarl import URL

from tests.http_origin import FRESH, START_S, HttpRequest, Origin, origin, rules, scenario
from tests.http_sites import run

ResponseCache = importlib.import_module("dandelion.backends.http.cache").ResponseCache
KEPT = [(b"Cache-Control", b"max-age=60")]


@scenario
async def test_4_3_1_validators_are_sent_and_4_3_4_a_304_freshens(o: Origin) -> None:
    modified = o.date(-1000)
    o.headers = {
        "Cache-Control": "max-age=10",
        "ETag": 'W/"a"',
        "Last-Modified": modified,
        "X": "1",
    }
    await o.ask("x-own: y")
    o.now_s += 20
    o.status, o.headers = 304, {"Cache-Control": "max-age=30", "ETag": 'W/"a"', "X": "2"}
    head, body = await o.ask("x-own: y")
    assert o.requests[1]["if-none-match"] == 'W/"a"'
    assert o.requests[1]["if-modified-since"] == modified
    assert (head.partition("\n")[0], body) == ("HTTP/1.1 200 OK", "body 1")
    assert "\nx:2\n" in head
    assert "\nx:1\n" not in head
    assert "\ncontent-length:6\n" in head
    o.now_s += 29
    assert (await o.ask())[1] == "body 1"
    assert o.count == 2


@scenario
async def test_4_3_3_a_full_answer_replaces(o: Origin) -> None:
    o.headers = {"Cache-Control": "max-age=10", "ETag": '"a"'}
    await o.ask()
    o.now_s += 20
    assert (await o.ask())[1] == "body 2"
    assert (await o.ask())[1] == "body 2"
    assert o.count == 2


@scenario
async def test_4_3_4_a_304_about_another_response_is_not_used(o: Origin) -> None:
    o.headers = {"Cache-Control": "max-age=0", "ETag": '"a"'}
    await o.ask()

    def answered(request: web.Request) -> tuple[int, dict[str, str]]:
        conditional = "If-None-Match" in request.headers
        return (304, {"ETag": '"b"'}) if conditional else (200, {"ETag": '"b"'})

    o.answered = answered
    head, body = await o.ask()
    assert (head.partition("\n")[0], body) == ("HTTP/1.1 200 OK", "body 3")


@pytest.mark.parametrize(
    ("own", "given", "used"),
    [
        ('"a"', '"a"', True),
        ('"a"', 'W/"a"', True),
        ('W/"a"', 'W/"a"', True),
        ('W/"a"', '"a"', False),
        ('"a"', 'W/"b"', False),
        ("", '"a"', False),
        ("", 'W/"a"', False),
        ('"a"', "", True),
        ("", "", True),
    ],
)
def test_4_3_4_tags_of_a_304_must_be_those_of_the_response(
    own: str, given: str, used: bool
) -> None:
    request = HttpRequest("GET", URL("http://a/"))
    headers = [(b"Cache-Control", b"max-age=1"), *([(b"ETag", own.encode())] if own else [])]
    one = rules.stored(request, (1, 1), 200, headers, b"", (1.0, 1.0))
    fresh = rules.freshened(one, [(b"ETag", given.encode())] if given else [], (2.0, 2.0))
    assert (fresh is not None) == used


@pytest.mark.parametrize("status", [200, 404, 501])
@pytest.mark.parametrize(
    "added", [{"Cache-Control": "no-store, max-age=60"}, {**FRESH, "Vary": "*"}]
)
def test_4_3_4_a_304_can_end_the_use_of_a_response(status: int, added: dict[str, str]) -> None:
    async def body() -> None:
        async with origin() as o:
            o.status, o.headers = status, {**FRESH, "ETag": '"a"'}
            await o.ask()
            o.now_s += 60
            o.status, o.headers = 304, {**added, "ETag": '"a"'}
            assert (await o.ask())[1] == "body 1"
            o.status = status
            assert (await o.ask())[1] == "body 3"
            assert "if-none-match" not in o.requests[2]

    run(body())


@scenario
async def test_4_3_4_vary_of_a_304_selects(o: Origin) -> None:
    o.headers = {**FRESH, "ETag": '"a"'}
    await o.ask("accept-language: de")
    o.now_s += 60
    o.status, o.headers = 304, {**FRESH, "ETag": '"a"', "Vary": "accept-language"}
    await o.ask("accept-language: de")
    o.status = 200
    assert (await o.ask("accept-language: en"))[1] == "body 3"
    assert (await o.ask("accept-language: de"))[1] == "body 1"


@pytest.mark.parametrize(
    "line",
    ["range: bytes=0-1", 'if-none-match: "a"', "if-modified-since: x", 'if-match: "a"',
     "if-unmodified-since: x", 'if-range: "a"', "cache-control: no-store"],
)  # fmt: skip
def test_4_3_requests_with_conditions_pass_by(line: str) -> None:
    async def body() -> None:
        async with origin() as o:
            o.headers = {**FRESH, "ETag": '"a"'}
            await o.ask()
            o.status = 200
            assert (await o.ask(line))[1] == "body 2"
            assert (await o.ask())[1] == "body 1"

    run(body())


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "PROPPATCH"])
def test_4_4_unsafe_methods_invalidate(method: str) -> None:
    async def body() -> None:
        async with origin() as o:
            o.headers = FRESH
            for path in ("/", "/location", "/content", "/other"):
                await o.ask(path=path)
            o.headers = {"Location": "/location", "Content-Location": o.url + "/content"}
            o.status = 201
            await o.ask(method=method)
            o.status, o.headers = 200, FRESH
            before = o.count
            for path in ("/", "/location", "/content", "/other"):
                await o.ask(path=path)
            assert o.count == before + 3

    run(body())


@pytest.mark.parametrize("path", ["/a%7eb?c=%2f", "/a%7Eb?c=%2F", "/a~b?c=%2f"])
@pytest.mark.parametrize("field", ["", "Location", "Content-Location"])
def test_4_4_other_spellings_are_invalidated(path: str, field: str) -> None:
    async def body() -> None:
        async with origin() as o:
            o.headers = FRESH
            await o.ask(path="/a%7Eb?c=%2f")
            await o.ask(path="/a~b?c=/")
            assert (await o.ask(path=path))[1] == "body 1"
            o.headers = {field: path} if field else {}
            await o.ask(path="/" if field else path, method="PUT")
            o.headers = FRESH
            assert (await o.ask(path="/a%7Eb?c=%2f"))[1] == "body 4"
            assert (await o.ask(path="/a~b?c=/"))[1] == "body 2"

    run(body())


@scenario
async def test_4_4_responses_for_users_in_urls_are_invalidated(o: Origin) -> None:
    o.headers = FRESH
    plain, o.url = o.url, o.url.replace("//", "//a:b@")
    assert (await o.ask(path="/z"))[1] == (await o.ask(path="/z"))[1]
    o.url = plain
    await o.ask(path="/z", method="POST")
    o.url = o.url.replace("//", "//a:b@")
    assert (await o.ask(path="/z"))[1] == "body 3"


@pytest.mark.parametrize("other", ["http://example.ORG/x", "http://example.org:80/x#y"])
def test_4_4_spellings_of_origins(other: str) -> None:
    request = HttpRequest("GET", URL("http://EXAMPLE.org/x", encoded=True))
    found = rules.invalidated(
        HttpRequest("PUT", URL("http://Example.org/", encoded=True)),
        200,
        [(b"Location", other.encode())],
    )
    cache = ResponseCache(10_000, 1000)
    cache.put("t", request, rules.stored(request, (1, 1), 200, KEPT, b"", (1.0, 1.0)))
    for url in found:
        cache.drop("t", url)
    assert cache.find("t", request) is None


@pytest.mark.parametrize("status", [400, 404, 500])
def test_4_4_a_failed_one_does_not(status: int) -> None:
    async def body() -> None:
        async with origin() as o:
            o.headers = FRESH
            await o.ask()
            o.status = status
            await o.ask(method="POST")
            assert (await o.ask())[1] == "body 1"

    run(body())


def test_4_4_other_origins_are_left_alone() -> None:
    request = HttpRequest("POST", URL("http://a/x"))
    headers = [(b"Location", b"http://b/y"), (b"Content-Location", b"http://a:81/z")]
    assert rules.invalidated(request, 200, headers) == [URL("http://a/x")]
    assert rules.invalidated(request, 200, [(b"Location", b"http://[")]) == [URL("http://a/x")]


@scenario
async def test_5_2_1_directives_of_requests(o: Origin) -> None:
    o.headers = FRESH
    await o.ask()
    o.now_s += 20
    for line, asks in [
        ("cache-control: max-age=30", 0),
        ("cache-control: min-fresh=40", 0),
        ("cache-control: max-age=19", 1),
        ("cache-control: min-fresh=61", 1),
        ("cache-control: no-cache", 1),
        ("pragma: no-cache", 1),
        ("cache-control: only-if-cached", 0),
    ]:
        before = o.count
        o.now_s = max(o.now_s, START_S + 20)
        await o.ask(line)
        assert o.count - before == asks, line
        if asks:  # the new response is as old as the first one was
            o.now_s += 20


@scenario
async def test_5_2_1_7_only_if_cached(o: Origin) -> None:
    head, body = await o.ask("cache-control: only-if-cached")
    assert (head, body) == ("HTTP/1.1 504 Gateway Timeout\n", "")
    assert o.count == 0


@scenario
async def test_5_2_2_4_no_cache_is_validated_each_time(o: Origin) -> None:
    o.headers = {"Cache-Control": "max-age=60, no-cache", "ETag": '"a"'}
    await o.ask()
    o.status = 304
    for _ in range(2):
        assert (await o.ask())[1] == "body 1"
    assert o.count == 3


@scenario
async def test_5_2_2_5_what_may_not_be_stored_now_is_not_used_later(o: Origin) -> None:
    o.headers = FRESH
    await o.ask()
    o.headers = {"Cache-Control": "no-store"}
    await o.ask("cache-control: no-cache")
    await o.ask()
    assert o.count == 3


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('a, b=1,c="x, y" , D', {"a": "", "b": "1", "c": "x, y", "d": ""}),
        ("a = 1", {"a": "1"}),
        ('a="unended', {"a": "unended"}),
        (",,;a", {"a": ""}),
    ],
)
def test_directives(text: str, found: dict[str, str]) -> None:
    assert rules._parsed(text) == found


def test_directives_take_linear_time() -> None:
    for text in (" " * 60_000, "a" * 60_000, 'a="' * 20_000, "a =" * 20_000, "\\" * 60_000):
        rules._parsed(text)  # a quadratic one takes minutes, and the test's timeout ends it
