"""Nodes whose engine processes do what a text says."""

import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from dandelion.driver import Hosting, Sharing
from dandelion.node import Node, Settings
from dandelion.testing import (
    FakeEngineProcess,
    Script,
    ScriptedDriver,
    installed,
)
from tests.played_nodes import (
    played_node,
)

ARENA_BYTES = 1 << 20
SHARED_FAULTS = Sharing({"WORKER": "1"}, concurrent=True, shared_fault_domain=True)
PRELUDE = """
import fcntl, os, sys, time
from pathlib import Path
from dandelion.driver import Demand
from dandelion.errors import EngineDied, Faulted

folder = Path({folder!r})
worker = process.role == "worker"
process.demand = lambda name, inputs: Demand({output_bytes}, {device_bytes})
{body}
process.opened()
opened()
for call in process.calls():
    run(call, call.function)
    process.answer(call)
"""


Play = Callable[..., Node]


def given_play(tmp_path: Path) -> Iterator[Play]:
    """Give what makes a node whose engine processes do what a text says."""
    nodes = ExitStack()

    def made(body: str, engines: int = 1, device_bytes: int = 0, output_bytes: int = 1) -> Node:
        text = PRELUDE.format(
            folder=str(tmp_path),
            body=textwrap.dedent(body),
            output_bytes=output_bytes,
            device_bytes=device_bytes,
        )
        driver = ScriptedDriver(
            "played", Script(share=lambda resource: SHARED_FAULTS), Hosting.PROCESS
        )
        backends = tmp_path / "backends"
        backends.mkdir()
        nodes.enter_context(installed(backends, driver))
        return nodes.enter_context(
            played_node(
                FakeEngineProcess(tmp_path, text),
                Settings(backends=(), arena_bytes=ARENA_BYTES, spin_us=0),
                [driver] * engines,
                ("Good", "Bad", "Slow"),
            )
        )

    with nodes:
        yield made
