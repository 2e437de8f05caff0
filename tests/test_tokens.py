"""The file of tokens, the table that finds them, and the command that writes the file."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import math
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dandelion.cli.main import main
from dandelion.errors import InvalidInput
from dandelion.tokens import Right, TokenFile, TokenRecord, TokenTable, table
from dandelion.tokens.file import read_tokens, write_tokens
from dandelion.tokens.records import LIMITED_TOKENS, check_records, digest_of, new_token
from dandelion.tokens.table import new_buckets

Command = Callable[..., tuple[int, str, str]]


def record(name: str, token: str = "", **fields: object) -> TokenRecord:
    given: dict[str, object] = {"rights": (Right.READ,), **fields}
    return TokenRecord(name=name, sha256=digest_of(token or name), **given)  # type: ignore[arg-type]  # of tests


def table_of(*records: TokenRecord) -> TokenTable:
    return TokenTable(records, new_buckets())


# --- the table ----------------------------------------------------------------------------------


def test_a_token_is_found_by_its_hash() -> None:
    token = new_token()
    found = table_of(record("a"), record("b", token, tenant="acme")).find(token.encode())
    assert found is not None
    assert (found.name, found.tenant, found.rights) == ("b", "acme", (Right.READ,))


@pytest.mark.parametrize("token", [b"", b"a ", b"A", b"x" * 10_000, hashlib.sha256(b"a").digest()])
def test_other_texts_are_not_found(token: bytes) -> None:
    assert table_of(record("a")).find(token) is None
    assert table_of(record("a")).find(b"a") is not None


def test_an_expired_token_is_not_found() -> None:
    now = datetime.now(UTC)
    tokens = table_of(
        record("old", expires=now - timedelta(seconds=1)),
        record("new", expires=now + timedelta(hours=1)),
    )
    assert tokens.find(b"old") is None
    assert tokens.find(b"new") is not None


def test_tokens_are_random_and_long() -> None:
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    assert all(len(token.partition("_")[2]) >= math.ceil(256 / 6) for token in tokens)


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(table.time, "monotonic", lambda: self.now)


def test_a_rate_allows_its_burst_and_then_its_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    tokens = table_of(record("a", rate=10.0, burst=3), record("b"))
    limited, free = tokens.find(b"a"), tokens.find(b"b")
    assert limited is not None
    assert free is not None
    assert [tokens.count(limited) for _ in range(3)] == [0.0, 0.0, 0.0]
    assert tokens.count(limited) == pytest.approx(0.1)
    assert tokens.count(limited) == pytest.approx(0.1), "a refused request was counted"
    clock.now += 0.1
    assert tokens.count(limited) == 0.0
    assert tokens.count(limited) > 0
    clock.now += 60
    assert [tokens.count(limited) for _ in range(4)][:3] == [0.0, 0.0, 0.0]
    assert tokens.count(limited) > 0
    assert not any(tokens.count(free) for _ in range(100))


def test_limits_of_two_tokens_are_independent(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch)
    tokens = table_of(record("a", rate=1.0), record("free"), record("b", rate=1.0))
    for name in (b"a", b"b"):
        grant = tokens.find(name)
        assert grant is not None
        assert tokens.count(grant) == 0.0
        assert tokens.count(grant) > 0


def test_a_limit_goes_on_when_the_table_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch)
    buckets = new_buckets()
    for expected in (0.0, pytest.approx(1.0)):
        tokens = TokenTable([record("a", rate=1.0)], buckets)
        grant = tokens.find(b"a")
        assert grant is not None
        assert tokens.count(grant) == expected


def test_a_slow_token_does_not_leave_its_debt_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch)
    buckets = new_buckets()
    for one in (record("slow", rate=0.001), record("fast", rate=100.0, burst=1)):
        tokens = TokenTable([one], buckets)
        grant = tokens.find(one.name.encode())
        assert grant is not None
        wait_s = tokens.count(grant)
        assert wait_s <= 0.011


def test_a_limit_stays_with_its_token_when_others_are_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Clock(monkeypatch)
    buckets = new_buckets()
    records = [record(name, rate=1.0) for name in ("a", "b", "c")]
    before = TokenTable(records, buckets)
    assert count(before, "a") == count(before, "b") == 0.0
    after = TokenTable(records[1:], buckets)
    assert count(after, "b") > 0
    assert count(after, "c") == 0.0
    again = TokenTable([record("new", rate=1.0), *reversed(records)], buckets)
    assert count(again, "new") == 0.0
    assert all(count(again, name) > 0 for name in ("a", "b", "c"))


def test_limits_are_kept_apart_over_many_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with as many limited tokens as there may be, and those of removed ones in the way."""
    clock = Clock(monkeypatch)
    monkeypatch.setattr(table, "LIMITED_TOKENS", 64)
    monkeypatch.setattr(table, "BUCKETS_BYTES", 12 * 64)
    buckets = new_buckets()
    for turn in range(20):
        names = [f"t{turn * 13 + i}" for i in range(64)]
        records = [record(name, rate=0.01) for name in names]
        first, second = TokenTable(records, buckets), TokenTable(records[::-1], buckets)
        for name in names[64 - 13 if turn else 0 :]:
            assert count(first, name) == 0.0
        assert all(count(second, name) > 0 for name in names)
        clock.now += turn % 3


