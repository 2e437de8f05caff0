"""Arrays keep dtype and shape on every way through a node; declared types are checked."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from dandelion.data import Item, Sets, SetSpec
from dandelion.dataflow.dsl import composition, handle_of
from dandelion.documents import (
    CodeDocument,
    FunctionDocument,
    RegistrationDocument,
    gpu_function,
    python_function,
)
from dandelion.driver import load_driver
from dandelion.errors import (
    ApplicationFailed,
    BackendUnavailable,
    BadOutput,
    InvalidFunction,
    InvalidInput,
)
from dandelion.frontend.client import Client
from dandelion.frontend.server import BackgroundServer
from dandelion.node import Node, Settings

JSON = {"Content-Type": "application/json"}


def make(which):  # type: ignore[no-untyped-def]  # as a user writes it
    import numpy as np

    from dandelion.data import Item

    floats = np.arange(6.0).reshape(2, 3)
    values = {
        "matrix": floats,
        "turned": floats.T,
        "number": np.float32(1.5),
        "empty": np.zeros((0, 3), np.int16),
        "flags": np.array([True, False]),
        "brain": np.array([[1.5, -3e38]], "bfloat16"),
        "complex": np.array([1 + 2j, 3]),
        "other order": np.array([1, 2], ">i4"),
        "not finite": np.array([np.nan, np.inf], np.float32),
        "of": Item.of("mine", np.array([[7]], np.int8), 9),
        "mixed": [floats, b"plain", np.uint8(3), {"no": "item"}][:3],
        "hollow": np.empty((1 << 40, 0), np.uint8),
        "text": "plain text",
    }
    return values[which.text()]


WANTED: dict[str, list[tuple[str | None, tuple[int, ...] | None]]] = {
    "matrix": [("float64", (2, 3))],
    "turned": [("float64", (3, 2))],
    "number": [("float32", ())],
    "empty": [("int16", (0, 3))],
    "flags": [("bool", (2,))],
    "brain": [("bfloat16", (1, 2))],
    "complex": [("complex128", (2,))],
    "other order": [(">i4", (2,))],
    "not finite": [("float32", (2,))],
    "of": [("int8", (1, 1))],
    "mixed": [("float64", (2, 3)), (None, None), ("uint8", ())],
    "hollow": [("uint8", (1 << 40, 0))],
    "text": [(None, None)],
}


def doubles(x):  # type: ignore[no-untyped-def]  # as a user writes it
    import numpy as np

    return np.zeros(3)


def turned(x):  # type: ignore[no-untyped-def]  # as a user writes it
    import numpy as np

    return np.zeros((3, 2), np.float32)


def seen(x):  # type: ignore[no-untyped-def]  # as a user writes it
    return "|".join(f"{i.name} {i.dtype} {i.shape} {i.numpy().dtype}" for i in x)


def fixed(w):  # type: ignore[no-untyped-def]  # as a user writes it
    return {"y": w, "said": "|".join(f"{i.dtype} {i.shape}" for i in w)}


make_ = python_function(make, outputs=["y"])
seen_ = python_function(seen, outputs=["y"])
doubles_ = python_function(doubles, outputs=["y"])
floats_ = python_function(
    "def floats(x): return x.numpy().sum(keepdims=True)[0]",
    name="floats",
    inputs=["x: float32[?, 2]"],
    outputs=["y: float32[2]"],
)


@composition
def tell(which):  # type: ignore[no-untyped-def]  # as a user writes it
    return {"y": handle_of(seen_)(x=handle_of(make_)(which=which).y)}


@composition
def wrong(which):  # type: ignore[no-untyped-def]  # as a user writes it
    return {"y": handle_of(floats_)(x=handle_of(make_)(which=which).y)}


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    null = (CodeDocument("null"),)
    matrix = SetSpec("m", "float32", (-1, 2))
    with Node(Settings(backends=("process", "null"), engines={"process": 1})) as node:
        node.register(make_, seen_, floats_, tell, wrong)
        node.register(python_function(doubles, outputs=["y: float32"]))
        node.register(python_function(turned, outputs=["y: float32[2, 3]"]))
        node.register(FunctionDocument("matrix", (matrix,), (matrix,), code=null))
        node.register(FunctionDocument("echo", ("a",), ("b",), code=null))
        yield node


@pytest.fixture(scope="module")
def client(node: Node) -> Iterator[Client]:
    with BackgroundServer(node, drain_s=5) as server, Client(server.url, timeout_s=20) as client:
        assert client.ready(wait_s=10)
        yield client


@pytest.fixture(params=["node", "client"])
def caller(request: pytest.FixtureRequest) -> Node | Client:
    found: Node | Client = request.getfixturevalue(request.param)
    return found


def types(result: Sets, name: str = "y") -> list[tuple[str | None, tuple[int, ...] | None]]:
    found = result[name]
    assert found is not None
    return [(i.dtype, i.shape) for i in found]


@pytest.mark.parametrize("which", WANTED)
def test_undeclared_arrays_come_back_as_they_were(caller: Node | Client, which: str) -> None:
    result = caller.invoke("make", which=which)
    assert types(result) == WANTED[which]
    for item, (dtype, shape) in zip(result.y, WANTED[which], strict=True):
        array = item.numpy()
        assert array.dtype == np.dtype(dtype or "uint8")
        assert shape is None or array.shape == shape


def test_values_are_those_of_the_producer(caller: Node | Client) -> None:
    assert caller.invoke("make", which="turned").y.numpy().tolist() == [[0, 3], [1, 4], [2, 5]]
    assert caller.invoke("make", which="other order").y.numpy().tolist() == [1, 2]
    assert caller.invoke("make", which="number").y.numpy()[()] == 1.5
    result = caller.invoke("make", which="of").y
    assert (result[0].name, result[0].key, result.numpy().tolist()) == ("mine", 9, [[7]])


def ask(
    client: Client, path: str, body: bytes, headers: dict[str, str]
) -> tuple[int, Mapping[str, str], bytes]:
    """Send a request as any other program would."""
    request = urllib.request.Request(f"{client.url}/v1/{path}", body, headers)
    try:
        with urllib.request.urlopen(request) as reply:
            return reply.status, reply.headers, reply.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read()


@pytest.mark.parametrize("which", WANTED)
def test_json_comes_out_and_goes_in_again(client: Client, which: str) -> None:
    def sets(function: str, given: object) -> Any:
        body = json.dumps({"sets": given}).encode()
        status, _, reply = ask(client, f"invoke/{function}", body, JSON)
        assert status == 200
        return json.loads(reply)["sets"]

    made = sets("make", {"which": which})["y"]
    assert [i.get("dtype") for i in made] == [dtype for dtype, _ in WANTED[which]]
    assert sets("echo", {"a": made})["b"] == made


def test_the_next_function_sees_the_type(node: Node) -> None:
    assert node.invoke("tell", which="matrix").y.text() == "y float64 (2, 3) float64"
    assert node.invoke("tell", which="text").y.text() == "y None None uint8"


def test_arrays_of_callers_keep_their_type(caller: Node | Client) -> None:
    value = [np.arange(4, dtype=np.int32).reshape(2, 2), b"abcd"]
    assert types(caller.invoke("echo", a=value), "b") == [("int32", (2, 2)), (None, None)]
    assert caller.invoke("seen", x=value).y.text() == "0 int32 (2, 2) int32|1 None None uint8"
    again = caller.invoke("echo", a=caller.invoke("echo", a=value).b)
    assert types(again, "b") == [("int32", (2, 2)), (None, None)]


def test_bytes_of_a_declared_set_get_its_type(caller: Node | Client) -> None:
    result = caller.invoke("matrix", m=b"\0" * 16)
    assert types(result, "m") == [("float32", (2, 2))]
    assert result.m[0].numpy().shape == (2, 2)


@pytest.mark.parametrize(
    ("function", "found", "declared"),
    [("doubles", "float64[3]", "float32"), ("turned", "float32[3, 2]", "float32[2, 3]")],
)
def test_an_output_of_another_type_is_an_error_of_the_function(
    caller: Node | Client, function: str, found: str, declared: str
) -> None:
    with pytest.raises(BadOutput) as caught:
        caller.invoke(function, x=b"")
    assert f"sets.y: item 'y' is {found}, expected {declared};" in caught.value.message


@pytest.mark.parametrize(
    "value",
    [
        np.zeros((2, 2)),
        np.zeros((2, 2), np.int64),
        np.zeros((2, 2), ">f4"),
        np.zeros((2, 3), np.float32),
        np.zeros(4, np.float32),
        [np.zeros((1, 2), np.float32), np.float64(1)],
        Item("i", 0, b"\0" * 16, "float64", (1, 2)),
        np.array(["text"]),
    ],
)
def test_an_array_of_another_type_is_refused(caller: Node | Client, value: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        caller.invoke("matrix", m=value)
    assert caught.value.where == "sets.m"
    assert "item '" in caught.value.message


def test_a_type_of_another_function_is_held_against_the_declaration(node: Node) -> None:
    with pytest.raises(ApplicationFailed) as caught:
        node.invoke("wrong", which="matrix")
    error = caught.value.root
    assert isinstance(error, InvalidInput)
    assert (error.where, error.status) == ("sets.x", 400)
    assert "item 'y' is float64[2, 3], expected float32[?, 2]" in error.message


def test_static_arrays_keep_their_type(node: Node) -> None:
    array = np.arange(4, dtype=np.int32).reshape(2, 2)
    document = python_function(
        fixed, outputs=["y", "said"], static={"w": {"a": array, "b": b"plain", "c": "text"}}
    )
    node.register(document)
    result = node.invoke("fixed")
    assert result.y[0].numpy().tolist() == array.tolist()
    assert result.said.text() == "int32 (2, 2)|None None|None None"


@pytest.mark.parametrize(
    "content", [{"dtype": "float32"}, {"dtype": "int8", "shape": [3]}, {"shape": [2, 2]}]
)
def test_a_static_item_fits_its_type(node: Node, client: Client, content: Any) -> None:
    function = {
        "name": "held",
        "inputs": ["w: float32"] if content == {"dtype": "int8", "shape": [3]} else ["w"],
        "outputs": ["y"],
        "static": {"w": {"a": {"text": "abc"} | content}},
        "code": [{"format": "null"}],
    }
    body = json.dumps({"functions": [function]}).encode()
    status, _, reply = ask(client, "register", body, JSON)
    assert status == 400
    assert json.loads(reply)["problems"][0]["code"] == "bad-static"


def test_raw_bytes_say_their_type_in_headers(client: Client) -> None:
    def raw(**kind: str) -> tuple[int, Mapping[str, str]]:
        headers = {"Content-Type": "application/octet-stream"}
        headers |= {f"Dandelion-{name.title()}": value for name, value in kind.items()}
        data = np.arange(4, dtype=np.float32).tobytes()
        status, found, body = ask(client, "invoke/matrix", data, headers)
        assert status == 400 or body == data
        return status, found

    for kind in ({"dtype": "float32", "shape": "2,2"}, {"shape": "2,2"}, {"dtype": "<f4"}, {}):
        status, headers = raw(**kind)
        assert status == 200
        assert (headers["dandelion-dtype"], headers["dandelion-shape"]) == ("float32", "2,2")
    bad = [("int32", "4"), ("float32", "4"), ("float32", "2,x"), ("float32", "-1"), ("nope", "4")]
    for dtype, shape in bad:
        assert raw(dtype=dtype, shape=shape)[0] == 400


# --- devices ------------------------------------------------------------------------------------

SOURCE = """#include "dandelion.h"
KERNEL void twice(GLOBAL const f32 *a, GLOBAL f32 *b) {
    b[GLOBAL_ID(0)] = 2 * a[GLOBAL_ID(0)];
}
"""
BLUEPRINT = """{
  "modules": {"k": "k.c"}, "kernels": {"twice": "k"},
  "blueprint": {
    "inputs": ["a"], "buffers": {"b": {"Sizeof": "a"}}, "outputs": ["b"],
    "control_flow": [{"ExecKernel": ["twice", [{"Ptr": "a"}, {"Ptr": "b"}],
      {"grid_dim_x": {"Absolute": 1}, "block_dim_x": {"Absolute": 4}}]}]
  }
}"""


def test_a_device_gives_and_takes_what_is_declared() -> None:
    try:
        load_driver("opencl").factory().probe()
    except BackendUnavailable as error:
        pytest.skip(str(error))

    def gpu(name: str, output: str) -> FunctionDocument:
        files = {"k.c": SOURCE}
        sets = {"inputs": ["a: float32[2, 2]"], "outputs": [output]}
        return gpu_function(name, BLUEPRINT, files=files, **sets)

    backends = ("opencl", "process")
    typed, plain = gpu("twice", "b: float32[2, 2]"), gpu("plain", "b")

    @composition
    def chain(which):  # type: ignore[no-untyped-def]  # as a user writes it
        return {"y": handle_of(seen_)(x=handle_of(typed)(a=handle_of(make_)(which=which)))}

    array = np.arange(4, dtype=np.float32).reshape(2, 2)
    with Node(Settings(backends=backends, engines={"process": 1})) as node:
        node.register(typed, plain, make_, seen_, chain)
        result = node.invoke("twice", a=array).b
        assert types(Sets({"y": result})) == [("float32", (2, 2))]
        assert result.numpy().tolist() == (2 * array).tolist()
        assert types(node.invoke("plain", a=array), "b") == [(None, None)]
        with pytest.raises(InvalidInput, match=r"'a' is float64\[2, 2\], expected float32"):
            node.invoke("twice", a=array.astype(float))
        with pytest.raises(ApplicationFailed) as caught:
            node.invoke("chain", which="not finite")
        assert "'y' is float32[2], expected float32[2, 2]" in str(caught.value.root)


def test_a_document_without_types_registers_as_before() -> None:
    with Node(Settings(backends=("null",))) as node:
        code = (CodeDocument("null"),)
        old = FunctionDocument("F", ("a", "w"), ("a",), static={"w": {"x": "y"}}, code=code)
        node.register(RegistrationDocument(functions=(old,)))
        with pytest.raises(InvalidFunction):
            bad = FunctionDocument("G", ("w: int64",), (), static={"w": {"x": "y"}}, code=code)
            node.register(bad)
