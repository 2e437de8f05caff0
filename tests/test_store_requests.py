"""What the backends of stores share: requests, settings, credentials, matching, listings."""

from __future__ import annotations

import importlib
import pickle
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dandelion.data import Item
from dandelion.errors import (
    BackendUnavailable,
    InvalidFunction,
    InvalidInput,
    RequestRefused,
    TooMany,
)
from dandelion.function import CodeObject, Function, FunctionSpec, Limits

from .store_calls import run, store_call, store_driver, store_engine, texts

request = importlib.import_module("dandelion.backends.stores.request")
listing = importlib.import_module("dandelion.backends.stores.listing")
credentials = importlib.import_module("dandelion.backends.stores.credentials")
Failed = importlib.import_module("dandelion.backends.stores.failures").ItemFailed
Refused = importlib.import_module("dandelion.backends.stores.failures").ItemRefused


def test_a_request_has_a_store_a_path_and_options() -> None:
    read = request.read_request(b"pictures my cats/1.png\r\nRANGE : 0-9\r\n\r\n", ("range",))
    assert (read.store, read.path) == ("pictures", "my cats/1.png")
    assert read.options == {"range": "0-9"}


@pytest.mark.parametrize("text", ["0", "11", "0000000001" + "9" * 8, "1" * 5000, "-1", "1.0", ""])
def test_a_number_that_is_none_or_too_large_is_refused(text: str) -> None:
    read = request.read_request(f"s p\nlimit: {text}".encode(), ("limit",))
    with pytest.raises(Refused, match="expected 1 to 10"):
        read.number("limit", 5, 10)
    assert request.read_request(b"s p\nlimit: 010", ("limit",)).number("limit", 5, 10) == 10


@pytest.mark.parametrize(
    ("data", "hint"),
    [
        (b"", "STORE PATH"),
        (b"\npath", "STORE PATH"),
        (b"s \xff", "UTF-8"),
        (b"s p\nrang: 1", "did you mean 'range'"),
        (b"s p\nrange 1", "OPTION: VALUE"),
        (b"s p\nrange: 0-1\nrange: 0-2", "twice"),
        (b"s " + b"p" * 9000, "9002 bytes"),
    ],
)
def test_a_request_that_is_not_valid_says_what_was_expected(data: bytes, hint: str) -> None:
    with pytest.raises(Refused, match=hint):
        request.read_request(data, ("range",))


@pytest.mark.parametrize(
    ("text", "size", "part"),
    [("0-0", 5, (0, 1)), ("1-3", 5, (1, 4)), ("3-", 5, (3, 5)), ("-2", 5, (3, 5)),
     ("-9", 5, (0, 5)), ("2-99", 5, (2, 5))],
)  # fmt: skip
def test_ranges_are_those_of_http(text: str, size: int, part: tuple[int, int]) -> None:
    assert request.read_range(text).within(size) == part


@pytest.mark.parametrize("text", ["", "-", "a-b", "3-1", "-0", "1-2,4-5", "٣-", "1" * 20 + "-"])
def test_ranges_that_are_none(text: str) -> None:
    with pytest.raises(Refused):
        request.read_range(text)


def test_a_name_is_filled_in_once() -> None:
    target = request.read_request(b"s a/{name}.{key}", ())
    assert target.filled(Item("{key}x", 7)).path == "a/{key}x.7"
    assert target.filled(Item("b\nttl: 1", 7)).path == "a/b\nttl: 1.7"
    assert target.filled(Item("b", 7)).options == {}


@pytest.mark.parametrize("name", ["b ", " b", "  b  ", "b\u00a0"])
@pytest.mark.parametrize("path", ["{name}", "a/{name}", "{name}/c"])
def test_a_target_that_is_filled_is_read_back_as_it_is(name: str, path: str) -> None:
    filled = request.read_request(f"s {path}".encode(), ()).filled(Item(name, 7))
    assert request.read_request(f"s {filled.path}".encode(), ()) == filled


