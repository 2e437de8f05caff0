"""Engines in threads of the node: cancelled calls end soon."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from dandelion.documents import CodeDocument, FunctionDocument, RegistrationDocument
from dandelion.driver import Call, Engine
from dandelion.errors import Cancelled, DandelionError
from dandelion.function import Function
from dandelion.node import Node, Settings
from dandelion.testing import wait_until
from tests import native_functions, python_functions
from tests.wasm_modules import made

SOON_S = 2.0
"""Much less than what a call may take; `bench` measures the time itself."""
LOOP = "def f(x):\n    while True:\n        pass\n"


def _native() -> Function:
    return native_functions.function(native_functions.built("attempt.c"))


ENDLESS: dict[str, tuple[Callable[[], Function], bytes]] = {
    "process": (lambda: python_functions.function(LOOP), b""),
    "native": (_native, b"loop"),
    "wasm": (lambda: made("(loop (br 0))"), b""),
}


def run(engine: Engine, call: Call, ended: list[tuple[float, object]]) -> None:
    """Run a call and note when and how it ended."""
    try:
        engine.run(call)
    except DandelionError as error:
        ended.append((time.monotonic(), type(error)))
    engine.clean_up()


def is_running(engine: Any) -> bool:
    """Tell whether a call has reached its own code."""
    if hasattr(engine, "_interrupt"):
        return engine._call_id is not None
    return engine._running is not None and engine._running.sandbox is not None


@pytest.mark.parametrize("backend", ENDLESS)
def test_a_running_call_ends_soon(backend: str) -> None:
    make, text = ENDLESS[backend]
    wanted = make()
    lasted_s = []
    with native_functions.engine_of(backend) as engine:
        for _ in range(5):  # this machine may be busy
            call = native_functions.call_of(wanted, text)
            ended: list[tuple[float, object]] = []
            thread = threading.Thread(target=run, args=(engine, call, ended))
            thread.start()
            wait_until(partial(is_running, engine))
            cancelled_s = time.monotonic()
            assert engine.cancel(call.id)
            thread.join()
            ((ended_s, error),) = ended
            assert error is Cancelled
            lasted_s.append(ended_s - cancelled_s)
    assert min(lasted_s) < SOON_S


def test_running_and_waiting_calls_end_soon_with_their_callers() -> None:
    """Five invocations for one engine: one runs, the others wait; then the engine is free."""
    source = LOOP.replace("f(x)", "Loop(x)").replace("True", "x[0].data == b'1'")
    code = CodeDocument("python", source)
    document = FunctionDocument("Loop", ("x",), ("y",), code=(code,))
    settings = Settings(backends=("process",), engines={"process": 1})

    async def callers(node: Node) -> float:
        calls = [asyncio.ensure_future(node.invoke_async("Loop", x=b"1")) for _ in range(5)]
        while node.info().running < 1:
            await asyncio.sleep(0.001)
        cancelled_s = time.monotonic()
        for call in calls:
            call.cancel()
        for ended in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(ended, asyncio.CancelledError)
        return time.monotonic() - cancelled_s

    with Node(settings) as node:
        node.register(RegistrationDocument(functions=(document,)))
        assert node.wait_ready()
        lasted_s = [asyncio.run(callers(node)) for _ in range(5)]
        node.invoke("Loop", x=b"0")
    assert min(lasted_s) < SOON_S
