"""What a node has and what is free: in the program, over HTTP, on the command line."""

from __future__ import annotations

import contextlib
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import msgspec
import pytest

from dandelion.capacity import Admission, NodeCapacity, TenantCapacity
from dandelion.cli.main import main
from dandelion.data import Sets
from dandelion.dataflow.sharding import Partitioning
from dandelion.dispatcher import Walk
from dandelion.dispatcher.plan import direct_plan
from dandelion.documents import CodeDocument, Content, FunctionDocument
from dandelion.driver import Capacity, Demand, Hosting
from dandelion.errors import InvalidFunction, InvalidInput, Overloaded, Unknown
from dandelion.frontend.client import Client
from dandelion.frontend.server import BackgroundServer
from dandelion.function import CodeObject, FunctionSpec, Limits
from dandelion.node import Node, Settings
from dandelion.node.capacity import SAMPLE_NS, SAMPLES, BusyMeter, tenant_capacities
from dandelion.policies import policy_of
from dandelion.scheduler import EngineState, InvocationState, Scheduler, Tenant
from dandelion.scheduler.actions import Plan
from dandelion.settings import TenantSettings
from dandelion.testing import Gate, ScriptedDriver, wait_until
from tests.node.frontend_processes import Processes

ENGINES = {"0": Capacity(device_bytes=100), "1": Capacity(device_bytes=200)}
TENANTS = {
    "default": TenantSettings(queue_length=3, call_device_bytes=150),
    "a": TenantSettings(weight=3.0, calls=1, invocations=4, arena_bytes=1 << 20),
    "b": TenantSettings(),
}


def document(name: str = "F", format_name: str = "played", **limits: int) -> FunctionDocument:
    code = (CodeDocument(format_name),)
    return FunctionDocument(name, ("a",), ("b",), limits=Limits(**limits), code=code)


@dataclass
class Played:
    """A node whose calls wait at a gate, and callers."""

    node: Node
    gate: Gate
    pool: ThreadPoolExecutor

    def begin(self, name: str = "F", tenant: str = "default") -> Future[Sets]:
        """Begin an invocation; its call waits or runs when this returns."""
        count = self.node.info().running
        call = self.pool.submit(self.node.invoke, name, a=b"1", tenant=tenant)
        wait_until(lambda: call.done() or self.node.info().running > count)
        return call

    def tenant(self, name: str) -> TenantCapacity:
        (row,) = self.node.capacity(name).tenants
        return row

    def admission(self, name: str = "F", tenant: str = "default") -> Admission:
        found = self.node.capacity(tenant, name).admission
        assert found is not None
        return found


def settings(**given: int) -> Settings:
    return Settings(backends=(), arena_bytes=16 << 20, tenants=TENANTS, max_waiting=50, **given)


@contextlib.contextmanager
def working(node: Node, gate: Gate) -> Iterator[Played]:
    assert node.wait_ready()
    for name in TENANTS:
        node.register(document(), document("Single", concurrency=1, queue_length=2), tenant=name)
    with ThreadPoolExecutor(32) as pool:
        try:
            yield Played(node, gate, pool)
        finally:
            gate.open(100)


@pytest.fixture
def played() -> Iterator[Played]:
    gate = Gate()
    driver = ScriptedDriver("played", gate.script, Hosting.THREAD, ENGINES)
    with Node(settings(), [driver]) as node, working(node, gate) as found:
        yield found


# --- tenants --------------------------------------------------------------------------------------


def test_tenants_see_what_they_use_and_may_use(played: Played) -> None:
    for _ in range(2):
        played.begin("F", "a")
    played.begin("F", "b")
    assert played.gate.entered()
    assert played.gate.entered()
    row = played.tenant("a")
    assert (row.invocations, row.calls, row.waiting) == (2, 1, 1)
    assert (row.arena_bytes, row.quota) == (2, TENANTS["a"])
    assert row.share == 3 / 4, "only two tenants have calls"
    assert played.tenant("b").share == 1 / 4
    assert played.tenant("default").share == 1 / 5, "if it had calls"
    everything = played.node.capacity()
    assert {tenant.name for tenant in everything.tenants} >= set(TENANTS)
    assert (everything.invocations, everything.invocations_limit) == (3, 50)
    assert everything.arena.total_bytes == 16 << 20
    assert everything.arena.largest_free_bytes <= everything.arena.total_bytes


def test_one_tenant_sees_engines_in_total_only(played: Played) -> None:
    played.begin("F", "a")
    assert played.gate.entered()
    engines = played.node.capacity().engines
    assert [(e.engines, e.state, e.device_bytes) for e in engines] == [
        (1, "ready", 100),
        (1, "ready", 200),
    ]
    assert len({engine.name for engine in engines}) == 2
    assert sum(engine.running for engine in engines) == 1
    for _ in range(3):
        played.begin("F", "b")
    (total,) = played.node.capacity("b").engines
    assert (total.name, total.engines, total.running, total.waiting) == ("", 2, 2, 2)
    assert (total.backend, total.device_bytes) == ("played", 200)


