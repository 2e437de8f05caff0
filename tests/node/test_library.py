"""What a node keeps of its catalogue, while the catalogue changes under it."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from dandelion import python_function
from dandelion.catalog import (
    Batch,
    CatalogView,
    CompositionRecord,
    MemoryCatalog,
    Removal,
    kind_of,
)
from dandelion.data import Bytes, SetSpec
from dandelion.dataflow.language import parse
from dandelion.documents import CodeDocument, FunctionDocument
from dandelion.driver import Hosting
from dandelion.errors import (
    ApplicationFailed,
    Conflict,
    InvalidComposition,
    InvalidInput,
    Unknown,
)
from dandelion.function import Digest, Function, FunctionSpec
from dandelion.namespaces import Namespace
from dandelion.node import Node, Settings
from dandelion.node.library import Library
from dandelion.registration.compositions import NESTING_LIMIT
from dandelion.testing import ScriptedDriver


class ChangingCatalog(MemoryCatalog):
    """Calls a hook after it gave a view, once."""

    def __init__(self) -> None:
        super().__init__()
        self.viewed: Callable[[], None] = lambda: None

    def view(self) -> CatalogView:
        result = super().view()
        hook, self.viewed = self.viewed, lambda: None
        hook()
        return result


def test_a_plan_of_a_version_that_was_replaced_meanwhile_is_not_kept() -> None:
    catalog = ChangingCatalog()
    catalog.register(Batch([FunctionSpec("F")]))
    library = Library(catalog, {}, Settings().caps)

    def replace() -> None:
        catalog.register(Batch([FunctionSpec("F", cache=True)]))
        library.plan("F")  # another caller notices the change first

    catalog.viewed = replace
    library.plan("F")
    target = library.plan("F").applications[0].target
    assert isinstance(target, FunctionSpec)
    assert target.version == 2


@pytest.mark.parametrize("tenant", ["default", "other"])
def test_a_plan_is_of_one_moment(tenant: str) -> None:
    """What is registered while it is compiled is not in it: neither in part nor as a misfit."""
    whole = ChangingCatalog()
    catalog = Namespace(whole, tenant)

    def register(given: str) -> None:
        text = f"""
            function F({given}) => (b); function G({given}) => (b);
            composition C(x) => (y) {{
                F({given} = all x) => (m = b); G({given} = all m) => (y = b);
            }}"""
        specs = [FunctionSpec(n, (SetSpec(given),), (SetSpec("b"),)) for n in "FG"]
        catalog.register(Batch(specs, [CompositionRecord("C", text, ("x",), ("y",), ("F", "G"))]))

    register("a")
    library = Library(catalog, {}, Settings().caps)
    for number, given in enumerate("bcd", start=1):
        whole.viewed = lambda given=given: register(given)  # type: ignore[misc]
        plan = library.plan("C")
        targets = [application.target for application in plan.applications]
        assert [one.version for one in targets if isinstance(one, FunctionSpec)] == [number] * 2
    targets = [application.target for application in library.plan("C").applications]
    assert [one.version for one in targets if isinstance(one, FunctionSpec)] == [4, 4]


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


ONE = "def w(x): return {'r': x.text()}"
TWO = "def w(x, z): return {'r': x.text() + z.text(), 'e': 'E'}"
USERS = (
    "composition C(x, z) => (y) { w(x = all x, z = all z) => (y = r); }",
    "composition C(x, z) => (y, e) { w(x = all x, z = all z) => (y = r, e = e); }",
    "composition C(x, z) => (y) { w(x = all x, z = all z) => (y = r) repeat 2 feeding (z = e); }",
    "composition C(x, z) => (y) { w(x = keyed x, z = keyed z) => (y = r) by x inner z; }",
)


@pytest.fixture(scope="module")
def versions() -> Iterator[Node]:
    with Node(Settings(backends=("process",), engines={"process": 1})) as node:
        yield node


def test_what_is_no_class_of_records_is_refused(versions: Node) -> None:
    kind: Any = "function"
    with pytest.raises(InvalidInput, match="'function' is not a class of records"):
        versions.remove(kind, "w")


def register_versions(node: Node, user: str) -> None:
    """Register two versions of w, and a composition that fits the second."""
    node.remove_together([Removal(kind_of(r), r.name) for r in node.catalog.records()])
    node.register(python_function(ONE, name="w", inputs=["x"], outputs=["r"]))
    node.register(python_function(TWO, name="w", inputs=["x", "z"], outputs=["r", "e"]), user)


def version_of(node: Node, name: str) -> int:
    found = node.catalog.find_callable(name)
    assert found is not None
    return found.version


@pytest.mark.parametrize("user", USERS)
def test_a_version_that_compositions_need_is_not_removed(versions: Node, user: str) -> None:
    register_versions(versions, user)
    newest = version_of(versions, "w")
    before = versions.invoke("C", x="1", z="2").y.text()
    older = f"version {newest - 1} of w would be the newest, which does not fit"
    with pytest.raises(Conflict, match=f"composition 'C': {older}"):
        versions.remove(FunctionSpec, "w", newest)
    assert versions.invoke("C", x="1", z="2").y.text() == before
    versions.catalog.remove(FunctionSpec, "w", newest)  # as by a node that does not check it
    with pytest.raises(Conflict, match="does not fit the newest versions of what it uses"):
        versions.invoke("C", x="1", z="2")


def test_a_set_that_compositions_bind_does_not_become_static(versions: Node) -> None:
    register_versions(
        versions, "composition C(x, z) => (y) { w(x = all x, z = all z) => (y = r); }"
    )
    static = {"z": {"z": b"3"}}
    fixed = python_function(TWO, name="w", inputs=["x", "z"], outputs=["r", "e"], static=static)
    with pytest.raises(Conflict, match=r"'C': the new version of w breaks it.*'z' of function 'w'"):
        versions.register(fixed)
    assert versions.invoke("C", x="1", z="2").y.text() == "12"
    versions.register(fixed, "composition C(x, z) => (y) { w(x = all x) => (y = r); }")
    assert versions.invoke("C", x="1", z="2").y.text() == "13"
    with pytest.raises(Conflict, match="'z' of function 'w' is fixed at registration"):
        versions.invoke_sets("C", {"x": "1", "z": "2"}, version=version_of(versions, "C") - 1)


def test_what_changed_together_is_removed_together(versions: Node) -> None:
    register_versions(versions, "composition C(x) => (y) { w(x = all x, z = all x) => (y = r); }")
    versions.remove(CompositionRecord, "C")
    versions.remove(FunctionSpec, "w", version_of(versions, "w"))
    versions.register("composition C(x) => (y) { w(x = all x) => (y = r); }")
    older = version_of(versions, "C")
    two = python_function(TWO, name="w", inputs=["x", "z"], outputs=["r", "e"])
    versions.register(two, "composition C(x) => (y) { w(x = all x, z = all x) => (y = r); }")
    assert versions.invoke("C", x="1").y.text() == "11"
    newest = Removal("function", "w", version_of(versions, "w"))
    user = Removal("composition", "C", version_of(versions, "C"))
    for alone in (newest, user):
        with pytest.raises(Conflict, match="does not fit"):
            versions.remove_together([alone])
    with pytest.raises(Conflict, match="does not fit the newest versions"):
        versions.invoke_sets("C", {"x": "1"}, version=older)
    removed = versions.remove_together([newest, user])
    assert [(r.name, r.version) for r in removed] == [(o.name, o.version) for o in (newest, user)]
    assert versions.invoke("C", x="1").y.text() == "1"
    register_versions(versions, USERS[0])
    newest = Removal("function", "w", version_of(versions, "w"))
    versions.remove_together([newest, Removal("composition", "C")])  # with all who used it
    assert [(r.name, r.version) for r in versions.catalog.records()] == [
        ("w", (newest.version or 0) - 1)
    ]


def test_no_removal_makes_a_composition_apply_itself(versions: Node) -> None:
    register_versions(versions, "composition A(x) => (y) { w(x = all x, z = all x) => (y = r); }")
    versions.register("composition B(x) => (y) { A(x = all x) => (y = y); }")
    versions.register("composition A(x) => (y) { w(x = all x, z = all x) => (e = r, y = e); }")
    versions.register("composition D(x) => (y) { w(x = all x, z = all x) => (y = r); }")
    versions.register("composition B(x) => (y) { D(x = all x) => (y = y); }")
    versions.register("composition A(x) => (y) { B(x = all x) => (y = y); }")
    newest = version_of(versions, "B")
    with pytest.raises(Conflict, match=f"version {newest - 1} would apply itself: B -> A -> B"):
        versions.remove(CompositionRecord, "B", newest)
    assert versions.invoke("A", x="1").y.text() == "11"
    versions.catalog.remove(CompositionRecord, "B", newest)
    with pytest.raises(Conflict, match="it applies itself"):
        versions.invoke("A", x="1")


def test_a_function_that_is_removed_before_it_is_loaded_is_named(
    versions: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "def early(x): return {'y': x.text()}"
    (made,) = versions.register(python_function(code, name="early", inputs=["x"], outputs=["y"]))
    read = MemoryCatalog.blob

    def remove_first(catalog: MemoryCatalog, digest: Digest) -> Bytes:
        monkeypatch.setattr(MemoryCatalog, "blob", read)
        catalog.remove(FunctionSpec, "early")
        return read(catalog, digest)

    monkeypatch.setattr(MemoryCatalog, "blob", remove_first)
    told = f"no function 'early' version {made.version}; it was removed"
    with pytest.raises(Unknown, match=told):
        versions.invoke("early", x="1")


def test_nesting_is_limited(versions: Node) -> None:
    def level(number: int) -> str:
        inner = f"L{number - 1}(x = all x)" if number else "w(x = all x, z = all x)"
        result = "y" if number else "r"
        return f"composition L{number}(x) => (y) {{ {inner} => (y = {result}); }}"

    register_versions(versions, "\n".join(map(level, range(NESTING_LIMIT))))
    last = f"L{NESTING_LIMIT - 1}"
    assert versions.invoke(last, x="1").y.text() == "11"
    assert len(versions.record(last, {"x": "1"}))
    told = f"{NESTING_LIMIT + 1} compositions are inside of each other"
    with pytest.raises(InvalidInput, match=f"composition 'L{NESTING_LIMIT}': {told}"):
        versions.register(level(NESTING_LIMIT))
    deeper = "composition L0(x) => (y) { Inner(x = all x) => (y = y); }"
    with pytest.raises(InvalidInput, match=told):  # for those that use it already
        versions.register(deeper, level(0).replace("L0", "Inner"))
    versions.register(
        python_function("def w(x): 1 / 0", name="w", inputs=["x"], outputs=["r"]),
        level(0).replace(", z = all x", ""),
    )
    with pytest.raises(ApplicationFailed, match=r"L99\..*L0\..*ZeroDivisionError"):
        versions.invoke(last, x="1")
    assert versions.info().running == 0


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
