"""How many calls of one short kernel callers get that wait for each result.

They await calls on the node's loop, or call over HTTP: a node that parses HTTP itself, and one with
frontend processes. The kernel multiplies matrices of 128 KiB, and every result over HTTP is
compared. The node has its default number of workers. All ways take turns.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from concurrent.futures import ThreadPoolExecutor

import msgspec

from dandelion.documents import RegistrationDocument
from dandelion.errors import InternalError
from dandelion.node import Node
from dandelion.settings import Settings

from ..experiment import Bench, experiment
from ..http_client import fetch
from ..load import HttpRequest, LoadResult, closed_loop
from ..processes import ServerProcess
from ..records import Axis, Budget, Findings, Panel, Plot, Row, at_least
from ..samples import P50, P99, RATE, Samples, spread
from ..systems.bare import agrees, example_body, matmul_work
from ..systems.functions import gpu_code
from ..systems.nodes import MIB, gpu_settings, node_server, one_item, pool_for, wait_engines

AWAITED = "awaited"
FRONTENDS = {"HTTP": 1, "HTTP, 4 frontends": 4}
MANY, LEAST_PER_S = 16, 6000.0
_GENERATORS = 4
_DRAIN_S = 20.0


@experiment(
    "gpu_callers", group="gpu", needs_device=True,
    question="How many calls of one short kernel do callers get that wait for each result?",
)  # fmt: skip
def callers(bench: Bench) -> Findings:
    """Call one kernel in all ways, by one caller and by several."""
    counts = bench.pick((1, 4), (1, MANY), (1, MANY, 64))
    rounds = bench.pick(1, 3, 3)
    found: dict[tuple[str, int], list[tuple[float, Samples]]] = {}
    with contextlib.ExitStack() as closing:
        servers = {
            way: closing.enter_context(_server(bench, frontends))
            for way, frontends in FRONTENDS.items()
        }
        request = _checked_request(servers)
        for number in range(rounds):
            bench.say(f"round {number + 1} of {rounds}")
            for count, one in asyncio.run(_awaited(bench, counts)).items():
                found.setdefault((AWAITED, count), []).append(one)
            for count in counts:
                for way, server in servers.items():
                    served = _served(bench, server, request, count)
                    found.setdefault((way, count), []).append(served)
    rows = tuple(_row(way, count, several) for (way, count), several in found.items())
    panel = Panel(
        "callers", "Calls of one product of 128 x 128 integers", Axis("callers", logarithmic=True),
        (RATE, P50, P99), rows, Plot.LINES,
    )  # fmt: skip
    return Findings((panel,), budgets=_budgets(bench, rows))


def _settings(bench: Bench) -> dict[str, object]:
    return gpu_settings(bench.backend, None, pool_for(bench.gpu), 512 * MIB) | {"cache_bytes": 0}


def _server(bench: Bench, frontends: int) -> ServerProcess:
    document = RegistrationDocument(functions=(gpu_code(matmul_work()),))
    return node_server(_settings(bench) | {"frontends": frontends}, (document,))


def _checked_request(servers: dict[str, ServerProcess]) -> HttpRequest:
    """Give a request whose answers all have to be as one that is right."""
    work = matmul_work()
    body = example_body(work)
    request = HttpRequest(f"/v1/invoke/{work.name}", body)
    for way, server in servers.items():
        reply = fetch(server.port, request)
        if not agrees(work, body, reply):
            raise InternalError(f"{way}: a wrong result")
    return msgspec.structs.replace(request, expect=reply)


async def _awaited(bench: Bench, counts: tuple[int, ...]) -> dict[int, tuple[float, Samples]]:
    """Await calls on this loop; give rate and latencies by the number of callers."""
    work, clock = matmul_work(), time.perf_counter_ns
    seconds = bench.pick(0.3, 2.0, 3.0)
    found = {}
    async with Node(msgspec.convert(_settings(bench), Settings)) as node:
        await asyncio.to_thread(wait_engines, node)
        await asyncio.to_thread(node.register, gpu_code(work))
        body = example_body(work)
        sets = one_item(work.entry, node.acquire(len(body)).write(0, body))

        async def call(until_ns: int, samples: list[int]) -> None:
            while (began_ns := clock()) < until_ns:
                await node.invoke_sets_async(work.name, sets)
                samples.append(clock() - began_ns)

        for count in counts:
            samples: list[int] = []
            for length_s in (seconds / 3, seconds):  # at first they warm up
                samples.clear()
                until_ns = clock() + int(length_s * 1e9)
                await asyncio.gather(*(call(until_ns, samples) for _ in range(count)))
            found[count] = len(samples) / seconds, Samples(samples)
    return found


def _served(
    bench: Bench, server: ServerProcess, request: HttpRequest, count: int
) -> tuple[float, Samples]:
    """Call over HTTP; give rate and latencies.

    Raises:
        InternalError: a request failed.
    """
    generators = min(count, _GENERATORS)
    seconds, warm_up_s = bench.pick((0.3, 0.1), (2.0, 0.7), (3.0, 1.0))

    def generate(_: int) -> LoadResult:
        return closed_loop(
            server.port, request, callers=count // generators, seconds=seconds,
            warm_up_s=warm_up_s, drain_s=_DRAIN_S,
        )  # fmt: skip

    with ThreadPoolExecutor(generators) as pool:
        loads = list(pool.map(generate, range(generators)))
    failed = [load.note for load in loads if load.failed]
    if failed:
        raise InternalError("; ".join(failed))
    latency = Samples([ns for load in loads for ns in load.latency.ns])
    return sum(load.achieved_per_s for load in loads), latency


def _row(way: str, count: int, several: list[tuple[float, Samples]]) -> Row:
    every = Samples([ns for _, samples in several for ns in samples.ns])
    rates = spread("achieved_per_s", [rate for rate, _ in several])
    return Row(way, float(count), every.values() | rates, every.count)


def _budgets(bench: Bench, rows: tuple[Row, ...]) -> tuple[Budget, ...]:
    if not bench.gpu or bench.quick:
        return ()
    rates = {(row.system, row.x): row.values["achieved_per_s"] for row in rows}
    found = []
    for way in (AWAITED, "HTTP, 4 frontends"):
        many, one = rates[way, float(MANY)], rates[way, 1.0]
        found.append(at_least(f"{MANY} callers, {way}", many, LEAST_PER_S, "/s"))
        found.append(at_least(f"{MANY} callers over one, {way}", many / one, 1.0, "x"))
    return tuple(found)
