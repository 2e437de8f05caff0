"""A client of a node: register, invoke, look, over HTTP and MessagePack.

    with Client("http://127.0.0.1:8080") as client:
        client.register(render_logs, functions=[access, fan_out, render])
        html = client.invoke("render_logs", token=b"...", topic=b"...").html.text()

Values, results and errors are those of an embedded `dandelion.node.Node`, so a program can change
from one to the other. The library's own `http.client` does the work; nothing else is needed.
"""

from __future__ import annotations

import asyncio
import time
import urllib.parse
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self, TypeAlias, TypeVar

import msgspec

from dandelion.data import Bytes, Sets, Value
from dandelion.documents import ContentLike, FunctionDocument, Registered, Registrable, collect
from dandelion.errors import DandelionError, InvalidInput, Unknown, from_record
from dandelion.frontend.codecs import decode_reply, encode_request
from dandelion.frontend.connections import Answer, Connections, Unreachable
from dandelion.frontend.outgoing import outgoing_set
from dandelion.frontend.problem import decode_problem
from dandelion.frontend.records import Description, EngineEntry, Entry, RegisterReply

__all__ = ["AsyncClient", "Client", "Unreachable"]

T = TypeVar("T")
Entries: TypeAlias = list[Entry]
Engines: TypeAlias = list[EngineEntry]
_MSGPACK = {"Content-Type": "application/msgpack", "Accept": "application/msgpack"}
_GRACE_S = 10.0
_KINDS = ("functions", "compositions", "libraries")
_POLL_S = 0.05


class _Listing(msgspec.Struct):
    functions: list[Entry] = []
    compositions: list[Entry] = []
    libraries: list[Entry] = []
    removed: list[Entry] = []


class _Engines(msgspec.Struct):
    engines: list[EngineEntry]


class Client:
    """Talks to one node. Safe to use from any thread; connections are kept alive.

    Args:
        url: where the node listens.
        timeout_s: how long to wait for an answer, in seconds. An invocation with a deadline waits
            as long as that, and a little for the node to say that it has passed.

    Raises:
        InvalidInput: the URL cannot be one of a node.
    """

    def __init__(self, url: str = "http://127.0.0.1:8080", timeout_s: float = 75.0) -> None:
        self._connections = Connections(url, timeout_s)
        self.url = self._connections.url

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._connections.close()

    # --- invoking -------------------------------------------------------------------------------

    def invoke(
        self,
        name: str,
        /,
        *,
        version: int | None = None,
        deadline_s: float | None = None,
        **sets: Value,
    ) -> Sets:
        """Invoke a function or composition, as `dandelion.node.Node.invoke`.

        Args:
            name: what to invoke.
            version: which version; by default the newest.
            deadline_s: seconds until the node gives the invocation up.
            **sets: the input sets. All must be named; None is an absent set.

        Returns:
            The output sets by name; arrays have the declared dtype and shape.

        Raises:
            DandelionError: of the same class as in-process; a note has the id of the invocation.
            Unreachable: the node could not be talked to.
        """
        return self.invoke_sets(name, sets, version=version, deadline_s=deadline_s)[1]

    def invoke_sets(
        self,
        name: str,
        sets: Mapping[str, Value],
        *,
        version: int | None = None,
        deadline_s: float | None = None,
    ) -> tuple[str, Sets]:
        """Invoke as `invoke` does; gives the invocation's id, for `trace`, and its sets."""
        outgoing = {set_name: outgoing_set(set_name, value) for set_name, value in sets.items()}
        headers = dict(_MSGPACK)
        wait_s = None
        if deadline_s is not None:
            headers["Dandelion-Deadline"] = repr(float(deadline_s))
            wait_s = max(deadline_s, 0.0) + _GRACE_S
        path = _path("/v1/invoke", name, version)
        answer = self._send("POST", path, headers, encode_request(outgoing), wait_s)
        return decode_reply(answer.body)

    # --- the catalogue --------------------------------------------------------------------------

    def register(
        self,
        *things: Registrable,
        functions: Iterable[FunctionDocument] = (),
        libraries: Mapping[str, ContentLike | bytes | Path] | None = None,
    ) -> list[Registered]:
        """Register everything together, all or nothing.

        Args:
            things: compositions of the DSL, texts in the composition language, functions,
                registration documents.
            functions: further functions.
            libraries: code objects by name: text, bytes, or the path of a file.

        Returns:
            Kind, name and version of each.

        Raises:
            InvalidFunction, InvalidBlueprint, InvalidComposition, Conflict, Unknown, InvalidInput:
                what the node refused; nothing was registered.
        """
        body = msgspec.msgpack.encode(collect(things, functions, libraries))
        answer = self._send("POST", "/v1/register", _MSGPACK, [body])
        return list(_read(answer, RegisterReply).registered)

    def list(self) -> Entries:
        """List the newest versions of all functions, compositions and libraries."""
        entries = []
        for kind in _KINDS:
            listing = _read(self._send("GET", f"/v1/{kind}"), _Listing)
            entries += getattr(listing, kind)
        return entries

    def describe(self, name: str, version: int | None = None) -> Description:
        """Describe a function, composition or library.

        Raises:
            Unknown: with the nearest name.
        """
        return _read(self._of_any_kind("GET", name, version), Description)

    def remove(self, name: str, version: int | None = None) -> Entries:
        """Remove one version of a name, or all.

        Raises:
            Unknown: there is no such name or version.
            Conflict: a composition uses it.
        """
        return _read(self._of_any_kind("DELETE", name, version), _Listing).removed

    def graph(self, name: str, format: str = "svg", version: int | None = None) -> str:  # noqa: A002  # as in the query
        """Draw a composition as ``svg``, ``mermaid``, ``json`` or ``text``."""
        path = _path("/v1/compositions", name, version, "/graph", format=format)
        return str(self._send("GET", path).body, "utf-8")

    # --- looking --------------------------------------------------------------------------------

    def trace(self, invocation: str) -> bytes:
        """Give the trace of a recent invocation, as Chrome and Perfetto read it.

        Raises:
            Unknown: the node has no trace of that id, or no longer.
        """
        return bytes(self._send("GET", _path("/v1/traces", invocation)).body)

    def engines(self) -> Engines:
        """List the node's engines, and backends that do not work there with their reason."""
        return _read(self._send("GET", "/v1/engines"), _Engines).engines

    def metrics(self) -> str:
        """Give the node's metrics in Prometheus' text format."""
        return str(self._send("GET", "/metrics").body, "utf-8")

    def ready(self, wait_s: float = 0.0) -> bool:
        """Tell whether the node's engines are up; wait for that, at most so many seconds."""
        end = time.monotonic() + wait_s
        while True:
            try:
                if self._connections.request("GET", "/readyz", {}).status == 200:
                    return True
            except Unreachable:
                pass  # it may be starting
            left_s = end - time.monotonic()
            if left_s <= 0:
                return False
            time.sleep(min(_POLL_S, left_s))

    # --- requests -------------------------------------------------------------------------------

    def _of_any_kind(self, method: str, name: str, version: int | None) -> Answer:
        unknown: Unknown | None = None
        for kind in _KINDS:
            try:
                return self._send(method, _path(f"/v1/{kind}", name, version))
            except Unknown as error:
                if unknown is None or error.nearest:
                    unknown = error
        assert unknown is not None
        raise unknown

    def _send(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] | None = None,
        chunks: Iterable[Bytes] = (),
        timeout_s: float | None = None,
    ) -> Answer:
        answer = self._connections.request(method, path, headers or {}, [*chunks], timeout_s)
        if answer.status >= 400:
            raise _error_of(self.url, answer)
        return answer


