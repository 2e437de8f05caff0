"""A served node goes on answering while clients register what costs a compiler much."""

from __future__ import annotations

import http.client
import json
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.hostile_sources import HEAD, HOSTILE, added

ROOT = Path(__file__).resolve().parents[2]
EVERY_S = 0.01
BOUND_S = 1.0  # an unloaded machine needs a few milliseconds
KINDS = ("nested finally", "large f-string", "many statements", "lambdas")
MIB = 1024 * 1024


class Served:
    """A node in a process of its own."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.pid = process.pid
        self._place = urlsplit(url).netloc

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self._place, timeout=100)

    def register(self, name: str, source: str) -> tuple[int, str]:
        code = [{"format": "python", "main": source, "options": {"entry": "f"}}]
        function = {"name": name, "inputs": ["x"], "outputs": ["y"], "code": code}
        connection = self.connect()
        body = json.dumps({"functions": [function]})
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/register", body, headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text

    def peak_bytes(self) -> int:
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


@contextmanager
def served() -> Iterator[Served]:
    command = [sys.executable, "-m", "dandelion", "serve", "--json", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--backends", "process"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        yield Served(process, json.loads(process.stdout.readline())["url"])
    finally:
        process.terminate()
        process.communicate()


def test_a_long_sum_is_registered_or_refused_over_http() -> None:
    with served() as node:
        assert node.register("short", added(1_000))[0] == 200
        status, text = node.register("long", added(20_000))
        assert status == (200 if sys.version_info >= (3, 14) else 400)
        assert status == 200 or "<function long>" in text


@pytest.mark.timeout(300)
def test_the_health_check_answers_during_hostile_registrations() -> None:
    answers: list[tuple[int, str]] = []
    with served() as node:
        assert node.register("first", HEAD)[0] == 200
        before = node.peak_bytes()

        def register(kind: str) -> None:
            name = kind.replace(" ", "_").replace("-", "_")
            answers.append(node.register(name, HOSTILE[kind][0]))

        threads = [threading.Thread(target=register, args=(kind,)) for kind in KINDS]
        began_s = time.monotonic()
        for thread in threads:
            thread.start()
        worst_s = worst_health_s(node, threads)
        took_s = time.monotonic() - began_s
        grown = node.peak_bytes() - before
    print(f"worst health check {worst_s * 1e3:.1f} ms, memory of the node +{grown / MIB:.0f} MiB")
    assert len(answers) == len(KINDS)
    assert {status for status, _ in answers} <= {200, 400, 503}, answers
    assert worst_s < max(BOUND_S, took_s / 4)
    assert grown < 128 * MIB


def worst_health_s(node: Served, threads: list[threading.Thread]) -> float:
    """Ask for the node's health every few milliseconds until the threads have ended."""
    connection = node.connect()
    worst_s = 0.0
    while any(thread.is_alive() for thread in threads):
        started = time.perf_counter()
        connection.request("GET", "/healthz")
        answer = connection.getresponse()
        answer.read()
        took_s = time.perf_counter() - started
        assert answer.status == 200
        worst_s = max(worst_s, took_s)
        select.select([], [], [], max(0.0, EVERY_S - took_s))
    connection.close()
    return worst_s
