"""KServe: sizes that the formats of the protocol cannot express."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import grpc
import numpy as np
import pytest

from dandelion.data import Bytes
from dandelion.errors import TooLarge
from dandelion.frontend.kserve.datatypes import BYTES, element_pieces, split_elements
from dandelion.frontend.kserve.inference import InferenceResult
from dandelion.frontend.kserve.models import Model
from dandelion.frontend.kserve.tensors import OutputTensor
from dandelion.frontend_process.grpc_frontend.process import options_of
from dandelion.frontend_process.grpc_frontend.tensors import write_infer
from dandelion.settings import Settings

GIB = 1 << 30


def bytes_of_size(size_bytes: int) -> Bytes:
    """Give bytes that need no memory, for code that must not read them."""
    return memoryview(cast(Any, np.broadcast_to(np.uint8(0), (size_bytes,))))


def test_an_element_whose_length_has_no_form_is_refused() -> None:
    tensor = OutputTensor("y", BYTES, (2,), [b"x", bytes_of_size(4 * GIB)])
    with pytest.raises(TooLarge, match=r"outputs\.y: element 1: 4294967296 bytes") as caught:
        tensor.binary()
    assert "POST /v1/invoke" in str(caught.value)
    largest = OutputTensor("y", BYTES, (1,), [bytes_of_size(4 * GIB - 1)])
    assert [len(piece) for piece in largest.binary()] == [4, 4 * GIB - 1]
    with pytest.raises(TooLarge, match=r"inputs\.x: element 0"):
        element_pieces("inputs.x", [bytes_of_size(5 * GIB)])
    pieces = b"".join(element_pieces("inputs.x", [b"", b"abc"]))
    assert split_elements("inputs.x", pieces, 2, 2) == [b"", b"abc"]


@pytest.mark.parametrize("sizes", [[2 * GIB], [GIB, GIB], [4 * GIB - 1]])
@pytest.mark.parametrize("datatype", [BYTES, "INT8"])
def test_a_message_that_grpc_cannot_express_is_refused(datatype: str, sizes: list[int]) -> None:
    outputs = [OutputTensor(f"y{size}", datatype, (size,), [bytes_of_size(size)]) for size in sizes]
    result = InferenceResult(Model("m", 1, None, "function", {}, {}, ()), "id", outputs, {})
    with pytest.raises(TooLarge, match=r"response: .* request it over HTTP"):
        write_infer(result, "")


def test_a_larger_limit_of_bodies_than_grpc_has_is_its_own() -> None:
    options = options_of(Settings(body_limit_bytes=8 * GIB))
    with ThreadPoolExecutor(1) as threads:
        grpc.server(threads, options=options)
    assert dict(options)["grpc.max_receive_message_length"] == 2 * GIB - 1
    assert dict(options_of(Settings()))["grpc.max_receive_message_length"] > 256 << 20
