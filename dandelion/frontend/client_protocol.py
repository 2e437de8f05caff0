"""What both clients of a node send and receive, without any input or output.

A method of a client is a generator: it yields requests, is sent the responses and returns the
result. `Client` and `AsyncClient` differ only in how they carry out the requests.
"""

from __future__ import annotations

import contextlib
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias, TypeVar

import msgspec

from dandelion.activity import Activity, ActivityQuery
from dandelion.asynchronous.records import (
    KeptPage,
    KeptRequest,
    KeptState,
    KeptView,
    Watched,
    check_key,
)
from dandelion.call_logs import LogPage
from dandelion.capacity import ClusterInfo, NodeCapacity
from dandelion.catalog import Removal
from dandelion.data import Bytes, Sets, Value
from dandelion.documents import (
    ContentLike,
    FunctionDocument,
    PlannedChange,
    Registered,
    Registrable,
    RegistrationDocument,
    collect,
)
from dandelion.errors import DandelionError, InvalidInput, Unknown, from_record
from dandelion.frontend.client_requests import (
    ClientRequest,
    ClientResponse,
    Steps,
    check_seconds,
    checked_headers,
)
from dandelion.frontend.codecs import decode_response
from dandelion.frontend.kept_documents import (
    EventsDocument,
    InvocationsDocument,
    KeptDocument,
    kept_event,
    kept_view,
)
from dandelion.frontend.outgoing import outgoing_sets
from dandelion.frontend.problem import Unreachable, decode_problem
from dandelion.frontend.records import (
    ComparisonResponse,
    Description,
    EngineEntry,
    Entry,
    RegisterResponse,
    RemoveDocument,
)
from dandelion.frontend.set_encoding import encode_request
from dandelion.invocation_result import InvocationResult
from dandelion.progress import progress
from dandelion.recording.records import MAGIC
from dandelion.traces import TraceDocument

T = TypeVar("T")
Changes: TypeAlias = list[PlannedChange]
Entries: TypeAlias = list[Entry]
Engines: TypeAlias = list[EngineEntry]

_PREPARE_S = 330.0
"""The node's limit for packages, and some seconds."""
_LARGE_BYTES = 8 * 1024 * 1024
"""Smaller registrations are sent at once, so they need no progress."""
_MSGPACK = {"Content-Type": "application/msgpack", "Accept": "application/msgpack"}
_GRACE_S = 10.0
_KINDS = ("functions", "compositions", "libraries")
_OF_PROXIES = {
    401: "the proxy wants credentials; give them as headers, or use the node's own URL",
    407: "the proxy wants credentials; give them as headers, or use the node's own URL",
    413: "the request is larger than the proxy allows; raise its limit, or use the node's own URL",
    429: "the proxy takes no more requests for now; send fewer, or use the node's own URL",
    502: "the node behind the proxy does not answer",
    503: "the node behind the proxy does not answer",
    504: "the node behind the proxy has not answered in time; submit what takes long",
}
"""Statuses that proxies send by themselves."""


class _Listing(msgspec.Struct):
    functions: list[Entry] = []
    compositions: list[Entry] = []
    libraries: list[Entry] = []
    removed: list[Entry] = []


class _Trace(msgspec.Struct):
    events: list[msgspec.Raw] = msgspec.field(name="traceEvents")
    other: dict[str, msgspec.Raw] = msgspec.field(name="otherData")


class _Engines(msgspec.Struct):
    engines: list[EngineEntry]


def invoke(
    name: str,
    sets: Mapping[str, Value],
    version: int | None,
    deadline_s: float | None,
    priority: int,
    key: str,
) -> Steps[InvocationResult]:
    """Invoke; returns the invocation's id and its sets."""
    path = _path("/v1/invoke", name, version)
    more = {"Dandelion-Priority": str(priority)} if priority else {}
    if key:
        check_key("idempotency_key", key)
        more["Idempotency-Key"] = key
    response = _checked((yield _invocation(path, sets, deadline_s, more)))
    return InvocationResult(*decode_response(response.body))


