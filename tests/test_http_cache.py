"""The response cache of the HTTP function, by the sections of RFC 9111."""

from __future__ import annotations

import asyncio
import contextlib
import importlib

import msgspec
import pytest
from yarl import URL

from dandelion.errors import TooLarge
from dandelion.function import Limits
from dandelion.memory import SharedDomain
from tests.http_origin import FRESH, START_S, HttpRequest, Origin, origin, rules, scenario
from tests.http_sites import MIB, a_call, get, run, settings

cache_module = importlib.import_module("dandelion.backends.http.cache")


def test_it_is_off_by_default() -> None:
    async def body() -> None:
        async with origin(cache_bytes=0) as o:
            o.headers = FRESH
            await o.ask()
            await o.ask()
            assert o.count == 2

    run(body())


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
