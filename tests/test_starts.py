"""What programs do not load when they start: it takes longer than all else that they do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

NODE = """
from dandelion.node import Node, Settings
with Node(Settings(backends=("null",), arena_bytes=1 << 20)) as node:
    assert node.wait_ready()
"""
COMPOSITION = """
from dandelion.documents import CodeDocument, FunctionDocument, RegistrationDocument
from dandelion.node import Node, Settings
from dandelion.catalog import CompositionRecord
text = "composition inner(x) => (y) { f(x = all x) => (y = y); }"
text += "composition outer(x) => (y) { inner(x = all x) => (y = y); }"
function = FunctionDocument("f", ("x",), ("y",), code=(CodeDocument("null"),))
with Node(Settings(backends=("null",), arena_bytes=1 << 20)) as node:
    node.register(RegistrationDocument(functions=(function,), compositions=(text,)))
    assert node.invoke("outer", x=b"1").y.bytes() == b"1"
    node.remove(CompositionRecord, "outer")
"""
CASES = {
    "help": (
        "from dandelion.cli.main import main; main(['--help'])",
        ("numpy", "rich", "lark", "asyncio", "dandelion.data"),
    ),
    "client": (
        "import dandelion.frontend.client",
        ("rich", "lark", "networkx", "aiohttp", "dandelion.node"),
    ),
    "composition": (COMPOSITION, ("networkx",)),
    "node": (
        NODE,
        ("lark", "prometheus_client", "rich", "dandelion.backends.gpu", "dandelion.backends.http"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_not_needed_is_not_loaded(case: str) -> None:
    code, modules = CASES[case]
    shown = f"{code}\nimport sys; print('loaded', *sorted({{*{modules!r}}} & {{*sys.modules}}))"
    run = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == "loaded"


STORED = """
import sys
from dandelion.node import Node, Settings
from dandelion.testing import wait_until
settings = Settings(backends=("null",), arena_bytes=1 << 20, catalog=f"sqlite:{sys.argv[1]}")
text = "function f(x) => (y); composition c(x) => (y) { f(x = all x) => (y = y); }"
if sys.argv[2] == "register":
    from dandelion.documents import CodeDocument, FunctionDocument, RegistrationDocument
    function = FunctionDocument("f", ("x",), ("y",), code=(CodeDocument("null"),))
    with Node(settings) as node:
        node.register(RegistrationDocument(functions=(function,), compositions=(text,)))
else:
    with Node(settings) as node:
        wait_until(lambda: "lark" in sys.modules)
        node.wait_ready()
"""


def test_what_reads_compositions_is_loaded_with_a_catalogue_that_has_some(tmp_path: Path) -> None:
    for step in ("register", "start"):
        subprocess.run([sys.executable, "-c", STORED, str(tmp_path), step], check=True)
