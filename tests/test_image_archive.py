"""Joins, branches and effects: the functions of the archive, its two descriptions, the whole."""

from __future__ import annotations

import json
import struct
import threading
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import dandelion.compositions as compositions
import msgspec
import numpy as np
import pytest
from dandelion.compositions.image_archive import bundle, classify, compress, demo, oracle
from dandelion.compositions.image_archive import report as report_module
from dandelion.compositions.image_archive.archive_server import Archive, serve_archive
from dandelion.compositions.image_archive.described import image_archive as described
from dandelion.compositions.image_archive.existing import existing
from dandelion.compositions.image_archive.requests import lookup
from dandelion.compositions.render_logs.loopback import Answer, Request

from dandelion.data import Item, ItemSet, Value
from dandelion.dataflow.graph import Application, Composition, application_ids
from dandelion.dataflow.language import parse
from dandelion.documents import RegistrationDocument
from dandelion.errors import ApplicationFailed, Raised, RequestFailed
from dandelion.frontend.server import BackgroundServer
from dandelion.node import Node, Settings
from dandelion.set_values import item_set

# --- functions --------------------------------------------------------------------------------


def picture(data: bytes, key: int = 5, name: str = "x.pgm") -> ItemSet:
    return ItemSet("picture", (Item(name, key, data),))


def grey(value: int, height: int = 2, width: int = 3) -> bytes:
    return bundle.pgm(np.full((height, width), value, np.uint8))


@pytest.mark.parametrize(
    ("value", "why"), [(0, "dark"), (31, "dark"), (32, ""), (223, ""), (224, "bright")]
)
def test_a_picture_goes_one_of_two_ways(value: int, why: str) -> None:
    given = picture(grey(value))
    made = classify.classify(given)
    if not why:
        assert made == {"kept": given}
        return
    (rejected,) = made["rejected"]
    assert "kept" not in made
    assert (rejected.name, rejected.key) == ("x.pgm", 5)
    assert json.loads(rejected.data) == {"why": why, "mean": value}


def test_headers_may_have_comments() -> None:
    data = b"P5 # made by hand\n2\t# width\n 1 255\n\x80\x80"
    assert classify.grey_pixels(picture(data).only()) == b"\x80\x80"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x89PNG\r\n\x1a\n",
        b"P2\n1 1\n255\n9",
        b"P5\n2 2\n255\n" + bytes(3),
        b"P5\n2 2\n255\n" + bytes(5),
        b"P5\n0 2\n255\n",
        b"P5\n1 1\n65535\n\0\0",
        b"P5\n999999999 999999999\n255\n",
        b"P5\n1 1\n255",
    ],
)
def test_other_files_are_refused_by_id(data: bytes) -> None:
    with pytest.raises(ValueError, match="picture 5"):
        classify.classify(picture(data))


def versions_of(entry: bytes) -> list[bytes]:
    """Read an entry by the format's description."""
    data, found = zlib.decompress(entry), []
    while data:
        (size,) = struct.unpack_from(">I", data)
        found.append(data[4 : 4 + size])
        data = data[4 + size :]
    return found


@dataclass(frozen=True)
class Compressed:
    entry: bytes | None
    outcome: dict[str, Value]


def compressed(pictures: ItemSet, archived: bytes | None) -> Compressed:
    former = item_set("archived", archived)
    made = compress.compress(pictures, former)
    (outcome,) = made["outcome"]
    assert outcome.key == pictures[0].key
    entry = made["entry"][0].data if made["entry"] else None
    return Compressed(entry, json.loads(outcome.data))


def test_versions_are_added_until_nothing_is_new() -> None:
    first = compressed(picture(grey(40)), None)
    assert first.entry is not None
    assert versions_of(first.entry) == [grey(40)]
    second = compressed(picture(grey(41)), first.entry)
    assert second.entry is not None
    assert versions_of(second.entry) == [grey(40), grey(41)]
    assert second.outcome == {"versions": 2, "bytes": len(second.entry), "changed": True}
    third = compressed(picture(grey(41)), second.entry)
    assert third.entry is None
    assert third.outcome == second.outcome | {"changed": False}
    back = compressed(picture(grey(40)), second.entry)  # not new, but not the newest either
    assert back.outcome["versions"] == 3


