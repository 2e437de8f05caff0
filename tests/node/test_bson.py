"""Clients of the original: their requests byte for byte, their names, their executables."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Iterator

import bson
import msgspec
import pytest

from dandelion.data import KEY_LIMIT
from dandelion.frontend.bson import targets
from dandelion.frontend.bson.adapter import READY
from dandelion.node.library import PREPARED_LIMIT
from dandelion.testing import wait_until
from tests.native_functions import built
from tests.node.bson_server import (
    BSON,
    CONTEXT_BYTES,
    NATIVE,
    TEXT,
    Served,
    a_set,
    document,
    executable,
    items,
    serving,
    string,
)

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


def element(kind: int, name: bytes, value: bytes) -> bytes:
    return bytes([kind]) + name + b"\0" + value


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
    [
        ("/healthz", 405),
        ("/v1/invoke/echo", 200),
        ("/v1/unknown", 404),
        ("/register", 404),
        ("/register/x", 404),
    ],
)
def test_routes_of_others_are_not_hidden(served: Served, path: str, status: int) -> None:
    found, body = served.post(path, b"x")
    assert found == status
    if status >= 400:
        assert json.loads(body)["status"] == status


def test_the_openapi_document_has_the_routes(served: Served) -> None:
    paths = json.loads(served.post("/openapi.json", b"", method="GET")[1])["paths"]
    assert set(paths["/hot/{any}"]) == {"post"}
    assert "/register/function" in paths


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
