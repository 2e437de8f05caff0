"""A node that callers reach without a token does not listen for other machines."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from dandelion.cli.settings import load_settings
from dandelion.errors import InvalidInput
from dandelion.frontend.listener import bind, check_exposure
from dandelion.node import Settings

LOOPBACK = ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"]
PUBLIC = [
    "0.0.0.0",
    "::",
    "192.0.2.7",
    "10.0.0.1",
    "2001:db8::1",
    "fe80::1%eth0",
    "::ffff:10.0.0.1",
]


@pytest.mark.parametrize("address", LOOPBACK)
def test_loopback_needs_no_tokens(address: str) -> None:
    check_exposure(Settings(), address)


@pytest.mark.parametrize("address", PUBLIC)
def test_other_addresses_need_tokens_or_consent(address: str) -> None:
    with pytest.raises(InvalidInput, match=r"dandelion token new.*--insecure"):
        check_exposure(Settings(), address)
    check_exposure(Settings(tokens="file"), address)
    check_exposure(Settings(allow_anonymous=True), address)


def test_tokens_and_anonymous_callers_exclude_each_other() -> None:
    with pytest.raises(InvalidInput, match="allow_anonymous"):
        check_exposure(Settings(tokens="file", allow_anonymous=True), "127.0.0.1")


def test_no_socket_listens_after_a_refusal() -> None:
    with pytest.raises(InvalidInput):
        bind("0.0.0.0", 0, Settings())
    bind("0.0.0.0", 0, Settings(allow_anonymous=True)).close()


def test_a_port_in_use_says_what_to_do() -> None:
    with bind("127.0.0.1", 0, Settings()) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidInput, match=f"127.0.0.1:{port}") as caught:
            bind("127.0.0.1", port, Settings())
    assert "--port" in caught.value.hint


@pytest.mark.parametrize("frontends", ["1", "2"])
def test_serve_refuses_and_says_what_to_do(frontends: str) -> None:
    command = [
        sys.executable, "-m", "dandelion", "serve", "--host", "0.0.0.0", "--port", "0",
        "--backends", "null", "--frontends", frontends, "--arena-bytes", "16MiB",
        "--body-limit-bytes", "1MiB",
    ]  # fmt: skip
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == 1
    assert "dandelion token new" in refused.stderr
    assert not refused.stdout
    with subprocess.Popen(
        [*command, "--insecure", "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as served:
        try:
            assert served.stdout is not None
            assert msgspec.json.decode(served.stdout.readline())["port"]
        finally:
            served.terminate()


def test_settings_are_read_from_text() -> None:
    settings = load_settings(None, {"DANDELION_ALLOW_ANONYMOUS": "true"}, {"tokens": ["a.toml"]})
    assert settings.allow_anonymous is True
    assert settings.tokens == "a.toml"