def record(
    name: str, sets: Mapping[str, Value], version: int | None, deadline_s: float | None
) -> Steps[bytes]:
    """Invoke and record; returns the recording."""
    path = _path("/v1/record", name, version)
    body = _checked((yield _invocation(path, sets, deadline_s, {}))).body
    if body[: len(MAGIC)] != MAGIC:
        raise _foreign("it is not a recording of this version")
    return bytes(body)


def _invocation(
    path: str, sets: Mapping[str, Value], deadline_s: float | None, more: Mapping[str, str]
) -> ClientRequest:
    chunks = request_body(sets)
    headers, timeout_s = {**_MSGPACK, **more}, None
    if deadline_s is not None:
        check_seconds("deadline_s", deadline_s)
        headers["Dandelion-Deadline"] = repr(float(deadline_s))
        timeout_s = deadline_s + _GRACE_S
    return ClientRequest("POST", path, headers, chunks, timeout_s)


def submit(requested: KeptRequest, sets: Mapping[str, Value]) -> Steps[str]:
    """Submit an asynchronous invocation; returns its id."""
    chunks = request_body(sets)
    headers = {**_MSGPACK, "Prefer": "respond-async"}
    if requested.deadline_s is not None:
        check_seconds("deadline_s", requested.deadline_s)
        headers["Dandelion-Deadline"] = repr(float(requested.deadline_s))
    if requested.priority:
        headers["Dandelion-Priority"] = str(requested.priority)
    if requested.key:
        check_key("key", requested.key)
        headers["Idempotency-Key"] = requested.key
    if requested.callback:
        checked_headers({"Dandelion-Callback": requested.callback}, None)
        headers["Dandelion-Callback"] = requested.callback
    path = _path("/v1/invoke", requested.name, requested.version)
    response = yield ClientRequest("POST", path, headers, chunks)
    return _decoded(response, KeptDocument).id


def watch(id_: str, after: str, wait_s: float, *, end: bool) -> Steps[Watched]:
    """Ask about an asynchronous invocation, see `KeptAccess.watch`."""
    wait = {"wait_s": f"{wait_s:.3f}"} if wait_s > 0 else {}
    timeout_s = wait_s + _GRACE_S if wait else None
    if end:
        path = _path("/v1/invocations", id_, None, "", **wait)
        found = _decoded((yield ClientRequest("GET", path, timeout_s=timeout_s)), KeptDocument)
        return Watched(kept_view(found))
    path = _path("/v1/invocations", id_, None, "/events", after=after, **wait)
    request = ClientRequest("GET", path, {"Accept": "application/json"}, timeout_s=timeout_s)
    events = _decoded((yield request), EventsDocument)
    return Watched(kept_view(events.invocation), tuple(map(kept_event, events.events)))


def kept_result(id_: str, wait_s: float) -> Steps[Sets]:
    """Fetch the result of an asynchronous invocation."""
    wait = {"wait_s": f"{wait_s:.3f}"} if wait_s > 0 else {}
    path = _path("/v1/invocations", id_, None, "/result", **wait)
    timeout_s = wait_s + _GRACE_S if wait else None
    response = _checked((yield ClientRequest("GET", path, _MSGPACK, timeout_s=timeout_s)))
    return decode_response(response.body)[1]


def cancel_kept(id_: str) -> Steps[KeptView]:
    """Cancel or forget an asynchronous invocation."""
    response = yield ClientRequest("DELETE", _path("/v1/invocations", id_))
    return kept_view(_decoded(response, KeptDocument))


def list_kept(state: KeptState | None, after: str, limit: int) -> Steps[KeptPage]:
    """List asynchronous invocations, newest first."""
    query = {"limit": str(limit)} | ({} if state is None else {"state": state.value})
    query |= {"after": after} if after else {}
    path = f"/v1/invocations?{_query(query)}"
    found = _decoded((yield ClientRequest("GET", path)), InvocationsDocument)
    return KeptPage(tuple(map(kept_view, found.invocations)), found.after)


