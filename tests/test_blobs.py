"""Blobs: hashed once, by several threads, and never under a wrong digest."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from dandelion import blobs as blobs_module
from dandelion.blobs import Blobs
from dandelion.documents import CodeDocument, FunctionDocument, RegistrationDocument
from dandelion.function import Digest, digest_of
from dandelion.registration import blobs_of


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of what is hashed from now on."""
    sizes: list[int] = []

    def counting(data: bytes) -> Digest:
        sizes.append(len(data))
        return digest_of(data)

    monkeypatch.setattr(blobs_module, "digest_of", counting)
    return sizes


def test_each_is_filed_under_its_digest() -> None:
    blobs = Blobs()
    a = blobs.add(b"a")
    blobs.add_all([b"b", b"c"])
    assert a == digest_of(b"a")
    assert dict(blobs) == {digest_of(x): x for x in (b"a", b"b", b"c")}
    assert len(blobs) == 3


def test_what_was_named_is_not_named_again(counted: list[int]) -> None:
    blobs, large = Blobs(), os.urandom(1000)
    blobs.add_all([large, large])
    assert blobs.add(large) == digest_of(large)
    blobs.add_all([large])
    assert counted == [1000]


def test_equal_bytes_of_another_object_are_the_same_blob() -> None:
    blobs, text = Blobs(), "kernel"
    assert blobs.add(text.encode()) == blobs.add(text.encode())
    assert len(blobs) == 1


def test_a_reused_id_is_not_taken_for_an_old_blob() -> None:
    blobs = Blobs()
    for number in range(1000):  # short-lived objects, whose ids are reused
        data = b"%d" % number
        assert blobs.add(data) == digest_of(data)


def test_what_may_change_is_copied_before_it_is_named() -> None:
    blobs, data = Blobs(), bytearray(b"first")
    first = blobs.add(data)  # type: ignore[arg-type]  # a program may pass it
    data[:] = b"other"
    blobs.add_all([data])  # type: ignore[list-item]
    assert {bytes(blobs[d]) for d in blobs} == {b"first", b"other"}
    assert all(digest_of(blobs[d]) == d for d in blobs)
    assert first == digest_of(b"first")


def test_many_are_named_by_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[int] = []

    class Counting(ThreadPoolExecutor):
        def __init__(self, threads: int, name: str) -> None:
            used.append(threads)
            super().__init__(threads, name)

    monkeypatch.setattr(blobs_module, "ThreadPoolExecutor", Counting)
    data = [os.urandom(3 << 20) for _ in range(4)]
    blobs = Blobs()
    blobs.add_all([data[0], b"small"])
    assert not used  # one large and one small: not worth a thread
    blobs.add_all(data)
    assert len(used) == 1
    assert dict(blobs) == {digest_of(d): d for d in [*data, b"small"]}


def test_all_of_a_document_is_named() -> None:
    code = CodeDocument("blueprint", "{}", {"k.c": "kernel"})
    function = FunctionDocument(
        "F", ("a", "w"), ("b",), {"w": {"one": "1", "two": "2"}}, code=(code,)
    )
    document = RegistrationDocument((function,), {"library": "L"})
    named = {bytes(data) for data in blobs_of(document).values()}
    assert named == {b"{}", b"kernel", b"1", b"2", b"L"}
