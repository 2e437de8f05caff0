"""The HTTP function: redirects, and addresses that are allowed."""

from __future__ import annotations

import asyncio
import base64
import importlib
import socket
import threading
from typing import Any

import pytest
from aiohttp.abc import AbstractResolver, ResolveResult

from dandelion.driver import AsyncEngine
from dandelion.errors import (
    RequestFailed,
    RequestInterrupted,
    RequestRefused,
)
from tests.http_sites import (
    LOCAL,
    OK,
    a_call,
    engine,
    get,
    only,
    raw,
    run,
)

policy = importlib.import_module("dandelion.backends.http.policy")


def moved(status: int, location: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Moved", f"Location: {location}", "Connection: close"]
    return "\r\n".join([*lines, "Content-Length: 0", "", ""]).encode()


@pytest.mark.parametrize(
    ("status", "method", "then"),
    [
        (301, "GET", "GET"),
        (301, "POST", "GET"),
        (302, "POST", "GET"),
        (302, "post", "GET"),
        (302, "PUT", "PUT"),
        (303, "PUT", "GET"),
        (303, "HEAD", "HEAD"),
        (307, "POST", "POST"),
        (308, "PUT", "PUT"),
    ],
)
def test_redirects_are_followed_as_browsers_do(status: int, method: str, then: str) -> None:
    async def scenario() -> None:
        answer = OK.removesuffix(b"ok") if method == "HEAD" else OK
        async with raw(moved(status, "next?q=1"), answer) as server, engine() as e:
            item = get(f"{server.url}/a/b", "content-type:t", method=method, body=b"body")
            await e.run(a_call(item))
        second = server.requests[1]
        assert second.startswith(f"{then} /a/next?q=1 HTTP/1.1\r\n".encode())
        kept = method == then
        assert (b"content-type" in second) == kept
        assert (b"Content-Length: 4" in second) == kept

    run(scenario())


def test_credentials_stay_with_their_origin() -> None:
    async def scenario() -> None:
        secrets = ["Authorization: x", "cookie: y", "Proxy-Authorization: z", "Host: h"]
        async with (
            raw(OK) as other,
            raw(moved(302, "/here"), moved(302, other.url)) as server,
            engine() as e,
        ):
            await e.run(a_call(get(server.url, *secrets, "x-plain: 1")))
        same, cross = server.requests[1].lower(), other.requests[0].lower()
        for name in (b"authorization", b"cookie", b"proxy-authorization"):
            assert name in same
            assert name not in cross
        assert b"host: h\r\n" in same
        assert b"host: h\r\n" not in cross
        assert b"x-plain: 1" in cross

    run(scenario())


@pytest.mark.parametrize(("status", "method"), [(302, "GET"), (303, "POST"), (307, "POST")])
def test_credentials_of_a_location_replace_those_of_the_request(status: int, method: str) -> None:
    async def scenario() -> None:
        async with raw(OK) as other, raw() as server, engine() as e:
            host = server.url.removeprefix("http://")
            server.answers += [
                moved(307, "/relative"),
                moved(status, f"http://c:d@{host}/"),
                moved(307, other.url),
            ]
            await e.run(a_call(get(f"http://a:b@{host}/", method=method)))
        sent = [
            [line for line in request.splitlines() if line.lower().startswith(b"authorization:")]
            for request in (*server.requests, *other.requests)
        ]
        first, second = (
            [b"authorization: Basic " + base64.b64encode(pair)] for pair in (b"a:b", b"c:d")
        )
        assert sent == [first, first, second, []]

    run(scenario())


@pytest.mark.parametrize("redirects", [0, 3])
def test_redirects_have_a_limit(redirects: int) -> None:
    async def scenario() -> None:
        options = LOCAL | {"redirects": str(redirects)}
        async with raw(*[moved(302, "/")] * 20) as server, engine(options) as e:
            with pytest.raises(RequestFailed):
                await e.run(a_call(get(server.url)))
            assert len(server.requests) == redirects + 1

    run(scenario())


@pytest.mark.parametrize(
    "location",
    [
        *("file:///etc/passwd", "ftp://127.0.0.1/", "//[::1", "http://127.0.0.1:99999/"),
        *("http://a..b/", f"http://{'a' * 70}.example/", "http://10.0.0.1/", "//2130706433/"),
        *("http://a%3Ab:c@127.0.0.1/", "//a:%00@127.0.0.1/"),
    ],
)
def test_redirects_to_bad_addresses_fail(location: str) -> None:
    async def scenario() -> None:
        async with raw(moved(307, location)) as server, engine({"allow": "127.0.0.1"}) as e:
            with pytest.raises(RequestFailed) as caught:
                await e.run(a_call(get(server.url, method="POST", body=b"once")))
            assert type(caught.value) is RequestFailed, "not refused: the first one was sent"
            assert len(server.requests) == 1

    run(scenario())


@pytest.mark.parametrize("host", ["a..b", "a" * 64 + ".example", "x." + "b" * 64])
def test_hosts_that_no_name_service_can_be_asked_for(host: str) -> None:
    async def scenario() -> None:
        async with engine() as e:
            with pytest.raises(RequestRefused, match="is not a name of a host"):
                await e.run(a_call(get(f"http://{host}/")))

    run(scenario())


def test_a_redirect_without_a_place_is_the_answer() -> None:
    async def scenario() -> None:
        async with raw(b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n") as server, engine() as e:
            head, _ = only(await e.run(a_call(get(server.url))))
        assert head.startswith(b"HTTP/1.1 302 Found\n")

    run(scenario())


class Names(AbstractResolver):
    """Answers from a list for each name, the last one over and over."""

    def __init__(self, **answers: list[list[str]]) -> None:
        self.answers = answers
        self.requested: list[str] = []

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        self.requested.append(host)
        answers = self.answers[host.split(".")[0]]
        addresses = answers.pop(0) if len(answers) > 1 else answers[0]
        return [
            ResolveResult(hostname=host, host=a, port=port, family=socket.AF_INET, proto=0, flags=0)
            for a in addresses
        ]

    async def close(self) -> None:
        pass


def port_of(url: str) -> str:
    return url.rsplit(":", 1)[1]


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.1",
        "127.0.0.1.",
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "0.0.0.0",
        "１２７.0.0.1",
        "localhost",
        "LOCALHOST.",
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::127.0.0.1]",
        "[64:ff9b::7f00:1]",
    ],
)
def test_this_machine_is_out_of_reach(host: str) -> None:
    async def scenario() -> None:
        async with raw(OK) as server, engine({"retries": "0"}) as e:
            with pytest.raises(RequestFailed) as caught:
                await e.run(a_call(get(f"http://{host}:{port_of(server.url)}/")))
            assert server.requests == []
            assert "reach" in caught.value.message or "LOCALHOST" in host

    run(scenario())


