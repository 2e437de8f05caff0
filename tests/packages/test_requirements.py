"""Requirements: their form, and what they may not name."""

from __future__ import annotations

from typing import Any

import pytest

from dandelion.errors import InvalidFunction
from dandelion.function import Digest
from dandelion.packages import requirements
from dandelion.packages.requirements import check_wheels, environment_key, read_requirements

DIGEST = Digest("0" * 64)


def code_of(*texts: str) -> str:
    with pytest.raises(InvalidFunction) as caught:
        read_requirements(texts, "here")
    return caught.value.problems[0].code


def test_the_canonical_form_is_sorted_and_has_each_once() -> None:
    given = ["Some_Thing >=1, <2", "a[y,x]", "some-thing<2,>=1", "b; python_version >= '3.9'"]
    assert read_requirements(given, "") == (
        "a[x,y]",
        'b; python_version >= "3.9"',
        "some-thing<2,>=1",
    )


@pytest.mark.parametrize(
    "text",
    [
        *("./local", "/a/b-1.0-py3-none-any.whl", "../x", "b-1.0-py3-none-any.whl", "x.tar.gz"),
        *("git+https://host/x", "https://host/x.whl", "file:///x", "~/x"),
        *("a @ https://host/a.whl", "a @ file:///etc", "a @ git+ssh://host/a"),
    ],
)
def test_places_are_refused(text: str) -> None:
    assert code_of(text) == "not-by-place"


@pytest.mark.parametrize(
    "text",
    ["", " ", "==1", "a=1", "a==", "-r file", "--index-url x", "a b", "a\n--pre", "é", "a" * 301],
)
def test_what_is_no_requirement_is_refused(text: str) -> None:
    assert code_of(text) == "bad-requirement"


@pytest.mark.parametrize("given", [1, None, b"numpy", ["numpy"]])
def test_what_is_no_text_is_refused(given: Any) -> None:
    assert code_of(given) == "bad-requirement"


def test_all_problems_are_reported_with_their_places() -> None:
    with pytest.raises(InvalidFunction) as caught:
        read_requirements(["ok", "==", "./x"], "here")
    assert [p.where for p in caught.value.problems] == ["here[1]", "here[2]"]


def test_their_number_is_limited() -> None:
    assert code_of(*(f"a{n}" for n in range(65))) == "too-many-packages"


@pytest.mark.parametrize(
    "wheels",
    [
        {"../a-1-py3-none-any.whl": DIGEST},
        {"a.whl": DIGEST},
        {"a-1-py3-none-any.whl": "0"},
        {"a-1-py3-none-any.whl": "G" * 64},
        {f"a{n}-1-py3-none-any.whl": DIGEST for n in range(513)},
    ],
)
def test_wheels_of_a_document_are_checked(wheels: dict[str, str]) -> None:
    with pytest.raises(InvalidFunction):
        check_wheels(wheels, "here")


def test_a_key_depends_on_wheels_and_on_what_the_node_has(monkeypatch: pytest.MonkeyPatch) -> None:
    one = {"a-1-py3-none-any.whl": DIGEST}
    other = {"a-1-py3-none-any.whl": Digest("1" * 64)}
    key = environment_key(one)
    assert key == environment_key(dict(one)) != environment_key(other)
    monkeypatch.setattr(requirements, "provided", lambda: {"numpy": "0"})
    assert environment_key(one) != key
