"""What programs do not load when they start: it takes longer than all else that they do."""

from __future__ import annotations

import subprocess
import sys

import pytest

NODE = """
from dandelion.node import Node, Settings
with Node(Settings(backends=("null",), arena_bytes=1 << 20)) as node:
    assert node.wait_ready()
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