@pytest.mark.parametrize(
    "address",
    ["10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.100.100.200", "192.0.0.192",
     "168.63.129.16", "0.1.2.3", "224.0.0.1", "240.0.0.1", "255.255.255.255", "198.18.0.1",
     "fd00:ec2::254", "fe80::1", "fe80::1%eth0", "ff02::1", "fec0::1", "2002:7f00:1::",
     "2002:a9fe:a9fe::", "64:ff9b::a9fe:a9fe", "::ffff:10.0.0.1", "2001:db8::1", "", "no address"],
)  # fmt: skip
def test_private_addresses_are_not_admitted(address: str) -> None:
    assert not policy.AddressPolicy().admits(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "1.1.1.1"])
def test_public_addresses_are_admitted(address: str) -> None:
    assert policy.AddressPolicy().admits(address)
    assert not policy.AddressPolicy(public=False).admits(address)


def test_a_refusal_names_the_setting() -> None:
    for how, said in (("http.allow", "the option 'http.allow'"), ("", "not be reached$")):
        setting = f"the option '{how}'" if how else ""
        with pytest.raises(policy.Refused, match=said):
            policy.AddressPolicy(setting=setting).check_literal("127.0.0.1")


def test_settings_admit_networks_and_names() -> None:
    chosen = policy.read_policy("10.0.0.0/8, fd00::/8,192.168.1.7, *.Internal", "no")
    assert chosen.admits("10.200.0.1")
    assert chosen.admits("::ffff:10.200.0.1")
    assert chosen.admits("fd00::1")
    assert chosen.admits("192.168.1.7")
    assert not chosen.admits("192.168.1.8")
    assert not chosen.admits("8.8.8.8")
    assert chosen.trusts("store.internal.")
    assert chosen.trusts("STORE.internal")
    assert not chosen.trusts("internal.example.org")


