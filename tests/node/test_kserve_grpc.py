"""KServe v2 over gRPC, with the clients of Triton."""

from __future__ import annotations

import asyncio
import contextlib
import queue
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from tritonclient.grpc import model_config_pb2, service_pb2
from tritonclient.utils import InferenceServerException

from dandelion.frontend.guard import Guard
from dandelion.frontend_process.grpc_frontend import messages
from dandelion.frontend_process.grpc_frontend.methods import Methods
from dandelion.frontend_process.grpc_frontend.server import SERVICE, STREAM, Service
from dandelion.testing import wait_until
from tests.node.kserve_requests import ONE, given, infer, request_of

from .kserve_served import KSERVE, KServed, kserved
from .test_kserve_http import ARRAYS


@pytest.fixture(scope="module")
def served() -> Iterator[KServed]:
    with kserved(1, with_grpc=True) as opened:
        yield opened


@pytest.fixture
def client(served: KServed) -> Iterator[triton.InferenceServerClient]:
    with contextlib.closing(triton.InferenceServerClient(served.grpc_address)) as opened:
        yield opened
    served.check_no_leak()


@pytest.fixture
def channel(served: KServed) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(served.grpc_address) as opened:
        yield opened
    served.check_no_leak()


def test_our_messages_are_those_of_the_protocol() -> None:
    """Every field that we have is in the client's definitions, with number and type."""
    known = {}
    for file in (service_pb2, model_config_pb2):
        for name, message in file.DESCRIPTOR.message_types_by_name.items():
            if not name.startswith("Cuda"):  # its status has the same name
                known |= {name: message} | {n.name: n for n in message.nested_types}
    ours = messages._pool.FindFileByName("dandelion/inference.proto").message_types_by_name
    assert len(ours) > 30
    for name, message in ours.items():
        for field in message.fields:
            theirs = known[name].fields_by_name[field.name]
            kind = field.TYPE_INT32 if theirs.enum_type else theirs.type
            assert (theirs.number, kind, theirs.is_repeated) == (
                field.number,
                field.type,
                field.is_repeated,
            ), field.full_name
    values = model_config_pb2.DataType.DESCRIPTOR.values
    assert tuple(value.name for value in values) == messages.DATA_TYPES


@pytest.mark.parametrize("datatype", ARRAYS)
def test_arrays_come_back(client: triton.InferenceServerClient, datatype: str) -> None:
    array = ARRAYS[datatype]
    result = client.infer("echo", [given("a", array, datatype)], request_id="mine")
    back = result.as_numpy("b")
    assert (back.dtype, back.tolist()) == (array.dtype, array.tolist())
    assert result.get_response().id == "mine"


TYPED = {
    "BOOL": ("bool_contents", [True, False]),
    "INT8": ("int_contents", [-128, 127]),
    "INT64": ("int64_contents", [-(2**63), 5]),
    "UINT16": ("uint_contents", [0, 65535]),
    "UINT64": ("uint64_contents", [2**64 - 1, 0]),
    "FP32": ("fp32_contents", [0.5, -1.0]),
    "FP64": ("fp64_contents", [0.25, 3.0]),
    "BYTES": ("bytes_contents", [b"x", b"yyy"]),
}


@pytest.mark.parametrize("datatype", TYPED)
def test_typed_contents(channel: grpc.Channel, datatype: str) -> None:
    field, values = TYPED[datatype]
    response = infer(channel, request_of(datatype, [2], **{field: values}))
    (raw,) = response.raw_output_contents
    if datatype == "BYTES":
        assert raw == b"\1\0\0\0x\3\0\0\0yyy"
    else:
        dtype = ARRAYS[datatype].dtype
        assert np.frombuffer(raw, dtype).tolist() == values


