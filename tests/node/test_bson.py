"""Clients of the original: their requests byte for byte, their names, their executables."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import bson
import msgspec
import pytest

from dandelion.data import KEY_LIMIT
from dandelion.driver import Driver
from dandelion.errors import Conflict, InvalidInput
from dandelion.frontend.bson import targets
from dandelion.frontend.bson.adapter import READY
from dandelion.frontend.server import BackgroundServer
from dandelion.node import Node, Settings
from dandelion.node.library import PREPARED_LIMIT
from dandelion.testing import wait_until
from dandelion.tokens import Right
from dandelion.tokens.file import write_tokens
from tests.native_functions import built

from .frontend_processes import Processes
from .guarded import record, token
from .served import DOCUMENT, SETTINGS, GateDriver

BSON = msgspec.structs.replace(SETTINGS, protocols=("bson",))
NATIVE = msgspec.structs.replace(
    BSON, backends=("null", "native"), body_limit_bytes=16 << 20, arena_bytes=64 << 20
)
CONTEXT_BYTES = 8 << 20


class Served:
    """A node that serves the protocol; with its bytes as the original's clients see them."""

    def __init__(self, node: Node, port: int, gate: GateDriver | None = None) -> None:
        self.node = node
        self.port = port
        self.gate = gate

    def post(
        self, path: str, body: bytes | dict[str, Any], *, method: str = "POST", caller: str = ""
    ) -> tuple[int, bytes]:
        headers = {"Authorization": f"Bearer {token(caller)}"} if caller else {}
        body = body if isinstance(body, bytes) else bson.encode(body)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with contextlib.closing(connection):
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response.status, response.read()

    def invoke(self, document: dict[str, Any]) -> dict[str, Any]:
        status, body = self.post("/hot/matmul", document)
        assert status == 200, body
        read: dict[str, Any] = bson.decode(body)
        return read

    def refused(self, path: str, body: bytes | dict[str, Any]) -> str:
        status, text = self.post(path, body)
        assert status == 400, text
        assert text.startswith(b"Failed to serve request: ")
        return text.decode()


@contextlib.contextmanager
def serving(settings: Settings, drivers: Sequence[Driver] = ()) -> Iterator[Served]:
    with Node(settings, drivers) as node, BackgroundServer(node) as server:
        assert node.wait_ready()
        yield Served(node, int(server.url.rsplit(":", 1)[1]))


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


def items(*given: tuple[str, int, bytes]) -> list[dict[str, Any]]:
    return [{"identifier": name, "key": key, "data": data} for name, key, data in given]


def a_set(identifier: str, *given: tuple[str, int, bytes]) -> dict[str, Any]:
    return {"identifier": identifier, "items": items(*given)}


def executable(name: str, elf: bytes, **changed: Any) -> dict[str, Any]:
    return {
        "name": name,
        "context_size": CONTEXT_BYTES,
        "engine_type": "Process",
        "binary": list(elf),
        "input_sets": [["", None]],
        "output_sets": [""],
        **changed,
    }


# --- the sequence of a client, byte for byte ------------------------------------------------------


def element(kind: int, name: bytes, value: bytes) -> bytes:
    return bytes([kind]) + name + b"\0" + value


def document(*elements: bytes) -> bytes:
    body = b"".join(elements)
    return struct.pack("<i", len(body) + 5) + body + b"\0"


def string(text: bytes) -> bytes:
    return struct.pack("<i", len(text) + 1) + text + b"\0"


INVOKE = bytes.fromhex(
    "85000000"
    "026e616d6500 0a000000 6563686f2d6974212100"  # name: "echo-it!!"
    "047365747300 66000000"  # sets
    "033000 5e000000"
    "026964656e74696669657200 06000000 676976656e00"  # identifier: "given"
    "046974656d7300 3c000000"  # items
    "033000 34000000"
    "106b657900 07000000"  # key: int32
    "026964656e74696669657200 06000000 706c61696e00"  # identifier: "plain"
    "056461746100 05000000 80 6279746573"  # data: binary of subtype 128
    "00 00 00 00 00"
)
REPLY = bytes.fromhex(
    "70000000"
    "047365747300 65000000"
    "033000 5d000000"
    "026964656e74696669657200 01000000 00"  # the name of the producer's set, which is empty
    "046974656d7300 40000000"
    "033000 38000000"
    "026964656e74696669657200 06000000 706c61696e00"
    "126b657900 0700000000000000"  # key: int64
    "056461746100 05000000 00 6279746573"  # data: binary of subtype 0
    "00 00 00 00 00"
)


