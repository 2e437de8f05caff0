"""KServe v2 over HTTP: requests that are wrong on purpose, and callers of several tenants."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dandelion.frontend.kserve.bodies import HEADER
from dandelion.tokens.file import write_tokens

from .guarded import RECORDS, token
from .kserve_served import KServed, kserved

LENGTH = HEADER.decode()
INFER = "/v2/models/echo/infer"


@pytest.fixture(scope="module", params=[1, 2])
def served(request: pytest.FixtureRequest) -> Iterator[KServed]:
    with kserved(request.param) as opened:
        yield opened


def tensor(**changes: Any) -> dict[str, Any]:
    return {"name": "a", "datatype": "INT8", "shape": [2], "data": [1, 2], **changes}


def with_input(**changes: Any) -> dict[str, Any]:
    return {"inputs": [tensor(**changes)]}


def binary(size: int, shape: list[int], datatype: str = "INT8") -> dict[str, Any]:
    return with_input(
        data=None, shape=shape, datatype=datatype, parameters={"binary_data_size": size}
    )


DEEP = '{"inputs": ' + "[" * 5000
DEEP_DATA = json.dumps(with_input()).replace("[1, 2]", "[" * 900 + "1" + "]" * 900)
JSON_REQUESTS: list[tuple[Any, str]] = [
    (b"", "not a valid request"),
    (b"\xff\xfe", "not a valid request"),
    (b"null", "not a valid request"),
    (b'{"inputs": [{"name": "\xff"}]}', "not a valid request"),
    (DEEP, "not a valid request"),
    (DEEP_DATA, "inputs.a"),
    ({}, "inputs"),
    ({"inputs": []}, "'a' is missing"),
    ({"inputs": [tensor(), tensor()]}, "given twice"),
    ({"inputs": [tensor(), tensor(name="b")]}, "no such input"),
    ({"inputs": [tensor(name="aa")]}, "did you mean 'a'"),
    ({"inputs": [tensor(name="x" * 10_000)]}, "no such input"),
    (with_input(data=None), "exactly one of data"),
    (with_input(parameters={"binary_data_size": 2}), "exactly one of data"),
    (with_input(data="text"), "not a list"),
    (with_input(data=[1, "2"]), "numbers only"),
    (with_input(data=[[1], [2, 3]]), "not an array"),
    (with_input(data=[1, 300]), "300 does not fit int8"),
    (with_input(data=[1, 0.5]), "0.5 does not fit int8"),
    (with_input(data=[1, 2, 3]), "3 elements"),
    (with_input(datatype="FP32", data=[1e300, 0]), "does not fit float32"),
    (json.dumps(with_input(datatype="FP32", data=[float("nan"), 0])), "not a valid request"),
    (with_input(datatype="INT9"), "did you mean 'INT8'"),
    (with_input(datatype="BF16", data=[1e39, 0]), "does not fit bfloat16"),
    (with_input(datatype="BYTES"), "an element of BYTES is an int"),
    (with_input(datatype="BYTES", data=["x", "y", "z"]), "3 elements"),
    (with_input(shape=[-2]), "2 elements"),
    (with_input(shape=[-1, -2]), "not a valid shape"),
    (with_input(shape=[2**40, 2**40, 2**40]), "2 elements"),
    (with_input(shape=[2**70]), "2 elements"),
    (with_input(shape=[1.5]), "not a valid request"),
    (with_input(shape=[True]), "not a valid request"),
    (with_input(shape=[1] * 39 + [2]), "40 dimensions"),
    (with_input(shape=[2**62] * 5000), "5000 dimensions"),
    ({"inputs": [tensor()] * 2000}, "2000 inputs"),
    ({**with_input(), "outputs": [{"name": "b"}] * 2000}, "2000 outputs"),
    ({**with_input(), "parameters": dict.fromkeys(map(str, range(1000)), 1)}, "1000 parameters"),
    ({**with_input(), "parameters": {"a": [1]}}, "not a valid request"),
    (with_input(shape=[0, 2**62, 2**62], data=[]), "not a valid shape"),
    ({**with_input(), "outputs": [{"name": "c"}]}, "no such output"),
    ({**with_input(), "outputs": [{"name": "b"}, {"name": "b"}]}, "requested twice"),
    ({**with_input(), "parameters": {"priority": "high"}}, "parameters.priority"),
    ({**with_input(), "parameters": {"timeout": -1}}, "parameters.timeout"),
    ({**with_input(), "parameters": {"timeout": True}}, "parameters.timeout"),
    (
        with_input(data=None, parameters={"shared_memory_region": "r"}),
        "shared_memory_byte_size is missing",
    ),
    (
        with_input(
            data=None, parameters={"shared_memory_region": "r", "shared_memory_byte_size": 2}
        ),
        "no shared memory region 'r'",
    ),
]


@pytest.mark.parametrize(("body", "message"), JSON_REQUESTS, ids=range(len(JSON_REQUESTS)))
def test_bad_json(served: KServed, body: Any, message: str) -> None:
    status, document, response = served.ask("POST", INFER, body)
    assert status in (400, 404, 413), document
    assert list(document) == ["error"]
    assert message in document["error"]
    assert len(document["error"]) < 2000
    assert response.getheader("content-type") == "application/json"
    check_works(served)


def check_works(served: KServed) -> None:
    status, document, _ = served.ask("POST", INFER, with_input())
    assert (status, document["outputs"][0]["data"]) == (200, [1, 2])
    served.check_no_leak()


@pytest.mark.parametrize(
    ("document", "data", "message"),
    [
        (binary(4, [2]), b"1234", "4 bytes are not the size of int8[2]"),
        (binary(2, [2]), b"1", "ends at 2 of the binary data, which has 1 bytes"),
        (binary(2, [2]), b"123", "3 bytes of binary data, and the inputs have 2"),
        (binary(-2, [2]), b"12", "-2 is not a number from 0 on"),
        (binary(2**65, [2]), b"12", "is not a number from 0 on"),
        (binary(2**63, [2]), b"12", "is not a number from 0 on"),
        (binary(2, [-2]), b"12", "not a valid shape"),
        (binary(2, [2**33, 2**31]), b"12", "is not a valid shape"),
        (binary(5, [2], "BYTES"), b"\1\0\0\0x", "element 1 of 2 has no length"),
        (binary(5, [1], "BYTES"), b"\2\0\0\0x", "element 0 of 1 ends at 6"),
        (binary(5, [1], "BYTES"), b"\0\0\0\0x", "1 elements end at 4"),
        (binary(4, [1], "BYTES"), b"\xff\xff\xff\xff", "element 0 of 1 ends at"),
        (binary(4, [2**61], "BYTES"), b"\0\0\0\0", "more than the limit"),
        (binary(4, [-1], "BYTES"), b"\0\0\0\0", "not a valid shape"),
    ],
)
def test_bad_binary(served: KServed, document: dict[str, Any], data: bytes, message: str) -> None:
    head = json.dumps(document).encode()
    status, answer, _ = served.ask("POST", INFER, head + data, {LENGTH: str(len(head))})
    assert status in (400, 413)
    assert message in answer["error"]
    check_works(served)


@pytest.mark.parametrize("length", ["100000", "-1", "x", "9" * 30, "0", "5"])
def test_bad_length_of_the_json(served: KServed, length: str) -> None:
    head = json.dumps(with_input()).encode()
    status, answer, _ = served.ask("POST", INFER, head, {LENGTH: length})
    assert (status, list(answer)) == (400, ["error"])
    check_works(served)


def test_bad_paths(served: KServed) -> None:
    for method, path, status in (
        ("GET", "/v2/nothing", 404),
        ("GET", "/v2/models/ecko", 404),
        ("GET", "/v2/models/echo/versions/7", 404),
        ("GET", "/v2/models/echo/versions/x", 400),
        ("GET", "/v2/models/" + "x" * 3000, 404),
        ("GET", "/v2/models/lib%2Fk.cl", 404),
        ("GET", INFER, 405),
        ("POST", "/v2/repository/index", 200),
    ):
        found, document, _ = served.ask(method, path, b"" if method == "POST" else None)
        assert found == status, path
        assert status == 200 or list(document) == ["error"]
    status, document, _ = served.ask("POST", "/v2/models/ecko/infer", with_input())
    assert "did you mean 'echo'" in document["error"]


@pytest.mark.parametrize(
    ("datatype", "nan"),
    [("FP32", b"\0\0\xc0\x7f"), ("BF16", b"\xc0\x7f"), ("BF16", b"\x81\x7f")],
    ids=["float", "brain float", "signaling brain float"],
)
def test_results_that_json_cannot_express(served: KServed, datatype: str, nan: bytes) -> None:
    head = json.dumps(binary(len(nan), [1], datatype)).encode()
    status, answer, _ = served.ask("POST", INFER, head + nan, {LENGTH: str(len(head))})
    assert (status, "binary_data" in answer["error"]) == (406, True)
    document = {
        **binary(len(nan), [1], datatype),
        "parameters": {"binary_data_output": True},
    }
    head = json.dumps(document).encode()
    status, body, response = served.ask("POST", INFER, head + nan, {LENGTH: str(len(head))})
    assert status == 200
    assert body[int(response.getheader(LENGTH, "0")) :] == nan
    check_works(served)


def test_a_body_that_is_too_large(served: KServed) -> None:
    limit = served.node.settings.body_limit_bytes
    status, answer, _ = served.ask("POST", INFER, bytes(limit + 1))
    assert (status, list(answer)) == (413, ["error"])
    check_works(served)


def test_tokens_of_two_tenants(tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    write_tokens(path, RECORDS)
    with kserved(1, tokens=str(path)) as served:

        def ask(method: str, path: str, caller: str, body: Any = None) -> tuple[int, Any]:
            headers = {"Authorization": f"Bearer {token(caller)}"} if caller else {}
            status, document, _ = served.ask(method, path, body, headers)
            return status, document

        assert ask("GET", "/v2/health/ready", "")[0] == 200
        assert ask("GET", "/v2", "")[0] == 200
        assert ask("POST", INFER, "default", with_input())[0] == 200
        for caller, expected in (("acme", 404), ("", 401), ("unknown", 401), ("only-read", 403)):
            status, document = ask("POST", INFER, caller, with_input())
            assert (status, list(document)) == (expected, ["error"])
        assert ask("GET", "/v2/models/echo", "acme")[0] == 404
        assert ask("POST", "/v2/repository/index", "only-invoke", b"")[0] == 403
        names = [one["name"] for one in ask("POST", "/v2/repository/index", "acme", b"")[1]]
        assert "echo" not in names
        assert ask("GET", "/v2/models/stats", "acme")[1] == {"model_stats": []}
        assert ask("GET", "/v2/anything", "")[0] == 401