def test_metrics_have_the_same_counters(played: Played) -> None:
    for _ in range(3):
        played.begin("F", "a")
    lines = played.node.metrics().decode().splitlines()
    for name, value in (("share", 1.0), ("invocations", 3.0), ("calls", 1.0), ("waiting", 2.0)):
        assert f'dandelion_tenant_{name}{{tenant="a"}} {value}' in lines
    assert 'dandelion_tenant_arena_bytes{tenant="a"} 3.0' in lines
    assert 'dandelion_tenant_device_bytes{tenant="b"} 0.0' in lines


def test_device_memory_is_that_of_constants_and_of_running_calls() -> None:
    """By the scheduler alone, so that a device is not needed."""
    scheduler = Scheduler(policy_of("fifo"), 1 << 30, lambda flow: (100, 100))
    engine = EngineState(1, frozenset({"x"}), places=1, planner=True)
    scheduler.fleet.added(engine)
    scheduler.fleet.up(engine, "x:0", Capacity(constants_bytes=250), 0)
    tenant, other = Tenant("t"), Tenant("other")
    spec = FunctionSpec("f", code=(CodeObject("x"),))
    walk = Walk(direct_plan(spec), Partitioning("auto", 1, 1))
    scheduler.submitted(InvocationState("1", tenant, walk, (), 1 << 62, 1.0), 0)
    scheduler.calls.fetched(scheduler.calls.flows["t", "f", 0], 0)
    (plan,) = [action for action in scheduler.take() if isinstance(action, Plan)]

    def device_bytes() -> list[int]:
        rows = tenant_capacities(scheduler, [tenant, other], [tenant, other])
        return [row.device_bytes for row in rows]

    assert device_bytes() == [0, 0]
    scheduler.calls.planned(plan.call, Demand(0, 40, 1, 1), 0)
    assert device_bytes() == [100 + 40, 0]
    (total,) = scheduler.calls.residency.devices.values()
    assert total.used_bytes == 100
    scheduler.calls.done(plan.call, (), 1)
    assert device_bytes() == [100, 0], "constants stay"


# --- admission ------------------------------------------------------------------------------------


def test_a_call_that_would_run_now(played: Played) -> None:
    assert played.admission() == Admission("F", 1, "now")
    played.begin()
    assert played.admission().state == "now", "the other engine is free"


def test_a_call_whose_function_is_not_in_memory(played: Played) -> None:
    code = CodeDocument("played", Content(data=b"code"))
    played.node.register(FunctionDocument("Coded", ("a",), ("b",), code=(code,)))
    assert "loaded" in played.admission("Coded").reason
    call = played.begin("Coded")
    played.gate.open()
    call.result(20)
    assert played.admission("Coded").state == "now"


def test_a_call_that_would_wait(played: Played) -> None:
    for _ in range(4):
        played.begin()
    found = played.admission()
    assert (found.state, found.before) == ("queued", 2)
    assert "busy" in found.reason


def test_a_call_that_would_wait_for_its_function_or_tenant(played: Played) -> None:
    for _ in range(2):
        played.begin("Single")
    found = played.admission("Single")
    assert (found.state, found.before) == ("queued", 1)
    assert "function 'default/Single'" in found.reason
    assert played.admission("F").state == "now"
    played.begin("F", "a")
    assert "tenant 'a'" in played.admission("F", "a").reason


def test_a_call_that_would_be_refused_is_refused(played: Played) -> None:
    for _ in range(3):
        played.begin("Single")
    found = played.admission("Single")
    assert found.state == "refused"
    with pytest.raises(Overloaded) as caught:
        played.node.invoke("Single", a=b"1")
    assert str(caught.value) == found.reason
    assert (caught.value.owner, caught.value.limit) == ("function 'default/Single'", 2)
    for _ in range(2):
        played.begin("F")
    found = played.admission("F")
    assert "tenant 'default'" in found.reason
    with pytest.raises(Overloaded) as caught:
        played.node.invoke("F", a=b"1")
    assert str(caught.value) == found.reason
    for _ in range(4):
        played.begin("F", "a")
    with pytest.raises(Overloaded) as caught:
        played.node.invoke("F", a=b"1", tenant="a")
    assert str(caught.value) == played.admission("F", "a").reason


def test_what_has_no_admission(played: Played) -> None:
    played.node.register(
        "function F(a) => (b); composition C(x) => (y) { F(a = all x) => (y = b); }"
    )
    with pytest.raises(InvalidInput, match="F"):
        played.node.capacity(function="C")
    with pytest.raises(Unknown):
        played.node.capacity(function="Nothing")
    with pytest.raises(Unknown):
        played.node.capacity(function="F", version=7)


# --- limits of functions --------------------------------------------------------------------------