def _error_of(url: str, answer: Answer) -> DandelionError:
    problem = decode_problem(answer.body)
    if problem is None:
        text = bytes(answer.body[:200]).decode("utf-8", "replace")
        return Unreachable(url, f"this is no Dandelion node: HTTP {answer.status} {text}")
    error = from_record(problem.error)
    if problem.instance:
        error.add_note(f"invocation {problem.instance}")
    return error


def _read(answer: Answer, cls: type[T]) -> T:
    try:
        return msgspec.json.decode(answer.body, type=cls)
    except msgspec.DecodeError as error:
        raise InvalidInput("reply", f"this is no reply of Dandelion: {error}") from None


def _path(route: str, name: str, version: int | None = None, tail: str = "", **query: str) -> str:
    if version is not None:
        query["version"] = str(version)
    path = f"{route}/{urllib.parse.quote(name, safe='')}{tail}"
    return f"{path}?{urllib.parse.urlencode(query)}" if query else path


class AsyncClient:
    """`Client` for asyncio: each call runs in a thread, over the same pool of connections.

    Args:
        url, timeout_s: as for `Client`.
    """

    def __init__(self, url: str = "http://127.0.0.1:8080", timeout_s: float = 75.0) -> None:
        self.client = Client(url, timeout_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.client.close()

    async def invoke(
        self,
        name: str,
        /,
        *,
        version: int | None = None,
        deadline_s: float | None = None,
        **sets: Value,
    ) -> Sets:
        """Invoke as `Client.invoke`. Cancelling it does not reach the node; give a deadline."""
        call = self.client.invoke_sets
        _, result = await asyncio.to_thread(
            call, name, sets, version=version, deadline_s=deadline_s
        )
        return result

    async def register(
        self, *things: Registrable, functions: Iterable[FunctionDocument] = ()
    ) -> list[Registered]:
        """Register as `Client.register`."""
        return await asyncio.to_thread(self.client.register, *things, functions=functions)

    async def ready(self, wait_s: float = 0.0) -> bool:
        """Wait for the node's engines as `Client.ready`."""
        return await asyncio.to_thread(self.client.ready, wait_s)
