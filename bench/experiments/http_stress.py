"""What becomes of a node that is attacked, or that gets more requests than it can answer?

`http_health`: one client asks ``GET /healthz`` every 10 ms, in turns on a connection that stays
open and on a new one, while a program attacks the node (`dandelion.bench.systems.attacks`). The
longest answer counts: it is the longest time for which one thing occupied the event loop.

`http_overload`: closed loops with more and more clients. A node that answers all clients in turn
keeps its peak rate however many there are, and only the latency grows. Rate is lost to work for
each connection instead of each request, and to what delays new connections. After each load 16
clients ask for a second: they must find the whole rate again. The null function is over before its
request waits, so none is refused. One of ``wasm`` runs in a process, so more clients than
`Settings.max_waiting` get status 429 at once.
"""

from __future__ import annotations

import http.client
import subprocess
import time

from dandelion.documents import RegistrationDocument
from dandelion.errors import BackendUnavailable
from dandelion.search_path import environment

from ..experiment import Bench, experiment
from ..load import HttpRequest, LoadResult, closed_loop
from ..process_facts import own_bytes
from ..processes import ServerFailed, ServerProcess
from ..records import Axis, Budget, Findings, Metric, Panel, Plot, Row, Skip, Unit
from ..samples import P50, P99, Samples
from ..systems.attacks import ATTACKS, command
from ..systems.echoes import NULL, WASM, echo
from ..systems.nodes import node_server
from .http_calls import SHARED_CORES

EVERY_S = 0.01
LONGEST = Metric("longest", "longest", Unit.US, logarithmic=True)
OPEN, NEW = "open connection", "new connection"

BODY = b"x" * 64
CLIENTS = (1, 8, 16, 64, 160, 1000, 5000)
LIMITS = {160: 0.9, 5000: 0.8}
OVERLOAD = (
    Metric("goodput", "right answers", Unit.PER_SECOND, better="higher"),
    Metric("share", "of the peak", Unit.RATIO, drawn=False, better="higher"),
    Metric("refused", "429", Unit.PER_SECOND, drawn=False, better=""),
    P50,
    P99,
    Metric("after", "16 clients, just after", Unit.PER_SECOND, drawn=False, better="higher"),
    Metric("bytes", "memory of the node", Unit.BYTES, drawn=False),
)


@experiment(
    "http_health",
    group="dispatcher",
    question="Is the health check answered at once while the node is attacked?",
)
def http_health(bench: Bench) -> Findings:
    """Ask for the node's health throughout attacks."""
    seconds = bench.pick(1.5, 8.0, 8.0)
    options = {"http": {"allow": "127.0.0.1"}}
    settings = {"backends": [NULL, "process", "http"], "options": options}
    document = RegistrationDocument(functions=(echo(NULL, "F"),))
    with node_server(settings, [document]) as server:
        _ask_health("", server.port, 0.5, None)
        rows = _ask_health("nothing", server.port, seconds, None)
        for name, (_, few, many) in ATTACKS.items():
            bench.say(name)
            rows += _attacked(server, name, few if bench.quick else many, seconds)
    panel = Panel(
        "attacks", "GET /healthz while the node is attacked", Axis("attack"),
        (P50, P99, LONGEST), tuple(rows), Plot.BARS,
    )  # fmt: skip
    longest = {row.x: 0.0 for row in rows}
    for row in rows:
        longest[row.x] = max(longest[row.x], row.values["longest"] / 1e3)
    budgets = (
        Budget(f"health check during {attack}", "<= 50 ms", f"{ms:.1f} ms", ms <= 50.0)
        for attack, ms in longest.items()
    )
    notes = ("Attacker, client and node share the cores of this machine.",)
    return Findings((panel,), budgets=tuple(budgets), notes=notes)