def test_limits_of_functions_have_caps() -> None:
    driver = ScriptedDriver("played")
    with Node(settings(max_concurrency=4, max_queue_length=8), [driver]) as node:
        node.register(document("F"))
        found = node.describe("F")
        assert (found.limits.concurrency, found.limits.queue_length) == (4, 8)  # type: ignore[union-attr]
        for limits in ({"concurrency": 5}, {"queue_length": 9}, {"concurrency": 0}):
            with pytest.raises(InvalidFunction, match=next(iter(limits))):
                node.register(document("G", **limits))


# --- HTTP and the command line --------------------------------------------------------------------


@pytest.fixture(params=["the node's", "two processes"])
def served(request: pytest.FixtureRequest) -> Iterator[tuple[Played, str]]:
    """A node behind its own frontend, or behind two frontend processes."""
    gate = Gate()
    driver = ScriptedDriver("played", gate.script, Hosting.THREAD, ENGINES)
    with contextlib.ExitStack() as stack:
        if request.param == "two processes":
            processes = stack.enter_context(Processes(settings(), [driver], 2))
            node, url = processes.node, f"http://127.0.0.1:{processes.port}"
        else:
            node = stack.enter_context(Node(settings(), [driver]))
            url = stack.enter_context(BackgroundServer(node, drain_s=1)).url
        yield stack.enter_context(working(node, gate)), url


def test_over_http_the_default_tenant_sees_its_own(served: tuple[Played, str]) -> None:
    played, url = served
    played.begin("F", "a")
    for _ in range(4):
        played.begin()
    with Client(url) as client:
        found = client.capacity("F")
        assert client.capacity().admission is None
        with pytest.raises(Unknown):
            client.capacity("Nothing")
    assert [tenant.name for tenant in found.tenants] == ["default"]
    assert (found.tenants[0].calls, found.tenants[0].waiting) == (1, 3)
    assert found.tenants[0].quota == TENANTS["default"]
    assert [(engine.name, engine.running) for engine in found.engines] == [("", 2)]
    assert found.admission is not None
    assert found.admission.state == "refused"
    with Client(url) as client, pytest.raises(Overloaded) as caught:
        client.invoke("F", a=b"1")
    assert (caught.value.limit, caught.value.owner) == (3, "tenant 'default'")
    assert "tenant 'default'" in found.admission.reason


def test_it_is_json_or_messagepack(served: tuple[Played, str]) -> None:
    _, url = served

    def ask(**headers: str) -> tuple[str, bytes]:
        request = urllib.request.Request(f"{url}/v1/capacity?function=F", headers=headers)
        with urllib.request.urlopen(request) as answer:
            return answer.headers["Content-Type"], answer.read()

    media, body = ask()
    assert media == "application/json"
    found = msgspec.json.decode(body, type=NodeCapacity)
    media, body = ask(Accept="application/msgpack")
    assert media == "application/msgpack"
    assert msgspec.msgpack.decode(body, type=NodeCapacity).tenants == found.tenants


def test_bad_questions(served: tuple[Played, str]) -> None:
    _, url = served
    for query, headers, status in (
        ("?functoin=F", {}, 400),
        ("?function=F&version=x", {}, 400),
        ("?function=Nothing", {}, 404),
        ("", {"Accept": "image/png"}, 406),
        ("", {"Accept": "application/octet-stream"}, 406),
    ):
        request = urllib.request.Request(f"{url}/v1/capacity{query}", headers=headers)
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(request)
        assert caught.value.code == status
        caught.value.close()


def test_the_command_shows_it(played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(3):
        played.begin()
    with BackgroundServer(played.node, drain_s=1) as server:
        assert main(["capacity", "F", "--url", server.url]) == 0
        shown = capsys.readouterr().out
        assert main(["capacity", "--url", server.url, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert main(["capacity", "Nothing", "--url", server.url]) == 1
    assert "F, version 1: a call would wait behind 1 (all engines are busy)" in shown
    (row,) = (line.split() for line in shown.splitlines() if line.startswith("default"))
    assert row[:3] == ["default", "100%", "3"]
    assert "1 of 3" in shown, "of its queue"
    assert found["tenants"][0]["waiting"] == 1


# --- busy time ------------------------------------------------------------------------------------


def test_busy_time_is_that_of_the_last_seconds() -> None:
    engine, meter = EngineState(0, frozenset({"x"})), BusyMeter()
    assert meter.busy(engine, 0) == 0
    for second in range(1, 20):
        engine.busy_ns += SAMPLE_NS // 4 if second < 10 else 0
        meter.sample([engine], second * SAMPLE_NS)
        meter.sample([engine], second * SAMPLE_NS + 1)
        if second == 9:
            assert meter.busy(engine, second * SAMPLE_NS) == 0.25
        if second > 9 + SAMPLES:
            assert meter.busy(engine, second * SAMPLE_NS) == 0
    engine.busy_ns += 100 * SAMPLE_NS
    assert meter.busy(engine, 20 * SAMPLE_NS) == 1
