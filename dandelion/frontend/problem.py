"""Errors over HTTP: RFC 9457 problem documents, and the errors of HTTP itself.

`type`, `title` and `status` of a problem are those of the **root cause**, since a client acts on
that. `detail` is the whole message. `error` is the `ErrorRecord` with all causes, from which the
client builds errors of the same classes as in-process.

Source: RFC 9457, Problem Details for HTTP APIs.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from dandelion.errors import (
    Blame,
    CapacityError,
    DandelionError,
    ErrorRecord,
    Problem,
    Problems,
    root_of,
)

MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:dandelion:error:"


@dataclass(eq=False)
class RequestError(DandelionError):
    """The server does not understand the request."""

    status = 400
    blame = Blame.CALLER


@dataclass(eq=False)
class NoRoute(RequestError):
    """No route has this path."""

    path: str
    nearest: str | None = None
    status = 404

    def __str__(self) -> str:
        close = f"; did you mean {self.nearest}?" if self.nearest else ""
        return f"no route for {self.path}{close}"


@dataclass(eq=False)
class MethodNotAllowed(RequestError):
    """The route does not support this method."""

    method: str
    path: str
    allowed: tuple[str, ...]
    status = 405

    def __str__(self) -> str:
        return f"{self.path} does not support {self.method}; use {', '.join(self.allowed)}"


@dataclass(eq=False)
class NoTunnel(RequestError):
    """The method CONNECT is not supported."""

    hint: str = "send the request itself; the node is not a proxy"
    status = 501

    def __str__(self) -> str:
        return f"CONNECT is not supported; {self.hint}"


@dataclass(eq=False)
class ForeignHost(RequestError):
    """The Host header does not name this node."""

    host: str
    hint: str = "call the node by localhost or its address, or add the name to the setting 'hosts'"
    status = 421

    def __str__(self) -> str:
        return f"header.host: '{self.host}' is not a name of this node; {self.hint}"


@dataclass(eq=False)
class ForeignOrigin(RequestError):
    """The request comes from a web page that may not call this node."""

    origin: str
    hint: str = "add the page's origin to the setting 'cors_origins' if it may call this node"
    status = 403

    def __str__(self) -> str:
        return f"header.origin: a page of '{self.origin}' may not call this node; {self.hint}"


@dataclass(eq=False)
class Unauthenticated(RequestError):
    """The request has no valid token."""

    status = 401

    def __str__(self) -> str:
        return "no valid token; send one in the header 'Authorization: Bearer TOKEN'"


@dataclass(eq=False)
class MissingRight(RequestError):
    """The token does not have the right that the route needs."""

    right: str
    status = 403

    def __str__(self) -> str:
        return f"the token does not have the right '{self.right}'; use a token that has it"


@dataclass(eq=False)
class RateLimited(RequestError):
    """The token was used more often than its rate limit allows."""

    retry_after_s: int
    status = 429

    def __str__(self) -> str:
        return f"the rate limit of the token is exceeded; try again in {self.retry_after_s} s"


@dataclass(eq=False)
class NotAcceptable(RequestError):
    """The client accepts no media type in which the response can be written."""

    accept: str
    message: str
    status = 406

    def __str__(self) -> str:
        return f"cannot respond with {self.accept}: {self.message}"


@dataclass(eq=False)
class TooCostly(RequestError):
    """Converting a body or a response exceeds the limits of time or memory.

    Attributes:
        where: ``body`` or ``response``.
        limit_s: processor time in seconds.
        limit_bytes: memory.
    """

    where: str
    limit_s: float
    limit_bytes: int
    status = 413

    def __str__(self) -> str:
        return (
            f"{self.where}: the conversion takes more than {self.limit_s:g} s or"
            f" {self.limit_bytes >> 30} GiB of memory; send less data, or MessagePack with"
            " large binary values"
        )


@dataclass(eq=False)
class Stalled(RequestError):
    """The client stopped sending a request, or sends it too slowly."""

    part: str
    limit_s: float
    rate_bytes: int = 0
    status = 408

    def __str__(self) -> str:
        if self.part == "head":
            return f"the head was not complete within {self.limit_s:g} s; send it in one piece"
        return (
            f"{self.part}: fewer than {self.rate_bytes} bytes/s were received for "
            f"{self.limit_s:g} s; send it faster"
        )


@dataclass(eq=False)
class HeadTooLong(RequestError):
    """Request line and headers are longer than the limit."""

    limit_bytes: int
    status = 431

    def __str__(self) -> str:
        return f"the head of the request is longer than {self.limit_bytes} bytes"


@dataclass(eq=False)
class Crowded(CapacityError):
    """All connections are in use by requests."""

    limit: int
    status = 503

    def __str__(self) -> str:
        return f"all {self.limit} connections are in use; try again"


@dataclass(eq=False)
class ShuttingDown(DandelionError):
    """The server stopped before the request was complete."""

    status = 503
    blame = Blame.PLATFORM

    def __str__(self) -> str:
        return "the server is shutting down"


@dataclass(eq=False)
class UnsupportedMedia(RequestError):
    """The media type or content encoding of the body is not supported."""

    given: str
    supported: tuple[str, ...]
    status = 415

    def __str__(self) -> str:
        text = f"a body of {self.given} is not supported; send {', '.join(self.supported)}"
        if self.given == "application/x-www-form-urlencoded":
            text += "; with 'curl -d', add -H 'content-type: application/json'"
        return text


# By a part of the message. The more specific ones are first.
_UNREACHABLE_HINTS = {
    "refused": "is a node running there? start one with `dandelion serve`",
    "doesn't match": "connect to a name of the certificate",
    "is not valid for": "connect to a name of the certificate",
    "CERTIFICATE_VERIFY_FAILED": (
        "name a file with the certificate of its authority: --ca FILE, DANDELION_CA, or tls=FILE"
    ),
    "WRONG_VERSION_NUMBER": "if it serves HTTP without TLS, write http://",
    "RECORD_LAYER_FAILURE": "if it serves HTTP without TLS, write http://",
}


@dataclass(eq=False)
class Unreachable(DandelionError):
    """A client gets no answer from a node: no server, a broken connection, or silence."""

    url: str
    message: str
    status = 503

    def __str__(self) -> str:
        hints = (text for part, text in _UNREACHABLE_HINTS.items() if part in self.message)
        hint = next(hints, "")
        may_be_tls = "without an answer" in self.message or "not valid HTTP" in self.message
        if may_be_tls and self.url.startswith("http:"):
            hint = "if it serves HTTPS, write https://"
        return f"{self.url}: {self.message}{'; ' if hint else ''}{hint}"


@dataclass(eq=False)
class ClientClosed(Unreachable):
    """The client was closed, so it sends no more requests."""

    message: str = "the client is closed"


class ProblemDocument(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of an error response.

    Attributes:
        type: ``urn:dandelion:error:CLASS``; stable.
        title: description of the type.
        status: the HTTP status.
        detail: what happened.
        instance: id of the invocation, if there is one.
        hint: what to do about it.
        problems: all problems of a document, each with its place.
        error: class, fields and causes.
    """

    type: str
    title: str
    status: int
    detail: str
    error: ErrorRecord
    instance: str = ""
    hint: str = ""
    problems: tuple[Problem, ...] = ()


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(ProblemDocument)


