"""One suite for every store of the catalogue; the durable ones must also survive being reopened."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dandelion.catalog import (
    Batch,
    Catalog,
    CompositionRecord,
    LibraryRecord,
    Record,
    Removal,
    kind_of,
    open_catalog,
)
from dandelion.data import SetSpec
from dandelion.errors import (
    Conflict,
    InvalidInput,
    Unknown,
)
from dandelion.function import CodeObject, Digest, FunctionSpec, Limits, StaticItem, digest_of
from tests.conformance.catalog_records import BIG, a_composition, a_function, a_library

Open = Callable[[], Catalog]


@pytest.fixture(params=["memory", "sqlite"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Catalog]:
    url = "memory:" if request.param == "memory" else f"sqlite:{tmp_path / 'catalog'}"
    with contextlib.closing(open_catalog(url)) as opened:
        yield opened


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "catalog"


def only(batch: Batch) -> Digest:
    (digest,) = batch.blobs
    return digest


def test_what_is_registered_is_found(catalog: Catalog) -> None:
    batch = a_function("F", static={"a": ()}, limits=Limits(wall_s=2.5), kind="io")
    batch.compositions = a_composition("C", "F").compositions
    batch.libraries = a_library("path/../lib.cl", b"F").libraries
    library, function, composition = catalog.register(batch)
    assert [r.version for r in (library, function, composition)] == [1, 1, 1]
    assert catalog.find_callable("F") == function
    assert catalog.find_callable("C") == composition
    assert catalog.find_library("path/../lib.cl") == library
    assert isinstance(function, FunctionSpec)
    assert (function.limits.wall_s, function.kind, function.static) == (2.5, "io", {"a": ()})
    assert function.outputs[0] == SetSpec("b", "float32", (-1,))
    assert bytes(catalog.blob(only(batch))) == b"F"
    assert catalog.records() == [composition, function, library]


def test_what_is_not_there_is_not_found(catalog: Catalog) -> None:
    catalog.register(a_function("resize"))
    assert catalog.find_callable("F") is None
    assert catalog.find_callable("resize", 2) is None
    assert catalog.find_library("resize") is None
    assert catalog.versions(FunctionSpec, "F") == []
    assert not catalog.has_blob(digest_of(b"no"))
    with pytest.raises(Unknown):
        catalog.blob(digest_of(b"no"))


@pytest.mark.parametrize("digest", ["", "..", "../catalog.sqlite", "a" * 64, "/etc/passwd", "é"])
def test_strange_digests_are_unknown(catalog: Catalog, digest: str) -> None:
    assert not catalog.has_blob(Digest(digest))
    with pytest.raises(Unknown):
        catalog.blob(Digest(digest))
    spec = FunctionSpec("F", code=(CodeObject("python", main=Digest(digest or "?")),))
    with pytest.raises(Unknown):
        catalog.register(Batch(functions=[spec]))


def test_versions_count_up_and_readers_get_the_newest(catalog: Catalog) -> None:
    for number in range(1, 4):
        (record,) = catalog.register(a_function("F", b"%d" % number))
        assert record.version == number
    assert catalog.versions(FunctionSpec, "F") == [1, 2, 3]
    newest, second = catalog.find_callable("F"), catalog.find_callable("F", 2)
    assert newest is not None
    assert second is not None
    assert (newest.version, second.version) == (3, 2)
    assert catalog.records() == [newest]


def test_registering_is_idempotent(catalog: Catalog) -> None:
    first = catalog.register(a_function("F"))
    generation = catalog.generation
    assert catalog.register(a_function("F")) == first
    assert catalog.versions(FunctionSpec, "F") == [1]
    assert catalog.generation == generation
    catalog.register(a_function("F", b"other"))
    (third,) = catalog.register(a_function("F"))
    assert third.version == 3  # equal to an old one is not equal to the newest


def test_generation_grows_with_every_change(catalog: Catalog) -> None:
    seen = [catalog.generation]
    catalog.register(a_function("F"))
    seen.append(catalog.generation)
    catalog.register(a_function("F", b"2"))
    seen.append(catalog.generation)
    catalog.remove(FunctionSpec, "F", 1)
    seen.append(catalog.generation)
    catalog.remove(FunctionSpec, "F")
    seen.append(catalog.generation)
    assert seen == sorted(set(seen))


def test_versions_are_not_used_again(catalog: Catalog) -> None:
    catalog.register(a_function("F", b"1"))
    catalog.register(a_function("F", b"2"))
    catalog.remove(FunctionSpec, "F", 2)
    (third,) = catalog.register(a_function("F", b"3"))
    assert third.version == 3
    catalog.remove(FunctionSpec, "F")
    (fourth,) = catalog.register(a_function("F", b"1"))
    assert fourth.version == 4


def test_functions_and_compositions_share_names_libraries_do_not(catalog: Catalog) -> None:
    catalog.register(a_function("F"))
    catalog.register(a_composition("C"))
    catalog.register(a_library("F", b"lib"))
    with pytest.raises(Conflict):
        catalog.register(a_composition("F"))
    with pytest.raises(Conflict):
        catalog.register(a_function("C"))


@pytest.mark.parametrize("first", [a_function("N"), a_composition("N"), a_library("N", b"x")])
@pytest.mark.parametrize("second", [a_function("N"), a_composition("N"), a_library("N", b"y")])
def test_a_batch_may_name_a_thing_once(catalog: Catalog, first: Batch, second: Batch) -> None:
    batch = Batch(
        first.functions + second.functions,
        first.compositions + second.compositions,
        first.libraries + second.libraries,
        first.blobs | second.blobs,
    )
    if len(batch.libraries) == 1:
        assert len(catalog.register(batch)) == 2
        return
    with pytest.raises(Conflict):
        catalog.register(batch)
    assert catalog.records() == []


def test_a_bad_batch_changes_nothing(catalog: Catalog) -> None:
    catalog.register(a_composition("C"))
    good, generation = a_function("G", b"good"), catalog.generation
    conflicting = Batch(
        functions=good.functions + a_function("C", b"bad").functions,
        blobs=good.blobs | {digest_of(b"bad"): b"bad"},
    )
    with pytest.raises(Conflict):
        catalog.register(conflicting)
    with pytest.raises(Unknown):
        catalog.register(Batch(functions=good.functions))
    with pytest.raises(InvalidInput):
        catalog.register(Batch(functions=good.functions, blobs={only(good): b"evil"}))
    assert catalog.generation == generation
    assert [r.name for r in catalog.records()] == ["C"]
    assert not catalog.has_blob(only(good))


def test_blobs_are_shared_and_go_with_their_last_user(catalog: Catalog) -> None:
    data, digest = b"shared", digest_of(b"shared")
    catalog.register(a_function("F", data))
    catalog.register(Batch(functions=a_function("G", data).functions))  # without the blob
    catalog.register(Batch(libraries=a_library("L", data).libraries))
    static = FunctionSpec("S", (SetSpec("a"),), static={"a": (StaticItem("item", digest),)})
    catalog.register(Batch(functions=[static]))
    for kind, name in (("F", FunctionSpec), ("G", FunctionSpec), ("S", FunctionSpec)):
        catalog.remove(name, kind)
        assert bytes(catalog.blob(digest)) == data
    catalog.remove(LibraryRecord, "L")
    assert not catalog.has_blob(digest)
    with pytest.raises(Unknown):
        catalog.blob(digest)


def test_each_version_keeps_its_own_blob(catalog: Catalog) -> None:
    catalog.register(a_function("F", b"1"))
    catalog.register(a_function("F", b"2"))
    catalog.remove(FunctionSpec, "F", 1)
    assert not catalog.has_blob(digest_of(b"1"))
    assert bytes(catalog.blob(digest_of(b"2"))) == b"2"


def test_blobs_without_a_record_are_not_stored(catalog: Catalog) -> None:
    batch = a_function("F")
    batch.blobs[digest_of(b"stray")] = b"stray"
    catalog.register(batch)
    assert not catalog.has_blob(digest_of(b"stray"))
    assert catalog.has_blob(digest_of(b"F"))


@pytest.mark.parametrize("data", [b"", b"x", b"y" * 65535, b"z" * 65536, BIG])
def test_blobs_of_all_sizes_are_read_back(catalog: Catalog, data: bytes) -> None:
    batch = a_library("L", b"")
    batch.libraries = [LibraryRecord("L", digest_of(data), len(data))]
    batch.blobs = {digest_of(data): memoryview(data)}
    catalog.register(batch)
    read = catalog.blob(digest_of(data))
    assert read == data
    if isinstance(read, memoryview):
        assert read.readonly


def test_removing(catalog: Catalog) -> None:
    catalog.register(a_function("F", b"1"))
    (second,) = catalog.register(a_function("F", b"2"))
    assert catalog.remove(FunctionSpec, "F", 2) == [second]
    assert catalog.versions(FunctionSpec, "F") == [1]
    assert [r.version for r in catalog.remove(FunctionSpec, "F")] == [1]
    assert catalog.find_callable("F") is None
    assert catalog.records() == []


def test_removing_what_is_not_there(catalog: Catalog) -> None:
    catalog.register(a_function("resize"))
    with pytest.raises(Unknown) as caught:
        catalog.remove(FunctionSpec, "resise")
    assert caught.value.nearest == "resize"
    with pytest.raises(Unknown) as caught:
        catalog.remove(FunctionSpec, "resize", 2)
    assert (caught.value.version, caught.value.nearest) == (2, None)
    with pytest.raises(Unknown):
        catalog.remove(CompositionRecord, "resize")


def test_what_a_composition_uses_stays(catalog: Catalog) -> None:
    catalog.register(a_function("F", b"1"))
    catalog.register(a_function("F", b"2"))
    catalog.register(a_composition("C", "F"))
    catalog.register(a_composition("C", text="without F"))
    with pytest.raises(Conflict):
        catalog.remove(FunctionSpec, "F")  # version 1 of C can still be invoked
    catalog.remove(FunctionSpec, "F", 1)
    with pytest.raises(Conflict):
        catalog.remove(FunctionSpec, "F", 2)
    catalog.remove(CompositionRecord, "C", 1)
    catalog.remove(FunctionSpec, "F")


def test_removing_together(catalog: Catalog) -> None:
    (first,) = catalog.register(a_function("F", b"1"))
    (second,) = catalog.register(a_function("F", b"2"))
    (other,) = catalog.register(a_function("G", b"3"))
    (user,) = catalog.register(a_composition("C", "F"))
    function, composition = Removal("function", "F"), Removal("composition", "C")
    generation = catalog.generation
    with pytest.raises(Conflict):
        catalog.remove_together([Removal("function", "G"), function])
    with pytest.raises(Unknown, match="'H'"):
        catalog.remove_together([composition, function, Removal("function", "H")])
    assert catalog.generation == generation
    assert catalog.records() == [user, second, other]
    assert catalog.versions(FunctionSpec, "F") == [1, 2]
    removed = catalog.remove_together([function, composition, Removal("function", "F", 2)])
    assert removed == [first, second, user]
    assert catalog.records() == [other]
    assert catalog.remove_together([]) == []
    assert not catalog.has_blob(digest_of(b"1"))
    assert bytes(catalog.blob(digest_of(b"3"))) == b"3"
    with pytest.raises(ValueError, match="no kind 'functions'"):
        Removal("functions", "G")


def test_replacing(catalog: Catalog) -> None:
    kept, gone = a_function("kept", b"1"), a_function("F", b"2")
    (first,) = catalog.register(kept)
    catalog.register(gone)
    catalog.register(a_composition("C", "F"))
    before = [Removal("function", n, 1) for n in ("kept", "F")] + [Removal("composition", "C", 1)]
    exchanged = a_function("C", b"3")
    exchanged.functions += kept.functions
    exchanged.compositions += a_composition("F", "C").compositions
    exchanged.blobs = {**exchanged.blobs, **kept.blobs}
    with pytest.raises(Conflict):
        catalog.register(exchanged)
    function, same, composition = catalog.replace(exchanged, before)
    assert same == first
    assert catalog.records() == [composition, function, first]
    assert not catalog.has_blob(digest_of(b"2"))
    generation = catalog.generation
    now = [Removal(kind_of(r), r.name, r.version) for r in (function, same, composition)]
    assert catalog.replace(exchanged, [*before, *now]) == [function, same, composition]
    assert catalog.generation == generation, "nothing has changed"
    assert catalog.replace(kept, now) == [first]
    assert catalog.records() == [first]
    assert catalog.find_callable("F") is None


def test_replacing_is_all_or_nothing(catalog: Catalog) -> None:
    catalog.register(a_function("F", b"1"))
    catalog.register(a_composition("C", "F"))
    before = catalog.records(), catalog.generation
    function = [Removal("function", "F", 1)]
    with pytest.raises(Conflict, match="C"):
        catalog.replace(a_function("G", b"2"), function)
    with pytest.raises(Conflict):
        catalog.replace(a_function("C", b"2"), function)
    with pytest.raises(Unknown):
        catalog.replace(Batch(a_function("F", b"2").functions), function)
    assert (catalog.records(), catalog.generation) == before
    (second,) = catalog.replace(a_function("F", b"2"), function)
    assert catalog.versions(FunctionSpec, "F") == [second.version] == [2]


def test_many_threads_at_once(catalog: Catalog) -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for round_ in range(6):
                shared = b"shared %d" % round_
                batch = a_function(f"F{number}", shared, b"%d %d" % (number, round_))
                (record,) = catalog.register(batch)
                assert catalog.find_callable(f"F{number}") == record
                assert bytes(catalog.blob(digest_of(shared))) == shared
                catalog.remove(FunctionSpec, f"F{number}", record.version)
                catalog.register(a_function("common", shared))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    versions = catalog.versions(FunctionSpec, "common")
    assert versions == list(range(1, len(versions) + 1))
    for number in versions:
        record = catalog.find_callable("common", number)
        assert isinstance(record, FunctionSpec)
        assert all(digest_of(catalog.blob(d)) == d for d in record.blobs())


def test_a_name_is_won_once_among_threads(catalog: Catalog) -> None:
    barrier = threading.Barrier(2)
    won: list[Record] = []
    lost: list[Conflict] = []

    def work(batch: Batch) -> None:
        barrier.wait()
        try:
            won.extend(catalog.register(batch))
        except Conflict as error:
            lost.append(error)

    for number in range(20):
        name = f"N{number}"
        batches = (a_function(name), a_composition(name))
        threads = [threading.Thread(target=work, args=(b,)) for b in batches]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(won) == len(lost) == 20
