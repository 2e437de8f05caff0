"""Authorisation, fan-out and a page: its functions, its two descriptions, and the whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from dandelion.compositions.render_logs import access as access_module
from dandelion.compositions.render_logs import bundle, demo, fan_out, oracle, render, world
from dandelion.compositions.render_logs.described import render_logs as described
from dandelion.compositions.render_logs.loopback import Request
from dandelion.compositions.render_logs.world import LogServer, Reader, World, serve_world

from dandelion.data import Item, ItemSet, Sets, Value
from dandelion.dataflow.graph import Composition, application_ids
from dandelion.dataflow.language import parse
from dandelion.documents import RegistrationDocument
from dandelion.errors import ApplicationFailed, DeadlineExceeded, Raised, RequestFailed, TimedOut
from dandelion.frontend.server import BackgroundServer
from dandelion.node import Node, Settings
from dandelion.set_values import item_set

# --- functions --------------------------------------------------------------------------------


def one(name: str, value: Value) -> ItemSet:
    made = item_set(name, value)
    assert made is not None
    return made


@pytest.mark.parametrize("token", ["", "a\nhost: x", "a b", "ü", "a\0", "x" * 4097, "a\r"])
def test_tokens_cannot_become_headers(token: str) -> None:
    with pytest.raises(ValueError, match="visible ASCII"):
        access_module.access(one("token", f"x{token}x" if token else ""), one("authority", "u"))


def granted(**changes: object) -> ItemSet:
    server = {"name": "a", "url": "http://h/a"}
    grant = {"reader": "Ada", "ticket": "t", "servers": [server]} | changes
    return one("grant", json.dumps(grant))


OK = one("reply", "HTTP/1.1 200 OK\ncontent-type:application/json\n")


def test_fan_out_names_and_numbers_its_requests() -> None:
    servers = [{"name": name, "url": f"https://h/{name}"} for name in "ba"]
    made = fan_out.fan_out(OK, granted(servers=servers), one("topic", "a b&c\n"))
    first, second = made["requests"]
    assert (first.name, first.key, second.name, second.key) == ("b", 0, "a", 1)
    wanted = b"GET https://h/b?topic=a%20b%26c%0A HTTP/1.1\nauthorization: Ticket t\n\n"
    assert first.data == wanted
    assert made["reader"] == "Ada"


@pytest.mark.parametrize(
    "changes",
    [
        {"ticket": "a\nb: c"},
        {"ticket": ""},
        {"ticket": 1},
        {"servers": [{"name": "a", "url": "http://h/ HTTP/1.1\nx: y"}]},
        {"servers": [{"name": "a", "url": "file:///etc/passwd"}]},
    ],
)
def test_grants_cannot_become_headers(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="the grant's"):
        fan_out.fan_out(OK, granted(**changes), one("topic", "x"))


def test_refusals_give_nothing_else() -> None:
    reply = one("reply", "HTTP/1.1 401 Unauthorized\n")
    made = fan_out.fan_out(reply, one("grant", "who are you\n"), one("topic", "x"))
    assert made == {"refusal": "401 Unauthorized: who are you"}


class Tags(HTMLParser):
    """Collects which elements a page has, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_nothing_from_elsewhere_becomes_markup() -> None:
    evil = "<script>'\"&</script>"
    heads = (Item(evil, 1, b"HTTP/1.1 200 OK\n"), Item("b", 0, f"HTTP/1.1 500 {evil}\n".encode()))
    bodies = (Item("b", 0, b""), Item(evil, 1, evil.encode() + b"\xff\xfe"))
    made = render.render(
        one("reader", evil),
        one("topic", evil),
        ItemSet("replies", heads),
        ItemSet("pages", bodies),
    )
    tags = Tags()
    tags.feed(made["html"]["logs.html"])
    assert tags.tags == {"html", "meta", "title", "h1", "p", "section", "h2", "pre"}
    assert tags.text.count(evil) == 7  # twice the title, server, status, log
    assert f"{evil}\ufffd\ufffd" in tags.text
    assert tags.text.index("500") < tags.text.index(f"{evil}\ufffd")  # by key
    assert "1 of 2 servers answered" in tags.text


# --- descriptions -----------------------------------------------------------------------------


def canonical(composition: Composition) -> Composition:
    """Name all sets within a composition after their producers."""
    ids = application_ids(composition)
    kept = {*composition.inputs, *composition.outputs}
    names = {
        r.target: r.target if r.target in kept else f"{id_}.{r.output}"
        for id_, application in zip(ids, composition.applications, strict=True)
        for r in application.returns
    }
    applications = tuple(
        msgspec.structs.replace(
            application,
            bindings=tuple(
                msgspec.structs.replace(b, source=names.get(b.source, b.source))
                for b in application.bindings
            ),
            returns=tuple(
                msgspec.structs.replace(r, target=names[r.target]) for r in application.returns
            ),
        )
        for application in composition.applications
    )
    return msgspec.structs.replace(composition, applications=applications)


