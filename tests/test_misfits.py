"""What is wrong with data of another type, in plain words."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import numpy as np
import pytest

from dandelion.errors import InvalidInput
from dandelion.errors.misfits import misfit, misfit_text, named_type
from dandelion.frontend.records import read_document


class Record(msgspec.Struct, forbid_unknown_fields=True):
    count: int
    sizes: list[Annotated[int, msgspec.Meta(ge=1)]] = []
    rate: float | None = None
    name: Annotated[str, msgspec.Meta(max_length=3)] = ""
    by_name: dict[str, int] = {}
    pair: Annotated[list[int], msgspec.Meta(min_length=2)] = msgspec.field(
        default_factory=lambda: [1, 2]
    )


@pytest.mark.parametrize(
    ("given", "path", "message"),
    [
        ({"count": "x"}, "count", "expected an integer, found a text"),
        ({"count": True}, "count", "expected an integer, found a boolean"),
        ({"count": 1, "sizes": [1, 0]}, "sizes[1]", "expected an integer, at least 1"),
        ({"count": 1, "rate": "x"}, "rate", "expected a number or null, found a text"),
        ({"count": 1, "name": "abcd"}, "name", "expected a text of at most 3 characters"),
        ({"count": 1, "pair": [1]}, "pair", "expected a list of at least 2 elements"),
        ({"count": 1, "by_name": {"k": []}}, "by_name[...]", "expected an integer, found a list"),
        ({"count": 1, "other": 1}, "", "unknown field 'other'"),
        ({}, "", "the field 'count' is missing"),
        (5, "", "expected an object, found an integer"),
    ],
)
def test_messages(given: Any, path: str, message: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(given, Record)
    assert misfit(caught.value) == (path, message)
    assert misfit_text(caught.value) == (f"{path}: {message}" if path else message)


def test_other_messages_stay() -> None:
    assert misfit(ValueError("something else")) == ("", "something else")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"function": []}', "body: unknown field 'function'; did you mean 'functions'?"),
        (b'{"zzz": []}', "body: unknown field 'zzz'; the fields are functions"),
        (b'{"functions": 3}', "functions: expected a list, found an integer"),
    ],
)
def test_documents(body: bytes, said: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_document(body, "application/json")
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1, "an int"),
        ("", "a str"),
        (object(), "an object"),
        (np.zeros(1), "an ndarray"),
        (np.uint8(1), "a uint8"),
        (None, "a NoneType"),
    ],
)
def test_a_type_has_its_article(value: object, text: str) -> None:
    assert named_type(value) == text