def count(tokens: TokenTable, name: str) -> float:
    grant = tokens.find(name.encode())
    assert grant is not None
    return tokens.count(grant)


# --- the file -----------------------------------------------------------------------------------


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    records = (
        record("a", expires=datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC), rate=0.5, burst=7),
        record("b@c.d", tenant="acme", rights=tuple(Right), rate=1e-7),
    )
    write_tokens(path, records)
    assert read_tokens(path) == records
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["tokens.toml"]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    write_tokens(path, [record("a")])
    with pytest.raises(InvalidInput):
        write_tokens(path, [record("a"), record("a", "other")])
    assert read_tokens(path) == (record("a"),)
    assert os.listdir(tmp_path) == ["tokens.toml"]


GOOD = f'[[tokens]]\nname = "a"\nrights = ["read"]\nsha256 = "{digest_of("a")}"\n'


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# tokens\n",
        "[[tokens]\n",
        "\xff",
        "other = " + "[" * 5000,
        "other = " + "1" * 5000,
        'other = "x"\n',
        'tokens = "x"\n',
        GOOD.replace("read", "write"),
        GOOD.replace('"read"', ""),
        GOOD.replace('"a"', '"a b"'),
        GOOD.replace('"a"', '""'),
        GOOD.replace(digest_of("a"), "secret"),
        GOOD.replace(digest_of("a"), digest_of("a").upper()),
        GOOD + 'tenant = "a/b"\n',
        GOOD + 'tenant = ""\n',
        GOOD + "expires = 2030-01-01T00:00:00\n",
        GOOD + "expires = 9999-12-31T23:59:59-08:00\n",  # has no form in UTC
        GOOD + "expires = 0001-01-01T00:00:00+14:00\n",
        GOOD + "rate = 0.0\n",
        GOOD + "rate = nan\n",
        GOOD + "rate = inf\n",
        GOOD + "rate = 1e-320\n",  # the time between two requests would be infinite
        GOOD + f"rate = 1.0\nburst = {10**400}\n",
        GOOD + "burst = 5\n",
        GOOD + "rate = 1.0\nburst = 0\n",
        GOOD + 'token = "plain"\n',
        GOOD + GOOD,
        GOOD + GOOD.replace('"a"', '"b"'),
    ],
)
def test_a_malformed_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tokens.toml"
    path.write_bytes(text.encode("latin-1"))
    path.chmod(0o600)
    with pytest.raises(InvalidInput, match=r"tokens\.toml"):
        read_tokens(path)


def test_a_file_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    write_tokens(path, [record("a")])
    for mode in (0o620, 0o602):
        path.chmod(mode)
        with pytest.raises(InvalidInput, match="chmod 600"):
            read_tokens(path)
    path.chmod(0o644)
    assert read_tokens(path)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_only_regular_files_are_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "tokens.toml"
    write_tokens(path, [record("a")])
    file = TokenFile(path)
    path.unlink()
    if kind == "fifo":
        os.mkfifo(path, 0o600)
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(InvalidInput, match="regular file"):
        read_tokens(path)
    assert not file.look()
    path.unlink()
    write_tokens(path, [record("b")])
    assert file.look()


