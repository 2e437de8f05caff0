"""Secrets on a node: functions get theirs, and no one else sees them."""

from __future__ import annotations

import base64
import contextlib
import logging
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dandelion import Client
from dandelion.activity import ActivityQuery
from dandelion.data import Item, ItemSet
from dandelion.documents import (
    CodeDocument,
    FunctionDocument,
    RegistrationDocument,
    python_function,
)
from dandelion.errors import DandelionError, InvalidFunction, InvalidInput, SecretMissing, root_of
from dandelion.frontend.server import BackgroundServer, reload_node
from dandelion.node import Node, Settings
from dandelion.recording.records import decode_recording
from dandelion.set_values import item_set
from tests.processes import children

SECRET = "S3cret-value-of-the-node"
OTHER = "another-tenants-S3cret"
FILE = f'[default]\napi_key = "{SECRET}"\nspare = "unused-S3cret"\n[acme]\napi_key = "{OTHER}"\n'


@contextlib.contextmanager
def opened(folder: Path, text: str = FILE, **settings: Any) -> Iterator[Node]:
    path = folder / "secrets.toml"
    path.write_text(text)
    path.chmod(0o600)
    given = {"backends": ("null", "process"), "engines": {"process": 1}, "arena_bytes": 32 << 20}
    catalog = f"sqlite:{folder / 'catalog'}"
    made = Settings(**{**given, "catalog": catalog, "secrets": str(path), **settings})
    with Node(made) as node:
        assert node.wait_ready(60)
        yield node


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("secrets")


@pytest.fixture(scope="module")
def node(folder: Path) -> Iterator[Node]:
    with opened(folder) as node:
        yield node


def function(body: str, name: str = "f", **options: Any) -> FunctionDocument:
    source = f"def {name}(x, key):\n    value = key.text()\n    {body}\n"
    return python_function(
        source,
        name=name,
        inputs=("x", "key"),
        outputs=("y",),
        **{"secrets": {"key": "api_key"}, **options},
    )


def test_a_function_gets_the_secret_of_its_tenant(node: Node) -> None:
    for tenant, length in (("default", len(SECRET)), ("acme", len(OTHER))):
        node.register(function("return str(len(value))"), tenant=tenant)
        assert node.invoke("f", x="", tenant=tenant).y.text() == str(length)
        assert node.signature("f", tenant=tenant).static == ("key",)
        with pytest.raises(InvalidInput, match="key"):
            node.invoke("f", x="", key="mine", tenant=tenant)


def test_in_compositions_the_set_cannot_be_bound(node: Node) -> None:
    node.register(function("return str(len(value))", "inner"))
    declared = "function inner(x, key) => (y);"
    node.register(f"{declared} composition Outer(x) => (y) {{ inner(x = all x) => (y = y); }}")
    assert node.invoke("Outer", x="").y.text() == str(len(SECRET))
    bound = "inner(x = all x, key = all x) => (y = y);"
    with pytest.raises(DandelionError, match="'key'"):
        node.register(f"{declared} composition Bad(x) => (y) {{ {bound} }}")


@pytest.mark.parametrize(
    ("document", "code"),
    [
        (function("pass", secrets={"key": "api_kee"}), "unknown-secret"),
        (function("pass", secrets={"kee": "api_key"}), "unknown-set"),
        (function("pass", static={"key": {"key": "x"}}), "static-secret"),
        (function("pass", cache=True), "cached-secret"),
        (
            FunctionDocument(
                "g",
                ("x", "key"),
                ("y",),
                code=(CodeDocument("blueprint", "{}"),),
                secrets={"key": "api_key"},
            ),
            "shared-secret",
        ),
    ],
)
def test_registration_refuses_what_cannot_be(
    node: Node, document: FunctionDocument, code: str
) -> None:
    with pytest.raises(InvalidFunction) as caught:
        node.register(document)
    assert code in {problem.code for problem in caught.value.problems}
    assert OTHER not in str(caught.value)


def test_names_of_other_tenants_are_not_suggested(node: Node) -> None:
    with pytest.raises(InvalidFunction) as caught:
        node.register(function("pass", secrets={"key": "spar"}), tenant="acme")
    assert "spare" not in str(caught.value.record())


LEAKS = {
    "exception": "raise ValueError(value)",
    "exception in another spelling": "raise ValueError(value.encode().hex())",
    "nested exception": "raise KeyError({'a': [value]}) from ValueError(value)",
    "line of the traceback": "assert value == 'x', value",
    "name of an exception": "raise type(value, (Exception,), {})('x')",
    "standard output": "print(value); raise ValueError('x')",
    "standard error": "import sys; sys.stderr.write(value); raise ValueError('x')",
    "exit": "import sys; sys.exit(value)",
    "logging": "import logging; logging.warning(value); raise ValueError('x')",
    "warning": "import warnings; warnings.warn(value); raise ValueError('x')",
    "name of an output set": "return {value: 'x'}",
    "name of an item": "return {'y': {value * 20: 'x'}}",
    "type of an output": "return {'y': type(value, (), {})()}",
    "denied call": "open('/' + value)",
    "import": "__import__(value)",
    "abort": "import os; os.write(2, value.encode()); os.abort()",
    "memory": "print(value); bytearray(1 << 40)",
    "no text": "raise ValueError(value.encode('utf-16'))",
    "base64": "import base64; raise ValueError(base64.b64encode(value.encode()))",
    "repeated": "raise ValueError(value * 100)",
}