def test_text_and_python_describe_the_same_graph() -> None:
    (text,) = bundle.document().compositions
    written, printed = parse(text), parse(described.text())
    assert canonical(written.compositions[0]) == canonical(printed.compositions[0])
    declared, used = (
        {d.name: (d.inputs, d.outputs) for d in m.declarations} for m in (written, printed)
    )
    assert declared == used


# --- through a node ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    settings = Settings(
        backends=("null", "process", "http"),
        options={"http": {"allow": "127.0.0.1", "retries": "0"}},
        engines={"process": 1},
        arena_bytes=64 * 2**20,
    )
    with Node(settings) as started:
        assert started.wait_ready(60)
        yield started


def invoke(
    node: Node, known: World, token: str = "token-ada", topic: str = "x", deadline_s: float = 60
) -> tuple[Sets, list[Request]]:
    """Serve a world, register and invoke; return outputs and the requests to the servers."""
    seen: list[Request] = []
    with serve_world(known, seen=seen) as url:
        node.register(bundle.document(url))
        outputs = node.invoke(bundle.NAME, token=token, topic=topic, deadline_s=deadline_s)
    return outputs, seen


def world_of(*servers: LogServer) -> World:
    return World({"token-ada": Reader("Ada", servers)})


@pytest.mark.parametrize("seed", range(4))
def test_pages_are_the_oracles(node: Node, seed: int) -> None:
    inputs = bundle.example_inputs(seed)
    outputs, _ = invoke(node, world.EXAMPLE, **inputs)
    assert bundle.agrees(bundle.results(outputs), bundle.expected(inputs))
    assert outputs.refusal is None


def test_many_servers_are_in_their_order(node: Node) -> None:
    known = world_of(*(LogServer(f"s{(7 * n) % 24}", 200 if n % 5 else 404) for n in range(24)))
    outputs, seen = invoke(node, known)
    assert outputs.html.text() == oracle.page(known, "token-ada", "x")
    assert len(seen) == 25


def test_only_the_authority_sees_the_token(node: Node) -> None:
    _, seen = invoke(node, world.EXAMPLE)
    (login, *others) = seen
    assert login.headers["authorization"] == "Bearer token-ada"
    assert len(others) == len(world.SERVERS)
    assert not any("token-ada" in repr(request) for request in others)


def test_the_python_description_runs(node: Node) -> None:
    with serve_world() as url:
        node.register(RegistrationDocument(bundle.document(url).functions), described)
        inputs = bundle.example_inputs(5)
        outputs = node.invoke(bundle.NAME, **inputs)
    assert bundle.agrees(bundle.results(outputs), bundle.expected(inputs))


@pytest.mark.parametrize(
    ("token", "reason"),
    [("nobody", "401 Unauthorized: unknown token"), ("token-dan", "403 Forbidden: Dan is locked")],
)
def test_a_refused_token_gives_the_reason_and_sends_no_other_request(
    node: Node, token: str, reason: str
) -> None:
    outputs, seen = invoke(node, world.EXAMPLE, token)
    assert outputs.html is None
    assert outputs.refusal.text().startswith(reason)
    assert [request.target for request in seen] == ["/access"]


def test_an_authority_that_fails_is_no_refusal(node: Node) -> None:
    known = World(world.EXAMPLE.readers, status=500)
    with pytest.raises(ApplicationFailed) as caught:
        invoke(node, known)
    assert caught.value.application == "fan_out"
    assert isinstance(caught.value.root, Raised)
    assert "500 Internal Server Error" in caught.value.root.exception


def test_a_log_server_that_is_down_fails_the_call_and_is_named(node: Node) -> None:
    known = world_of(LogServer("up"), LogServer("down", hangs_up=True))
    with pytest.raises(ApplicationFailed) as caught:
        invoke(node, known)
    assert (caught.value.application, caught.value.key) == ("HTTP#2", 1)
    assert isinstance(caught.value.root, RequestFailed)
    assert caught.value.root.item == "down"


def test_a_log_server_that_is_late_does_not_hold_a_deadline_up(node: Node) -> None:
    known = world_of(LogServer("quick"), LogServer("late", delay_s=60))
    # Invocation and call have the same deadline: either may be the first to say so.
    with pytest.raises((DeadlineExceeded, ApplicationFailed)) as caught:
        invoke(node, known, deadline_s=0.3)
    if isinstance(caught.value, ApplicationFailed):
        assert isinstance(caught.value.root, TimedOut)


def test_a_log_server_that_takes_its_time_is_waited_for(node: Node) -> None:
    known = world_of(LogServer("quick"), LogServer("late", delay_s=0.05))
    outputs, _ = invoke(node, known)
    assert outputs.html.text() == oracle.page(known, "token-ada", "x")


# --- the demonstration ------------------------------------------------------------------------


def test_demonstration(node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with BackgroundServer(node) as server:
        assert demo.main(["--url", server.url, "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "refused, 403 Forbidden" in shown
    assert "WRONG" not in shown
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"logs-token-{name}.html" for name in ("ada", "bob", "cyd")
    ]


def test_demonstration_without_a_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serve_world() as url:  # a server, but no node
        assert demo.main(["--url", url, "--out", str(tmp_path)]) == 1
    assert ":" in capsys.readouterr().out
