"""Recording invocations on a node, and replaying them: offline, changed, in a debugger."""

from __future__ import annotations

import asyncio
import io
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from dandelion.compositions.render_logs import bundle as render_logs
from dandelion.compositions.render_logs import world
from dandelion.compositions.render_logs.world import serve_world

from dandelion import AsyncClient, Client
from dandelion.cli.main import main
from dandelion.data import ItemSet
from dandelion.documents import RegistrationDocument, content, python_function
from dandelion.errors import InvalidFunction, InvalidInput, NotRecorded, QuotaExceeded, Unknown
from dandelion.frontend.problem import MissingRight
from dandelion.frontend.server import BackgroundServer
from dandelion.function import Limits
from dandelion.node import Node, Settings
from dandelion.recording.compare import Change, differences
from dandelion.recording.records import Recording, decode_recording
from dandelion.replay.debug import debug, find_call
from dandelion.replay.run import replay
from dandelion.set_values import item_set
from dandelion.settings import TenantSettings
from dandelion.tokens import Right
from dandelion.tokens.file import write_tokens

from .frontend_processes import Processes
from .guarded import record as token_record
from .guarded import token
from .served import SETTINGS, function

SPLIT = python_function(
    """
def split(text):
    return {"words": text.text().split()}
""",
    name="Split",
    entry="split",
    inputs=("text",),
    outputs=("words",),
)
LENGTH = """
def length(word, scale):
    import numpy as np

    return np.array([len(word.text())], "float32") * scale.numpy()
"""


def length(source: str = LENGTH) -> RegistrationDocument:
    """Register a function that multiplies the length of a word by a static number."""
    made = python_function(
        source,
        name="Length",
        entry="length",
        inputs=("word", "scale"),
        outputs=("size: float32[1]",),
        static={"scale": {"scale": np.array([2], np.float32)}},
    )
    return RegistrationDocument(functions=(made,))


TEXT = """function Split(text) => (words);
function Length(word, scale) => (size);
composition Sizes(text) => (sizes) {
    Split(text = all text) => (words = words);
    Length(word = each words) => (sizes = size);
}"""
COMPUTE = ("null", "process")


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    options = {"http": {"allow": "127.0.0.1", "retries": "0"}}
    settings = Settings(
        backends=(*COMPUTE, "http"), options=options, engines={"process": 1}, arena_bytes=64 << 20
    )
    with Node(settings) as started:
        assert started.wait_ready(60)
        started.register(SPLIT, length(), TEXT)
        yield started


def given(**sets: Any) -> dict[str, ItemSet | None]:
    return {name: item_set(name, value) for name, value in sets.items()}


def recorded(node: Node, name: str, **sets: Any) -> Recording:
    return decode_recording(node.record(name, given(**sets)))


def test_recorded_invocations_give_the_same_results_bit_by_bit(node: Node) -> None:
    for seed in range(3):
        rng = np.random.default_rng(seed)
        text = " ".join("x" * n for n in rng.integers(1, 20, 10))
        before = recorded(node, "Sizes", text=text)
        assert {call.label for call in before.calls} == {
            "Split[0]",
            *(f"Length[{number}]" for number in range(10)),
        }
        assert before.outputs == decode_recording(before.encode()).outputs
        after = replay(before, backends=COMPUTE)
        assert differences(before, after) == []
        assert len(after.calls) == 11


def test_a_failure_is_recorded_and_fails_again(node: Node) -> None:
    before = recorded(node, "Sizes", text=b"\xff")
    assert before.outputs is None
    assert before.error is not None
    assert differences(before, replay(before, backends=COMPUTE)) == []


def test_what_does_not_begin_gives_no_recording(node: Node) -> None:
    with pytest.raises(Unknown, match="'Sizes'"):
        node.record("Size", {})
    with pytest.raises(InvalidInput):
        node.record("Sizes", {})
    node.set_tenant("full", TenantSettings(arena_bytes=4096))
    node.register(function("echo", ("a",), ("b",)), tenant="full")
    with pytest.raises(QuotaExceeded):
        node.record("echo", given(a=bytes(1 << 20)), tenant="full")