def request_body(sets: Mapping[str, Value]) -> list[Bytes]:
    """Write the sets of an invocation as MessagePack.

    Raises:
        InvalidInput: a value cannot be sent.
    """
    items, values = outgoing_sets(sets)
    try:
        return encode_request(items, values)
    except UnicodeEncodeError as error:
        raise _no_unicode("sets", error.object) from None
    except OverflowError as error:
        hint = "give larger ones as text"
        raise InvalidInput("sets", f"an integer has more than 64 bits: {error}", hint) from None


def register(
    things: Iterable[Registrable],
    functions: Iterable[FunctionDocument],
    libraries: Mapping[str, ContentLike | bytes | Path] | None,
    show_progress: bool,
) -> Steps[list[Registered]]:
    """Register everything together."""
    document = collect(things, functions, libraries)
    body = msgspec.msgpack.encode(document)
    wanted = show_progress and len(body) > _LARGE_BYTES
    with progress("registering", in_bytes=True, wanted=wanted) as show:

        def sent(done_bytes: int) -> None:
            words = "the node checks it" if done_bytes == len(body) else ""
            show(done_bytes, len(body), words)

        limit_s = _limit_of(document)
        request = ClientRequest("POST", "/v1/register", _MSGPACK, [body], limit_s, sent)
        response = yield request
    return list(_decoded(response, RegisterResponse).registered)


def compare(things: Iterable[Registrable]) -> Steps[Changes]:
    """Compare everything with what is registered."""
    document = collect(things)
    body = msgspec.msgpack.encode(document)
    limit_s = _limit_of(document)
    response = yield ClientRequest("POST", "/v1/compare", _MSGPACK, [body], limit_s)
    return list(_decoded(response, ComparisonResponse).changes)


def _limit_of(document: RegistrationDocument) -> float | None:
    """Return how long the node may take with a document; None as for all requests."""
    with_packages = any(code.packages for f in document.functions for code in f.code)
    return _PREPARE_S if with_packages else None


def list_all() -> Steps[Entries]:
    """List the newest versions of all names."""
    entries: Entries = []
    for kind in _KINDS:
        listing = _decoded((yield ClientRequest("GET", f"/v1/{kind}")), _Listing)
        entries += getattr(listing, kind)
    return entries


def describe(name: str, version: int | None) -> Steps[Description]:
    """Describe a name."""
    return _decoded((yield from _for_name("GET", name, version)), Description)


def remove(name: str, version: int | None) -> Steps[Entries]:
    """Remove a name."""
    return _decoded((yield from _for_name("DELETE", name, version)), _Listing).removed


def remove_together(removals: Iterable[Removal]) -> Steps[Entries]:
    """Remove records, all or nothing."""
    body = msgspec.json.encode(RemoveDocument(tuple(removals)))
    headers = {"Content-Type": "application/json"}
    response = yield ClientRequest("POST", "/v1/remove", headers, [body])
    return _decoded(response, _Listing).removed


def graph(name: str, format_: str, version: int | None) -> Steps[str]:
    """Draw a composition."""
    path = _path("/v1/compositions", name, version, "/graph", format=format_)
    return _text((yield ClientRequest("GET", path)))


def activity(query: ActivityQuery) -> Steps[Activity]:
    """Ask what the tenant did lately."""
    given = {name: value for name, value in msgspec.structs.asdict(query).items() if value}
    text = _query({n: str(v).lower() if v is True else v for n, v in given.items()})
    return _decoded((yield ClientRequest("GET", f"/v1/activity?{text}")), Activity)


def trace(invocation: str) -> Steps[TraceDocument]:
    """Fetch the trace of an invocation."""
    response = yield ClientRequest("GET", _path("/v1/traces", invocation))
    _decoded(response, _Trace)  # else what draws it would fail later
    return TraceDocument(response.body)


def logs(function: str | None, invocation: str | None, after: int, limit: int) -> Steps[LogPage]:
    """Fetch lines that functions wrote."""
    requested = {"function": function, "invocation": invocation, "after": after, "limit": limit}
    given = {name: value for name, value in requested.items() if value is not None}
    path = "/v1/logs?" + _query(given)
    return _decoded((yield ClientRequest("GET", path, {"Accept": "application/json"})), LogPage)


