"""The response cache of the HTTP function, by the sections of RFC 9111."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from email.utils import formatdate

import msgspec
import pytest
from aiohttp import web
from yarl import URL

from dandelion.errors import TooLarge
from dandelion.function import Limits
from dandelion.memory import SharedDomain

from .test_http_function import LOCAL, MIB, HttpEngine, a_call, get, only, run, settings, site

rules = importlib.import_module("dandelion.backends.http.cache_rules")
cache_module = importlib.import_module("dandelion.backends.http.cache")
HttpRequest = importlib.import_module("dandelion.backends.http.request").HttpRequest

START_S = 1_800_000_000.0


@dataclass
class Origin:
    """A server with given answers, its client, and the clock of both.

    Attributes:
        answer: status, headers and body of the next answers; the body gets their number.
        requests: headers of those that arrived.
    """

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b"body"
    requests: list[dict[str, str]] = field(default_factory=list)
    now_s: float = START_S
    url: str = ""
    engine: object = None
    answered: Callable[[web.Request], tuple[int, dict[str, str]]] | None = None

    async def handle(self, request: web.Request) -> web.Response:
        self.requests.append({name.lower(): value for name, value in request.headers.items()})
        status, headers = self.status, dict(self.headers)
        if self.answered is not None:
            status, headers = self.answered(request)
        headers.setdefault("Date", self.date())
        body = b"" if status == 304 else self.body + b" %d" % len(self.requests)
        return web.Response(status=status, headers=headers, body=body)

    def date(self, after_s: float = 0) -> str:
        return formatdate(self.now_s + after_s, usegmt=True)

    async def ask(
        self, *lines: str, path: str = "/", method: str = "GET", tenant: str = "t"
    ) -> tuple[str, str]:
        """Send a request; return head and body."""
        call = a_call(get(self.url + path, *lines, method=method))
        call.tenant = tenant
        head, body = only(await self.engine.run(call))  # type: ignore[attr-defined]
        return bytes(head).decode(), bytes(body).decode()

    @property
    def count(self) -> int:
        return len(self.requests)


@contextlib.asynccontextmanager
async def origin(cache_bytes: int = MIB, **options: str) -> AsyncIterator[Origin]:
    made = Origin()
    async with site(made.handle) as made.url:
        read = settings.read_settings({**LOCAL, "cache_bytes": str(cache_bytes), **options})
        made.engine = HttpEngine(read, None, lambda: made.now_s)
        try:
            yield made
        finally:
            await made.engine.close()  # type: ignore[attr-defined]


def scenario(test: Callable[[Origin], object]) -> Callable[[], None]:
    """Run a coroutine with an origin."""

    def run_it() -> None:
        async def body() -> None:
            async with origin() as o:
                await test(o)  # type: ignore[misc]

        run(body())

    run_it.__name__, run_it.__doc__ = test.__name__, test.__doc__
    return run_it


FRESH = {"Cache-Control": "max-age=60"}


def test_it_is_off_by_default() -> None:
    async def body() -> None:
        async with origin(cache_bytes=0) as o:
            o.headers = FRESH
            await o.ask()
            await o.ask()
            assert o.count == 2

    run(body())


# --- 3: storing ---------------------------------------------------------------------------------


@scenario
async def test_3_a_fresh_response_is_used_again(o: Origin) -> None:
    o.headers = {**FRESH, "X-Own": "kept"}
    head, body = await o.ask()
    again, same = await o.ask()
    assert (o.count, body, same) == (1, "body 1", "body 1")
    assert "x-own:kept\n" in again
    assert again.replace("age:0\n", "") == head


@pytest.mark.parametrize("status", [200, 203, 404, 405, 410, 414, 501])
def test_3_statuses_that_are_stored(status: int) -> None:
    async def body() -> None:
        async with origin() as o:
            o.status, o.headers = status, FRESH
            await o.ask()
            head, _ = await o.ask()
            assert o.count == 1
            assert head.startswith(f"HTTP/1.1 {status} ")

    run(body())


@pytest.mark.parametrize("status", [201, 206, 302, 400, 403, 500, 503])
def test_3_statuses_that_are_not(status: int) -> None:
    async def body() -> None:
        async with origin() as o:
            o.status, o.headers = status, {**FRESH, "ETag": '"a"'}
            await o.ask()
            await o.ask()
            assert o.count == 2

    run(body())


@pytest.mark.parametrize("method", ["POST", "PUT", "HEAD", "OPTIONS", "DELETE", "PATCH"])
def test_3_only_get_is_answered_from_the_cache(method: str) -> None:
    async def body() -> None:
        async with origin() as o:
            o.headers = FRESH
            await o.ask(method=method)
            await o.ask(method=method)
            assert o.count == 2

    run(body())


@pytest.mark.parametrize(
    "headers",
    [
        {"Cache-Control": "no-store, max-age=60"},
        {"Cache-Control": "max-age=60, NO-STORE"},
        {"Cache-Control": "max-age=60", "Vary": "*"},
        {"Cache-Control": "max-age=60", "Vary": "accept, *"},
        {},
        {"Cache-Control": "s-maxage=60"},
        {"Cache-Control": "public"},
    ],
)
def test_3_what_is_not_stored(headers: dict[str, str]) -> None:
    async def body() -> None:
        async with origin() as o:
            o.headers = headers
            await o.ask()
            await o.ask()
            assert o.count == 2
            assert not {"if-none-match", "if-modified-since"} & o.requests[1].keys()

    run(body())


@scenario
async def test_3_a_private_response_is_stored(o: Origin) -> None:
    o.headers = {"Cache-Control": 'private="set-cookie", max-age=60'}
    await o.ask()
    await o.ask()
    assert o.count == 1


@scenario
async def test_3_1_fields_of_the_connection_are_not_stored(o: Origin) -> None:
    o.headers = {**FRESH, "Connection": "x-hop", "X-Hop": "1", "Proxy-Authenticate": "Basic"}
    await o.ask()
    head, _ = await o.ask()
    assert o.count == 1
    assert not [name for name in ("connection", "x-hop", "proxy-") if name in head]


@scenario
async def test_3_5_other_credentials_are_another_request(o: Origin) -> None:
    o.headers = FRESH
    for field_ in ("authorization: a", "authorization: b", "cookie: c", "x: y"):
        await o.ask(field_)
        await o.ask(field_)
    assert o.count == 4


# --- 4: using -----------------------------------------------------------------------------------


@scenario
async def test_4_1_vary_selects(o: Origin) -> None:
    o.headers = {**FRESH, "Vary": "Accept-Language, X-A"}
    bodies = [
        (await o.ask(*lines))[1]
        for lines in [
            ("accept-language: de,en",),
            ("accept-language: fr",),
            ("accept-language: de,  en",),
            ("accept-language: de", "accept-language: en"),
            ("accept-language: de,en", "x-a: 1"),
            (),
        ]
    ]
    assert bodies == ["body 1", "body 2", "body 1", "body 1", "body 3", "body 4"]


@scenario
async def test_4_2_1_lifetime(o: Origin) -> None:
    for number, (headers, fresh_s) in enumerate(
        [
            ({"Cache-Control": "max-age=10"}, 10),
            ({"Cache-Control": 'max-age="10"'}, 10),
            ({"Cache-Control": "max-age=10", "Expires": "0"}, 10),
            ({"Cache-Control": "max-age=10, max-age=99"}, 10),
            ({"Cache-Control": "s-maxage=99, max-age=10"}, 10),
            ({"Expires": o.date(10)}, 10),
            ({"Expires": o.date(10).replace("GMT", "+0000")}, 10),
        ]
    ):
        o.headers, path, before = headers, f"/{number}", o.count
        o.now_s = START_S
        await o.ask(path=path)
        o.now_s = START_S + fresh_s - 1
        await o.ask(path=path)
        assert o.count == before + 1, headers
        o.now_s = START_S + fresh_s
        await o.ask(path=path)
        assert o.count == before + 2, headers


@pytest.mark.parametrize(
    "headers",
    [
        {"Cache-Control": "max-age=x"},
        {"Cache-Control": "max-age=-5"},
        {"Cache-Control": "max-age=1.5"},
        {"Cache-Control": "max-age"},
        {"Cache-Control": "xmax-age=60"},
        {"Expires": "0"},
        {"Expires": "tomorrow"},
        {"Cache-Control": "max-age=0", "Expires": "Fri, 01 Jan 2100 00:00:00 GMT"},
    ],
)
def test_4_2_1_what_is_stale_at_once(headers: dict[str, str]) -> None:
    async def body() -> None:
        async with origin() as o:
            o.headers = {**headers, "ETag": '"a"'}
            await o.ask()
            await o.ask()
            assert o.requests[1]["if-none-match"] == '"a"'

    run(body())


@scenario
async def test_4_2_2_no_freshness_is_guessed(o: Origin) -> None:
    o.headers = {"Last-Modified": o.date(-86_400 * 1000)}
    await o.ask()
    await o.ask()
    assert o.requests[1]["if-modified-since"] == o.headers["Last-Modified"]


@scenario
async def test_4_2_3_age(o: Origin) -> None:
    o.headers = {**FRESH, "Age": "40", "Date": o.date(-30)}
    await o.ask()
    o.now_s += 5
    head, _ = await o.ask()
    assert "\nage:45\n" in head
    assert "age:40" not in head
    o.now_s += 15
    await o.ask()
    assert o.count == 2
    o.headers = {**FRESH, "Age": "junk", "Date": o.date(-59)}
    await o.ask(path="/date")
    o.now_s += 1
    await o.ask(path="/date")
    assert o.count == 4


def test_4_2_3_the_time_of_the_answer_counts() -> None:
    request = HttpRequest("GET", URL("http://a/"))
    headers = [(b"Cache-Control", b"max-age=60"), (b"Age", b"10")]
    one = rules.stored(request, (1, 1), 200, headers, b"", (1000.0, 1007.0))
    assert rules.age_s(one, 1007.0) == 17
    assert rules.age_s(one, 1010.0) == 20


@scenario
async def test_4_2_4_a_stale_response_is_not_used(o: Origin) -> None:
    o.headers = {"Cache-Control": "max-age=1, stale-if-error=99", "ETag": '"a"'}
    await o.ask()
    o.now_s += 2
    o.status = 503
    head, _ = await o.ask("cache-control: max-stale=1000")
    assert head.startswith("HTTP/1.1 503")
    o.status = 200
    assert (await o.ask())[1] == "body 3"


# --- 4.3: validating ----------------------------------------------------------------------------


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


# --- 4.4: invalidating --------------------------------------------------------------------------


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


# --- 5.2: directives ----------------------------------------------------------------------------


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


# --- bounds and tenants -------------------------------------------------------------------------


@scenario
async def test_tenants_have_caches_of_their_own(o: Origin) -> None:
    o.headers = FRESH
    assert (await o.ask(tenant="a"))[1] == "body 1"
    assert (await o.ask(tenant="b"))[1] == "body 2"
    await o.ask(tenant="a", method="POST")
    assert (await o.ask(tenant="b"))[1] == "body 2"
    assert (await o.ask(tenant="a"))[1] == "body 4"


def test_memory_is_bounded_and_the_largest_tenant_gives_way() -> None:
    async def body() -> None:
        async with origin(cache_bytes=100_000) as o:
            o.headers, o.body = FRESH, b"x" * 10_000
            await o.ask(tenant="small", path="/kept")
            for number in range(40):
                await o.ask(tenant="large", path=f"/{number}")
                cache = o.engine._cache  # type: ignore[attr-defined]
                assert 0 < cache.size_bytes <= 100_000
            before = o.count
            await o.ask(tenant="small", path="/kept")
            await o.ask(tenant="large", path="/39")
            assert o.count == before
            await o.ask(tenant="large", path="/0")
            assert o.count == before + 1
            for number in range(40):
                await o.ask(tenant="large", path=f"/{number}", method="PUT")
            await o.ask(tenant="small", path="/kept", method="PUT")
            assert (cache.size_bytes, cache._tenants) == (0, {})

    run(body())


def test_variants_of_an_address_are_bounded() -> None:
    async def body() -> None:
        async with origin() as o:
            o.headers = {**FRESH, "Vary": "x"}
            for number in range(30):
                await o.ask(f"x: {number}")
            before = o.count
            await o.ask("x: 29")
            assert o.count == before
            await o.ask("x: 0")
            assert o.count == before + 1

    run(body())


def test_large_bodies_are_not_stored() -> None:
    async def body() -> None:
        async with origin(cache_entry_bytes="1000") as o:
            o.headers, o.body = FRESH, b"x" * 1000
            await o.ask()
            await o.ask()
            assert o.count == 2

    run(body())


@scenario
async def test_what_is_served_counts_and_lies_in_the_arena(o: Origin) -> None:
    o.headers, o.body = FRESH, b"x" * 5000
    await o.ask(tenant="")
    domain = SharedDomain(MIB)
    call = a_call(get(o.url + "/"), domain=domain, limits=Limits(output_bytes=6000))
    _, bodies = await o.engine.run(call)  # type: ignore[attr-defined]
    assert domain.locate(bodies[0].data) is not None
    with pytest.raises(TooLarge):
        call = a_call(get(o.url + "/"), limits=Limits(output_bytes=5000))
        await o.engine.run(call)  # type: ignore[attr-defined]
    assert o.count == 1
    del bodies
    domain.close()


@scenario
async def test_a_response_that_breaks_off_is_not_stored(o: Origin) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        heads.append(1)
        size = b"100" if len(heads) == 1 else b"5"
        writer.write(
            b"HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: " + size
            + b"\r\nConnection: close\r\n\r\nshort"
        )  # fmt: skip
        await writer.drain()
        writer.close()

    heads: list[int] = []
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        o.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with contextlib.suppress(Exception):
            await o.ask()
        assert (await o.ask())[1] == "short"
        assert (await o.ask())[1] == "short"
        assert len(heads) == 2


def test_settings() -> None:
    read = settings.read_settings({"cache_bytes": "67108864"})
    assert (read.cache_bytes, read.cache_entry_bytes) == (64 * MIB, MIB)
    assert msgspec.structs.replace(read, cache_bytes=0) == settings.read_settings({})
