"""Registration over the BSON routes, and their settings."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dandelion.errors import Conflict, InvalidInput
from dandelion.frontend.bson.adapter import READY
from dandelion.frontend.server import BackgroundServer
from dandelion.node import Node, Settings
from dandelion.tokens import Right
from dandelion.tokens.file import write_tokens
from tests.native_functions import built
from tests.node.bson_server import (
    BSON,
    CONTEXT_BYTES,
    NATIVE,
    TEXT,
    Served,
    a_set,
    executable,
    items,
    serving,
)

from .frontend_processes import Processes
from .guarded import record
from .served import DOCUMENT, GateDriver


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """A node of functions that need no sandbox."""
    gate = GateDriver()
    with serving(BSON, [gate]) as made:
        made.gate = gate
        made.node.register(DOCUMENT)
        yield made
        gate.gate.open(100)


@pytest.fixture(scope="module")
def native() -> Iterator[Served]:
    built("echo.c")  # skips without a compiler
    with serving(NATIVE) as made:
        yield made


def test_executables_see_the_names_of_the_client(native: Served) -> None:
    """`bare.c` checks the names of its sets, and of one that is absent."""
    elf = built("bare.c")
    sets = {"input_sets": [["x", None], ["x", None]], "output_sets": ["y"]}
    native.post("/register/function", executable("bare", elf, **sets))
    reply = native.invoke({"name": "bare", "sets": [a_set("", ("i", 1, b"\1\2"))]})
    assert reply == {"sets": [{"identifier": "y", "items": items(("i", 2, b"\2\4"))}]}
    native.post("/register/function", executable("bare", elf, **{**sets, "output_sets": ["z"]}))
    status, text = native.post("/hot/x", {"name": "bare", "sets": [a_set("", ("i", 1, b"\1"))]})
    assert (status, b"code 16" in text) == (500, True)


def test_compositions_of_executables(native: Served) -> None:
    """Chain, diamond, nested and keyed, with names that only the declaration has."""
    elf = built("echo.c")
    two = {"input_sets": [["a", None], ["b", None]], "output_sets": ["made"]}
    native.post("/register/function", executable("first", elf, **two))
    native.post("/register/function", executable("plain", elf))
    for text in (
        """function plain(p) => (q);
        composition chain(x) => (y) { plain(p = all x) => (m = q); plain(p = each m) => (y = q); }
        composition diamond(x) => (y, z) {
            plain(p = each x) => (l = q); plain(p = all x) => (r = q);
            plain(p = all l) => (y = q); plain(p = all r) => (z = q);
        }""",
        """function chain(in) => (out); function first(k, l) => (o);
        composition nested(x, w) => (y, u) {
            chain(in = all x) => (m = out);
            first(k = keyed m, l = keyed w) => (y = o) by k inner l;
            first(k = all x, l = optional all w) => (u = o);
        }""",
    ):
        status, body = native.post("/register/composition", {"composition": text})
        assert (status, body) == (200, b"Function registered")
    given = a_set("q", ("i", 1, b"one"), ("j", 2, b"two"))
    diamond = native.invoke({"name": "diamond", "sets": [given]})["sets"]
    assert [one["identifier"] for one in diamond] == ["", ""]
    assert [sorted(i["data"] for i in one["items"]) for one in diamond] == [[b"one", b"two"]] * 2
    nested = native.invoke({"name": "nested", "sets": [given, a_set("w", ("k", 2, b""))]})["sets"]
    assert [one["identifier"] for one in nested] == ["made", "made"]
    assert [i["data"] for i in nested[0]["items"]] == [b"two"]
    assert len(nested[1]["items"]) == 2


OLD_HTTP = """function HTTP (request) => (response, body);
composition fetch(x) => (y, z) { HTTP(request = each x) => (y = response, z = body); }"""


HTTP = """function HTTP (r) => (h, b);
composition fetch(x) => (y, z) { HTTP(r = each x) => (y = h, z = b); }"""


@pytest.mark.parametrize(("text", "end"), [(OLD_HTTP, b"\n" + READY), (HTTP, b"")])
def test_http_of_both_versions(text: str, end: bytes) -> None:
    """The server that is asked is the node itself."""
    settings = msgspec.structs.replace(
        BSON, backends=("null", "http"), options={"http": {"allow": "127.0.0.1"}}
    )
    with serving(settings) as made:
        request = b"GET http://127.0.0.1:%d/ready HTTP/1.1\n\n" % made.port
        given = [a_set("asked", ("i", 5, request))]
        first, second = made.invoke({"composition": text, "sets": given})["sets"]
    assert (first["identifier"], second["identifier"]) == ("asked", "asked")
    head = first["items"][0]["data"]
    assert head.startswith(b"HTTP/1.1 200 OK\n")
    assert head.endswith(b"content-length:13\n" + end)
    assert second["items"] == items(("i", 5, READY))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"engine_type": "Cheri"}, "engine_type"),
        ({"binary": []}, "elf"),
        ({"binary": [1, 2, 3]}, "elf"),
        ({"context_size": 1 << 62}, "memory_bytes"),
        ({"name": ""}, "name"),
        ({"input_sets": [["a", [["i", [1]], ["i", [2]]]]]}, "twice"),
        ({"min_set_bytes": [1, 2]}, "min_set_bytes"),
        ({"output_sets": [f"s{n}" for n in range(4097)]}, "4097 sets are more than"),
        ({"input_sets": [[f"s{n}", None] for n in range(4097)]}, "4097 sets are more than"),
        ({"local_path": "/etc/passwd"}, "local_path"),
    ],
)
def test_bad_executables_are_refused(native: Served, changed: dict[str, Any], message: str) -> None:
    text = native.refused("/register/function", executable("bad", built("echo.c")) | changed)
    assert message in text


def test_bad_compositions_are_refused(served: Served) -> None:
    assert "'none'" in served.refused(
        "/register/composition",
        {"composition": "function none(a) => (b); composition c(x) => (y) {}"},
    )
    assert "missing" in served.refused("/register/composition", {"text": ""})
    assert "string" in served.refused("/register/composition", {"composition": 7})
    # each of these would be a problem of its own, if they were read
    many = "composition c(x) => () {}" * 6000
    assert "more than the limit 131072" in served.refused(
        "/register/composition", {"composition": many}
    )


def test_libraries_are_registered(served: Served) -> None:
    body = {"name": "some/kernels.cubin", "library": list(b"code")}
    assert served.post("/register/library", body) == (200, b"Library registered")
    library = served.node.catalog.find_library("some/kernels.cubin")
    assert library is not None
    assert bytes(served.node.catalog.blob(library.digest)) == b"code"


def with_options(settings: Settings, **options: object) -> Settings:
    given = {name: str(value) for name, value in options.items()}
    return msgspec.structs.replace(settings, options={"bson": given})


def test_local_paths_stay_in_their_folder(tmp_path: Path) -> None:
    elf = built("echo.c")
    folder = tmp_path / "allowed"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "echo.elf").write_bytes(elf)
    (tmp_path / "outside.elf").write_bytes(elf)
    (folder / "link.elf").symlink_to(tmp_path / "outside.elf")
    (folder / "loop").symlink_to(folder / "loop")
    messages = set()
    with serving(with_options(NATIVE, local_path=folder)) as made:
        for path in ("sub/echo.elf", str(folder / "sub" / "echo.elf")):
            body = executable("local", b"", local_path=path)
            assert made.post("/register/function", body) == (200, b"Function registered")
        for path in ("../outside.elf", str(tmp_path / "outside.elf"), "link.elf", "none", "sub",
                     "loop", "/dev/zero", "/etc/passwd", "sub/\0", "x" * 5000):  # fmt: skip
            body = executable("local", b"", local_path=path)
            messages.add(made.refused("/register/function", body))
    assert len(messages) == 1


def preload_file(folder: Path, **changed: Any) -> Path:
    (folder / "echo.elf").write_bytes(built("echo.c"))
    metadata = {"inputSets": ["", ["w", [["i", [1, 2]]]]], "outputSets": [""], "minSetBytes": [3]}
    function = {"name": "pre-echo", "engineType": "PROCESS", "ctxSize": CONTEXT_BYTES,
                "binaryPath": "echo.elf", "metadata": metadata}  # fmt: skip
    second = {**function, "name": "second", "metadata": {"inputSets": ["a"], "outputSets": ["b"]}}
    text = (
        "function second(q) => (r); composition early(x) => (y) { second(q = all x) => (y = r); }"
    )
    content = {"functions": [{**function, **changed}, second], "compositions": [text]}
    file = folder / "preload.json"
    file.write_text(json.dumps(content))
    return file


@pytest.mark.parametrize("frontends", [1, 2])
def test_a_preload_file_is_registered_at_start(tmp_path: Path, frontends: int) -> None:
    settings = with_options(NATIVE, preload=preload_file(tmp_path))
    settings = msgspec.structs.replace(settings, frontends=frontends)
    with contextlib.ExitStack() as stack:
        if frontends == 1:
            made = stack.enter_context(serving(settings))
        else:
            processes = stack.enter_context(Processes(settings, [], frontends))
            made = Served(processes.node, processes.port)
        given = [a_set("", ("i", 1, b"x"))]
        for name, identifier in (("pre-echo", ""), ("early", "b")):
            (one,) = made.invoke({"name": name, "sets": given})["sets"]
            assert one == {"identifier": identifier, "items": items(("i", 1, b"x"))}
        versions = {r.version for r in made.node.records() if r.name == "early"}
        assert versions == {1}


@pytest.mark.parametrize(
    ("changed", "where"),
    [({"engineType": "Cheri"}, "engine_type"), ({"binaryPath": "none"}, "none"),
     ({"ctxSize": -1}, "ctxSize"), ({"binaryPath": "a\0b"}, "the path has a NUL"),
     ({"binaryPath": "waits"}, "waits: it is not a regular file")],
)  # fmt: skip
def test_a_bad_preload_file_stops_the_server(
    tmp_path: Path, changed: dict[str, Any], where: str
) -> None:
    os.mkfifo(tmp_path / "waits")
    settings = with_options(NATIVE, preload=preload_file(tmp_path, **changed))
    with Node(settings) as node, pytest.raises(InvalidInput, match=where):
        BackgroundServer(node)


@pytest.mark.parametrize("options", [{"prelod": "x"}, {"local_path": "/none/there"}])
def test_bad_options_are_refused(options: dict[str, str]) -> None:
    settings = msgspec.structs.replace(BSON, options={"bson": options})
    with Node(settings) as node, pytest.raises(InvalidInput, match="bson"):
        BackgroundServer(node)


def test_names_survive_a_restart(tmp_path: Path) -> None:
    settings = msgspec.structs.replace(NATIVE, catalog=f"sqlite:{tmp_path / 'catalog'}")
    elf = built("echo.c")
    text = "function mid(q) => (r); composition late(x) => (y) { mid(q = all x) => (y = r); }"
    with serving(settings) as made:
        assert made.post("/register/function", executable("a-b", elf))[0] == 200
        assert made.post("/register/function", executable("mid", elf))[0] == 200
        assert made.post("/register/composition", {"composition": text})[0] == 200
    given = [a_set("", ("i", 1, b"x"))]
    with serving(settings) as made:
        for name in ("a-b", "late"):
            (one,) = made.invoke({"name": name, "sets": given})["sets"]
            assert one["identifier"] == ""


def test_the_example_of_the_documents(
    native: Served,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "bson.md").read_text()
    code = page.split("```python\n")[1].split("```")[0].replace("8080", str(native.port))
    (tmp_path / "echo.elf").write_bytes(built("echo.c"))
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(code, "bson.md", "exec"), names)
    names["connection"].close()
    assert capsys.readouterr().out == "b'hello'\n"


def test_tokens_apply(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    caller = record("caller", tenant="acme", rights=(Right.INVOKE,))
    owner = record("owner", tenant="acme", rights=(Right.INVOKE, Right.REGISTER))
    write_tokens(tokens, [caller, owner, record("other", tenant="beta")])
    composition = {"composition": "composition same(x) => (x) {}"}
    call = {"name": "same", "sets": [a_set("q", ("i", 0, b"x"))]}
    with serving(msgspec.structs.replace(BSON, tokens=str(tokens))) as made:
        assert made.post("/", b"") == (200, READY)
        assert made.post("/hot/x", call)[0] == 401
        assert made.post("/register/composition", composition, caller="caller")[0] == 403
        assert made.post("/register/composition", composition, caller="owner")[0] == 200
        assert made.post("/hot/x", call, caller="caller")[0] == 200
        assert made.post("/hot/x", call, caller="other")[0] == 400  # it has no such composition
        inline = {**composition, "sets": call["sets"]}
        assert made.post("/hot/x", inline, caller="caller")[0] == 200


def test_two_frontends_serve_alike() -> None:
    settings = msgspec.structs.replace(NATIVE, frontends=2)
    with Processes(settings, [], 2) as processes:
        made = Served(processes.node, processes.port)
        assert processes.node.wait_ready()
        made.node.register(DOCUMENT.functions[0])
        body = executable("both-of", built("echo.c").ljust(100_000, b"\0"))
        assert made.post("/register/function", body) == (200, b"Function registered")
        for _ in range(8):  # connections go to either
            given = [a_set("q", ("i", 3, b"a" * 9000))]
            for call in ({"name": "both-of"}, {"composition": TEXT}):
                (one,) = made.invoke({**call, "sets": given})["sets"]
                assert one["items"] == given[0]["items"]
        many = items(*((str(at), at, b"x") for at in range(3000)))
        reply = made.invoke({"name": "echo", "sets": [{"identifier": "q", "items": many}]})
        assert reply["sets"][0]["items"] == many


def test_a_name_of_the_native_protocol_is_in_use(served: Served) -> None:
    with pytest.raises(Conflict):
        served.node.register("composition echo(x) => (x) {}")
    assert "echo" in served.refused(
        "/register/composition", {"composition": "composition echo(x) => (x) {}"}
    )
