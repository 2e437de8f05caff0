"""A node with a few functions and an engine that waits, for the tests of frontend and client."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Self

import uvloop

from dandelion.data import SetSpec
from dandelion.documents import CodeDocument, FunctionDocument, RegistrationDocument
from dandelion.driver import Call, Driver, Engine, Hosting, InstanceSets, Resource
from dandelion.frontend_process.supervisor import Supervisor
from dandelion.node import Node, Settings

SETTINGS = Settings(
    backends=("null",), arena_bytes=16 << 20, body_limit_bytes=8 << 20, max_waiting=16
)


class GateEngine(Engine):
    """Runs a call until its gate opens or it is cancelled."""

    name = "gate:0"

    def __init__(self, driver: GateDriver) -> None:
        self._driver = driver

    def _run(self, call: Call) -> InstanceSets:
        self._driver.started.release()
        self._driver.gate.acquire()
        if call.function.main == b"bug":
            raise KeyError("a bug in an engine")
        return call.inputs

    def cancel(self, call_id: int) -> bool:
        self._driver.cancelled.release()
        self._driver.gate.release()
        return True

    def close(self) -> None:
        pass


class GateDriver(Driver):
    """Calls wait until the test lets them go."""

    name = "gate"
    formats = frozenset({"gate"})
    hosting = Hosting.THREAD

    def __init__(self) -> None:
        self.started = threading.Semaphore(0)
        self.gate = threading.Semaphore(0)
        self.cancelled = threading.Semaphore(0)

    def probe(self) -> list[Resource]:
        return [Resource("0", "a gate")]

    def engine(self, resource: str) -> Engine:
        return GateEngine(self)


def function(
    name: str,
    inputs: tuple[SetSpec | str, ...],
    results: tuple[SetSpec | str, ...],
    code_format: str = "null",
    main: str = "",
    **options: str,
) -> FunctionDocument:
    code = CodeDocument(code_format, main, options=options)
    return FunctionDocument(name, inputs, results, code=(code,))


MATRIX = SetSpec("m", "float32", (-1, 2))
DOCUMENT = RegistrationDocument(
    functions=(
        function("echo", ("a",), ("b",)),
        function("pair", ("left", "right"), ("left", "right")),
        function("matrix", (MATRIX,), (MATRIX,)),
        function("fail", ("a",), ("b",), fail="ValueError: no"),
        function("many", ("a",), ("b",), outputs="300"),
        function("wait", ("a",), ("b",), "gate"),
        function("bug", ("a",), ("b",), "gate", "bug"),
        FunctionDocument(
            "fixed",
            ("a", "w"),
            ("a", "w"),
            static={"w": {"w": "weights"}},
            code=(CodeDocument("null"),),
        ),
    ),
    libraries={"lib/k.cl": "kernel"},
    compositions=(
        """function echo(a) => (b);
        function fail(a) => (b);
        composition twice(x) => (y) { echo(a = all x) => (m = b); echo(a = each m) => (y = b); }
        composition fails(x) => (y) { fail(a = all x) => (y = b); }""",
    ),
)


class Processes:
    """A node on a loop in a thread, served by frontend processes.

    Attributes:
        node: the node.
        supervisor: of its frontends; for the loop alone.
        loop: the node's.
        left: set on the loop, it drains the frontends and ends all.
        port: where they listen.
    """

    def __init__(self, settings: Settings, drivers: Sequence[Driver], count: int) -> None:
        self.node = Node(settings, drivers)
        self._count = count
        self._begun: Future[None] = Future()
        self._thread = threading.Thread(target=lambda: uvloop.run(self._run()), daemon=True)
        self._thread.start()
        self._begun.result()

    async def _run(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.left = asyncio.Event()
        async with self.node:
            supervisor = Supervisor(self.node, "127.0.0.1", 0, self._count, 5)
            self.supervisor = supervisor
            self.port = supervisor.address[1]
            try:
                await supervisor.start()
                self._begun.set_result(None)
                while not self.left.is_set():
                    supervisor.tick()
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self.left.wait(), 0.05)
                await supervisor.drain()
            except BaseException as error:
                if self._begun.done():
                    raise
                self._begun.set_exception(error)
            finally:
                await supervisor.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self.left.set)
        self._thread.join()
