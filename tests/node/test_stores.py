"""Stores through a node: the examples of the page, tenants, credentials, many objects."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib
import json
import logging
import re
import socket
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import msgspec
import pytest
import redis

import dandelion as dd
from dandelion.cli.settings import load_settings
from dandelion.driver import load_driver
from dandelion.errors import (
    ApplicationFailed,
    BackendUnavailable,
    Cancelled,
    DandelionError,
    DeadlineExceeded,
    InvalidComposition,
    NoEngine,
    RequestRefused,
)
from dandelion.frontend.client import Client
from dandelion.frontend.server import BackgroundServer
from dandelion.node import Node, Settings
from tests.store_servers import KEY_ID, PASSWORD, SECRET, redis_server, s3_server

PAGE = (Path(__file__).resolve().parents[2] / "docs/io-functions.md").read_text()
BUCKET = "bucket-of-nodes"
COPY = """
function S3Get (requests) => (objects, missing);
function shout (object) => (loud);
function KvSet (values, to) => (written);
composition Shout (requests, to) => (written, missing) {
    S3Get (requests = all requests) => (objects = objects, missing = missing);
    shout (object = all objects) => (loud = loud);
    KvSet (values = all loud, to = all to) => (written = written);
}
"""
WHERE = """
function S3Get (requests) => (objects, missing);
composition Where (requests) => (missing) {
    S3Get (requests = all requests) => (missing = missing);
}
"""


def shout(object):  # noqa: A002
    return {"loud": {item.name: item.text().upper() for item in object}}


def digest(object):  # noqa: A002
    import hashlib

    return {"sum": hashlib.sha256(object.bytes()).hexdigest()}


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path, Path]]:
    """An S3 service, a redis server with a password, and a folder with the files of credentials."""
    folder = tmp_path_factory.mktemp("stores")
    for name, text in [("id", KEY_ID), ("secret", SECRET), ("password", PASSWORD)]:
        (folder / name).write_text(text + "\n")
    with s3_server() as url, redis_server(folder, "--requirepass", PASSWORD) as path:
        client_of(url).create_bucket(Bucket=BUCKET)
        yield url, path, folder


def client_of(url: str) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=url,
        aws_access_key_id=KEY_ID,
        aws_secret_access_key=SECRET,
        region_name="us-east-1",
    )


def settings(services: tuple[str, Path, Path], **changes: str) -> Settings:
    url, path, folder = services
    s3 = {
        "bucket": BUCKET,
        "endpoint": url,
        "key_id_file": str(folder / "id"),
        "secret_file": str(folder / "secret"),
    }
    kv = {"address": f"unix:{path}", "password_file": str(folder / "password")}
    options = {
        "s3": {f"store.pictures.{name}": text for name, text in s3.items()},
        "kv": {f"store.results.{name}": text for name, text in kv.items()},
    }
    for name, text in changes.items():
        backend, _, option = name.partition("_")
        options[backend][option.replace("__", ".")] = text
    return Settings(backends=("process", "s3", "kv"), engines={"process": 1}, options=options)


@contextlib.contextmanager
def shouting(services: tuple[str, Path, Path], **changes: str) -> Iterator[Node]:
    with Node(settings(services, **changes)) as node:
        node.ready()
        loud = dd.python_function(shout, outputs=["loud"])
        node.register(COPY, functions=[loud])
        yield node


def test_the_program_of_the_page_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("texts", "results"):
        (tmp_path / name).mkdir()
    (tmp_path / "texts" / "english" / "old").mkdir(parents=True)
    (tmp_path / "texts" / "english" / "a.txt").write_text("to be or not")
    (tmp_path / "texts" / "english" / "old" / "b.txt").write_text("to be")
    program = blocks("python")[0].replace("/srv", str(tmp_path))
    file = tmp_path / "example.py"  # documents read the sources of functions from files
    file.write_text(program)
    exec(compile(program, str(file), "exec"), {"__name__": "example"})
    assert capsys.readouterr().out == (
        "english/a.txt is in results counts/english/a.txt\n"
        "english/old/b.txt is in results counts/english/old/b.txt\n"
    )
    assert (tmp_path / "results/counts/english/a.txt").read_text() == "4"
    assert (tmp_path / "results/counts/english/old/b.txt").read_text() == "2"


def test_the_settings_of_the_page_are_read(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text(blocks("toml")[0])
    (flag,) = re.findall(r"`--options ([^`]+)`", PAGE)
    assert load_settings(None, {}, {"options": [flag]}).options["files"]
    read = load_settings(file, {}, {})
    for backend in ("s3", "kv", "files"):
        load_driver(backend).configure(read.options[backend])
    assert read.options["s3"]["store.pictures.tenants"] == "default,vision"


def test_the_page_has_all_functions_and_options() -> None:
    rows = {
        (name, tuple(re.split(r",\s*", sets)), tuple(re.split(r",\s*", outputs))): repeat == "yes"
        for name, sets, outputs, repeat in re.findall(
            r"^\| `(\w+) \(([\w, ]+)\) => \(([\w, ]+)\)`.*\| (\w+) \|$", PAGE, re.MULTILINE
        )
    }
    specs = [f for b in ("s3", "kv", "files") for f in load_driver(b).platform_functions]
    assert rows == {(f.name, f.input_names, f.output_names): f.idempotent for f in specs}
    for backend in ("s3", "kv", "files"):
        module = importlib.import_module(f"dandelion.backends.{backend}.settings")
        kinds = [
            k
            for k in vars(module).values()
            if isinstance(k, type) and k.__module__ == module.__name__
        ]
        for kind in kinds:
            for name in getattr(kind, "__struct_fields__", ()):
                assert f"`{name}`" in PAGE or name == "stores", name


def test_the_composition_of_the_page(services: tuple[str, Path, Path]) -> None:
    url, path, _ = services
    client_of(url).put_object(Bucket=BUCKET, Key="d/one", Body=b"content")
    (text,) = re.findall(r"```\n(function S3Get.*?)```", PAGE, re.DOTALL)
    with Node(settings(services)) as node:
        node.register(text, functions=[dd.python_function(digest, outputs=["sum"])])
        requests = {"one": "pictures d/one", "two": "pictures d/two"}
        done = node.invoke("Digests", requests=requests, to="results sum:{name}\nttl: 60")
        assert [item.name for item in done.written] == ["one"]
        assert [(i.name, i.text()) for i in done.missing] == [("two", "pictures d/two")]
    with redis.Redis(unix_socket_path=str(path), password=PASSWORD) as direct:
        assert direct.get("sum:one") == hashlib.sha256(b"content").hexdigest().encode()
        assert 0 < direct.ttl("sum:one") <= 60


def test_a_thousand_objects_through_one_composition(services: tuple[str, Path, Path]) -> None:
    with shouting(services) as node:
        names = [f"{n:04}" for n in range(1000)]
        put = node.invoke(
            "S3Put", contents={n: f"object {n}" for n in names}, to="pictures many/{name}"
        )
        used = node.info().arena.contexts
        requests = {item.name: item.text() for item in put.written}
        done = node.invoke("Shout", requests=requests, to="results many:{name}")
        assert [item.name for item in done.written] == names
        read = node.invoke("KvGet", requests={i.name: i.text() for i in done.written})
        found = {item.name: item.text() for item in read["values"]}
        assert found == {n: f"OBJECT {n}" for n in names}
        del put, done, read, found
        assert node.info().arena.contexts <= used


def test_tenants_through_a_node(services: tuple[str, Path, Path]) -> None:
    client_of(services[0]).put_object(Bucket=BUCKET, Key="vision/k", Body=b"of vision")
    changes = {"s3_store__pictures__tenants": "vision", "s3_store__pictures__prefix": "{tenant}/"}
    with Node(settings(services, **changes)) as node:
        request = {"r": "pictures k"}
        done = node.invoke("S3Get", requests=request, tenant="vision")
        assert done.objects.text() == "of vision"
        with pytest.raises(DandelionError) as caught:
            node.invoke("S3Get", requests=request)
        assert isinstance(root(caught.value), RequestRefused)
        assert "tenant 'default' has no store 'pictures'; it may use none" in str(caught.value)
        assert "option 'tenants'" in str(caught.value)


def root(error: BaseException) -> BaseException:
    return error.root if isinstance(error, ApplicationFailed) else error


def test_no_credential_is_shown(
    services: tuple[str, Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    """All that callers and operators can see of a node whose stores refuse it, or answer."""
    hidden = [KEY_ID, SECRET, PASSWORD, "wrong-password-of-tests"]
    (services[2] / "wrong").write_text(hidden[3])
    seen: list[str] = []
    client_of(services[0]).put_object(Bucket=BUCKET, Key="shown", Body=b"an object")
    caplog.set_level(logging.DEBUG)
    for changes in (
        {},
        {"kv_store__results__password_file": str(services[2] / "wrong")},
        {"s3_store__pictures__bucket": "no-such-bucket"},
        {"s3_store__pictures__endpoint": "http://127.0.0.1:1", "s3_retries": "0"},
        {"s3_store__pictures__secret_file": str(services[2] / "no-such-file")},
    ):
        given = msgspec.structs.replace(settings(services, **changes), backends=("s3", "kv"))
        with Node(given) as node, BackgroundServer(node) as server:
            node.register(WHERE)
            with Client(server.url) as client:
                for name, request in [
                    ("S3Get", "pictures shown"), ("S3Get", "pictures no"), ("Where", "pictures no"),
                    ("KvGet", "results no"), ("KvGet", "other x"), ("S3Get", "x\n"),
                ]:  # fmt: skip
                    try:
                        done = client.invoke(name, requests={"r": request})
                        seen += [
                            repr([i.bytes() for i in found]) for found in done.values() if found
                        ]
                    except DandelionError as error:
                        seen += [str(error), repr(error), repr(error.record())]
            for route in (
                "/v1/functions", "/v1/functions/S3Get", "/v1/compositions", "/v1/engines",
                "/v1/capacity", "/v1/traces", "/metrics", "/readyz", "/v1/openapi.json",
            ):  # fmt: skip
                try:
                    seen.append(urllib.request.urlopen(server.url + route).read().decode())
                except urllib.request.HTTPError as error:
                    error.close()
            seen += [repr(node.info()), repr(node.settings), repr(node.__dict__)]
            seen += [repr(vars(executor)) for executor in node._runtime.executors.values()]
    seen += [record.getMessage() + str(record.exc_info) for record in caplog.records]
    everything = "\n".join(seen)
    assert "an object" in everything
    assert "refused the credentials" in everything
    for secret in hidden:
        assert secret not in everything


def test_a_file_of_credentials_that_is_missing_makes_the_backend_unavailable(
    services: tuple[str, Path, Path],
) -> None:
    with Node(settings(services, s3_store__pictures__secret_file="/no/such")) as node:
        node.ready()
        (engine,) = [e for e in node.info().engines if e.backend == "s3"]
        assert engine.state == "unavailable"
        assert "store.pictures.secret_file cannot be read" in engine.reason
        with pytest.raises(DandelionError, match="secret_file"):
            node.invoke("S3Get", requests={"r": "pictures k"})


def test_functions_of_a_backend_that_is_off_say_how_to_switch_it_on() -> None:
    with Node(Settings(backends=("null",))) as node:
        with pytest.raises(BackendUnavailable, match="add 's3' to the node's setting 'backends'"):
            node.invoke("S3Get", requests={"r": "pictures k"})
        with pytest.raises(InvalidComposition, match="function of the backend 'kv'"):
            node.register(
                "function KvGet (requests) => (values, missing);"
                "composition C (a) => (v) { KvGet (requests = all a) => (v = values); }"
            )
    with Node(Settings(backends=("null", "kv"))) as node:
        node.ready()
        (engine,) = [e for e in node.engines() if e.backend == "kv"]
        assert "--options kv.store.NAME.address" in engine.reason
        with pytest.raises(NoEngine, match="dandelion ls backends"):
            node.invoke("KvGet", requests={"r": "a b"})


def test_deadlines_and_cancelling_through_a_node(tmp_path: Path) -> None:
    def busy(node: Node) -> int:
        return sum(engine.busy for engine in node.engines())

    async def scenario(path: Path) -> None:
        options = {"kv": {"store.s.address": f"unix:{path}"}}
        async with Node(Settings(backends=("kv",), options=options)) as node:
            with pytest.raises(DeadlineExceeded):
                await node.invoke_async("KvGet", requests={"r": "s k"}, deadline_s=0.1)
            requested = asyncio.create_task(node.invoke_async("KvGet", requests={"r": "s k"}))
            await until(lambda: busy(node) == 1)
            requested.cancel()
            with pytest.raises((asyncio.CancelledError, Cancelled)):
                await requested
            await until(lambda: busy(node) == 0)

    with socket.socket(socket.AF_UNIX) as silent:
        path = tmp_path / "silent.sock"
        silent.bind(str(path))
        silent.listen()
        asyncio.run(scenario(path))


async def until(condition: Callable[[], bool]) -> None:
    """Let the node work until a condition holds, which the test's time limit bounds."""
    while not condition():
        await asyncio.sleep(0.001)


def test_a_page_of_json_has_no_names_of_stores(services: tuple[str, Path, Path]) -> None:
    with Node(settings(services)) as node, BackgroundServer(node) as server:
        node.ready()
        text = urllib.request.urlopen(server.url + "/v1/engines").read().decode()
        assert "S3-compatible" in text
        assert "pictures" not in json.dumps(json.loads(text))