def spellings() -> list[bytes]:
    data = SECRET.encode()
    wide = repr(SECRET.encode("utf-16-le"))[2:-1].encode()
    escaped = wide.replace(b"\\", b"\\\\")  # as in JSON
    return [data, data.hex().encode(), base64.b64encode(data).rstrip(b"="), wide, escaped]


@pytest.mark.parametrize("way", LEAKS)
def test_failures_do_not_show_it(node: Node, way: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    node.register(function(LEAKS[way], "leaks"))
    with pytest.raises(DandelionError) as caught:
        node.invoke("leaks", x="")
    shown = f"{caught.value} {caught.value.record()} {root_of(caught.value)!r} {caplog.text}"
    trace = node.trace(caught.value.invocation)
    assert trace is not None
    seen = shown.encode() + trace + node.record("leaks", {"x": item_set("x", "")})
    seen += msgspec.json.encode((node.logs(function="leaks"), node.activity(query=ActivityQuery())))
    for spelling in spellings():
        assert spelling not in seen


def test_nothing_that_can_be_read_has_it(node: Node, folder: Path) -> None:
    node.register(function("return str(len(value))"))
    seen = [node.record("f", {"x": item_set("x", "")}), node.metrics()]
    with BackgroundServer(node) as server, Client(server.url) as client:
        client.invoke("f", x="")
        found = (client.describe("f"), client.list(), client.engines(), client.capacity("f"))
        seen += [msgspec.json.encode(one) for one in found]
        for path in (
            "/v1/functions/f",
            "/v1/functions",
            "/openapi.json",
            "/v1/capacity?function=f",
        ):
            with urllib.request.urlopen(server.url + path) as response:
                seen.append(response.read())
    seen += [path.read_bytes() for path in (folder / "catalog").rglob("*") if path.is_file()]
    for process in children():
        for name in ("environ", "cmdline"):
            with contextlib.suppress(OSError):
                seen.append(Path(f"/proc/{process}/{name}").read_bytes())
    seen.append(repr(node._parts.secrets).encode())
    assert not any(SECRET.encode() in one or OTHER.encode() in one for one in seen)
    recording = decode_recording(seen[0])
    assert recording.document.functions[0].secrets == {"key": "api_key"}


def test_changed_secrets_are_used_from_the_next_call_on(tmp_path: Path) -> None:
    with opened(tmp_path) as node:
        node.register(function("return value[::-1]"))
        assert node.invoke("f", x="").y.text() == SECRET[::-1]
        path = tmp_path / "secrets.toml"
        path.write_text('[default]\napi_key = "second"\n')
        assert node.invoke("f", x="").y.text() == SECRET[::-1]
        node.reload()
        assert node.invoke("f", x="").y.text() == "dnoces"
        path.write_text("[default]\n")
        node.reload()
        with pytest.raises(SecretMissing, match="'api_key'"):
            node.invoke("f", x="")
        path.write_text('[default]\napi_key = "third"\n')
        node.reload()
        assert node.invoke("f", x="").y.text() == "driht"


def test_a_file_that_cannot_be_used_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path) as node:
        node.register(function("return value[::-1]"))
        (tmp_path / "secrets.toml").write_text("nothing")
        with pytest.raises(InvalidInput, match="not TOML"):
            node.reload()
        reload_node(node)  # as after SIGHUP
        (record,) = [record for record in caplog.records if "old secrets" in record.message]
        assert "not TOML" in record.__dict__["why"]
        assert node.invoke("f", x="").y.text() == SECRET[::-1]


def test_a_node_without_the_file_says_which_secret_is_missing(tmp_path: Path) -> None:
    with opened(tmp_path) as node:
        node.register(function("return 'x'"))
    with opened(tmp_path, secrets="") as node:
        with pytest.raises(SecretMissing) as caught:
            node.invoke("f", x="")
        assert "setting 'secrets'" in str(caught.value)
        assert caught.value.status == 503


def test_many_calls_while_secrets_change(tmp_path: Path) -> None:
    with opened(tmp_path) as node:
        node.register(function("return value"), RegistrationDocument())
        path = tmp_path / "secrets.toml"
        for number in range(20):
            value = f"value-number-{number}"
            path.write_text(f'[default]\napi_key = "{value}"\n')
            node.reload()
            assert node.invoke("f", x="").y.text() == value
        flows = [f for f in node._runtime.scheduler.calls.flows.values() if f.spec.name == "f"]
        assert len(flows) == 1


def test_items_of_callers_do_not_replace_it(node: Node) -> None:
    node.register(function("return value[:1]"))
    given = {"x": ItemSet("x", (Item("key", 0, b"mine"),)), "key": item_set("key", "mine")}
    with pytest.raises(InvalidInput):
        node.invoke_sets("f", given)


def test_what_a_function_wrote_has_no_secrets(node: Node) -> None:
    body = "import logging; print('it is', value); logging.error(value); return b''"
    node.register(function(body, "prints"))
    node.invoke("prints", x="")
    lines = [line.text for line in node.logs(function="prints").lines]
    assert lines == ["it is [secret]", "ERROR:root:[secret]"]