def problem_of(error: DandelionError, instance: str = "") -> ProblemDocument:
    """Describe an error as a problem document."""
    root = root_of(error)
    name = type(root).__name__
    title = (type(root).__doc__ or name).split("\n", 1)[0].rstrip(".")
    return ProblemDocument(
        type=TYPE_PREFIX + name,
        title=title,
        status=root.status,
        detail=str(error),
        error=error.record(),
        instance=instance,
        hint=_hint(root),
        problems=root.problems if isinstance(root, Problems) else (),
    )


def encode_problem(problem: ProblemDocument) -> bytes:
    """Write a problem document as JSON. Invalid Unicode is escaped."""
    try:
        return _encoder.encode(problem)
    except UnicodeEncodeError:
        return _encoder.encode(printable(msgspec.to_builtins(problem)))


def decode_problem(body: bytes | memoryview) -> ProblemDocument | None:
    """Read a problem document; None if the body is not one."""
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _hint(error: DandelionError) -> str:
    for field in ("hint", "remedy"):
        text = getattr(error, field, "")
        if text:
            return str(text)
    close = getattr(error, "nearest", None)
    return f"did you mean '{close}'?" if close else ""


def printable(value: object) -> object:
    """Escape invalid Unicode in a value that JSON could have."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {printable(k): printable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [printable(v) for v in value]
    return value
