"""The composition of ``render_logs.dandelion``, described in Python: the same graph."""

from __future__ import annotations

from dandelion.dataflow.dsl import Returned, SetLike, composition, each, functions, http, optional

access, fan_out, render = functions(
    "access(token, authority) -> (request)",
    "fan_out(reply, grant, topic) -> (requests, reader, refusal)",
    "render(reader, topic, replies, pages) -> (html)",
)


@composition
def render_logs(token: SetLike, topic: SetLike) -> Returned:
    """Check the token, request each log, make one page."""
    login = http(requests=each(access(token=token)))
    granted = fan_out(reply=login.headers, grant=login.bodies, topic=topic)
    answers = http(requests=each(granted.requests))
    page = render(
        reader=granted.reader,
        topic=topic,
        replies=optional(answers.headers),
        pages=optional(answers.bodies),
    )
    return {"html": page, "refusal": granted.refusal}
