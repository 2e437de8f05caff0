"""Decorated functions, documents and blueprints in compositions and registrations; misuse."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dandelion as dd
from dandelion.blueprint import Blueprint
from dandelion.cli.sources import read_sources
from dandelion.data import SetSpec
from dandelion.dataflow.dsl import handle_of
from dandelion.documents import (
    CodeDocument,
    FunctionDocument,
    RegistrationDocument,
    collect,
    gpu_function,
    python_function,
)
from dandelion.errors import InvalidComposition, InvalidFunction, InvalidInput
from dandelion.frontend.server import BackgroundServer
from dandelion.function import Batching, Limits
from dandelion.node import Node, Settings
from dandelion.set_values import item_set

HERE = Path(__file__)
LAZY = "def f(x):\n    return x\n"


@dd.function(limits={"wall_s": 3.0}, cache=True, name="Upper")
def upper(text: str) -> str:
    """Make it loud."""
    return text.upper()


@dd.function(static={"table": np.arange(3.0)}, files={"a.txt": b"from a file"})
def scale(values: np.ndarray, table: np.ndarray, *, factor: float = 2.0) -> np.ndarray:
    assert dd.files["a.txt"] == b"from a file"
    return values * table * factor


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    settings = Settings(backends=("process",), engines={"process": 1}, arena_bytes=32 * 2**20)
    with Node(settings) as started:
        yield started


def blueprint() -> Blueprint:
    made = Blueprint(inputs=["a"], outputs=["b"], modules=["copy.c"])
    made.copy(made.buffer("b", like="a"), made.a)
    return made


def gpu() -> FunctionDocument:
    return FunctionDocument(
        "Gpu", ("a", "w"), ("b",), {"w": {"w": "fixed"}}, code=(CodeDocument("python", LAZY),)
    )


def test_a_function_keeps_what_it_is() -> None:
    assert upper("a") == "A"
    assert upper.__doc__ == "Make it loud."
    assert upper.__name__ == "upper"
    assert str(inspect.signature(upper)) == "(text: 'str') -> 'str'"
    assert repr(upper) == "<function Upper(text) => (result)>"
    assert (upper.name, upper.inputs, upper.outputs) == ("Upper", ("text",), ("result",))


def test_options_are_those_of_the_document() -> None:
    document = upper.document
    assert (document.name, document.limits, document.cache) == ("Upper", Limits(wall_s=3.0), True)
    batched = dd.function(name="b", batching=Batching(("values",)), imports="email")(inner)
    assert batched.document.batching == Batching(("values",))
    assert batched.document.code[0].options["imports"] == "email"


def louder(text: str) -> str:
    return f"{text}!"


def inner(values: np.ndarray) -> np.ndarray:
    return values


def test_a_gpu_function_needs_no_files_if_its_sources_are_libraries() -> None:
    made = dd.gpu_function("f", "{}", inputs=["x"], outputs=["y"])
    assert made == dd.gpu_function("f", "{}", inputs=["x"], outputs=["y"], files={})


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"f\.files\.a: no in .*write Path\(__file__\)"):
        dd.gpu_function("f", "{}", inputs=["x"], outputs=["y"], files={"a": Path("no")})
    with pytest.raises(InvalidInput, match=r"f\.blueprint: .*no: No such file"):
        dd.gpu_function("f", tmp_path / "no", inputs=["x"], outputs=["y"], files={})
    with pytest.raises(InvalidInput, match=r"source: .*Is a directory"):
        dd.python_function(tmp_path, name="f", outputs=["y"])
    with pytest.raises(InvalidInput, match=r"identity\.files\.a: no in "):
        _ = dd.function(files={"a": Path("no")})(identity).document


def test_what_is_no_content_of_a_file_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"identity\.files\.a: a text .*give Path\('stop.txt'\)"):
        _ = dd.function(files={"a": "stop.txt"})(identity).document  # type: ignore[dict-item]
    with pytest.raises(InvalidInput, match=r"identity\.files\.a: an int .*Path"):
        _ = dd.function(files={"a": 5})(identity).document  # type: ignore[dict-item]
    with pytest.raises(InvalidInput, match=r"f\.blueprint: it is a dict; give json"):
        dd.gpu_function("f", {}, inputs=["x"], outputs=["y"])  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"f\.blueprint: an int .*Path"):
        dd.gpu_function("f", 5, inputs=["x"], outputs=["y"])  # type: ignore[arg-type]
    files: Any = {"k.c": 5}  # once five zero bytes
    with pytest.raises(InvalidInput, match=r"f\.files\.k\.c: an int .*Path"):
        dd.gpu_function("f", "{}", inputs=["x"], outputs=["y"], files=files)


@pytest.mark.parametrize("source", [len, 5])
def test_what_has_no_source_is_refused(source: Any) -> None:
    with pytest.raises(InvalidInput, match="source: "):
        dd.python_function(source, name="f", outputs=["y"])


def test_one_set_may_be_given_without_a_list() -> None:
    made = dd.gpu_function("f", "{}", inputs="image: float32[?]", outputs="scores")
    assert made == dd.gpu_function("f", "{}", inputs=["image: float32[?]"], outputs=["scores"])
    text = "def f(page): return 1"
    made = dd.python_function(text, name="f", inputs="page", outputs="size")
    assert made == dd.python_function(text, name="f", inputs=["page"], outputs=["size"])
    assert dd.Batching("image") == dd.Batching(("image",))


def identity(x: int) -> int:
    return x


@dd.function(static={"table": "t"}, files={"a.txt": b"a"}, secrets=["key"])
def many(
    page: str, counts: list[int], other, table: str, key: str, limit: int = 3, by: str | None = None
) -> str:  # type: ignore[no-untyped-def]
    return page


def test_sets_that_a_function_needs_have_to_be_bound() -> None:
    @dd.composition
    def whole(pages):  # type: ignore[no-untyped-def]
        return many(dd.each(pages))

    assert "many(page = each pages) =>" in whole.text()
    with pytest.raises(InvalidComposition, match="'many' needs its input set 'page'") as caught:

        @dd.composition
        def partly(numbers):  # type: ignore[no-untyped-def]
            return many(counts=numbers)

    assert [problem.code for problem in caught.value.problems] == ["unbound-parameter"]


def test_static_sets_and_files_are_there_in_tests_and_in_calls(node: Node) -> None:
    expected = np.array([0.0, 2.0, 4.0])
    np.testing.assert_array_equal(scale(np.ones(3)), expected)
    np.testing.assert_array_equal(scale(np.ones(3), table=np.ones(3)), [2, 2, 2])
    node.register(scale)
    np.testing.assert_array_equal(node.invoke("scale", values=np.ones(3)).result.value(), expected)
    with pytest.raises(InvalidInput, match="_files"):
        node.invoke("scale", values=np.ones(3), _files=b"mine")
    with pytest.raises(KeyError, match=r"no file 'b.txt'.*a.txt|no file 'b.txt'"):
        dd.files["b.txt"]


def test_secrets_are_parameters_that_are_not_bound() -> None:
    @dd.function(secrets={"table": "key"})
    def secret(values: str, table: str) -> str:
        return values + table

    @dd.composition
    def uses(x: Any) -> Any:
        return secret(x)

    assert secret.document.secrets == {"table": "key"}
    assert [b.parameter for b in uses.composition.applications[0].bindings] == ["values"]
    assert secret("a", table="b") == "ab"


def test_secrets_may_be_listed_by_name() -> None:
    @dd.function(secrets=["key"])
    def secret(values: str, key: str) -> str:
        return values + key

    assert secret.document.secrets == {"key": "key"}


@pytest.mark.parametrize(
    ("limits", "part"), [({"wall": 1}, "did you mean 'wall_s'"), ({"wall_s": "long"}, "wall_s")]
)
def test_wrong_limits_are_refused_at_their_line(limits: Any, part: str) -> None:
    with pytest.raises(InvalidInput, match=part) as caught:

        @dd.function(limits=limits)
        def limited(x: str) -> str:
            return x

    assert caught.value.where.startswith(f"{__file__}:")


def test_what_was_registered_can_be_invoked(node: Node) -> None:
    @dd.function
    def twice(x: str) -> str:
        return x + x

    @dd.composition
    def applied(x: Any) -> Any:
        return twice(x)

    node.register(applied)
    assert node.invoke(twice, x="a").result.text() == "aa"
    assert node.invoke(applied, x="a").result.text() == "aa"
    assert node.invoke_sets(applied, {"x": item_set("x", "b")}).sets.result.text() == "bb"
    with BackgroundServer(node) as server, dd.Client(server.url) as client:
        assert client.invoke(applied, x="c").result.text() == "cc"
    with pytest.raises(InvalidInput, match="int has no registered name"):
        node.invoke(3, x="a")  # type: ignore[arg-type]  # the point of the test


def test_a_misspelt_set_is_named_before_the_missing_one(node: Node) -> None:
    node.register(scale)
    with pytest.raises(InvalidInput, match="did you mean 'values'") as caught:
        node.invoke("scale", vales=np.ones(3))
    assert caught.value.where == "sets.vales"


def test_a_composition_is_enough_to_register() -> None:
    document = gpu()

    @dd.composition
    def inside(x: Any) -> Any:
        return upper(x)

    @dd.composition
    def outside(x: Any) -> Any:
        return document(scale(inside(dd.each(x))))

    found = collect([outside])
    assert [f.name for f in found.functions] == ["Upper", "scale", "Gpu"]
    assert found.functions[-1] is document
    text = found.compositions[0]
    assert "scale(values = all inside_result) => (scale_result = result);" in text
    assert "Gpu(a = all scale_result) => (result = b);" in text


def test_what_is_given_explicitly_is_taken_instead() -> None:
    other = python_function(LAZY, name="Upper", entry="f", inputs=["text"], outputs=["result"])

    @dd.composition
    def loud(x: Any) -> Any:
        return upper(x)

    assert collect([loud], [other]).functions == (other,)
    assert collect([loud, other]).functions == (other,)
    assert [f.name for f in collect([loud, loud, upper]).functions] == ["Upper"]


def test_two_functions_of_one_name_are_refused() -> None:
    other = dd.function(louder, name="Upper")

    @dd.composition
    def both(x: Any) -> Any:
        return upper(other(x))

    with pytest.raises(InvalidInput, match="have the name 'Upper'"):
        collect([both])
    assert len(collect([both], [other]).functions) == 1


def test_a_file_with_decorated_functions_can_be_registered(tmp_path: Path) -> None:
    path = tmp_path / "decorated_file.py"
    path.write_text(
        "import dandelion as dd\n"
        "@dd.function\ndef f(x: str) -> str:\n    return x\n"
        "@dd.composition\ndef c(x):\n    return f(x)\n"
    )
    found = read_sources([path])
    assert [f.name for f in found.functions] == ["f"]
    assert len(found.compositions) == 1
    path.write_text("x = 1\n")
    with pytest.raises(InvalidInput, match="nothing to register; put @dandelion"):
        read_sources([path])


def test_forms_of_sets_are_checked(node: Node) -> None:
    document = python_function(LAZY, name="f", inputs=[SetSpec("x", form="yaml")], outputs=["y"])
    with pytest.raises(InvalidFunction, match="'yaml' is not a form"):
        node.register(document)


def test_handles_register_their_documents() -> None:
    document = gpu()
    assert collect([handle_of(document)]).functions == (document,)
    assert handle_of(upper) is upper


def test_signatures_register_nothing() -> None:
    (declared,) = dd.functions("Upper(text) -> (result)")

    @dd.composition
    def loud(x: Any) -> Any:
        return declared(x)

    assert collect([loud]) == RegistrationDocument(compositions=(loud.text(),))


def test_whole_sets_of_optional_parameters_are_optional() -> None:
    @dd.composition
    def bound(x: Any, y: Any, z: Any) -> Any:
        return optional_one(x, y, z)

    @dd.composition
    def for_each(x: Any, y: Any, z: Any) -> Any:
        return optional_one(x, dd.each(y), z)

    first, second = (made.composition.applications[0].bindings for made in (bound, for_each))
    assert [b.optional for b in first] == [False, True, True]
    assert [b.optional for b in second] == [False, False, True]


@dd.function
def optional_one(x: str, y: str | None, z: int = 3) -> str:
    return f"{x} {y} {z}"


def test_inputs_of_compositions_may_be_left_out(node: Node) -> None:
    @dd.composition
    def left_out(x: Any, y: Any, z: Any) -> Any:
        return optional_one(x, y, z)

    node.register(left_out)
    assert node.invoke("left_out", x="a").result.value() == "a None 3"
    assert node.invoke("left_out", x="a", z=5).result.value() == "a None 5"
    with pytest.raises(InvalidInput, match="missing: x"):
        node.invoke("left_out", z=5)


def test_blueprints_are_taken_as_they_are_built() -> None:
    sets: dict[str, Any] = {"inputs": ["a"], "outputs": ["b"], "files": {"copy.c": ""}}
    made = gpu_function("copy", blueprint(), **sets)
    assert made == gpu_function("copy", blueprint().json(), **sets)
    weights = np.ones((2, 2), "float32")
    one = gpu_function("copy", "{}", static={"a": weights}, **sets)
    assert one.static == gpu_function("copy", "{}", static={"a": {"a": weights}}, **sets).static
    numbers = gpu_function("c", "{}", static={"a": [1, 2]}, **{**sets, "inputs": ["a: float32[2]"]})
    (item,) = numbers.static["a"].values()
    assert not isinstance(item, str)
    assert item.data == np.array([1, 2], "float32").tobytes()


@pytest.mark.parametrize(
    ("thing", "hint"),
    [
        (inner, "put @dandelion.function above 'inner'"),
        ([upper], "one by one"),
        (dd.functions("F(x) -> (y)")[0], "only declared"),
        (blueprint(), "gpu_function"),
        (3, "give decorated functions"),
    ],
)
def test_what_cannot_be_registered_names_the_line(node: Node, thing: Any, hint: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        node.register(thing)
    assert hint in caught.value.hint
    file, line = caught.value.where.rsplit(":", 1)
    assert file == __file__
    assert "node.register(thing)" in HERE.read_text().splitlines()[int(line) - 1]


def test_plain_values_in_a_composition_are_refused_at_their_line() -> None:
    with pytest.raises(InvalidComposition) as caught:

        @dd.composition
        def wrong(x: Any) -> Any:
            return scale(np.ones(3))

    (problem,) = caught.value.problems
    assert problem.where.startswith(__file__)
    assert "static=" in problem.expected


def test_functions_without_the_decorator_are_named_in_a_composition() -> None:
    def words(page: Any) -> Any:
        return page.split()

    def page(page: Any) -> Any:
        return {"y": page}

    for plain, line in ((words, "return page.split()"), (page, "def wrong")):
        with pytest.raises(InvalidComposition, match=r"@dandelion\.function") as caught:

            @dd.composition
            def wrong(x: Any) -> Any:
                return plain(dd.each(x))  # noqa: B023 - it runs at once

        (problem,) = caught.value.problems
        assert line in HERE.read_text().splitlines()[problem.line - 1]


def test_the_name_of_the_decorator_is_not_the_module_of_that_name() -> None:
    import dandelion.function as by_name  # what `import ... as` gives is the point
    from dandelion.function import FunctionSpec

    assert FunctionSpec.__module__ == "dandelion.function"
    assert dd.function is by_name
    assert callable(dd.function)


def test_limits_of_gpu_functions_are_given_by_their_fields_too() -> None:
    def described(**limits: float) -> Any:
        return dd.gpu_function("f", "{}", inputs=["x"], outputs=["y"], files={}, limits=limits)

    assert described(wall_s=2).limits.wall_s == 2
    with pytest.raises(InvalidInput, match=r"f\.limits: no limit 'wall'; did you mean 'wall_s'"):
        described(wall=2)
    with pytest.raises(InvalidInput, match=r"f\.limits"):
        described(wall_s="long")  # type: ignore[arg-type]
