"""Tokens, rights, tenants and hostile clients, with one frontend and with two."""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from dandelion.testing import wait_until
from tests.node.guarded import Answer, Guarded, named, token, with_secrets

ASYNC = {"Prefer": "respond-async", "Content-Type": "application/json"}
SETS = b'{"sets": {"a": "1"}}'
STREAMS = 400


@pytest.fixture(scope="module", params=[1, 2], ids=["one", "two"])
def here(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Guarded]:
    with with_secrets(tmp_path_factory.mktemp("tokens"), request.param) as opened:
        yield opened


def submit(here: Guarded, caller: str, **headers: str) -> Answer:
    given = {**ASYNC, **{name.replace("_", "-"): value for name, value in headers.items()}}
    return here.ask("POST", "/v1/invoke/echo", caller, SETS, given)


def place_of(here: Guarded, caller: str) -> str:
    answer = submit(here, caller)
    assert answer.status == 202, answer.body
    return answer.place


def test_ids_are_unguessable(here: Guarded) -> None:
    places = {place_of(here, "acme") for _ in range(20)}
    assert len(places) == 20
    assert all(re.fullmatch(r"/v1/invocations/[0-9a-f]{32}", place) for place in places)


def test_an_invocation_of_another_tenant_is_like_none(here: Guarded) -> None:
    place = place_of(here, "acme")
    unknown = "/v1/invocations/" + "0" * 32
    assert here.ask("GET", f"{place}?wait_s=20", "acme").status == 200
    for method, tail in (("GET", ""), ("GET", "/result"), ("GET", "/events"), ("DELETE", "")):
        theirs = here.ask(method, place + tail, "beta")
        none = here.ask(method, unknown + tail, "beta")
        assert theirs.status == none.status == 404
        mine, other = place.rpartition("/")[2].encode(), b"0" * 32
        assert theirs.body.replace(mine, other) == none.body
    assert b'"invocations":[]' in here.ask("GET", "/v1/invocations", "beta").body
    assert here.ask("GET", f"{place}/result", "acme").status == 200


def test_all_routes_need_the_right_to_invoke(here: Guarded) -> None:
    place = place_of(here, "only-invoke")
    paths = [("GET", "/v1/invocations"), ("GET", place), ("GET", f"{place}/result?wait_s=20")]
    paths += [("GET", f"{place}/events"), ("DELETE", place)]
    for method, path in paths:
        for caller in ("only-read", "only-register", "only-operate"):
            assert here.ask(method, path, caller).kind == "MissingRight", (caller, path)
        for stranger in (None, "expired", "unknown"):
            assert here.ask(method, path, stranger).status == 401
        assert here.ask(method, path, "only-invoke").status < 300, path


def test_keys_are_those_of_a_tenant(here: Guarded) -> None:
    mine = submit(here, "acme", Idempotency_Key="shared")
    theirs = submit(here, "beta", Idempotency_Key="shared")
    assert mine.place != theirs.place
    huge = submit(here, "acme", Idempotency_Key="k" * 60_000)
    assert huge.status == 400
    assert len(huge.body) < 2000, "a huge key is not given back"
    assert submit(here, "acme", Dandelion_Callback="x" * 60_000).status == 400
    assert submit(here, "acme", Prefer="," * 60_000 + "respond-async").status == 200


def test_hundreds_of_event_streams_do_not_delay_others(here: Guarded) -> None:
    place = place_of(here, "acme")
    here.ask("GET", f"{place}?wait_s=20", "acme")
    request = (
        f"GET {place}/events HTTP/1.1\r\nHost: 127.0.0.1:{here.port}\r\n"
        f"Authorization: Bearer {token('acme')}\r\n\r\n"
    ).encode()
    with contextlib.ExitStack() as opened:
        for _ in range(STREAMS):  # none of them reads
            connection = socket.create_connection(("127.0.0.1", here.port), 20)
            opened.callback(connection.close)
            connection.sendall(request)
        assert here.ask("GET", f"{place}/result", "acme").status == 200
        assert here.ask("GET", place, "beta").status == 404
    wait_until(lambda: not here.node._parts.kept.views.watching, 20)


def test_half_a_stream_ends_with_the_server(tmp_path: Path) -> None:
    with with_secrets(tmp_path, 1) as opened:
        opened.node.register(named("other"), tenant="acme")
        lives = opened.node._parts.kept.lives
        lives.places._limit = 0  # nothing begins
        place = place_of(opened, "acme")
        connection = http.client.HTTPConnection("127.0.0.1", opened.port, timeout=20)
        headers = {"Authorization": f"Bearer {token('acme')}"}
        connection.request("GET", f"{place}/events", headers=headers)
        response = connection.getresponse()
        assert b'"waiting"' in response.read1(65536)
    with contextlib.closing(connection):
        assert response.read() == b""  # it ended in order, and at once
