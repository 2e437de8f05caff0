"""Tenants of one catalogue and one node: none can see, remove or shadow the records of others."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from dandelion.catalog import (
    Batch,
    Catalog,
    CompositionRecord,
    LibraryRecord,
    MemoryCatalog,
    Record,
    Removal,
    open_catalog,
)
from dandelion.data import SetSpec
from dandelion.documents import CodeDocument, Content, FunctionDocument
from dandelion.driver import Call, Engine, Hosting, InstanceSets
from dandelion.errors import (
    Conflict,
    DandelionError,
    InvalidComposition,
    InvalidFunction,
    InvalidInput,
    Unknown,
)
from dandelion.function import FunctionSpec, digest_of
from dandelion.namespaces import DEFAULT_TENANT, Namespace, check_tenant
from dandelion.node import Node, Settings
from dandelion.node.library import Library
from dandelion.testing import Script, ScriptedDriver

CODE = b"code"
KINDS: list[type[Record]] = [FunctionSpec, CompositionRecord, LibraryRecord]
PAIRS = [(DEFAULT_TENANT, "a"), ("a", DEFAULT_TENANT), ("a", "b"), ("a", "a.b"), ("a-b", "a")]
HOSTILE = [
    "",
    " ",
    "a/b",
    "/",
    "..",
    ".a",
    "-a",
    "a\x1fb",
    "a\0",
    "a\n",
    "ä",
    "a b",
    "x" * 64,
    "%2f",
    "default/",
]


@pytest.fixture(params=["memory", "sqlite"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Catalog]:
    url = "memory:" if request.param == "memory" else f"sqlite:{tmp_path / 'catalog'}"
    with contextlib.closing(open_catalog(url)) as opened:
        yield opened


def everything(inputs: str = "x") -> Batch:
    """A function, a composition that uses it, and a library."""
    digest = digest_of(CODE)
    return Batch(
        [FunctionSpec("F", (SetSpec(inputs),))],
        [CompositionRecord("C", "text", ("x",), (), uses=("F",))],
        [LibraryRecord("lib/l", digest, len(CODE))],
        {digest: CODE},
    )


def seen(catalog: Catalog) -> set[tuple[str, str]]:
    return {(type(record).__name__, record.name) for record in catalog.records()}


# --- the catalogue --------------------------------------------------------------------------------


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_a_tenant_sees_its_own_records_alone(one: str, other: str, catalog: Catalog) -> None:
    ours, theirs = Namespace(catalog, one), Namespace(catalog, other)
    registered = ours.register(everything())
    assert [record.name for record in registered] == ["lib/l", "F", "C"]
    assert theirs.records() == []
    for name in ("F", "C"):
        assert ours.find_callable(name) is not None
        assert theirs.find_callable(name) is None
    assert ours.find_library("lib/l") is not None
    assert theirs.find_library("lib/l") is None
    for kind, name in zip(KINDS, ("F", "C", "lib/l"), strict=True):
        assert (ours.versions(kind, name), theirs.versions(kind, name)) == ([1], [])
    assert seen(ours) == {
        ("FunctionSpec", "F"),
        ("CompositionRecord", "C"),
        ("LibraryRecord", "lib/l"),
    }
    found = ours.find_callable("C")
    assert isinstance(found, CompositionRecord)
    assert found.uses == ("F",)
    assert (ours.view().compositions(), theirs.view().compositions()) == ([found], [])


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_equal_names_of_tenants_have_nothing_to_do_with_each_other(
    one: str, other: str, catalog: Catalog
) -> None:
    ours, theirs = Namespace(catalog, one), Namespace(catalog, other)
    ours.register(everything("ours"))
    ours.register(Batch([FunctionSpec("F", (SetSpec("newer"),))]))
    theirs.register(everything("theirs"))
    theirs.register(Batch([FunctionSpec("only", (SetSpec("x"),))]))
    found = theirs.find_callable("F")
    assert isinstance(found, FunctionSpec)
    assert (found.version, found.input_names) == (1, ("theirs",))
    found = ours.find_callable("F")
    assert isinstance(found, FunctionSpec)
    assert (found.version, found.input_names) == (2, ("newer",))
    theirs.remove(CompositionRecord, "C")
    theirs.remove(FunctionSpec, "F")
    theirs.remove(LibraryRecord, "lib/l")
    assert seen(theirs) == {("FunctionSpec", "only")}
    assert len(seen(ours)) == 3
    assert ours.versions(FunctionSpec, "F") == [1, 2]
    assert bytes(ours.blob(digest_of(CODE))) == CODE


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_no_name_reaches_into_another_tenants_part(one: str, other: str, catalog: Catalog) -> None:
    ours, theirs = Namespace(catalog, one), Namespace(catalog, other)
    ours.register(everything())
    before = catalog.records()
    inner = {record.name for record in before}
    hostile = {*inner, *(f"{one}{by}{n}" for by in "/\x1f." for n in ("F", "C", "lib/l"))}
    hostile |= {f"../{one}/F", f"{other}/../{one}/F", "/F", f"/{one}/F", "%", "_", "*", ""}
    hostile -= {"F", "C", "lib/l"}
    for name in hostile:
        assert theirs.find_callable(name) is None
        assert theirs.find_library(name) is None
        for kind in KINDS:
            assert theirs.versions(kind, name) == []
            with pytest.raises(Unknown) as caught:
                theirs.remove(kind, name)
            assert (caught.value.name, caught.value.nearest) == (name, None)
    assert catalog.records() == before


@pytest.mark.parametrize("tenant", [DEFAULT_TENANT, "b"])
@pytest.mark.parametrize("name", ["a/F", "b/F", "F/", "/F", "a\x1fF", "\x1fF"])
def test_a_name_that_would_lie_in_another_part_is_refused(
    name: str, tenant: str, catalog: Catalog
) -> None:
    digest = digest_of(CODE)
    namespace = Namespace(catalog, tenant)
    batches = [Batch([], [], [LibraryRecord(name, digest, 4)], {digest: CODE})]
    if "/" in name:  # which a library's name may have
        batches = [Batch([FunctionSpec(name)]), Batch([], [CompositionRecord(name, "", (), ())])]
    for batch in batches:
        with pytest.raises(InvalidInput):
            namespace.register(batch)
    assert catalog.records() == []


@pytest.mark.parametrize("tenant", [DEFAULT_TENANT, "a"])
def test_what_a_composition_uses_stays_and_errors_have_plain_names(
    tenant: str, catalog: Catalog
) -> None:
    Namespace(catalog, "b").register(everything())
    namespace = Namespace(catalog, tenant)
    namespace.register(everything())
    with pytest.raises(Conflict) as caught:
        namespace.remove(FunctionSpec, "F")
    assert caught.value.name == "F"
    assert "composition C uses" in str(caught.value)
    with pytest.raises(Conflict) as caught:
        namespace.register(Batch([FunctionSpec("C")]))
    assert caught.value.name == "C"
    namespace.remove(CompositionRecord, "C")
    assert [record.name for record in namespace.remove(FunctionSpec, "F")] == ["F"]


def test_no_error_names_what_others_have(catalog: Catalog) -> None:
    Namespace(catalog, "a").register(Batch([FunctionSpec("Secret")]))
    Namespace(catalog, DEFAULT_TENANT).register(Batch([FunctionSpec("Public")]))
    for tenant, name in ((DEFAULT_TENANT, "a/Secre"), (DEFAULT_TENANT, "Secre"), ("b", "Secre")):
        with pytest.raises(Unknown) as caught:
            Namespace(catalog, tenant).remove(FunctionSpec, name)
        assert "Secret" not in str(caught.value)
    for tenant, name, known in ((DEFAULT_TENANT, "Publi", "Public"), ("a", "Secre", "Secret")):
        with pytest.raises(Unknown) as caught:
            Namespace(catalog, tenant).remove(FunctionSpec, name)
        assert caught.value.nearest == known


@pytest.mark.parametrize("name", HOSTILE)
def test_a_text_that_could_be_a_path_names_no_tenant(name: str, catalog: Catalog) -> None:
    with pytest.raises(InvalidInput):
        check_tenant(name)
    with pytest.raises(InvalidInput):
        Namespace(catalog, name)


# --- a node ---------------------------------------------------------------------------------------


def reading(engine: Engine, call: Call) -> InstanceSets:
    """Return the code of the function in place of the input."""
    [given] = call.inputs
    assert given is not None
    items = tuple(type(i)(i.name, i.key, bytes(call.function.main)) for i in given.items)
    return (type(given)("b", items),)


def document(name: str, code: str, cache: bool = False) -> FunctionDocument:
    main = Content(data=code.encode())
    return FunctionDocument(name, ("a",), ("b",), code=(CodeDocument("told", main),), cache=cache)


@pytest.fixture
def node() -> Iterator[Node]:
    driver = ScriptedDriver("told", Script(run=reading), Hosting.THREAD)
    with Node(Settings(backends=(), arena_bytes=1 << 20), [driver]) as node:
        yield node


def ran(node: Node, name: str, tenant: str = DEFAULT_TENANT, version: int | None = None) -> str:
    return str(node.invoke(name, a=b"1", tenant=tenant, version=version).b.text())


@pytest.mark.parametrize("cache", [False, True])
def test_each_tenant_runs_its_own_function_of_a_name(cache: bool, node: Node) -> None:
    tenants = [DEFAULT_TENANT, "a", "b"]
    for tenant in tenants:
        node.register(document("F", f"of {tenant}", cache), tenant=tenant)
    for _ in range(2):  # the second time from kept results, if there are any
        for tenant in tenants:
            assert ran(node, "F", tenant) == f"of {tenant}"
    node.remove(FunctionSpec, "F", tenant="a")
    with pytest.raises(Unknown):
        ran(node, "F", "a")
    assert [ran(node, "F", tenant) for tenant in (DEFAULT_TENANT, "b")] == ["of default", "of b"]
    node.register(document("F", "again", cache), tenant="a")
    assert ran(node, "F", "a") == "again"


def test_no_tenant_invokes_describes_or_composes_what_another_has(node: Node) -> None:
    node.register(document("F", "of a"), tenant="a")
    text = "function F(a) => (b); composition C(x) => (y) { F(a = all x) => (y = b); }"
    node.register(text, tenant="a")
    for tenant in (DEFAULT_TENANT, "b"):
        for name in ("F", "C", "a/F", "a/C", "a\x1fF"):
            with pytest.raises(Unknown):
                ran(node, name, tenant)
            with pytest.raises(Unknown):
                node.describe(name, tenant=tenant)
            with pytest.raises(Unknown):
                node.signature(name, tenant=tenant)
            with pytest.raises(Unknown):
                node.remove(FunctionSpec, name, tenant=tenant)
            assert node.versions(FunctionSpec, name, tenant) == []
        with pytest.raises(InvalidComposition):
            node.register(text, tenant=tenant)
        assert node.records(tenant) == []
    assert node.invoke("C", x=b"1", tenant="a").y.text() == "of a"


def test_a_composition_uses_the_functions_of_its_tenant(node: Node) -> None:
    text = "function F(a) => (b); composition C(x) => (y) { F(a = all x) => (y = b); }"
    for tenant in ("a", "b"):
        node.register(document("F", f"of {tenant}"), text, tenant=tenant)
    node.register(document("F", "newer"), tenant="a")
    assert node.invoke("C", x=b"1", tenant="a").y.text() == "newer"
    assert node.invoke("C", x=b"1", tenant="b").y.text() == "of b"
    with pytest.raises(Conflict):
        node.remove(FunctionSpec, "F", tenant="a")


@pytest.mark.parametrize("name", ["a/F", "../a/F", "a\x1fF", "F\0", ""])
def test_hostile_names_are_registered_nowhere(name: str, node: Node) -> None:
    for tenant in (DEFAULT_TENANT, "b"):
        with pytest.raises(InvalidFunction):
            node.register(document(name, "code"), tenant=tenant)
    assert [node.records(tenant) for tenant in (DEFAULT_TENANT, "a", "b")] == [[], [], []]


@pytest.mark.parametrize("tenant", HOSTILE)
def test_a_node_has_no_tenant_of_such_a_name(tenant: str, node: Node) -> None:
    with pytest.raises(InvalidInput):
        node.register(document("F", "code"), tenant=tenant)
    with pytest.raises(DandelionError):
        ran(node, "F", tenant)
    with pytest.raises(InvalidInput):
        node.records(tenant)


def test_libraries_of_a_name_differ_between_tenants(node: Node) -> None:
    for tenant in (DEFAULT_TENANT, "a"):
        node.register(document("F", "code"), libraries={"lib/l": tenant.encode()}, tenant=tenant)
    for tenant in (DEFAULT_TENANT, "a"):
        [library] = [r for r in node.records(tenant) if isinstance(r, LibraryRecord)]
        assert (library.name, library.size_bytes) == ("lib/l", len(tenant))
    with pytest.raises(InvalidInput):
        node.register(document("F", "code"), libraries={"a\x1flib/l": b"mine"})
    node.remove(LibraryRecord, "lib/l")
    assert len(node.records("a")) == 2


def test_tenants_survive_the_end_of_a_node(tmp_path: Path) -> None:
    settings = Settings(backends=(), arena_bytes=1 << 20, catalog=f"sqlite:{tmp_path / 'catalog'}")
    driver = ScriptedDriver("told", Script(run=reading))
    with Node(settings, [driver]) as node:
        for tenant in (DEFAULT_TENANT, "a"):
            node.register(document("F", f"of {tenant}"), tenant=tenant)
    with Node(settings, [driver]) as node:
        assert ran(node, "F") == "of default"
        assert ran(node, "F", "a") == "of a"
        with pytest.raises(Unknown):
            ran(node, "F", "b")


# --- changes ------------------------------------------------------------------------------------


def library(text: str) -> Batch:
    data = text.encode()
    return Batch([], [], [LibraryRecord("a/F", digest_of(data))], {digest_of(data): data})


def _registered(catalog: Catalog, tenant: str, name: str, **more: bool) -> None:
    Namespace(catalog, tenant).register(Batch([FunctionSpec(name, **more)]))


@pytest.mark.parametrize(("mine", "other"), PAIRS)
def test_changes_of_others_are_none_of_a_tenant(catalog: Catalog, mine: str, other: str) -> None:
    _registered(catalog, mine, "F")
    space = Namespace(catalog, mine)
    before = space.generation
    theirs = Namespace(catalog, other)
    for number in range(3):
        theirs.register(Batch([FunctionSpec("F", cache=bool(number % 2)), FunctionSpec("G")]))
        theirs.register(library(f"{number}"))
    theirs.remove(FunctionSpec, "G")
    assert space.generation == before
    assert theirs.generation == catalog.generation
    for change in (
        lambda: _registered(catalog, mine, "H"),
        lambda: _registered(catalog, mine, "F", cache=True),
        lambda: space.register(library("mine")),
        lambda: space.remove(FunctionSpec, "F"),
        lambda: space.remove(LibraryRecord, "a/F"),
    ):
        change()
        assert space.generation > before
        before = space.generation
        _registered(catalog, other, f"F{before}")
        assert space.generation == before


def test_what_is_not_known_counts_as_a_change_of_all() -> None:
    catalog = open_catalog("memory:")
    _registered(catalog, "a", "F")
    space = Namespace(catalog, "a")
    last = space.generation
    many = [FunctionSpec(f"F{n}") for n in range(300)]
    Namespace(catalog, "b").register(Batch(many))  # too many to remember
    assert space.generation > last
    last = space.generation
    for number in range(1030):
        _registered(catalog, "b", "F", cache=bool(number % 2))
    assert space.generation > last, "it was asked too late"
    assert space.generation == catalog.generation
    assert catalog.changed_since(0) is None
    assert list(catalog.changed_since(catalog.generation) or ()) == []


def test_plans_stay_when_others_register(catalog: Catalog) -> None:
    for tenant in ("one", "two"):
        _registered(catalog, tenant, "F")
    libraries = [Library(Namespace(catalog, t), {}, Settings().caps) for t in ("one", "two")]
    before = [library.plan("F") for library in libraries]
    _registered(catalog, "two", "F", cache=True)
    assert libraries[0].plan("F") is before[0]
    assert libraries[1].plan("F") is not before[1]


def test_versions_of_a_name_are_removed_together() -> None:
    store = MemoryCatalog()
    for tenant in (DEFAULT_TENANT, "acme"):
        own = Namespace(store, tenant)
        for number in range(3):
            own.register(Batch([FunctionSpec("F", cache=number % 2 == 1)]))
        removed = own.remove_together([Removal("function", "F", version) for version in (1, 2)])
        assert [(record.name, record.version) for record in removed] == [("F", 1), ("F", 2)]
        assert own.versions(FunctionSpec, "F") == [3]
        with pytest.raises(Unknown) as caught:
            own.remove_together([Removal("function", "F", 3), Removal("function", "G")])
        assert (caught.value.name, caught.value.nearest) == ("G", None)
        assert own.versions(FunctionSpec, "F") == [3]


@pytest.mark.parametrize("tenant", [DEFAULT_TENANT, "acme"])
def test_only_records_of_a_tenant_are_replaced(catalog: Catalog, tenant: str) -> None:
    own, other = Namespace(catalog, tenant), Namespace(catalog, "other")
    for space in (own, other):
        space.register(everything())
    exchanged = Batch(
        [FunctionSpec("C", (SetSpec("x"),))],
        [CompositionRecord("F", "text", ("x",), (), uses=("C",))],
    )
    replaced = [Removal("function", "F", 1), Removal("composition", "C", 1)]
    own.replace(exchanged, replaced)
    assert seen(own) == {
        ("FunctionSpec", "C"),
        ("CompositionRecord", "F"),
        ("LibraryRecord", "lib/l"),
    }
    assert isinstance(other.find_callable("F"), FunctionSpec)
    with pytest.raises(Conflict) as caught:
        other.replace(Batch([FunctionSpec("G")]), replaced[:1])
    assert caught.value.name == "F"
    with pytest.raises(Unknown):
        other.replace(Batch(), [Removal("function", f"{tenant}/C", 1)])