def test_io_is_not_performed_again(node: Node) -> None:
    with serve_world(world.EXAMPLE) as url:
        node.register(render_logs.document(url))
        inputs = render_logs.example_inputs(0)
        before = recorded(node, render_logs.NAME, **inputs)
    assert before.error is None
    assert [spec.name for spec in before.platform] == ["HTTP"]
    after = replay(before, backends=COMPUTE)  # the server is gone
    assert differences(before, after) == []
    assert {call.engine for call in after.calls if call.kind == "io"} == {"recorded"}
    assert before.outputs is not None
    (html, *_) = [before.restored(one) for one in before.outputs]
    assert html is not None
    wanted = render_logs.expected(inputs)
    assert render_logs.agrees(render_logs.results({"html": html, "refusal": None}), wanted)


def test_other_requests_have_no_recorded_answer(node: Node) -> None:
    with serve_world(world.EXAMPLE) as url:
        node.register(render_logs.document(url))
        before = recorded(node, render_logs.NAME, **render_logs.example_inputs(0))
    access = next(f for f in before.document.functions if f.name == "access")
    source = content(access.code[0].main).bytes().decode().replace('f"GET ', 'f"PUT ')
    code = msgspec.structs.replace(access.code[0], main=source)
    changed = msgspec.structs.replace(access, code=(code,))
    after = replay(before, [RegistrationDocument(functions=(changed,))], COMPUTE)
    assert after.error is not None
    error = after.error
    while error.cause is not None:
        error = error.cause
    assert error.type == NotRecorded.__name__
    changes = [one.change for one in differences(before, after)]
    assert changes[0] is Change.CODE
    assert {Change.CALL, Change.MISSING, Change.RESULT} <= set(changes)


def test_a_planted_difference_is_found_where_it_begins(node: Node) -> None:
    before = recorded(node, "Sizes", text="one three five")
    other = LENGTH.replace("len(word.text())", "len(word.text()) + (word.text() == 'three')")
    found = differences(before, replay(before, [length(other)], COMPUTE))
    assert [(one.change, one.where) for one in found] == [
        (Change.CODE, "Length"),
        (Change.CALL, "Length[1]"),
        (Change.RESULT, "Sizes"),
    ]
    assert "1 of 1 elements, by at most 2" in found[1].detail


def test_one_call_in_a_debugger(node: Node) -> None:
    recording = recorded(node, "Sizes", text="one three five")
    call = find_call(recording, "Length[1]")
    seen: dict[str, Any] = {}

    def runner(called: Callable[..., Any], **arguments: ItemSet | None) -> Any:
        seen.update(arguments)
        return called(**arguments)

    assert debug(recording, call, runner).same
    assert seen["word"].text() == "three"
    assert seen["scale"].numpy().tolist() == [2.0]
    assert not debug(recording, call, lambda called, **arguments: np.array([1], np.float32)).same
    assert find_call(recording, "Split").label == "Split[0]"
    with pytest.raises(Unknown, match=r"Length\[1\]|Length\[2\]"):
        find_call(recording, "Lenth[1]")
    echo = recorded(node, "Sizes", text="")
    assert [c.label for c in echo.calls] == ["Split[0]"]


ENDS = """
import sys

def share(row):
    text = row.text()
    if text == "exit":
        sys.exit(3)
    if text == "misspelt":
        return {"results": text}
    a, b = text.split("/")
    return str(int(a) // int(b))
"""


