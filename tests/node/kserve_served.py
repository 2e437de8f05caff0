"""A node that serves KServe over HTTP and gRPC, for its tests."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from dandelion.data import SetSpec
from dandelion.documents import RegistrationDocument
from dandelion.driver import Call, Engine, InstanceSets
from dandelion.frontend.server import BackgroundServer
from dandelion.node import Node, Settings
from dandelion.testing import Script, ScriptedDriver, echo, wait_until

from .frontend_processes import Processes
from .served import DOCUMENT, SETTINGS, function

PREFIX = "/dandelion_test_"
KSERVE = msgspec.structs.replace(SETTINGS, protocols=("kserve",), arena_bytes=64 << 20)
VECTOR = SetSpec("v", "float32", (4,))
FURTHER = RegistrationDocument(
    functions=(
        function("vector", (VECTOR,), (VECTOR,)),
        function("ragged", (SetSpec("v", "float32"),), (SetSpec("v", "float32"),)),
        function("complex", (SetSpec("z", "complex64", (2,)),), (SetSpec("z", "complex64", (2,)),)),
    ),
    compositions=(
        """function vector(v) => (v); function ragged(v) => (v);
        composition vectors(v) => (w) { vector(v = each v) => (w = v); }""",
    ),
)


class HeldCalls(ScriptedDriver):
    """A backend that holds each call of the functions `wait` until it is cancelled or released.

    Attributes:
        behind: what a call does then.
    """

    def __init__(self) -> None:
        self.behind: Callable[..., InstanceSets] = echo
        self._events: defaultdict[int, threading.Event] = defaultdict(threading.Event)
        self._lock = threading.Lock()
        super().__init__("gate", Script(run=self._hold, cancel=self._cancel))

    def _hold(self, engine: Engine, call: Call) -> InstanceSets:
        self._event(call.id).wait()
        return self.behind(engine, call)

    def _cancel(self, call_id: int) -> bool:
        self._event(call_id).set()
        return True

    def _event(self, call_id: int) -> threading.Event:
        with self._lock:
            return self._events[call_id]

    def let_go(self) -> None:
        """Let all calls go, those to come as well."""
        with self._lock:
            for event in self._events.values():
                event.set()
            self._events.default_factory = _set_event


def _set_event() -> threading.Event:
    event = threading.Event()
    event.set()
    return event


@dataclass
class KServed:
    """A served node.

    Attributes:
        node: the node.
        held: the calls of functions named `wait`.
        port: of HTTP.
        grpc_port: of gRPC; 0 where it is not served.
        at_rest: what the arena holds when nothing runs.
        processes: the frontends; None if the node's process serves.
    """

    node: Node
    held: HeldCalls
    port: int
    grpc_port: int
    at_rest: int
    processes: Processes | None

    @property
    def address(self) -> str:
        """Of HTTP, as clients take it."""
        return f"127.0.0.1:{self.port}"

    @property
    def grpc_address(self) -> str:
        """Of gRPC."""
        return f"127.0.0.1:{self.grpc_port}"

    def ask(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any, http.client.HTTPResponse]:
        """Send a request; gives status, document and response."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        with contextlib.closing(connection):
            data = json.dumps(body) if isinstance(body, dict) else body
            connection.request(method, path, data, dict(headers or {}))
            response = connection.getresponse()
            read = response.read()
            is_json = response.getheader("content-type", "").startswith("application/json")
            return response.status, json.loads(read) if is_json else read, response

    def check_no_leak(self) -> None:
        """Wait until the arena holds what it held at first."""
        wait_until(lambda: self.node.info().arena.used_bytes <= self.at_rest)


@contextlib.contextmanager
def kserved(
    frontends: int, settings: Settings = KSERVE, *, with_grpc: bool = False, **changes: object
) -> Iterator[KServed]:
    """Serve; with more than one frontend also gRPC."""
    settings = msgspec.structs.replace(settings, **changes)
    held = HeldCalls()
    with contextlib.ExitStack() as stack:
        processes = None
        grpc_port = 0
        if frontends > 1 or with_grpc:
            processes = stack.enter_context(
                Processes(msgspec.structs.replace(settings, grpc_port=0), [held], frontends)
            )
            node, port = processes.node, processes.port
            assert processes.supervisor.grpc_address is not None
            grpc_port = processes.supervisor.grpc_address[1]
        else:
            node = stack.enter_context(Node(settings, [held]))
            server = stack.enter_context(BackgroundServer(node))
            port = int(server.url.rpartition(":")[2])
        for document in (DOCUMENT, FURTHER):
            node.register(document)
        assert node.wait_ready()
        at_rest = node.info().arena.used_bytes
        yield KServed(node, held, port, grpc_port, at_rest, processes)
