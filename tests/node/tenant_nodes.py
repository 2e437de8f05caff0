"""Nodes with tenants that have quotas, and calls that wait at a gate."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from dandelion.data import Sets
from dandelion.documents import CodeDocument, Content, FunctionDocument
from dandelion.driver import Capacity
from dandelion.node import Node, Settings
from dandelion.settings import TenantSettings
from dandelion.testing import ScriptedDriver, wait_until
from dandelion.testing.scheduler_invariants import check_invariants

ENGINES = {"0": Capacity(), "1": Capacity()}


def document(name: str = "F", main: bytes = b"") -> FunctionDocument:
    code = CodeDocument("played", Content(data=main)) if main else CodeDocument("played")
    return FunctionDocument(name, ("a",), ("b",), code=(code,))


@contextmanager
def tenants(
    driver: ScriptedDriver, policy: str = "fifo", **given: TenantSettings
) -> Iterator[Node]:
    """Give a node with these tenants, each with a function; nothing may be left in the end."""
    settings = Settings(backends=(), arena_bytes=16 << 20, tenants=given, policy=policy)
    with Node(settings, [driver]) as node:
        assert node.wait_ready()
        for name in given:
            node.register(document(), tenant=name)
        yield node
        wait_until(lambda: not any(engine.busy for engine in node.engines()))
        assert (node.info().running, node.info().waiting) == (0, 0)
        scheduler = node._runtime.scheduler
        check_invariants(scheduler)
        for tenant in scheduler.tenants.values():
            assert (tenant.invocations, tenant.calls, tenant.arena_bytes) == (0, 0, 0)


def begun(pool: ThreadPoolExecutor, node: Node, tenant: str, data: bytes = b"1") -> Future[Sets]:
    """Begin an invocation; it is admitted, or has ended, when this returns."""
    count = node.info().running
    call = pool.submit(node.invoke, "F", a=data, tenant=tenant)
    wait_until(lambda: call.done() or node.info().running > count)
    return call
