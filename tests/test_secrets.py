"""The file of secrets, the store, and what is taken out of errors."""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dandelion.data import Item, ItemSet
from dandelion.errors import ApplicationFailed, InvalidInput, Raised, SecretMissing
from dandelion.function import CodeObject, Function, FunctionSpec
from dandelion.secrets import SecretStore, redact
from dandelion.secrets.file import FILE_LIMIT_BYTES, read_secrets
from dandelion.secrets.redaction import MARK, redacted_texts

VALUE = 'pa"ss\\w/rd+ü 1'


def written(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_values_come_from_text_files_and_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_PASSWORD", "from-env")
    other = written(tmp_path / "key", "from-file\n")
    path = written(
        tmp_path / "secrets.toml",
        f'[default]\na = "text"\nb = {{ file = "{other}" }}\nc = {{ env = "SOME_PASSWORD" }}\n'
        '[acme]\na = "other"\n',
    )
    assert read_secrets(path) == {
        "default": {"a": b"text", "b": b"from-file", "c": b"from-env"},
        "acme": {"a": b"other"},
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[default", "not TOML"),
        ("[default]\na = " + "[" * 5000, "not TOML"),
        ("[default]\na = " + "1" * 5000, "not TOML"),
        ("#\n" * FILE_LIMIT_BYTES + '[default]\na = "secretvalue"', "more than"),
        ('[default]\na = { file = "/a\\u0000b" }', "NUL"),
        ('a = "secretvalue"', "not a table"),
        ("[default]\na = 12345678", "not a value"),
        ('[default]\n"a b" = "secretvalue"', "identifier"),
        ('[default]\na = ""', "empty"),
        ('[default]\na = { file = "/nothing" }', "cannot read /nothing"),
        ('[default]\na = { file = "/dev/zero" }', "not a regular file"),
        ('[default]\na = { env = "NO_SUCH_VARIABLE" }', "no variable NO_SUCH_VARIABLE"),
        ('[default]\na = { file = "x", env = "y" }', "not a value"),
        (f'[default]\na = "{"x" * 70_000}"', "more than"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = written(tmp_path / "secrets.toml", text)
    with pytest.raises(InvalidInput, match=said) as caught:
        read_secrets(path)
    assert "secretvalue" not in str(caught.value)
    assert caught.value.__context__ is None or "secretvalue" not in repr(caught.value.__context__)


def test_a_fifo_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "waits", 0o600)
    named = written(tmp_path / "named.toml", f'[default]\na = {{ file = "{tmp_path}/waits" }}')
    for path in (tmp_path / "waits", named):
        with pytest.raises(InvalidInput, match="waits: it is not a regular file"):
            read_secrets(path)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o601])
def test_a_file_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = written(tmp_path / "secrets.toml", '[default]\na = "x"', mode)
    with pytest.raises(InvalidInput, match="other users") as caught:
        read_secrets(path)
    assert f"chmod 600 {path}" in caught.value.hint
    named = written(tmp_path / "named.toml", f'[default]\na = {{ file = "{path}" }}')
    with pytest.raises(InvalidInput, match="other users"):
        read_secrets(named)


def test_reloading_tells_what_changed(tmp_path: Path) -> None:
    path = written(tmp_path / "s.toml", '[default]\na = "1"\nb = "2"\n[acme]\na = "3"')
    store = SecretStore(str(path))
    assert store.names("default") == ["a", "b"]
    assert store.names("none") == []
    assert store.reload() == set()
    path.write_text('[default]\na = "1"\nc = "2"\n[acme]\na = "4"')
    assert store.reload() == {("default", "b"), ("default", "c"), ("acme", "a")}
    path.write_text("[[[")
    with pytest.raises(InvalidInput):
        store.reload()
    assert store.value("acme", "f", "a") == b"4"
    with pytest.raises(SecretMissing, match="'b'"):
        store.value("default", "f", "b")
    for shown in (repr(store), str(store)):
        assert "4" not in shown.replace(str(path), "")


def function(value: str = VALUE) -> Function:
    spec = FunctionSpec("f", secrets={"key": "name"})
    static = {"key": ItemSet("key", (Item("name", 0, value.encode()),))}
    return Function(spec, CodeObject("python"), static=static)


@pytest.mark.parametrize(
    "spelled",
    [
        VALUE,
        repr(VALUE),
        repr(VALUE.encode()),
        json.dumps(VALUE),
        VALUE.encode().hex(),
        VALUE.encode().hex().upper(),
        base64.b64encode(VALUE.encode()).decode(),
        base64.urlsafe_b64encode(VALUE.encode()).decode(),
        "pa%22ss%5Cw/rd%2B%C3%BC%201",
        "pa%22ss%5Cw%2Frd%2B%C3%BC+1",
        "pa%22ss%5Cw%2Frd%2B%C3%BC%201",
        "pa%22ss%5cw/rd%2b%c3%bc%201",
        "pa%22ss%5cw%2frd%2b%c3%bc+1",
        ascii(VALUE),
        json.dumps(VALUE, ensure_ascii=False),
        json.dumps(json.dumps(VALUE)),
        json.dumps({"log": json.dumps({"key": VALUE})}),
        json.dumps(json.dumps(VALUE, ensure_ascii=False)),
        repr(json.dumps(VALUE)),
        json.dumps(repr(VALUE)),
        repr([repr(VALUE.encode()), "'", '"']),
    ],
)
def test_a_secret_is_taken_out_of_errors_and_texts(spelled: str) -> None:
    error = Raised("f", f"ValueError('{spelled}')", f"line {spelled}", f"x{spelled}y")
    whole = ApplicationFailed("c", "a", 0).because(error)
    redact(whole, function())
    seen = f"{whole}{whole.record()}"
    assert spelled not in seen
    assert seen.count(MARK) >= 3
    (text,) = redacted_texts([f"<{spelled}>"], function())
    assert text.startswith("<")
    assert MARK in text


@pytest.mark.parametrize("value", [VALUE, "abcdef", "0123456789", "pass?word>1~~~"])
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
@pytest.mark.parametrize("before", ["", "a", "user:", "user-1:", "user-12:"])
@pytest.mark.parametrize("behind", ["", "\n", "\n\n", "\n\n\n"])
def test_a_secret_is_taken_out_of_base64_of_a_text(
    value: str, encode: Callable[[bytes], bytes], before: str, behind: str
) -> None:
    shown = encode(f"{before}{value}{behind}".encode()).decode()
    (text,) = redacted_texts([shown], function(value))
    head, mark, tail = text.partition(MARK)
    assert mark
    assert (
        base64.urlsafe_b64decode(head[: len(head) // 4 * 4])
        == before.encode()[: len(head) // 4 * 3]
    )
    assert len(head) <= len(before) * 8 // 6 + 1
    assert len(tail.rstrip("=")) <= (len(behind) + 1) * 8 // 6 + 1


@pytest.mark.parametrize(
    "value", ["it's 'a' \\ \"b\"", "it's'it's", 'a"b"c', "line\none\ttwo", "\U0001f600é\u2028"]
)
def test_quotes_around_a_secret_do_not_matter(value: str) -> None:
    texts = [
        write(f"{before}{value}{behind}")
        for write in (repr, ascii, json.dumps, lambda text: repr(text.encode()))
        for before, behind in (("", ""), ("'", ""), ('"', ""), ("", "'\""), ("''", '""'))
    ]
    for text in redacted_texts(
        [*texts, *map(json.dumps, texts), *map(repr, texts)], function(value)
    ):
        assert MARK in text


def test_spellings_are_made_once_for_all_texts() -> None:
    given = ["line"] * 2000
    value = '"é\n' * 10_000
    began = time.process_time()
    assert redacted_texts(given, function(value)) == given
    assert time.process_time() - began < 5


def test_short_values_and_functions_without_secrets_are_left_alone() -> None:
    error = Raised("f", "a", "a a a", "a")
    redact(error, function("a"))
    assert error.traceback == "a a a"
    plain = Function(FunctionSpec("f"), CodeObject("python"))
    assert redacted_texts([VALUE], plain) == [VALUE]


def test_lines_of_a_secret_are_taken_out_too() -> None:
    key = (
        "-----BEGIN KEY-----\n" + base64.b64encode(os.urandom(60)).decode() + "\n-----END KEY-----"
    )
    error = Raised("f", "E", key.split("\n")[1])
    redact(error, function(key))
    assert error.traceback == MARK
