"""Does a node answer its health check at once while it is attacked?

One client asks ``GET /healthz`` every 10 ms, in turns on a connection that stays open and on a new
one, while a program attacks the node (`dandelion.bench.systems.attacks`). The longest answer
counts: the longest time for which the event loop, or the way to it, was occupied by one thing.
"""

from __future__ import annotations

import http.client
import subprocess
import time

from dandelion.documents import RegistrationDocument
from dandelion.search_path import environment

from ..columns import P50, P99
from ..experiment import Bench, experiment
from ..histogram import Histogram
from ..records import Axis, Budget, Found, Look, Metric, Panel, Row, Unit
from ..systems.attacks import ATTACKS, command
from ..systems.echoes import NULL, echo
from ..systems.servers import ServerProcess, node_server

BAR_US = 50_000.0
EVERY_S = 0.01
IDLE = "nothing"
LONGEST = Metric("longest", "longest", Unit.US, logarithmic=True)
KEPT, NEW = "open connection", "new connection"


@experiment(
    "http_health",
    group="dispatcher",
    question="Is the health check answered at once while the node is attacked?",
)
def http_health(bench: Bench) -> Found:
    """Ask for the node's health throughout attacks."""
    seconds = bench.pick(1.5, 8.0, 8.0)
    settings = {
        "backends": [NULL, "process", "http"],
        "options": {"http": {"allow": "127.0.0.1"}},
    }
    document = RegistrationDocument(functions=(echo(NULL, "F"),))
    rows: list[Row] = []
    with node_server(settings, [document]) as server:
        _asked(server.port, 0.5, None)
        rows += _rows(IDLE, _asked(server.port, seconds, None))
        for name, (_, few, many) in ATTACKS.items():
            bench.say(name)
            rows += _attacked(server, name, few if bench.quick else many, seconds)
    panel = Panel(
        "attacks", "GET /healthz while the node is attacked", Axis("attack"),
        (P50, P99, LONGEST), tuple(rows), Look.BARS,
    )  # fmt: skip
    notes = ("Attacker, client and node share the cores of this machine.",)
    return Found((panel,), budgets=tuple(_budgets(rows)), notes=notes)


def _attacked(server: ServerProcess, name: str, count: int, seconds: float) -> list[Row]:
    with subprocess.Popen(
        command(name, server.port, count, seconds),
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as attacker:
        try:
            timed = _asked(server.port, 4 * seconds, attacker)
        finally:
            attacker.kill()
    _asked(server.port, 0.5, None)  # what it left behind ends
    return _rows(name, timed)


def _asked(
    port: int, seconds: float, attacker: subprocess.Popen[bytes] | None
) -> dict[str, tuple[Histogram, float]]:
    """Ask until the attack ends, at most for so long; gives latencies and the longest one."""
    found = {KEPT: Histogram(), NEW: Histogram()}
    longest = dict.fromkeys(found, 0.0)
    kept = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    end = time.monotonic() + seconds
    due = time.monotonic()
    turn = 0
    while time.monotonic() < end and (attacker is None or attacker.poll() is None):
        name = KEPT if turn % 2 else NEW
        connection = kept if turn % 2 else http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        began = time.perf_counter_ns()
        connection.request("GET", "/healthz")
        response = connection.getresponse()
        response.read()
        took_us = (time.perf_counter_ns() - began) / 1e3
        assert response.status == 200, f"the health check says {response.status}"
        if connection is not kept:
            connection.close()
        found[name].record(took_us)
        longest[name] = max(longest[name], took_us)
        turn += 1
        due = max(due + EVERY_S, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))
    kept.close()
    return {name: (found[name], longest[name]) for name in found}


def _rows(attack: str, timed: dict[str, tuple[Histogram, float]]) -> list[Row]:
    return [
        Row(name, attack, histogram.values() | {"longest": longest}, histogram.count)
        for name, (histogram, longest) in timed.items()
    ]


def _budgets(rows: list[Row]) -> list[Budget]:
    attacks = dict.fromkeys(str(row.x) for row in rows)
    found = []
    for attack in attacks:
        longest = max(row.values["longest"] for row in rows if row.x == attack)
        found.append(
            Budget(
                f"health check during {attack}", "<= 50 ms", f"{longest / 1e3:.1f} ms",
                longest <= BAR_US,
            )
        )  # fmt: skip
    return found