@pytest.mark.parametrize(
    ("request_", "match"),
    [
        (request_of("FP32", [2], [b"1234"]), "4 bytes are not the size of float32"),
        (request_of("FP32", [-1], [b"1234"]), "not a valid shape"),
        (request_of("FP32", [2**62, 2**62], [b"1234"]), "not a valid shape"),
        (request_of("FP32", [1] * 40, [b"1234"]), "40 dimensions"),
        (request_of("FP32", [1], [b"1234", b"5678"]), "2 raw contents"),
        (request_of("FP32", [1], [b"1234"], fp32_contents=[1]), "send one"),
        (request_of("FP32", [1], int_contents=[1]), "send fp32_contents"),
        (request_of("INT8", [1], int_contents=[300]), "300 does not fit int8"),
        (request_of("FP16", [1]), "send raw_input_contents"),
        (request_of("FP3", [1], [b"1234"]), "did you mean"),
        (request_of("BYTES", [2], [b"\1\0\0\0x"]), "element 1 of 2"),
        (request_of("BYTES", [1], [b"\xff\xff\xff\xff"]), "ends at"),
        (request_of("BYTES", [2**61], [b""]), "more than the limit"),
        (b"\x2a\x00" * 1_000_000, "4097 fields of a message are more than"),
        (b"\x2a\x00" * 1025, "1025 inputs are more than the limit 1024"),
        (b"\x32\x00" * 1025, "1025 outputs are more than the limit 1024"),
        (b"\x2a\x84\x02" + b"\x22\x00" * 130, "129 fields of a message are more than"),
        (b"".join(b"\x22\x05\x0a\x03%03d" % n for n in range(65)), "65 parameters"),
        (b"\x0a\x05ec", "protobuf"),
        (b"\xff" * 30, "protobuf"),
        (b"\x0a\x02\xff\xff", "protobuf"),
        (b"\x0f", "protobuf"),
    ],
)
def test_hostile_requests_get_typed_errors(
    channel: grpc.Channel, request_: Any, match: str
) -> None:
    with pytest.raises(grpc.RpcError, match=match) as caught:
        infer(channel, request_)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert infer(channel, request_of("INT8", [1], int_contents=[5])).raw_output_contents == [b"\5"]


def test_a_call_without_a_message_is_refused(channel: grpc.Channel) -> None:
    for method in ("ModelInfer", "ServerLive"):
        call = channel.stream_stream(f"/inference.GRPCInferenceService/{method}")
        with pytest.raises(grpc.RpcError, match="the call has no message") as caught:
            list(call(iter([]), timeout=20))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_errors_have_their_codes(client: triton.InferenceServerClient) -> None:
    def status(name: str, **options: Any) -> str:
        with pytest.raises(InferenceServerException) as caught:
            client.infer(name, [given("a", ONE, "INT8")], **options)
        return caught.value.status()

    assert status("ecko") == "StatusCode.NOT_FOUND"
    assert status("fail") == "StatusCode.UNKNOWN"
    assert status("matrix") == "StatusCode.INVALID_ARGUMENT"
    assert status("echo", model_version="7") == "StatusCode.NOT_FOUND"
    assert status("echo", model_version="x") == "StatusCode.INVALID_ARGUMENT"
    assert status("echo", sequence_id=4) == "StatusCode.INVALID_ARGUMENT"
    assert status("echo", outputs=[triton.InferRequestedOutput("c")]) == (
        "StatusCode.INVALID_ARGUMENT"
    )