def test_a_path_with_a_nul_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot read the tokens: the path has a NUL"):
        read_tokens(tmp_path / "a\0b")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="token new"):
        TokenFile(tmp_path / "none.toml")


def test_too_many_limits_are_refused() -> None:
    check_records([record(f"t{i}", rate=1.0) for i in range(LIMITED_TOKENS)])
    with pytest.raises(InvalidInput):
        check_records([record(f"t{i}", rate=1.0) for i in range(LIMITED_TOKENS + 1)])


def test_a_changed_file_is_read_and_a_damaged_one_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "tokens.toml"
    write_tokens(path, [record("a")])
    file = TokenFile(path)
    assert not file.look()
    write_tokens(path, [record("b")])
    assert file.look()
    assert [r.name for r in file.records] == ["b"]
    with caplog.at_level(logging.ERROR, "dandelion.tokens"):
        path.write_text("damaged")
        assert not file.look()
        assert not file.look()
        path.unlink()
        assert not file.look()
    assert len(caplog.records) == 2
    assert [r.name for r in file.records] == ["b"]
    write_tokens(path, [])
    assert file.look()
    assert not file.records


def test_a_file_is_read_when_the_reason_of_a_failure_has_passed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tokens.toml"
    write_tokens(path, [record("a")])
    file = TokenFile(path)
    write_tokens(path, [record("b")])
    path.chmod(0o660)
    with caplog.at_level(logging.ERROR, "dandelion.tokens"):
        assert not file.look()
        assert not file.look()
        path.chmod(0o600)
        assert file.look()
        write_tokens(path, [record("c")])
        with monkeypatch.context() as patched:
            patched.setattr("dandelion.tokens.watch.read_tokens", no_descriptors)
            assert not file.look()
            assert not file.look()
        assert file.look()
    assert [r.name for r in file.records] == ["c"]
    assert len(caplog.records) == 2
    assert not file.look()


def no_descriptors(path: Path) -> tuple[TokenRecord, ...]:
    raise InvalidInput(str(path), "cannot read the tokens: Too many open files")


def test_a_file_behind_a_link_is_changed_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    file, link = tmp_path / "real" / "tokens.toml", tmp_path / "tokens.toml"
    write_tokens(file, [record("a")])
    link.symlink_to(file)
    write_tokens(link, [record("b")])
    assert link.is_symlink()
    assert [r.name for r in read_tokens(file)] == ["b"]
    assert [entry.name for entry in (tmp_path / "real").iterdir()] == ["tokens.toml"]


def test_a_link_to_itself_is_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loop = tmp_path / "tokens.toml"
    loop.symlink_to(loop)
    assert main(["token", "new", "a", "--rights", "read", "--tokens", str(loop)]) == 1
    assert capsys.readouterr().err.startswith(f"dandelion: {loop}: ")
    assert loop.is_symlink()


def test_a_file_of_another_user_stays_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when root adds a token to the file of the node's user."""
    path = tmp_path / "tokens.toml"
    write_tokens(path, [record("a")])
    owner = path.stat()
    given = []
    monkeypatch.setattr(os, "geteuid", lambda: owner.st_uid + 1)
    monkeypatch.setattr(os, "fchown", lambda _, user, group: given.append((user, group)))
    write_tokens(path, [record("b")])
    assert given == [(owner.st_uid, owner.st_gid)]
    assert [r.name for r in read_tokens(path)] == ["b"]


def test_watching_calls_back_at_once_when_it_is_hurried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dandelion.tokens.watch.LOOK_S", 1000.0)
    path = tmp_path / "tokens.toml"
    write_tokens(path, [record("a")])

    async def watch() -> list[str]:
        file = TokenFile(path)
        changed = asyncio.get_running_loop().create_future()
        watching = asyncio.create_task(file.watch(changed.set_result))
        write_tokens(path, [record("b")])
        file.read_now()
        records = await asyncio.wait_for(changed, 20)
        watching.cancel()
        return [r.name for r in records]

    assert asyncio.run(watch()) == ["b"]


