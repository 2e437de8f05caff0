"""Functions of objects against an S3 service, and against broken ones."""

from __future__ import annotations

import asyncio
import importlib
import os
from collections.abc import Iterator
from typing import Any

import pytest

from dandelion.data import Item
from dandelion.driver import AsyncEngine
from dandelion.errors import (
    ContextFull,
    RequestFailed,
    RequestRefused,
    TooLarge,
)
from dandelion.function import Limits
from dandelion.memory import SharedDomain
from tests.s3_services import BUCKET, answer, given_direct, s3

from .store_calls import MIB, contexts, descriptors, run, store_call, texts
from .store_servers import KEY_ID, SECRET, s3_server

direct = pytest.fixture()(given_direct)
WHOLE_BYTES = importlib.import_module("dandelion.backends.s3.engine").WHOLE_BYTES


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3_server() as url:
        yield url


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_S3_KEY_ID", KEY_ID)
    monkeypatch.setenv("TEST_S3_SECRET", SECRET)


def test_objects_are_bytes(server: str, direct: Any) -> None:
    given = {
        "none": b"",
        "small": bytes(range(256)),
        "whole": os.urandom(WHOLE_BYTES),
        "streamed": os.urandom(WHOLE_BYTES + 1),
    }

    async def scenario() -> None:
        domain = SharedDomain(16 * MIB)
        async with s3(server) as e:
            done = await e.run(store_call("s3", "S3Put", given, {"t": "s a/{name}"}))
            wanted = {**texts(done), "no": b"s a/no"}
            done = await e.run(store_call("s3", "S3Get", wanted, domain=domain))
            assert texts(done) == given
            assert texts(done, 1) == {"no": b"s a/no"}
            assert done[0] is not None
            placed = {i.name for i in done[0] if domain.locate(i.data) is not None}
            assert placed == {"whole", "streamed"}
        domain.close()
        body = direct.get_object(Bucket=BUCKET, Key="a/small")["Body"].read()
        assert body == given["small"]

    run(scenario())


def test_names_and_keys_come_back(server: str, direct: Any) -> None:
    async def scenario() -> None:
        async with s3(server) as e:
            contents = [Item("x", 1, b"1"), Item("x", 2, b"2")]
            done = await e.run(store_call("s3", "S3Put", contents, {"t": "s {key}/{name}"}))
            assert done[0] is not None
            done = await e.run(store_call("s3", "S3Get", list(done[0])))
            assert done[0] is not None
            assert [(i.name, i.key, i.data) for i in done[0]] == [("x", 1, b"1"), ("x", 2, b"2")]

    run(scenario())


def test_large_contents_are_written_in_parts(server: str, direct: Any) -> None:
    content = os.urandom(13 * MIB)

    async def scenario() -> None:
        async with s3(server, s_part_bytes=str(5 * MIB)) as e:
            await e.run(store_call("s3", "S3Put", {"c": memoryview(content)}, {"t": "s big"}))  # type: ignore[dict-item]
        found = direct.get_object(Bucket=BUCKET, Key="big")
        assert found["ETag"].endswith('-3"')  # the number of parts
        assert found["Body"].read() == content

    run(scenario())


@pytest.mark.parametrize(
    ("text", "part"), [("0-0", b"a"), ("2-3", b"cd"), ("4-", b"ef"), ("-2", b"ef"), ("4-99", b"ef")]
)
def test_ranges(server: str, direct: Any, text: str, part: bytes) -> None:
    direct.put_object(Bucket=BUCKET, Key="k", Body=b"abcdef")

    async def scenario() -> None:
        async with s3(server) as e:
            done = await e.run(store_call("s3", "S3Get", {"r": f"s k\nrange: {text}"}))
            assert texts(done) == {"r": part}
            with pytest.raises(RequestFailed, match="range"):
                await e.run(store_call("s3", "S3Get", {"r": "s k\nrange: 6-7"}))

    run(scenario())


def test_keys_are_those_of_other_clients(server: str, direct: Any) -> None:
    keys = ["a b", "%41", "ü/é", "a+b&c=d?e#f", "{x}", "[~]*", "a'b\"c", "-"]

    async def scenario() -> None:
        async with s3(server) as e:
            contents = {key.replace("/", "_"): key.encode() for key in keys}
            targets = [Item(k.replace("/", "_"), 0, f"s {k}".encode()) for k in keys]
            await e.run(store_call("s3", "S3Put", contents, targets))
            for key in keys:
                assert direct.get_object(Bucket=BUCKET, Key=key)["Body"].read() == key.encode()
            done = await e.run(store_call("s3", "S3List", {"r": "s"}))
            assert sorted(texts(done)) == sorted(keys)
            done = await e.run(store_call("s3", "S3Get", texts(done)))
            assert texts(done) == {key: key.encode() for key in keys}

    run(scenario())