def test_what_is_written_can_be_read_whatever_its_name(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with store_engine("files", s_folder=str(tmp_path)) as e:
            contents = {"a ": b"1", " b": b"2", "c": b"3"}
            done = await e.run(store_call("files", "FileWrite", contents, {"t": "s q/{name}"}))
            assert texts(done)["a "] == b"s q/a"
            assert texts(await e.run(store_call("files", "FileRead", texts(done)))) == contents
            for given in ({"a ": b"1", "a": b"2"}, {" ": b""}):
                with pytest.raises(RequestRefused):
                    await e.run(store_call("files", "FileWrite", given, {"t": "s {name}"}))

    run(scenario())


@pytest.mark.parametrize("backend", ["s3", "kv", "files"])
@pytest.mark.parametrize(
    ("option", "where", "hint"),
    [
        ("concurency", "concurency", "did you mean 'concurrency'"),
        ("store.a.tenant", "store.a.tenant", "did you mean 'tenants'"),
        ("store.a b.prefix", "store.a b.prefix", "STORE"),
        ("store..prefix", "store..prefix", "STORE"),
        ("concurrency", "concurrency", "int"),
        ("store.a.concurrency", "store.a.concurrency", "int"),
        ("store.a.read_only", "store.a.read_only", "bool"),
    ],
)
def test_options_that_are_wrong_are_named(backend: str, option: str, where: str, hint: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        importlib.import_module(f"dandelion.backends.{backend}").driver({option: "x"})
    assert caught.value.where == f"options.{backend}.{where}"
    assert hint.lower() in str(caught.value).lower()


GOOD = {
    "s3": {"bucket": "b", "endpoint": "https://s3.example.org", "anonymous": "yes"},
    "kv": {"address": "redis://127.0.0.1:1/2"},
    "files": {"folder": "/tmp"},
}


@pytest.mark.parametrize(
    ("backend", "changes", "where"),
    [
        ("s3", {"bucket": ""}, "bucket"),
        ("s3", {"endpoint": ""}, "endpoint"),
        ("s3", {"endpoint": "ftp://a"}, "endpoint"),
        ("s3", {"endpoint": "https://user:word@a"}, "endpoint"),
        ("s3", {"anonymous": "no"}, ""),
        ("s3", {"secret_file": "/x", "key_id_file": "/y"}, "anonymous"),
        ("s3", {"prefix": "a"}, "prefix"),
        ("s3", {"prefix": "a/../b/"}, "prefix"),
        ("s3", {"part_bytes": "100"}, "part_bytes"),
        ("s3", {"secret": "x"}, "secret"),
        ("kv", {"address": "redis://:word@h"}, "address"),
        ("kv", {"address": "http://h"}, "address"),
        ("kv", {"address": "redis://h:99999"}, "address"),
        ("kv", {"address": "unix:relative"}, "address"),
        ("kv", {"password": "x"}, "password"),
        ("kv", {"value_bytes": "0"}, "value_bytes"),
        ("files", {"folder": "relative"}, "folder"),
        ("files", {"prefix": "/a/"}, "prefix"),
    ],
)
def test_stores_that_cannot_work_are_refused(
    backend: str, changes: dict[str, str], where: str
) -> None:
    driver = importlib.import_module(f"dandelion.backends.{backend}").driver
    good = {f"store.a.{name}": text for name, text in GOOD[backend].items()}
    driver(good)
    with pytest.raises(InvalidInput) as caught:
        driver({**good, **{f"store.a.{name}": text for name, text in changes.items()}})
    assert caught.value.where == f"options.{backend}.store.a.{where}".rstrip(".")
    assert "word" not in str(caught.value).replace("password", "")


@pytest.mark.parametrize("backend", ["s3", "kv", "files"])
def test_a_backend_without_stores_says_how_to_switch_it_on(backend: str) -> None:
    with pytest.raises(BackendUnavailable, match=rf"--options {backend}\.store\.NAME"):
        store_driver(backend).factory().probe()


@pytest.mark.parametrize("backend", ["s3", "kv"])
def test_a_missing_library_is_named(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BackendUnavailable, match=rf"dandelion-engine\[{backend}\]"):
        store_driver(backend).factory().probe()


@pytest.mark.parametrize("backend", ["s3", "kv", "files"])
def test_only_fitting_functions_are_accepted(backend: str) -> None:
    driver = store_driver(backend)
    for spec in driver.platform_functions:
        driver.checker().check([Function(spec, spec.code[0])])
        assert spec.kind == "io"
        sets = FunctionSpec("f", spec.inputs, (), code=spec.code, kind="io")
        pure = FunctionSpec("f", spec.inputs, spec.outputs, code=spec.code)
        other = CodeObject(backend, options={"operation": "gett", "x": "1"})
        for wrong in (sets, pure, FunctionSpec("f", spec.inputs, code=(other,), kind="io")):
            with pytest.raises(InvalidFunction):
                driver.checker().check([Function(wrong, wrong.code[0])])


def test_which_functions_may_be_repeated() -> None:
    specs = [f for b in ("s3", "kv", "files") for f in store_driver(b).platform_functions]
    assert {f.name for f in specs if not f.idempotent} == {"KvAdd", "KvIncrement"}


# --- credentials ------------------------------------------------------------------------------


def test_a_secret_does_not_show_itself() -> None:
    secret = credentials.Secret("hidden")
    assert secret.reveal() == "hidden"
    assert "hidden" not in f"{secret!r} {secret} {[secret]} {vars(credentials)}"
    with pytest.raises(TypeError):
        pickle.dumps(secret)


def test_secrets_come_from_files_and_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "secret"
    file.write_text("  from a file\n")
    monkeypatch.setenv("TEST_SECRET", "from a variable")
    assert credentials.read_secret("w", "s3", str(file), "").reveal() == "from a file"
    assert credentials.read_secret("w", "s3", "", "TEST_SECRET").reveal() == "from a variable"
    assert credentials.read_secret("w", "s3", "", "") is None
    with pytest.raises(InvalidInput):
        credentials.read_secret("w", "s3", str(file), "TEST_SECRET")


@pytest.mark.parametrize("content", [None, b"", b" \n", b"\xff", b"x" * 70_000])
def test_secrets_that_cannot_be_read_are_named(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "secret"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(BackendUnavailable, match="w_file"):
        credentials.read_secret("w", "s3", str(file), "")
    with pytest.raises(BackendUnavailable, match="w_env"):
        credentials.read_secret("w", "s3", "", "TEST_SECRET_THAT_IS_MISSING")


# --- matching contents and targets --------------------------------------------------------------


def test_contents_find_their_targets_by_name_and_key(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with store_engine("files", s_folder=str(tmp_path)) as e:
            contents = [Item("a", 1, b"A1"), Item("a", 2, b"A2"), Item("b", 1, b"B1")]
            to = [Item("b", 1, b"s z"), Item("a", 2, b"s y"), Item("a", 1, b"s x")]
            done = await e.run(store_call("files", "FileWrite", contents, to))
            assert done[0] is not None
            assert [(i.name, i.key, i.data) for i in done[0]] == [
                ("a", 1, b"s x"), ("a", 2, b"s y"), ("b", 1, b"s z"),
            ]  # fmt: skip
        assert {n: (tmp_path / n).read_bytes() for n in "xyz"} == {
            "x": b"A1", "y": b"A2", "z": b"B1",
        }  # fmt: skip

    run(scenario())


@pytest.mark.parametrize(
    ("to", "error"),
    [
        (None, InvalidInput),
        ([Item("a", 0, b"s x"), Item("a", 0, b"s y")], InvalidInput),
        ([Item("a", 0, b"s x"), Item("c", 0, b"s y")], RequestRefused),
        ([Item("t", 0, b"s same")], RequestRefused),
        ([Item("t", 0, b"s {name}/x")], RequestRefused),
        ([Item("t", 0, b"other {name}")], RequestRefused),
    ],
)
def test_nothing_is_written_if_one_target_is_wrong(
    tmp_path: Path, to: list[Item] | None, error: type[Exception]
) -> None:
    async def scenario() -> None:
        async with store_engine("files", s_folder=str(tmp_path)) as e:
            contents = [Item("a", 0, b"1"), Item("..", 0, b"2")]
            with pytest.raises(error):
                await e.run(store_call("files", "FileWrite", contents, to))
        assert list(tmp_path.iterdir()) == []

    run(scenario())


def test_a_call_without_items_does_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with store_engine("files", s_folder=str(tmp_path)) as e:
            assert await e.run(store_call("files", "FileRead", None)) == (None, None)
            to = {"to": "s {name}"}
            assert await e.run(store_call("files", "FileWrite", None, to)) == (None,)

    run(scenario())


def test_a_store_is_there_for_its_tenants_alone(tmp_path: Path) -> None:
    def call(tenant: str, store: str) -> object:
        return store_call("files", "FileRead", {"r": f"{store} a"}, tenant=tenant)

    async def scenario() -> None:
        for name in ("one", "other", "a"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "a").write_text(name)
        (tmp_path / "one" / "one").mkdir()
        (tmp_path / "one" / "one" / "a").write_text("one's own")
        options = {
            "store.own.folder": str(tmp_path / "other"),
            "store.both.folder": str(tmp_path / "one"),
            "store.both.tenants": "one,other",
            "store.each.folder": str(tmp_path / "one"),
            "store.each.tenants": "*",
            "store.each.prefix": "{tenant}/",
        }
        driver = importlib.import_module("dandelion.backends.files").driver(options)
        e = driver.factory().engine("files")
        try:
            for tenant, store, wanted in [
                ("default", "own", b"other"), ("one", "both", b"one"), ("other", "both", b"one"),
                ("one", "each", b"one's own"),
            ]:  # fmt: skip
                assert texts(await e.run(call(tenant, store))) == {"r": wanted}
            assert texts(await e.run(call("two", "each")), 1) == {"r": b"each a"}
            for tenant, store in [("one", "own"), ("default", "both"), ("", "own"), ("one", "no")]:
                with pytest.raises(RequestRefused) as caught:
                    await e.run(call(tenant, store))
                hidden = {"own", "both"} - {"both" if tenant == "one" else "own"}
                listed = str(caught.value).partition("it may use")[2]
                assert not any(name in listed for name in hidden if tenant != "default")
        finally:
            await e.close()

    run(scenario())


def test_the_number_of_results_is_limited(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / str(number)).touch()

    async def scenario() -> None:
        async with store_engine("files", s_folder=str(tmp_path)) as e:
            call = store_call("files", "FileList", {"r": "s"}, limits=Limits(output_items=39))
            with pytest.raises(TooMany, match="'r'"):
                await e.run(call)

    run(scenario())


# --- listings -----------------------------------------------------------------------------------


def test_entries_are_requests_with_their_paths_as_names() -> None:
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    paths = ["a", "x\nrange: 0-1", " b", "c" * 300, "d", "e"]
    found = [listing.Found(path, n, now, '"t"') for n, path in enumerate(paths)]
    made = listing.listed(
        Item("q", 9), request.read_request(b"s p\nlimit: 5", ("limit",)), found, 5
    )
    entries = [item for position, item in made if position == 0]
    assert [entry.data for entry in entries] == [b"s a", b"s " + b"c" * 300, b"s d"]
    assert {entry.key for entry in entries} == {9}
    assert len(entries[1].name.encode()) == 255
    assert listing.item_name("c" * 301) != entries[1].name
    details = [item.data for position, item in made if position == 1]
    assert details[0] == b'size:0\nmodified:2026-01-02T03:04:05Z\netag:"t"\n'
    ((rest),) = [item for position, item in made if position == 2]
    assert (rest.name, rest.key, rest.data) == ("q", 9, b"s p\nafter: d\nlimit: 5")


@pytest.mark.parametrize("space", ["\u00a0", "\u2003", "\u3000"])
def test_a_listing_goes_on_behind_a_path_that_ends_with_another_space(space: str) -> None:
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    found = [listing.Found(path, 1, now) for path in ("a", f"b{space}", "c")]
    asked = request.read_request(b"s p", ("limit", "after"))
    made = listing.listed(Item("q", 9), asked, found, 2)
    (rest,) = [item for position, item in made if position == 2]
    behind = request.read_request(rest.data, ("limit", "after")).options["after"]
    assert behind == f"b{space}"


def test_a_listing_goes_on_behind_a_path_that_a_request_can_have() -> None:
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    found = [listing.Found(path, 1, now) for path in ("a", "b\nlimit: 9", "c ", "d")]
    asked = request.read_request(b"s p", ("limit",))
    made = listing.listed(Item("q", 9), asked, found, 3)
    (rest,) = [item for position, item in made if position == 2]
    assert rest.data == b"s p\nafter: a"
    with pytest.raises(Failed, match="larger limit"):
        listing.listed(Item("q", 9), asked, found[1:], 2)
    assert listing.listed(Item("q", 9), asked, found[1:3], 2) == []
