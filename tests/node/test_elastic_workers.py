"""Workers whose number is chosen by the node: processes are started when they are needed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from dandelion.capacity import WorkersCapacity
from dandelion.cli.capacity import show
from dandelion.cli.output import Output
from dandelion.driver import Hosting, Sharing
from dandelion.node import Node, Settings
from dandelion.scheduler.concurrency import FIRST_WORKERS
from dandelion.testing import FakeEngineProcess, Script, ScriptedDriver, installed, wait_until
from tests.played_nodes import children, executors_of, played_node, wait_ready

MOST = 6
CALLERS = 12
SCRIPT = """
import time
from dandelion.driver import Demand

process.opened()
process.demand = lambda name, inputs: Demand(output_bytes=1)
process.ready(workers={most}, elastic=True)
for call in process.calls():
    time.sleep(0.004)
    process.answer(call)
"""


@contextmanager
def elastic_node(folder: Path, policy: str = "fair") -> Iterator[Node]:
    backends = folder / "backends"
    backends.mkdir()
    sharing = Sharing(concurrent=True, shared_fault_domain=True)
    driver = ScriptedDriver("played", Script(share=lambda resource: sharing), Hosting.PROCESS)
    fake = FakeEngineProcess(folder, SCRIPT.format(most=MOST))
    settings = Settings(backends=(), arena_bytes=1 << 20, spin_us=0, policy=policy)
    with installed(backends, driver), played_node(fake, settings, [driver]) as node:
        yield node


@contextmanager
def loaded(node: Node) -> Iterator[None]:
    """Have many callers call again and again."""
    over = threading.Event()

    def call() -> None:
        while not over.is_set():
            node.invoke("F", a=b"1")

    with ThreadPoolExecutor(CALLERS) as pool:
        calls = [pool.submit(call) for _ in range(CALLERS)]
        try:
            yield
        finally:
            over.set()
            for one in calls:
                one.result(20)


def workers_of(node: Node) -> WorkersCapacity:
    (row,) = node.capacity().workers
    return row


def test_workers_are_started_under_load_and_shown(tmp_path: Path) -> None:
    with elastic_node(tmp_path) as node:
        wait_ready(node, 1 + FIRST_WORKERS)
        states = sorted(engine.state for engine in node.engines())
        assert states == ["dormant"] * (MOST - FIRST_WORKERS) + ["ready"] * (1 + FIRST_WORKERS)
        assert len(children(node)) == 1 + FIRST_WORKERS
        assert workers_of(node) == WorkersCapacity("played", "0", MOST, FIRST_WORKERS, 2)
        node.invoke("F", a=b"1")
        assert workers_of(node).started == FIRST_WORKERS
        with loaded(node):
            wait_until(lambda: node.ready() and workers_of(node).started > FIRST_WORKERS, 20)
            wait_until(lambda: workers_of(node).active > FIRST_WORKERS, 20)
            assert node.ready(), "a worker that is started under load does not make it unready"
        found = workers_of(node)
        assert len(children(node)) == 1 + found.started
        text = node.metrics().decode()
        assert (
            f'dandelion_workers_started{{backend="played",resource="0"}} {found.started}.0' in text
        )
        assert f'dandelion_workers_active{{backend="played",resource="0"}} {found.active}.0' in text
        (total,) = node.capacity("default").workers
        assert (total.resource, total.most) == ("", MOST)


def test_static_tenants_get_all_workers(tmp_path: Path) -> None:
    with elastic_node(tmp_path, "static") as node:
        wait_ready(node, 1 + MOST)
        assert node.capacity().workers == ()
        assert all(executor.engine.active for executor in executors_of(node))
        node.invoke("F", a=b"1")


def test_the_command_shows_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with elastic_node(tmp_path) as node:
        wait_ready(node, 1 + FIRST_WORKERS)
        show(node.capacity(), Output(as_json=False))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["workers", "active", "started", "most"] in lines
    assert ["played:0", "2", "2", str(MOST)] in lines
