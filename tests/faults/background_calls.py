"""Calls of Python functions in threads of their own."""

from __future__ import annotations

import threading
from pathlib import Path

from dandelion.backends.process.engine import ProcessEngine
from dandelion.backends.process.handle import Sandbox
from dandelion.backends.process.sandbox_pool import PLAIN, SandboxPool

from dandelion.driver import Call
from dandelion.errors import DandelionError
from tests.python_functions import function

ECHO = function("def f(x):\n    return x\n")
SLEEP = function("import time\ndef f(x):\n    time.sleep(60)\n")
ROOT = Path(__file__).parent.parent.parent


def pool_of(engine: ProcessEngine) -> SandboxPool:
    with engine._pools.use(PLAIN) as pool:
        return pool


class Background:
    """A call in a thread of its own; `sandbox` is the one that runs it."""

    def __init__(self, engine: ProcessEngine, call: Call) -> None:
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._main, args=(engine, call))
        self._thread.start()
        self.sandbox = self._wait_for_sandbox(engine)

    def _main(self, engine: ProcessEngine, call: Call) -> None:
        try:
            engine.run(call)
        except DandelionError as error:
            self.error = error

    def _wait_for_sandbox(self, engine: ProcessEngine) -> Sandbox:
        while self._thread.is_alive():
            running = engine._running
            if running is not None and running.sandbox is not None:
                return running.sandbox
        raise AssertionError(f"the call ended at once: {self.error}")

    def join(self) -> BaseException | None:
        self._thread.join()
        return self.error