def test_several_pictures_of_one_id_are_versions_in_their_order() -> None:
    pictures = ItemSet("picture", tuple(Item(str(v), 5, grey(v)) for v in (50, 50, 60, 50)))
    made = compressed(pictures, None)
    assert made.entry is not None
    assert versions_of(made.entry) == [grey(50), grey(60), grey(50)]
    static = item_set("archive", "http://h")
    assert [i.data for i in lookup(pictures, static)["requests"]] == [
        b"GET http://h/entries/5 HTTP/1.1\n\n"
    ]


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (b"not zlib", "damaged"),
        (zlib.compress(bytes(100))[:-5], "cut off"),
        (zlib.compress(struct.pack(">I", 9) + b"short"), "within a version"),
        (zlib.compress(b"\0\0"), "within a version"),
        (zlib.compress(bytes(compress.ENTRY_LIMIT + 1)), "too large"),
    ],
)
def test_damaged_entries_are_refused_by_id(entry: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=f"picture 5.*{words}"):
        compress.compress(picture(grey(9)), item_set("archived", entry))


@pytest.mark.parametrize("status", ["500 Internal Server Error", "403 Forbidden", "204 No"])
def test_only_a_404_means_that_there_is_nothing(status: str) -> None:
    head = ItemSet("headers", (Item("a", 5, f"HTTP/1.1 {status}\n".encode()),))
    with pytest.raises(ValueError, match="picture 5"):
        existing(head, item_set("body", b""))


def test_a_report_of_nothing() -> None:
    made = report_module.report(None, None, None)
    assert json.loads(made["report"]["report.json"]) == {"pictures": []}


# --- descriptions -----------------------------------------------------------------------------


def applied(composition: Composition) -> dict[str, Application]:
    """Return all applications with their sets named after their producers."""
    ids = application_ids(composition)
    names = {name: name for name in composition.inputs}
    for id_, application in zip(ids, composition.applications, strict=True):
        names |= {r.target: f"{id_}.{r.output}" for r in application.returns}
    return {
        id_: msgspec.structs.replace(
            application,
            bindings=tuple(
                msgspec.structs.replace(b, source=names[b.source]) for b in application.bindings
            ),
            returns=tuple(
                msgspec.structs.replace(r, target=names[r.target]) for r in application.returns
            ),
        )
        for id_, application in zip(ids, composition.applications, strict=True)
    }


def test_text_and_python_describe_the_same_graph() -> None:
    (text,) = bundle.document().compositions
    written, printed = parse(text), parse(described.text())
    assert applied(written.compositions[0]) == applied(printed.compositions[0])
    declared, used = (
        {d.name: (d.inputs, d.outputs) for d in m.declarations} for m in (written, printed)
    )
    assert declared == used


def test_a_node_can_have_all_compositions() -> None:
    """A function of another composition with the same name would be a conflict."""
    mine = {function.name for function in bundle.document().functions}
    for name in set(compositions.names()) - {bundle.NAME}:
        others = {function.name for function in compositions.load(name).document().functions}
        assert not mine & others


# --- through a node ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    settings = Settings(
        backends=("null", "process", "http"),
        options={"http": {"allow": "127.0.0.1", "retries": "0"}},
        engines={"process": 1},
        arena_bytes=64 * 2**20,
    )
    with Node(settings) as started:
        assert started.wait_ready(60)
        yield started


def archive_pictures(node: Node, archive: Archive, pictures: Value) -> dict[int, bundle.Row]:
    """Serve an archive and invoke the composition; return the report by picture id."""
    with serve_archive(archive) as url:
        node.register(bundle.document(url))
        outputs = node.invoke(bundle.NAME, pictures=pictures)
    return {row.id: row for row in bundle.read_report(outputs).pictures}


@pytest.mark.parametrize("is_text", [True, False], ids=["text", "python"])
def test_later_runs_find_what_earlier_ones_left(node: Node, is_text: bool) -> None:
    archive, model = Archive(), oracle.Model()
    with serve_archive(archive) as url:
        document = bundle.document(url)
        if is_text:
            node.register(document)
        else:
            node.register(RegistrationDocument(document.functions), described)
        for run, stores in ((1, 4), (2, 2), (2, 0)):
            archive.requests.clear()
            inputs = bundle.example_inputs(4, run)
            outputs = node.invoke(bundle.NAME, **inputs)
            wanted = bundle.expected(inputs, model)
            assert bundle.agrees(bundle.results(outputs), wanted)
            stored = (wanted["report"][:, 1] == oracle.OUTCOMES.index("stored")).sum()
            methods = [method for method, _ in archive.requests]
            assert methods.count("PUT") == stored == stores
            assert methods.count("GET") == methods.count("POST") == 4
    found = {id_: tuple(versions_of(entry)) for id_, entry in archive.entries.items()}
    assert found == model.versions
    assert sorted(map(len, found.values())) == [1, 1, 2, 2]


def kinds(pictures: tuple[Item, ...], *wanted: str) -> list[Item]:
    return [p for p in pictures if p.name.startswith(wanted)]


class Slow(Archive):
    """Takes its time."""

    def answer(self, request: Request) -> Answer:
        threading.Event().wait(0.05)
        return super().answer(request)


