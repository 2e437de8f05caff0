"""The responses of errors: problem documents with their headers."""

from __future__ import annotations

import http

from dandelion.errors import CapacityError, DandelionError, Overloaded, root_of
from dandelion.frontend.asgi import Header, Receive, Response, Scope, Send
from dandelion.frontend.problem import (
    MEDIA_TYPE,
    Crowded,
    MethodNotAllowed,
    RateLimited,
    Unauthenticated,
    encode_problem,
    problem_of,
)

RETRY_AFTER_S = 1
CONNECTION_LIMIT_KEY = "dandelion.connections"
"""Key of a scope: how many connections the node may have, if this one is a surplus one."""


def problem_response(error: DandelionError, instance: str = "") -> Response:
    """Make the response for an error, with the headers that belong to it."""
    root = root_of(error)
    headers: list[Header] = [(b"dandelion-invocation", instance.encode())] if instance else []
    if isinstance(root, CapacityError):
        headers.append((b"retry-after", b"%d" % RETRY_AFTER_S))
    if isinstance(root, RateLimited):
        headers.append((b"retry-after", b"%d" % root.retry_after_s))
    if isinstance(root, Unauthenticated):
        headers.append((b"www-authenticate", b"Bearer"))
    if isinstance(root, MethodNotAllowed):
        headers.append((b"allow", ", ".join(root.allowed).encode()))
    body = encode_problem(problem_of(error, instance))
    hold = isinstance(root, Overloaded) and root.owner == Overloaded.owner  # that is the node
    return Response([body], MEDIA_TYPE.encode(), root.status, headers, hold=hold)


async def refuse_surplus(scope: Scope, receive: Receive, send: Send) -> None:
    """Refuse a request on a surplus connection; its scope has the limit of connections."""
    response = problem_response(Crowded(scope[CONNECTION_LIMIT_KEY]))
    await response.send(send, scope["extensions"])


def closing_response(error: DandelionError) -> bytes:
    """Write a whole HTTP/1.1 response that closes its connection."""
    response = problem_response(error)
    body = b"".join(response.chunks)
    status = http.HTTPStatus(response.status)
    head = (
        f"HTTP/1.1 {status} {status.phrase}\r\ncontent-type: {MEDIA_TYPE}\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