def test_the_sequence_of_a_client(native: Served) -> None:
    elf = built("echo.c")
    binary = b"".join(
        b"\x10%d\0" % index + struct.pack("<i", value) for index, value in enumerate(elf)
    )
    register = document(
        element(0x02, b"name", string(b"echo-it!!")),
        element(0x12, b"context_size", struct.pack("<q", CONTEXT_BYTES)),
        element(0x02, b"engine_type", string(b"Process")),
        element(0x02, b"local_path", string(b"")),
        element(0x04, b"binary", document(binary)),
        element(0x04, b"input_sets", document(element(0x04, b"0", document(
            element(0x02, b"0", string(b"")), element(0x0A, b"1", b""))))),
        element(0x04, b"output_sets", document(element(0x02, b"0", string(b"")))),
        element(0x08, b"a later field", b"\1"),
    )  # fmt: skip
    text = b"function f(a) => (b); composition flow(x) => (y) { f(a = each x) => (y = b); }"
    compose = document(element(0x02, b"composition", string(text)))
    assert native.post("/", b"") == (200, b"Hello, World\n")
    assert native.post("/register/function", register) == (200, b"Function registered")
    assert native.post("/hot/matmul", INVOKE) == (200, REPLY)
    assert native.post("/cold/any/suffix", INVOKE, method="GET") == (200, REPLY)
    registered = register.replace(string(b"echo-it!!"), string(b"f"))
    registered = struct.pack("<i", len(registered)) + registered[4:]
    assert native.post("/register/function", registered) == (200, b"Function registered")
    assert native.post("/register/composition", compose) == (200, b"Function registered")
    by_name = INVOKE.replace(string(b"echo-it!!"), string(b"flow"))
    by_name = struct.pack("<i", len(by_name)) + by_name[4:]
    assert native.post("/hot/matmul", by_name) == (200, REPLY)


def test_the_golden_bytes_are_bson() -> None:
    (sent,) = bson.decode(INVOKE)["sets"]
    (back,) = bson.decode(REPLY)["sets"]
    assert (sent["identifier"], back["identifier"]) == ("given", "")
    assert bytes(sent["items"][0]["data"]) == back["items"][0]["data"] == b"bytes"


@pytest.mark.parametrize("path", ["/", "/anything", "/a/b/c?d=e", "/stats"])
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PURGE"])
def test_other_paths_say_that_the_server_is_up(served: Served, path: str, method: str) -> None:
    status, body = served.post(path, b"any \0 body", method=method)
    own_page = (method, path) == ("GET", "/")
    assert (status, body == READY) == (200, not own_page)


@pytest.mark.parametrize(
    ("path", "status"),
    [("/healthz", 405), ("/v1/invoke/echo", 200), ("/v1/unknown", 404), ("/register/x", 404)],
)
def test_routes_of_others_are_not_hidden(served: Served, path: str, status: int) -> None:
    assert served.post(path, b"x")[0] == status


def test_the_openapi_document_has_the_routes(served: Served) -> None:
    paths = json.loads(served.post("/openapi.json", b"", method="GET")[1])["paths"]
    assert set(paths["/hot/{any}"]) == {"post"}
    assert "/register/function" in paths


# --- invocations ----------------------------------------------------------------------------------


def test_sets_are_positional_and_named_by_their_producers(served: Served) -> None:
    given = [a_set("anything", ("l", 1, b"left")), a_set("", ("r", 2, b"right"), ("s", 3, b""))]
    reply = served.invoke({"name": "pair", "sets": given})
    assert reply == {
        "sets": [
            {"identifier": "left", "items": items(("l", 1, b"left"))},
            {"identifier": "right", "items": items(("r", 2, b"right"), ("s", 3, b""))},
        ]
    }
    assert isinstance(reply["sets"][0]["items"][0]["key"], bson.Int64)