@pytest.mark.parametrize(
    "path", ["../x", "a/../b", "/a", "a//b", "a/", ".", "k" * 1025, "a\rb", "a\0"]
)
def test_paths_that_are_refused(server: str, path: str) -> None:
    async def scenario() -> None:
        async with s3(server) as e:
            with pytest.raises(RequestRefused) as caught:
                await e.run(store_call("s3", "S3Get", {"r": f"s {path}"}))
            assert (caught.value.item, caught.value.transient) == ("r", False)

    run(scenario())


def test_listing(server: str, direct: Any) -> None:
    for n in range(25):
        direct.put_object(Bucket=BUCKET, Key=f"part/a/{n:02}", Body=b"x" * n)
    for key in ("part/b", "part2/a/00", "other"):
        direct.put_object(Bucket=BUCKET, Key=key, Body=b"")

    async def scenario() -> None:
        async with s3(server, s_prefix="part/") as e:
            done = await e.run(store_call("s3", "S3List", [Item("r", 5, b"s a\nlimit: 10")]))
            assert list(texts(done)) == [f"a/{n:02}" for n in range(10)]
            assert texts(done)["a/03"] == b"s a/03"
            assert b"size:3\n" in texts(done, 1)["a/03"]
            assert done[0] is not None
            assert {item.key for item in done[0]} == {5}
            names: list[str] = []
            again = b"s\nlimit: 10"
            while again:
                done = await e.run(store_call("s3", "S3List", {"r": again}))
                names += texts(done)
                again = texts(done, 2).get("r", b"")
            assert names == [*(f"a/{n:02}" for n in range(25)), "b"]
            done = await e.run(store_call("s3", "S3List", {"r": "s no/such"}))
            assert done == (None, None, None)

    run(scenario())


async def listed_in_pages(e: AsyncEngine, request: str, pages: int = 20) -> list[str]:
    """List with all continuations, and check that each entry is a request for it."""
    names: list[str] = []
    again = request.encode()
    while again:
        assert pages, f"the listing does not end: {names}"
        pages -= 1
        done = await e.run(store_call("s3", "S3List", {"r": again}))
        found = await e.run(store_call("s3", "S3Get", texts(done)))
        assert texts(found).keys() == texts(done).keys()
        names += texts(done)
        again = texts(done, 2).get("r", b"")
    return names


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
@pytest.mark.parametrize("content", [b"", b"x"])
def test_folder_markers_are_no_entries(
    server: str, direct: Any, limit: int, content: bytes
) -> None:
    names = ["m/a", "m/empty", "m/folder", "m/folder-1", "m/folder/b", "m/z"]
    for key in names:
        direct.put_object(Bucket=BUCKET, Key=key, Body=b"" if key == "m/empty" else b"x")
    for key in ("m/", "m/folder/"):
        direct.put_object(Bucket=BUCKET, Key=key, Body=content)
    for key in ("0/", "01/", "m/folder-1/", "m/only/", "m/zz/"):
        direct.put_object(Bucket=BUCKET, Key=key, Body=b"")

    async def scenario() -> None:
        async with s3(server) as e:
            assert await listed_in_pages(e, f"s m\nlimit: {limit}") == names
            assert await listed_in_pages(e, f"s m/folder\nlimit: {limit}") == ["m/folder/b"]
            assert await listed_in_pages(e, "s m/only") == []
            if not content:
                assert await listed_in_pages(e, f"s\nlimit: {limit}") == names
        async with s3(server, s_prefix="m/") as e:
            below = [name.removeprefix("m/") for name in names]
            assert await listed_in_pages(e, f"s\nlimit: {limit}") == below

    run(scenario())


@pytest.mark.parametrize(
    ("begin", "others"),
    [
        (["/lead"], ["m"]),
        (["/lead"], ["a", "lead"]),
        (["/.a"], [".a", ".z"]),
        (["/0", "/1", "/b"], ["0"]),
        (["/"], []),
    ],
)
@pytest.mark.parametrize("content", [b"", b"x"])
def test_keys_that_begin_with_a_slash_are_no_entries(
    server: str, direct: Any, begin: list[str], others: list[str], content: bytes
) -> None:
    for key in (*begin, *others):
        direct.put_object(Bucket=BUCKET, Key=key, Body=content)

    async def scenario() -> None:
        async with s3(server) as e:
            if content and ("a" in others or "/b" in begin):  # they come behind the first one
                with pytest.raises(RequestFailed, match="a key with a part that is empty"):
                    await listed_in_pages(e, "s\nlimit: 1")
                for key in begin:
                    direct.delete_object(Bucket=BUCKET, Key=key)
            assert await listed_in_pages(e, "s\nlimit: 1") == others

    run(scenario())


