"""KServe v2 over HTTP, with the clients of Triton."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import ml_dtypes
import numpy as np
import pytest
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from tritonclient.utils import InferenceServerException

from dandelion.data import Item, ItemSet, SetSpec
from dandelion.frontend.conversion.converter import Converter
from dandelion.frontend.kserve.inference import InferenceCall, Inferences
from dandelion.frontend.kserve.models import Models
from dandelion.frontend.service import Service
from dandelion.testing import wait_until

from .kserve_served import KSERVE, KServed, kserved
from .served import function

Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module", params=[1, 2])
def served(request: pytest.FixtureRequest) -> Iterator[KServed]:
    with kserved(request.param) as opened:
        yield opened


@pytest.fixture
def client(served: KServed) -> Iterator[triton.InferenceServerClient]:
    with contextlib.closing(triton.InferenceServerClient(served.address)) as opened:
        yield opened
    served.check_no_leak()


RAGGED = ItemSet("b", tuple(Item.of(str(n), np.zeros(n, np.float32)) for n in (2, 3)))


def given(name: str, array: Array, datatype: str, *, binary: bool = True) -> triton.InferInput:
    made = triton.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array, binary_data=binary)
    return made


ARRAYS = {
    "BOOL": np.array([[True, False], [False, True]]),
    **{f"INT{b}": np.array([[-3, 2], [100, -1]], f"int{b}") for b in (8, 16, 32, 64)},
    **{f"UINT{b}": np.array([[3, 2], [100, 1]], f"uint{b}") for b in (8, 16, 32, 64)},
    **{f"FP{b}": np.array([[0.5, -2], [100, 1]], f"float{b}") for b in (16, 32, 64)},
}


@pytest.mark.parametrize("datatype", ARRAYS)
@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
def test_arrays_come_back(
    client: triton.InferenceServerClient, datatype: str, binary_in: bool, binary_out: bool
) -> None:
    array = ARRAYS[datatype]
    binary_in = binary_in or datatype == "FP16"  # which the client sends in binary form only
    result = client.infer(
        "echo",
        [given("a", array, datatype, binary=binary_in)],
        outputs=[triton.InferRequestedOutput("b", binary_data=binary_out)],
        request_id="my request",
    )
    back = result.as_numpy("b")
    assert (back.dtype, back.tolist()) == (array.dtype, array.tolist())
    response = result.get_response()
    assert (response["model_name"], response["model_version"]) == ("echo", "1")
    assert response["id"] == "my request"
    (output,) = response["outputs"]
    assert (output["datatype"], "data" in output) == (datatype, not binary_out)


def test_texts_are_items(client: triton.InferenceServerClient, served: KServed) -> None:
    texts = np.array([[b"x", b"", "é".encode()]], object)
    for binary in (True, False):
        outputs = [triton.InferRequestedOutput("b", binary_data=binary)]
        result = client.infer("echo", [given("a", texts, "BYTES", binary=binary)], outputs=outputs)
        assert result.get_output("b")["shape"] == [3]
        found = [one if isinstance(one, bytes) else one.encode() for one in result.as_numpy("b")]
        assert found == texts[0].tolist()
    result = client.infer("echo", [given("a", np.array([b"\xff"], object), "BYTES")])
    assert result.as_numpy("b").tolist() == [b"\xff"]
    with pytest.raises(InferenceServerException, match="binary_data"):
        outputs = [triton.InferRequestedOutput("b", binary_data=False)]
        client.infer("echo", [given("a", np.array([b"\xff"], object), "BYTES")], outputs=outputs)


def test_bf16(client: triton.InferenceServerClient) -> None:
    array = np.array([1.5, -2.0], ml_dtypes.bfloat16)
    made = triton.InferInput("a", [2], "BF16")
    try:
        made.set_data_from_numpy(array)
    except InferenceServerException:  # older clients take float32 for it
        made.set_data_from_numpy(array.astype(np.float32))
    result = client.infer("echo", [made])
    assert result.get_output("b")["datatype"] == "BF16"
    assert result.as_numpy("b").astype(np.float32).tolist() == [1.5, -2.0]
    outputs = [triton.InferRequestedOutput("b", binary_data=False)]
    assert client.infer("echo", [made], outputs=outputs).get_output("b")["data"] == [1.5, -2.0]


@pytest.mark.parametrize("binary", [True, False])
def test_tensors_without_elements(client: triton.InferenceServerClient, binary: bool) -> None:
    outputs = [triton.InferRequestedOutput("b", binary_data=binary)]
    floats = given("a", np.zeros((0, 3), np.float32), "FP32", binary=binary)
    result = client.infer("echo", [floats], outputs=outputs)
    assert result.get_output("b")["shape"] == [0, 3]
    result = client.infer("twice", [given("x", np.zeros((0,), object), "BYTES", binary=binary)])
    assert result.get_output("y") == {
        "name": "y",
        "datatype": "BYTES",
        "shape": [0],
        "parameters": {"binary_data_size": 0},
    }


def test_a_batch_is_items_and_comes_back_stacked(client: triton.InferenceServerClient) -> None:
    batch = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert client.get_model_metadata("vectors")["inputs"][0]["shape"] == [4]
    for array in (batch, batch[:1], batch[0]):
        back = client.infer("vectors", [given("v", array, "FP32")]).as_numpy("w")
        assert back.tolist() == array.tolist()
    back = client.infer("vectors", [given("v", batch[:0], "FP32")])
    assert back.get_output("w")["shape"] == [0, 4]
    with pytest.raises(InferenceServerException, match=r"float32\[3\], expected float32\[4\]"):
        client.infer("vectors", [given("v", batch[:, :3].copy(), "FP32")])


def test_complex_numbers_are_bytes(client: triton.InferenceServerClient) -> None:
    metadata = client.get_model_metadata("complex")
    assert metadata["inputs"] == [{"name": "z", "datatype": "BYTES", "shape": [-1]}]
    array = np.array([1 + 2j, 3], np.complex64)
    texts = np.array([array.tobytes()], object)
    back = client.infer("complex", [given("z", texts, "BYTES")]).as_numpy("z")
    assert back.tolist() == [array.tobytes()]


def test_items_that_are_no_tensor() -> None:
    with kserved(1) as own:
        own.held.behind = lambda engine, call: (RAGGED,)
        own.held.let_go()
        with (
            contextlib.closing(triton.InferenceServerClient(own.address)) as client,
            pytest.raises(InferenceServerException, match=r"float32\[2\] and float32\[3\]"),
        ):
            client.infer("wait", [given("a", np.zeros(1, np.float32), "FP32")])


def test_what_there_is(client: triton.InferenceServerClient, served: KServed) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("echo")
    assert client.is_model_ready("echo", "1")
    assert not client.is_model_ready("ecko")
    assert not client.is_model_ready("echo", "2")
    assert client.get_server_metadata()["name"] == "dandelion"
    assert client.get_model_metadata("matrix", "1") == {
        "name": "matrix",
        "versions": ["1"],
        "platform": "dandelion_function",
        "inputs": [{"name": "m", "datatype": "FP32", "shape": [-1, 2]}],
        "outputs": [{"name": "m", "datatype": "FP32", "shape": [-1, 2]}],
    }
    assert client.get_model_metadata("twice")["platform"] == "dandelion_composition"
    config = client.get_model_config("matrix")
    assert config["input"] == [{"name": "m", "data_type": "TYPE_FP32", "dims": [-1, 2]}]
    names = [one["name"] for one in client.get_model_repository_index()]
    assert {"echo", "twice"} <= set(names)
    assert "lib/k.cl" not in names


def test_statistics_are_real(client: triton.InferenceServerClient) -> None:
    def counts(name: str) -> tuple[int, int]:
        (one,) = client.get_inference_statistics(name)["model_stats"]
        stats = one["inference_stats"]
        assert (stats["success"]["ns"] > 0) == (stats["success"]["count"] > 0)
        assert one["inference_count"] == stats["success"]["count"]
        return stats["success"]["count"], stats["fail"]["count"]

    before = counts("pair"), counts("fail")
    arrays = [given(name, np.zeros(1, np.float32), "FP32") for name in ("left", "right")]
    client.infer("pair", arrays)
    with pytest.raises(InferenceServerException):
        client.infer("fail", [given("a", np.zeros(1, np.float32), "FP32")])
    (pair, fail) = before
    assert counts("pair") == (pair[0] + 1, pair[1])
    assert counts("fail") == (fail[0], fail[1] + 1)
    listed = client.get_inference_statistics()["model_stats"]
    assert {"pair", "twice"} <= {one["name"] for one in listed}
    with pytest.raises(InferenceServerException, match="all versions"):
        client.get_inference_statistics("pair", "1")


def test_what_is_refused(client: triton.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException, match="not loaded"):
        client.load_model("echo")
    with pytest.raises(InferenceServerException, match="not loaded"):
        client.unload_model("echo")
    with pytest.raises(InferenceServerException, match="no route"):
        client.get_trace_settings("echo")
    client.unregister_cuda_shared_memory()
    assert client.get_cuda_shared_memory_status() == []
    with pytest.raises(InferenceServerException, match="CUDA"):
        client.register_cuda_shared_memory("r", b"handle", 0, 10)
    tensor = given("a", np.zeros(1, np.float32), "FP32")
    with pytest.raises(InferenceServerException, match="sequences"):
        client.infer("echo", [tensor], sequence_id=5, sequence_start=True)
    with pytest.raises(InferenceServerException, match="classification"):
        client.infer("echo", [tensor], outputs=[triton.InferRequestedOutput("b", class_count=2)])
    with pytest.raises(InferenceServerException, match="did you mean 'echo'"):
        client.infer("ecko", [tensor])


def test_outputs_and_parameters(client: triton.InferenceServerClient) -> None:
    arrays = [given(n, np.full(2, i, np.int8), "INT8") for i, n in enumerate(("left", "right"))]
    outputs = [triton.InferRequestedOutput("right")]
    result = client.infer("pair", arrays, outputs=outputs, parameters={"anything": "else"})
    assert [one["name"] for one in result.get_response()["outputs"]] == ["right"]
    assert result.as_numpy("right").tolist() == [1, 1]
    mixed = [
        triton.InferRequestedOutput("right", binary_data=False),
        triton.InferRequestedOutput("left", binary_data=True),
    ]
    result = client.infer("pair", arrays, outputs=mixed, priority=1, timeout=10_000_000)
    assert [one["name"] for one in result.get_response()["outputs"]] == ["right", "left"]
    assert result.as_numpy("left").tolist() == [0, 0]


def test_an_optional_input_may_be_left_out(
    client: triton.InferenceServerClient, served: KServed
) -> None:
    optional = SetSpec("right", "int8", optional=True)
    served.node.register(function("half", ("left", optional), ("left", optional)))
    declared = client.get_model_config("half")["input"]
    assert [one.get("optional", False) for one in declared] == [False, True]
    left, right = (given(name, np.ones(2, np.int8), "INT8") for name in ("left", "right"))
    for inputs, size in (([left], 0), ([left, right], 2)):
        result = client.infer("half", inputs)
        assert result.as_numpy("left").tolist() == [1, 1]
        assert result.as_numpy("right").tolist() == [1] * size
    with pytest.raises(InferenceServerException, match="'left' is missing"):
        client.infer("half", [right])


def test_a_timeout_ends_the_invocation(
    client: triton.InferenceServerClient, served: KServed
) -> None:
    with pytest.raises(InferenceServerException, match="deadline"):
        client.infer("wait", [given("a", np.zeros(1, np.int8), "INT8")], timeout=50_000)


def test_large_json_is_read_and_written_by_the_converter(
    client: triton.InferenceServerClient, served: KServed, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[str] = []
    if served.processes is None:  # its own process, so it can be seen
        run = Converter._run

        async def seen(self: Converter, work: Any) -> Any:
            used.append(work.__qualname__)
            return await run(self, work)

        monkeypatch.setattr(Converter, "_run", seen)
    array = np.arange(120_000, dtype=np.float32).reshape(2, -1)
    outputs = [triton.InferRequestedOutput("b", binary_data=False)]
    result = client.infer("echo", [given("a", array, "FP32", binary=False)], outputs=outputs)
    assert np.array_equal(result.as_numpy("b"), array)
    if served.processes is None:
        assert used == [
            "Converter.tensors.<locals>.work",
            "Converter.tensors_response.<locals>.work",
        ]
    body = {"inputs": [{"name": "a", "datatype": "INT8", "shape": [9], "data": [1] * 9000}]}
    status, document, _ = served.ask("POST", "/v2/models/echo/infer", body)
    assert (status, "9000 elements" in document["error"]) == (400, True)


def test_many_texts(client: triton.InferenceServerClient) -> None:
    texts = np.array([b"%d" % i for i in range(5000)], object)
    back = client.infer("echo", [given("a", texts, "BYTES")]).as_numpy("b")
    assert back.tolist() == texts.tolist()


def test_the_coroutine_client(served: KServed) -> None:
    async def work() -> None:
        async with triton_aio.InferenceServerClient(served.address) as client:
            assert await client.is_server_live()
            array = np.arange(200_000, dtype=np.float32)
            made = triton_aio.InferInput("a", [200_000], "FP32")
            made.set_data_from_numpy(array)
            results = await asyncio.gather(*(client.infer("echo", [made]) for _ in range(4)))
            assert all(np.array_equal(one.as_numpy("b"), array) for one in results)

    asyncio.run(work())
    served.check_no_leak()


def test_an_invocation_ends_with_its_client(served: KServed) -> None:
    body = json.dumps(
        {"inputs": [{"name": "a", "datatype": "INT8", "shape": [1], "data": [1]}]}
    ).encode()
    with socket.create_connection(("127.0.0.1", served.port)) as connection:
        head = (
            f"POST /v2/models/wait/infer HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}"
        )
        connection.sendall(head.encode() + b"\r\n\r\n" + body)
        wait_until(lambda: served.node.info().running == 1)
    wait_until(lambda: served.node.info().running == 0)
    served.check_no_leak()


@pytest.mark.parametrize(
    ("parameters", "deadline_s", "priority", "expected_s"),
    [
        ({}, None, 0, None),
        ({"priority": 0, "timeout": 0}, 3.0, 0, 3.0),
        ({"priority": 1, "timeout": 2_000_000}, None, 1000, 2.0),
        ({"priority": 2, "timeout": 2_000_000}, 1.0, 999, 1.0),
        ({"priority": 2**40, "timeout": 500_000}, 1.0, -1000, 0.5),
    ],
)
def test_what_parameters_become(
    parameters: dict[str, Any], deadline_s: float | None, priority: int, expected_s: float | None
) -> None:
    """What the node is asked for: a double of it, since priorities are not seen otherwise."""
    requested: dict[str, Any] = {}

    class Double:
        generation = 1
        settings = KSERVE

        def signature(self, name: str, version: int | None, *, tenant: str) -> Any:
            return SimpleNamespace(kind="function", version=1, inputs=(), outputs=(), static=())

        async def invoke_sets_async(self, name: str, sets: Any, **options: Any) -> Any:
            requested.update(options)
            return SimpleNamespace(id="1", sets={})

    node = cast(Service, Double())
    inferences = Inferences(node, cast(Converter, None), Models(node))
    call = InferenceCall("f", "", [], parameters, deadline_s=deadline_s)
    asyncio.run(inferences.infer(call, "acme"))
    assert (requested["priority"], requested["deadline_s"]) == (priority, expected_s)
    assert (requested["tenant"], requested["version"]) == ("acme", None)
