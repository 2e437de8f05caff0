"""What a node keeps of its catalogue, while the catalogue changes under it."""

from collections.abc import Callable, Sequence

import pytest

from dandelion.catalog import Batch, CompositionRecord, MemoryCatalog
from dandelion.dataflow.language import parse
from dandelion.documents import CodeDocument, FunctionDocument
from dandelion.driver import Hosting
from dandelion.errors import Conflict, InvalidComposition
from dandelion.function import Function, FunctionSpec
from dandelion.node import Node, Settings
from dandelion.node.library import Library
from dandelion.testing import ScriptedDriver


class ChangingCatalog(MemoryCatalog):
    """Calls a hook after it found something, once."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Callable[[], None] = lambda: None

    def find_callable(
        self, name: str, version: int | None = None
    ) -> FunctionSpec | CompositionRecord | None:
        result = super().find_callable(name, version)
        hook, self.found = self.found, lambda: None
        hook()
        return result


def test_a_plan_of_a_version_that_was_replaced_meanwhile_is_not_kept() -> None:
    catalog = ChangingCatalog()
    catalog.register(Batch([FunctionSpec("F")]))
    library = Library(catalog, {}, Settings().caps)

    def replace() -> None:
        catalog.register(Batch([FunctionSpec("F", cache=True)]))
        library.plan("F")  # another caller notices the change first

    catalog.found = replace
    library.plan("F")
    target = library.plan("F").applications[0].target
    assert isinstance(target, FunctionSpec)
    assert target.version == 2


def test_each_composition_is_compiled_once_for_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    depth = 40  # with two ways down at each level there are 2**40 ways
    texts = ["function F(a) => (b);"]
    texts += [f"composition {c}0(x) => (y) {{ F(a = all x) => (y = b); }}" for c in "AB"]
    texts += [
        f"composition {c}{i}(x) => (y) {{ A{i - 1}(x = all x) => (m = y);"
        f" B{i - 1}(x = all m) => (y = y); }}"
        for i in range(1, depth)
        for c in "AB"
    ]
    with Node(Settings(backends=("null",))) as node:
        null = FunctionDocument("F", ("a",), ("b",), code=(CodeDocument("null"),))
        node.register(null, "\n".join(texts))
        parsed = []
        monkeypatch.setattr(
            "dandelion.node.library.parse",
            lambda text, file: parsed.append(file) or parse(text, file),
        )
        assert node.signature(f"A{depth - 1}").outputs[0].name == "y"
        assert sorted(parsed) == sorted(set(parsed))


def test_a_registration_whose_ground_is_removed_meanwhile_is_refused() -> None:
    """Code is checked while nothing is held, so a removal need not wait for that."""
    driver = ScriptedDriver("acted", hosting=Hosting.INLINE)
    code = (CodeDocument("acted"),)
    text = """function F(a) => (b); function G(a) => (b);
        composition Uses(x) => (y) { F(a = all x) => (m = b); G(a = all m) => (y = b); }"""
    first = FunctionDocument("F", ("a",), ("b",), code=code)
    second = FunctionDocument("G", ("a",), ("b",), code=code)
    with Node(Settings(backends=(), arena_bytes=1 << 20), [driver]) as node:
        node.register(first)
        driver.script.check = lambda functions: node.remove(FunctionSpec, "F")
        with pytest.raises(InvalidComposition, match="'F'"):
            node.register(text, functions=[second])
        assert node.catalog.records() == []
        driver.script.check = lambda functions: None
        node.register(first)
        node.register(text, functions=[second])
        with pytest.raises(Conflict):
            node.remove(FunctionSpec, "F")
        assert node.invoke("Uses", x=b"1").y.text() == "1"


def test_code_is_checked_once_although_the_catalogue_changes_meanwhile() -> None:
    driver = ScriptedDriver("acted", hosting=Hosting.INLINE)
    checked: list[str] = []
    code = (CodeDocument("acted"),)
    with Node(Settings(backends=(), arena_bytes=1 << 20), [driver]) as node:

        def meanwhile(functions: Sequence[Function]) -> None:
            driver.script.check = lambda functions: checked.append("other")
            node.register(FunctionDocument("Other", ("a",), ("b",), code=code))
            checked.append("first")

        driver.script.check = meanwhile
        node.register(FunctionDocument("F", ("a",), ("b",), code=code))
        assert checked == ["other", "first"]
        assert {record.name for record in node.catalog.records()} == {"F", "Other"}


def test_kept_results_leave_room_to_work() -> None:
    settings = Settings(backends=("null",), arena_bytes=1 << 20, cache_bytes=64 << 20)
    with Node(settings) as node:
        code = (CodeDocument("null"),)
        node.register(FunctionDocument("F", ("a",), ("b",), code=code, cache=True))
        for number in range(20):
            context = node.acquire(100_000)
            context.view[0] = number
            data = context.view.toreadonly()
            del context
            assert node.invoke("F", a=data).b.numpy()[0] == number
            del data