def test_keys_that_are_no_paths_cannot_be_listed(server: str, direct: Any) -> None:
    direct.put_object(Bucket=BUCKET, Key="good/k", Body=b"")

    async def scenario() -> None:
        async with s3(server) as e:
            direct.put_object(Bucket=BUCKET, Key="bad//k", Body=b"")
            with pytest.raises(RequestFailed, match="a key with a part that is empty") as caught:
                await e.run(store_call("s3", "S3List", {"r": "s"}))
            assert not caught.value.transient
            done = await e.run(store_call("s3", "S3List", {"r": "s good"}))
            assert list(texts(done)) == ["good/k"]

    run(scenario())


def test_credentials_that_may_list_and_not_read() -> None:
    entry = "<Contents><Key>k</Key><Size>0</Size><LastModified>2026-01-02T03:04:05Z</LastModified>"
    page = f"<ListBucketResult>{entry}</Contents></ListBucketResult>".encode()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        is_list = head.startswith(b"GET")
        writer.write(answer("200 OK", page) if is_list else answer("403 Forbidden"))
        await writer.drain()
        writer.close()

    async def scenario() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server, s3(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as e:
            done = await e.run(store_call("s3", "S3List", {"r": "s"}))
            assert texts(done) == {"k": b"s k"}

    run(scenario())


def test_prefixes_keep_tenants_apart(server: str, direct: Any) -> None:
    async def scenario() -> None:
        async with s3(server, s_tenants="*", s_prefix="{tenant}/") as e:
            for tenant in ("a", "b"):
                contents = {"c": tenant.encode()}
                await e.run(store_call("s3", "S3Put", contents, {"t": "s k"}, tenant=tenant))
            for tenant in ("a", "b"):
                done = await e.run(store_call("s3", "S3List", {"r": "s"}, tenant=tenant))
                assert texts(done) == {"k": b"s k"}
                done = await e.run(store_call("s3", "S3Get", texts(done), tenant=tenant))
                assert texts(done) == {"k": tenant.encode()}

    run(scenario())


def test_deleting(server: str, direct: Any) -> None:
    direct.put_object(Bucket=BUCKET, Key="k", Body=b"")

    async def scenario() -> None:
        async with s3(server, s_read_only="yes") as e:
            for name, sets in [("S3Delete", [{"r": "s k"}]), ("S3Put", [{"c": b""}, {"t": "s k"}])]:
                with pytest.raises(RequestRefused, match="read-only"):
                    await e.run(store_call("s3", name, *sets))
        assert direct.list_objects_v2(Bucket=BUCKET)["KeyCount"] == 1
        async with s3(server) as e:
            done = await e.run(store_call("s3", "S3Delete", {"r": "s k", "no": "s no"}))
            assert texts(done) == {"r": b"s k", "no": b"s no"}
        assert direct.list_objects_v2(Bucket=BUCKET)["KeyCount"] == 0

    run(scenario())


def test_limits_hold_before_a_body_is_received(server: str, direct: Any) -> None:
    direct.put_object(Bucket=BUCKET, Key="k", Body=bytes(3 * MIB))

    def get(limits: Limits | None = None, domain: SharedDomain | None = None) -> Any:
        return store_call("s3", "S3Get", {"a": "s k", "b": "s k"}, limits=limits, domain=domain)

    async def scenario() -> None:
        domain, small = SharedDomain(8 * MIB), SharedDomain(4 * MIB)
        async with s3(server, concurrency="1") as e:
            with pytest.raises(TooLarge, match="'b'"):
                await e.run(get(Limits(output_bytes=6 * MIB - 1), domain))
            with pytest.raises(ContextFull):
                await e.run(get(domain=small))
            assert await contexts(domain) == await contexts(small) == 0
            await e.run(get(domain=domain))
        domain.close()
        small.close()

    run(scenario())


def test_many_objects_at_once_leave_nothing_open(server: str, direct: Any) -> None:
    async def scenario() -> None:
        before = descriptors()
        async with s3(server) as e:
            given = {str(n): b"%d" % n for n in range(200)}
            done = await e.run(store_call("s3", "S3Put", given, {"t": "s {name}"}))
            done = await e.run(store_call("s3", "S3Get", texts(done)))
            assert texts(done) == given
        del e, done
        for _ in range(200):  # the library closes connections in a thread of its own
            if descriptors() <= before + 2:
                break
            await asyncio.sleep(0.01)
        assert descriptors() <= before + 12, "its threads keep some for themselves"

    run(scenario())
