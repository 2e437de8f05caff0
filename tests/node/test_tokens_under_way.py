"""Requests that were allowed when they began, and whose token is gone when they go on."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path

import msgspec
import pytest

from dandelion.documents import RegistrationDocument
from dandelion.frontend.server import BackgroundServer
from dandelion.node import Node
from dandelion.testing import wait_until
from dandelion.tokens import Right
from dandelion.tokens.file import write_tokens
from tests.node.guarded import Answer, Guarded, answer_of, guarded, named, record, token
from tests.node.served import SETTINGS, GateDriver, function

DOCUMENT = msgspec.json.encode(RegistrationDocument(functions=(named("late"),)))
REMOVAL = b'{"records": [{"kind": "function", "name": "kept"}]}'
JSON = {"Content-Type": "application/json"}


@pytest.fixture(params=[1, 2], ids=["one", "two"])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Guarded]:
    with guarded(tmp_path, request.param) as opened:
        opened.node.register(functions=[named("kept")], tenant="acme")
        yield opened


def replaced(served: Guarded, *rights: Right) -> None:
    """Leave the token of acme these rights, and wait until that is known."""
    left = [record("beta", tenant="beta")]
    left += [record("acme", tenant="acme", rights=rights)] if rights else []
    write_tokens(served.tokens, left)
    wait_until(lambda: all(refused(served) for _ in range(20)))


def refused(served: Guarded) -> bool:
    return served.ask("GET", "/v1/functions", "acme").status in (401, 403)


def half(served: Guarded, path: str, body: bytes, between: Callable[[], None]) -> Answer:
    """Send the half of a body, do something, and send the rest."""
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=20)
    with closing(connection):
        connection.putrequest("POST", path)
        connection.putheader("Authorization", f"Bearer {token('acme')}")
        connection.putheader("Content-Type", "application/json")
        connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body[:5])
        between()
        connection.send(body[5:])
        return answer_of(connection.getresponse())


@pytest.mark.parametrize(("path", "body"), [("/v1/register", DOCUMENT), ("/v1/remove", REMOVAL)])
def test_a_removed_token_changes_nothing(served: Guarded, path: str, body: bytes) -> None:
    answer = half(served, path, body, partial(replaced, served))
    assert (answer.status, answer.kind) == (401, "Unauthenticated")
    assert {r.name for r in served.node.records("acme")} >= {"kept"}
    assert "late" not in {r.name for r in served.node.records("acme")}


def test_a_token_that_lost_the_right_changes_nothing(served: Guarded) -> None:
    lose = partial(replaced, served, Right.INVOKE)
    answer = half(served, "/v1/register", DOCUMENT, lose)
    assert (answer.status, answer.kind) == (403, "MissingRight")


def test_a_token_that_keeps_the_right_registers(served: Guarded) -> None:
    narrow = partial(replaced, served, Right.INVOKE, Right.REGISTER)
    assert half(served, "/v1/register", DOCUMENT, narrow).status == 200


def test_a_removed_token_invokes_nothing(served: Guarded) -> None:
    body = b'{"sets": {"a": "x"}}'
    assert half(served, "/v1/invoke/kept", body, lambda: None).status == 200
    answer = half(served, "/v1/invoke/kept", body, partial(replaced, served))
    assert (answer.status, answer.kind) == (401, "Unauthenticated")


def test_a_token_that_stays_registers(served: Guarded) -> None:
    assert half(served, "/v1/register", DOCUMENT, lambda: None).status == 200


@pytest.fixture
def gated(tmp_path: Path) -> Iterator[tuple[Guarded, GateDriver]]:
    path = tmp_path / "tokens.toml"
    write_tokens(path, [record("acme", tenant="acme")])
    driver = GateDriver()
    settings = msgspec.structs.replace(SETTINGS, tokens=str(path))
    with Node(settings, [driver]) as node, BackgroundServer(node) as server:
        node.register(functions=[function("wait", ("a",), ("b",), "gate")], tenant="acme")
        yield Guarded(node, int(server.url.rpartition(":")[2]), path), driver
        driver.gate.open(100)


@pytest.mark.parametrize(
    ("tail", "headers"),
    [
        ("?wait_s=20", {}),
        ("/result?wait_s=20", {}),
        ("", {"Prefer": "respond-async, wait=20"}),
        ("", {"Idempotency-Key": "one"}),
    ],
)
def test_a_long_poll_gives_no_result_to_a_removed_token(
    gated: tuple[Guarded, GateDriver], tail: str, headers: dict[str, str]
) -> None:
    served, driver = gated
    invoke = partial(served.ask, "POST", "/v1/invoke/wait", "acme", b'{"sets": {"a": "x"}}')
    if headers:
        poll = partial(invoke, {**JSON, **headers})
    else:
        place = invoke({**JSON, "Prefer": "respond-async"}).place
        poll = partial(served.ask, "GET", place + tail, "acme")
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(poll)
        assert driver.gate.entered()
        replaced(served)
        driver.gate.open(100)
        assert (answer.result(20).status, answer.result().kind) == (401, "Unauthenticated")
