"""The experiments on lines of functions and on an open page."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from dandelion.bench.experiments import watching
from dandelion.bench.experiments.watching import Callers, _Blocks, in_turns, rows_of
from dandelion.bench.process_facts import processor_s
from dandelion.bench.systems.echoes import NULL, echo
from dandelion.bench.systems.nodes import node_server

from dandelion.documents import RegistrationDocument


def test_ways_take_turns_and_the_first_block_does_not_count() -> None:
    order: list[str] = []

    def a(found: _Blocks) -> None:
        order.append("a")
        found.rates.append(len(order))
        found.cpu_us.append(1.0)

    def b(found: _Blocks) -> None:
        order.append("b")
        found.rates.append(len(order))
        found.cpu_us.append(2.0)

    found = in_turns(2, {"a": a, "b": b})
    assert "".join(order) == "ab" + "ba" + "ab"
    assert found["a"].rates == [4, 5]
    assert found["b"].rates == [3, 6]


def test_ratios_are_those_of_blocks_side_by_side() -> None:
    base = _Blocks([100.0, 200.0, 400.0, 100.0], [10.0, 20.0, 40.0, 10.0])
    other = _Blocks([90.0, 180.0, 360.0, 90.0], [11.0, 22.0, 44.0, 20.0])
    silent, prints = rows_of("s", {"silent": base, "print": other}, 50)
    assert "rate_ratio" not in silent.values
    assert prints.values["rate_ratio"] == pytest.approx(0.9)
    assert prints.values["cpu_ratio"] == pytest.approx(1.1)
    assert prints.values["cpu_ratio_high"] == pytest.approx(1.1)
    assert prints.count == 200


def test_the_time_of_ended_children_counts() -> None:
    code = "import time\nend = time.process_time() + 0.1\nwhile time.process_time() < end: pass"
    before = processor_s(os.getpid())
    subprocess.run([sys.executable, "-c", code], check=True)
    assert processor_s(os.getpid()) - before > 0.08  # it is counted in steps of 10 ms
    assert processor_s(2**22 + 1) == 0.0


def test_a_server_is_asked_while_its_page_is_open_and_while_not() -> None:
    document = RegistrationDocument(functions=(echo(NULL, "F"),))
    with (
        node_server({"backends": [NULL], "arena_bytes": 64 << 20}, [document]) as node,
        Callers(node.port, node.pid) as callers,
    ):
        found = _Blocks()
        callers.run(watching._request("F", "x"), 8, found)
        with watching.open_page(node.port):
            callers.run(watching._request("F", "x"), 8, found)
    assert len(found.rates) == 2
    assert min(found.rates) > 0
