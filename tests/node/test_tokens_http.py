"""Tokens over HTTP: rights, tenants, rate limits and the audit, with 1 and 2 frontends."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dandelion import AsyncClient, Client
from dandelion.documents import RegistrationDocument
from dandelion.errors import Conflict, InvalidInput, Unknown
from dandelion.frontend.app import App
from dandelion.frontend.problem import MissingRight, RateLimited, Unauthenticated
from dandelion.frontend.routing import Route
from dandelion.node import Node
from dandelion.settings import Settings
from dandelion.testing import wait_until
from dandelion.tokens import Right
from dandelion.tokens.file import write_tokens

from .guarded import (
    COMPOSITION,
    SECRETS,
    Answer,
    Guarded,
    guarded,
    named,
    record,
    token,
    with_secrets,
)

JSON = {"Content-Type": "application/json"}
BODY = b'{"sets": {"a": "x"}}'


@pytest.fixture(scope="module", params=[1, 2])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Guarded]:
    with with_secrets(tmp_path_factory.mktemp("tokens"), request.param) as opened:
        yield opened


def client(served: Guarded, caller: str) -> Client:
    return Client(f"http://127.0.0.1:{served.port}", token=token(caller))


# --- the table of rights --------------------------------------------------------------------------


def routes() -> list[Route]:
    """List all routes of the protocols that a node serves by default."""
    with closing(Node(Settings(backends=(), arena_bytes=1 << 20))) as node:
        app = App(node)
        app.close()
        return list(app.routes)


def interface(served: Guarded) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(served.ask("GET", "/openapi.json").body)
    return document


def test_every_route_of_the_interface_is_documented_with_its_right(served: Guarded) -> None:
    document = interface(served)
    assert document["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    left_out = set()
    for route in routes():
        operation = document["paths"].get(route.documented_path, {}).get(route.method.lower())
        if operation is None:
            left_out.add(route.path)
        else:
            expected = [] if route.right is None else [{"token": [route.right.value]}]
            assert operation["security"] == expected
    assert left_out == {"/openapi.json", "/docs", "/", "/page/{file}"}
    public = {route.path for route in routes() if route.right is None}
    assert public == {"/healthz", "/readyz", "/openapi.json", "/docs", "/", "/page/{file}"}


def requests() -> list[tuple[str, str, Right | None]]:
    """One request for each route that needs one right, to names that do not exist.

    Where a stream would begin, the query is wrong.
    """
    wrong = {"/v1/activity/events": "?after=x"}
    return [
        (
            route.method,
            re.sub(r"\{\w+\}", "none", route.documented_path) + wrong.get(route.path, ""),
            route.right,
        )
        for route in routes()
        if route.also is None
    ]


@pytest.mark.parametrize(("method", "path", "right"), requests())
def test_each_right_opens_its_routes_and_no_other(
    served: Guarded, method: str, path: str, right: Right | None
) -> None:
    headers = JSON if method == "POST" else {}
    body = BODY if method == "POST" else None
    for given in Right:
        answer = served.ask(method, path, f"only-{given.value}", body, headers)
        if right in (given, None):
            assert answer.status not in (401, 403)
        else:
            assert (answer.status, answer.kind) == (403, "MissingRight")
            assert f"'{right.value}'" in json.loads(answer.body)["detail"]
    status = served.ask(method, path, None, body, headers).status
    assert (status == 401) == (right is not None)


def test_a_recording_needs_two_rights(served: Guarded) -> None:
    path = "/v1/record/none"
    for right in Right:
        answer = served.ask("POST", path, f"only-{right.value}", BODY, JSON)
        assert (answer.status, answer.kind) == (403, "MissingRight")
    assert served.ask("POST", path, "acme", BODY, JSON).status == 404


def test_health_needs_no_token(served: Guarded) -> None:
    for path in ("/healthz", "/readyz", "/docs", "/openapi.json"):
        assert served.ask("GET", path).status == 200
        assert served.ask("GET", path, "unknown").status == 200


# --- the tenant of the token ----------------------------------------------------------------------


def test_each_tenant_has_its_own_names(served: Guarded) -> None:
    with client(served, "acme") as acme, client(served, "beta") as beta:
        assert {e.name for e in acme.list()} >= {"secret", "plan", "lib/secret"}
        assert not {e.name for e in beta.list()} & {"secret", "plan", "lib/secret"}
        assert acme.invoke("plan", a=b"x").b.bytes() == b"x"
        assert beta.invoke("echo", a=b"y").b.bytes() == b"y"
        with pytest.raises(Unknown):
            beta.invoke("secret", a=b"x")
        for tenant, caller in (("acme", acme), ("beta", beta)):
            assert [t.name for t in caller.capacity().tenants] == [tenant]


def test_tenants_register_and_remove_the_same_name_apart(served: Guarded) -> None:
    with client(served, "acme") as acme, client(served, "beta") as beta:
        acme.register(named("shared"))
        beta.register(named("shared"))
        assert beta.remove("shared")
        assert acme.describe("shared").versions == (1,)
        with pytest.raises(Unknown):
            beta.describe("shared")
        assert acme.remove("shared")


def test_a_trace_is_found_by_its_tenant_only(served: Guarded) -> None:
    with client(served, "acme") as acme:
        id_ = acme.invoke_sets("echo", {"a": b"x"}).id
        assert acme.trace(id_)
    unknown = id_[:-1] + ("1" if id_[-1] != "1" else "2") + "9"
    for caller in ("beta", "default"):
        hidden = served.ask("GET", f"/v1/traces/{id_}", caller)
        missing = served.ask("GET", f"/v1/traces/{unknown}", caller)
        assert hidden.status == missing.status == 404
        assert hidden.body == missing.body.replace(unknown.encode(), id_.encode())


PROBES = [
    ("POST", "/v1/invoke/{name}"),
    ("GET", "/v1/functions/{name}"),
    ("GET", "/v1/functions/{name}?version=1"),
    ("DELETE", "/v1/functions/{name}"),
    ("DELETE", "/v1/functions/{name}?version=1"),
    ("GET", "/v1/compositions/{name}"),
    ("GET", "/v1/compositions/{name}/graph"),
    ("DELETE", "/v1/compositions/{name}"),
    ("GET", "/v1/libraries/{name}"),
    ("DELETE", "/v1/libraries/{name}"),
    ("GET", "/v1/capacity?function={name}"),
    ("HEAD", "/v1/functions/{name}"),
    ("OPTIONS", "/v1/functions/{name}"),
    ("PUT", "/v1/functions/{name}"),
]
LISTS = ["/v1/functions", "/v1/compositions", "/v1/libraries"]
SPELLINGS = [
    "hidden",
    "acme/hidden",
    "acme%2Fhidden",
    "hidde",
    "acme%1Fhidden",
    "..%2Facme%2Fhidden",
]


def probe(served: Guarded, caller: str | None) -> dict[tuple[str, str], tuple[int, bytes]]:
    """Ask for names in all ways that there are."""
    requested = [(m, path.replace("{name}", name)) for m, path in PROBES for name in SPELLINGS]
    found = {}
    for method, path in [*requested, *(("GET", path) for path in LISTS)]:
        body = BODY if method == "POST" else None
        answer = served.ask(method, path, caller, body, JSON if method == "POST" else {})
        found[method, path] = (answer.status, answer.body)
    text = {"Content-Type": "text/vnd.dandelion"}
    used = b"function hidden(a) => (b); composition c(a) => (b) { hidden(a = all a) => (b = b); }"
    answer = served.ask("POST", "/v1/register", caller, used, text)
    found["POST", "/v1/register"] = (answer.status, answer.body)
    return found


@pytest.mark.parametrize("caller", ["beta", "default", "only-operate", "expired", None])
def test_no_response_depends_on_whether_others_have_a_name(
    served: Guarded, caller: str | None
) -> None:
    before = probe(served, caller)
    composition = COMPOSITION.replace("secret", "hidden").replace("plan", "hidden_plan")
    hidden = RegistrationDocument(
        functions=(named("hidden"),), libraries={"hidden": "text"}, compositions=(composition,)
    )
    owner = "acme" if caller != "only-operate" else "beta"
    served.node.register(hidden, tenant=owner)
    try:
        assert probe(served, caller) == before
    finally:
        for entry in ("hidden_plan", "hidden", "hidden"):
            with client(served, owner) as own:
                own.remove(entry)
    assert all(
        status in (400, 401, 403, 404, 405)
        for (_, path), (status, _) in before.items()
        if path not in LISTS
    )


# --- rate limits, errors, the audit ---------------------------------------------------------------


def test_a_rate_limit_says_when_to_try_again(served: Guarded) -> None:
    answers: list[Answer] = [served.ask("GET", "/v1/functions", "slow") for _ in range(6)]
    allowed = [answer for answer in answers if answer.status == 200]
    assert len(allowed) <= 3
    last = answers[-1]
    assert (last.status, last.kind) == (429, "RateLimited")
    assert 0 < int(last.headers["retry-after"]) <= 100
    assert served.ask("GET", "/v1/functions", "acme").status == 200


def test_clients_raise_the_errors_by_class(served: Guarded) -> None:
    url = f"http://127.0.0.1:{served.port}"
    with Client(url, token="unknown") as unknown, pytest.raises(Unauthenticated):
        unknown.list()
    with client(served, "only-read") as reader, pytest.raises(MissingRight) as missing:
        reader.invoke("echo", a=b"x")
    assert missing.value.right == "invoke"
    with client(served, "slow") as slow, pytest.raises(RateLimited):
        for _ in range(5):
            slow.capacity()

    async def ask() -> None:
        async with AsyncClient(url, token=token("beta")) as beta:
            assert (await beta.invoke("echo", a=b"x")).b.bytes() == b"x"

    asyncio.run(ask())


def test_tokens_are_replaced_while_the_node_runs(tmp_path: Path) -> None:
    for frontends in (1, 2):
        folder = tmp_path / str(frontends)
        folder.mkdir()
        with guarded(folder, frontends) as served:
            assert served.ask("GET", "/v1/functions", "new").status == 401
            write_tokens(served.tokens, [record("new")])
            wait_until(lambda: served.ask("GET", "/v1/functions", "new").status == 200, 20)
            wait_until(lambda: served.ask("GET", "/v1/functions", "acme").status == 401, 20)
            served.tokens.write_text("damaged")
            assert served.ask("GET", "/v1/functions", "new").status == 200


def test_changes_of_the_catalogue_are_audited(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "dandelion.audit")
    with guarded(tmp_path, 1) as served, client(served, "acme") as acme:
        acme.register(SECRETS)
        with pytest.raises(Conflict):
            acme.remove("secret")
        acme.remove("plan")
        with pytest.raises(Unknown):
            acme.remove("x y=z outcome=ok")
        with client(served, "only-read") as reader, pytest.raises(MissingRight):
            reader.register(named("echo"))
    lines = [r.message for r in caplog.records if r.name == "dandelion.audit"]
    assert all(line.startswith("time=") and " peer=127.0.0.1:" in line for line in lines)
    assert all(" tenant=acme " in line for line in lines)
    assert "action=register token=acme" in lines[0]
    assert "function:secret@1" in lines[0]
    assert "composition:plan@1" in lines[0]
    assert "library:lib/secret@1" in lines[0]
    assert lines[0].endswith("outcome=ok")
    assert any("names=function:secret@*" in li and li.endswith("Conflict") for li in lines)
    assert any("names=composition:plan@1" in li and li.endswith("outcome=ok") for li in lines)
    assert any('names="function:x y=z outcome=ok@*"' in li for li in lines)
    assert "token=only-read" in lines[-1]
    assert lines[-1].endswith("outcome=MissingRight")
    assert not any(token("acme") in line for line in lines)


@pytest.mark.parametrize(
    ("method", "path", "caller", "headers", "body", "action", "outcome"),
    [
        ("POST", "/v1/register", None, JSON, b"{}", "register", "Unauthenticated"),
        ("POST", "/v1/register", "acme", JSON, b"{", "register", "InvalidInput"),
        ("POST", "/v1/register", "acme", {}, b"{}", "register", "UnsupportedMedia"),
        ("POST", "/v1/register?x=1", "acme", JSON, b"{}", "register", "InvalidInput"),
        ("POST", "/v1/remove", None, JSON, b"{}", "remove", "Unauthenticated"),
        ("POST", "/v1/remove", "only-read", JSON, b"{}", "remove", "MissingRight"),
        ("POST", "/v1/remove", "acme", JSON, b"{", "remove", "InvalidInput"),
        ("DELETE", "/v1/functions/f", None, {}, None, "remove", "Unauthenticated"),
        ("DELETE", "/v1/functions/f", "only-read", {}, None, "remove", "MissingRight"),
        ("DELETE", "/v1/functions/f?version=abc", "acme", {}, None, "remove", "InvalidInput"),
        ("POST", "/register/function", None, {}, b"", "register", "Unauthenticated"),
        ("POST", "/register/function", "acme", {}, b"\1", "register", "InvalidInput"),
        ("POST", "/register/composition", "acme", {}, b"\1", "register", "InvalidInput"),
        ("POST", "/register/library", "acme", {}, b"\1", "register", "InvalidInput"),
    ],
)
def test_each_attempt_has_one_line(
    audited: Guarded,
    caplog: pytest.LogCaptureFixture,
    method: str,
    path: str,
    caller: str | None,
    headers: dict[str, str],
    body: bytes | None,
    action: str,
    outcome: str,
) -> None:
    caplog.set_level(logging.INFO, "dandelion.audit")
    assert audited.ask(method, path, caller, body, headers).status >= 400
    [line] = [r.message for r in caplog.records if r.name == "dandelion.audit"]
    assert f" action={action} token={caller or '-'} tenant={'acme' if caller else '-'} " in line
    assert line.endswith(f" outcome={outcome}")


def test_a_comparison_is_no_attempt(audited: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dandelion.audit")
    for caller in (None, "only-read", "acme"):
        assert audited.ask("POST", "/v1/compare", caller, b"{", JSON).status >= 400
    assert not [r for r in caplog.records if r.name == "dandelion.audit"]


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded(tmp_path_factory.mktemp("audited"), 1, protocols=("bson",)) as opened:
        yield opened


def test_settings_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    for frontends in (1, 2):
        with pytest.raises(InvalidInput), guarded(tmp_path, frontends, allow_anonymous=True):
            pass