def _attacked(server: ServerProcess, name: str, count: int, seconds: float) -> list[Row]:
    with subprocess.Popen(
        command(name, server.port, count, seconds), env=environment(), stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as attacker:  # fmt: skip
        try:
            rows = _ask_health(name, server.port, 4 * seconds, attacker)
        finally:
            attacker.kill()
    _ask_health(name, server.port, 0.5, None)  # until the effects end
    return rows


def _ask_health(
    attack: str, port: int, seconds: float, attacker: subprocess.Popen[bytes] | None
) -> list[Row]:
    """Ask until the attack ends, at most for so long."""
    found = {OPEN: Samples(), NEW: Samples()}
    lasting = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    end = time.monotonic() + seconds
    due = time.monotonic()
    turn = 0
    while time.monotonic() < end and (attacker is None or attacker.poll() is None):
        fresh = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection = lasting if turn % 2 else fresh
        began = time.perf_counter_ns()
        connection.request("GET", "/healthz")
        response = connection.getresponse()
        response.read()
        found[OPEN if turn % 2 else NEW].ns.append(time.perf_counter_ns() - began)
        assert response.status == 200, f"the health check answers {response.status}"
        fresh.close()
        turn += 1
        due = max(due + EVERY_S, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))
    lasting.close()
    return [
        Row(name, attack, samples.values() | {"longest": samples.percentile(100)}, samples.count)
        for name, samples in found.items()
    ]


@experiment(
    "http_overload",
    group="dispatcher",
    question="What becomes of the rate when ever more clients ask at once?",
)
def http_overload(bench: Bench) -> Findings:
    """Raise the number of clients far beyond what the node can serve at once."""
    rows: list[Row] = []
    skips: list[Skip] = []
    for backend in (NULL, WASM):
        name = f"dandelion {backend}"
        try:
            document = RegistrationDocument(functions=(echo(backend, "F"),))
            with node_server({"backends": [backend]}, [document], name=name) as server:
                rows += _overloads(bench, server, bench.pick((1, 16, 160), CLIENTS, CLIENTS))
        except (BackendUnavailable, ServerFailed) as error:
            skips.append(Skip(name, str(error)))
    panel = Panel("clients", "Closed loops: rate by the number of clients",
                  Axis("clients", logarithmic=True), OVERLOAD, tuple(rows), Plot.LINES)  # fmt: skip
    budgets = [
        Budget(
            f"{row.system}: {int(row.x)} closed-loop clients", f">= {limit:.0%} of peak",
            f"{row.values['share']:.0%}", row.values["share"] >= limit, row.note,
        )
        for row in rows
        if (limit := LIMITS.get(int(float(row.x))))
    ]  # fmt: skip
    return Findings((panel,), budgets=tuple(budgets), skips=tuple(skips), notes=(SHARED_CORES,))


def _overloads(bench: Bench, server: ServerProcess, clients: tuple[int, ...]) -> list[Row]:
    request = HttpRequest("/v1/invoke/F", BODY, expect=BODY)
    seconds, warm_up_s = (0.6, 0.3) if bench.quick else (4.0, 2.0)
    found: list[tuple[int, LoadResult, LoadResult, int]] = []
    for count in clients:
        bench.say(f"{server.name}, {count} clients")
        load = closed_loop(
            server.port, request, callers=count, seconds=seconds, warm_up_s=warm_up_s
        )
        memory = own_bytes(server.pid)
        after = closed_loop(server.port, request, callers=16, seconds=1.0, warm_up_s=0.1)
        found.append((count, load, after, memory))
    peak = max(load.achieved_per_s for _, load, _, _ in found)
    rows = []
    for count, load, after, memory in found:
        values = load.values() | {
            "goodput": load.achieved_per_s,
            "share": load.achieved_per_s / max(peak, 1.0),
            "refused": load.errors.get("status 429", 0) / load.seconds,
            "after": after.achieved_per_s,
            "bytes": float(memory),
        }
        rows.append(Row(server.name, float(count), values, load.count, load.failed, load.note))
    return rows