def engines() -> Steps[Engines]:
    """List the engines."""
    return _decoded((yield ClientRequest("GET", "/v1/engines")), _Engines).engines


def capacity(function: str | None, version: int | None) -> Steps[NodeCapacity]:
    """Ask what is free."""
    path = "/v1/capacity"
    if function is not None:
        requested = {"function": function} | ({} if version is None else {"version": str(version)})
        path += "?" + _query(requested)
    return _decoded((yield ClientRequest("GET", path)), NodeCapacity)


def cluster() -> Steps[ClusterInfo | None]:
    """Ask for the nodes of the cluster."""
    response = _checked((yield ClientRequest("GET", "/v1/cluster")))
    with _foreign_refused():
        return msgspec.json.decode(response.body, type=ClusterInfo | None)


def metrics() -> Steps[str]:
    """Fetch the metrics."""
    return _text((yield ClientRequest("GET", "/metrics")))


def ready() -> Steps[bool]:
    """Check once whether the engines are up."""
    return (yield ClientRequest("GET", "/readyz")).status == 200


def _for_name(method: str, name: str, version: int | None) -> Steps[ClientResponse]:
    """Send a request for a name of unknown kind."""
    unknown: Unknown | None = None
    for kind in _KINDS:
        try:
            return _checked((yield ClientRequest(method, _path(f"/v1/{kind}", name, version))))
        except Unknown as error:
            if unknown is None or error.nearest:
                unknown = error
    assert unknown is not None
    raise unknown


def _checked(response: ClientResponse) -> ClientResponse:
    """Raise the error that a response carries.

    Raises:
        Unreachable: it is not the response of a node.
    """
    if 200 <= response.status < 300:
        return response
    if response.status < 400 and response.location:
        message = f"the server redirects to {response.location[:200]}; give the URL of the node"
        raise Unreachable(response.url, message)
    problem = decode_problem(response.body)
    if problem is None:
        raise Unreachable(response.url, _foreign_error(response))
    error: DandelionError = from_record(problem.error)
    if problem.instance:
        error.invocation = problem.instance
        error.add_note(f"invocation {problem.instance}")
    raise error


def _foreign_error(response: ClientResponse) -> str:
    """Say what an error is that no node has written."""
    if response.status in _OF_PROXIES:
        return f"{_OF_PROXIES[response.status]} (HTTP {response.status} of a proxy)"
    text = bytes(response.body[:200]).decode("utf-8", "replace")
    return f"this is not a Dandelion node: HTTP {response.status} {text}"


def _decoded(response: ClientResponse, cls: type[T]) -> T:
    body = _checked(response).body
    with _foreign_refused():
        return msgspec.json.decode(body, type=cls)


def _text(response: ClientResponse) -> str:
    body = _checked(response).body
    with _foreign_refused():
        return str(body, "utf-8")


@contextlib.contextmanager
def _foreign_refused() -> Iterator[None]:
    """Refuse a body that is not one of a node."""
    try:
        yield
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _foreign(str(error)) from None


def _foreign(reason: str) -> InvalidInput:
    return InvalidInput("response", f"not a response of Dandelion: {reason}")


def _path(route: str, name: str, version: int | None = None, tail: str = "", **query: str) -> str:
    if version is not None:
        query["version"] = str(version)
    try:
        path = f"{route}/{urllib.parse.quote(name, safe='')}{tail}"
    except UnicodeEncodeError:
        raise _no_unicode("name", name) from None
    return f"{path}?{_query(query)}" if query else path


def _query(given: Mapping[str, object]) -> str:
    """Write the query of a URL.

    Raises:
        InvalidInput: a text has bytes that are not Unicode, as from a command line.
    """
    try:
        return urllib.parse.urlencode(given)
    except UnicodeEncodeError as error:
        raise _no_unicode("query", error.object) from None


def _no_unicode(where: str, text: str) -> InvalidInput:
    return InvalidInput(where, f"{text!a} is not valid Unicode", "names are text in UTF-8")
