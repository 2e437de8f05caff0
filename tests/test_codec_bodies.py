"""Bodies of requests: in pieces, over limits, forms."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any

import numpy as np
import pytest

from dandelion.data import Item
from dandelion.errors import (
    ApplicationFailed,
    Cancelled,
    ContextFull,
    InvalidInput,
    Problem,
    Problems,
    TooLarge,
    from_record,
)
from dandelion.frontend.asgi import Message, Request
from dandelion.frontend.body import Body
from dandelion.frontend.codecs import (
    SetMap,
)
from dandelion.frontend.multipart import decode_multipart
from dandelion.frontend.problem import (
    UnsupportedMedia,
    decode_problem,
    encode_problem,
    problem_of,
)
from dandelion.memory import Context, HeapDomain
from dandelion.set_values import checked
from tests.codec_items import F12, SPECS, items


def request_of(pieces: list[bytes], headers: Mapping[bytes, bytes], ends: bool = True) -> Request:
    """A request whose body comes in pieces; without `ends` the client leaves after them."""
    messages: list[Message] = [
        {"type": "http.request", "body": p, "more_body": not ends or i < len(pieces) - 1}
        for i, p in enumerate(pieces)
    ]
    messages.append({"type": "http.disconnect"})
    stream = iter(messages)

    async def receive() -> Message:
        return next(stream)

    scope = {"method": "POST", "path": "/", "query_string": b"", "headers": list(headers.items())}
    return Request(scope, receive)


def run(awaitable: Awaitable[Any]) -> Any:
    async def main() -> Any:
        return await awaitable

    return asyncio.run(main())


def body_of(
    pieces: list[bytes],
    limit: int = 1000,
    *,
    sized: bool = True,
    ends: bool = True,
    domain: HeapDomain | None = None,
    **headers: str,
) -> Body:
    known = {k.replace("_", "-").encode(): v.encode() for k, v in headers.items()}
    if sized:
        known.setdefault(b"content-length", b"%d" % sum(map(len, pieces)))
    memory = domain or HeapDomain(1 << 20)

    async def acquire(size_bytes: int) -> Context:
        return memory.acquire(size_bytes)

    return Body(request_of(pieces, known, ends), acquire, limit)


@pytest.mark.parametrize("sized", [True, False])
@pytest.mark.parametrize("pieces", [[b""], [b"ab"], [b"ab", b"", b"cd"], [b"", b"a"], [b"", b""]])
def test_body_in_pieces(pieces: list[bytes], sized: bool) -> None:
    body = body_of(pieces, sized=sized)
    assert bytes(run(body.read())) == b"".join(pieces)


def test_body_in_pieces_lies_in_a_context() -> None:
    domain = HeapDomain(1 << 20)
    data = run(body_of([b"ab", b"cd"], domain=domain).read())
    assert domain.stats().contexts == 1
    assert data.readonly
    del data
    assert domain.stats().contexts == 0


@pytest.mark.parametrize("sized", [True, False])
@pytest.mark.parametrize("pieces", [[b"x" * 11], [b"x" * 6, b"x" * 5], [b"x" * 5, b"x" * 9, b"x"]])
def test_body_over_the_limit(pieces: list[bytes], sized: bool) -> None:
    domain = HeapDomain(1 << 20)
    body = body_of(pieces, 10, sized=sized, domain=domain)
    with pytest.raises(TooLarge) as caught:
        run(body.read())
    assert caught.value.limit_bytes == 10
    assert domain.stats().contexts == 0


def test_a_body_far_over_the_limit_is_not_heard_out() -> None:
    body = body_of([b"x"], 10, content_length=str(10**12))
    with pytest.raises(TooLarge):
        run(body.read())
    assert body._request.close


def test_body_that_the_arena_cannot_hold() -> None:
    with pytest.raises(ContextFull):
        run(body_of([b"ab", b"cd"], domain=HeapDomain(3)).read())


def test_client_that_leaves() -> None:
    domain = HeapDomain(1 << 20)
    body = body_of([b"ab"], ends=False, content_length="100", domain=domain)

    async def read() -> str:
        try:
            await body.read()
        except Cancelled:
            return "cancelled"
        return "complete"

    assert run(read()) == "cancelled"
    assert domain.stats().contexts == 0


def test_content_encoding_is_refused() -> None:
    with pytest.raises(UnsupportedMedia):
        body_of([b"x"], content_encoding="gzip")


FORM = (
    b"--B\r\n"
    b'Content-Disposition: form-data; name="a"; filename="../x.png"\r\n'
    b"Dandelion-Key: 7\r\n\r\n"
    b"first\r\n--BUT not the boundary\r\n"
    b"--B\r\n"
    b'content-disposition: form-data; name="a"\r\n\r\n'
    b"\r\n--B\r\n"
    b'Content-Disposition: form-data; name="n"; filename="\xc3\xa9"\r\n\r\n'
    b"\1\0\0\0\r\n--B--\r\n"
)


def form(pieces: list[bytes], content_type: str = "multipart/form-data; boundary=B") -> SetMap:
    body = body_of(pieces, 100_000)
    sets: SetMap = run(decode_multipart(body, content_type, SPECS, 1000))
    return sets


def test_form_with_types() -> None:
    head = b'--B\r\nContent-Disposition: form-data; name="%s"\r\n%s\r\n\r\n%s\r\n--B--\r\n'
    kind = b"Dandelion-Dtype: float32\r\nDandelion-Shape: 1, 2"
    assert form([head % (b"x", kind, F12)])["x"] == checked(
        "x", [Item.of("0", np.array([[1, 2]], "float32"))], SPECS["x"]
    )
    made = form([head % (b"a", kind, F12)])["a"]
    assert made is not None
    assert made.numpy().tolist() == [[1, 2]]
    for bad in (b"Dandelion-Dtype: float64", b"Dandelion-Shape: 2", kind + b", 3"):
        with pytest.raises(InvalidInput) as caught:
            form([head % (b"x", bad, F12)])
        assert caught.value.where == "sets.x"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1000])
def test_form_cut_anywhere(size: int) -> None:
    sets = form([FORM[i : i + size] for i in range(0, len(FORM), size)])
    assert items(sets["a"]) == [
        ("../x.png", 7, b"first\r\n--BUT not the boundary"),
        ("1", 0, b""),
    ]
    assert items(sets["n"]) == [("é", 0, b"\1\0\0\0")]
    assert sets["x"] is None


def test_form_of_unknown_size() -> None:
    body = body_of([FORM[:100], FORM[100:]], sized=False)
    sets = run(decode_multipart(body, "multipart/form-data; boundary=B", SPECS, 1000))
    assert len(sets["a"]) == 2


@pytest.mark.parametrize(
    ("form_body", "content_type"),
    [
        (FORM, "multipart/form-data"),
        (FORM, "multipart/form-data; boundary="),
        (FORM, "multipart/form-data; boundary=" + "b" * 71),
        (FORM, "multipart/form-data; boundary=other"),
        (b"", "multipart/form-data; boundary=B"),
        (FORM[:-8], "multipart/form-data; boundary=B"),
        (FORM[:60], "multipart/form-data; boundary=B"),
        (FORM.replace(b'name="a"', b'nome="a"'), "multipart/form-data; boundary=B"),
        (FORM.replace(b"form-data", b"attachment"), "multipart/form-data; boundary=B"),
        (FORM.replace(b"Key: 7", b"Key: -7"), "multipart/form-data; boundary=B"),
        (FORM.replace(b"Key: 7", b"Key: 4294967296"), "multipart/form-data; boundary=B"),
        (FORM.replace(b"\xc3\xa9", b"\xff\xff"), "multipart/form-data; boundary=B"),
        (FORM.replace(b"\1\0\0\0", b"\1\0\0"), "multipart/form-data; boundary=B"),
        (FORM.replace(b"Dandelion-Key", b"K" * 5000), "multipart/form-data; boundary=B"),
    ],
)
def test_bad_form(form_body: bytes, content_type: str) -> None:
    with pytest.raises(InvalidInput):
        form([form_body], content_type)


def test_problem_names_the_root_and_rebuilds_the_chain() -> None:
    error = ApplicationFailed("c", "f", 2, 7).because(ContextFull("shared", 10, 3))
    problem = decode_problem(encode_problem(problem_of(error, "id7")))
    assert problem is not None
    assert (problem.type, problem.status) == ("urn:dandelion:error:ContextFull", 507)
    assert problem.instance == "id7"
    again = from_record(problem.error)
    assert isinstance(again, ApplicationFailed)
    assert isinstance(again.__cause__, ContextFull)
    assert again.__cause__.free_bytes == 3


def test_problem_lists_all_problems() -> None:
    found = (Problem("a", "first", "f:1:2", 1, 2), Problem("b", "second", nearest="x"))
    problem = problem_of(Problems(found))
    assert problem.problems == found


def test_problem_with_text_that_is_no_unicode() -> None:
    problem = decode_problem(encode_problem(problem_of(InvalidInput("w", "bad \ud800 text"))))
    assert problem is not None
    assert "\\ud800" in problem.detail
