"""What becomes of the rate when ever more clients ask at once, and afterwards?

Closed loops: each client asks again as soon as it is answered, so a node that answers all clients
in turn keeps its peak rate however many there are, and only the latency grows. Rate is lost to what
takes time for each connection instead of for each request, and to what delays new connections.
After each storm a few clients ask for a second: they must find the whole rate again.

Two functions: the null one is over before its request waits, so none is ever refused. One of
``wasm`` runs in a thread, so more clients than `Settings.max_waiting` get 429 at once.
"""

from __future__ import annotations

from dandelion.documents import RegistrationDocument
from dandelion.errors import BackendUnavailable

from ..columns import P50, P99
from ..experiment import Bench, experiment
from ..load import HttpRequest, Load, closed_loop
from ..processes import own_bytes
from ..records import Axis, Budget, Found, Look, Metric, Panel, Row, Skip, Unit
from ..systems.echoes import NULL, WASM, echo
from ..systems.servers import ServerFailed, ServerProcess, node_server

BODY = b"x" * 64
CLIENTS = (1, 8, 16, 64, 160, 1000, 5000)
AFTER_CLIENTS = 16
BARS = {160: 0.9, 5000: 0.8}
REFUSED = "status 429"
GOODPUT = Metric("goodput", "right answers", Unit.PER_SECOND, better="higher")
SHARE = Metric("share", "of the peak", Unit.RATIO, drawn=False, better="higher")
REFUSALS = Metric("refused", "429", Unit.PER_SECOND, drawn=False, better="")
AFTER = Metric("after", "16 clients, just after", Unit.PER_SECOND, drawn=False, better="higher")
MEMORY = Metric("bytes", "memory of the node", Unit.BYTES, drawn=False)


@experiment(
    "http_overload",
    group="dispatcher",
    question="What becomes of the rate when ever more clients ask at once?",
)
def http_overload(bench: Bench) -> Found:
    """Raise the number of clients far beyond what the node can serve at once."""
    clients = bench.pick((1, 16, 160), CLIENTS, CLIENTS)
    rows: list[Row] = []
    skips: list[Skip] = []
    for backend in (NULL, WASM):
        try:
            with _server(backend) as server:
                rows += _storms(bench, server, clients)
        except (BackendUnavailable, ServerFailed) as error:
            skips.append(Skip(f"dandelion {backend}", str(error)))
    panel = Panel(
        "clients", "Closed loops: rate by the number of clients",
        Axis("clients", logarithmic=True),
        (GOODPUT, SHARE, REFUSALS, P50, P99, AFTER, MEMORY), tuple(rows), Look.LINES,
    )  # fmt: skip
    notes = ("Generator and server share the cores of this machine.",)
    return Found((panel,), budgets=tuple(_budgets(rows)), skips=tuple(skips), notes=notes)


def _server(backend: str) -> ServerProcess:
    document = RegistrationDocument(functions=(echo(backend, "F"),))
    return node_server({"backends": [backend]}, [document], name=f"dandelion {backend}")


def _storms(bench: Bench, server: ServerProcess, clients: tuple[int, ...]) -> list[Row]:
    request = HttpRequest("/v1/invoke/F", BODY, expect=BODY)
    seconds, warm_up_s = (0.6, 0.3) if bench.quick else (4.0, 2.0)
    found: list[tuple[int, Load, Load, int]] = []
    for count in clients:
        bench.say(f"{server.name}, {count} clients")
        load = closed_loop(
            server.port, request, callers=count, seconds=seconds, warm_up_s=warm_up_s
        )
        memory = own_bytes(server.pid)
        after = closed_loop(server.port, request, callers=AFTER_CLIENTS, seconds=1.0, warm_up_s=0.1)
        found.append((count, load, after, memory))
    peak = max(load.achieved_per_s for _, load, _, _ in found)
    return [
        Row(server.name, float(count), _values(load, after, memory, peak), load.count, load.failed,
            load.note)
        for count, load, after, memory in found
    ]  # fmt: skip


def _values(load: Load, after: Load, memory: int, peak: float) -> dict[str, float]:
    return {
        **load.values(),
        "goodput": load.achieved_per_s,
        "share": load.achieved_per_s / max(peak, 1.0),
        "refused": load.errors.get(REFUSED, 0) / load.seconds,
        "after": after.achieved_per_s,
        "bytes": float(memory),
    }


def _budgets(rows: list[Row]) -> list[Budget]:
    return [
        Budget(
            f"{row.system}: {int(row.x)} closed-loop clients", f">= {BARS[int(row.x)]:.0%} of peak",
            f"{row.values['share']:.0%}", row.values["share"] >= BARS[int(row.x)], row.note,
        )
        for row in rows
        if isinstance(row.x, float) and int(row.x) in BARS
    ]  # fmt: skip
