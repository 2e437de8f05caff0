"""Is anything wrong or lost when nodes are killed, stopped and cut off under load?

Three nodes with a durable catalogue, in processes of their own, run a function in sandboxes.
Callers ask all of them, half of the invocations synchronously and half asynchronously. Meanwhile a
node is killed (-9) and started again, another one is stopped for some seconds, and one is cut off:
nothing that it sends arrives, nor what is sent to it, and no connection ends. At the end a node is
killed for good, and every asynchronous invocation that was acknowledged has to have its result at
the others.

- *wrong*: an answer that is not the right one.
- *lost*: an acknowledged invocation without its result.
- *pause*: the longest time in which no caller got an answer, after the fault.
- *back*: after the end of the fault, until all nodes see all others again.

A caller whose node is gone, or which the node refuses, asks the next one; asynchronous submissions
have idempotency keys, so a repetition is the same invocation.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from dandelion.cluster.membership import MemberState
from dandelion.data import Sets
from dandelion.documents import RegistrationDocument, python_function
from dandelion.errors import CapacityError, CatalogUnavailable, DandelionError, InternalError
from dandelion.frontend.client import Client, Unreachable

from ..experiment import Bench, experiment
from ..processes import Closeable, ServerProcess
from ..records import Axis, Findings, Metric, Panel, Plot, Row, Unit, at_most
from ..systems import names
from ..systems.nodes import MIB, node_server
from ..wires import Wires
from .cluster import until

NODES = 3
CALLERS = 12
BACK_S = 5.0
TRIES = 60
SOURCE = "def shout(x):\n    return x.text().upper()\n"
DOCUMENT = RegistrationDocument(
    functions=(python_function(SOURCE, inputs=["x"], outputs=["y"], name="shout", entry="shout"),)
)


class FaultyCluster(Closeable):
    """Three nodes that can be killed, stopped and cut off. Use it with ``with``.

    Args:
        folder: for catalogues and the secret.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "secret").write_text(secrets.token_hex(32))
        self._clients: list[Client | None] = [None] * NODES
        self._servers: list[ServerProcess | None] = [None] * NODES
        self.wires = Wires(NODES)
        try:
            for number in range(NODES):
                self.start(number)
            self.client(0).register(DOCUMENT)
            self.wait_whole()
        except BaseException:
            self.close()
            raise

    def start(self, number: int) -> None:
        """Start a node, and wait until it answers."""
        given: dict[str, object] = {
            "cluster_secret": str(self._folder / "secret"),
            "peers": tuple(self.wires.addresses),
            "cluster_listen": self.wires.listens[number],
            "cluster_address": self.wires.addresses[number],
            "catalog": f"sqlite:{self._folder / str(number)}",
            "arena_bytes": 256 * MIB,
            "backends": ("process",),
            "engines": {"process": 1},
        }
        server = self._servers[number] = node_server(given)
        self._clients[number] = Client(f"http://127.0.0.1:{server.port}", 10.0)

    def client(self, number: int) -> Client:
        """Give the client of a node; that of the next one if it is down."""
        for one in range(number, number + NODES):
            client = self._clients[one % NODES]
            if client is not None:
                return client
        raise InternalError("all nodes are down")

    def kill(self, number: int) -> None:
        """End a node with SIGKILL."""
        server, client = self._servers[number], self._clients[number]
        assert server is not None, "it runs"
        os.kill(server.pid, signal.SIGKILL)
        self._servers[number] = self._clients[number] = None
        server.close()
        if client is not None:
            client.close()

    def signal(self, number: int, what: signal.Signals) -> None:
        """Send a signal to a node."""
        server = self._servers[number]
        assert server is not None, "it runs"
        os.kill(server.pid, what)

    def wait_whole(self) -> float:
        """Wait until every node that runs sees all others; return how long it took."""
        began_s = time.monotonic()
        until(lambda: all(self._sees_all(client) for client in self._clients if client))
        return time.monotonic() - began_s

    def _sees_all(self, client: Client) -> bool:
        try:
            info = client.cluster()
            records = client.list()
        except DandelionError:
            return False
        assert info is not None, "it is in a cluster"
        up = sum([member.state == MemberState.ALIVE.value for member in info.members])
        running = sum([server is not None for server in self._servers])
        return info.majority and up == running - 1 and "shout" in str(records)

    def close(self) -> None:
        for number, server in enumerate(self._servers):
            if server is not None:
                with contextlib.suppress(ProcessLookupError):
                    self.signal(number, signal.SIGCONT)
                server.close()
        for client in self._clients:
            if client is not None:
                client.close()
        self.wires.close()