def test_watching_goes_on_after_a_callback_that_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dandelion.tokens.watch.LOOK_S", 1000.0)
    path = tmp_path / "tokens.toml"
    write_tokens(path, [record("a")])

    async def watch() -> list[str]:
        file = TokenFile(path)
        called: asyncio.Queue[str] = asyncio.Queue()

        def changed(records: tuple[TokenRecord, ...]) -> None:
            called.put_nowait(records[0].name)
            if records[0].name == "b":
                raise RuntimeError("a fault of the test")

        watching = asyncio.create_task(file.watch(changed))
        names = []
        for name in ("b", "c"):
            write_tokens(path, [record(name)])
            file.read_now()
            names.append(await asyncio.wait_for(called.get(), 20))
        watching.cancel()
        return names

    with caplog.at_level(logging.ERROR, "dandelion.tokens"):
        assert asyncio.run(watch()) == ["b", "c"]
    (logged,) = caplog.records
    assert logged.exc_info


# --- the command --------------------------------------------------------------------------------


@pytest.fixture
def command(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> Command:
    def run(*words: str) -> tuple[int, str, str]:
        code = main(["token", *words, "--tokens", str(tmp_path / "tokens.toml")])
        out, error = capfdbinary.readouterr()
        return code, out.decode(), error.decode()

    return run


def test_a_token_is_made_listed_and_removed(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    code, token, _ = command("new", "ci", "--tenant", "acme", "--rights", "invoke,read")
    assert code == 0
    assert command("new", "ops", "--rights", "operate", "--rate", "5", "--burst", "9")[0] == 0
    ci, ops = read_tokens(path)
    assert (ci.tenant, ci.rights) == ("acme", (Right.INVOKE, Right.READ))
    assert (ops.rate, ops.burst) == (5.0, 9)
    assert ci.sha256 == digest_of(token.strip())
    assert token.strip() not in path.read_text()
    code, text, _ = command("list")
    assert "acme" in text
    assert ci.sha256 not in text
    assert command("remove", "ci")[0] == 0
    assert [r.name for r in read_tokens(path)] == ["ops"]
    assert command("remove", "ops")[0] == 0
    assert read_tokens(path) == ()
    assert command("new", "last", "--rights", "read")[0] == 0
    assert [r.name for r in read_tokens(path)] == ["last"]


def test_json_has_the_token_once(command: Command) -> None:
    _, text, _ = command("new", "ci", "--rights", "read", "--expires-days", "7", "--json")
    token = json.loads(text)["token"]
    _, listed, _ = command("list", "--json")
    assert token not in listed
    [shown] = json.loads(listed)["tokens"]
    assert shown["name"] == "ci"
    assert shown["expires"]


@pytest.mark.parametrize(
    "words",
    [
        ("new", "a b", "--rights", "read"),
        ("new", "a", "--rights", "reed"),
        ("new", "a", "--rights", ""),
        ("new", "a", "--rights", "read", "--tenant", "x/y"),
        ("new", "a", "--rights", "read", "--burst", "3"),
        ("new", "a", "--rights", "read", "--rate", "-1"),
        ("new", "a", "--rights", "read", "--expires-days", "1e99"),
        ("new", "a", "--rights", "read", "--expires-days", "-1"),
        ("new", "a", "--rights", "read", "--expires-days", "0"),
        ("new", "a", "--rights", "read", "--expires-days", "nan"),
        ("new", "taken", "--rights", "read"),
        ("remove", "none"),
    ],
)
def test_what_cannot_be_done_changes_nothing(
    command: Command, tmp_path: Path, words: tuple[str, ...]
) -> None:
    command("new", "taken", "--rights", "read")
    before = (tmp_path / "tokens.toml").read_bytes()
    code, out, error = command(*words)
    assert code == 1
    assert not out
    assert error
    assert (tmp_path / "tokens.toml").read_bytes() == before


def test_tokens_that_are_made_at_once_are_all_kept(tmp_path: Path) -> None:
    path = str(tmp_path / "tokens.toml")
    command = [sys.executable, "-m", "dandelion", "token", "new", "--rights", "read"]
    names = [f"t{i}" for i in range(4)]
    made = [
        subprocess.Popen([*command, name, "--tokens", path], stdout=subprocess.DEVNULL)
        for name in names
    ]
    assert [process.wait(60) for process in made] == [0] * len(names)
    assert sorted(r.name for r in read_tokens(Path(path))) == names
