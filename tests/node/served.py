"""A node with a few functions and an engine that waits, for the tests of frontend and client."""

from __future__ import annotations

import threading

from dandelion.data import SetSpec
from dandelion.documents import CodeDocument, FunctionDocument, RegistrationDocument
from dandelion.driver import Call, Driver, Engine, Hosting, InstanceSets, Resource
from dandelion.node import Settings

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