def test_empty_sets_are_left_out_and_missing_ones_are_empty(served: Served) -> None:
    right = [a_set("x"), a_set("y", ("r", 0, b"right"))]
    reply = served.invoke({"sets": right, "name": "pair"})
    assert [one["identifier"] for one in reply["sets"]] == ["right"]
    assert served.invoke({"sets": [], "name": "pair"}) == {"sets": []}
    further = [a_set("x"), a_set("y"), a_set("ignored", ("i", 0, b""))]
    assert served.invoke({"sets": further, "name": "pair"}) == {"sets": []}
    assert "more than" in served.refused("/hot/x", {"sets": further, "name": "twice"})


def test_a_fixed_set_has_priority(served: Served) -> None:
    given = [a_set("a", ("i", 0, b"in")), a_set("w", ("i", 0, b"other"))]
    reply = served.invoke({"name": "fixed", "sets": given})
    assert [one["items"][0]["data"] for one in reply["sets"]] == [b"in", b"weights"]


@pytest.mark.parametrize("key", [0, 2**31, bson.Int64(5), KEY_LIMIT - 1])
def test_keys_have_either_width(served: Served, key: int) -> None:
    reply = served.invoke({"name": "echo", "sets": [a_set("", ("i", key, b""))]})
    assert reply["sets"][0]["items"][0]["key"] == key


TEXT = "function echo(in) => (out); composition c(x) => (y) { echo(in = each x) => (y = out); }"


def test_a_composition_may_come_with_its_inputs(served: Served) -> None:
    given = [a_set("q", ("i", 3, b"a"), ("j", 4, b"b"))]
    reply = served.invoke({"composition": TEXT, "sets": given})
    assert reply["sets"][0]["identifier"] == "b"
    assert [i["data"] for i in reply["sets"][0]["items"]] == [b"a", b"b"]
    passing = "composition c(x) => (x) {}"
    reply = served.invoke({"composition": passing, "sets": given})
    assert reply["sets"][0]["identifier"] == "q"  # the client is its producer
    assert not [r for r in served.node.records() if r.name == "c"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("composition", "expected"),
        ("", "0 compositions"),
        (f"{TEXT} composition d(x) => (x) {{}}", "2 compositions"),
        (TEXT.replace("echo", "none"), "none"),
        ("composition c(x) => (y) { echo(a = each z) => (y = b); }", "'z'"),
        (TEXT + " " * targets.TEXT_LIMIT_BYTES, "limit"),
    ],
)
def test_texts_that_do_not_work_are_refused(served: Served, text: str, message: str) -> None:
    assert message in served.refused("/hot/x", {"composition": text, "sets": []})


def test_texts_are_compiled_again_when_they_are_forgotten(served: Served) -> None:
    given = [a_set("q", ("i", 3, b"a"))]
    texts = [TEXT.replace("composition c", f"composition c{n}") for n in range(PREPARED_LIMIT + 2)]
    for text in [*texts, texts[0]]:
        assert served.invoke({"composition": text, "sets": given})["sets"]
    library = served.node._spaces.of("default").library
    assert len(library._prepared) <= PREPARED_LIMIT


def test_texts_follow_the_catalogue(served: Served) -> None:
    given = [a_set("q", ("i", 3, b"a"))]
    text = TEXT.replace("echo", "changing")
    for output in ("one", "two"):
        served.node.register(msgspec.structs.replace(
            DOCUMENT.functions[0], name="changing", outputs=(output,)))  # fmt: skip
        reply = served.invoke({"composition": text, "sets": given})
        assert reply["sets"][0]["identifier"] == output
        same = served.invoke({"composition": TEXT, "sets": given})
        assert same["sets"][0]["identifier"] == "b"


@pytest.mark.parametrize(
    "body",
    [b"", b"\0" * 4, b"rubbish", bson.encode({"name": "echo"}), bson.encode({"sets": []}),
     bson.encode({"name": "none", "sets": []}), bson.encode({"name": "", "sets": []})],
)  # fmt: skip
def test_bad_requests_are_answered(served: Served, body: bytes) -> None:
    served.refused("/cold/x", body)
    assert served.invoke({"name": "echo", "sets": []}) == {"sets": []}