def test_what_there_is(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("echo", "1")
    assert not client.is_model_ready("ecko")
    assert not client.is_model_ready("echo", "2")
    with pytest.raises(InferenceServerException, match="did you mean 'echo'"):
        client.get_model_metadata("ecko")
    assert client.get_server_metadata().name == "dandelion"
    metadata = client.get_model_metadata("matrix")
    assert [(one.datatype, list(one.shape)) for one in metadata.inputs] == [("FP32", [-1, 2])]
    config = client.get_model_config("matrix").config
    assert config.input[0].data_type == model_config_pb2.TYPE_FP32
    assert list(config.output[0].dims) == [-1, 2]
    assert "twice" in {one.name for one in client.get_model_repository_index().models}
    client.infer("echo", [given("a", ONE, "INT8")])
    (stats,) = client.get_inference_statistics("echo").model_stats
    assert stats.inference_stats.success.ns > 0
    assert {"echo", "twice"} <= {s.name for s in client.get_inference_statistics().model_stats}


def test_what_is_refused(client: triton.InferenceServerClient, channel: grpc.Channel) -> None:
    with pytest.raises(InferenceServerException, match="not loaded"):
        client.load_model("echo")
    with pytest.raises(InferenceServerException, match="CUDA"):
        client.register_cuda_shared_memory("r", b"aGFuZGxl", 0, 10)
    client.unregister_cuda_shared_memory()
    with pytest.raises(InferenceServerException, match="settings"):
        client.get_trace_settings()
    with pytest.raises(grpc.RpcError, match="ModelInfer") as caught:
        channel.unary_unary(f"/{SERVICE}/ModelInfr")(b"")
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_batch_and_large_tensors(client: triton.InferenceServerClient) -> None:
    batch = np.arange(400_000, dtype=np.float32).reshape(-1, 4)
    back = client.infer("vectors", [given("v", batch[:50], "FP32")]).as_numpy("w")
    assert np.array_equal(back, batch[:50])
    back = client.infer("echo", [given("a", batch, "FP32")]).as_numpy("b")
    assert np.array_equal(back, batch)


def test_deadlines_and_cancelling(client: triton.InferenceServerClient, served: KServed) -> None:
    tensor = given("a", ONE, "INT8")
    with pytest.raises(InferenceServerException, match=r"(?i)deadline"):
        client.infer("wait", [tensor], client_timeout=0.05)
    wait_until(lambda: served.node.info().running == 0)
    with pytest.raises(InferenceServerException, match="deadline"):
        client.infer("wait", [tensor], timeout=50_000)
    call = client.async_infer("wait", [tensor], lambda result, error: None)
    wait_until(lambda: served.node.info().running == 1)
    call.cancel()
    wait_until(lambda: served.node.info().running == 0)


def test_a_stream_answers_in_order_and_survives_errors(
    client: triton.InferenceServerClient,
) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    for number in range(20):
        name = "ecko" if number == 3 else "echo"
        tensor = given("a", np.full(number * 5000, number, np.int8), "INT8")
        client.async_stream_infer(
            name, [tensor], request_id=str(number), enable_empty_final_response=number == 5
        )
    for number in range(20):
        result, error = answers.get(timeout=20)
        if number == 3:
            assert "did you mean 'echo'" in str(error)
            continue
        assert error is None
        assert result.get_response().id == str(number)
        assert result.as_numpy("b").tolist() == [number] * (number * 5000)
        final = result.get_response().parameters.get("triton_final_response")
        assert (number == 5) == (final is not None and final.bool_param)
    client.stop_stream()


def test_a_stream_that_is_left_is_cancelled(
    client: triton.InferenceServerClient, served: KServed
) -> None:
    client.start_stream(lambda result, error: None)
    for _ in range(3):
        client.async_stream_infer("wait", [given("a", ONE, "INT8")])
    wait_until(lambda: served.node.info().running == 3)
    client.stop_stream(cancel_requests=True)
    wait_until(lambda: served.node.info().running == 0)


def test_a_client_that_leaves_during_a_response_is_no_error() -> None:
    """Else the library logs it, with a traceback."""

    class Context:
        async def read(self) -> bytes:
            return b"request"

        async def write(self, response: bytes) -> None:
            raise grpc.aio.InternalError

        def time_remaining(self) -> None:
            """There is no deadline."""

    async def infer(*_: object) -> bytes:
        return b"response"

    async def serve() -> None:
        service = Service(cast(Methods, SimpleNamespace(table=dict, infer=infer)), Guard())
        details = SimpleNamespace(method=f"/{SERVICE}/{STREAM}", invocation_metadata=())
        await service.service(details).stream_stream(None, Context())

    asyncio.run(serve())


def test_the_coroutine_client(served: KServed) -> None:
    async def work() -> None:
        async with triton_aio.InferenceServerClient(served.grpc_address) as client:
            tensor = given("a", np.arange(1000), "INT64")
            results = await asyncio.gather(*(client.infer("echo", [tensor]) for _ in range(8)))
            assert all(one.as_numpy("b").tolist() == list(range(1000)) for one in results)

            async def requests() -> Any:
                for _ in range(3):
                    yield {"model_name": "echo", "inputs": [tensor]}

            count = 0
            async for result, error in client.stream_infer(requests()):
                assert error is None
                assert result.as_numpy("b").size == 1000
                count += 1
            assert count == 3

    asyncio.run(work())
    served.check_no_leak()


def test_a_message_that_is_too_large_is_refused(served: KServed) -> None:
    limit = KSERVE.body_limit_bytes
    options = [("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(served.grpc_address, options=options) as channel:
        request = request_of("INT8", [limit + (1 << 20)], [bytes(limit + (1 << 20))])
        with pytest.raises(grpc.RpcError) as caught:
            infer(channel, request)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        infer(channel, request_of("INT8", [1], [b"1"]))
    served.check_no_leak()