@dataclass(eq=False)
class Load:
    """Callers of all nodes.

    Attributes:
        count: of invocations.
        began_s: when it began, by the monotonic clock.
        answered: when callers got answers, by the monotonic clock.
        took_s: how long each invocation or submission took, with repetitions.
        acknowledged: ids of asynchronous invocations, by number.
        found: what became of invocations: ``right``, ``wrong``, ``lost``, or the name of an error.
        repeated: requests that were made again at another node.
        problems: what failed, in words.
    """

    cluster: FaultyCluster
    count: int
    answered: list[float] = field(default_factory=list)
    took_s: list[float] = field(default_factory=list)
    acknowledged: dict[int, str] = field(default_factory=dict)
    found: Counter[str] = field(default_factory=Counter)
    repeated: int = 0
    problems: list[str] = field(default_factory=list)
    began_s: float = field(default_factory=time.monotonic)
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def caller(self, me: int) -> None:
        """Make invocations until there are enough."""
        while True:
            with self._lock:
                number = next(self._numbers)
            if number >= self.count:
                return
            began_s = time.monotonic()
            if number % 2:
                self._ask(me, number, lambda client, number=number: self._submit(client, number))  # type: ignore[misc]
            else:
                self._ask(me, number, lambda client, number=number: self._invoke(client, number))  # type: ignore[misc]
            with self._lock:
                self.answered.append(time.monotonic())
                self.took_s.append(self.answered[-1] - began_s)

    def _ask(self, me: int, number: int, action: Callable[[Client], None]) -> None:
        """Do something at a node; at the next one if it is gone or refuses it."""
        for attempt in range(TRIES):
            try:
                return action(self.cluster.client(me + attempt))
            except (Unreachable, CatalogUnavailable, CapacityError):
                with self._lock:
                    self.repeated += 1
                time.sleep(0.1)
            except DandelionError as error:
                self._failed(number, error)
                return None
        with self._lock:
            self.found["unanswered"] += 1
        return None

    def _failed(self, number: int, error: DandelionError) -> None:
        after_s = time.monotonic() - self.began_s
        kind = "asynchronous" if number % 2 else "synchronous"
        with self._lock:
            self.found[type(error).__name__] += 1
            self.problems.append(f"{kind} {number}, after {after_s:.1f} s: {error}")

    def _invoke(self, client: Client, number: int) -> None:
        self._count(number, client.invoke("shout", x=_text(number), deadline_s=30))

    def _submit(self, client: Client, number: int) -> None:
        handle = client.submit("shout", x=_text(number), key=f"number-{number}")
        self.acknowledged[number] = handle.id

    def _count(self, number: int, sets: Sets) -> None:
        found = sets["y"]
        right = found is not None and found.bytes() == _text(number).upper()
        with self._lock:
            self.found["right" if right else "wrong"] += 1

    def collect(self, number: int) -> None:
        """Ask for the result of an asynchronous invocation."""
        id_ = self.acknowledged[number]
        lost = True
        for attempt in range(TRIES):
            try:
                client = self.cluster.client(number + attempt)
                self._count(number, client.submitted(id_).result(30))
                lost = False
                break
            except (Unreachable, CatalogUnavailable):
                time.sleep(0.1)
            except DandelionError as error:
                self._failed(number, error)
                break
        with self._lock:
            self.found["lost"] += lost

    @property
    def done(self) -> int:
        """How many have an answer."""
        return len(self.answered)

    def longest_pause_s(self, from_s: float, to_s: float) -> float:
        """Return the longest time without an answer in an interval."""
        within = sorted([at for at in self.answered if from_s < at < to_s])
        return max([b - a for a, b in itertools.pairwise([from_s, *within])], default=0.0)


def _text(number: int) -> bytes:
    return f"invocation {number}".encode()


@dataclass(frozen=True, slots=True)
class Fault:
    """What was done to a node, between which times, and how long all took to see all after it."""

    name: str
    from_s: float
    to_s: float
    back_s: float


