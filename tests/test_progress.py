"""Progress: bars on terminals, outputs in notebooks, nothing anywhere else; what is counted."""

from __future__ import annotations

import asyncio
import contextlib
import io
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import dandelion as dd
from dandelion.asynchronous import handle as handles
from dandelion.documents import CodeDocument, Content, FunctionDocument
from dandelion.frontend import client_protocol
from dandelion.frontend.server import BackgroundServer
from dandelion.progress import ShowProgress, progress

ECHO = FunctionDocument("echo", ("a",), ("b",), code=(CodeDocument("null"),))
Shown = list[tuple[int, int, str]]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def use(monkeypatch: pytest.MonkeyPatch, out: io.StringIO, error: io.StringIO) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", error)


def work(**how: Any) -> None:
    with progress("calls [red]", **how) as show:
        for done in range(1, 4):
            show(done, 3, "running [/]")


def test_a_terminal_has_a_bar_that_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    out, error = Terminal(), Terminal()
    use(monkeypatch, out, error)
    work()
    assert "calls [red]: running [/]" in error.getvalue()
    assert "3/3" in error.getvalue()
    assert error.getvalue().endswith("\x1b[2K")  # the line is erased
    assert out.getvalue() == ""
    work(in_bytes=True)
    assert "bytes" in error.getvalue()


@pytest.mark.parametrize("terminals", [(False, False), (True, False), (False, True)])
def test_without_a_terminal_there_is_nothing(
    monkeypatch: pytest.MonkeyPatch, terminals: tuple[bool, bool]
) -> None:
    out, error = (Terminal() if one else io.StringIO() for one in terminals)
    use(monkeypatch, out, error)
    work()
    assert out.getvalue() == error.getvalue() == ""
    use(monkeypatch, Terminal(), Terminal())
    work(wanted=False)
    assert sys.stderr.getvalue() == ""  # type: ignore[attr-defined]


def test_a_notebook_has_one_output(monkeypatch: pytest.MonkeyPatch) -> None:
    updates: list[str] = []

    def display(thing: Any, display_id: bool) -> Any:
        assert display_id
        updates.append(thing._repr_html_())
        return SimpleNamespace(update=lambda new: updates.append(new._repr_html_()))

    ipython, module = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
    module.display = display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    use(monkeypatch, io.StringIO(), io.StringIO())
    with progress("<b>calls</b>") as show:
        show(1, 3, "")
        show(3, 3, "")
    assert "&lt;b&gt;calls" in updates[0]
    assert '<progress max="3" value="3">' in updates[-1]
    ipython.get_ipython = lambda: SimpleNamespace()  # type: ignore[attr-defined]
    updates.clear()
    work()  # a console of IPython, whose output goes to a file
    assert not updates


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Shown:
    found: Shown = []

    @contextlib.contextmanager
    def collect(
        text: str, *, in_bytes: bool = False, wanted: bool = True
    ) -> Iterator[ShowProgress]:
        yield lambda *given: found.append(given) if wanted else None

    monkeypatch.setattr(handles, "progress_bar", collect)
    monkeypatch.setattr(client_protocol, "progress", collect)
    return found


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    settings = dd.Settings(backends=("null",), arena_bytes=64 << 20)
    with dd.Node(settings) as node, BackgroundServer(node) as server:
        node.register(ECHO, "composition all(a) => (b) { echo(a = each a) => (b = b); }")
        yield server.url


def test_calls_of_an_invocation_are_counted(url: str, shown: Shown) -> None:
    values = [f"{n}" for n in range(300)]
    with dd.Client(url) as client:
        result = client.submit("all", a=values).result(30, progress=True)
        assert len(result.b) == 300
        assert client.submit("all", a=values).result(30)

    async def main() -> None:
        async with dd.AsyncClient(url) as client:
            handle = await client.submit("all", a=values)
            await handle.result(30, progress=True)

    counted = len(shown)
    asyncio.run(main())
    assert shown[counted - 1][:2] == shown[-1][:2] == (300, 300)
    assert all(done <= known <= 300 for done, known, _ in shown)


def test_bytes_of_a_large_registration_are_counted(url: str, shown: Shown) -> None:
    large = FunctionDocument(
        "large", ("a", "w"), ("a", "w"), code=(CodeDocument("null"),),
        static={"w": {"w": Content(data=bytes(9 << 20))}},
    )  # fmt: skip
    with dd.Client(url) as client:
        client.register(ECHO, progress=True)
        assert not shown
        client.register(large, progress=True)
    sizes = [done for done, _, _ in shown]
    assert sizes == sorted(sizes)
    assert len(sizes) >= 9
    assert sizes[-1] == shown[-1][1] > 9 << 20