@pytest.mark.parametrize("name", ["fail", "fails", "bug"])
def test_failures_of_functions_are_text(served: Served, name: str) -> None:
    assert served.gate is not None
    if name == "bug":
        served.gate.gate.open()
    status, text = served.post("/hot/x", {"name": name, "sets": [a_set("", ("i", 0, b""))]})
    assert (status, text[:24]) == (500, b"Failed to serve request:")


def test_asynchronous_invocations_are_refused(served: Served) -> None:
    for path in ("/async", "/async/invocation/7/result"):
        assert "asynchronous" in served.refused(path, b"")


def test_a_client_that_leaves_cancels_its_invocation(served: Served) -> None:
    assert served.gate is not None
    body = bson.encode({"name": "wait", "sets": [a_set("", ("i", 0, b""))]})
    head = b"POST /hot/x HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body)
    with socket.create_connection(("127.0.0.1", served.port), timeout=20) as connection:
        connection.sendall(head + body)
        assert served.gate.gate.entered()
    assert served.gate.gate.was_cancelled()


# --- large requests -------------------------------------------------------------------------------


def test_many_items_are_read_in_the_converter(served: Served) -> None:
    given = items(*((str(at), at, b"%d" % at) for at in range(6000)))
    sets = [{"identifier": "q", "items": given}]
    assert served.invoke({"name": "echo", "sets": sets})["sets"][0]["items"] == given
    status, text = served.post("/hot/x", {"name": "echo", "sets": [
        {"identifier": "q", "items": items(("i", 0, b"")) * 100_001}]})  # fmt: skip
    assert (status, b"items" in text) == (400, True)
    wrong = [*given, {"identifier": "x", "key": -1, "data": b""}]
    assert "outside" in served.refused(
        "/hot/x", {"name": "echo", "sets": [{"identifier": "q", "items": wrong}]}
    )


def test_large_items_come_back(served: Served) -> None:
    used_bytes = served.node.info().arena.used_bytes  # constants of functions
    data = bytes(range(256)) * 4000
    reply = served.invoke({"name": "echo", "sets": [a_set("", ("i", 0, data), ("j", 0, b"x"))]})
    assert [i["data"] for i in reply["sets"][0]["items"]] == [data, b"x"]
    del reply
    wait_until(lambda: served.node.info().arena.used_bytes <= used_bytes)


def test_a_body_over_the_limit_is_refused(served: Served) -> None:
    body = bytes(BSON.body_limit_bytes + 1)
    assert "limit" in served.refused("/hot/x", body)


def test_executables_may_have_any_form(native: Served) -> None:
    elf = built("echo.c")
    for at, binary in enumerate((elf, [bson.Int64(v) for v in elf[:6000]] + list(elf[6000:]))):
        body = executable(f"form{at}", elf, binary=binary)
        assert native.post("/register/function", body) == (200, b"Function registered")
        reply = native.invoke({"name": f"form{at}", "sets": [a_set("", ("i", 0, b"in"))]})
        assert reply["sets"][0]["items"] == items(("i", 0, b"in"))


def test_other_requests_are_answered_beside_a_large_executable(native: Served) -> None:
    padded = built("echo.c").ljust(750_000, b"\0")
    body = bson.encode(executable("large", padded))
    done = threading.Event()
    results = []

    def register() -> None:
        results.append(native.post("/register/function", body))
        done.set()

    thread = threading.Thread(target=register)
    thread.start()
    checks = 0
    while not done.is_set():
        assert native.post("/healthz", b"", method="GET")[0] == 200
        checks += 1
    thread.join()
    assert results == [(200, b"Function registered")]
    assert checks


# --- registration ---------------------------------------------------------------------------------


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


def test_libraries_are_registered(served: Served) -> None:
    body = {"name": "some/kernels.cubin", "library": list(b"code")}
    assert served.post("/register/library", body) == (200, b"Library registered")
    library = served.node.catalog.find_library("some/kernels.cubin")
    assert library is not None
    assert bytes(served.node.catalog.blob(library.digest)) == b"code"


# --- settings -------------------------------------------------------------------------------------


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
     ({"ctxSize": -1}, "ctxSize")],
)  # fmt: skip
def test_a_bad_preload_file_stops_the_server(
    tmp_path: Path, changed: dict[str, Any], where: str
) -> None:
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
