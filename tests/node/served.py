"""A node with a few functions and an engine that waits, for the tests of frontend and client."""

from __future__ import annotations

from collections.abc import Callable

from dandelion.data import SetSpec
from dandelion.documents import CodeDocument, FunctionDocument, RegistrationDocument
from dandelion.driver import Call, Engine, InstanceSets
from dandelion.node import Settings
from dandelion.testing import Gate, ScriptedDriver, echo

SETTINGS = Settings(
    backends=("null",), arena_bytes=16 << 20, body_limit_bytes=8 << 20, max_waiting=16
)


class GateDriver(ScriptedDriver):
    """A backend whose calls wait at a gate; those of the code ``bug`` raise behind it."""

    def __init__(self) -> None:
        self.gate = Gate(self._behind)
        self.behind: Callable[..., InstanceSets] = echo
        super().__init__("gate", self.gate.script)

    def _behind(self, engine: Engine, call: Call) -> InstanceSets:
        if call.function.main == b"bug":
            raise KeyError("a bug in an engine")
        return self.behind(engine, call)


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