def test_effects_have_happened_when_the_invocation_ends(node: Node) -> None:
    archive = Slow()
    pictures = kinds(bundle.pictures(1), "dark", "bright")  # nothing else is waited for
    rows = archive_pictures(node, archive, pictures)
    assert archive.rejected.keys() == rows.keys() == {p.key for p in pictures}
    assert {row.outcome for row in rows.values()} == {"rejected"}
    assert all(json.loads(body)["why"] in ("dark", "bright") for body in archive.rejected.values())


@pytest.mark.parametrize(
    ("wanted", "methods"),
    [(("dark", "bright"), {"POST"}), (("still", "moving"), {"GET", "PUT"}), ((), set())],
)
def test_a_branch_that_no_picture_takes_does_not_run(
    node: Node, wanted: tuple[str, ...], methods: set[str]
) -> None:
    archive = Archive()
    pictures = kinds(bundle.pictures(2), *wanted)
    rows = archive_pictures(node, archive, pictures)
    assert {method for method, _ in archive.requests} == methods
    assert rows.keys() == {p.key for p in pictures}


def entries_of(pictures: Mapping[int, list[bytes]]) -> dict[int, bytes]:
    return {key: oracle.entry(versions) for key, versions in pictures.items()}


def test_the_join_gives_each_picture_its_own_archive(node: Node) -> None:
    """Some pictures have entries, one entry has no picture; no version goes to another one."""
    entries = entries_of({2: [grey(70)], 3: [grey(71), grey(72)], 9: [grey(73)]})
    archive = Archive(entries=dict(entries))
    pictures = [Item(f"{key}.pgm", key, grey(100 + key)) for key in (4, 2, 1, 3)]
    rows = archive_pictures(node, archive, pictures)
    assert {key: row.versions for key, row in rows.items()} == {1: 1, 2: 2, 3: 3, 4: 1}
    assert versions_of(archive.entries[2]) == [grey(70), grey(102)]
    assert versions_of(archive.entries[3]) == [grey(71), grey(72), grey(103)]
    assert archive.entries[9] == entries[9]
    assert ("GET", "/entries/9") not in archive.requests


def test_an_archive_that_has_no_room_is_in_the_report(node: Node) -> None:
    archive = Archive(refuses=frozenset({2}))
    rows = archive_pictures(node, archive, [Item("a", 1, grey(50)), Item("b", 2, grey(50))])
    assert (rows[1].outcome, rows[2].outcome) == ("stored", "failed")
    assert rows[2].detail == "507 Insufficient Storage"
    assert archive.entries.keys() == {1}


def test_a_damaged_entry_fails_the_call_and_stores_nothing(node: Node) -> None:
    archive = Archive(entries={2: b"rubbish"})
    with pytest.raises(ApplicationFailed) as caught:
        archive_pictures(node, archive, [Item("a", 1, grey(50)), Item("b", 2, grey(50))])
    assert (caught.value.application, caught.value.key) == ("compress_versions", 2)
    assert isinstance(caught.value.root, Raised)
    assert "picture 2 is damaged" in caught.value.root.exception
    assert not any(method == "PUT" for method, _ in archive.requests)


def test_a_file_that_is_no_picture_fails_the_call(node: Node) -> None:
    archive = Archive()
    with pytest.raises(ApplicationFailed) as caught:
        archive_pictures(node, archive, [Item("a", 1, grey(50)), Item("b.png", 2, b"\x89PNG")])
    assert (caught.value.application, caught.value.key) == ("classify_picture", 2)
    assert not archive.requests


@pytest.mark.parametrize(
    ("value", "application"), [(0, "HTTP"), (50, "HTTP#2")], ids=["rejected", "kept"]
)
def test_an_archive_that_is_down_fails_the_call(node: Node, value: int, application: str) -> None:
    with serve_archive(Archive()) as url:
        node.register(bundle.document(url))
    with pytest.raises(ApplicationFailed) as caught:  # also if the answer is not read
        node.invoke(bundle.NAME, pictures=[Item("a.pgm", 7, grey(value))])
    assert (caught.value.application, caught.value.key) == (application, 7)
    assert isinstance(caught.value.root, RequestFailed)
    assert caught.value.root.item == "a.pgm"


# --- the demonstration ------------------------------------------------------------------------


def test_demonstration(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    with BackgroundServer(node) as server:
        assert demo.main(["--url", server.url]) == 0
    shown = capsys.readouterr().out
    assert "run 2: as expected" in shown
    assert "unchanged" in shown


def test_demonstration_sees_what_is_wrong(
    node: Node, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "Archive", lambda: Archive(refuses=frozenset({17})))
    with BackgroundServer(node) as server:
        assert demo.main(["--url", server.url]) == 1
    assert "run 1: WRONG" in capsys.readouterr().out