def test_names_that_point_inside_are_refused() -> None:
    async def scenario() -> None:
        names = Names(evil=[["127.0.0.1"]], meta=[["169.254.169.254"]])
        async with raw(OK) as server, engine({}, names) as e:
            for host in ("evil.example", "meta.example"):
                url = f"http://{host}:{port_of(server.url)}/"
                with pytest.raises(RequestFailed):
                    await e.run(a_call(*[get(url)] * 20))
            assert server.requests == []

    run(scenario())


def test_only_the_checked_address_is_connected_to() -> None:
    async def scenario() -> None:
        names = Names(flips=[["10.9.9.9", "127.0.0.2"], ["127.0.0.1"]])
        async with raw(OK, host="127.0.0.2") as server, engine({"allow": "127.0.0.2"}, names) as e:
            url = f"http://flips.example:{port_of(server.url)}/"
            assert only(await e.run(a_call(get(url))))[1] == b"ok"
        assert names.requested == ["flips.example"]  # asked once, and connected to that answer

    run(scenario())


def test_a_name_that_moves_inside_between_hops_is_refused() -> None:
    async def scenario() -> None:
        names = Names(flips=[["127.0.0.2"], ["127.0.0.1"]])
        async with raw(OK) as inside, engine({"allow": "127.0.0.2"}, names) as e:
            hop = moved(302, f"http://flips.example:{port_of(inside.url)}/")
            async with raw(hop, host="127.0.0.2") as outside:
                with pytest.raises(RequestFailed):
                    await e.run(a_call(get(f"http://flips.example:{port_of(outside.url)}/")))
            assert len(outside.requests) == 1
            assert inside.requests == []
        assert len(names.requested) == 2

    run(scenario())


def test_a_redirect_to_a_forbidden_address_is_refused() -> None:
    async def scenario() -> None:
        async with raw(OK) as inside, engine({"allow": "127.0.0.2"}) as e:
            async with raw(moved(302, inside.url), host="127.0.0.2") as outside:
                with pytest.raises(RequestFailed):
                    await e.run(a_call(get(outside.url)))
            assert inside.requests == []

    run(scenario())


def test_a_trusted_name_is_reached_wherever_it_points() -> None:
    async def scenario() -> None:
        names = Names(store=[["127.0.0.1"]])
        async with raw(OK) as server, engine({"allow": "*.corp", "public": "no"}, names) as e:
            url = f"http://store.corp:{port_of(server.url)}/"
            assert only(await e.run(a_call(get(url))))[1] == b"ok"
            with pytest.raises(RequestFailed):
                await e.run(a_call(get(f"http://store.other:{port_of(server.url)}/")))

    run(scenario())


def test_names_whose_servers_do_not_answer_delay_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count = 40
    begun, answers = threading.Semaphore(0), threading.Event()
    real = socket.getaddrinfo

    def look_up(host: str, *arguments: Any, **options: Any) -> Any:
        if not host.endswith(".silent"):
            return real(host, *arguments, **options)
        begun.release()
        answers.wait(20)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)

    async def scenario() -> None:
        options = {**LOCAL, "concurrency": str(2 * count), "retries": "0"}
        async with raw(OK) as server, engine(options) as e, asyncio.TaskGroup() as group:
            silent = [
                group.create_task(fails(e, get(f"http://n{number}.silent/")))
                for number in range(count)
            ]
            try:
                async with asyncio.timeout(5):
                    while not begun.acquire(blocking=False):  # they come first
                        await asyncio.sleep(0.01)
                    url = f"http://localhost:{port_of(server.url)}/"
                    assert only(await e.run(a_call(get(url))))[1] == b"ok"
                    assert not any(task.done() for task in silent)
            finally:
                answers.set()

    run(scenario())


async def fails(engine: AsyncEngine, item: bytes) -> None:
    with pytest.raises(RequestInterrupted, match="Temporary failure"):
        await engine.run(a_call(item))
