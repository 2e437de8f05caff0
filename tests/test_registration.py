"""Registration refuses declarations and documents that cannot run."""

import gc
import sys
from typing import Any

import msgspec
import pytest

from dandelion.catalog import MemoryCatalog
from dandelion.data import Item, ItemSet, SetSpec
from dandelion.dataflow.language import TEXT_LIMIT_BYTES
from dandelion.documents import CodeDocument, FunctionDocument, RegistrationDocument
from dandelion.driver import load_driver
from dandelion.errors import InvalidComposition, InvalidFunction, InvalidInput, TooLarge
from dandelion.function import Digest, FunctionSpec, Limits, StaticItem
from dandelion.registration import Registrar, Target, blobs_of
from dandelion.set_values import item_set


def refusal(**fields: Any) -> str:
    """The code of the only problem of a function with these fields."""
    function = FunctionDocument(
        "f", **{"inputs": ("a",), "outputs": ("b",), "code": (CodeDocument("null"),), **fields}
    )
    registrar = Registrar(MemoryCatalog(), {}, {"null": load_driver("null").checker()})
    with pytest.raises(InvalidFunction) as caught:
        registrar.draft(RegistrationDocument(functions=(function,)))
    (problem,) = caught.value.problems
    return problem.code


@pytest.mark.parametrize(
    "limits",
    [{"wall_s": float("inf")}, {"wall_s": 1e300}, {"cpu_s": float("nan")}, {"memory_bytes": 2**70}],
)
def test_limits_are_finite(limits: dict[str, Any]) -> None:
    assert refusal(limits=Limits(**limits)) == "bad-limit"


@pytest.mark.parametrize("dtype", ["(999999999,)f4", "(2,3)f4,(", "9" * 5000 + "f4"])
def test_what_numpy_cannot_read_is_no_type(dtype: str) -> None:
    assert refusal(inputs=(SetSpec("a", dtype),)) == "bad-dtype"


@pytest.mark.parametrize("shape", [(2**70,), (2**62, 2**62), (1,) * 100])
def test_shapes_are_of_this_world(shape: tuple[int, ...]) -> None:
    assert refusal(inputs=(SetSpec("a", "float32", shape),)) == "bad-shape"


@pytest.mark.parametrize("item", ["\0", "n" * 1000, "\ud800"])
def test_fixed_items_have_names_that_items_may_have(item: str) -> None:
    assert refusal(static={"a": {item: "x"}}) == "bad-static"


def test_fixed_items_fit_their_declaration() -> None:
    assert refusal(inputs=("a: float32[2]",), static={"a": {"w": "xyz"}}) == "bad-static"


@pytest.mark.parametrize("name", ["", "\ud800", "a\0", "é" * 128])
def test_names_of_libraries_are_checked(name: str) -> None:
    registrar = Registrar(MemoryCatalog(), {}, {})
    with pytest.raises(InvalidInput):
        registrar.draft(RegistrationDocument(libraries={name: "code"}))


def test_a_set_of_something_else_than_items_is_refused() -> None:
    impostor: Any = 1
    with pytest.raises(InvalidInput, match="int"):
        item_set("a", ItemSet("a", (Item("i"), impostor)))


def test_no_content_of_a_document_is_retained() -> None:
    """Its contents may be large."""
    null = load_driver("null").checker()
    registrar = Registrar(
        MemoryCatalog(), {}, {"null": null}, lambda _: (Target(null, ("sm_90",)),)
    )
    function = FunctionDocument("F", ("a",), ("b",), code=(CodeDocument("null"),))
    good = RegistrationDocument(functions=(function,), libraries={"L": "a text"})
    bad = RegistrationDocument(
        functions=(function,), compositions=("composition",), libraries={"L": "another text"}
    )
    draft = registrar.draft(good)
    assert len(draft.codes) == len(draft.preparations) == 1
    registrar.batch(draft)
    blobs = blobs_of(bad)
    with pytest.raises(InvalidComposition):
        registrar.draft(bad, blobs)
    [bad_text] = [blob for blob in blobs.values() if blob]
    good_text, alone = draft.blobs[draft.batch.libraries[0].digest], bytes(bytearray(b"alone"))
    del good, bad, draft, blobs
    gc.collect()
    counts = [sys.getrefcount(text) for text in (good_text, bad_text, alone)]
    assert counts[0] == counts[1] == counts[2]
    assert registrar.checkers  # it is there, and might have kept them


def test_a_record_of_before_items_had_types_is_read() -> None:
    old = b'{"name": "F", "inputs": [{"name": "w"}], "static": {"w": [["item", "abc"]]}}'
    spec = msgspec.json.decode(old, type=FunctionSpec)
    assert spec.static == {"w": (StaticItem("item", Digest("abc")),)}
    assert msgspec.json.decode(msgspec.json.encode(spec), type=FunctionSpec) == spec


def test_a_text_may_not_be_too_long() -> None:
    registrar = Registrar(MemoryCatalog(), {}, {})
    text = "composition C() => () { }" + " " * TEXT_LIMIT_BYTES
    with pytest.raises(TooLarge) as caught:
        registrar.draft(RegistrationDocument(compositions=(text,)))
    assert (caught.value.size_bytes, caught.value.limit_bytes) == (len(text), TEXT_LIMIT_BYTES)
    registrar.draft(RegistrationDocument(compositions=(text[:TEXT_LIMIT_BYTES],)))
