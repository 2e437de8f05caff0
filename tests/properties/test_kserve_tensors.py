"""Any tensors survive the way through requests and responses of KServe, and any bytes are refused
with a typed error."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import numpy as np
import tritonclient.http as triton
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tritonclient.grpc import service_pb2

from dandelion.data import SetSpec
from dandelion.errors import DandelionError, InvalidInput
from dandelion.frontend.asgi import Request
from dandelion.frontend.conversion.converter import Converter
from dandelion.frontend.kserve.bodies import HEADER, read_body, wanted_outputs, write_response
from dandelion.frontend.kserve.inference import InferenceResult
from dandelion.frontend.kserve.models import Model
from dandelion.frontend.kserve.tensors import InputTensor, sets_of, tensors_of
from dandelion.frontend_process.grpc_frontend.wire import (
    RAW_INPUTS,
    RAW_OUTPUTS,
    joined_raw,
    split_raw,
)

Array = np.ndarray[Any, Any]
GROUP = 3
"""Type of the tag that begins one."""
NO_CONVERTER = cast(Converter, None)  # small documents do not need it
DTYPES = {
    "BOOL": "bool",
    **{f"INT{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"UINT{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": f"float{bits}" for bits in (16, 32, 64)},
}
shapes = hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=4)


@st.composite
def tensors(draw: st.DrawFn) -> tuple[str, Array]:
    datatype = draw(st.sampled_from([*DTYPES, "BYTES"]))
    if datatype == "BYTES":
        texts = draw(st.lists(st.binary(max_size=20), max_size=8))
        return datatype, np.array(texts, object)
    return datatype, draw(hnp.arrays(DTYPES[datatype], shapes))


def request(body: bytes, json_size: int | None) -> Request:
    headers = [] if json_size is None else [(HEADER, b"%d" % json_size)]
    scope = {"method": "POST", "path": "/", "headers": headers, "query_string": b""}
    return Request(scope, cast(Any, None))


async def through(body: bytes, json_size: int | None, names: list[str]) -> tuple[bytes, int | None]:
    """Read a request, take its sets for the result, and write the response."""
    document, inputs = await read_body(request(body, json_size), body, NO_CONVERTER)
    specs = {name: SetSpec(name) for name in names}
    read = [InputTensor(i.name, i.datatype, i.shape, cast(bytes, i.data)) for i in inputs]
    sets, is_batch = sets_of(read, specs, (), 1000)
    wanted = [output.name for output in wanted_outputs(document.outputs) or []] or names
    outputs = tensors_of(sets, specs, wanted, is_batch)
    model = Model("m", 1, None, "function", specs, specs, ())
    response = await write_response(
        document, InferenceResult(model, "id", outputs, {}), NO_CONVERTER
    )
    size = dict(response.headers).get(HEADER)
    return b"".join(map(bytes, response.chunks)), None if size is None else int(size)


@given(st.lists(st.tuples(tensors(), st.booleans(), st.booleans()), min_size=1, max_size=4))
def test_tensors_come_back(given_: list[tuple[tuple[str, Array], bool, bool]]) -> None:
    inputs, outputs = [], []
    for index, ((datatype, array), binary_in, binary_out) in enumerate(given_):
        is_finite = array.dtype.kind != "f" or bool(np.isfinite(array).all())
        is_text = datatype != "BYTES" or all(map(readable, array.tolist()))
        made = triton.InferInput(f"t{index}", list(array.shape), datatype)
        expressible = is_finite and is_text
        binary = binary_in or datatype == "FP16" or not expressible
        made.set_data_from_numpy(array, binary_data=binary)
        inputs.append(made)
        outputs.append(
            triton.InferRequestedOutput(f"t{index}", binary_data=binary_out or not expressible)
        )
    body, size = triton.InferenceServerClient.generate_request_body(inputs, outputs=outputs)
    names = [f"t{index}" for index in range(len(given_))]
    response, response_size = asyncio.run(through(body, size, names))
    result = triton.InferenceServerClient.parse_response_body(response, header_length=response_size)
    for name, ((datatype, array), _, _) in zip(names, given_, strict=True):
        back = result.as_numpy(name)
        if datatype == "BYTES":
            found = [one if isinstance(one, bytes) else one.encode() for one in back.tolist()]
            assert found == array.tolist()
        else:
            assert (back.dtype, back.shape) == (array.dtype, array.shape)
            assert back.tobytes() == array.tobytes() or np.array_equal(back, array)


def readable(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def example_body() -> tuple[bytes, int]:
    first = triton.InferInput("t0", [2, 2], "FP32")
    first.set_data_from_numpy(np.ones((2, 2), np.float32))
    second = triton.InferInput("t1", [2], "BYTES")
    second.set_data_from_numpy(np.array([b"a", b"bcd"], object))
    body, size = triton.InferenceServerClient.generate_request_body([first, second])
    return body, size


BODY, JSON_SIZE = example_body()


@given(
    st.lists(st.tuples(st.integers(0, len(BODY) - 1), st.integers(0, 255)), max_size=4),
    st.integers(0, len(BODY)),
    st.one_of(st.none(), st.integers(0, len(BODY) + 5)),
)
def test_damaged_requests_are_refused(
    changes: list[tuple[int, int]], cut: int, json_size: int | None
) -> None:
    body = bytearray(BODY)
    for at, value in changes:
        body[at] = value
    for data, size in ((body, JSON_SIZE), (body[:cut], JSON_SIZE), (body, json_size)):
        refusal: DandelionError | None = None
        try:
            asyncio.run(through(bytes(data), size, ["t0", "t1"]))
        except DandelionError as error:
            refusal = error
        assert refusal is None or 400 <= refusal.status < 500


@given(st.lists(tensors(), max_size=4), st.text(max_size=20))
def test_raw_contents_are_found_in_messages(given_: list[tuple[str, Array]], name: str) -> None:
    message = service_pb2.ModelInferRequest(model_name=name)
    for index, (datatype, array) in enumerate(given_):
        message.inputs.add(name=str(index), datatype=datatype, shape=array.shape)
        message.raw_input_contents.append(
            b"".join(array.tolist()) if datatype == "BYTES" else array.tobytes()
        )
    head, raw = split_raw(message.SerializeToString(), RAW_INPUTS)
    assert [bytes(one) for one in raw] == list(message.raw_input_contents)
    rest = service_pb2.ModelInferRequest.FromString(head)
    assert not rest.raw_input_contents
    assert rest.inputs == message.inputs
    response = service_pb2.ModelInferResponse(model_name=name)
    written = joined_raw(response.SerializeToString(), RAW_OUTPUTS, [[one] for one in raw])
    read = service_pb2.ModelInferResponse.FromString(written)
    assert list(read.raw_output_contents) == list(message.raw_input_contents)


def is_message(data: bytes) -> bool:
    """Tell whether the library reads it as a request, without groups."""
    try:
        message = service_pb2.ModelInferRequest.FromString(data)
    except DecodeError:
        return False
    return all(field.wire_type != GROUP for field in UnknownFieldSet(message))


@given(st.binary(max_size=60))
@example(b"\x08\x01")
@example(b"cd")
def test_any_bytes_are_split_or_refused(data: bytes) -> None:
    try:
        head, raw = split_raw(data, RAW_INPUTS)
    except InvalidInput:
        assert not is_message(data)
        return
    assert len(head) + sum(map(len, raw)) <= len(data)