@pytest.mark.parametrize("row", ["3/0", "a/1", "exit", "misspelt"])
def test_a_failed_call_in_a_debugger(node: Node, row: str) -> None:
    node.register(
        python_function(ENDS, name="Share", entry="share", inputs=("row",), outputs=("result",))
    )
    recording = recorded(node, "Share", row=row)
    (call,) = recording.calls
    assert call.error is not None

    def runner(called: Callable[..., Any], **_: object) -> Any:
        return called(row=given(row=changed)["row"])

    for changed in (row, "5/0", "b/1", "4/2"):
        ended = debug(recording, call, runner)
        assert ended.same == (changed == row or (row, changed) == ("3/0", "5/0"))
        assert bool(ended.traceback) == (changed != "4/2")
        assert "runner" not in ended.traceback


def test_the_command_line_shows_a_failed_call(
    node: Node, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    node.register(
        python_function(ENDS, name="Share", entry="share", inputs=("row",), outputs=("result",))
    )
    path = tmp_path / "failed.recording"
    path.write_bytes(recorded(node, "Share", row="3/0").encode())
    for typed, code, said in (
        ("c\n", 0, "the error is the recorded one"),
        ("n\ntext = 'a/1'\nc\n", 1, "the error is not the recorded one"),
        ("n\ntext = '4/2'\nc\n", 1, "the result is not the recorded one"),
    ):
        monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        assert main(["replay", str(path), "--debug-call", "Share"]) == code
        out = capfd.readouterr().out
        assert said in out
        assert ("recorded: function 'Share' raised ZeroDivisionError" in out) == bool(code)
        assert out.count(", in share\n") == bool(code) + ("error is" in said)
        assert "dandelion/" not in out
    assert main(["replay", str(path), "--calls", "--debug-call", "Share"]) == 2
    assert "--calls: it only lists the calls" in capfd.readouterr().err
    monkeypatch.setattr("sys.stdin", io.StringIO("q\n"))
    assert main(["replay", str(path), "--debug-call", "Share"]) != 0
    captured = capfd.readouterr()
    assert "the debugger was left before the call ended" in captured.err
    assert "the recorded one" not in captured.out


def test_a_replay_does_as_the_node_that_recorded() -> None:
    composition = "composition Parts(x) => (y) { Count(x = anyEach x) => (y = y); }"
    limits = Limits(wall_s=4000.0, output_items=2_000_000)
    slow = python_function(
        "def Count(x): return {'y': str(len(x))}", name="Count", inputs=("x",), outputs=("y",)
    )
    slow = msgspec.structs.replace(slow, limits=limits)
    settings = msgspec.structs.replace(
        SETTINGS,
        backends=("process",),
        partitioning="fixed:3",
        max_wall_s=7200.0,
        max_output_items=10_000_000,
    )
    with Node(settings) as node:
        node.register(slow, composition)
        made = decode_recording(node.record("Parts", {"x": [b"a"] * 7}))
    assert (len(made.calls), made.partitioning) == (3, "fixed:3")
    again = replay(made, backends=("process",))
    assert differences(made, again) == []
    assert again.document.functions[0].limits == limits


def test_a_replay_takes_secrets_from_its_file(tmp_path: Path) -> None:
    signed = python_function(
        "def Sign(x, key): return {'y': str(len(x.text() + key.text()))}",
        name="Sign",
        inputs=("x", "key"),
        outputs=("y",),
        secrets={"key": "signing"},
    )
    file = tmp_path / "secrets.toml"
    file.write_text('[acme]\nsigning = "secret"\n')
    file.chmod(0o600)
    here = Settings(backends=("process",), secrets=str(file))
    with Node(here) as node:
        node.register(signed, tenant="acme")
        made = decode_recording(node.record("Sign", {"x": "a"}, tenant="acme"))
    with pytest.raises(InvalidFunction, match=r"no secret 'signing'.*DANDELION_SECRETS"):
        replay(made, backends=("process",))
    again = replay(made, backends=("process",), here=here, tenant="acme")
    assert differences(made, again) == []
    with pytest.raises(InvalidInput, match="'Sign' has secrets, which no recording has"):
        debug(made, find_call(made, "Sign"))


@pytest.mark.parametrize(
    ("given", "kept"), [("max", "max"), ("auto:5", "auto:5"), ("auto", f"auto:{os.cpu_count()}")]
)
def test_a_recording_has_the_partitioning(given: str, kept: str) -> None:
    with Node(Settings(backends=("null",), partitioning=given)) as node:
        node.register("composition Same(x) => (x) {}")
        assert decode_recording(node.record("Same", {"x": "1"})).partitioning == kept
    with pytest.raises(InvalidInput, match="auto:CORES"):
        Node(Settings(backends=("null",), partitioning="max:2"))


def test_over_http_and_the_command_line(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "sizes.recording"
    with BackgroundServer(node) as server:
        words = ["record", "Sizes", "text=a bb", "-o", str(path), "--url", server.url]
        assert main(words) == 0
        assert "3 calls" in capsys.readouterr().out
        with Client(server.url) as client:
            over_http = decode_recording(client.record("Sizes", {"text": "a bb"}))
            assert differences(decode_recording(path.read_bytes()), over_http) == []
            with pytest.raises(Unknown):
                client.record("Size", {"text": "a"})
    assert main(["replay", str(path), "--calls"]) == 0
    assert "Length[1]" in capsys.readouterr().out
    assert main(["replay", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"calls": 3, "differences": []}
    changed = tmp_path / "changed.msgpack"
    changed.write_bytes(msgspec.msgpack.encode(length(LENGTH.replace("len(", "1 + len("))))
    assert main(["replay", str(path), "--with", str(changed)]) == 1
    out = capsys.readouterr().out
    assert "Length[0]" in out
    assert "Length[1]" in out
    path.write_bytes(b"nothing")
    assert main(["replay", str(path)]) == 1
    assert "dandelion record" in capsys.readouterr().err


def test_with_the_asynchronous_client(node: Node) -> None:
    async def recorded(url: str) -> Recording:
        async with AsyncClient(url) as client:
            return decode_recording(await client.record("Sizes", {"text": "a bb"}))

    with BackgroundServer(node) as server:
        assert len(asyncio.run(recorded(server.url)).calls) == 3


def test_a_recording_needs_both_rights(tmp_path: Path) -> None:
    records = [
        token_record("both", rights=(Right.READ, Right.INVOKE)),
        token_record("invoke", rights=(Right.INVOKE,)),
        token_record("read", rights=(Right.READ,)),
        token_record("other", tenant="acme", rights=(Right.READ, Right.INVOKE)),
    ]
    tokens = tmp_path / "tokens.toml"
    write_tokens(tokens, records)
    settings = msgspec.structs.replace(SETTINGS, tokens=str(tokens))
    with Node(settings) as node, BackgroundServer(node) as server:
        node.register(function("echo", ("a",), ("b",)))

        def call(name: str) -> Recording:
            with Client(server.url, token=token(name)) as client:
                return decode_recording(client.record("echo", {"a": "x"}))

        assert len(call("both").calls) == 1
        for name in ("invoke", "read"):
            with pytest.raises(MissingRight):
                call(name)
        with pytest.raises(Unknown):
            call("other")


def test_through_frontend_processes() -> None:
    settings = msgspec.structs.replace(SETTINGS, frontends=2)
    with Processes(settings, [], 2) as processes:
        processes.node.register(function("echo", ("a",), ("b",)))
        with Client(f"http://127.0.0.1:{processes.port}") as client:
            array = np.arange(100_000, dtype=np.float64)  # more than a message
            recording = decode_recording(client.record("echo", {"a": array}))
            assert recording.outputs is not None
            (restored,) = [recording.restored(one) for one in recording.outputs]
            assert restored is not None
            assert np.array_equal(restored.numpy(), array)
            with pytest.raises(Unknown):
                client.record("ecko", {"a": "x"})
