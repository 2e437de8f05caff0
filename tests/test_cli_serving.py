"""Settings of the command line, and ``dandelion serve`` as a process."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from dandelion.cli import serve
from dandelion.cli.settings import load_settings, setting_help, unknown_variables
from dandelion.errors import InvalidInput
from dandelion.frontend.logs import TextLines
from dandelion.frontend.server import BackgroundServer, hangup_in_terminal
from dandelion.node import Node, Settings
from tests.cli_commands import ROOT, Command, given_command
from tests.node.served import DOCUMENT, SETTINGS, GateDriver

command = pytest.fixture()(given_command)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with Node(SETTINGS, [GateDriver()]) as node:
        node.register(DOCUMENT)
        assert node.wait_ready()
        with BackgroundServer(node, drain_s=5) as server:
            yield server.url


def test_flags_above_environment_above_file(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text(
        'host = "0.0.0.0"\nport = 1\nmax_waiting = 5\narena_bytes = "64MiB"\n'
        'backends = ["null"]\n[options.http]\nallow = "example.org"\n[engines]\nprocess = 2\n'
    )
    environment = {"DANDELION_PORT": "2", "DANDELION_MAX_WAITING": "6", "DANDELION_URL": "x"}
    settings = load_settings(file, environment, {"port": ["3"]})
    assert (settings.host, settings.port, settings.max_waiting) == ("0.0.0.0", 3, 6)
    assert settings.arena_bytes == 64 << 20
    assert settings.backends == ("null",)
    assert settings.options == {"http": {"allow": "example.org"}}
    assert settings.engines == {"process": 2}
    assert load_settings(None, {}, {}) == Settings()


def test_settings_as_text() -> None:
    flags = {
        "backends": ["null, cuda|opencl"],
        "engines": ["process=2,null=1"],
        "options": ["http.allow=a.org", "http.timeout_s=3"],
        "body_limit_bytes": ["1GiB", "2GiB"],
        "default_deadline_s": ["1.5"],
        "hosts": ["a.example, b.example"],
        "cors_origins": ["https://a.example"],
        "body_rate_bytes": ["1KiB"],
        "head_timeout_s": ["2.5"],
    }
    settings = load_settings(None, {}, flags)
    assert settings.backends == ("null", "cuda|opencl")
    assert settings.engines == {"process": 2, "null": 1}
    assert settings.options == {"http": {"allow": "a.org", "timeout_s": "3"}}
    assert (settings.body_limit_bytes, settings.default_deadline_s) == (2 << 30, 1.5)
    assert settings.hosts == ("a.example", "b.example")
    assert settings.cors_origins == ("https://a.example",)
    assert (settings.body_rate_bytes, settings.head_timeout_s) == (1024, 2.5)


@pytest.mark.parametrize(
    ("text", "flags", "where"),
    [
        ("porrt = 3", {}, "porrt"),
        ('port = "many"', {}, "port"),
        ("port = [", {}, "node.toml"),
        ("[options.http]\nallow = true", {}, "options.http.allow"),
        ("[options]\nhttp = 3", {}, "options.http"),
        ("options = 3", {}, "options"),
        ("", {"port": ["99999"]}, "--port"),
        ("", {"keep_traces": ["-1"]}, "--keep-traces"),
        ("", {"max_waiting": ["0"]}, "--max-waiting"),
        ("", {"default_deadline_s": ["nan"]}, "--default-deadline-s"),
        ("max_wall_s = -1", {}, "max_wall_s"),
        ("", {"port": ["many"]}, "--port"),
        ("", {"arena_bytes": ["3 potatoes"]}, "--arena-bytes"),
        ("", {"engines": ["process"]}, "--engines"),
        ("", {"engines": ["process=two"]}, "--engines: process: expected"),
        ("[engines]\nnull = 1\nprocess = 5000", {}, "engines: process: expected"),
        ("cluster_reserve = {gpu = []}", {}, "cluster_reserve: gpu: expected"),
        ("", {"options": ["allow=x"]}, "--options"),
        ("", {"options": ["http.allow=a.org,b.org"]}, "--options"),
        ("max_connections = 0", {}, "max_connections"),
        ("", {"head_timeout_s": ["0"]}, "--head-timeout-s"),
        ('[tenants.alpha]\narena_bytes = "64 MB"', {}, "tenants.alpha.arena_bytes"),
        ("[tenants.alpha]\nwait = 2", {}, "tenants.alpha.wait"),
        ("[tenants.alpha]\nweight = -1", {}, "tenants.alpha"),
        ("[tenants]\nalpha = 3", {}, "tenants.alpha"),
    ],
)
def test_bad_settings(tmp_path: Path, text: str, flags: dict[str, list[str]], where: str) -> None:
    file = tmp_path / "node.toml"
    file.write_text(text)
    with pytest.raises(InvalidInput) as caught:
        load_settings(file, {}, flags)
    assert where in str(caught.value)


def test_files_are_utf_8_in_any_locale(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("node.toml", "secrets.toml", "headers")]
    files[0].write_text('host = "::1"  # für alle\n', "utf-8")
    files[1].write_text(f'[secrets]  # für alle\nacme = "{"x" * 32}"\n', "utf-8")
    files[2].write_text("# für alle\na: b\n", "utf-8")
    program = """if True:
        import locale, sys
        from pathlib import Path
        from dandelion.cli.settings import load_settings
        from dandelion.node.callback_sender import _secrets
        from dandelion.node.spans import read_headers
        node, secrets, headers = map(Path, sys.argv[1:])
        print(load_settings(node, {}, {}).host, *_secrets(str(secrets)), *read_headers(headers))
        print(locale.getencoding())
        """
    plain = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, files)],
        env=os.environ | plain,
        capture_output=True,
        text=True,
        check=True,
    )
    found, encoding = done.stdout.splitlines()
    assert found == "::1 acme a"
    assert encoding != "UTF-8"


def test_sizes_of_tenants_have_units(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('[tenants.alpha]\narena_bytes = "64MiB"\ncall_device_bytes = 4096\n')
    alpha = load_settings(file, {}, {}).tenants["alpha"]
    assert (alpha.arena_bytes, alpha.call_device_bytes) == (64 << 20, 4096)


def test_numbers_of_options_may_be_written_as_numbers(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text("[options.http]\nretries = 3\nconnect_s = 1.5\n")
    assert load_settings(file, {}, {}).options == {"http": {"retries": "3", "connect_s": "1.5"}}


def test_tables_of_options_are_joined_with_dots(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text(
        "[options.s3]\nconcurrency = 9\n[options.s3.store.pictures]\n"
        'bucket = "b"\nread_only = true\ntenants = ["a", "b"]\n'
    )
    assert load_settings(file, {}, {}).options == {
        "s3": {
            "concurrency": "9",
            "store.pictures.bucket": "b",
            "store.pictures.read_only": "yes",
            "store.pictures.tenants": "a,b",
        }
    }


def test_variables_that_are_no_settings_are_named() -> None:
    environment = {
        "DANDELION_BACKEND": "null",
        "DANDELION_X": "",
        "OTHER": "",
        "DANDELION_PORT": "1",
        "DANDELION_URL": "http://x",
        "DANDELION_SETTINGS": "file",
    }
    first, second = unknown_variables(environment)
    assert "DANDELION_BACKEND is" in first
    assert "did you mean DANDELION_BACKENDS" in first
    assert "DANDELION_X is" in second


@pytest.mark.parametrize("field", Settings.__struct_fields__)
def test_every_setting_is_explained(field: str) -> None:
    assert len(setting_help(field).partition("[")[0]) > 10


SERVED = ("--port", "0", "--backends", "null", "--arena-bytes", "4MiB", "--catalog", "memory:")


def start_server(
    *arguments: str, stdin: IO[bytes] | int = subprocess.DEVNULL, **environment: str
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "dandelion", "serve", *SERVED, *arguments],
        cwd=ROOT,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={k: v for k, v in os.environ.items() if not k.startswith("DANDELION_")} | environment,
    )


def test_a_terminal_shows_logs_as_text() -> None:
    record = logging.makeLogRecord({"msg": "a\x1b[2J", "levelname": "INFO", "port": 8080})
    line = TextLines().format(record)
    assert re.fullmatch(r"\d\d:\d\d:\d\d info a\\x1b\[2J port=8080", line)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_until_a_signal(number: int) -> None:
    with start_server("--json") as process:
        assert process.stdout is not None
        place: dict[str, Any] = json.loads(process.stdout.readline())
        assert place["pid"] == process.pid
        with urllib.request.urlopen(place["url"] + "/healthz", timeout=20) as answer:
            assert answer.status == 200
        process.send_signal(number)
        out, errors = process.communicate(timeout=20)
    assert process.returncode == 0
    assert out == ""
    lines = [json.loads(line) for line in errors.splitlines()]
    assert any(line["message"] == "listening" and line["port"] == place["port"] for line in lines)


def test_serve_with_standard_files_that_are_closed() -> None:
    serve = [sys.executable, "-m", "dandelion", "serve", *SERVED, "--backends", "process"]
    given = {k: v for k, v in os.environ.items() if not k.startswith("DANDELION_")}
    with subprocess.Popen(
        ["sh", "-c", 'exec "$@" <&- >&-', "sh", *serve],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        env=given,
    ) as process:
        assert process.stderr is not None
        errors = process.stderr.readline()
        while "listening" not in errors:
            errors += process.stderr.readline()
        assert os.readlink(f"/proc/{process.pid}/fd/0") == os.devnull
        process.send_signal(signal.SIGTERM)
        errors += process.communicate(timeout=20)[1]
    assert process.returncode == 0
    assert "died" not in errors


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--backends", "null,bogus"], "unknown backend 'bogus'"),
        (["--options", "htp.allow=1"], "did you mean 'http'"),
        (["--max-waiting", "x"], "--max-waiting"),
        (["--arena-bytes", "100000000TiB"], "smaller arena"),
        (["--catalog", "nothing:here"], "nothing"),
        (["--settings", "/no/such/file.toml"], "/no/such/file.toml"),
        (["--host", "no.such.host.invalid"], "no.such.host.invalid"),
        (["--hosts", "http://a.example"], "hosts"),
        (["--cors-origins", "*"], "cors_origins"),
    ],
)
def test_serve_with_bad_settings(
    command: Command, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    for name in [name for name in os.environ if name.startswith("DANDELION_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(serve, "log_to_stderr", lambda level: None)  # this process is not a server
    code, _, errors = command("serve", *SERVED, *arguments)
    assert code == 1
    assert said in errors
    assert "Traceback" not in errors


def test_a_server_that_cannot_start_ends_with_the_reason(tmp_path: Path) -> None:
    lost = tmp_path / "blobs" / "ab" / ("0" * 62)
    lost.parent.mkdir(parents=True)
    lost.touch()
    with start_server("--catalog", f"sqlite:{tmp_path}") as process:
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "restore catalog.sqlite from a copy" in errors
    assert "Traceback" not in errors


def test_serve_warns_of_variables_that_it_does_not_know() -> None:
    with start_server("--json", DANDELION_BACKEND="x") as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["port"]
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=20)
    assert any(
        line["level"] == "warning" and "DANDELION_BACKENDS" in line["message"]
        for line in map(json.loads, errors.splitlines())
    )


def test_a_closed_terminal_is_told_of_twice_and_drains() -> None:
    """A second call of `stop` would not wait for requests."""
    calls: list[int] = []
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        hangup = hangup_in_terminal(lambda: calls.append(1))
        hangup()
        hangup()
        assert calls == [1]
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
        hangup_in_terminal(lambda: calls.append(2))()
        assert calls == [1]
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("frontends", ["1", "2"])
def test_a_node_ends_with_its_terminal(frontends: str) -> None:
    ours, theirs = os.openpty()
    with (
        open(ours, "rb", buffering=0),
        open(theirs, "rb", buffering=0) as terminal,
        start_server("--json", "--frontends", frontends, stdin=terminal) as process,
    ):
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["port"]
        process.send_signal(signal.SIGHUP)
        process.communicate(timeout=20)
    assert process.returncode == 0


@pytest.mark.parametrize("frontends", ["1", "2"])
def test_sighup_without_files_to_read_changes_nothing(frontends: str) -> None:
    with start_server("--json", "--frontends", frontends) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["port"]
        process.send_signal(signal.SIGHUP)
        assert any("SIGHUP: no files" in line for line in process.stderr)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
    assert process.returncode == 0