class Faults:
    """Disturbs a cluster under load, one fault after the other.

    Args:
        cluster: that is disturbed.
        load: on it.
        last_s: how long a fault lasts.
    """

    def __init__(self, cluster: FaultyCluster, load: Load, last_s: float) -> None:
        self._cluster, self._load, self._last_s = cluster, load, last_s
        self.all: list[Fault] = []

    def _after(
        self, part: float, name: str, begin: Callable[[], None], end: Callable[[], None]
    ) -> None:
        """Begin a fault when a part of the load is done, and end it some seconds later."""
        until(lambda: self._load.done >= part * self._load.count, 600)
        from_s = time.monotonic()
        begin()
        time.sleep(self._last_s)
        end()
        back_s = self._cluster.wait_whole()
        self.all.append(Fault(name, from_s, time.monotonic(), back_s))

    def run(self) -> None:
        """Carry all of them out."""
        cluster, wires = self._cluster, self._cluster.wires
        self._after(0.1, "killed", lambda: cluster.kill(2), lambda: cluster.start(2))
        self._after(
            0.3,
            "stopped",
            lambda: cluster.signal(1, signal.SIGSTOP),
            lambda: cluster.signal(1, signal.SIGCONT),
        )
        self._after(0.5, "cut off", lambda: wires.cut(2), wires.repair)
        self._after(0.7, "killed again", lambda: cluster.kill(0), lambda: cluster.start(0))


PAUSE = Metric("pause", "longest time without an answer", Unit.US)
BACK = Metric("back", "until all nodes see all others", Unit.US)
COUNTS = (
    Metric("right", "right answers", Unit.COUNT, better="higher"),
    Metric("wrong", "wrong answers", Unit.COUNT),
    Metric("lost", "acknowledged and lost", Unit.COUNT),
    Metric("failed", "failed", Unit.COUNT),
    Metric("repeated", "requests repeated at another node", Unit.COUNT, better=""),
    Metric("taken_over", "invocations taken over", Unit.COUNT, better=""),
    Metric("longest", "longest invocation", Unit.US),
)


def _taken_over(cluster: FaultyCluster) -> int:
    infos = [cluster.client(number).cluster() for number in (1, 2)]
    return sum([info.taken_over for info in infos if info is not None])


@experiment(
    "cluster_faults",
    group="cluster",
    question="is anything wrong or lost when nodes are killed, stopped and cut off under load?",
)
def faults(bench: Bench) -> Findings:
    """Run the load with all faults."""
    count = bench.pick(1200, 10_000, 10_000)
    with (
        tempfile.TemporaryDirectory() as folder,
        FaultyCluster(Path(folder)) as cluster,
        ThreadPoolExecutor(CALLERS) as pool,
    ):
        load = Load(cluster, count)
        for _ in range(3):
            load.cluster.client(0).invoke("shout", x=b"warm up")
        bench.say(f"{count} invocations")
        callers = [pool.submit(load.caller, number % NODES) for number in range(CALLERS)]
        made = Faults(cluster, load, bench.pick(2.0, 4.0, 4.0))
        made.run()
        for caller in callers:
            caller.result()
        cluster.kill(0)
        bench.say(f"results of {len(load.acknowledged)} asynchronous ones")
        list(pool.map(load.collect, list(load.acknowledged)))
        taken_over = _taken_over(cluster)
    return _findings(load, made.all, taken_over)


def _findings(load: Load, made: list[Fault], taken_over: int) -> Findings:
    rows = []
    for fault in made:
        pause_s = load.longest_pause_s(fault.from_s, fault.to_s)
        values = {"pause": pause_s * 1e6, "back": fault.back_s * 1e6}
        rows.append(Row(names.DANDELION, f"a node is {fault.name}", values))
    known = ("right", "wrong", "lost")
    counts = {
        **{name: float(load.found[name]) for name in known},
        "failed": float(sum([n for name, n in load.found.items() if name not in known])),
        "repeated": float(load.repeated),
        "taken_over": float(taken_over),
        "longest": max(load.took_s) * 1e6,
    }
    total = Row(names.DANDELION, "all", counts, load.count)
    panels = (
        Panel("faults", "After a fault", Axis("fault"), (PAUSE, BACK), tuple(rows), Plot.BARS),
        Panel("counts", "Invocations", Axis("invocations"), COUNTS, (total,), Plot.BARS),
    )
    worst = max([max(row.values["pause"], row.values["back"]) for row in rows]) / 1e6
    budgets = (
        at_most("wrong answers", counts["wrong"], 0, "", digits=".0f"),
        at_most("acknowledged invocations that are lost", counts["lost"], 0, "", digits=".0f"),
        at_most("invocations that failed", counts["failed"], 0, "", digits=".0f"),
        at_most("back after a fault", worst, BACK_S, " s", "all nodes share the cores"),
    )
    return Findings(panels, budgets=budgets, notes=tuple(load.problems[:5]))
