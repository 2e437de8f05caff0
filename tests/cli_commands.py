"""Commands as tests run them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dandelion.cli.main import main

ROOT = Path(__file__).resolve().parent.parent
GOOD = """function echo(a) => (b);
composition one(x) => (y) { echo(a = all x) => (y = b); }
composition two(x) => (y) { one(x = each x) => (y = y); }
"""


BAD = "function echo(a) => (b);\ncomposition one(x) => (y) {\n    ecko(a = all x) => (y = b);\n}\n"


Command = Callable[..., tuple[int, str, str]]


def given_command(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs a command; returns its exit code, standard output and standard error."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("DANDELION_URL", raising=False)

    def run(*arguments: object) -> tuple[int, str, str]:
        code = main([str(a) for a in arguments])
        return (code, *capfd.readouterr())

    return run
